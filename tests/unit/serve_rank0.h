/* SPDX-License-Identifier: Apache-2.0 */
/* serve_rank0.h - an endpoint over real HTTP, and this program as rank 0: store, mesh,
 * broadcasts of four tensors of different types. */
#ifndef WS_TEST_SERVE_RANK0_H
#define WS_TEST_SERVE_RANK0_H

#include "gloo.h"
#include "hash.h"
#include "http.h"
#include "serve_core.h"
#include "store.h"
#include "test.h"

#include <unistd.h>

static struct ws_serve *serve;
static struct ws_store *store;
static struct ws_gloo *gloo;
static struct ws_cancel cancel;

static inline ws_deadline soon(void)
{
	return ws_deadline_in(8 * WS_NS_PER_S);
}

/* ---- one request, in a thread of its own ---- */

struct post {
	pthread_t thread;
	char method[8], url[400], body[1024];
	long status;
	char reply[8192];
};

static inline void *run_post(void *arg)
{
	struct post *p = arg;
	struct ws_http *http = NULL;
	struct ws_err err;
	const struct ws_http_opts opts = { 0 };
	struct ws_http_call call = { .method = p->method, .url = p->url,
		                     .body = p->body[0] ? p->body : NULL,
		                     .body_len = strlen(p->body), .until = soon() };
	struct ws_http_call *calls[] = { &call };
	if (ws_http_open(&opts, &http, &err) == 0 && ws_http_run(http, calls, 1, NULL, &err) == 0) {
		p->status = call.err.code ? -1 : call.status;
		snprintf(p->reply, sizeof p->reply, "%s",
		         call.err.code ? call.err.msg : ws_buf_str(&call.reply));
		ws_buf_free(&call.reply);
	}
	ws_http_close(http);
	return NULL;
}

static inline void begin(struct post *p, const char *method, const char *path, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static inline void begin(struct post *p, const char *method, const char *path, const char *fmt, ...)
{
	*p = (struct post){ 0 };
	snprintf(p->method, sizeof p->method, "%s", method);
	snprintf(p->url, sizeof p->url, "%s%s", ws_serve_url(serve), path);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(p->body, sizeof p->body, fmt, ap);
	va_end(ap);
	assert_int_equal(pthread_create(&p->thread, NULL, run_post, p), 0);
}

static inline void end(struct post *p, long status, const char *says)
{
	pthread_join(p->thread, NULL);
	if (p->status != status || !strstr(p->reply, says))
		fail_msg("status %ld, '%s'; expected %ld, '%s'", p->status, p->reply, status, says);
}

static inline void get(struct post *p, const char *path, long status, const char *says)
{
	begin(p, "GET", path, "%s", "");
	end(p, status, says);
}

static inline void post(const char *path, const char *body, long status, const char *says)
{
	struct post p;
	begin(&p, "POST", path, "%s", body);
	end(&p, status, says);
}

/* ---- rank 0 ---- */

static inline void start(const struct ws_serve_opts *opts)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_serve_opts o = *opts;
	const unsigned tp = o.tp ? o.tp : 1;
	o.listen = "127.0.0.1:0";
	o.receive_ns = o.init_ns = 8 * WS_NS_PER_S;
	if (ws_serve_start(&o, &serve, &err))
		fail_msg("%s", err.msg);
	const struct ws_store_opts so = { .host = "127.0.0.1", .world_size = 1 + tp, .group = "g" };
	if (ws_store_open(&so, &store, &err))
		fail_msg("%s", err.msg);
}

static inline void begin_init(struct post *p)
{
	begin(p, "POST", "/init_weights_update_group",
	      "{\"master_address\":\"127.0.0.1\",\"master_port\":%u,\"rank_offset\":1,"
	      "\"world_size\":%u,\"group_name\":\"g\",\"backend\":\"gloo\"}",
	      (unsigned)ws_store_port(store), 1 + serve->opts.tp);
}

static inline void await_receiving(void)
{
	bool receiving = false;
	for (int i = 0; i < 1500 && !receiving; i++) {
		usleep(10000);
		pthread_mutex_lock(&serve->lock);
		receiving = serve->receiving;
		pthread_mutex_unlock(&serve->lock);
	}
	assert_true(receiving);
}

