/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded endpoint over real HTTP, with this program as rank 0: store, mesh and broadcasts. */
#include "gloo.h"
#include "http.h"
#include "serve_core.h"
#include "store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct ws_serve *serve;
static struct ws_store *store;
static struct ws_gloo *gloo;
static struct ws_cancel cancel;
static bool old;

static ws_deadline soon(void)
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

static void *run_post(void *arg)
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

static void begin(struct post *p, const char *method, const char *path, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static void begin(struct post *p, const char *method, const char *path, const char *fmt, ...)
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

static void end(struct post *p, long status, const char *says)
{
	pthread_join(p->thread, NULL);
	if (p->status != status || !strstr(p->reply, says))
		fail_msg("status %ld, '%s'; expected %ld, '%s'", p->status, p->reply, status, says);
}

static void get(struct post *p, const char *path, long status, const char *says)
{
	begin(p, "GET", path, "%s", "");
	end(p, status, says);
}

static void post(const char *path, const char *body, long status, const char *says)
{
	struct post p;
	begin(&p, "POST", path, "%s", body);
	end(&p, status, says);
}

/* ---- rank 0 ---- */

static int kv_set(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
                  struct ws_err *err)
{
	(void)ctx;
	(void)until;
	return ws_store_set(store, key, value, n, false, err);
}

static int kv_get(void *ctx, const char *key, ws_deadline until, const struct ws_cancel *c,
                  struct ws_buf *value, struct ws_err *err)
{
	(void)ctx;
	return ws_store_get(store, key, until, c, value, err);
}

static const struct ws_gloo_kv kv = { NULL, kv_set, kv_get };

static void start(const struct ws_serve_opts *opts)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_serve_opts o = *opts;
	const unsigned tp = o.tp ? o.tp : 1;
	o.listen = "127.0.0.1:0";
	o.receive_ns = o.init_ns = 8 * WS_NS_PER_S;
	old = o.torch == WS_TORCH_1_13;
	if (ws_serve_start(&o, &serve, &err))
		fail_msg("%s", err.msg);
	const struct ws_store_opts so = { .host = "127.0.0.1", .world_size = 1 + tp, .group = "g" };
	if (ws_store_open(&so, &store, &err))
		fail_msg("%s", err.msg);
}

static void begin_init(struct post *p)
{
	begin(p, "POST", "/init_weights_update_group",
	      "{\"master_address\":\"127.0.0.1\",\"master_port\":%u,\"rank_offset\":1,"
	      "\"world_size\":%u,\"group_name\":\"g\",\"backend\":\"gloo\"}",
	      (unsigned)ws_store_port(store), 1 + serve->opts.tp);
}

static void await_receiving(void)
{
	bool receiving = false;
	for (int i = 0; i < 100 && !receiving; i++) {
		usleep(10000);
		pthread_mutex_lock(&serve->lock);
		receiving = serve->receiving;
		pthread_mutex_unlock(&serve->lock);
	}
	assert_true(receiving);
}

static void form(void)
{
	struct ws_err err = WS_ERR_INIT;
	struct post p;
	begin_init(&p);
	const struct ws_gloo_opts go = {
		.rank = 0, .size = 1 + serve->opts.tp, .layout = old ? WS_GLOO_G1 : WS_GLOO_G2B,
		.prefix = old ? "/g/g/0/" : "/g/g//cpu//0/", .kv = &kv, .host = "127.0.0.1",
	};
	if (ws_gloo_open(&go, soon(), &cancel, &gloo, &err))
		fail_msg("%s", err.msg);
	end(&p, 200, "{\"success\":true,\"message\":\"Succeeded to initialize custom process group.\"}");
}

enum { TENSORS = 4 };
static const size_t lengths[TENSORS] = { 4 * 70000, 2 * 3, 8, 5 };
static uint8_t bytes[4 * 70000 + 6 + 8 + 5];
static const char tensors[] =
	"\"names\":[\"w.a\",\"w.b\",\"w.c\",\"w.d\"],"
	"\"dtypes\":[\"float32\",\"bfloat16\",\"int64\",\"uint8\"],"
	"\"shapes\":[[700,100],[3],[],[5]],\"group_name\":\"g\"";
