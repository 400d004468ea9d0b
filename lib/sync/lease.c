/* SPDX-License-Identifier: Apache-2.0 */
#include "lease.h"

#include "http.h"
#include "job.h"
#include "json.h"
#include "wsync/str.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t ANSWER_NS = 10 * WS_NS_PER_S;
static const int64_t ASK_AGAIN_NS = 250 * WS_NS_PER_MS;
enum { URL_MAX = 512, REPLY_MAX = WS_ROUND_TEXT + (64 << 10) };

struct ws_lease {
	struct ws_lease_opts opts;
	char url[URL_MAX];      /* of the lock; "/renew" and "/release" go behind it */
	int64_t token, lease_ns;
	struct ws_http *http;   /* the caller's thread's */
	struct ws_job job;      /* renews */
	struct ws_cancel stop;
	pthread_mutex_t lock;   /* of what follows */
	ws_deadline until;
	struct ws_err lost;     /* code WS_OK: it is not, as far as is known */
};

/* ---- one request -------------------------------------------------------------------------------- */

struct answer {
	long status;
	struct ws_json *body;   /* an object, or NULL */
};

static int ask(const struct ws_lease *l, struct ws_http *http, const char *verb, const struct ws_buf *body,
               ws_deadline until, const struct ws_cancel *cancel, struct answer *out, struct ws_err *err)
{
	char url[URL_MAX + 16];
	snprintf(url, sizeof url, "%s%s", l->url, verb);
	struct ws_http_call call = { .method = "POST", .url = url, .body = ws_buf_str(body), .body_len = body->len,
		                     .until = until }, *calls = &call;
	*out = (struct answer){ 0 };
	int rc = ws_http_run(http, &calls, 1, cancel, err);
	if (rc == 0 && call.err.code != WS_OK) {
		if (err)
			*err = call.err;
		rc = ws_err_wrap(err, "lock service %s", l->opts.url);
	}
	if (rc == 0) {
		out->status = call.status;
		out->body = ws_json_parse(ws_buf_str(&call.reply), call.reply.len, "answer", NULL);
	}
	ws_http_drop(http, &call);
	ws_buf_free(&call.reply);
	return rc;
}

/* Neither yes nor "held". */
static int refuse(const struct ws_lease *l, const struct answer *a, struct ws_err *err)
{
	char words[256];
	const char *detail = a->status == 200 ? "no answer of a lock service" :
	                                        ws_json_get_string(a->body, "detail", "");
	ws_err_set(err, WS_EREFUSED, "lock service %s: HTTP %ld%s%s", l->opts.url, a->status, *detail ? ": " : "",
	           ws_printable(words, sizeof words, detail, strlen(detail)));
	if (a->status == 401)
		ws_err_hint(err, "give --lock-key-file the key that the gateway asks for");
	else if (a->status == 404 || a->status == 200)
		ws_err_hint(err, "locks are kept by wsync-gateway, and called http://HOST:PORT/NAME");
	return -1;
}

/* "http://HOST:PORT/NAME", with the route between. */
static int make_url(struct ws_lease *l, struct ws_err *err)
{
	const char *host = strstr(l->opts.url, "://"), *name = host ? strchr(host + 3, '/') : NULL;
	if (!name || name == host + 3 || !name[1] || strpbrk(name + 1, "/?#%") ||
	    snprintf(l->url, sizeof l->url, "%.*s/wsync/lock%s", (int)(name - l->opts.url), l->opts.url, name) >=
	            (int)sizeof l->url) {
		ws_err_set(err, WS_EUSAGE, "lock '%s' is neither a file nor http://HOST:PORT/NAME", l->opts.url);
		return -1;
	}
	return 0;
}

bool ws_lease_is_url(const char *lock)
{
	return strncmp(lock, "http://", 7) == 0 || strncmp(lock, "https://", 8) == 0;
}

/* ---- taking ------------------------------------------------------------------------------------- */

static void write_wish(const struct ws_lease *l, struct ws_buf *body)
{
	char host[65] = "", holder[160];
	struct ws_jw w;
	gethostname(host, sizeof host - 1);
	snprintf(holder, sizeof holder, "process %ld on %s", (long)getpid(), host);
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "holder", holder);
	ws_jw_int(&w, "lease_s", l->lease_ns / WS_NS_PER_S);
	ws_jw_end_object(&w);
}

