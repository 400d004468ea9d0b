/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded endpoint without network: requests go straight to its handler. */
#include "serve_ask.h"
#include "serve_decode.h"

#include <inttypes.h>
#include <unistd.h>

static const char validation[] = "{\"object\":\"error\",\"message\":\"1 validation error: ";

/* ---- the frame ---- */

ASKING(unknown_paths_and_methods_answer_like_fastapi)
{
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(ask("POST", "/begin_weight_update", "{}"), 404);
	assert_string_equal(said(), "{\"detail\":\"Not Found\"}");
	assert_int_equal(ask("GET", "/pause_generation", NULL), 405);
	assert_string_equal(said(), "{\"detail\":\"Method Not Allowed\"}");
	assert_string_equal(reply.allow, "POST");
	assert_int_equal(ask("HEAD", "/flush_cache", NULL), 405);
	assert_string_equal(reply.allow, "GET, POST");
	assert_int_equal(ask("GET", "health", NULL), 404);
}

ASKING(information_tells_what_was_configured)
{
	start((struct ws_serve_opts){ .tp = 3, .model_path = "m/\"odd\"", .quantization = "fp8",
	                               .served_model_name = "served" });
	answers("GET", "/model_info", NULL, 200, "\"model_path\":\"m/\\\"odd\\\"\"");
	assert_said("\"weight_version\":\"default\"");
	answers("GET", "/get_server_info", NULL, 200, "\"tp_size\":3");
	assert_said("\"quantization\":\"fp8\"");
	assert_said("\"dtype\":\"bfloat16\"");
	answers("GET", "/v1/models", NULL, 200, "\"id\":\"served\"");
	assert_int_equal(ask("GET", "/openapi.json", NULL), 200);
	assert_said("\"/update_weights_from_distributed\":{\"post\":{");
}

ASKING(bodies_that_are_no_objects_are_validation_errors)
{
	static const char *const bodies[] = { NULL, "", "{", "[]", "3", "{}x", "{\"mode\":1}",
		                              "{\"mode\":\"abort\\u0000\"}", "{\"mode\":null}" };
	start((struct ws_serve_opts){ 0 });
	for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
		assert_int_equal(ask("POST", "/pause_generation", bodies[i]), 400);
		assert_said(validation);
		assert_said("\"type\":\"Bad Request\",\"param\":null,\"code\":400}");
	}
	assert_false(serve->paused);
}

ASKING(a_key_opens_everything_but_health_is_always_open)
{
	char path[] = "/tmp/wsync-test-key-XXXXXX";
	const int fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "sesame\n", 7), 7);
	close(fd);
	start((struct ws_serve_opts){ .api_key_file = path });
	unlink(path);
	struct ws_serve_request rq = { .method = "GET", .path = "/model_info", .body = "" };
	static const char *const wrong[] = { NULL, "", "Bearer ", "Bearer sesam", "Bearer sesamee",
		                             "sesame", "bearer sesame" };
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		rq.authorization = wrong[i];
		ws_serve_handle(serve, &rq, &reply);
		assert_int_equal(reply.status, 401);
		assert_string_equal(said(), "{\"error\":\"Unauthorized\"}");
		ws_buf_free(&reply.body);
	}
	rq.authorization = "Bearer sesame";
	ws_serve_handle(serve, &rq, &reply);
	assert_int_equal(reply.status, 200);
	rq.authorization = NULL;
	rq.x_api_key = "sesame";
	ws_buf_free(&reply.body);
	ws_serve_handle(serve, &rq, &reply);
	assert_int_equal(reply.status, 200);
	assert_int_equal(ask("GET", "/health", NULL), 200);
	assert_int_equal(ask("GET", "/wsync/journal", NULL), 401);
}

static unsigned ask_with(const char *path, const char *authorization)
{
	const struct ws_serve_request rq = { .method = "GET", .path = path, .body = "",
		                             .authorization = authorization };
	ws_buf_free(&reply.body);
	ws_serve_handle(serve, &rq, &reply);
	return reply.status;
}