static const char flattened[] =
	"\"names\":[\"w.c\",\"w.a\",\"w.b\",\"w.d\"],"
	"\"dtypes\":[\"int64\",\"float32\",\"bfloat16\",\"uint8\"],"
	"\"shapes\":[[],[700,100],[3],[5]],\"group_name\":\"g\",\"load_format\":\"flattened_bucket\"";

static const uint8_t *bytes_of(size_t i)
{
	const uint8_t *at = bytes;
	while (i-- > 0)
		at += lengths[i];
	return at;
}

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	(void)err;
	memcpy(dst, (const uint8_t *)ctx + at, n);
	return 0;
}

static void make_span(struct ws_span *span, size_t i)
{
	*span = (struct ws_span){ .length = lengths[i], .fd = -1, .fill = fill,
		                  .ctx = (void *)(uintptr_t)bytes_of(i) };
}

static int send_tensors(struct ws_err *err)
{
	struct ws_span spans[TENSORS];
	struct ws_payload items[TENSORS];
	for (size_t i = 0; i < TENSORS; i++) {
		make_span(&spans[i], i);
		items[i] = (struct ws_payload){ lengths[i], &spans[i], 1 };
	}
	return ws_gloo_send(gloo, items, TENSORS, soon(), &cancel, err);
}

static int send_flattened(struct ws_err *err)
{
	static const size_t order[TENSORS] = { 2, 0, 1, 3 };
	struct ws_span spans[TENSORS];
	for (size_t i = 0; i < TENSORS; i++)
		make_span(&spans[i], order[i]);
	const struct ws_payload item = { sizeof bytes, spans, TENSORS };
	return ws_gloo_send(gloo, &item, 1, soon(), &cancel, err);
}

static void renew_bytes(unsigned seed)
{
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
}

static void update(const char *list, const char *more, long status, const char *says)
{
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	begin(&p, "POST", "/update_weights_from_distributed", "{%s,\"flush_cache\":false%s}", list, more);
	if (list == flattened ? send_flattened(&err) : send_tensors(&err))
		fail_msg("%s", err.msg);
	end(&p, status, says);
}

/* How often the hash of tensor i stands in the checksums. */
static unsigned count_hash(const char *text, size_t i)
{
	char hex[17];
	unsigned n = 0;
	snprintf(hex, sizeof hex, "%016llx",
	         (unsigned long long)ws_hash64(bytes_of(i), lengths[i]));
	for (const char *at = text; (at = strstr(at, hex)); at++)
		n++;
	return n;
}

static void assert_checksums(void)
{
	struct post p;
	get(&p, "/weights_checker", 200, "xxh3-64");
	for (size_t i = 0; i < TENSORS; i++)
		assert_int_equal(count_hash(p.reply, i), serve->opts.tp);
}

static int set_up(void **state)
{
	(void)state;
	serve = NULL;
	store = NULL;
	gloo = NULL;
	renew_bytes(1);
	return ws_cancel_init(&cancel, NULL);
}

static int tear_down(void **state)
{
	(void)state;
	ws_gloo_close(gloo);
	ws_serve_stop(serve);
	ws_store_close(store);
	ws_cancel_fini(&cancel);
	return 0;
}

/* ---- weights arrive ---- */

static void push_twice_in_both_formats(const struct ws_serve_opts *opts)
{
	start(opts);
	form();
	update(tensors, "", 200, "Succeeded to update parameter online.\"");
	assert_checksums();
	renew_bytes(2);
	update(flattened, ",\"weight_version\":\"8\"", 200, "Weight version updated to 8.");
	assert_checksums();
	renew_bytes(3);
	update(tensors, "", 200, "Succeeded");
	assert_checksums();
	assert_int_equal(serve->journal.updates, 3);
	assert_int_equal(serve->journal.bytes, 3 * sizeof bytes);
	assert_int_equal(serve->journal.distinct, TENSORS);
	assert_int_equal(serve->journal.duplicates, 2 * TENSORS);
	post("/destroy_weights_update_group", "{\"group_name\":\"g\"}", 200,
	     "Succeeded to destroy custom process group.");
	assert_null(serve->groups);
}