static int say_held(const struct ws_lease *l, const struct answer *a, struct ws_err *err)
{
	char who[160];
	const char *holder = ws_json_get_string(a->body, "holder", "another process");
	ws_printable(who, sizeof who, holder, strlen(holder));
	if (l->opts.wait_ns <= 0) {
		ws_err_set(err, WS_EREFUSED, "%s: %s is at work on it", l->opts.what, who);
		return ws_err_hint(err, "let it end, or wait for it: --lock-wait 10m");
	}
	ws_err_set(err, WS_ETIMEOUT, "%s: %s is still at work on it", l->opts.what, who);
	if (err)
		err->native = EWOULDBLOCK;
	return -1;
}

/* 1: it is ours; 0: it is held, and *err says by whom. */
static int try_once(struct ws_lease *l, const struct ws_buf *body, struct ws_round *round, struct ws_parts *parts,
                    struct ws_err *err)
{
	struct answer a;
	const int64_t start = ws_now_ns();
	if (ask(l, l->http, "", body, ws_deadline_min(l->opts.until, ws_deadline_in(ANSWER_NS)), l->opts.cancel, &a,
	        err))
		return -1;
	int rc = -1;
	if (a.status == 200 && (l->token = ws_json_get_int(a.body, "token", 0)) > 0) {
		ws_round_read_json(ws_json_get(a.body, "round"), round, parts);
		l->until = start + l->lease_ns;
		rc = 1;
	} else if (a.status == 409) {
		rc = 0;
		say_held(l, &a, err);
	} else {
		refuse(l, &a, err);
	}
	ws_json_free(a.body);
	return rc;
}

static int take(struct ws_lease *l, struct ws_round *round, struct ws_parts *parts, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(l->opts.wait_ns > 0 ? l->opts.wait_ns : 0);
	struct ws_err held = WS_ERR_INIT, why = WS_ERR_INIT;
	struct ws_buf body;
	int rc;
	ws_buf_init(&body, 4096);
	write_wish(l, &body);
	while ((rc = try_once(l, &body, round, parts, &why)) == 0 && !ws_deadline_passed(until)) {
		held = why;
		struct pollfd p = { .fd = ws_cancel_fd(l->opts.cancel), .events = POLLIN };
		poll(&p, 1, ws_deadline_poll_ms(until, (int)(ASK_AGAIN_NS / WS_NS_PER_MS)));
	}
	ws_buf_free(&body);
	/* That there was no time left for another answer is not what ended it. */
	if (rc != 1 && err)
		*err = held.code != WS_OK && ws_deadline_passed(l->opts.until) ? held : why;
	return rc == 1 ? 0 : -1;
}

/* ---- keeping ------------------------------------------------------------------------------------ */

static void lose(struct ws_lease *l, const struct ws_err *why)
{
	pthread_mutex_lock(&l->lock);
	l->lost = *why;
	pthread_mutex_unlock(&l->lock);
}

/* false: there is nothing to renew any more. */
static bool renew(struct ws_lease *l, struct ws_http *http, const struct ws_buf *body)
{
	struct ws_err err = WS_ERR_INIT;
	struct answer a;
	const int64_t start = ws_now_ns();
	if (ask(l, http, "/renew", body, ws_deadline_in(l->lease_ns / 3), &l->stop, &a, &err)) {
		ws_log(l->opts.log, 1, "%s", err.msg);
		return !ws_cancelled(&l->stop);
	}
	const bool ours = a.status == 200;
	if (ours) {
		pthread_mutex_lock(&l->lock);
		l->until = start + l->lease_ns;
		pthread_mutex_unlock(&l->lock);
	} else if (a.status == 409) {
		char who[160];
		const char *holder = ws_json_get_string(a.body, "holder", NULL);
		ws_err_set(&err, WS_EREFUSED, "%s: the lock was lost%s%s", l->opts.what, holder ? " to " : "",
		           holder ? ws_printable(who, sizeof who, holder, strlen(holder)) : "");
		ws_err_hint(&err, "this process or the lock service did not answer for longer than the lease; a "
		                  "longer one: --lock-lease");
		lose(l, &err);
	} else {
		refuse(l, &a, &err);
		ws_log(l->opts.log, 1, "%s", err.msg);
	}
	ws_json_free(a.body);
	return a.status != 409;
}

