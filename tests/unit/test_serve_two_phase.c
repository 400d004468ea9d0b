/* SPDX-License-Identifier: Apache-2.0 */
/* Two-phase updates: what is received beside the scheduler, and loaded by complete. */
#include "serve_rank0.h"

#include "scratch.h"
#include "serve_model.h"

static const struct ws_serve_opts legacy = { .lineage = WS_SERVE_XORL_LEGACY };
static const struct ws_serve_opts xorl = { .lineage = WS_SERVE_XORL };

static struct ws_serve_opts hasty(enum ws_serve_lineage lineage)
{
	return (struct ws_serve_opts){ .lineage = lineage, .complete_ns = 100 * WS_NS_PER_MS };
}

static void prepare(const char *body, long status, const char *says)
{
	post("/prepare_weights_update", body, status, says);
}

static void complete(const char *body, long status, const char *says)
{
	post("/complete_weights_update", body, status, says);
}

static const char flat[] =
	"{\"names\":[\"w.a\",\"w.b\",\"w.c\",\"w.d\"],"
	"\"dtypes\":[\"float32\",\"bfloat16\",\"int64\",\"uint8\"],"
	"\"shapes\":[[700,100],[3],[],[5]],\"group_name\":\"g\",\"transport\":\"nccl_broadcast\"}";
static const char done[] = "{\"group_name\":\"g\",\"flush_cache\":false}";

static void send_all(void)
{
	struct ws_err err = WS_ERR_INIT;
	if (send_tensors(&err))
		fail_msg("%s", err.msg);
}

static void send_bytes(const void *from, size_t n)
{
	struct ws_err err = WS_ERR_INIT;
	const struct ws_span span = {
		.length = n, .fd = -1, .fill = fill, .ctx = (void *)(uintptr_t)from
	};
	assert_ok(ws_gloo_send(gloo, &(struct ws_payload){ n, &span, 1 }, 1, soon(), &cancel, &err),
	          &err);
}

RANK0_TEST(ready_means_that_the_scheduler_is_free)
{
	start(&legacy);
	form();
	prepare(flat, 200, "{\"status\":\"ready\",\"success\":true,\"message\":");
	post("/pause_generation", "{}", 200, "ok");
	post("/flush_cache", "", 200, "Cache flushed.");
	/* Nothing is live before complete. */
	send_all();
	assert_null(ws_serve_weights_find(&serve->weights, "w.a"));
	complete(done, 200, "Succeeded to update weights via two-phase protocol.");
	assert_non_null(ws_serve_weights_find(&serve->weights, "w.a"));
}

RANK0_TEST(refusals_have_the_servers_words)
{
	start(&xorl);
	prepare(flat, 400, "Group 'g' is not initialized.");
	complete(done, 400, "No weight update is in progress.");
	form();
	prepare("{\"group_name\":\"g\"}", 400, "requires at least one weight bucket");
	prepare("{\"group_name\":\"g\",\"transport\":\"p2p\"}", 400,
	        "supports only NCCL broadcast transport, got 'p2p'");
	prepare("{\"group_name\":\"g\",\"num_buckets\":2,\"buckets\":[]}", 400, "num_buckets is 2");
	prepare("{\"group_name\":\"g\",\"buckets\":3}", 400,
	        "body.buckets: Input should be a valid list");
	prepare("{\"group_name\":\"g\",\"names\":[\"x\"],\"dtypes\":[\"float7\"],\"shapes\":[[1]]}",
	        400, "module 'torch' has no attribute 'float7'");
	complete(done, 400, "module 'torch' has no attribute 'float7'");
	prepare(flat, 200, "Ready");
	prepare(flat, 400,
	        "A weight update is already in progress. Call complete_weights_update first.");
	complete("{\"group_name\":\"other\"}", 400,
	         "Prepared group 'g' does not match completion group 'other'.");
	send_all();
	complete(done, 200, "Success");
}

RANK0_TEST(legacy_has_its_own_words)
{
	start(&legacy);
	complete(done, 400, "No weight update in progress. Call prepare_weights_update first.");
	prepare(flat, 400, "{\"status\":\"error\",\"success\":false,");
}