static void one_rank_keeps_weights_in_memory(void **state)
{
	(void)state;
	push_twice_in_both_formats(&(struct ws_serve_opts){ 0 });
	const struct ws_serve_weight *w = ws_serve_weights_find(&serve->weights, "w.a");
	assert_memory_equal(w->data, bytes_of(0), lengths[0]);
	assert_int_equal(serve->weights.n_blocks, 1);
}

static void several_ranks_agree(void **state)
{
	(void)state;
	push_twice_in_both_formats(&(struct ws_serve_opts){ .tp = 4 });
}

static void hashes_are_kept_without_the_bytes(void **state)
{
	(void)state;
	push_twice_in_both_formats(&(struct ws_serve_opts){ .tp = 3, .keep = WS_KEEP_HASH });
	assert_null(serve->weights.items[0].data);
}

static void an_old_torch_is_emulated_down_to_the_store(void **state)
{
	(void)state;
	start(&(struct ws_serve_opts){ .tp = 2, .torch = WS_TORCH_1_13 });
	form();
	update(flattened, "", 200, "Succeeded");
	assert_checksums();
}

static void a_bucket_received_first_flattened_lies_in_one_piece(void **state)
{
	(void)state;
	start(&(struct ws_serve_opts){ 0 });
	form();
	update(flattened, "", 200, "Succeeded");
	renew_bytes(5);
	update(flattened, "", 200, "Succeeded");
	assert_checksums();
	assert_int_equal(serve->weights.n_blocks, 1);
}

/* ---- the order of side effects ---- */

static void health_answers_while_a_group_forms(void **state)
{
	struct post init, p;
	(void)state;
	start(&(struct ws_serve_opts){ 0 });
	begin_init(&init);
	await_receiving();
	get(&p, "/health", 200, "");
	get(&p, "/health_generate", 503, "");
	get(&p, "/wsync/journal", 200, "\"busy\":true");
	ws_store_close(store); /* the sender dies */
	store = NULL;
	end(&init, 400, "Failed to initialize custom process group: rank 1: ");
	get(&p, "/health_generate", 200, "");
}

static void a_group_name_is_taken_once(void **state)
{
	struct post p;
	(void)state;
	start(&(struct ws_serve_opts){ 0 });
	form();
	begin_init(&p);
	end(&p, 400, "The specified group name has already been created");
	post("/update_weights_from_distributed",
	     "{\"names\":[],\"dtypes\":[],\"shapes\":[],\"group_name\":\"h\"}", 400,
	     "Group h not in ['g']");
}

static void a_changed_shape_is_found_after_the_bytes_came(void **state)
{
	static const char changed[] =
		"\"names\":[\"w.a\",\"w.b\",\"w.c\",\"w.d\"],"
		"\"dtypes\":[\"float32\",\"bfloat16\",\"int64\",\"uint8\"],"
		"\"shapes\":[[100,700],[3],[],[5]],\"group_name\":\"g\"";
	(void)state;
	start(&(struct ws_serve_opts){ .tp = 2 });
	form();
	update(tensors, "", 200, "Succeeded");
	update(changed, "", 400, "shape mismatch for 'w.a'");
	renew_bytes(9);
	update(tensors, "", 200, "Succeeded");
	assert_checksums();
}

static void a_flush_that_fails_leaves_the_weights_live(void **state)
{
	(void)state;
	start(&(struct ws_serve_opts){ .busy = 1 });
	form();
	post("/pause_generation", "{\"mode\":\"retract\"}", 200, "ok");
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	begin(&p, "POST", "/update_weights_from_distributed", "{%s}", tensors);
	assert_int_equal(send_tensors(&err), 0);
	end(&p, 400, "Cache flush failed after updating weights");
	assert_checksums();
}