static inline void form(void)
{
	struct ws_err err = WS_ERR_INIT;
	struct post p;
	begin_init(&p);
	const struct ws_gloo_kv kv = ws_gloo_kv_store(store);
	const struct ws_gloo_opts go = {
		.rank = 0, .size = 1 + serve->opts.tp, .prefix = "/g/g//cpu//0/", .kv = &kv,
		.host = "127.0.0.1",
	};
	if (ws_gloo_open(&go, soon(), &cancel, &gloo, &err))
		fail_msg("%s", err.msg);
	end(&p, 200,
	    "{\"success\":true,\"message\":\"Succeeded to initialize custom process group.\"}");
}

enum { TENSORS = 4 };
static const size_t lengths[TENSORS] = { 4 * 70000, 2 * 3, 8, 5 };
static uint8_t bytes[4 * 70000 + 6 + 8 + 5];
static const char tensors[] =
	"\"names\":[\"w.a\",\"w.b\",\"w.c\",\"w.d\"],"
	"\"dtypes\":[\"float32\",\"bfloat16\",\"int64\",\"uint8\"],"
	"\"shapes\":[[700,100],[3],[],[5]],\"group_name\":\"g\"";
static const char flattened[] = "\"names\":[\"w.c\",\"w.a\",\"w.b\",\"w.d\"],"
				"\"dtypes\":[\"int64\",\"float32\",\"bfloat16\",\"uint8\"],"
				"\"shapes\":[[],[700,100],[3],[5]],\"group_name\":\"g\",\"load_"
                                "format\":\"flattened_bucket\"";

static inline const uint8_t *bytes_of(size_t i)
{
	const uint8_t *at = bytes;
	while (i-- > 0)
		at += lengths[i];
	return at;
}

static inline int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	(void)err;
	memcpy(dst, (const uint8_t *)ctx + at, n);
	return 0;
}

static inline void make_span(struct ws_span *span, size_t i)
{
	*span = (struct ws_span){ .length = lengths[i], .fd = -1, .fill = fill,
		                  .ctx = (void *)(uintptr_t)bytes_of(i) };
}

static inline int send_tensors(struct ws_err *err)
{
	struct ws_span spans[TENSORS];
	struct ws_payload items[TENSORS];
	for (size_t i = 0; i < TENSORS; i++) {
		make_span(&spans[i], i);
		items[i] = (struct ws_payload){ lengths[i], &spans[i], 1 };
	}
	return ws_gloo_send(gloo, items, TENSORS, soon(), &cancel, err);
}

static inline int send_flattened(struct ws_err *err)
{
	static const size_t order[TENSORS] = { 2, 0, 1, 3 };
	struct ws_span spans[TENSORS];
	for (size_t i = 0; i < TENSORS; i++)
		make_span(&spans[i], order[i]);
	const struct ws_payload item = { sizeof bytes, spans, TENSORS };
	return ws_gloo_send(gloo, &item, 1, soon(), &cancel, err);
}

static inline void renew_bytes(unsigned seed)
{
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
}

static inline void update(const char *list, const char *more, long status, const char *says)
{
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	begin(&p, "POST", "/update_weights_from_distributed", "{%s,\"flush_cache\":false%s}", list,
	      more);
	if (list == flattened ? send_flattened(&err) : send_tensors(&err))
		fail_msg("%s", err.msg);
	end(&p, status, says);
}

/* The hash of each tensor stands once for each rank. */
static inline void assert_checksums(void)
{
	struct post p;
	get(&p, "/wsync/checksums", 200, "xxh3-64");
	for (size_t i = 0; i < TENSORS; i++) {
		char hex[17];
		unsigned n = 0;
		snprintf(hex, sizeof hex, "%016llx",
		         (unsigned long long)ws_hash64(bytes_of(i), lengths[i]));
		for (const char *at = p.reply; (at = strstr(at, hex)); at++)
			n++;
		assert_int_equal(n, serve->opts.tp);
	}
}

static inline int set_up(void **state)
{
	(void)state;
	serve = NULL;
	store = NULL;
	gloo = NULL;
	renew_bytes(1);
	return ws_cancel_init(&cancel, NULL);
}

static inline int tear_down(void **state)
{
	(void)state;
	ws_gloo_close(gloo);
	ws_serve_stop(serve);
	ws_store_close(store);
	ws_cancel_fini(&cancel);
	return 0;
}

#define RANK0_TEST(name) TEST_BETWEEN(name, set_up, tear_down)

#endif