RANK0_TEST(a_late_sender_is_forgotten_by_legacy)
{
	const struct ws_serve_opts opts = hasty(WS_SERVE_XORL_LEGACY);
	start(&opts);
	form();
	prepare(flat, 200, "Ready");
	complete(done, 400, "Weight receive timed out after 0.1s.");
	complete(done, 400, "No weight update in progress.");
	/* The thread is still there and takes what was meant for it. */
	prepare(flat, 200, "Ready");
	send_all();
	renew_bytes(5);
	send_all();
	complete(done, 200, "Succeeded");
	assert_checksums();
}

RANK0_TEST(a_late_sender_leaves_xorl_prepared)
{
	const struct ws_serve_opts opts = hasty(WS_SERVE_XORL);
	struct post p;
	start(&opts);
	form();
	prepare(flat, 200, "Ready");
	complete(done, 400, "Weight receive timed out after 0.1s.");
	prepare(flat, 400, "already in progress");
	get(&p, "/wsync/journal", 200, "\"prepared\":true");
	send_all();
	complete(done, 200, "Success");
	get(&p, "/wsync/journal", 200, "\"prepared\":false");
}

RANK0_TEST(a_destroyed_group_ends_the_receive)
{
	start(&xorl);
	form();
	prepare(flat, 200, "Ready");
	post("/destroy_weights_update_group", "{\"group_name\":\"g\"}", 200, "Succeeded");
	prepare(flat, 400, "Group 'g' is not initialized.");
	complete(done, 400, "the group was destroyed");
	complete(done, 400, "No weight update is in progress.");
}

RANK0_TEST(an_unknown_load_format_is_refused_by_xorl_at_the_end)
{
	start(&xorl);
	form();
	prepare("{\"names\":[\"w.d\"],\"dtypes\":[\"uint8\"],\"shapes\":[[5]],\"group_name\":\"g\","
	        "\"load_format\":\"hybrid\"}", 200, "Ready");
	send_bytes(bytes_of(3), lengths[3]);
	complete(done, 400, "Unknown load_format=hybrid");
}

static const char config[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                             "\"torch_dtype\":\"bfloat16\","
			     "\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":1,"
                             "\"num_attention_heads\":8,"
			     "\"num_key_value_heads\":4,\"vocab_size\":64}";

RANK0_TEST(direct_goes_past_the_loader)
{
	void *dir = NULL;
	assert_int_equal(scratch_enter(&dir), 0);
	put_text("config.json", config);
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_XORL, .model = "." });
	assert_int_equal(scratch_leave(&dir), 0);
	form();
	prepare("{\"names\":[\"model.layers.0.mlp.gate_up_proj.weight\"],\"dtypes\":[\"bfloat16\"],"
	        "\"shapes\":[[128,32]],\"group_name\":\"g\",\"load_format\":\"direct\"}",
	        200, "Ready");
	send_bytes(bytes, 128 * 32 * 2);
	complete(done, 200, "Success");
	const struct ws_layout *l = serve->model->layout;
	const struct ws_param *p =
		ws_layout_find_param(l, "model.layers.0.mlp.gate_up_proj.weight");
	assert_memory_equal(ws_serve_model_at(serve->model, (size_t)(p - ws_layout_param(l, 0)), 0),
	                    bytes, 128 * 32 * 2);
	prepare("{\"names\":[\"model.layers.0.mlp.gate_proj.weight\"],\"dtypes\":[\"bfloat16\"],"
	        "\"shapes\":[[64,32]],\"group_name\":\"g\",\"load_format\":\"direct\"}",
	        200, "Ready");
	send_bytes(bytes, 64 * 32 * 2);
	complete(done, 400, "'model.layers.0.mlp.gate_proj.weight'");
	prepare("{\"names\":[\"model.norm.weight\"],\"dtypes\":[\"bfloat16\"],"
	        "\"shapes\":[[16]],\"group_name\":\"g\",\"load_format\":\"direct\"}", 200, "Ready");
	send_bytes(bytes, 16 * 2);
	complete(done, 400,
	         "Attempted to load weight (torch.Size([16])) into parameter (torch.Size([32]))");
}

RANK0_TEST(a_stop_ends_a_prepared_receive)
{
	start(&xorl);
	form();
	prepare(flat, 200, "Ready");
	const int64_t t0 = ws_now_ns();
	ws_serve_stop(serve);
	serve = NULL;
	assert_true(ws_now_ns() - t0 < 20 * WS_NS_PER_S);
}

RUN_TESTS(NULL, NULL)
