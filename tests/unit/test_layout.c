/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes and places that were worked out by hand from what SGLang's layers do. */
#include "checkpoint.h"
#include "scratch.h"
#include "test.h"
#include "wsync/tool/layout.h"
#include "wsync/tool/source.h"

static struct ws_namemap *maps, *own;
static struct ws_config *config;
static struct ws_layout *layout;

static void forget_layout(void)
{
	ws_layout_free(layout);
	ws_config_free(config);
	layout = NULL;
	config = NULL;
}

static int try_layout(const char *json, const struct ws_layout_opts *opts, struct ws_err *err)
{
	forget_layout();
	if (ws_config_parse(json, strlen(json), "config.json", &config, err) < 0)
		return -1;
	const struct ws_family *f = ws_namemap_find(own ? own : maps, config);
	assert_non_null(f);
	return ws_layout_make(f, config, opts, &layout, err);
}

static void make_layout(const char *json, struct ws_layout_opts opts)
{
	struct ws_err err = WS_ERR_INIT;
	if (try_layout(json, &opts, &err) < 0)
		fail_msg("%s", err.msg);
}

static const char *shape_text(unsigned n, const int64_t *dims)
{
	static char text[128];
	size_t len = 0;
	for (unsigned d = 0; d < n; d++)
		len += (size_t)snprintf(text + len, sizeof text - len, d ? " %lld" : "%lld",
		                        (long long)dims[d]);
	text[len] = '\0';
	return text;
}

static const struct ws_param *param(const char *name)
{
	const struct ws_param *q = ws_layout_find_param(layout, name);
	if (!q)
		fail_msg("no parameter %s", name);
	return q;
}

static const struct ws_part *part(const char *name)
{
	const struct ws_part *p = ws_layout_find_part(layout, name);
	if (!p)
		fail_msg("no part %s", name);
	return p;
}

static void expect_param(const char *name, const char *dims)
{
	const struct ws_param *q = param(name);
	if (q->trouble)
		fail_msg("%s: %s", name, q->trouble);
	assert_string_equal(shape_text(q->n_dims, q->dims), dims);
}

static void expect_part(const char *name, const char *dims, const char *of)
{
	const struct ws_part *p = part(name);
	assert_string_equal(shape_text(p->n_dims, p->dims), dims);
	assert_string_equal(ws_layout_param(layout, p->param)->name, of);
}

static void expect_trouble(const char *name, const char *why)
{
	const char *trouble = param(name)->trouble;
	assert_non_null(trouble);
	assert_string_equal(trouble, why);
}

/* "256 0 + 128 2048 -> 1024 0 + 128 2048": where it is in the part and in the param, and sizes. */
static void expect_place(const char *name, unsigned rank, const char *expected)
{
	struct ws_box from, to;
	char text[600];
	ws_layout_place(layout, part(name), rank, &from, &to);
	size_t n = (size_t)snprintf(text, sizeof text, "%s", shape_text(from.n_dims, from.at));
	n += (size_t)snprintf(text + n, sizeof text - n, " + %s",
	                      shape_text(from.n_dims, from.size));
	n += (size_t)snprintf(text + n, sizeof text - n, " -> %s", shape_text(to.n_dims, to.at));
	snprintf(text + n, sizeof text - n, " + %s", shape_text(to.n_dims, to.size));
	assert_string_equal(text, expected);
}

#define QWEN3_30B                                                                                  \
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_"      \
	"size\":2048,"                                                                             \
	"\"intermediate_size\":6144,\"moe_intermediate_size\":768,\"num_hidden_layers\":2,"        \
	"\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,\"num_experts\":"   \
	"128,"                                                                                     \
	"\"num_experts_per_tok\":8,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"              \
	"\"vocab_size\":151936,\"tie_word_embeddings\":false}"

#define LAYER0 "model.layers.0."

TEST(attention_has_a_tp_of_its_own)
{
	make_layout(QWEN3_30B, (struct ws_layout_opts){ .tp = 8, .attention_tp = 2, .rank = 3 });
	expect_param(LAYER0 "self_attn.qkv_proj.weight", "2560 2048");
	expect_param(LAYER0 "mlp.experts.w2_weight", "128 2048 96");
	expect_place(LAYER0 "self_attn.k_proj.weight", 3, "256 0 + 256 2048 -> 2048 0 + 256 2048");
	expect_place(LAYER0 "self_attn.k_proj.weight", 4, "0 0 + 256 2048 -> 2048 0 + 256 2048");
}

