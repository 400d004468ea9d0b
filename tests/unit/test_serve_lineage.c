/* SPDX-License-Identifier: Apache-2.0 */
/* How the servers that the endpoint plays differ, without network. */
#include "serve_ask.h"
#include "serve_decode.h"
#include "serve_lineage.h"

static void start_as(enum ws_serve_lineage lineage, unsigned busy)
{
	start((struct ws_serve_opts){ .lineage = lineage, .busy = busy });
	query_timeout = "soon";
}

static const char *name_of(unsigned lineage)
{
	return ws_serve_lineages[lineage].name;
}

/* SGLang and its relatives come first. */
enum { RELATIVES = WS_SERVE_VLLM_0_20 };

/* In the order of enum ws_serve_lineage: y is there, . is 404, 5 is 405. */
ASKING(routes_are_those_of_the_lineage)
{
	static const struct {
		const char *method, *path, *there;
	} rows[] = {
		{ "GET", "/health", "yyyyyyyy" },
		{ "GET", "/model_info", "y..yyyyy" },
		{ "GET", "/server_info", "y..yyyyy" },
		{ "GET", "/get_server_info", "yyyyyyyy" },
		{ "POST", "/init_weights_update_group", "yyyyyyyy" },
		{ "POST", "/destroy_weights_update_group", "y.yyyyyy" },
		{ "POST", "/update_weights_from_distributed", "yyyyyyyy" },
		{ "POST", "/update_weight_version", "y.yyyyyy" },
		{ "POST", "/pause_generation", "y.yyyyyy" },
		{ "GET", "/pause_generation", "5.555555" },
		{ "POST", "/continue_generation", "y.yyyyyy" },
		{ "GET", "/flush_cache", "yyyyyyyy" },
		{ "GET", "/weights_checker", "y..y5yyy" },
		{ "POST", "/weights_checker", "y..yyyyy" },
		{ "GET", "/list_weights", "y...y..." },
		{ "POST", "/list_weights", "y...5..." },
	};
	for (unsigned l = 0; l < RELATIVES; l++) {
		start_as((enum ws_serve_lineage)l, 0);
		for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
			const unsigned status = ask(rows[i].method, rows[i].path, "");
			const char is = status == 404 ? '.' : status == 405 ? '5' : 'y';
			if (is != rows[i].there[l])
				fail_msg("%s: %s %s: %u", name_of(l), rows[i].method, rows[i].path,
				         status);
		}
	}
}

ASKING(versions_tell_lineages_apart_where_servers_tell_them)
{
	start_as(WS_SERVE_SGLANG_0_4, 0);
	answers("GET", "/get_server_info", "", 200, "\"version\":\"0.4.6+wsync.");
	assert_null(strstr(ws_buf_str(&reply.body), "weight_version"));
	start_as(WS_SERVE_XORL_LEGACY, 0);
	answers("GET", "/server_info", "", 200, "\"enable_fp32_router\":false");
	assert_said("\"weight_version\":\"default\"");
}

#define UPDATE "{\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[1]],\"group_name\":\"g\"}"

ASKING(a_missing_group_kills_all_but_two)
{
	for (unsigned l = 0; l < RELATIVES; l++) {
		if (l == WS_SERVE_SESSION)
			continue;
		start_as((enum ws_serve_lineage)l, 0);
		const bool survives = l == WS_SERVE_LENIENT || l == WS_SERVE_XORL_LEGACY;
		assert_int_equal(ask("POST", "/update_weights_from_distributed", UPDATE),
		                 survives ? 400 : 0);
		assert_int_equal(crashes, survives ? 0 : 1);
		if (survives)
			assert_said("Group g not in []. Please call `init_weights_update_group` "
			            "first.");
		else
			assert_non_null(strstr(killed_by, "AssertionError: Group g not in []"));
		/* A dead one answers nothing, and dies once. */
		assert_int_equal(ask("GET", "/health", ""), survives ? 200 : 0);
		assert_int_equal(ask("POST", "/update_weights_from_distributed", UPDATE),
		                 survives ? 400 : 0);
		assert_int_equal(crashes, survives ? 0 : 1);
	}
}

