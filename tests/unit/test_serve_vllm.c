/* SPDX-License-Identifier: Apache-2.0 */
/* The routes of vLLM without a network: which version has which, their forms of answers, what is
 * wrong with a body, and the order of start, updates and finish. */
#include "serve_ask.h"
#include "serve_vllm.h"

static const enum ws_serve_lineage lineages[] = { WS_SERVE_VLLM_0_20, WS_SERVE_VLLM_0_24,
	                                          WS_SERVE_VLLM_0_27, WS_SERVE_VLLM_0_33 };
enum { V20, V24, V27, V33, VERSIONS };

static void begin(unsigned version)
{
	start((struct ws_serve_opts){ .lineage = lineages[version] });
}

static void post(const char *path, const char *body, unsigned status, const char *part)
{
	answers("POST", path, body, status, part);
}

static void get(const char *path, unsigned status, const char *part)
{
	answers("GET", path, NULL, status, part);
}

static void assert_all(const char *text)
{
	if (strcmp(said(), text) != 0)
		fail_msg("'%s' is not '%s'", said(), text);
}

/* ---- routes ---- */

ASKING(each_version_has_its_routes)
{
	static const struct {
		const char *path;
		unsigned since;
	} rows[] = {
		{ "/pause", V20 },                  { "/resume", V20 },
		{ "/reset_prefix_cache", V20 },     { "/sleep", V20 },
		{ "/wake_up", V20 },                { "/init_weight_transfer_engine", V20 },
		{ "/update_weights", V20 },         { "/collective_rpc", V20 },
		{ "/start_weight_update", V24 },    { "/finish_weight_update", V24 },
		{ "/abort_requests", V27 },         { "/update_weight_version", V27 },
		{ "/weight_checker", V33 },         { "/shutdown_weight_transfer_engine", V33 },
		{ "/generate", VERSIONS },          { "/flush_cache", VERSIONS },
		{ "/pause_generation", VERSIONS },  { "/init_weights_update_group", VERSIONS },
	};
	for (unsigned v = 0; v < VERSIONS; v++) {
		begin(v);
		for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
			const unsigned status = ask("POST", rows[i].path, "{}");
			if ((status == 404) == (v >= rows[i].since))
				fail_msg("version %u: %s: %u", v, rows[i].path, status);
			if (status == 404)
				assert_all("{\"detail\":\"Not Found\"}");
		}
		get("/openapi.json", 200, "\"/update_weights\":{\"post\":{");
		assert_int_equal(strstr(said(), "\"/weight_checker\"") != NULL, v == V33);
		assert_null(strstr(said(), "/flush_cache"));
	}
}

ASKING(versions_sizes_and_the_configuration_are_told)
{
	static const char *const versions[] = { "0.20.2+wsync.", "0.24.0+wsync.", "0.27.1+wsync.",
		                                "0.33.0+wsync." };
	for (unsigned v = 0; v < VERSIONS; v++) {
		begin(v);
		get("/version", 200, versions[v]);
		assert_int_equal(strncmp(said(), "{\"version\":\"", 12), 0);
		get("/health", 200, "");
		assert_all("");
	}
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_27, .tp = 4,
	                              .model_path = "/models/a", .served_model_name = "a" });
	get("/get_world_size", 200, "{\"world_size\":4}");
	get("/get_world_size?include_dp=false", 200, "{\"world_size\":4}");
	get("/get_world_size?include_dp=maybe", 400, "valid boolean");
	get("/v1/models", 200, "\"id\":\"a\",\"root\":\"/models/a\"");
	assert_said("\"owned_by\":\"vllm\"");
	get("/server_info?config_format=json", 200, "\"vllm_config\":{\"model_config\":{");
	assert_said("\"dtype\":\"torch.bfloat16\"");
	assert_said("\"tensor_parallel_size\":4");
	assert_said("\"worker_extension_cls\":\"wsync_vllm.WorkerExtension\"");
	assert_said("\"weight_transfer_config\":{\"backend\":\"nccl\"}");
	get("/server_info", 200, "\"vllm_config\":\"model='/models/a', ");
	get("/server_info?config_format=xml", 400, "'text' or 'json'");
}