static int keep(void *ctx, struct ws_err *err)
{
	struct ws_lease *l = ctx;
	const struct ws_http_opts opts = { .api_key = l->opts.api_key, .ca_file = l->opts.ca_file,
		                           .connect_ns = l->lease_ns / 3, .max_reply = REPLY_MAX, .log = l->opts.log };
	struct ws_http *http = NULL;
	struct ws_buf body;
	struct ws_jw w;
	if (ws_http_open(&opts, &http, err))
		return -1;
	ws_buf_init(&body, 4096);
	ws_jw_init(&w, &body);
	ws_jw_object(&w, NULL);
	ws_jw_int(&w, "token", l->token);
	ws_jw_int(&w, "lease_s", l->lease_ns / WS_NS_PER_S);
	ws_jw_end_object(&w);
	do {
		struct pollfd p = { .fd = ws_cancel_fd(&l->stop), .events = POLLIN };
		poll(&p, 1, (int)(l->lease_ns / 4 / WS_NS_PER_MS));
	} while (!ws_cancelled(&l->stop) && renew(l, http, &body));
	ws_buf_free(&body);
	ws_http_close(http);
	return 0;
}

int ws_lease_check(struct ws_lease *l, struct ws_err *err)
{
	int rc = 0;
	pthread_mutex_lock(&l->lock);
	if (l->lost.code != WS_OK) {
		rc = -1;
		if (err)
			*err = l->lost;
	} else if (ws_deadline_passed(l->until)) {
		rc = ws_err_set(err, WS_EREACH, "%s: the lock service %s has not answered for as long as the lease is",
		                l->opts.what, l->opts.url);
	}
	pthread_mutex_unlock(&l->lock);
	return rc;
}

/* ---- life --------------------------------------------------------------------------------------- */

static void free_lease(struct ws_lease *l)
{
	ws_cancel_set(&l->stop);
	ws_job_fini(&l->job);
	ws_cancel_fini(&l->stop);
	ws_http_close(l->http);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

int ws_lease_take(const struct ws_lease_opts *opts, struct ws_round *round, struct ws_parts *parts,
                  struct ws_lease **out, struct ws_err *err)
{
	struct ws_lease *l = calloc(1, sizeof *l);
	if (!l)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	l->opts = *opts;
	l->job.fd = -1;
	l->stop = (struct ws_cancel)WS_CANCEL_INIT;
	l->lease_ns = opts->lease_ns >= WS_NS_PER_S ? opts->lease_ns / WS_NS_PER_S * WS_NS_PER_S :
	                                              30 * WS_NS_PER_S;
	pthread_mutex_init(&l->lock, NULL);
	const struct ws_http_opts http = { .api_key = opts->api_key, .ca_file = opts->ca_file,
		                           .max_reply = REPLY_MAX, .log = opts->log };
	if (make_url(l, err) || ws_http_open(&http, &l->http, err) || ws_cancel_init(&l->stop, err) ||
	    ws_job_init(&l->job, err) || take(l, round, parts, err) || ws_job_start(&l->job, keep, l, err)) {
		free_lease(l);
		return -1;
	}
	*out = l;
	return 0;
}

int ws_lease_release(struct ws_lease *l, const struct ws_round *round, const struct ws_parts *parts,
                     struct ws_err *err)
{
	struct answer a = { 0 };
	struct ws_buf body;
	struct ws_jw w;
	ws_cancel_set(&l->stop);
	(void)ws_job_wait(&l->job, NULL);
	ws_buf_init(&body, WS_ROUND_TEXT + (64 << 10));
	ws_jw_init(&w, &body);
	ws_jw_object(&w, NULL);
	ws_jw_int(&w, "token", l->token);
	if (round)
		ws_round_write(&w, "round", round, parts);
	ws_jw_end_object(&w);
	int rc = ws_buf_check(&body, "round", err);
	if (rc == 0)
		rc = ask(l, l->http, "/release", &body, ws_deadline_in(ANSWER_NS), NULL, &a, err);
	if (rc == 0 && a.status != 200)
		rc = refuse(l, &a, err);
	ws_json_free(a.body);
	ws_buf_free(&body);
	free_lease(l);
	return rc;
}