ASKING(an_old_pause_reads_no_body_and_aborts)
{
	start_as(WS_SERVE_SGLANG_0_5, 3);
	assert_int_equal(ask("POST", "/pause_generation", "{\"mode\":\"retract\"}"), 200);
	assert_int_equal(serve->mode, WS_PAUSE_ABORT);
	assert_int_equal(serve->waiting, 0);
	assert_int_equal(ask("POST", "/pause_generation", "no json"), 200);
	assert_int_equal(ask("POST", "/continue_generation", ""), 200);
	assert_false(serve->paused);
}

ASKING(a_flush_reads_its_timeout_where_it_knows_one)
{
	start_as(WS_SERVE_XORL_LEGACY, 0);
	assert_int_equal(ask("GET", "/flush_cache", ""), 200);
	start_as(WS_SERVE_XORL, 0);
	assert_int_equal(ask("GET", "/flush_cache", ""), 400);
}

static void decode(enum ws_serve_lineage lineage, struct ws_serve_update *u, struct ws_json **root)
{
	static const char body[] =
		"{\"names\":[],\"dtypes\":[],\"shapes\":[],\"load_format\":\"flattened_bucket\","
		"\"weight_version\":\"7\",\"abort_all_requests\":true,\"free_kv_cache_before_"
	        "recv\":true}";
	struct ws_err err = WS_ERR_INIT;
	*root = ws_json_parse(body, sizeof body - 1, "body", &err);
	assert_non_null(*root);
	assert_int_equal(ws_serve_decode_update(*root, lineage, u, &err), 0);
}

ASKING(unknown_fields_are_ignored)
{
	static const struct {
		enum ws_serve_lineage lineage;
		bool version, flattened, frees;
	} rows[] = {
		{ WS_SERVE_LENIENT, true, true, false },
		{ WS_SERVE_SGLANG_0_4, false, false, false },
		{ WS_SERVE_SGLANG_0_5, true, false, false },
		{ WS_SERVE_SGLANG_2026, true, true, false },
		{ WS_SERVE_XORL_LEGACY, true, true, true },
		{ WS_SERVE_XORL, true, true, false },
	};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		struct ws_serve_update u;
		struct ws_json *root = NULL;
		decode(rows[i].lineage, &u, &root);
		assert_int_equal(u.version != NULL, rows[i].version);
		assert_int_equal(u.abort_all, rows[i].version);
		assert_int_equal(u.flattened, rows[i].flattened);
		assert_int_equal(u.free_kv_cache, rows[i].frees);
		ws_serve_update_fini(&u);
		ws_json_free(root);
	}
}

ASKING(the_checker_of_xorl_legacy_wants_an_action)
{
	start_as(WS_SERVE_XORL_LEGACY, 0);
	answers("POST", "/weights_checker", "{}", 400, "body.action: Field required");
	assert_int_equal(ask("POST", "/weights_checker", "{\"action\":\"checksum\"}"), 400);
	assert_int_equal(ask("POST", "/weights_checker", "{\"action\":\"snapshot\"}"), 200);
	answers("GET", "/wsync/checksums", "", 200, "\"ranks\":[");
}

ASKING(health_tells_of_an_update_or_not)
{
	static const struct {
		enum ws_serve_lineage lineage;
		unsigned health, generate;
	} rows[] = {
		{ WS_SERVE_LENIENT, 200, 503 },
		{ WS_SERVE_SGLANG_0_4, 503, 503 }, { WS_SERVE_SGLANG_0_5, 503, 503 },
		{ WS_SERVE_SGLANG_2026, 200, 503 }, { WS_SERVE_XORL_LEGACY, 200, 200 },
		{ WS_SERVE_XORL, 200, 503 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		start_as(rows[i].lineage, 0);
		assert_true(ws_serve_acquire(serve, true));
		assert_int_equal(ask("GET", "/health", ""), rows[i].health);
		assert_int_equal(ask("GET", "/health_generate", ""), rows[i].generate);
		ws_serve_release(serve);
		assert_int_equal(ask("GET", "/health", ""), 200);
	}
}

ASKING(faults_are_for_routes_that_there_are)
{
	struct ws_serve_fault f;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_serve_fault_parse("hang:list_weights:1", WS_SERVE_XORL, &f, &err), -1);
	assert_int_equal(ws_serve_fault_parse("hang:list_weights:1", WS_SERVE_XORL_LEGACY, &f,
	                                      &err),
	                 0);
}

RUN_TESTS(NULL, NULL)