ASKING(options_of_other_families_are_refused)
{
	static const struct ws_serve_opts rows[] = {
		{ .lineage = WS_SERVE_VLLM_0_33, .torch = WS_TORCH_1_13 },
		{ .lineage = WS_SERVE_VLLM_0_33, .device = "cpu" },
		{ .lineage = WS_SERVE_VLLM_0_33, .routed_experts = true },
	};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		struct ws_serve *s = NULL;
		struct ws_err err = WS_ERR_INIT;
		assert_int_equal(ws_serve_new(&rows[i], &s, &err), -1);
		assert_int_equal(err.code, WS_EUSAGE);
	}
}

/* ---- pausing ---- */

ASKING(a_pause_has_a_mode_and_empties_the_cache)
{
	begin(V27);
	get("/is_paused", 200, "{\"is_paused\":false}");
	post("/pause", NULL, 200, "{\"status\":\"paused\"}");
	get("/is_paused", 200, "{\"is_paused\":true}");
	get("/wsync/journal", 200, "\"mode\":\"abort\"");
	post("/pause?mode=keep&clear_cache=false", NULL, 200, "paused");
	get("/wsync/journal", 200, "\"paused\":true,\"mode\":\"keep\"");
	assert_int_equal(serve->journal.flushes, 1);
	post("/pause?mode=retract", NULL, 400, "Input should be 'abort', 'wait' or 'keep'");
	assert_said("\"type\":\"Bad Request\",\"param\":null,\"code\":400}}");
	post("/pause?clear_cache=2", NULL, 400, "query.clear_cache");
	post("/pause?wait_for_inflight_requests=true", NULL, 200, "paused");
	get("/wsync/journal", 200, "\"paused\":true,\"mode\":\"wait\"");
	post("/resume", NULL, 200, "{\"status\":\"resumed\"}");
	get("/is_paused", 200, "{\"is_paused\":false}");
}

ASKING(running_requests_are_aborted_end_or_stay)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_27, .busy = 3 });
	post("/reset_prefix_cache", NULL, 200, "{\"success\":false}");
	post("/reset_prefix_cache?reset_running_requests=true", NULL, 200, "{\"success\":true}");
	post("/pause?mode=keep&clear_cache=false", NULL, 200, "paused");
	post("/reset_prefix_cache", NULL, 200, "{\"success\":false}");
	post("/pause?mode=keep", NULL, 200, "paused"); /* computed again later */
	post("/reset_prefix_cache", NULL, 200, "{\"success\":true}");
	post("/abort_requests", "{}", 200, "{\"status\":\"aborted\",\"aborted\":3}");
	post("/abort_requests", "{\"request_ids\":[\"a\"]}", 200, "\"aborted\":1}");
	post("/abort_requests", NULL, 400, "Invalid JSON format");
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_24, .busy = 3 });
	post("/reset_prefix_cache", NULL, 200, "");
	assert_all("");
}

ASKING(it_sleeps_and_wakes)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_33, .memory_saver = true });
	post("/sleep?level=2", NULL, 200, "{\"status\":\"sleeping\",\"level\":2}");
	get("/is_paused", 200, "true");
	post("/wake_up?tags=weights", NULL, 200,
	     "{\"status\":\"sleeping\",\"tags\":[\"weights\"]}");
	post("/sleep?level=3", NULL, 400, "from 0 to 2");
	post("/wake_up", NULL, 200, "{\"status\":\"awake\",\"tags\":null}");
	get("/is_paused", 200, "false");
	post("/sleep?level=1", NULL, 200, "sleeping");
	post("/start_weight_update", NULL, 200, "started");
	post("/update_weights", "{\"update_info\":{}}", 0, "");
	assert_non_null(strstr(killed_by, "illegal memory access"));
	begin(V27);
	post("/sleep", NULL, 200, "");
	assert_all("");
	post("/wake_up?tags=kv_cache&tags=weights", NULL, 200, "");
	get("/is_paused", 200, "false");
}