ASKING(an_admin_key_is_for_the_routes_that_sglang_marks)
{
	static const char *const normal[] = { "/model_info", "/get_loads", "/list_weights",
		                              "/no_such_route" };
	char path[] = "/tmp/wsync-test-key-XXXXXX", other[] = "/tmp/wsync-test-key-XXXXXX";
	const int fd = mkstemp(path), fd2 = mkstemp(other);
	assert_true(fd >= 0 && fd2 >= 0);
	assert_int_equal(write(fd, "sesame\n", 7), 7);
	assert_int_equal(write(fd2, "alibaba\n", 8), 8);
	close(fd);
	close(fd2);
	start((struct ws_serve_opts){ .lineage = WS_SERVE_SGLANG_2026, .api_key_file = path,
	                               .admin_api_key_file = other });
	unlink(path);
	unlink(other);
	for (size_t i = 0; i < sizeof normal / sizeof *normal; i++) {
		assert_int_equal(ask_with(normal[i], "Bearer alibaba"), 401);
		assert_int_not_equal(ask_with(normal[i], "Bearer sesame"), 401);
	}
	assert_int_equal(ask_with("/flush_cache", "Bearer sesame"), 401);
	assert_int_equal(ask_with("/flush_cache", "Bearer alibaba"), 200);
}

/* ---- pausing and flushing ---- */

ASKING(a_flush_needs_an_idle_scheduler)
{
	start((struct ws_serve_opts){ .busy = 2 });
	assert_int_equal(ask("GET", "/flush_cache", NULL), 400);
	assert_int_equal(ask("POST", "/pause_generation", "{\"mode\":\"in_place\"}"), 200);
	assert_string_equal(said(),
	                    "{\"message\":\"Generation paused successfully.\",\"status\":\"ok\"}");
	assert_int_equal(ask("POST", "/flush_cache", NULL), 400);
	assert_int_equal(ask("POST", "/pause_generation", "{\"mode\":\"retract\"}"), 200);
	assert_int_equal(serve->running, 0);
	assert_int_equal(serve->waiting, 2);
	assert_int_equal(ask("GET", "/flush_cache", NULL), 400);
	assert_int_equal(ask("POST", "/pause_generation", "{}"), 200);
	assert_int_equal(ask("GET", "/flush_cache", NULL), 200);
	assert_string_equal(reply.type, "text/plain; charset=utf-8");
	assert_said("Cache flushed.");
	assert_int_equal(ask("POST", "/continue_generation", "{\"torch_empty_cache\":true}"), 200);
	assert_int_equal(serve->running, 2);
	assert_false(serve->paused);
	assert_int_equal(serve->journal.flushes, 1);
	assert_int_equal(serve->journal.failed_flushes, 3);
}

static const char *timeout_query(const void *ctx, const char *key)
{
	return strcmp(key, "timeout") == 0 ? ctx : NULL;
}

ASKING(a_flush_may_wait_for_idleness)
{
	start((struct ws_serve_opts){ .busy = 1 });
	struct ws_serve_request rq = { .method = "GET", .path = "/flush_cache", .body = "",
		                       .query = timeout_query, .query_ctx = "0.1" };
	const int64_t t0 = ws_now_ns();
	ws_serve_handle(serve, &rq, &reply);
	assert_int_equal(reply.status, 400);
	assert_true(ws_now_ns() - t0 >= 90 * WS_NS_PER_MS);
	ws_buf_free(&reply.body);
	rq.query_ctx = "soon";
	ws_serve_handle(serve, &rq, &reply);
	assert_int_equal(reply.status, 400);
	assert_said("query.timeout");
}

ASKING(a_new_version_aborts_requests_unless_told_not_to)
{
	start((struct ws_serve_opts){ .busy = 1 });
	assert_int_equal(ask("POST", "/update_weight_version", "{}"), 400);
	assert_int_equal(ask("POST", "/update_weight_version",
	                     "{\"new_version\":\"v7\",\"abort_all_requests\":false}"), 200);
	assert_int_equal(serve->running, 1);
	assert_string_equal(said(),
	                    "{\"success\":true,\"message\":\"Weight version updated to v7\","
	                    "\"new_version\":\"v7\"}");
	assert_int_equal(ask("POST", "/update_weight_version", "{\"new_version\":\"v8\"}"), 200);
	assert_int_equal(serve->running, 0);
	ask("GET", "/model_info", NULL);
	assert_said("\"weight_version\":\"v8\"");
}

