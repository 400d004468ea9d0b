/* SPDX-License-Identifier: Apache-2.0 */
/* The embedded endpoint over real HTTP, with this program as rank 0: store, mesh and broadcasts. */
#include "serve_rank0.h"

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
	(void)state;
	start(&(struct ws_serve_opts){ .tp = 2, .faults = faults, .n_faults = 1 });
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
		T(a_flipped_byte_shows_in_the_checksums),
		T(a_dropped_update_breaks_the_broadcast),
		T(a_sender_that_dies_is_reported_as_partially_updated),
		T(a_stop_ends_whatever_waits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