TEST(experts_are_divided_by_ep_first)
{
	static const struct {
		unsigned ep;
		const char *w13, *w2;
	} sizes[] = { { 2, "64 384 2048", "64 2048 192" }, { 4, "32 768 2048", "32 2048 384" },
		      { 8, "16 1536 2048", "16 2048 768" } };
	for (size_t i = 0; i < 3; i++) {
		make_layout(QWEN3_30B, (struct ws_layout_opts){ .tp = 8, .ep = sizes[i].ep });
		expect_param(LAYER0 "mlp.experts.w13_weight", sizes[i].w13);
		expect_param(LAYER0 "mlp.experts.w2_weight", sizes[i].w2);
	}
	expect_place(LAYER0 "mlp.experts.17.up_proj.weight", 1,
	             "0 0 + 768 2048 -> 1 768 0 + 1 768 2048");
	expect_place(LAYER0 "mlp.experts.17.up_proj.weight", 2, "0 0 + 0 0 -> 0 0 0 + 0 0 0");
	make_layout(QWEN3_30B, (struct ws_layout_opts){ .tp = 8, .ep = 4 });
	expect_place(LAYER0 "mlp.experts.33.up_proj.weight", 3,
	             "384 0 + 384 2048 -> 1 384 0 + 1 384 2048");
}

#define LLAMA(vocab, more) \
	"{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":512," \
	"\"intermediate_size\":1024,\"num_hidden_layers\":1,\"num_attention_heads\":8," \
	"\"num_key_value_heads\":2,\"vocab_size\":" vocab more "}"

TEST(a_tied_head_is_the_embedding_and_optional)
{
	make_layout(LLAMA("128", ",\"tie_word_embeddings\":true"), (struct ws_layout_opts){ 0 });
	assert_true(ws_layout_tied(layout));
	assert_string_equal(param("lm_head.weight")->tied_to, "model.embed_tokens.weight");
	assert_true(part("lm_head.weight")->optional);
	assert_false(part("model.embed_tokens.weight")->optional);
	make_layout(LLAMA("128", ""), (struct ws_layout_opts){ 0 });
	assert_null(param("lm_head.weight")->tied_to);
	assert_false(ws_layout_tied(layout));
}

TEST(biases_go_with_their_weights)
{
	make_layout(LLAMA("128", ",\"attention_bias\":true"), (struct ws_layout_opts){ .tp = 4 });
	expect_param(LAYER0 "self_attn.qkv_proj.bias", "256");
	expect_part(LAYER0 "self_attn.v_proj.bias", "128", LAYER0 "self_attn.qkv_proj.bias");
	expect_place(LAYER0 "self_attn.v_proj.bias", 2, "64 + 64 -> 192 + 64");
	expect_param(LAYER0 "self_attn.o_proj.bias", "512");
	expect_place(LAYER0 "self_attn.o_proj.bias", 3, "0 + 512 -> 0 + 512");
}

TEST(what_does_not_divide_is_trouble_with_its_numbers)
{
	make_layout(LLAMA("128", ""), (struct ws_layout_opts){ .tp = 6 });
	expect_trouble(LAYER0 "self_attn.qkv_proj.weight", "q_proj: 8 heads do not divide by tp 6");
	expect_trouble(LAYER0 "self_attn.o_proj.weight", "o_proj: 8 heads do not divide by tp 6");
	expect_trouble(LAYER0 "mlp.gate_up_proj.weight",
	               "gate_proj: 1024 rows do not divide by tp 6");
	expect_trouble(LAYER0 "mlp.down_proj.weight",
	               "down_proj: 1024 columns do not divide by tp 6");
	expect_param("lm_head.weight", "64 512");
	assert_string_equal(shape_text(2, param(LAYER0 "mlp.gate_up_proj.weight")->dims),
	                    "2048 512");
	expect_place(LAYER0 "mlp.up_proj.weight", 5, "0 0 + 1024 512 -> 1024 0 + 1024 512");
	make_layout(LLAMA("128", ""), (struct ws_layout_opts){ .tp = 16 });
	expect_trouble(LAYER0 "self_attn.qkv_proj.weight",
	               "q_proj: 8 heads do not divide by tp 16");
	make_layout("{\"model_type\":\"llama\",\"hidden_size\":768,\"intermediate_size\":768,"
	            "\"num_hidden_layers\":1,\"num_attention_heads\":12,\"num_key_value_heads\":4,"
	            "\"vocab_size\":192}", (struct ws_layout_opts){ .tp = 6 });
	expect_trouble(LAYER0 "self_attn.qkv_proj.weight",
	               "k_proj: 4 heads and tp 6: neither number divides the other");
	make_layout(QWEN3_30B, (struct ws_layout_opts){ .tp = 6, .ep = 6 });
	expect_trouble(LAYER0 "mlp.experts.w2_weight", "128 experts do not divide by ep 6");
	make_layout(QWEN3_30B, (struct ws_layout_opts){ .tp = 20, .ep = 2 });
	expect_trouble(LAYER0 "mlp.experts.w2_weight",
	               "768 rows of an expert do not divide by tp / ep 10");
}