static void *change_version(void *stop)
{
	struct ws_err failed;
	for (unsigned i = 0; !*(_Atomic bool *)stop; i++)
		ws_serve_set_text(serve, &serve->weight_version, i % 2 ? "new" : "old", &failed);
	return NULL;
}

ASKING(one_answer_has_one_version)
{
	static const char first[] =
		"{\"sampling_params\":{\"max_new_tokens\":1},\"input_ids\":[[1]";
	char body[sizeof first + 511 * 4 + 2];
	_Atomic bool stop = false;
	bool mixed = false;
	pthread_t thread;
	size_t len = (size_t)snprintf(body, sizeof body, "%s", first);
	for (unsigned i = 1; i < 512; i++)
		len += (size_t)snprintf(body + len, sizeof body - len, ",[1]");
	snprintf(body + len, sizeof body - len, "]}");
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(pthread_create(&thread, NULL, change_version, &stop), 0);
	for (unsigned i = 0; i < 100 && !mixed; i++) {
		const unsigned status = ask("POST", "/generate", body);
		mixed = status != 200 || (strstr(said(), "\"weight_version\":\"old\"") &&
		                          strstr(said(), "\"weight_version\":\"new\""));
	}
	stop = true;
	pthread_join(thread, NULL);
	assert_false(mixed);
}

struct late {
	pthread_t thread;
	_Atomic bool entered;
	bool writer;
};

static void *enter_late(void *arg)
{
	struct late *l = arg;
	ws_serve_enter_update(serve, false, &l->writer);
	l->entered = true;
	ws_serve_leave_update(serve, l->writer);
	return NULL;
}

ASKING(an_update_outside_of_a_pause_waits_for_running_requests)
{
	start((struct ws_serve_opts){ .busy = 1 });
	struct late l = { 0 };
	assert_int_equal(pthread_create(&l.thread, NULL, enter_late, &l), 0);
	usleep(50000);
	assert_false(l.entered);
	assert_int_equal(ask("POST", "/pause_generation", "{}"), 200);
	pthread_join(l.thread, NULL);
	assert_true(l.entered);
	assert_false(l.writer);
}

/* ---- groups and updates, as far as they go without a network ---- */

ASKING(init_requests_are_checked_field_by_field)
{
	static const struct { const char *body, *says;
	} cases[] = {
		{ "{}", "body.master_address: Field required" },
		{ "{\"master_address\":\"h\",\"master_port\":\"x\"}",
		  "body.master_port: Input should be a valid integer" },
		{ "{\"master_address\":7}", "body.master_address: Input should be a valid string" },
		{ "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1.5}",
		  "body.rank_offset" },
		{ "{\"master_address\":\"h\",\"master_port\":0,\"rank_offset\":1,\"world_size\":2}",
		  "port out of range" },
		{ "{\"master_address\":\"h\",\"master_port\":65536,\"rank_offset\":1,\"world_"
		  "size\":2}",
		  "port out of range" },
		{ "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":"
		  "4097}",
		  "world_size" },
		{ "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":0,\"world_size\":2}",
		  "rank_offset 0" },
		{ "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":-1,\"world_size\":"
		  "2}",
		  "rank_offset -1" },
		{ "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":2,\"world_size\":3,"
		  "\"backend\":\"gloo\"}",
		  "exceed" },
		{ "{\"master_address\":\"h\",\"master_port\":\"1\",\"rank_offset\":1,\"world_"
		  "size\":3}",
		  "doesn't have NCCL built in" },
		{ "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":3,"
		  "\"backend\":\"mpi\"}",
		  "Invalid backend: 'mpi'" },
		{ "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":3,"
		  "\"backend\":\"gloo\",\"group_name\":\"\"}",
		  "group_name" },
		{ "{\"master_address\":\"a\\nb\",\"master_port\":1,\"rank_offset\":1,\"world_"
		  "size\":3,\"backend\":\"gloo\"}",
		  "control or hidden character" },
	};
	start((struct ws_serve_opts){ .tp = 2 });
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_int_equal(ask("POST", "/init_weights_update_group", cases[i].body), 400);
		assert_said(cases[i].says);
	}
	assert_null(serve->groups);
}

