/* SPDX-License-Identifier: Apache-2.0 */
/* Every pair of what a server keeps and what is sent: only the pairs named here are right. */
#include "test.h"

#include "wsync/tool/formats.h"

#include <string.h>

struct server {
	bool vllm;
	const char *quantization, *load_format, *method, *algo; /* method NULL: no config */
	int64_t block, bits;
	bool integers, override, untold;
	enum ws_keeps keeps;
};

static enum ws_keeps kept(const struct server *s)
{
	const struct ws_quant q = { .method = s->method ? s->method : "", .scale_fmt = "",
		                    .activation = "", .algo = s->algo ? s->algo : "",
		                    .block = { s->block, s->block }, .bits = s->bits,
		                    .integers = s->integers };
	const struct ws_format_server server = {
		.vllm = s->vllm, .quantization = s->quantization, .told = !s->untold,
		.load_format = s->load_format ? s->load_format : "auto", .override = s->override,
		.quant = s->method ? &q : NULL,
	};
	return ws_format_kept(&server);
}

TEST(a_server_is_known_by_what_it_tells_and_by_its_config)
{
	static const struct server cases[] = {
		{ .quantization = "", .keeps = WS_KEEPS_UNTOLD },
		{ .vllm = true, .quantization = "", .keeps = WS_KEEPS_DENSE },
		{ .quantization = "", .method = "", .keeps = WS_KEEPS_DENSE },
		{ .quantization = "", .override = true, .method = "", .keeps = WS_KEEPS_NEW },
		{ .quantization = "brand_new", .keeps = WS_KEEPS_NEW },
		{ .vllm = true, .quantization = "brand_new", .keeps = WS_KEEPS_NEW },
		{ .quantization = "", .method = "brand_new", .keeps = WS_KEEPS_NEW },
		{ .quantization = "fp8", .keeps = WS_KEEPS_FP8 },
		{ .quantization = "fp8", .method = "", .keeps = WS_KEEPS_ONCE },
		{ .vllm = true, .quantization = "fp8", .method = "", .keeps = WS_KEEPS_ONLINE },
		{ .quantization = "fp8", .load_format = "flash_rl", .method = "",
		  .keeps = WS_KEEPS_ONLINE },
		{ .quantization = "", .method = "fp8", .block = 128, .keeps = WS_KEEPS_FP8_BLOCKS },
		{ .quantization = "", .method = "fp8", .keeps = WS_KEEPS_FP8_SCALES },
		{ .quantization = "", .method = "mxfp8", .keeps = WS_KEEPS_MXFP8 },
		{ .quantization = "mxfp8", .method = "", .keeps = WS_KEEPS_ONCE },
		{ .vllm = true, .quantization = "fp8_per_block", .keeps = WS_KEEPS_ONLINE },
		{ .quantization = "awq_marlin", .keeps = WS_KEEPS_AWQ },
		{ .quantization = "", .method = "gptq", .bits = 4, .keeps = WS_KEEPS_GPTQ },
		{ .quantization = "modelopt_fp4", .keeps = WS_KEEPS_NVFP4 },
		{ .quantization = "", .method = "modelopt", .algo = "NVFP4",
		  .keeps = WS_KEEPS_NVFP4 },
		{ .quantization = "", .method = "modelopt", .algo = "FP8",
		  .keeps = WS_KEEPS_FP8_SCALES },
		{ .quantization = "", .method = "modelopt", .algo = "MIXED_PRECISION",
		  .keeps = WS_KEEPS_MIXED },
		{ .quantization = "", .method = "compressed-tensors", .bits = 4, .integers = true,
		  .keeps = WS_KEEPS_COMPRESSED },
		{ .quantization = "", .method = "compressed-tensors", .bits = 8, .integers = true,
		  .keeps = WS_KEEPS_INT8 },
		{ .quantization = "", .method = "compressed-tensors", .bits = 8,
		  .algo = "float-quantized", .keeps = WS_KEEPS_FP8_SCALES },
		{ .quantization = "compressed-tensors", .keeps = WS_KEEPS_COMPRESSED },
		{ .quantization = "bitsandbytes", .keeps = WS_KEEPS_BNB },
		{ .quantization = "gguf", .keeps = WS_KEEPS_GGUF },
		{ .quantization = "", .load_format = "gguf", .keeps = WS_KEEPS_GGUF },
		{ .vllm = true, .quantization = "", .load_format = "bitsandbytes", .method = "",
		  .keeps = WS_KEEPS_BNB },
		{ .quantization = "w8a8_int8", .keeps = WS_KEEPS_INT8 },
		{ .vllm = true, .quantization = "", .untold = true, .keeps = WS_KEEPS_UNTOLD },
		{ .vllm = true, .quantization = "modelopt", .method = "",
		  .keeps = WS_KEEPS_FP8 },
		{ .vllm = true, .quantization = "mxfp8", .keeps = WS_KEEPS_MXFP8 },
		{ .vllm = true, .quantization = "mxfp8", .method = "", .keeps = WS_KEEPS_ONLINE },
		{ .vllm = true, .quantization = "mxfp8", .method = "mxfp8",
		  .keeps = WS_KEEPS_MXFP8 },
		{ .vllm = true, .quantization = "torchao", .keeps = WS_KEEPS_TORCHAO },
		{ .quantization = "quark", .keeps = WS_KEEPS_QUARK },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (kept(&cases[i]) != cases[i].keeps)
			fail_msg("case %zu: %s", i, ws_keeps_word(kept(&cases[i])));
}

/* Rows and columns in the order of the enums. R right, A assumed, u unknown, - refused. */
static const char *const expected[2][WS_N_KEEPS] = {
	{ /* o16 blocks scales mx8 nv4 mx4 int bnb codes */
	  "RAuuuuuuuu", "Ruuuuuuuuu", "RR-------u", "RR--------", "R---------", "RuAA------",
	  "R-R-------", "R--u------", "R---u-----", "R----u----", "R-----u---", "R------u--",
	  "R------u--", "R--u-u-u--", "R------u--", "R-------u-", "R---------", "R---------",
	  "R-uu--u---", "R-uuuuuuuu", "Ruuuuuuuuu", "Ruuuuuuuuu", "Ruuuuuuuuu" },
	{ "RAuuuuuuuu", "Ruuuuuuuuu", "RR-------u", "RR--------", "R---------", "RuAA------",
	  "R-R-------", "R--R------", "Ru--u-----", "R----R----", "R-----u---", "R------u--",
	  "R------u--", "R--u-u-u--", "R------u--", "R-------u-", "R---------", "R---------",
	  "R-uu--u---", "R-uuuuuuuu", "Ruuuuuuuuu", "Ruuuuuuuuu", "Ruuuuuuuuu" },
};

TEST(only_the_pairs_of_the_table_are_right)
{
	for (int vllm = 0; vllm < 2; vllm++)
		for (unsigned k = 0; k < WS_N_KEEPS; k++)
			for (unsigned s = 0; s < WS_N_SENDS; s++) {
				const char *why = NULL, *remedy = NULL;
				const char is =
					"RAu-"[ws_format_fits(vllm, k, s, &why, &remedy)];
				if (is != expected[vllm][k][s])
					fail_msg("vllm %d: %s sent to %s is %c", vllm,
					         ws_sends_word(s), ws_keeps_word(k), is);
				assert_true(why && *why && remedy && *remedy);
			}
}

TEST(what_a_vllm_packs_at_its_start_is_known_by_device_and_model)
{
	static const struct {
		struct ws_format_model model;
		const char *name;
		unsigned n_dims;
		enum ws_keeps keeps;
	} cases[] = {
#define MODEL(device, type, tied, dense) { device, type, tied, dense }
		{ MODEL("cpu", "", 0, 1), "m.0.mlp.experts.3.up_proj.weight", 2,
		  WS_KEEPS_PACKED_EXPERTS },
		{ MODEL("cpu", "", 0, 1), "m.0.mlp.experts.gate_up_proj", 3,
		  WS_KEEPS_PACKED_EXPERTS },
		{ MODEL("cpu", "", 0, 1), "m.0.block_sparse_moe.experts.0.w1.weight", 2,
		  WS_KEEPS_PACKED_EXPERTS },
		{ MODEL("cpu", "", 0, 1), "m.0.block_sparse_moe.input_linear.weight", 3,
		  WS_KEEPS_PACKED_EXPERTS },
		{ MODEL("cpu", "", 0, 1), "m.0.block_sparse_moe.gate.weight", 2, WS_N_KEEPS },
		{ MODEL("cpu", "", 0, 1), "m.0.mlp.shared_experts.up_proj.weight", 2, WS_N_KEEPS },
		{ MODEL("cpu", "", 0, 0), "m.0.mlp.experts.3.up_proj.weight", 2, WS_N_KEEPS },
		{ MODEL("cuda", "", 1, 1), "m.0.mlp.experts.3.up_proj.weight", 2, WS_N_KEEPS },
		{ MODEL("", "", 1, 1), "model.embed_tokens.weight", 2, WS_N_KEEPS },
		{ MODEL("cpu", "", 1, 1), "model.embed_tokens.weight", 2, WS_KEEPS_PACKED_HEAD },
		{ MODEL("cpu", "", 1, 0), "model.embed_tokens.weight", 2, WS_KEEPS_PACKED_HEAD },
		{ MODEL("cpu", "", 0, 1), "model.embed_tokens.weight", 2, WS_N_KEEPS },
		{ MODEL("cpu", "gemma2", 1, 1), "model.embed_tokens.weight", 2, WS_N_KEEPS },
		{ MODEL("cpu", "gemma3_text", 1, 1), "model.embed_tokens.weight", 2,
		  WS_KEEPS_PACKED_HEAD },
		{ MODEL("cpu", "", 1, 1), "model.norm.weight", 1, WS_N_KEEPS },
		{ MODEL("cuda", "gpt_oss", 0, 0), "m.0.self_attn.sinks", 1, WS_KEEPS_PAST_LOADER },
		{ MODEL("", "gpt_oss", 0, 1), "m.0.mlp.experts.down_proj", 3,
		  WS_KEEPS_PAST_LOADER },
		{ MODEL("cuda", "gpt_oss", 0, 1), "m.0.self_attn.q_proj.weight", 2, WS_N_KEEPS },
		{ MODEL("cuda", "", 0, 1), "m.0.self_attn.sinks", 1, WS_N_KEEPS },
#undef MODEL
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (ws_format_copy(&cases[i].model, cases[i].name, cases[i].n_dims) !=
		    cases[i].keeps)
			fail_msg("case %zu: %s", i, cases[i].name);
}

TEST(tensors_show_their_format)
{
	static const struct {
		const char *name;
		enum ws_dtype dtype;
		enum ws_sends sends;
		unsigned n_dims;
	} cases[] = {
		{ "m.o_proj.weight", WS_DTYPE_BF16, WS_SENDS_OTHER, 2 },
		{ "m.o_proj.weight", WS_DTYPE_F64, WS_SENDS_OTHER, 2 },
		{ "m.o_proj.weight", WS_DTYPE_I64, WS_SENDS_CODES, 2 },
		{ "m.norm.weight", WS_DTYPE_BOOL, WS_SENDS_CODES, 1 },
		{ "m.o_proj.weight", WS_DTYPE_F8_E5M2, WS_SENDS_CODES, 2 },
		{ "m.o_proj.W_q", WS_DTYPE_U8, WS_SENDS_CODES, 2 },
		{ "m.o_proj.codes", WS_DTYPE_I16, WS_SENDS_CODES, 3 },
		{ "m.mlp.experts.w13", WS_DTYPE_U8, WS_SENDS_CODES, 3 },
		{ "m.position_ids", WS_DTYPE_I64, WS_SENDS_OTHER, 2 },
		{ "m.position_ids", WS_DTYPE_I32, WS_SENDS_OTHER, 2 },
		{ "h.0.attn.bias", WS_DTYPE_U8, WS_SENDS_OTHER, 4 },
		{ "m.table", WS_DTYPE_I64, WS_SENDS_OTHER, 2 },
		{ "m.g_idx", WS_DTYPE_I32, WS_SENDS_OTHER, 1 },
		{ "m.down_proj_scales", WS_DTYPE_U8, WS_SENDS_OTHER, 3 },
		{ "m.o_proj.weight", WS_DTYPE_F8_E4M3, WS_SENDS_FP8_SCALES, 2 },
		{ "m.o_proj.weight_scale_inv", WS_DTYPE_F32, WS_SENDS_FP8_BLOCKS, 2 },
		{ "m.o_proj.weight_scale_inv", WS_DTYPE_U8, WS_SENDS_MXFP8, 2 },
		{ "m.o_proj.weight_scale_2", WS_DTYPE_F32, WS_SENDS_NVFP4, 2 },
		{ "m.o_proj.weight_scale", WS_DTYPE_F8_E4M3, WS_SENDS_OTHER, 2 },
		{ "m.o_proj.qweight", WS_DTYPE_I32, WS_SENDS_INTEGERS, 2 },
		{ "m.o_proj.weight_packed", WS_DTYPE_I32, WS_SENDS_INTEGERS, 2 },
		{ "m.o_proj.weight", WS_DTYPE_I8, WS_SENDS_INTEGERS, 2 },
		{ "m.experts.down_proj_blocks", WS_DTYPE_U8, WS_SENDS_MXFP4, 2 },
		{ "m.o_proj.weight.quant_state.bitsandbytes__nf4", WS_DTYPE_U8, WS_SENDS_BNB, 2 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (ws_format_of_tensor(cases[i].name, cases[i].dtype,
		                        cases[i].n_dims) != cases[i].sends)
			fail_msg("%s", cases[i].name);
}

TEST(matrices_are_those_that_servers_quantize)
{
	static const struct {
		const char *name;
		unsigned n_dims;
		bool is;
	} cases[] = {
		{ "model.layers.0.self_attn.o_proj.weight", 2, true },
		{ "model.layers.0.block_sparse_moe.experts.7.w2.weight", 2, true },
		{ "model.layers.0.mlp.experts.gate_up_proj", 3, true },
		{ "model.layers.0.mlp.experts.gate_up_proj_bias", 2, false },
		{ "model.layers.0.block_sparse_moe.input_linear.weight", 3, true },
		{ "model.layers.0.moe.gate_proj.weight", 3, true },
		{ "transformer.blocks.0.ffn.experts.mlp.w1", 2, true },
		{ "model.layers.0.mlp.experts.0.gate_proj", 2, true },
		{ "model.layers.0.mlp.experts.linear_fc1.weight0", 2, true },
		{ "model.layers.0.block_sparse_moe.gate.weight", 2, false },
		{ "model.layers.0.mlp.experts.0.up_proj.weight_scale_inv", 2, false },
		{ "model.embed_tokens.weight", 2, false },
		{ "transformer.wte.weight", 2, false },
		{ "model.layers.0.feed_forward.router.weight", 2, false },
		{ "model.layers.0.mlp.moe_gate.weight", 2, false },
		{ "transformer.blocks.0.ffn.router.layer.weight", 2, false },
		{ "transformer.h.0.self_attention.query_key_value.weight", 2, true },
		{ "transformer.h.0.attn.c_attn.weight", 2, true },
		{ "transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight", 2, true },
		{ "model.layers.0.mlp.fc1.weight", 2, true },
		{ "model.layers.0.linear_attn.conv1d.weight", 3, false },
		{ "model.layers.0.input_layernorm.weight", 1, false },
	};
	char module[1024];
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (ws_format_is_matrix(cases[i].name, cases[i].n_dims, module, sizeof module) !=
		    cases[i].is)
			fail_msg("%s", cases[i].name);
	assert_string_equal(ws_format_in_name("/m/Qwen3-8B-AWQ"), "awq");
	assert_null(ws_format_in_name("/m/Qwen3-8B"));
}

RUN_TESTS(NULL, NULL)