#define DEEPSEEK(more)                                                                             \
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","           \
	"\"hidden_size\":7168,\"intermediate_size\":18432,\"moe_intermediate_size\":2048,"         \
	"\"num_hidden_layers\":4,\"first_k_dense_replace\":3,\"moe_layer_freq\":1,"                \
	"\"n_routed_experts\":256,\"n_shared_experts\":1,\"num_experts_per_tok\":8,"               \
	"\"num_attention_heads\":128,\"q_lora_rank\":1536,\"kv_lora_rank\":512,"                   \
	"\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"vocab_size\":"      \
	"129280,"                                                                                  \
	"\"tie_word_embeddings\":false,\"num_nextn_predict_layers\":1" more "}"
#define FP8 \
	",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\"," \
	"\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]"

TEST(latent_attention_of_deepseek)
{
	make_layout(DEEPSEEK(""), (struct ws_layout_opts){ .tp = 8 });
	expect_param(LAYER0 "self_attn.fused_qkv_a_proj_with_mqa.weight", "2112 7168");
	expect_place(LAYER0 "self_attn.kv_a_proj_with_mqa.weight", 5,
	             "0 0 + 576 7168 -> 1536 0 + 576 7168");
	expect_param(LAYER0 "self_attn.q_b_proj.weight", "3072 1536");
	expect_param(LAYER0 "self_attn.kv_b_proj.weight", "4096 512");
	expect_param(LAYER0 "self_attn.o_proj.weight", "7168 2048");
	expect_param(LAYER0 "mlp.gate_up_proj.weight", "4608 7168");
	expect_param("model.layers.3.mlp.experts.w13_weight", "256 512 7168");
	expect_param("model.layers.3.mlp.shared_experts.gate_up_proj.weight", "512 7168");
	expect_param("model.layers.3.mlp.shared_experts.down_proj.weight", "7168 256");
	const struct ws_part *bias = part("model.layers.3.mlp.gate.e_score_correction_bias");
	assert_int_equal(bias->dtype, WS_DTYPE_F32);
	assert_true(bias->exact);
	assert_false(part("model.norm.weight")->exact);
	make_layout(DEEPSEEK(""), (struct ws_layout_opts){ .tp = 8, .attention_tp = 1 });
	expect_param(LAYER0 "self_attn.o_proj.weight", "7168 16384");
	expect_param(LAYER0 "mlp.gate_up_proj.weight", "4608 7168");
}

TEST(shared_experts_can_follow_the_routed_ones)
{
	make_layout(DEEPSEEK(FP8 "}"), (struct ws_layout_opts){ .tp = 8, .fuse_shared = true });
	expect_param("model.layers.3.mlp.experts.w13_weight", "257 512 7168");
	expect_param("model.layers.3.mlp.experts.w2_weight_scale_inv", "257 56 2");
	assert_null(
		ws_layout_find_param(layout, "model.layers.3.mlp.shared_experts.down_proj.weight"));
	expect_place("model.layers.3.mlp.shared_experts.up_proj.weight", 1,
	             "256 0 + 256 7168 -> 256 256 0 + 1 256 7168");
	make_layout(DEEPSEEK(""), (struct ws_layout_opts){ .tp = 8, .ep = 8, .fuse_shared = true });
	expect_param("model.layers.3.mlp.experts.w13_weight", "33 4096 7168");
	expect_place("model.layers.3.mlp.shared_experts.up_proj.weight", 6,
	             "0 0 + 2048 7168 -> 32 2048 0 + 1 2048 7168");
}