ASKING(an_init_that_reaches_nobody_is_refused_and_leaves_no_group)
{
	start((struct ws_serve_opts){ .tp = 2, .init_ns = 200 * WS_NS_PER_MS });
	answers("POST", "/init_weights_update_group",
		"{\"master_address\":\"127.0.0.1\",\"master_port\":1,\"rank_offset\":1,"
		"\"world_size\":3,\"backend\":\"gloo\",\"group_name\":\"g\"}", 400,
		"Failed to initialize custom process group: rank ");
	assert_null(serve->groups);
}

ASKING(groups_that_do_not_exist_are_named)
{
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(ask("POST", "/destroy_weights_update_group", "{\"group_name\":\"g\"}"),
	                 400);
	assert_string_equal(said(), "{\"success\":false,"
	                            "\"message\":\"The group to be destroyed does not exist.\"}");
	assert_int_equal(ask("POST", "/update_weights_from_distributed",
	                     "{\"names\":[],\"dtypes\":[],\"shapes\":[],\"x\":{}}"), 400);
	assert_said("Group weight_update_group not in []. Please call `init_weights_update_group` "
	            "first.");
}

static struct ws_err err;

/* Decodes and checks; the caller frees both. */
static int check(const char *body, struct ws_serve_update *u, struct ws_json **root)
{
	memset(&err, 0, sizeof err);
	*root = ws_json_parse(body, strlen(body), "body", &err);
	assert_non_null(*root);
	if (ws_serve_decode_update(*root, serve->opts.lineage, u, &err))
		return -1;
	return ws_serve_check_update(serve, u, &err);
}

static int load(const char *body)
{
	struct ws_serve_update u;
	struct ws_json *root;
	int rc = check(body, &u, &root);
	if (rc == 0)
		rc = ws_serve_check_load(serve, &u, &err);
	ws_serve_update_fini(&u);
	ws_json_free(root);
	return rc;
}

ASKING(an_update_has_upstreams_defaults)
{
	struct ws_serve_update u;
	struct ws_json *root;
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(
		check("{\"names\":[\"a\",\"b\"],\"dtypes\":[\"bfloat16\",\"long\"],"
	              "\"shapes\":[[2,3],[]],\"load_format\":null,\"weight_version\":null}",
	              &u, &root),
		0);
	assert_true(u.flush);
	assert_false(u.abort_all);
	assert_false(u.flattened);
	assert_null(u.version);
	assert_string_equal(u.group, "weight_update_group");
	assert_int_equal(u.n, 2);
	assert_int_equal(u.slots[0].bytes, 12);
	assert_int_equal(u.slots[1].bytes, 8);
	assert_int_equal(u.bytes, 20);
	ws_serve_update_fini(&u);
	ws_json_free(root);
}

