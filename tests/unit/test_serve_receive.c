/* SPDX-License-Identifier: Apache-2.0 */
/* receive_weights of xorl-legacy: several buckets in one request, one broadcast at a time. */
#include "serve_rank0.h"

static const char buckets[] =
	"\"num_buckets\":2,\"group_name\":\"g\",\"buckets\":["
	"{\"names\":[\"w.a\",\"w.b\"],\"dtypes\":[\"float32\",\"bfloat16\"],\"shapes\":[[700,100],["
        "3]]},"
	"{\"names\":[\"w.c\",\"w.d\"],\"dtypes\":[\"int64\",\"int8\"],\"shapes\":[[],[5]]}]";

static void receive(const char *more, long status, const char *says)
{
	struct post p;
	struct ws_err err = WS_ERR_INIT;
	begin(&p, "POST", "/receive_weights", "{%s%s}", buckets, more);
	if (send_tensors(&err))
		fail_msg("%s", err.msg);
	end(&p, status, says);
}

static void assert_held(void)
{
	struct post p;
	get(&p, "/wsync/checksums", 200, "xxh3-64");
	for (size_t i = 0; i < TENSORS; i++)
		assert_int_equal(count_hash(p.reply, i), serve->opts.tp);
}

static void push(const struct ws_serve_opts *opts)
{
	start(opts);
	form();
	receive("", 200, "Received and applied 4 weights");
	assert_held();
	renew_bytes(2);
	receive(",\"flush_cache\":true,\"load_format\":\"flattened_bucket\"", 200,
	        "Received and applied 4");
	assert_held();
	assert_int_equal(serve->journal.flushes, 1);
}

static void all_buckets_come_in_one_request(void **state)
{
	(void)state;
	push(&(struct ws_serve_opts){ .lineage = WS_SERVE_XORL_LEGACY });
}

static void to_several_ranks_and_to_hashes_too(void **state)
{
	(void)state;
	push(&(struct ws_serve_opts){ .lineage = WS_SERVE_XORL_LEGACY, .tp = 2 });
	tear_down(state);
	set_up(state);
	push(&(struct ws_serve_opts){ .lineage = WS_SERVE_XORL_LEGACY, .keep = WS_KEEP_HASH });
}

static void types_are_few(void **state)
{
	static const char *const types[] = { "float8_e4m3fn", "uint8", "float64" };
	(void)state;
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

static void both_fields_are_required_and_the_group_too(void **state)
{
	(void)state;
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

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(all_buckets_come_in_one_request),
		TEST(to_several_ranks_and_to_hashes_too),
		TEST(types_are_few),
		TEST(both_fields_are_required_and_the_group_too),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