TEST(scales_are_divided_with_their_weights)
{
	make_layout(DEEPSEEK(FP8 "}"), (struct ws_layout_opts){ .tp = 8 });
	expect_param(LAYER0 "self_attn.fused_qkv_a_proj_with_mqa.weight_scale_inv", "17 56");
	expect_place(LAYER0 "self_attn.kv_a_proj_with_mqa.weight_scale_inv", 7,
	             "0 0 + 5 56 -> 12 0 + 5 56");
	expect_param(LAYER0 "self_attn.q_b_proj.weight_scale_inv", "24 12");
	expect_place(LAYER0 "self_attn.o_proj.weight_scale_inv", 1, "0 16 + 56 16 -> 0 0 + 56 16");
	expect_param("model.layers.3.mlp.experts.w13_weight_scale_inv", "256 4 56");
	expect_place("model.layers.3.mlp.experts.255.up_proj.weight_scale_inv", 3,
	             "6 0 + 2 56 -> 255 2 0 + 1 2 56");
	assert_int_equal(part(LAYER0 "mlp.down_proj.weight")->dtype, WS_DTYPE_F8_E4M3);
	assert_true(part(LAYER0 "mlp.down_proj.weight")->exact);
	assert_int_equal(part(LAYER0 "mlp.down_proj.weight_scale_inv")->dtype, WS_DTYPE_F32);
	assert_false(part(LAYER0 "mlp.down_proj.weight_scale_inv")->exact);
	assert_null(ws_layout_find_part(layout, "lm_head.weight_scale_inv"));
	assert_null(ws_layout_find_part(layout, "model.layers.3.mlp.gate.weight_scale_inv"));
	make_layout(DEEPSEEK(FP8 "}"), (struct ws_layout_opts){ .unquantized = true });
	assert_null(ws_layout_find_part(layout, LAYER0 "mlp.down_proj.weight_scale_inv"));
}

TEST(a_tensor_s_one_scale_is_at_every_rank)
{
	static const char tensors[] =
		DEEPSEEK(",\"quantization_config\":{\"quant_method\":\"fp8\"}");
	make_layout(tensors, (struct ws_layout_opts){ .tp = 8 });
	expect_param(LAYER0 "self_attn.fused_qkv_a_proj_with_mqa.weight_scale", "2");
	expect_place(LAYER0 "self_attn.kv_a_proj_with_mqa.weight_scale", 7, "0 + 1 -> 1 + 1");
	expect_param(LAYER0 "self_attn.o_proj.weight_scale", "1");
	expect_place(LAYER0 "self_attn.o_proj.weight_scale", 5, "0 + 1 -> 0 + 1");
	expect_place(LAYER0 "mlp.up_proj.weight_scale", 3, "0 + 1 -> 1 + 1");
	assert_int_equal(part(LAYER0 "mlp.up_proj.weight")->dtype, WS_DTYPE_F8_E4M3);
	assert_null(ws_layout_find_part(layout, LAYER0 "mlp.up_proj.weight_scale_inv"));
	expect_param("model.layers.3.mlp.experts.w13_weight_scale", "256 2");
	expect_param("model.layers.3.mlp.experts.w2_weight_scale", "256");
	make_layout(tensors, (struct ws_layout_opts){ .tp = 8, .ep = 4 });
	expect_param("model.layers.3.mlp.experts.w13_weight_scale", "64 2");
	expect_place("model.layers.3.mlp.experts.70.up_proj.weight_scale", 3, "0 + 1 -> 6 1 + 1 1");
	expect_place("model.layers.3.mlp.experts.70.up_proj.weight_scale", 4, "0 + 0 -> 0 0 + 0 0");
	expect_place("model.layers.3.mlp.experts.70.down_proj.weight_scale", 2, "0 + 1 -> 6 + 1");
	/* What is no multiple of any block is none here either. */
	make_layout("{\"model_type\":\"llama\",\"hidden_size\":200,\"intermediate_size\":200,"
	            "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"head_dim\":100,"
	            "\"vocab_size\":64,\"quantization_config\":{\"quant_method\":\"fp8\"}}",
	            (struct ws_layout_opts){ .tp = 2 });
	expect_param(LAYER0 "self_attn.qkv_proj.weight_scale", "3");
	expect_param(LAYER0 "mlp.down_proj.weight", "200 100");
}