/* ---- bodies ---- */

#define INVALID "Call to collective_rpc method failed: Invalid "
#define INIT \
	INVALID "init_info for NCCLWeightTransferEngine: NCCLWeightTransferInitInfo.__init__() "
#define UPDATE \
	INVALID "update_info for NCCLWeightTransferEngine: NCCLWeightTransferUpdateInfo.__init__() "

ASKING(keys_of_init_info_are_arguments)
{
	for (unsigned v = 0; v < VERSIONS; v++) {
		begin(v);
		post("/init_weight_transfer_engine", "{\"init_info\":{\"group_name\":\"g\"}}", 500,
		     INIT "got an unexpected keyword argument 'group_name'");
		assert_said("\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
		/* packed is of the last version here, and of updates before */
		post("/init_weight_transfer_engine", "{\"init_info\":{\"packed\":true}}", 500,
		     v == V33 ? INIT "missing 2 required keyword-only arguments: 'rank_offset' "
		                     "and 'world_size'"
		              : INIT "got an unexpected keyword argument 'packed'");
		post("/init_weight_transfer_engine", "{\"init_info\":3}", 400, "init_info");
		post("/init_weight_transfer_engine", "{}", 400,
		     v == V33 ? "body.init_info: Field required"
		              : "{\"error\":{\"message\":\"Missing 'init_info' in request body\","
		                "\"type\":\"Bad Request\",\"param\":null,\"code\":400}}");
	}
	begin(V20);
	post("/init_weight_transfer_engine", "{\"init_info\":{\"rank_offset\":1}}", 500,
	     INIT "missing 3 required positional arguments: 'master_address', 'master_port', and "
	          "'world_size'");
	post("/init_weight_transfer_engine", "not json", 400, "Invalid JSON format");
}

ASKING(an_id_excludes_an_address)
{
#define RANKS "\"rank_offset\":1,\"world_size\":2"
	begin(V33);
	post("/init_weight_transfer_engine",
	     "{\"init_info\":{" RANKS ",\"nccl_unique_id_b64\":\"AAAA\",\"master_port\":1}}", 500,
	     "pass nccl_unique_id_b64 OR master_address/master_port, not both");
	post("/init_weight_transfer_engine",
	     "{\"init_info\":{" RANKS ",\"nccl_unique_id_b64\":\"AAAA\"}}", 500,
	     "nccl_unique_id_b64 must decode to 128 bytes, got 3");
	post("/init_weight_transfer_engine",
	     "{\"init_info\":{" RANKS ",\"nccl_unique_id_b64\":\"-_-_\"}}", 500,
	     "is not valid standard base64");
	post("/init_weight_transfer_engine", "{\"init_info\":{" RANKS "}}", 500,
	     "need nccl_unique_id_b64, or both master_address and master_port (got "
	     "master_address=None, master_port=None)");
	/* The worker extension has no such mode: it goes on to a GPU. */
	char body[400] = "{\"init_info\":{" RANKS ",\"nccl_unique_id_b64\":\"";
	for (int i = 0; i < 170; i++)
		strcat(body, "A");
	post("/init_weight_transfer_engine", strcat(body, "A=\"}}"), 500,
	     "Found no NVIDIA driver on your system.");
	begin(V27);
	post("/init_weight_transfer_engine",
	     "{\"init_info\":{" RANKS ",\"nccl_unique_id_b64\":\"AAAA\"}}", 500,
	     INIT "got an unexpected keyword argument 'nccl_unique_id_b64'");
}

ASKING(keys_of_update_info_are_arguments)
{
#define LISTS "\"names\":[\"a\"],\"dtype_names\":[\"int8\"],\"shapes\":[[1]]"
	for (unsigned v = 0; v < VERSIONS; v++) {
		static const char *const only[] = { "is_checkpoint_format", "update_kind", NULL,
			                            NULL };
		char body[200], text[200];
		begin(v);
		ask("POST", "/start_weight_update", "{}");
		post("/update_weights", "{\"update_info\":{\"flush_cache\":false}}", 500,
		     UPDATE "got an unexpected keyword argument 'flush_cache'");
		ask("POST", "/start_weight_update", "{}");
		post("/update_weights", "{\"update_info\":{" LISTS ",\"packed\":true}}", 500,
		     v == V33 ? UPDATE "got an unexpected keyword argument 'packed'"
		              : "NCCL weight transfer not initialized. Call "
		                "init_transfer_engine() first.");
		for (unsigned i = 0; i < VERSIONS; i++) {
			if (!only[i])
				continue;
			snprintf(body, sizeof body, "{\"update_info\":{%s,\"%s\":%s}}", LISTS,
			         only[i], i == V20 ? "true" : "\"dense\"");
			snprintf(text, sizeof text, "got an unexpected keyword argument '%s'",
			         only[i]);
			ask("POST", "/start_weight_update", "{}");
			post("/update_weights", body, 500, i == v ? "not initialized" : text);
		}
		ask("POST", "/start_weight_update", "{}");
		post("/update_weights", "{\"update_info\":{}}", 500,
		     v == V33 ? "not initialized"
		              : UPDATE "missing 3 required positional arguments: 'names', "
		                       "'dtype_names', and 'shapes'");
		ask("POST", "/start_weight_update", "{}");
		post("/update_weights",
		     "{\"update_info\":{\"names\":[\"a\"],\"dtype_names\":[],\"shapes\":[]}}", 500,
		     "`dtype_names` should be of the same size as `names`: got 0 and 1");
	}
}

ASKING(several_workers_wrap_their_exceptions)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_33, .tp = 2 });
	post("/finish_weight_update", NULL, 500,
	     "Call to collective_rpc method failed: Worker failed with error 'finish_weight_update "
	     "called without a matching start_weight_update.', please check the stack trace above "
	     "for the root cause");
}