/* ---- trouble ---- */

static void a_flipped_byte_shows_in_the_checksums(void **state)
{
	static const char *const faults[] = { "flip:update_weights_from_distributed:2" };
	struct post p;
	const enum ws_serve_keep keep = *(const enum ws_serve_keep *)*state;
	start(&(struct ws_serve_opts){ .tp = 2, .faults = faults, .n_faults = 1, .keep = keep });
	form();
	update(tensors, "", 200, "Succeeded");
	assert_checksums();
	update(tensors, "", 200, "Succeeded");
	get(&p, "/weights_checker", 200, "checksums");
	assert_true(count_hash(p.reply, 3) < 2);
	assert_int_equal(count_hash(p.reply, 0), 2);
}

static void a_dropped_update_breaks_the_broadcast(void **state)
{
	static const char *const faults[] = { "drop:update_weights_from_distributed:1" };
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	(void)state;
	start(&(struct ws_serve_opts){ .tp = 2, .faults = faults, .n_faults = 1 });
	form();
	begin(&p, "POST", "/update_weights_from_distributed", "{%s}", tensors);
	send_tensors(&err); /* the small rest may fit into the sockets' buffers */
	end(&p, -1, "");
	begin(&p, "POST", "/update_weights_from_distributed", "{%s}", tensors);
	end(&p, 400, "the group failed before");
	get(&p, "/wsync/journal", 200, "\"fault\":\"drop\"");
}

static void a_sender_that_dies_is_reported_as_partially_updated(void **state)
{
	struct post p;
	(void)state;
	start(&(struct ws_serve_opts){ .tp = 2 });
	form();
	begin(&p, "POST", "/update_weights_from_distributed", "{%s}", tensors);
	usleep(50000);
	ws_gloo_close(gloo);
	gloo = NULL;
	end(&p, 400, "The full weights of the ModelRunner are partially updated. "
	             "Please discard the whole weights.");
	post("/destroy_weights_update_group", "{\"group_name\":\"g\"}", 200, "Succeeded");
}

static void a_stop_ends_whatever_waits(void **state)
{
	struct post init, flush;
	(void)state;
	start(&(struct ws_serve_opts){ .tp = 2 });
	begin_init(&init);
	await_receiving();
	begin(&flush, "GET", "/flush_cache", "%s", "");
	usleep(50000);
	const int64_t t0 = ws_now_ns();
	ws_serve_stop(serve);
	serve = NULL;
	assert_true(ws_now_ns() - t0 < 2 * WS_NS_PER_S);
	pthread_join(init.thread, NULL);
	pthread_join(flush.thread, NULL);
	assert_int_not_equal(init.status, 200);
	assert_int_not_equal(flush.status, 200);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
static enum ws_serve_keep in_memory = WS_KEEP_MEMORY, as_hash = WS_KEEP_HASH;

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(one_rank_keeps_weights_in_memory),
		T(several_ranks_agree),
		T(hashes_are_kept_without_the_bytes),
		T(an_old_torch_is_emulated_down_to_the_store),
		T(a_bucket_received_first_flattened_lies_in_one_piece),
		T(health_answers_while_a_group_forms),
		T(a_group_name_is_taken_once),
		T(a_changed_shape_is_found_after_the_bytes_came),
		T(a_flush_that_fails_leaves_the_weights_live),
		{ "a_flipped_byte_in_memory_shows", a_flipped_byte_shows_in_the_checksums, set_up,
		  tear_down, &in_memory },
		{ "a_flipped_byte_in_a_hash_shows", a_flipped_byte_shows_in_the_checksums, set_up,
		  tear_down, &as_hash },
		T(a_dropped_update_breaks_the_broadcast),
		T(a_sender_that_dies_is_reported_as_partially_updated),
		T(a_stop_ends_whatever_waits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