TEST(heads_smaller_than_a_block_share_their_scales)
{
	make_layout(LLAMA("128", FP8 "}"), (struct ws_layout_opts){ 0 });
	expect_param(LAYER0 "self_attn.qkv_proj.weight_scale_inv", "6 4");
	make_layout(LLAMA("128", FP8 "}"), (struct ws_layout_opts){ .tp = 2 });
	expect_trouble(
		LAYER0 "self_attn.qkv_proj.weight",
		"k_proj: 64 rows of 128 at each rank are no multiple of the FP8 block's 128");
	expect_trouble(
		LAYER0 "self_attn.qkv_proj.weight_scale_inv",
		"k_proj: 64 rows of 128 at each rank are no multiple of the FP8 block's 128");
	expect_param(LAYER0 "self_attn.o_proj.weight_scale_inv", "4 2");
	make_layout(LLAMA("128", FP8 "}"), (struct ws_layout_opts){ .tp = 8 });
	expect_trouble(
		LAYER0 "self_attn.o_proj.weight",
		"o_proj: 64 columns of 512 at each rank are no multiple of the FP8 block's 128");
}

TEST(blocks_must_divide_what_is_stacked_even_at_tp_1)
{
	static const char llama[] =
		"{\"model_type\":\"llama\",\"hidden_size\":200,\"intermediate_size\":200,"
		"\"num_hidden_layers\":1,\"num_attention_heads\":1,\"head_dim\":128,\"vocab_size\":"
	        "64" FP8 "}}";
	make_layout(llama, (struct ws_layout_opts){ 0 });
	expect_trouble(LAYER0 "mlp.gate_up_proj.weight",
	               "gate_proj: 200 rows are no multiple of the FP8 block's 128");
	expect_param(LAYER0 "mlp.down_proj.weight_scale_inv", "2 2");
	expect_param(LAYER0 "self_attn.qkv_proj.weight_scale_inv", "3 2");
}

TEST(modules_left_out_of_quantization_have_no_scales)
{
	make_layout(LLAMA("128", FP8 ",\"modules_to_not_convert\":[\"lm_head\",\"" LAYER0
	                  "mlp.down_proj\"]}"), (struct ws_layout_opts){ 0 });
	assert_null(ws_layout_find_param(layout, LAYER0 "mlp.down_proj.weight_scale_inv"));
	assert_int_equal(part(LAYER0 "mlp.down_proj.weight")->dtype, WS_DTYPE_BF16);
	assert_non_null(ws_layout_find_param(layout, LAYER0 "mlp.gate_up_proj.weight_scale_inv"));
	make_layout(LLAMA("128", FP8 ",\"modules_to_not_convert\":[\"" LAYER0 "mlp.up_proj\"]}"),
	            (struct ws_layout_opts){ 0 });
	expect_trouble(LAYER0 "mlp.gate_up_proj.weight", "gate_proj is in FP8 and up_proj is not");
	make_layout(LLAMA("128",
	                  FP8 ",\"modules_to_not_convert\":[\"" LAYER0 "mlp.gate_up_proj\"]}"),
	            (struct ws_layout_opts){ 0 });
	expect_param(LAYER0 "mlp.gate_up_proj.weight", "2048 512");
	assert_null(ws_layout_find_param(layout, LAYER0 "mlp.gate_up_proj.weight_scale_inv"));
}

TEST(next_token_layers_are_the_drafts)
{
	make_layout(DEEPSEEK(""), (struct ws_layout_opts){ 0 });
	assert_null(ws_layout_find_part(layout, "model.layers.4.input_layernorm.weight"));
	assert_non_null(ws_layout_skips(layout, "model.layers.4.input_layernorm.weight"));
	assert_null(ws_layout_skips(layout, "model.layers.3.input_layernorm.weight"));
	assert_null(ws_layout_skips(layout, "model.layers.5.input_layernorm.weight"));
	make_layout(DEEPSEEK(""), (struct ws_layout_opts){ .nextn = true });
	assert_null(ws_layout_skips(layout, "model.layers.4.input_layernorm.weight"));
	assert_non_null(ws_layout_find_part(layout, "model.layers.4.input_layernorm.weight"));
	assert_non_null(ws_layout_skips(layout, "model.layers.0.self_attn.rotary_emb.inv_freq"));
}