ASKING(after_a_failed_call_several_workers_answer_late)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_33, .tp = 2 });
	post("/start_weight_update", NULL, 200, "started");
	post("/start_weight_update", NULL, 500, "already active");
	/* it works, and says what the call before it did */
	post("/finish_weight_update", "{\"weight_version\":\"1\"}", 500, "already active");
	assert_false(serve->vllm->active);
	get("/weight_info", 200, "default");
	post("/start_weight_update", NULL, 200, "started");
	post("/start_weight_update", NULL, 500, "already active");
	post("/collective_rpc", "{\"method\":\"wsync_leave\"}", 200, "results");
	post("/collective_rpc", "{\"method\":\"wsync_leave\"}", 500, "already active");
}

ASKING(the_workers_tell_whether_an_update_is_open)
{
	static const char ask[] =
		"{\"method\":\"__getattr__\",\"args\":[\"_weight_update_active\"]}";
	for (unsigned v = V24; v < VERSIONS; v++) {
		begin(v);
		post("/collective_rpc", ask, 200, "{\"results\":[\"False\"]}");
		post("/start_weight_update", "{}", 200, "started");
		post("/collective_rpc", ask, 200, "{\"results\":[\"True\"]}");
	}
	begin(V20);
	post("/collective_rpc", ask, 500,
	     "'Worker' object has no attribute '_weight_update_active'");
}

/* ---- start, update, finish ---- */

static const char empty[] =
	"{\"update_info\":{\"names\":[],\"dtype_names\":[],\"shapes\":[]}}";