ASKING(updates_are_refused_with_torchs_words)
{
	static const struct { const char *body, *says;
	} cases[] = {
		{ "{\"names\":[\"a\"],\"dtypes\":[],\"shapes\":[[1]]}",
		  "differ in length: 1, 0 and 1" },
		{ "{\"names\":[1],\"dtypes\":[\"float32\"],\"shapes\":[[1]]}", "body.names.0" },
		{ "{\"names\":[\"a\"],\"dtypes\":[null],\"shapes\":[[1]]}", "body.dtypes.0" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"float32\"],\"shapes\":[1]}", "body.shapes.0" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"float32\"],\"shapes\":[[1,\"2\"]]}",
		  "body.shapes.0.1" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"float32\"],\"shapes\":[[1,1,1,1,1,1,1,1,1]]}",
		  "at most 8" },
		{ "{\"names\":\"a\",\"dtypes\":[],\"shapes\":[]}",
		  "body.names: Input should be a valid list" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"torch.bfloat16\"],\"shapes\":[[1]]}",
		  "module 'torch' has no attribute 'torch.bfloat16'" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"BF16\"],\"shapes\":[[1]]}",
		  "no attribute 'BF16'" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"float32\"],\"shapes\":[[2,-1]]}",
		  "negative dimension -1" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"float32\"],\"shapes\":[[1099511627776,"
		  "1099511627776]]}",
		  "overflowed" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"int16\"],\"shapes\":[[1]]}",
		  "Invalid scalar type" },
		{ "{\"names\":[\"a\"],\"dtypes\":[\"float8_e4m3fn\"],\"shapes\":[[1]],\"load_"
		  "format\":\"direct\"}",
		  "Invalid scalar type" },
		{ "{\"names\":[\"a\",\"b\",\"a\"],\"dtypes\":[\"int8\",\"int8\",\"int8\"],"
		  "\"shapes\":[[1],[1],[1]]}",
		  "'a' is named twice" },
		{ "{\"names\":[\"a\",\"b\"],\"dtypes\":[\"uint8\",\"float32\"],\"shapes\":[[3],[1]]"
		  ",\"load_format\":\"flattened_bucket\"}",
		  "self.storage_offset() must be divisible by 4" },
		{ "{\"names\":[],\"dtypes\":[],\"shapes\":[],\"flush_cache\":\"maybe\"}",
		  "valid boolean" },
	};
	start((struct ws_serve_opts){ 0 });
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_int_equal(load(cases[i].body), -1);
		if (!strstr(err.msg, cases[i].says))
			fail_msg("'%s' lacks '%s'", err.msg, cases[i].says);
	}
	assert_int_equal(load("{\"names\":[\"a\",\"b\"],\"dtypes\":[\"float8_e4m3fn\",\"int16\"],"
	                      "\"shapes\":[[4],[1]],\"load_format\":\"flattened_bucket\"}"), 0);
}

ASKING(old_torch_refuses_more)
{
	start((struct ws_serve_opts){ .torch = WS_TORCH_1_13 });
	assert_int_equal(load("{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]]}"),
	                 -1);
	assert_string_equal(err.msg, "Invalid scalar type");
	assert_int_equal(load("{\"names\":[\"a\"],\"dtypes\":[\"bfloat16\"],\"shapes\":[[1]],"
	                      "\"load_format\":\"flattened_bucket\"}"), 0);
	assert_int_equal(load("{\"names\":[\"a\"],\"dtypes\":[\"float8_e5m2\"],\"shapes\":[[1]],"
	                      "\"load_format\":\"flattened_bucket\"}"), -1);
	assert_string_equal(err.msg, "module 'torch' has no attribute 'float8_e5m2'");
}

/* ---- weights ---- */

static void fill_slots(struct ws_serve_slot *slots, char (*names)[16], size_t n)
{
	for (size_t i = 0; i < n; i++) {
		snprintf(names[i], sizeof names[i], "t%zu", i);
		slots[i] = (struct ws_serve_slot){ .name = names[i],
			                           .dtype = WS_DTYPE_F32,
			                           .n_dims = 1,
			                           .dims = { (int64_t)i },
			                           .bytes = 4 * i };
	}
}