TEST(aliases_have_several_meanings_in_order)
{
	make_layout(QWEN3_30B, (struct ws_layout_opts){ 0 });
	const char *name = LAYER0 "mlp.experts.gate_up_proj";
	const struct ws_alias *a = ws_layout_find_alias(layout, name, 0);
	assert_non_null(a);
	assert_string_equal(ws_layout_param(layout, a->param)->name,
	                    LAYER0 "mlp.experts.w13_weight");
	assert_int_equal(a->n_dims, 3);
	assert_true(a->order[0] == 0 && a->order[1] == 2 && a->order[2] == 1);
	a = ws_layout_find_alias(layout, name, 1);
	assert_non_null(a);
	assert_true(a->order[0] == 0 && a->order[1] == 1 && a->order[2] == 2);
	assert_null(ws_layout_find_alias(layout, name, 2));
	assert_null(ws_layout_find_alias(layout, "nothing", 0));
}

TEST(rules_are_readable)
{
	make_layout(QWEN3_30B, (struct ws_layout_opts){ 0 });
	assert_string_equal(ws_layout_rule(layout, part(LAYER0 "self_attn.k_proj.weight")->rule),
	                    "column self_attn.qkv_proj <- q_proj k_proj v_proj");
	assert_string_equal(ws_layout_rule(layout,
	                                   part(LAYER0 "mlp.experts.0.up_proj.weight")->rule),
	                    "experts mlp.experts <- gate_proj up_proj down_proj");
	assert_string_equal(ws_layout_rule(layout, UINT32_MAX), "");
}

TEST(stacked_experts_of_gpt_oss)
{
	static const char oss[] =
		"{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\","
		"\"hidden_size\":2880,\"intermediate_size\":2880,\"num_hidden_layers\":1,"
		"\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,"
		"\"num_local_experts\":32,\"vocab_size\":201088,"
		"\"quantization_config\":{\"quant_method\":\"mxfp4\"}}";
	make_layout(oss, (struct ws_layout_opts){ .tp = 4 });
	expect_param(LAYER0 "mlp.experts.w13_weight", "32 1472 1440");
	expect_place(LAYER0 "mlp.experts.gate_up_proj_blocks", 3,
	             "0 4416 0 0 + 32 1344 90 16 -> 0 0 0 + 32 1344 1440");
	expect_param(LAYER0 "mlp.experts.w2_weight", "32 2880 368");
	expect_place(LAYER0 "mlp.experts.down_proj_blocks", 3,
	             "0 0 69 0 + 32 2880 21 16 -> 0 0 0 + 32 2880 336");
	make_layout(oss, (struct ws_layout_opts){ .tp = 4, .ep = 4 });
	expect_param(LAYER0 "mlp.experts.w13_weight", "8 5760 1440");
	expect_place(LAYER0 "mlp.experts.gate_up_proj_blocks", 2,
	             "16 0 0 0 + 8 5760 90 16 -> 0 0 0 + 8 5760 1440");
	make_layout(oss, (struct ws_layout_opts){ .tp = 4, .unquantized = true });
	expect_param(LAYER0 "mlp.experts.w13_weight", "32 1440 2880");
	assert_true(part(LAYER0 "mlp.experts.gate_up_proj")->transposed);
	expect_place(LAYER0 "mlp.experts.gate_up_proj", 1,
	             "0 0 1440 + 32 2880 1440 -> 0 0 0 + 32 1440 2880");
	make_layout(oss, (struct ws_layout_opts){ .tp = 10, .ep = 5 });
	expect_trouble(LAYER0 "mlp.experts.w2_weight", "32 experts do not divide by ep 5");
}

static void expect_failure(const char *json, struct ws_layout_opts opts, enum ws_code code,
                           const char *text)
{
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(try_layout(json, &opts, &err), -1);
	assert_int_equal(err.code, code);
	if (!strstr(err.msg, text))
		fail_msg("\"%s\" does not say \"%s\"", err.msg, text);
}