ASKING(updates_need_a_start)
{
	for (unsigned v = V24; v < VERSIONS; v++) {
		begin(v);
		post("/update_weights", empty, 500,
		     "start_weight_update must be called before update_weights.");
		post("/finish_weight_update", NULL, 500, "without a matching start_weight_update.");
		post("/start_weight_update", v == V24 ? "{}" : NULL, 200,
		     "{\"message\":\"Weight update started\"}");
		post("/start_weight_update", "{}", 500,
		     "start_weight_update called while a weight update is already active. Call "
		     "finish_weight_update first.");
		post("/finish_weight_update", NULL, 200,
		     "{\"message\":\"Weight update finished\"}");
	}
	begin(V24);
	post("/start_weight_update", NULL, 400, "Invalid JSON format");
	post("/start_weight_update", "{\"is_checkpoint_format\":false}", 500,
	     "only the checkpoint");
}

ASKING(a_failed_update_ends_the_session_and_leaves_no_weights)
{
	static const char prompt[] = "{\"prompt\":[1,2],\"max_tokens\":1}";
	for (unsigned v = V20; v < VERSIONS; v++) {
		begin(v);
		post("/v1/completions", prompt, 200, "\"choices\"");
		ask("POST", "/start_weight_update", "{}");
		post("/update_weights", empty, 500, "not initialized");
		if (v > V20)
			post("/finish_weight_update", NULL, 500, "without a matching");
		post("/v1/completions", prompt, 0, "");
		assert_non_null(strstr(killed_by, "after a failed update"));
		assert_int_equal(crashes, 1);
	}
	/* a body that is no dataclass comes before the weights are touched */
	begin(V20);
	post("/update_weights", "{\"update_info\":{}}", 500, "missing 3");
	post("/v1/completions", prompt, 200, "\"choices\"");
	/* between start and finish */
	begin(V33);
	post("/start_weight_update", NULL, 200, "");
	post("/v1/completions", prompt, 0, "");
	assert_non_null(strstr(killed_by, "between start_weight_update and"));
}

ASKING(a_group_is_shut_down_outside_of_an_update)
{
	begin(V33);
	post("/shutdown_weight_transfer_engine", NULL, 200,
	     "{\"message\":\"Weight transfer shut down\"}");
	post("/start_weight_update", NULL, 200, "");
	post("/shutdown_weight_transfer_engine", NULL, 500,
	     "Cannot release a trainer connection during a weight update");
}

ASKING(the_version_is_a_label)
{
	begin(V27);
	get("/weight_info", 200, "{\"weight_version\":\"default\"}");
	post("/finish_weight_update", "{\"weight_version\":\"v1\"}", 500, "without a matching");
	get("/weight_info", 200, "default");
	post("/start_weight_update", NULL, 200, "");
	post("/finish_weight_update", "{\"weight_version\":\"v1\"}", 200, "finished");
	get("/weight_info", 200, "{\"weight_version\":\"v1\"}");
	post("/update_weight_version", "{\"new_version\":\"v2\"}", 200,
	     "{\"success\":true,\"new_version\":\"v2\"}");
	get("/weight_info", 200, "v2");
	post("/update_weight_version", "{\"new_version\":3}", 400, "valid string");
}

/* ---- packed broadcasts ---- */

TEST(a_packed_broadcast_has_the_tensor_that_exceeds_the_limit)
{
	struct ws_serve_slot slots[6];
	static const uint64_t sizes[6] = { 10, 20, 1, 100, 5, 0 };
	for (size_t i = 0; i < 6; i++)
		slots[i] = (struct ws_serve_slot){ .bytes = sizes[i] };
	assert_int_equal(ws_serve_vllm_cut(slots, 0, 6, 30), 3);
	assert_int_equal(ws_serve_vllm_cut(slots, 0, 6, 29), 2);
	assert_int_equal(ws_serve_vllm_cut(slots, 3, 6, 30), 4);
	assert_int_equal(ws_serve_vllm_cut(slots, 4, 6, 30), 6);
	assert_int_equal(ws_serve_vllm_cut(slots, 0, 6, 0), 1);
	assert_int_equal(ws_serve_vllm_cut(slots, 5, 6, 0), 6);
}

