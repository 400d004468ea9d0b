/* SPDX-License-Identifier: Apache-2.0 */
/* serve_ask.h - an endpoint without a network: requests go straight to its handler. */
#ifndef TESTS_SERVE_ASK_H
#define TESTS_SERVE_ASK_H

#include "serve_call.h"
#include "serve_core.h"
#include "test.h"

static struct ws_serve *serve;
static struct ws_serve_reply reply;
static char killed_by[256]; /* "": nothing yet */
static unsigned crashes;
static const char *query_timeout; /* of each request; NULL: it has none */

static inline void note_crash(void *ctx, const char *why)
{
	(void)ctx;
	snprintf(killed_by, sizeof killed_by, "%s", why);
	crashes++;
}

static inline void start(struct ws_serve_opts opts)
{
	struct ws_err failed = WS_ERR_INIT;
	ws_serve_stop(serve);
	serve = NULL;
	killed_by[0] = 0;
	crashes = 0;
	if (!opts.die)
		opts.crash = note_crash;
	if (ws_serve_new(&opts, &serve, &failed))
		fail_msg("%s", failed.msg);
}

static inline int tear_down(void **state)
{
	(void)state;
	ws_buf_free(&reply.body);
	ws_serve_stop(serve);
	serve = NULL;
	query_timeout = NULL;
	return 0;
}

/* ctx: "timeout=1&a=b" */
static inline const char *ask_query(const void *ctx, const char *key)
{
	static char value[128];
	const size_t n = strlen(key);
	if (strcmp(key, "timeout") == 0)
		return query_timeout;
	for (const char *at = ctx; at && *at; at += strcspn(at, "&"), at += *at == '&')
		if (strncmp(at, key, n) == 0 && at[n] == '=') {
			snprintf(value, sizeof value, "%.*s", (int)strcspn(at + n + 1, "&"),
			         at + n + 1);
			return value;
		}
	return NULL;
}

static inline bool ask_query_has(const void *ctx, const char *key, const char *value)
{
	char pair[128];
	const int n = snprintf(pair, sizeof pair, "%s=%s", key, value);
	const char *at = ctx ? strstr(ctx, pair) : NULL;
	return at && (at[n] == '&' || !at[n]);
}

/* 0: the connection dropped. path may have a query; body may be NULL. */
static inline unsigned ask(const char *method, const char *path, const char *body)
{
	char only[128];
	snprintf(only, sizeof only, "%.*s", (int)strcspn(path, "?"), path);
	const char *query = strchr(path, '?');
	const struct ws_serve_request rq = {
		.method = method, .path = only, .body = body ? body : "",
		.body_len = body ? strlen(body) : 0,
		.query = ask_query, .query_has = ask_query_has,
		.query_ctx = query ? query + 1 : NULL,
	};
	ws_buf_free(&reply.body);
	ws_serve_handle(serve, &rq, &reply);
	return reply.drop ? 0 : reply.status;
}

static inline const char *said(void)
{
	return ws_buf_str(&reply.body);
}

static inline void assert_said(const char *part)
{
	if (!strstr(said(), part))
		fail_msg("'%s' lacks '%s'", said(), part);
}

static inline void answers(const char *method, const char *path, const char *body, unsigned status,
                           const char *part)
{
	const unsigned is = ask(method, path, body);
	if (is != status)
		fail_msg("%s %s: %u, not %u: %s", method, path, is, status, said());
	assert_said(part);
}

#define ASKING(name) TEST_BETWEEN(name, NULL, tear_down)

#endif