TEST(what_cannot_be_is_refused_with_its_reason)
{
	expect_failure("{\"model_type\":\"llama\"}", (struct ws_layout_opts){ 0 }, WS_EINPUT,
	               "has no \"");
	expect_failure(LLAMA("0", ""), (struct ws_layout_opts){ 0 }, WS_EINPUT, "come to 0");
	expect_failure(LLAMA("9007199254740991", ""), (struct ws_layout_opts){ 0 }, WS_EINPUT,
	               "come to");
	expect_failure(LLAMA("64", ",\"quantization_config\":{\"quant_method\":\"awq\"}"),
	               (struct ws_layout_opts){ 0 }, WS_EINPUT, "\"awq\"");
	expect_failure(LLAMA("64", ""), (struct ws_layout_opts){ .tp = 8, .ep = 3 }, WS_EUSAGE,
	               "ep 3");
	expect_failure(LLAMA("64", ""), (struct ws_layout_opts){ .tp = 8, .attention_tp = 5 },
	               WS_EUSAGE, "attention tp 5");
	expect_failure(LLAMA("64", ""), (struct ws_layout_opts){ .tp = 2, .rank = 2 }, WS_EUSAGE,
	               "rank 2");
	expect_failure(
		"{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":8,"
		"\"num_attention_heads\":1,\"vocab_size\":8,\"num_hidden_layers\":4000000000}",
		(struct ws_layout_opts){ 0 }, WS_EINPUT, "more than");
	expect_failure(
		"{\"model_type\":\"llama\",\"hidden_size\":1099511627776,"
		"\"intermediate_size\":1099511627776,\"num_attention_heads\":1,\"vocab_size\":8,"
		"\"num_hidden_layers\":1}",
		(struct ws_layout_opts){ 0 }, WS_EINPUT, "2^59");
}

static void open_own_map(const char *text)
{
	struct ws_err err = WS_ERR_INIT;
	put_text("own.map", text);
	assert_ok(ws_namemap_open("own.map", &own, &err), &err);
}

static int leave_own_map(void **state)
{
	forget_layout();
	ws_namemap_close(own);
	own = NULL;
	return scratch_leave(state);
}

#define WITH_OWN_MAP(test) TEST_BETWEEN(test, scratch_enter, leave_own_map)

WITH_OWN_MAP(kinds_of_rules_that_no_family_combines)
{
	open_own_map("family own\ntype own\n"
	             "group layers.{l} for l < 2\n"
	             "  column ab in 6 bias 1\n"
	             "  + a out 8\n"
	             "  + b out 4\n"
	             "  replicated r in 6 out 3 bias 1 optional\n"
	             "  split k_norm.weight [8] heads 2\n"
	             "  experts x count 4 in 6 mid 8\n"
	             "  experts y count 4 in 6 mid 8 nongated\n"
	             "  shared s count 1 in 6 mid 8 into x\n"
	             "  shared t count 2 in 6 mid 8 into x\n"
	             "  stack packed [4, 6] uint8 <- loose [4, 3, 2] uint8 axis 0\n"
	             "  stack whole [24] float32 <- parted [4, 6] float32\n"
	             "  alias trained of ab.weight groups 2\n"
	             "  skip idle.{n} \"only in training\" when l == 1\n"
	             "end\n");
	make_layout("{\"model_type\":\"own\"}",
	            (struct ws_layout_opts){ .tp = 4, .fuse_shared = true });
	expect_param("layers.1.ab.weight", "3 6");
	expect_place("layers.1.b.weight", 2, "2 0 + 1 6 -> 2 0 + 1 6");
	expect_place("layers.1.b.bias", 2, "2 + 1 -> 2 + 1");
	expect_param("layers.1.r.bias", "3");
	assert_true(part("layers.1.r.bias")->optional);
	expect_place("layers.1.k_norm.weight", 3, "4 + 4 -> 0 + 4");
	expect_param("layers.0.x.w13_weight", "5 4 6");
	expect_param("layers.0.y.w13_weight", "4 2 6");
	expect_place("layers.0.s.up_proj.weight", 1, "2 0 + 2 6 -> 4 2 0 + 1 2 6");
	expect_place("layers.0.y.3.up_proj.weight", 1, "2 0 + 2 6 -> 3 0 0 + 1 2 6");
	expect_part("layers.0.t.up_proj.weight", "16 6", "layers.0.t.gate_up_proj.weight");
	expect_place("layers.0.loose", 3, "3 0 0 + 1 3 2 -> 0 0 + 1 6");
	expect_param("layers.0.whole", "24");
	expect_place("layers.0.parted", 3, "0 0 + 4 6 -> 0 + 24");
	assert_int_equal(ws_layout_find_alias(layout, "layers.1.trained", 0)->groups, 2);
	assert_null(ws_layout_skips(layout, "layers.0.idle.x"));
	assert_string_equal(ws_layout_skips(layout, "layers.1.idle.x"), "only in training");
	make_layout("{\"model_type\":\"own\"}", (struct ws_layout_opts){ .tp = 3 });
	expect_trouble("layers.0.packed", "4 along axis 0 do not divide by tp 3");
	expect_trouble("layers.0.k_norm.weight",
	               "2 heads and tp 3: neither number divides the other");
	expect_trouble("layers.0.s.down_proj.weight", "down_proj: 8 columns do not divide by tp 3");
}