ASKING(weights_are_found_and_keep_their_place)
{
	enum { N = 1000 };
	static struct ws_serve_slot slots[N];
	static char names[N][16];
	struct ws_serve_weights w = { 0 };
	uint8_t *block = NULL;
	uint64_t duplicates = 9;
	fill_slots(slots, names, N);
	assert_int_equal(ws_serve_weights_reserve(&w, slots, N, &block, &err), 0);
	assert_non_null(block);
	for (size_t i = 1; i < N; i++)
		assert_ptr_equal(slots[i].data, slots[i - 1].data + slots[i - 1].bytes);
	assert_int_equal(ws_serve_weights_commit(&w, slots, N, block, 1, &duplicates, &err), 0);
	assert_int_equal(duplicates, 0);
	const uint8_t *first = slots[500].data;
	assert_int_equal(ws_serve_weights_reserve(&w, slots + 500, 2, &block, &err), 0);
	assert_null(block);
	assert_ptr_equal(slots[500].data, first);
	assert_int_equal(ws_serve_weights_commit(&w, slots + 500, 2, block, 1, &duplicates, &err),
	                 0);
	assert_int_equal(duplicates, 2);
	assert_int_equal(ws_serve_weights_commit(&w, slots + 500, 2, block, 2, &duplicates, &err),
	                 0);
	assert_int_equal(duplicates, 0);
	assert_int_equal(w.n, N);
	assert_null(ws_serve_weights_find(&w, "t1000"));
	assert_int_equal(ws_serve_weights_find(&w, "t999")->bytes, 3996);
	ws_serve_weights_fini(&w);
}

ASKING(a_tensor_that_changes_its_shape_does_not_load)
{
	struct ws_serve_slot slot = { .name = "a", .dtype = WS_DTYPE_F32, .n_dims = 2,
		                      .dims = { 2, 3 }, .bytes = 24 };
	uint64_t duplicates = 0;
	start((struct ws_serve_opts){ 0 });
	assert_int_equal(ws_serve_weights_commit(&serve->weights, &slot, 1, NULL, 1, &duplicates,
	                                         &err),
	                 0);
	assert_int_equal(load("{\"names\":[\"a\"],\"dtypes\":[\"float32\"],\"shapes\":[[2,3]]}"),
	                 0);
	assert_int_equal(load("{\"names\":[\"a\"],\"dtypes\":[\"float32\"],\"shapes\":[[3,2]]}"),
	                 -1);
	assert_string_equal(err.msg, "shape mismatch for 'a': the parameter is float32 [2, 3], "
	                             "the loaded weight is float32 [3, 2]");
	assert_int_equal(load("{\"names\":[\"a\"],\"dtypes\":[\"int32\"],\"shapes\":[[2,3]]}"), 0);
}

ASKING(a_tensor_that_changes_its_type_moves_where_it_must)
{
	struct ws_serve_slot slot = {
		.name = "a", .dtype = WS_DTYPE_F8_E4M3, .n_dims = 1, .dims = { 8 }, .bytes = 8
	};
	struct ws_serve_weights w = { 0 };
	uint8_t *block, *places[4];
	uint64_t duplicates = 0;
	static const uint64_t bytes[] = { 8, 16, 8, 16 };
	for (size_t i = 0; i < 4; i++) {
		slot.bytes = bytes[i];
		slot.dtype = bytes[i] == 8 ? WS_DTYPE_F8_E4M3 : WS_DTYPE_BF16;
		assert_int_equal(ws_serve_weights_reserve(&w, &slot, 1, &block, &err), 0);
		places[i] = slot.data;
		memset(slot.data, (int)i, (size_t)slot.bytes);
		assert_int_equal(ws_serve_weights_commit(&w, &slot, 1, block, i, &duplicates, &err),
		                 0);
		assert_int_equal(w.items[0].bytes, bytes[i]);
		assert_int_equal(w.items[0].dtype, slot.dtype);
	}
	assert_ptr_not_equal(places[0], places[1]);
	assert_ptr_equal(places[1], places[2]);
	assert_ptr_equal(places[1], places[3]);
	assert_int_equal(w.n_blocks, 2);
	ws_serve_weights_fini(&w);
}

