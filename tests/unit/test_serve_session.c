/* SPDX-License-Identifier: Apache-2.0 */
/* What stands around updates, without network: sessions, post-processing, memory given away. */
#include "serve_core.h"
#include "serve_lineage.h"
#include "serve_routes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct ws_serve *serve;
static struct ws_serve_reply reply;
static char killed_by[256];

static void note_crash(void *ctx, const char *why)
{
	(void)ctx;
	snprintf(killed_by, sizeof killed_by, "%s", why);
}

static void start(struct ws_serve_opts opts)
{
	struct ws_err err = WS_ERR_INIT;
	ws_serve_stop(serve);
	serve = NULL;
	killed_by[0] = 0;
	opts.crash = note_crash;
	if (ws_serve_new(&opts, &serve, &err))
		fail_msg("%s", err.msg);
}

static int set_up(void **state)
{
	(void)state;
	serve = NULL;
	memset(&reply, 0, sizeof reply);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	ws_buf_free(&reply.body);
	ws_serve_stop(serve);
	return 0;
}

/* 0: the connection dropped. */
static unsigned ask(const char *path, const char *body)
{
	const struct ws_serve_request rq = { .method = *body ? "POST" : "GET",
		                             .path = path,
		                             .body = body,
		                             .body_len = strlen(body) };
	ws_buf_free(&reply.body);
	ws_serve_handle(serve, &rq, &reply);
	return reply.drop ? 0 : reply.status;
}

static void assert_said(const char *part)
{
	if (!strstr(ws_buf_str(&reply.body), part))
		fail_msg("'%s' lacks '%s'", ws_buf_str(&reply.body), part);
}

#define UPDATE "{\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[1]],\"group_name\":\"g\"}"

static void an_update_needs_a_session(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SESSION });
	assert_int_equal(ask("/update_weights_from_distributed", UPDATE), 400);
	assert_said("update_weights_from_distributed must run between begin_weight_update() and "
	            "end_weight_update()");
	assert_int_equal(ask("/begin_weight_update", "{\"selector\":\"some\"}"), 400);
	assert_int_equal(ask("/begin_weight_update", "{}"), 200);
	assert_said("{\"success\":true,\"message\":\"Success\"}");
	assert_int_equal(ask("/begin_weight_update", "{}"), 400);
	assert_said("already open");
	assert_int_equal(ask("/wsync/journal", ""), 200);
	assert_said("\"session\":true");
	/* Past the session it is the missing group that kills. */
	assert_int_equal(ask("/update_weights_from_distributed", UPDATE), 0);
	assert_non_null(strstr(killed_by, "Group g not in"));
}

static void a_session_ends_once(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SESSION });
	assert_int_equal(ask("/end_weight_update", "{}"), 400);
	assert_said("no weight-update session is open; call begin_weight_update() first");
	assert_int_equal(ask("/begin_weight_update", "{\"selector\":\"target\"}"), 200);
	assert_int_equal(ask("/end_weight_update", "{\"run_post_load\":true}"), 200);
	assert_int_equal(ask("/end_weight_update", "{}"), 400);
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(ask("/end_weight_update", "{}"), 404);
}

static void slime_processes_and_tells_its_version(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SLIME });
	assert_int_equal(ask("/post_process_weights", "{\"restore_weights_before_load\":true}"),
	                 200);
	assert_int_equal(ask("/post_process_weights", "{\"post_process_quantization\":3}"), 400);
	assert_int_equal(ask("/update_weight_version", "{\"new_version\":\"9\"}"), 200);
	assert_int_equal(ask("/get_weight_version", ""), 200);
	assert_said("{\"weight_version\":\"9\"}");
}

/* One tensor of three pages and a bit, as if it had been received. */
static void give_weights(void)
{
	enum { BYTES = 3 * 4096 + 100 };
	struct ws_serve_slot slot = {
		.name = "w", .dtype = WS_DTYPE_U8, .n_dims = 1, .dims = { BYTES }, .bytes = BYTES
	};
	uint8_t *block = NULL;
	uint64_t duplicates;
	assert_int_equal(ws_serve_weights_reserve(&serve->weights, &slot, 1, &block, NULL), 0);
	memset(slot.data, 7, BYTES);
	assert_int_equal(ws_serve_weights_commit(&serve->weights, &slot, 1, block, 1, &duplicates,
	                                         NULL),
	                 0);
}

static unsigned count_sevens(void)
{
	const struct ws_serve_weight *w = ws_serve_weights_find(&serve->weights, "w");
	unsigned n = 0;
	for (size_t i = 0; i < w->bytes; i++)
		n += w->data[i] == 7;
	return n;
}