/* ---- faults, methods, generating ---- */

ASKING(faults_know_the_routes)
{
	static const char *const faults[] = { "refuse:pause:1", "drop:update_weights:1",
		                              "stale:reset_prefix_cache:1",
		                              "flip:collective_rpc:1",
		                              "refuse:v1/completions:1" };
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_33, .faults = faults,
	                              .n_faults = 5 });
	post("/pause", NULL, 400,
	     "{\"error\":{\"message\":\"refused on request: fault refuse:pause\"");
	post("/pause", NULL, 200, "paused");
	post("/start_weight_update", NULL, 200, "");
	post("/v1/completions", "{}", 400, "refused on request");
	struct ws_serve_fault f;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_serve_fault_parse("drop:generate:1", WS_SERVE_VLLM_0_33, &f, &err), -1);
	assert_int_equal(ws_serve_fault_parse("drop:weight_info:1", WS_SERVE_VLLM_0_20, &f, &err),
	                 -1);
}

ASKING(the_extension_has_methods)
{
	start((struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_20, .tp = 2 });
	post("/collective_rpc", "{\"method\":\"wsync_leave\"}", 200, "{\"results\":[null,null]}");
	post("/collective_rpc", "{\"method\":\"get_model\"}", 500,
	     "Method 'get_model' is not implemented.");
	post("/collective_rpc", "{}", 400, "Missing 'method' in request body");
	post("/collective_rpc",
	     "{\"method\":\"reload_weights\",\"kwargs\":{\"weights_path\":\"/tmp/no/dir\"}}", 500,
	     "Cannot find any model weights with `<path>`");
}

ASKING(completions_have_the_form_of_openai)
{
	begin(V33);
	post("/v1/completions",
	     "{\"model\":\"wsync-endpoint\",\"prompt\":[65,66,67],\"max_tokens\":2,"
	     "\"temperature\":0,\"logprobs\":1,\"prompt_logprobs\":1,\"return_token_ids\":true,"
	     "\"return_weight_versions\":true}",
	     200, "\"object\":\"text_completion\"");
	assert_said("\"prompt_logprobs\":[null,{\"66\":{\"logprob\":-");
	assert_said("\"prompt_token_ids\":[65,66,67]");
	assert_said("\"weight_versions\":[{\"start\":0,\"end\":2,\"version\":\"default\"}]");
	assert_said("\"usage\":{\"prompt_tokens\":3,\"total_tokens\":5,\"completion_tokens\":2,");
	post("/v1/completions", "{\"model\":\"other\",\"prompt\":[1]}", 404,
	     "The model `other` does not exist.");
	post("/v1/completions", "{\"prompt\":[[1],[2]],\"max_tokens\":1}", 200, "\"index\":1");
	assert_said("\"logprobs\":null");
	post("/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":1}", 200,
	     "\"prompt_tokens\":3");
	post("/v1/completions", "{\"max_tokens\":1}", 400, "\"error\"");
}

ASKING(a_paused_server_of_0_33_rejects)
{
	static const char prompt[] = "{\"prompt\":[1],\"max_tokens\":1}";
	static const char *const modes[] = { "/pause", "/pause?mode=wait" };
	begin(V33);
	for (size_t i = 0; i < 2; i++) {
		post(modes[i], NULL, 200, "paused");
		post("/v1/completions", prompt, 503,
		     "{\"error\":{\"message\":\"Generation is paused. Please retry after it "
		     "resumes.\",\"type\":\"ServiceUnavailableError\",\"param\":null,"
		     "\"code\":503}}");
		post("/resume", NULL, 200, "");
		post("/v1/completions", prompt, 200, "choices");
	}
}

RUN_TESTS(NULL, NULL)