ASKING(the_checker_names_its_algorithm)
{
	struct ws_serve_slot slots[] = {
		{ .name = "b",
		  .dtype = WS_DTYPE_U8,
		  .n_dims = 1,
		  .dims = { 2 },
		  .bytes = 2,
		  .hash = 0xabc },
		{ .name = "a",
		  .dtype = WS_DTYPE_U8,
		  .n_dims = 1,
		  .dims = { 2 },
		  .bytes = 2,
		  .hash = 1 },
	};
	uint64_t duplicates = 0;
	start((struct ws_serve_opts){ .tp = 2, .keep = WS_KEEP_HASH });
	assert_int_equal(ws_serve_weights_commit(&serve->weights, slots, 2, NULL, 1, &duplicates,
	                                         &err),
	                 0);
	assert_int_equal(ask("POST", "/weights_checker", "{\"allow_quant_error\":false}"), 200);
	assert_said("\"algorithm\":\"xxh3-64\"");
	assert_said("{\"checksums\":{\"a\":\"0000000000000001\",\"b\":\"0000000000000abc\"},\"per_"
	            "gpu_checksum\":\"");
	assert_said("\"parallelism_info\":{\"tp_rank\":1,\"tp_size\":2,");
	assert_said("\"per_engine_checksum\":\"");
	assert_int_equal(ask("GET", "/weights_checker", NULL), 200);
	assert_int_equal(ask("POST", "/weights_checker", "{\"action\":\"snapshot\"}"), 400);
	assert_int_equal(ask("GET", "/list_weights", NULL), 200);
	assert_said("\"message\":\"Found 2 weights\",\"weights\":[{\"name\":\"b\",\"shape\":[2],");
	serve->opts.keep = WS_KEEP_NONE;
	assert_int_equal(ask("GET", "/weights_checker", NULL), 400);
}

/* ---- faults and the journal ---- */

ASKING(faults_are_parsed_strictly)
{
	static const char *const bad[] = {
		"",
		"refuse",
		"refuse:health",
		"refuse:nope:1",
		"refuse:health:0",
		"refuse:health:x",
		"break:health:1",
		"flip:health:1",
		"refuse:wire/payload:1",
		"flip:wire/store:1",
		"slow:wire:1",
		"refuse:/health:1",
		":health:1",
		"refuse::1",
		"refuse:health:99999999999",
		"refuse:health:1:a",
		"flip:update_weights_from_distributed:1:",
		"flip:update_weights_from_distributed:1x:a",
		"flip:update_weights_from_distributed:111111111111111111111111:a",
		"corrupt:health:1:flip",
		"corrupt:prepare_weights_update:1:flip",
		"flip:prepare_weights_update:1",
		"corrupt:update_weights_from_disk:1",
		"corrupt:update_weights_from_disk:1:",
		"corrupt:update_weights_from_disk:1:permute",
		"corrupt:update_weights_from_disk:1:flip,at=first",
		"corrupt:update_weights_from_disk:1:flip,at=" /* 61 digits */
		"0000000000000000000000000000000000000000000000000000000000001",
		"corrupt:update_weights_from_disk:1:drop,at=1",
		"corrupt:update_weights_from_disk:1:flip,rank",
		"corrupt:update_weights_from_disk:1:flip,rank=64",
		"corrupt:update_weights_from_disk:1:truncate,bytes=0",
		"corrupt:update_weights_from_disk:1:drop,tensor=",
	};
	struct ws_serve_fault f;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(ws_serve_fault_parse(bad[i], WS_SERVE_LENIENT, &f, &err), -1);
	assert_int_equal(ws_serve_fault_parse("hang:v1/models:12", WS_SERVE_LENIENT, &f, &err), 0);
	assert_int_equal(f.kind, WS_FAULT_HANG);
	assert_string_equal(f.route, "v1/models");
	assert_int_equal(f.call, 12);
	assert_int_equal(ws_serve_fault_parse("flip:update_weights_from_distributed:1",
	                                      WS_SERVE_LENIENT, &f, &err),
	                 0);
	assert_string_equal(f.tensor, "*");
	assert_int_equal(ws_serve_fault_parse("flip:update_weights_from_distributed:2:*.weight",
	                                      WS_SERVE_LENIENT, &f, &err), 0);
	assert_int_equal(f.call, 2);
	assert_string_equal(f.tensor, "*.weight");
	assert_int_equal(f.corrupt.how, WS_CORRUPT_FLIP);
	assert_int_equal(f.corrupt.rank, -1);
	assert_int_equal(
		ws_serve_fault_parse("corrupt:update_weights_from_disk:3:truncate,bytes=7,rank=2,"
	                             "tensor=a,b*",
	                             WS_SERVE_LENIENT, &f, &err),
		0);
	assert_int_equal(f.kind, WS_FAULT_CORRUPT);
	assert_int_equal(f.corrupt.how, WS_CORRUPT_TRUNCATE);
	assert_int_equal(f.corrupt.bytes, 7);
	assert_int_equal(f.corrupt.rank, 2);
	assert_string_equal(f.tensor, "a,b*");
	assert_int_equal(ws_serve_fault_parse("corrupt:update_weights_from_disk:3:permute",
	                                      WS_SERVE_LENIENT, &f, &err),
	                 -1);
	assert_non_null(strstr(err.msg, "use flip, truncate, drop or swap"));
}