static void released_weights_are_gone_with_a_memory_saver(void **state)
{
	static const struct {
		bool saver, backup;
		unsigned stay;
	} rows[] = { { false, false, 12388 }, { true, false, 0 }, { true, true, 12388 } };
	(void)state;
	for (size_t i = 0; i < 3; i++) {
		start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_2026,
		                              .memory_saver = rows[i].saver,
		                              .cpu_backup = rows[i].backup });
		give_weights();
		assert_int_equal(ask("/release_memory_occupation",
		                     "{\"tags\":[\"weights\",\"kv_cache\"]}"),
		                 200);
		assert_string_equal(ws_buf_str(&reply.body), "null");
		assert_int_equal(ask("/wsync/journal", ""), 200);
		assert_said("\"released\":[\"weights\",\"kv_cache\"]");
		assert_int_equal(ask("/resume_memory_occupation", "{\"tags\":[\"weights\"]}"), 200);
		assert_int_equal(ask("/resume_memory_occupation", "{\"tags\":[\"kv_cache\"]}"),
		                 200);
		assert_int_equal(count_sevens(), rows[i].stay);
	}
}

static void a_release_while_busy_kills(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL, .busy = 1 });
	assert_int_equal(ask("/release_memory_occupation", "{}"), 0);
	assert_non_null(strstr(killed_by, "should be called only when server is idle"));
	start((struct ws_serve_opts){ .busy = 1 });
	assert_int_equal(ask("/release_memory_occupation", "{}"), 400);
	assert_said("should be called only when server is idle");
}

static void a_resume_of_what_is_there_kills(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL_LEGACY });
	assert_int_equal(ask("/release_memory_occupation", "{\"tags\":[\"kv_cache\"]}"), 200);
	assert_int_equal(ask("/resume_memory_occupation", "{\"tags\":[\"kv_cache\",\"weights\"]}"),
	                 0);
	assert_string_equal(killed_by, "KeyError: 'weights'");
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(ask("/resume_memory_occupation", "{\"tags\":null}"), 400);
	assert_int_equal(ask("/resume_memory_occupation", "{\"tags\":3}"), 400);
	assert_int_equal(ask("/resume_memory_occupation", "{\"tags\":[3]}"), 400);
}

static void an_update_into_released_weights_kills(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_2026, .memory_saver = true });
	assert_int_equal(ask("/release_memory_occupation", "{}"), 200);
	assert_int_equal(ask("/update_weights_from_distributed", UPDATE), 0);
	assert_non_null(strstr(killed_by, "illegal memory access"));
	/* Without a memory saver it is the group again. */
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_2026 });
	assert_int_equal(ask("/release_memory_occupation", "{}"), 200);
	assert_int_equal(ask("/update_weights_from_distributed", UPDATE), 0);
	assert_non_null(strstr(killed_by, "Group g not in"));
}

static void the_lenient_one_sleeps_and_wakes(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .memory_saver = true });
	assert_int_equal(ask("/sleep", "{}"), 200);
	assert_int_equal(serve->released, 7);
	assert_int_equal(ask("/wake_up", "{}"), 200);
	assert_int_equal(ask("/wake_up", "{}"), 200);
	assert_int_equal(serve->released, 0);
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL });
	assert_int_equal(ask("/sleep", "{}"), 404);
}

static void openapi_tells_the_fields(void **state)
{
	(void)state;
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SESSION });
	assert_int_equal(ask("/openapi.json", ""), 200);
	assert_said(
		"\"/"
	        "flush_cache\":{\"get\":{\"parameters\":[{\"name\":\"timeout\",\"in\":\"query\"");
	assert_said("{\"$ref\":\"#/components/schemas/update_weights_from_distributed\"}");
	assert_said("\"load_format\":{}");
	assert_said("\"selector\":{}");
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_0_5 });
	assert_int_equal(ask("/openapi.json", ""), 200);
	assert_said("\"update_weights_from_distributed\":{\"type\":\"object\",\"properties\":{"
	            "\"names\":{},"
	            "\"dtypes\":{},\"shapes\":{},\"group_name\":{},\"flush_cache\":{},"
	            "\"abort_all_requests\":{},\"weight_version\":{}}}"); /* no load_format */
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL });
	assert_int_equal(ask("/openapi.json", ""), 200);
	assert_said("\"schemas\":{}");
	assert_said("\"/prepare_weights_update\":{\"post\":{}}");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_update_needs_a_session),
		TEST(a_session_ends_once),
		TEST(slime_processes_and_tells_its_version),
		TEST(released_weights_are_gone_with_a_memory_saver),
		TEST(a_release_while_busy_kills),
		TEST(a_resume_of_what_is_there_kills),
		TEST(an_update_into_released_weights_kills),
		TEST(the_lenient_one_sleeps_and_wakes),
		TEST(openapi_tells_the_fields),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
