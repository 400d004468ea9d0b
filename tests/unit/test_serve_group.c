/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded endpoint over real HTTP, with this program as rank 0: store, mesh and broadcasts. */
#include "serve_rank0.h"

/* ---- weights arrive ---- */

RANK0_TEST(both_formats_arrive_and_hashes_are_kept_without_the_bytes)
{
	start(&(struct ws_serve_opts){ .tp = 3, .keep = WS_KEEP_HASH });
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
	assert_null(serve->weights.items[0].data);
	post("/destroy_weights_update_group", "{\"group_name\":\"g\"}", 200,
	     "Succeeded to destroy custom process group.");
	assert_null(serve->groups);
}

/* ---- the order of side effects ---- */

RANK0_TEST(health_answers_while_a_group_forms)
{
	struct post init, p;
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

RANK0_TEST(a_group_name_is_taken_once)
{
	struct post p;
	start(&(struct ws_serve_opts){ 0 });
	form();
	begin_init(&p);
	end(&p, 400, "The specified group name has already been created");
	post("/update_weights_from_distributed",
	     "{\"names\":[],\"dtypes\":[],\"shapes\":[],\"group_name\":\"h\"}", 400,
	     "Group h not in ['g']");
}

RANK0_TEST(a_flush_that_fails_leaves_the_weights_live)
{
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

RANK0_TEST(a_dropped_update_breaks_the_broadcast)
{
	static const char *const faults[] = { "drop:update_weights_from_distributed:1" };
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	start(&(struct ws_serve_opts){ .tp = 2, .faults = faults, .n_faults = 1 });
	form();
	begin(&p, "POST", "/update_weights_from_distributed", "{%s}", tensors);
	send_tensors(&err); /* the small rest may fit into the sockets' buffers */
	end(&p, -1, "");
	begin(&p, "POST", "/update_weights_from_distributed", "{%s}", tensors);
	end(&p, 400, "the group failed before");
	get(&p, "/wsync/journal", 200, "\"fault\":\"drop\"");
}

RANK0_TEST(a_sender_that_dies_is_reported_as_partially_updated)
{
	struct post p;
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

RANK0_TEST(a_stop_ends_whatever_waits)
{
	struct post init, flush;
	start(&(struct ws_serve_opts){ .tp = 2 });
	begin_init(&init);
	await_receiving();
	begin(&flush, "GET", "/flush_cache", "%s", "");
	usleep(50000);
	const int64_t t0 = ws_now_ns();
	ws_serve_stop(serve);
	serve = NULL;
	assert_true(ws_now_ns() - t0 < 20 * WS_NS_PER_S);
	pthread_join(init.thread, NULL);
	pthread_join(flush.thread, NULL);
	assert_int_not_equal(init.status, 200);
	assert_int_not_equal(flush.status, 200);
}

/* ---- receive_weights of xorl-legacy ---- */

RANK0_TEST(types_are_few)
{
	static const char *const types[] = { "float8_e4m3fn", "uint8", "float64" };
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_XORL_LEGACY });
	form();
	for (size_t i = 0; i < 3; i++) {
		struct post p;
		char says[64];
		begin(&p, "POST", "/receive_weights",
		      "{\"num_buckets\":1,\"group_name\":\"g\",\"buckets\":[{\"names\":[\"x\"],"
		      "\"dtypes\":[\"%s\"],\"shapes\":[[1]]}]}", types[i]);
		snprintf(says, sizeof says, "Unknown dtype: %s", types[i]);
		end(&p, 400, says);
	}
}

RANK0_TEST(both_fields_are_required_and_the_group_too)
{
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_XORL_LEGACY, .busy = 1 });
	post("/receive_weights", "{\"buckets\":[]}", 400, "body.num_buckets: Field required");
	post("/receive_weights", "{\"num_buckets\":0}", 400, "body.buckets: Field required");
	post("/pause_generation", "{\"mode\":\"in_place\"}", 200, "ok");
	post("/receive_weights", "{\"num_buckets\":0,\"buckets\":[]}", 400,
	     "Group weight_update_group not in []");
	form();
	post("/receive_weights",
	     "{\"num_buckets\":0,\"buckets\":[],\"group_name\":\"g\",\"free_kv_cache_before_recv\":"
	     "true}",
	     400, "Cannot free KV cache");
}

RUN_TESTS(NULL, NULL)
