/* SPDX-License-Identifier: Apache-2.0 */
/* What stands around updates, without network: sessions, post-processing, memory given away. */
#include "serve_ask.h"

static unsigned call(const char *path, const char *body)
{
	return ask(*body ? "POST" : "GET", path, body);
}

#define UPDATE "{\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[1]],\"group_name\":\"g\"}"

ASKING(an_update_needs_a_session)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SESSION });
	assert_int_equal(call("/update_weights_from_distributed", UPDATE), 400);
	assert_said("update_weights_from_distributed must run between begin_weight_update() and "
	            "end_weight_update()");
	assert_int_equal(call("/begin_weight_update", "{\"selector\":\"some\"}"), 400);
	assert_int_equal(call("/begin_weight_update", "{}"), 200);
	assert_said("{\"success\":true,\"message\":\"Success\"}");
	answers("POST", "/begin_weight_update", "{}", 400, "already open");
	answers("GET", "/wsync/journal", "", 200, "\"session\":true");
	/* Inside of the session the group is missing, which SGLang 0.5.23 survives. */
	assert_int_equal(call("/update_weights_from_distributed", UPDATE), 400);
	assert_said("Failed to receive weights: Group g not in []");
}

ASKING(a_session_ends_once)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SESSION });
	assert_int_equal(call("/end_weight_update", "{}"), 400);
	assert_said("no weight-update session is open; call begin_weight_update() first");
	assert_int_equal(call("/begin_weight_update", "{\"selector\":\"target\"}"), 200);
	assert_int_equal(call("/end_weight_update", "{\"run_post_load\":true}"), 200);
	assert_int_equal(call("/end_weight_update", "{}"), 400);
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(call("/end_weight_update", "{}"), 404);
}

ASKING(slime_processes_and_tells_its_version)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SLIME });
	assert_int_equal(call("/post_process_weights", "{\"restore_weights_before_load\":true}"),
	                 200);
	assert_int_equal(call("/post_process_weights", "{\"post_process_quantization\":3}"), 400);
	assert_int_equal(call("/update_weight_version", "{\"new_version\":\"9\"}"), 200);
	answers("GET", "/get_weight_version", "", 200, "{\"weight_version\":\"9\"}");
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

ASKING(released_weights_are_gone_with_a_memory_saver)
{
	static const struct {
		bool saver, backup;
		unsigned stay;
	} rows[] = { { false, false, 12388 }, { true, false, 0 }, { true, true, 12388 } };
	for (size_t i = 0; i < 3; i++) {
		start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_2026,
		                              .memory_saver = rows[i].saver,
		                              .cpu_backup = rows[i].backup });
		give_weights();
		assert_int_equal(call("/release_memory_occupation",
		                     "{\"tags\":[\"weights\",\"kv_cache\"]}"),
		                 200);
		assert_string_equal(ws_buf_str(&reply.body), "null");
		assert_int_equal(call("/wsync/journal", ""), 200);
		assert_said("\"released\":[\"weights\",\"kv_cache\"]");
		assert_int_equal(call("/resume_memory_occupation", "{\"tags\":[\"weights\"]}"),
		                 200);
		assert_int_equal(call("/resume_memory_occupation", "{\"tags\":[\"kv_cache\"]}"),
		                 200);
		assert_int_equal(count_sevens(), rows[i].stay);
	}
}

ASKING(a_release_while_busy_kills)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL, .busy = 1 });
	assert_int_equal(call("/release_memory_occupation", "{}"), 0);
	assert_non_null(strstr(killed_by, "should be called only when server is idle"));
	start((struct ws_serve_opts){ .busy = 1 });
	assert_int_equal(call("/release_memory_occupation", "{}"), 400);
	assert_said("should be called only when server is idle");
}

ASKING(a_resume_of_what_is_there_kills)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL_LEGACY });
	assert_int_equal(call("/release_memory_occupation", "{\"tags\":[\"kv_cache\"]}"), 200);
	assert_int_equal(call("/resume_memory_occupation", "{\"tags\":[\"kv_cache\",\"weights\"]}"),
	                 0);
	assert_string_equal(killed_by, "KeyError: 'weights'");
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(call("/resume_memory_occupation", "{\"tags\":null}"), 400);
	assert_int_equal(call("/resume_memory_occupation", "{\"tags\":3}"), 400);
	assert_int_equal(call("/resume_memory_occupation", "{\"tags\":[3]}"), 400);
}

ASKING(an_update_into_released_weights_kills)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_2026, .memory_saver = true });
	assert_int_equal(call("/release_memory_occupation", "{}"), 200);
	assert_int_equal(call("/update_weights_from_distributed", UPDATE), 0);
	assert_non_null(strstr(killed_by, "illegal memory access"));
	/* Without a memory saver it is the group again. */
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_2026 });
	assert_int_equal(call("/release_memory_occupation", "{}"), 200);
	assert_int_equal(call("/update_weights_from_distributed", UPDATE), 0);
	assert_non_null(strstr(killed_by, "Group g not in"));
}

ASKING(the_lenient_one_sleeps_and_wakes)
{
	start((struct ws_serve_opts){ .memory_saver = true });
	assert_int_equal(call("/sleep", "{}"), 200);
	assert_int_equal(serve->released, 7);
	assert_int_equal(call("/wake_up", "{}"), 200);
	assert_int_equal(call("/wake_up", "{}"), 200);
	assert_int_equal(serve->released, 0);
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL });
	assert_int_equal(call("/sleep", "{}"), 404);
}

ASKING(openapi_tells_the_fields)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SESSION });
	answers("GET", "/openapi.json", "", 200, "\"/"
		"flush_cache\":{\"get\":{\"parameters\":[{\"name\":\"timeout\",\"in\":\"query\"");
	assert_said("{\"$ref\":\"#/components/schemas/update_weights_from_distributed\"}");
	assert_said("\"load_format\":{}");
	assert_said("\"selector\":{}");
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_0_5 });
	assert_int_equal(call("/openapi.json", ""), 200);
	assert_said("\"update_weights_from_distributed\":{\"type\":\"object\",\"properties\":{"
	            "\"names\":{},"
	            "\"dtypes\":{},\"shapes\":{},\"group_name\":{},\"flush_cache\":{},"
	            "\"abort_all_requests\":{},\"weight_version\":{}}}"); /* no load_format */
	start((struct ws_serve_opts){ .lineage = WS_SERVE_XORL });
	answers("GET", "/openapi.json", "", 200, "\"schemas\":{}");
	assert_said("\"/prepare_weights_update\":{\"post\":{}}");
}

RUN_TESTS(NULL, NULL)
