/* SPDX-License-Identifier: Apache-2.0 */
/* The client of endpoints: answers of every shape, calls to several servers. */
#include "endpoint_call.h"
#include "endpoint_weights.h"
#include "identity.h"
#include "test.h"
#include "tiny_http.h"
#include "wsync/tool/listing.h"

/* ---- answers ---- */

static int reply_of(const char *path, struct ws_endpoint_call *call, long status, const char *text,
                    char *words, size_t n, struct ws_err *err)
{
	struct ws_err ignored;
	memset(call, 0, sizeof *call);
	assert_int_equal(ws_endpoint_prepare(call, "http://gpu7:30000", "POST", path, NULL,
	                                     WS_FOREVER, &ignored),
	                 0);
	call->http.done = true;
	call->http.status = status;
	ws_buf_puts(&call->http.reply, text);
	return ws_endpoint_reply(call, NULL, words, n, err);
}

static int reply(struct ws_endpoint_call *call, long status, const char *text, char *words,
                 size_t n, struct ws_err *err)
{
	return reply_of("/do_it?x=1", call, status, text, words, n, err);
}

TEST(a_yes_is_a_yes_in_every_shape)
{
	static const struct { const char *text, *words; } cases[] = {
		{ "{\"success\":true,\"message\":\"Succeeded.\"}", "Succeeded." },
		{ "{\"message\":\"Generation paused successfully.\",\"status\":\"ok\"}",
		  "Generation paused successfully." },
		{ "Cache flushed.\nPlease check backend logs.\n",
		  "Cache flushed. Please check backend logs." },
		{ "", "" },
		{ "null", "" },
		{ "{}", "" },
		{ "[]", "" },
		{ "{\"error\":null}", "" },
		{ "{\"success\":true,\"error\":\"\"}", "" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ws_endpoint_call call;
		struct ws_err err = WS_ERR_INIT;
		char words[256];
		if (reply(&call, 200, cases[i].text, words, sizeof words, &err))
			fail_msg("%s: %s", cases[i].text, err.msg);
		if (*cases[i].words)
			assert_string_equal(words, cases[i].words);
		ws_endpoint_call_free(&call);
	}
}

TEST(a_no_becomes_one_sentence)
{
	static const struct { long status; const char *text, *sentence; } cases[] = {
		{ 400, "{\"success\":false,\"message\":\"group exists\"}",
		  "POST /do_it: refused (HTTP 400): \"group exists\"" },
		{ 200, "{\"success\":false,\"message\":\"no\"}",
		  "POST /do_it: refused (HTTP 200): \"no\"" },
		{ 200, "{\"success\":null}", "POST /do_it: refused (HTTP 200)" },
		{ 200, "{\"error\":{\"message\":\"bad\"}}",
		  "POST /do_it: refused (HTTP 200): \"bad\"" },
		{ 400, "{\"error\":{\"message\":\"Get parameter by name failed\"}}",
		  "POST /do_it: refused (HTTP 400): \"Get parameter by name failed\"" },
		{ 400, "{\"object\":\"error\",\"message\":\"names: Field required\",\"code\":400}",
		  "POST /do_it: refused (HTTP 400): \"names: Field required\"" },
		{ 422, "{\"detail\":[{\"loc\":[\"body\",\"names\",0],\"msg\":\"field required\"}]}",
		  "POST /do_it: refused (HTTP 422): \"body.names: field required\"" },
		{ 404, "{\"detail\":\"Not Found\"}",
		  "POST /do_it: the server has no such route (HTTP 404): \"Not Found\"" },
		{ 401, "{\"error\":\"Unauthorized\"}",
		  "POST /do_it: refused (HTTP 401): \"Unauthorized\"" },
		{ 500, "Internal Server Error",
		  "POST /do_it: refused (HTTP 500): \"Internal Server Error\"" },
		{ 502, "<html>nginx</html>", "POST /do_it: refused (HTTP 502)" },
		{ 503, "", "POST /do_it: refused (HTTP 503)" },
		{ 400, "a\033[31m\r\n  b\t\001c  ",
		  "POST /do_it: refused (HTTP 400): \"a?[31m b ?c\"" },
		{ 400, "\"just text\"", "POST /do_it: refused (HTTP 400): \"just text\"" },
		{ 400, "{\"message\":{\"a\":1}}", "POST /do_it: refused (HTTP 400)" },
		{ 405, "", "POST /do_it: the server does not take this method (HTTP 405)" },
		{ 307, "", "POST /do_it: refused (HTTP 307)" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ws_endpoint_call call;
		struct ws_err err = WS_ERR_INIT;
		assert_int_equal(reply(&call, cases[i].status, cases[i].text, NULL, 0, &err), -1);
		assert_string_equal(err.msg, cases[i].sentence);
		assert_int_equal(err.code, WS_EREFUSED);
		assert_int_equal(err.native, cases[i].status);
		assert_string_equal(err.endpoint, "http://gpu7:30000");
		assert_true(!strstr(err.hint, "{api_key}") == (cases[i].status != 401));
		ws_endpoint_call_free(&call);
	}
}

/* What each route answers when it has done what was asked, and what something else might answer. */
TEST(a_route_that_changes_something_must_say_that_it_did)
{
	static const struct { const char *path, *yes[4];
	} routes[] = {
		{ "/update_weights_from_distributed",
		  { "{\"success\":true,\"message\":\"Succeeded\"}" } },
		{ "/update_weights_from_tensor",
		  { "{\"success\":true,\"message\":\"Success\",\"error\":null}" } },
		{ "/update_weights_from_disk",
		  { "{\"success\":true,\"message\":\"\",\"num_paused_requests\":0}" } },
		{ "/update_weight_version",
		  { "{\"success\":true,\"message\":\"\",\"new_version\":\"7\"}" } },
		{ "/init_weights_update_group",
		  { "{\"success\":true,\"message\":\"Succeeded\"}" } },
		{ "/destroy_weights_update_group",
		  { "{\"success\":true,\"message\":\"Succeeded\"}" } },
		{ "/prepare_weights_update",
		  { "{\"status\":\"ready\",\"success\":true,\"message\":\"\"}" } },
		{ "/complete_weights_update", { "{\"success\":true,\"message\":\"\"}" } },
		{ "/receive_weights_ep_scatter", { "{\"success\":true,\"message\":\"\"}" } },
		{ "/begin_weight_update", { "{\"success\":true,\"message\":\"Success\"}" } },
		{ "/end_weight_update", { "{\"success\":true,\"message\":\"Success\"}" } },
		{ "/post_process_weights", { "{\"success\":true,\"message\":\"\"}" } },
		{ "/weights_checker", { "{\"success\":true,\"message\":\"\",\"ranks\":[]}" } },
		{ "/pause_generation",
		  { "{\"message\":\"Generation paused successfully.\",\"status\":\"ok\"}",
		    "{\"success\":true}" } },
		{ "/continue_generation", { "{\"message\":\"\",\"status\":\"ok\"}" } },
		{ "/release_memory_occupation", { "null", "", "{\"success\":true}" } },
		{ "/resume_memory_occupation", { "null" } },
		{ "/sleep", { "", "{\"status\":\"sleeping\",\"level\":1}" } },
		{ "/wake_up?tags=weights",
		  { "", "{\"status\":\"sleeping\",\"tags\":null}", "{\"status\":\"awake\"}" } },
		{ "/flush_cache",
		  { "Cache flushed.\nPlease check backend logs for more details.\n" } },
	};
	/* clang-format off */
	static const char *const no[] = {
		"<html>Welcome to nginx</html>", "{\"success\":tr", "[true]", "{}", "OK", "true",
		"{\"detail\":\"Not Found\"}", "{\"message\":\"Failed to update parameter online\"}",
		"{\"status\":\"unhealthy\"}", "{\"result\":{\"success\":false}}", "{\"ok\":false}",
		"{\"success\":1}", "{\"success\":true,\"success\":false}",
		"{\"success\":true,\"error\":\"disk full\"}",
		"{\"status\":\"ok\",\"status\":\"ok\"}"
	};
	/* clang-format on */
	for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
		struct ws_endpoint_call call;
		struct ws_err err = WS_ERR_INIT;
		for (const char *const *yes = routes[i].yes; *yes; yes++) {
			if (reply_of(routes[i].path, &call, 200, *yes, NULL, 0, &err))
				fail_msg("%s: %s", *yes, err.msg);
			ws_endpoint_call_free(&call);
		}
		for (size_t k = 0; k < sizeof no / sizeof *no; k++) {
			if (!reply_of(routes[i].path, &call, 200, no[k], NULL, 0, &err))
				fail_msg("%s: %s passes", routes[i].path, no[k]);
			assert_int_equal(err.code, WS_EREFUSED);
			/* the request may have been obeyed */
			assert_false(ws_endpoint_said_no(&err));
			ws_endpoint_call_free(&call);
		}
	}
}

TEST(a_reply_that_does_not_confirm_is_quoted)
{
	struct ws_endpoint_call call;
	struct ws_err err = WS_ERR_INIT;
	assert_fails_with(reply_of("/pause_generation", &call, 200, "{\"message\":\"hello\"}", NULL,
	                           0, &err), &err, WS_EREFUSED,
	                  "POST /pause_generation: the reply (HTTP 200) does not say that it was "
	                  "done: \"hello\"");
	assert_non_null(strstr(err.hint, "proxy"));
	ws_endpoint_call_free(&call);
}

TEST(long_words_are_cut)
{
	char text[5000], words[64];
	struct ws_endpoint_call call;
	struct ws_err err = WS_ERR_INIT;
	memset(text, 'w', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	assert_int_equal(reply(&call, 500, text, words, sizeof words, &err), -1);
	assert_int_equal(strlen(words), 63);
	assert_true(strlen(err.msg) < 400);
	ws_endpoint_call_free(&call);
}

TEST(a_broken_transport_keeps_its_own_error)
{
	struct ws_endpoint_call call = { 0 };
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_endpoint_prepare(&call, "http://gpu7:1", "GET", "/x", NULL, 0, &err), &err);
	ws_err_set(&call.http.err, WS_EREACH, "GET http://gpu7:1/x: cannot connect");
	call.http.done = true;
	assert_fails(ws_endpoint_reply(&call, NULL, NULL, 0, &err), &err, WS_EREACH, "");
	assert_string_equal(err.endpoint, "http://gpu7:1");
}

/* ---- decoding ---- */

static struct ws_json *parse(const char *text)
{
	struct ws_json *root = ws_json_parse(text, strlen(text), "test", NULL);
	assert_non_null(root);
	return root;
}

/* A source that was pushed from disk is no reference of its server. */
TEST(the_path_of_the_start_is_found)
{
	static const struct {
		const char *text, *path;
	} cases[] = {
		{ "{\"model_path\":\"/m\"}", "/m" },
		{ "{\"model_path\":\"/new\",\"tokenizer_path\":\"/m\"}", "/m" },
		{ "{\"model_path\":\"/new\",\"tokenizer_path\":\"/t\",\"launch_command\":"
		  "\"x.py --tokenizer-path /t --model-path /m --tp 2\"}", "/m" },
		{ "{\"model_path\":\"/m\",\"tokenizer_path\":\"/t\",\"launch_command\":"
		  "\"x.py --model=/m\"}", "/m" },
		{ "{\"model_path\":\"/m\",\"tokenizer_path\":\"/m\",\"launch_command\":"
		  "\"x.py --config f.yaml\"}", "/m" },
		{ "{\"model_path\":\"/m\",\"launch_command\":\"x.py --model\"}", "/m" },
		{ "{\"model_path\":\"/new\",\"launch_command\":\"x.py --model-impl sglang"
		  " --speculative-draft-model-path /d --model /m\"}", "/m" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_endpoint_info info = { .tp_size = 1 };
		struct ws_json *root = parse(cases[i].text);
		ws_endpoint_decode_server_info(root, &info);
		assert_string_equal(info.start_path, cases[i].path);
		ws_json_free(root);
	}
}

TEST(arguments_that_override_sizes_are_seen)
{
	static const struct {
		const char *override;
		bool unused;
	} cases[] = {
		{ "{}", false },
		{ "{\\\"rope_theta\\\":1}", false },
		{ "{\\\"num_hidden_layers\\\":3}", true },
		{ "no json", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_endpoint_info info = { .tp_size = 1 };
		char text[200];
		snprintf(text, sizeof text, "{\"json_model_override_args\":\"%s\"}",
		         cases[i].override);
		struct ws_json *root = parse(text);
		ws_endpoint_decode_server_info(root, &info);
		assert_int_equal(info.path_unused != NULL, cases[i].unused);
		ws_json_free(root);
	}
}

TEST(server_info_with_odd_values_keeps_its_defaults)
{
	struct ws_endpoint_info info = { .tp_size = 1, .dp_size = 1, .pp_size = 1, .ep_size = 1 };
	struct ws_json *root = parse(
		"{\"tp_size\":\"8\",\"dp_size\":-1,\"pp_size\":0,\"ep_size\":1e30,"
		"\"quantization\":null,\"dtype\":\"torch.bfloat16\","
		"\"version\":7,\"served_model_name\":\"a\\u001bb\",\"tokenizer_worker_num\":2}");
	ws_endpoint_decode_server_info(root, &info);
	assert_true(info.many_tokenizers);
	assert_int_equal(info.tp_size, 1);
	assert_int_equal(info.dp_size, 1);
	assert_int_equal(info.pp_size, 1);
	assert_int_equal(info.ep_size, 1);
	assert_string_equal(info.quantization, "");
	assert_string_equal(info.dtype, "bfloat16");
	assert_string_equal(info.version, "");
	assert_string_equal(info.served_model, "a?b");
	ws_json_free(root);
}

static struct ws_identity identity_of(const char *text, int64_t date)
{
	struct ws_json *root = parse(text);
	struct ws_identity id;
	ws_identity_read(root, date, &id);
	ws_json_free(root);
	return id;
}

static uint64_t instance_of(const char *text)
{
	const struct ws_identity id = identity_of(text, 0);
	return ws_identity_number(&id);
}

TEST(a_restart_and_another_server_have_another_instance)
{
	static const char first[] =
		"{\"random_seed\":1,\"host\":\"a\",\"port\":1,\"startup_time\":{\"e2e\":2.5}}";
	static const char *const others[] = {
		"{\"random_seed\":2,\"host\":\"a\",\"port\":1,\"startup_time\":{\"e2e\":2.5}}",
		"{\"random_seed\":1,\"host\":\"b\",\"port\":1,\"startup_time\":{\"e2e\":2.5}}",
		"{\"random_seed\":1,\"host\":\"a\",\"port\":2,\"startup_time\":{\"e2e\":2.5}}",
		("{\"random_seed\":1,\"host\":\"a\",\"port\":1,"
		 "\"startup_time\":{\"e2e\":2.5000001}}"),
		"{\"random_seed\":1,\"host\":\"a\",\"port\":1,\"startup_time\":null}",
		"{\"random_seed\":\"1\",\"host\":\"a\",\"port\":1,\"startup_time\":{\"e2e\":2.5}}",
	};
	const uint64_t n = instance_of(first);
	assert_true(n != 0);
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		assert_true(instance_of(others[i]) != n);
	/* What changes while a server runs is not part of it. */
	assert_true(instance_of("{\"startup_time\":{\"e2e\":2.5},\"port\":1,\"host\":\"a\","
	                        "\"random_seed\":1,\"model_path\":\"x\",\"weight_version\":\"7\","
	                        "\"internal_states\":[{\"load\":3}]}") == n);
	static const char *const silent[] = {
		"{}", "[]", "{\"random_seed\":null}", "{\"version\":\"0.5.9\"}",
		"{\"random_seed\":1,\"tokenizer_worker_num\":2}",
	};
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
		assert_true(instance_of(silent[i]) == 0);
}

/* One API process of a vLLM: its rank, how many there are, and its id. */
static struct ws_identity process(unsigned rank, unsigned all, const char *id, int64_t date)
{
	char text[256];
	snprintf(text, sizeof text,
	         "{\"vllm_config\":{\"instance_id\":\"%s\",\"parallel_config\":"
	         "{\"_api_process_rank\":%u,\"_api_process_count\":%u}}}", id, rank, all);
	return identity_of(text, date);
}

#define ID_0 "1795831200000000000" /* its clock at the start, in ns */
#define ID_1 "1795831200500000000"
enum { LOOKED = 1795831260 };      /* a minute later */

TEST(processes_of_one_server_are_not_taken_for_others)
{
	static const struct {
		unsigned rank, all;
		const char *id;
		enum ws_identity_match match;
	} cases[] = {
		{ 0, 2, ID_0, WS_IDENTITY_SAME },
		{ 1, 2, ID_1, WS_IDENTITY_SAME },  /* not seen before, and began before */
		{ 1, 2, ID_1, WS_IDENTITY_SAME },
		{ 1, 2, ID_0, WS_IDENTITY_OTHER }, /* another process of rank 1 */
		{ 0, 2, ID_1, WS_IDENTITY_OTHER },
		{ 0, 1, ID_0, WS_IDENTITY_OTHER }, /* started with other arguments */
	};
	struct ws_identity known = process(0, 2, ID_0, LOOKED);
	assert_int_equal(known.strength, WS_IDENTITY_SURE);
	assert_true(ws_identity_number(&known) == 0); /* another process answers next */
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct ws_identity now =
			process(cases[i].rank, cases[i].all, cases[i].id, LOOKED + 5);
		assert_int_equal(ws_identity_compare(&known, &now), cases[i].match);
	}
	/* All have answered: that is a number for records. */
	assert_true(ws_identity_number(&known) != 0);
	const struct ws_identity two = process(1, 2, ID_1, LOOKED);
	struct ws_identity turned = two;
	const struct ws_identity one = process(0, 2, ID_0, LOOKED);
	ws_identity_compare(&turned, &one);
	assert_true(ws_identity_number(&turned) == ws_identity_number(&known));
	/* After that a new one may be of another server. */
	known = process(0, 2, ID_0, LOOKED);
	known.closed = true;
	assert_int_equal(ws_identity_compare(&known, &two), WS_IDENTITY_UNTOLD);
	assert_int_equal(ws_identity_compare(&known, &two), WS_IDENTITY_UNTOLD);
	/* Restarted, and its first answer came from a rank that was not seen before. */
	known = process(0, 2, ID_0, LOOKED);
	const struct ws_identity later = process(1, 2, "1795831300000000000", LOOKED + 60);
	assert_int_equal(ws_identity_compare(&known, &later), WS_IDENTITY_OTHER);
	const struct ws_identity silent = identity_of("{}", 0), none = identity_of("{}", 0);
	assert_int_equal(ws_identity_compare(&known, &silent), WS_IDENTITY_UNTOLD);
	known = none;
	assert_int_equal(ws_identity_compare(&known, &later), WS_IDENTITY_UNTOLD);
}

TEST(an_identity_is_as_strong_as_what_the_server_reports)
{
	static const struct {
		const char *text;
		enum ws_identity_strength strength;
	} cases[] = {
		{ "{\"random_seed\":1,\"startup_time\":{\"e2e\":2.5}}", WS_IDENTITY_SURE },
		{ "{\"random_seed\":1}", WS_IDENTITY_WEAK },
		{ "{\"random_seed\":1,\"startup_time\":null}", WS_IDENTITY_WEAK },
		{ "{\"host\":\"a\",\"port\":1}", WS_IDENTITY_NONE },
		{ "{\"vllm_config\":{\"instance_id\":\"8f3a1\"}}", WS_IDENTITY_SURE },
		{ "{\"vllm_config\":{\"instance_id\":\"\"},\"random_seed\":1}", WS_IDENTITY_NONE },
		{ "{\"vllm_config\":{\"instance_id\":\"1\",\"parallel_config\":"
		  "{\"_api_process_rank\":-1}}}", WS_IDENTITY_NONE },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_int_equal(identity_of(cases[i].text, 0).strength, cases[i].strength);
}

TEST(malformed_lists_are_refused)
{
	static const char *const bad[] = {
		"{}",
		"[]",
		"{\"weights\":{}}",
		"{\"weights\":[1]}",
		"{\"weights\":[{\"name\":\"w\"}]}",
		"{\"weights\":[{\"name\":\"\",\"shape\":[]}]}",
		"{\"weights\":[{\"name\":\"w\",\"shape\":[-1]}]}",
		"{\"weights\":[{\"name\":\"w\",\"shape\":[1.5]}]}",
		"{\"weights\":[{\"name\":\"w\",\"shape\":[1,2,3,4,5,6,7,8,9]}]}",
		"{\"weights\":[{\"name\":\"w\\u0007\",\"shape\":[1]}]}",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ws_weight_list list;
		struct ws_err err = WS_ERR_INIT;
		struct ws_json *root = parse(bad[i]);
		assert_fails(ws_endpoint_decode_weights(root, &list, &err), &err, WS_EREFUSED, "");
		ws_json_free(root);
	}
}

TEST(malformed_checksums_are_refused)
{
	static const char *const bad[] = {
		"{\"success\":true}",
		"{\"ranks\":[]}",
		"{\"ranks\":[{}]}",
		"{\"ranks\":[{\"checksums\":[]}]}",
		"{\"ranks\":[{\"checksums\":{\"w\":\"12\"}}]}",
		"{\"ranks\":[{\"checksums\":{\"w\":12}}]}",
		"{\"ranks\":[{\"checksums\":{\"w\":\"00000000000000zz\"}}]}",
		"{\"ranks\":[{\"checksums\":{\"w\":\"0123456789abcdef0123456789abcdefx\"}}]}",
		"{\"ranks\":[{\"checksums\":{\"w\":\"0123456789abcdef\",\"w\":\"1\"}}]}",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ws_checksums sums;
		struct ws_err err = WS_ERR_INIT;
		struct ws_json *root = parse(bad[i]);
		assert_int_equal(ws_endpoint_decode_checksums(root, &sums, &err), -1);
		assert_int_equal(err.code, WS_EREFUSED);
		ws_json_free(root);
	}
}

/* Reads a reply whose ranks have this "parallelism_info" each; "" is none. */
static int read_ranks(const char *const *infos, size_t n, struct ws_checksums *sums,
                      struct ws_err *err)
{
	char text[2048];
	size_t at = (size_t)snprintf(text, sizeof text, "{\"algorithm\":\"xxh3-64\",\"ranks\":[");
	for (size_t i = 0; i < n; i++)
		at += (size_t)snprintf(text + at, sizeof text - at,
		                       "%s{\"checksums\":{\"w\":\"000000000000000%zu\"}%s%s}",
		                       i ? "," : "", i, *infos[i] ? ",\"parallelism_info\":" : "",
		                       infos[i]);
	snprintf(text + at, sizeof text - at, "]}");
	struct ws_json *root = parse(text);
	*err = (struct ws_err)WS_ERR_INIT;
	const int rc = ws_endpoint_decode_checksums(root, sums, err);
	if (rc)
		ws_json_free(root);
	else
		sums->priv = root;
	return rc;
}

TEST(a_rank_that_is_reported_twice_is_refused)
{
	static const struct { const char *infos[3]; const char *why; } bad[] = {
		{ { "{\"rank\":0}", "{\"rank\":1}", "{\"rank\":0}" }, "rank 0 is reported twice" },
		{ { "{\"rank\":0}", "{\"rank\":1}", "" }, "only 2 of the 3 ranks have a number" },
		{ { "{\"rank\":0}", "{\"tp_rank\":1}", "{}" },
		  "only 1 of the 3 ranks have a number" },
		{ { "{\"rank\":0}", "{\"rank\":-1}", "{\"rank\":2}" },
		  "ranks[1] has a rank number that is out of range" },
		{ { "{\"rank\":0}", "{\"rank\":1}", "{\"rank\":\"2\"}" },
		  "ranks[2] has a rank number that is out of range" },
		{ { "{\"rank\":0}", "{\"rank\":70000}", "" },
		  "ranks[1] has a rank number that is out of range" },
		{ { "{\"rank\":0,\"dp_rank\":1}", "{\"rank\":0,\"dp_rank\":0}",
		    "{\"rank\":0,\"dp_rank\":1}" },
		  "rank 0 is reported twice" },
		{ { "[{\"rank\":1}]", "[{\"rank\":1}]", "[{\"rank\":0}]" },
		  "rank 1 is reported twice" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ws_checksums sums;
		struct ws_err err;
		assert_fails(read_ranks(bad[i].infos, 3, &sums, &err), &err, WS_EREFUSED,
		             bad[i].why);
		assert_true(sums.contradicts);
	}
}

/* SGLang 0.5.12 reports the first rank of each replica alone. Since 0.5.21 there
 * is an object for each role. */
TEST(ranks_of_real_servers_are_taken)
{
	/* clang-format off */
	static const struct {
		const char *infos[4];
		size_t n;
		unsigned tp, dp;
		bool attention, whole;
	} good[] = {
		{ { "", "" }, 2, 2, 1, false, true },
		{ { "{}", "{}", "{}" }, 3, 2, 1, false, false },
		{ { "{\"rank\":1,\"dp_rank\":0}", "{\"rank\":0,\"dp_rank\":0}" }, 2, 2, 1, false,
		  true },
		{ { "{\"rank\":0,\"dp_rank\":0}", "{\"rank\":0,\"dp_rank\":1}" }, 2, 2, 2, false,
		  false },
		{ { "{\"rank\":1,\"dp_rank\":1}", "{\"rank\":0,\"dp_rank\":0}",
		  "{\"rank\":0,\"dp_rank\":1}", "{\"rank\":1,\"dp_rank\":0}" }, 4, 2, 2, false,
		  true },
		{ { "{\"rank\":0,\"dp_rank\":0}", "{\"rank\":1,\"dp_rank\":1}" }, 2, 2, 2, true,
		  true },
		{ { "[{\"role\":\"target\",\"rank\":1},{\"role\":\"draft\",\"rank\":1}]",
		  "[{\"role\":\"target\",\"rank\":0},{\"role\":\"draft\",\"rank\":0}]" }, 2, 2, 1,
		  false, true },
		{ { "{\"rank\":0}", "{\"rank\":2}" }, 2, 2, 1, false, false },
	};
	/* clang-format on */
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		const struct ws_endpoint_info info = { .url = "http://x", .tp_size = good[i].tp,
			                               .pp_size = 1, .dp_size = good[i].dp,
			                               .dp_attention = good[i].attention };
		struct ws_checksums sums;
		struct ws_err err;
		assert_int_equal(read_ranks(good[i].infos, good[i].n, &sums, &err), 0);
		assert_false(sums.contradicts);
		assert_int_equal(ws_checksums_whole(&sums, &info, &err), good[i].whole ? 0 : -1);
		assert_int_equal(err.code, good[i].whole ? WS_OK : WS_EREFUSED);
		ws_checksums_free(&sums);
	}
}

/* One rank of a server that does not tell its tp_size may be one of many. */
TEST(ranks_that_are_not_told_are_never_whole)
{
	static const char *const infos[] = { "{\"rank\":0}" };
	struct ws_endpoint_info info = {
		.url = "http://x", .pp_size = 1, .dp_size = 1, .info_path = "/server_info"
	};
	struct ws_checksums sums;
	struct ws_err err;
	assert_int_equal(read_ranks(infos, 1, &sums, &err), 0);
	assert_fails_with(ws_checksums_whole(&sums, &info, &err), &err, WS_EREFUSED,
	                  "http://x does not report how many ranks it has: /server_info has no "
	                  "tp_size");
	info.tp_size = 1;
	assert_int_equal(ws_checksums_whole(&sums, &info, &err), 0);
	ws_checksums_free(&sums);
}

TEST(longer_digests_tell_equal_from_different_and_are_not_ours)
{
	struct ws_checksums sums;
	struct ws_err err = WS_ERR_INIT;
	struct ws_json *root = parse(
		"{\"algorithm\":\"xxh3-64\",\"ranks\":[{\"checksums\":{"
		"\"a\":\"00112233445566778899aabbccddeeff\","
		"\"b\":\"00112233445566778899aabbccddeeff\","
		"\"c\":\"00112233445566778899aabbccddeefe\"}}]}");
	assert_int_equal(ws_endpoint_decode_checksums(root, &sums, &err), 0);
	const struct ws_checksum *item = sums.ranks[0].items;
	assert_true(item[0].value == item[1].value);
	assert_true(item[0].value != item[2].value);
	assert_string_equal(sums.algorithm, "");
	ws_checksums_free(&sums);
	ws_json_free(root);
}

/* ---- calls ---- */

static struct tiny engines[2];
static char base[2][64];
static const char *urls[2] = { base[0], base[1] };
static struct ws_http *http;
static atomic_bool many_names;
static char last_body[2][256];

static const char *old_names(const char *path)
{
	if (!strcmp(path, "/get_server_info"))
		return "{\"tp_size\":4,\"version\":\"0.4.9\",\"dtype\":\"auto\","
		       "\"quantization\":\"fp8\"}";
	return strcmp(path, "/get_model_info") ? NULL : "{\"weight_version\":\"default\"}";
}

static const char *new_names(const char *path)
{
	if (!strcmp(path, "/server_info"))
		return "{\"tp_size\":2,\"dp_size\":2,\"enable_dp_attention\":true,"
		       "\"version\":\"0.5.9\","
		       "\"weight_version\":\"stale\",\"served_model_name\":\"qwen\"}";
	return strcmp(path, "/model_info") ? NULL
	                                   : "{\"weight_version\":\"7\",\"model_path\":\"/m\"}";
}

static const char *held(const char *method, const char *path, int *status)
{
	if (!strncmp(path, "/list_weights", 13) && !strcmp(method, "GET"))
		return *status = 405, "";
	if (!strcmp(path, "/list_weights?rank=1&prefix=model.%20x"))
		return "{\"success\":true,\"weights\":["
		       "{\"name\":\"model. x\",\"shape\":[2,3],\"data_ptr\":1,"
		       "\"dtype\":\"torch.float16\"},{\"name\":\"s\",\"shape\":[]}]}";
	if (!strcmp(path, "/weights_checker") && many_names)
		return "{\"success\":true,\"ranks\":["
		       "{\"checksums\":{\"z\":\"00112233445566ff\",\"a\":\"00112233445566ff\"}},"
		       "{\"checksums\":{\"m\":\"00112233445566ff\",\"a\":\"00112233445566fe\","
		       "\"draft.a\":\"00112233445566ff\"}}]}";
	if (!strcmp(path, "/weights_checker"))
		return "{\"success\":true,\"message\":\"\",\"algorithm\":\"xxh3-64\",\"ranks\":["
		       "{\"checksums\":{\"w\":\"00112233445566ff\"},"
		       "\"parallelism_info\":{\"rank\":3}}]}";
	return NULL;
}

/* Engine 0 is of today, engine 1 knows the old names only and cannot label. */
static const char *route(struct tiny *t, const char *method, const char *path, const char *body,
                         int *status)
{
	const int i = t == &engines[1];
	const char *text = i ? old_names(path) : new_names(path);
	snprintf(last_body[i], sizeof last_body[i], "%s", body);
	if (!text)
		text = held(method, path, status);
	if (text)
		return text;
	if (!strcmp(path, "/health"))
		return "";
	if (!strcmp(path, "/pause_generation") || !strcmp(path, "/continue_generation"))
		return "{\"message\":\"done\",\"status\":\"ok\"}";
	if (!strcmp(path, "/update_weight_version") && !i)
		return "{\"success\":true,\"message\":\"Weight version updated to 8\"}";
	*status = 404;
	return "{\"detail\":\"no\"}";
}

static int set_up(void **state)
{
	(void)state;
	struct ws_err err;
	for (int i = 0; i < 2; i++) {
		tiny_start(&engines[i]);
		engines[i].route = route;
		tiny_url(&engines[i], "", base[i], sizeof base[i]);
	}
	return ws_client_open(&(struct ws_client_opts){ .api_key = NULL }, &http, &err);
}

static int tear_down(void **state)
{
	(void)state;
	ws_client_close(http);
	tiny_stop(&engines[0]);
	tiny_stop(&engines[1]);
	return 0;
}

#define CALL(f) TEST_BETWEEN(f, set_up, tear_down)

static ws_deadline soon(void)
{
	return ws_deadline_in(5 * WS_NS_PER_S);
}

static const struct ws_call *call_to(size_t n)
{
	static struct ws_call to;
	to = (struct ws_call){ http, urls, n, soon(), NULL, NULL };
	return &to;
}

CALL(a_probe_reads_servers_of_today_and_of_old)
{
	struct ws_endpoint_info infos[2];
	struct ws_err errs[2], err;
	assert_int_equal(ws_endpoint_probe_all(call_to(2), infos, errs, &err), 0);
	assert_string_equal(infos[0].url, base[0]);
	assert_string_equal(infos[0].host, "127.0.0.1");
	assert_int_equal(infos[0].port, engines[0].port);
	assert_int_equal(infos[0].tp_size, 2);
	assert_int_equal(infos[0].dp_size, 2);
	assert_true(infos[0].dp_attention && !infos[0].tls);
	assert_string_equal(infos[0].weight_version, "7");
	assert_string_equal(infos[0].served_model, "qwen");
	assert_string_equal(infos[0].model_path, "/m");
	assert_int_equal(infos[1].tp_size, 4);
	assert_int_equal(infos[1].pp_size, 1);
	assert_string_equal(infos[1].quantization, "fp8");
	assert_string_equal(infos[1].version, "0.4.9");
	assert_true(infos[0].ns > 0);
}

CALL(a_probe_tells_which_endpoint_failed)
{
	struct ws_endpoint_info infos[2];
	struct ws_err errs[2], err;
	engines[1].route = NULL; /* answers "hello" to everything */
	assert_int_equal(ws_endpoint_probe_all(call_to(2), infos, errs, &err), -1);
	assert_int_equal(errs[0].code, WS_OK);
	assert_int_equal(errs[1].code, WS_EREFUSED);
	assert_int_equal(err.code, WS_EREFUSED);
	assert_string_equal(err.endpoint, base[1]);
	assert_non_null(strstr(err.msg, "no JSON object"));
}

/* Where the reply is lost with the connection, the error is that. */
CALL(a_yes_to_a_request_that_was_not_sent_completely_is_none)
{
	struct ws_endpoint_call call = { 0 };
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf body;
	ws_buf_init(&body, 0);
	assert_int_equal(ws_buf_reserve(&body, 64 << 20), 0);
	memset(body.data, ' ', body.len = 64 << 20);
	assert_ok(ws_endpoint_start(http, &call, urls[0], "POST", "/early", &body, soon(), &err),
	          &err);
	assert_int_equal(ws_http_wait(http, soon(), NULL, -1, &err), 1);
	assert_int_equal(ws_endpoint_reply(&call, NULL, NULL, 0, &err), -1);
	assert_true(err.code == WS_EREFUSED || err.code == WS_EREACH);
	assert_false(ws_endpoint_said_no(&err));
	if (err.code == WS_EREFUSED)
		assert_string_equal(
			err.msg,
			"POST /early: HTTP 200 arrived before the request was sent completely");
	ws_endpoint_call_free(&call);
	ws_buf_free(&body);
}

CALL(some_yes_and_some_no_is_partial)
{
	struct ws_endpoint_answer a[2];
	struct ws_err err;
	assert_int_equal(ws_endpoint_set_version(call_to(2), "8", a, &err), -1);
	assert_string_equal(last_body[0], "{\"new_version\":\"8\",\"abort_all_requests\":false}");
	assert_int_equal(a[0].err.code, WS_OK);
	assert_int_equal(a[1].err.native, 404);
	assert_int_equal(err.code, WS_EPARTIAL);
	assert_string_equal(err.endpoint, base[1]);
	assert_non_null(strstr(err.msg, "failed on 1 of 2 endpoints"));
	assert_int_equal(ws_endpoint_set_version(&(const struct ws_call){ http, urls + 1, 1, soon(),
	                                                                  NULL, NULL },
	                                         "8", a, &err),
	                 -1);
	assert_int_equal(err.code, WS_EREFUSED);
}

/* As with no memory for the body: what an earlier call left in the answers is not this one's. */
CALL(a_request_that_cannot_be_made_is_an_answer_of_each)
{
	struct ws_endpoint_answer a[2];
	struct ws_err err;
	char *version = malloc(100001);
	memset(version, 'v', 100000);
	version[100000] = 0;
	assert_int_equal(ws_endpoint_resume(call_to(2), a, NULL), 0);
	assert_int_equal(ws_endpoint_set_version(call_to(2), version, a, NULL), -1);
	for (int i = 0; i < 2; i++) {
		assert_int_not_equal(a[i].err.code, WS_OK);
		assert_false(a[i].sent);
	}
	assert_int_equal(ws_endpoint_set_version(call_to(2), version, a, &err), -1);
	assert_int_equal(err.code, a[0].err.code);
	free(version);
}

static int list_one(const char *prefix, struct ws_weight_list *list, struct ws_err *err)
{
	struct ws_err one;
	return ws_endpoint_list_all(call_to(1), prefix, 1, list, &one, err);
}

static const char *refuse_key(struct tiny *t, const char *method, const char *path,
                              const char *body, int *status)
{
	(void)t, (void)method, (void)path, (void)body;
	*status = 401;
	return "{\"error\":\"Unauthorized\"}";
}

/* Sends the path to engine 0, which refuses it, and checks which key it had. */
static void check_key(struct ws_http *two, const char *method, const char *path, const char *key)
{
	struct ws_endpoint_call call = { 0 };
	struct ws_err err = WS_ERR_INIT;
	char header[80];
	snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", key);
	assert_int_equal(ws_endpoint_prepare(&call, base[0], method, path, NULL, soon(), &err), 0);
	assert_int_equal(ws_endpoint_run(two, &call, 1, NULL, &err), 0);
	if (!strstr(engines[0].last_head, header))
		fail_msg("%s: not the %s", path, key);
	assert_int_equal(ws_endpoint_reply(&call, NULL, NULL, 0, &err), -1);
	assert_int_equal(!!strstr(err.hint, "leave out {admin_api_key}"), !strcmp(key, "admin"));
	ws_endpoint_call_free(&call);
}

CALL(only_the_routes_that_sglang_marks_get_the_admin_key)
{
	static const char *const marked[] = {
		"/pause_generation", "/continue_generation", "/flush_cache?timeout=3",
		"/init_weights_update_group", "/destroy_weights_update_group",
		"/update_weights_from_distributed", "/update_weights_from_tensor",
		"/update_weights_from_disk", "/update_weights_from_ipc", "/begin_weight_update",
		"/end_weight_update", "/update_weight_version", "/get_weights_by_name",
		"/weights_checker", "/release_memory_occupation", "/resume_memory_occupation",
		"/hicache/storage-backend/clear", "/abort_request", "/dumper/configure",
	};
	static const char *const others[] = {
		"/model_info", "/server_info", "/health", "/v1/models", "/generate", "/encode",
		"/get_loads", "/openapi.json", "/ping", "/", "/wsync/checksums", "/dumper",
		"/collective_rpc", "/init_weight_transfer_engine", "/start_weight_update",
		"/update_weights", "/finish_weight_update", "/pause?mode=abort", "/resume",
		"/reset_prefix_cache", "/sleep?level=1", "/wake_up", "/weight_checker",
		"/shutdown_weight_transfer_engine", "/is_paused", "/pause_generation_x",
		"/receive_weights", "/prepare_weights_update", "/post_process_weights",
	};
	struct ws_http *two = NULL;
	struct ws_err err;
	engines[0].route = refuse_key;
	assert_int_equal(ws_client_open(&(struct ws_client_opts){ .api_key = "user\nadmin" }, &two,
	                                &err),
	                 0);
	for (size_t i = 0; i < sizeof marked / sizeof *marked; i++)
		check_key(two, "POST", marked[i], "admin");
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		check_key(two, i % 2 ? "POST" : "GET", others[i], "user");
	ws_client_close(two);
	assert_int_equal(ws_client_open(&(struct ws_client_opts){ .api_key = "user" }, &two, &err),
	                 0);
	check_key(two, "POST", "/pause_generation", "user");
	ws_client_close(two);
}

/* vLLM has this path of SGLang's too. */
CALL(vllm_never_gets_the_admin_key)
{
	struct ws_endpoint_info info = { .lineage = WS_LINEAGE_VLLM_33 };
	const struct ws_endpoint_info *infos[1] = { &info };
	struct ws_endpoint_answer a[1];
	struct ws_http *two = NULL;
	struct ws_err err;
	assert_int_equal(ws_client_open(&(struct ws_client_opts){ .api_key = "user\nadmin" }, &two,
	                                &err),
	                 0);
	const struct ws_call to = { .http = two, .urls = urls, .n = 1, .until = soon(),
		                    .infos = infos };
	ws_endpoint_set_version(&to, "8", a, &err);
	assert_non_null(strstr(engines[0].last_head, "Authorization: Bearer user\r\n"));
	info.lineage = WS_LINEAGE_UNKNOWN;
	ws_endpoint_set_version(&to, "8", a, &err);
	assert_non_null(strstr(engines[0].last_head, "Authorization: Bearer admin\r\n"));
	/* Of a server that was not detected, only a 401 shows that it wants the key. */
	const struct ws_call unknown = { .http = two, .urls = urls, .n = 1, .until = soon() };
	ws_endpoint_set_version(&unknown, "8", a, &err);
	assert_non_null(strstr(engines[0].last_head, "Authorization: Bearer user\r\n"));
	engines[0].route = refuse_key;
	assert_int_equal(ws_endpoint_set_version(&unknown, "8", a, &err), -1);
	assert_non_null(strstr(engines[0].last_head, "Authorization: Bearer admin\r\n"));
	assert_non_null(strstr(err.hint, "leave out {admin_api_key}"));
	ws_client_close(two);
}

CALL(a_list_is_asked_by_post_where_get_is_not_taken)
{
	struct ws_weight_list list;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(list_one("model. x", &list, &err), 0);
	assert_string_equal(last_body[0], "{\"rank\":1,\"prefix\":\"model. x\"}");
	assert_int_equal(list.n, 2);
	assert_string_equal(list.items[0].name, "model. x");
	assert_int_equal(list.items[0].n_dims, 2);
	assert_int_equal(list.items[0].dims[1], 3);
	assert_string_equal(list.items[0].dtype, "float16");
	assert_string_equal(list.items[1].dtype, "");
	ws_weight_list_free(&list);
	assert_int_equal(list_one("nope", &list, &err), -1);
	assert_int_equal(err.native, 404);
	assert_string_equal(err.endpoint, base[0]);
}

CALL(what_endpoints_say_alike_is_kept_once)
{
	struct ws_weight_list lists[2];
	struct ws_checksums sums[2];
	struct ws_err errs[2], err;
	assert_int_equal(ws_endpoint_list_all(call_to(2), "model. x", 1, lists, errs, &err), 0);
	assert_ptr_equal(lists[0].items, lists[1].items);
	ws_weight_list_free(&lists[0]);
	assert_string_equal(lists[1].items[0].name, "model. x");
	ws_weight_list_free(&lists[1]);
	assert_int_equal(ws_endpoint_checksums(call_to(2), sums, errs, &err), 0);
	assert_ptr_equal(sums[0].ranks, sums[1].ranks);
	ws_checksums_free(&sums[1]);
	assert_string_equal(sums[0].ranks[0].items[0].name, "w");
	ws_checksums_free(&sums[0]);
}

CALL(the_names_of_checksums_are_a_list_without_shapes)
{
	struct ws_weight_list list;
	struct ws_err err = WS_ERR_INIT;
	struct ws_err each;
	const struct ws_call to = { http, urls, 1, soon(), NULL, NULL };
	many_names = true;
	assert_int_equal(ws_endpoint_checker_names(&to, &list, &each, &err), 0);
	many_names = false;
	assert_int_equal(list.n, 3);
	assert_string_equal(list.items[0].name, "a");
	assert_string_equal(list.items[1].name, "m");
	assert_string_equal(list.items[2].name, "z");
	assert_true(list.items[2].shapeless);
	assert_string_equal(list.items[2].dtype, "");
	ws_weight_list_free(&list);
	engines[0].route = NULL;
	assert_int_equal(ws_endpoint_checker_names(&to, &list, &each, &err), -1);
	assert_int_equal(err.code, WS_EREFUSED);
	assert_string_equal(err.endpoint, base[0]);
	assert_int_equal(list.n, 0);
}

CALL(nobody_to_ask_is_no_failure)
{
	struct ws_err err;
	assert_int_equal(ws_endpoint_probe_all(call_to(0), NULL, NULL, &err), 0);
	assert_int_equal(ws_endpoint_health(call_to(0), NULL, &err), 0);
	assert_int_equal(ws_endpoint_flush(call_to(0), soon(), NULL, &err), 0);
}

CALL(a_cancelled_call_ends)
{
	struct ws_cancel cancel = WS_CANCEL_INIT;
	struct ws_endpoint_answer a[2];
	struct ws_err err;
	ws_cancel_set(&cancel);
	assert_int_equal(ws_endpoint_health(&(const struct ws_call){ http, urls, 2, soon(),
	                                                             &cancel, NULL },
	                                    a, &err),
	                 -1);
	assert_int_equal(err.code, WS_ECANCELLED);
}

TEST(a_version_that_no_server_could_report_is_refused)
{
	char text[WS_VERSION_MAX + 2];
	struct ws_err err = WS_ERR_INIT;
	(void)state;
	memset(text, '7', sizeof text);
	text[WS_VERSION_MAX + 1] = 0;
	assert_fails(ws_endpoint_check_version(text, &err), &err, WS_EUSAGE,
	             "it is longer than 127 bytes");
	text[WS_VERSION_MAX] = 0;
	assert_int_equal(ws_endpoint_check_version(text, &err), 0);
	struct ws_endpoint_info info;
	assert_true(WS_VERSION_MAX < sizeof info.weight_version);
	assert_fails(ws_endpoint_check_version("caf\xe9", &err), &err, WS_EUSAGE,
	             "{weight_version} 'caf?': it is not UTF-8");
	assert_int_equal(ws_endpoint_check_version("caf\xc3\xa9", &err), 0);
	assert_fails(ws_endpoint_check_version("default", &err), &err, WS_EUSAGE,
	             "the weight version 'default' would say nothing");
	assert_int_equal(ws_endpoint_check_version("default-2", &err), 0);
}

TEST(versions_that_are_integers_have_an_order)
{
	static const struct { const char *version, *than; bool older; } rows[] = {
		{ "1", "57", true }, { "57", "1", false }, { "57", "57", false },
		{ "9", "10", true }, { "007", "7", false }, { "007", "8", true },
		{ "0", "000", false }, { "step-1", "2", false }, { "1", "default", false },
		{ "", "2", false }, { "1", "", false }, { "-1", "2", true }, { "1.0", "2", false },
		{ "-1", "-2", false }, { "-2", "-1", true }, { "-10", "-9", true },
		{ "2", "-1", false },  { "-0", "0", false }, { "0", "-0", false },
		{ "+9", "10", true },  { "8", "+9", true },  { " 9", "10", true },
		{ "9 ", " +010 ", true }, { "09", "9", false }, { "9", "09", false },
		{ "+-9", "10", false }, { "+ 9", "10", false }, { "-", "10", false },
		{ "9 1", "10", false }, { " ", "10", false }, { "\xd9\xa3", "10", false },
		{ "0x9", "10", false }, { "9e0", "10", false }, { "1_0", "99", false },
		{ "-99999999999999999999", "-99999999999999999998", true },
		{ "99999999999999999999", "100000000000000000000", true },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (ws_endpoint_is_older(rows[i].version, rows[i].than) != rows[i].older)
			fail_msg("'%s' and '%s'", rows[i].version, rows[i].than);
}

TEST(memory_is_named_by_words)
{
	static const struct { const char *text; unsigned memory; } good[] = {
		{ "weights", WS_MEMORY_WEIGHTS }, { "kv_cache", WS_MEMORY_KV_CACHE },
		{ "cuda_graph,weights", WS_MEMORY_CUDA_GRAPH | WS_MEMORY_WEIGHTS },
		{ "weights,weights", WS_MEMORY_WEIGHTS },
		{ "kv_cache,cuda_graph,weights", WS_MEMORY_ALL },
	};
	static const char *const bad[] = { "", ",", "weights,", ",weights", "weight", "weightss",
		                           "weights kv_cache", "WEIGHTS", "kv_cache,\033[31m" };
	struct ws_err err;
	unsigned memory;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		assert_int_equal(ws_memory_parse(good[i].text, &memory, &err), 0);
		assert_int_equal(memory, good[i].memory);
	}
	memory = 77;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		assert_fails(ws_memory_parse(bad[i], &memory, &err), &err, WS_EUSAGE, "");
		assert_null(strchr(err.msg, '\033'));
	}
	assert_int_equal(memory, 77);
}

RUN_TESTS(NULL, NULL)