static void die_once(void *ctx)
{
	++*(int *)ctx;
}

ASKING(faults_strike_at_their_call_only)
{
	static const char *const faults[] = {
		"refuse:continue_generation:2", "drop:pause_generation:1", "die:health:3",
	};
	int deaths = 0;
	start((struct ws_serve_opts){
		.faults = faults, .n_faults = 3, .die = die_once, .ctx = &deaths });
	assert_int_equal(ask("POST", "/continue_generation", "{}"), 200);
	answers("POST", "/continue_generation", "{}", 400, "refused on request");
	assert_int_equal(ask("POST", "/continue_generation", "{}"), 200);
	ask("POST", "/pause_generation", "{}");
	assert_true(reply.drop);
	assert_false(serve->paused);
	ask("POST", "/pause_generation", "{}");
	assert_false(reply.drop);
	ask("GET", "/health", NULL);
	ask("GET", "/health", NULL);
	assert_int_equal(deaths, 0);
	ask("GET", "/health", NULL);
	assert_int_equal(deaths, 1);
}

ASKING(the_journal_keeps_order_and_flags)
{
	start((struct ws_serve_opts){ 0 });
	ask("POST", "/pause_generation", "{\"mode\":\"retract\"}");
	ask("POST", "/update_weights_from_distributed",
	    "{\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[1]],\"group_name\":\"g\","
	    "\"flush_cache\":false,\"weight_version\":\"9\",\"load_format\":\"flattened_bucket\"}");
	ask("GET", "/no\x01pe", NULL);
	assert_int_equal(ask("GET", "/wsync/journal", NULL), 200);
	struct ws_json *root = ws_json_parse(said(), strlen(said()), "journal", &err);
	assert_non_null(root);
	const struct ws_json *r = ws_json_first(ws_json_get(root, "requests"));
	assert_string_equal(ws_json_get_string(r, "mode", ""), "retract");
	assert_int_equal(ws_json_get_int(r, "status", 0), 200);
	r = ws_json_next(r);
	assert_string_equal(ws_json_get_string(r, "group", ""), "g");
	assert_false(ws_json_get_bool(r, "flush_cache", true));
	assert_string_equal(ws_json_get_string(r, "load_format", ""), "flattened_bucket");
	assert_string_equal(ws_json_get_string(r, "weight_version", ""), "9");
	assert_int_equal(ws_json_get_int(r, "status", 0), 400);
	r = ws_json_next(r);
	assert_string_equal(ws_json_get_string(r, "path", ""), "/no?pe");
	assert_null(ws_json_next(r));
	assert_string_equal(ws_json_get_string(ws_json_get(root, "state"), "mode", ""), "retract");
	ws_json_free(root);
}

ASKING(addresses_to_listen_on_are_checked)
{
	static const char *const bad[] = { "",       "host",       ":1",     "host:",
		                           "host:x", "host:65536", "::1:80", "[::1]" };
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		const struct ws_serve_opts o = { .listen = bad[i] };
		assert_int_equal(ws_serve_new(&o, &serve, &err), -1);
		assert_int_equal(err.code, WS_EUSAGE);
	}
	start((struct ws_serve_opts){ .listen = "[::1]:80" });
	assert_string_equal(serve->host, "::1");
	assert_int_equal(serve->port, 80);
}

RUN_TESTS(NULL, NULL)