WITH_OWN_MAP(two_rules_for_one_name_are_an_error)
{
	open_own_map("family own\ntype own\nwhole norm.weight [8]\ngroup norm\n  whole weight "
	             "[8]\nend\n");
	expect_failure("{\"model_type\":\"own\"}", (struct ws_layout_opts){ 0 }, WS_EINPUT,
	               "\"norm.weight\" has two rules");
}

WITH_OWN_MAP(shared_experts_without_routed_ones_are_a_layer)
{
	open_own_map("family own\ntype own\n"
	             "experts x count 4 in 6 mid 8\nshared s count 1 in 6 mid 4 into x\n");
	make_layout("{\"model_type\":\"own\"}",
	            (struct ws_layout_opts){ .tp = 2, .fuse_shared = true });
	expect_param("x.w13_weight", "4 8 6");
	expect_param("s.gate_up_proj.weight", "4 6");
}

/* A synthetic model's checkpoint has the names and shapes of the true one. */
TEST(synthetic_models_have_exactly_these_parts)
{
	const char *model;
	for (size_t i = 0; (model = ws_synthetic_name(i)); i++) {
		struct ws_err err = WS_ERR_INIT;
		struct ws_source *s = NULL;
		struct ws_buf json;
		char path[128];
		const char *const paths[] = { path };
		size_t met = 0;
		ws_buf_init(&json, 1 << 20);
		snprintf(path, sizeof path, "synthetic:%s", model);
		assert_int_equal(ws_synthetic_config(model, &json, &err), 0);
		assert_int_equal(ws_source_open(paths, 1, &s, &err), 0);
		make_layout(json.data, (struct ws_layout_opts){ .tp = 1 });
		for (size_t t = 0; t < ws_source_count(s); t++) {
			const struct ws_tensor *x = ws_source_tensor(s, t);
			if (ws_layout_skips(layout, x->name))
				continue;
			const struct ws_part *p = part(x->name);
			if (p->n_dims != x->n_dims || memcmp(p->dims, x->dims, sizeof p->dims) != 0)
				fail_msg("%s: %s: another shape", model, x->name);
			if (p->exact && p->dtype != x->dtype)
				fail_msg("%s: %s: another type", model, x->name);
			met++;
		}
		for (size_t p = 0; p < ws_layout_part_count(layout); p++)
			met += ws_layout_part(layout, p)->optional &&
			       !ws_source_find(s, ws_layout_part(layout, p)->name);
		assert_int_equal(met, ws_layout_part_count(layout));
		ws_source_close(s);
		ws_buf_free(&json);
	}
}

static int open_maps(void **state)
{
	(void)state;
	struct ws_err err = WS_ERR_INIT;
	if (ws_namemap_open(NULL, &maps, &err) == 0)
		return 0;
	fprintf(stderr, "%s\n", err.msg);
	return -1;
}

static int close_maps(void **state)
{
	(void)state;
	forget_layout();
	ws_namemap_close(maps);
	return 0;
}

RUN_TESTS(open_maps, close_maps)
