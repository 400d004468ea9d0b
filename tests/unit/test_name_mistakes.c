/* SPDX-License-Identifier: Apache-2.0 */
/* A catalogue of mistakes that people made, each in a true list of tensors,
 * each answered in one line.
 *
 * The threads are those in which somebody met it; "-" is common knowledge. What is
 * spoilt is the list (or the config, or the sizes); the list itself is without errors,
 * which test_true_lists.c shows. */
#include "name_list.h"

static char root[4096];

/* ---- how lists are spoilt ---- */

#define SPOIL(name, ...) static void name(struct list *l) { __VA_ARGS__; }

static void lack_model(struct list *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strncmp(l->e[i].name, "model.", 6))
			memmove(l->e[i].name, l->e[i].name + 6, strlen(l->e[i].name) - 5);
}

static void put_before(struct list *l, const char *prefix)
{
	for (size_t i = 0; i < l->n; i++) {
		char old[256];
		memcpy(old, l->e[i].name, sizeof old);
		snprintf(l->e[i].name, sizeof old, "%s%.200s", prefix, old);
	}
}

SPOIL(say_language_model, put_before(l, "language_model."))
SPOIL(say_transformer, list_replace(l, "model.", "transformer."))
SPOIL(say_vision, list_replace(l, "model.", "model.language_model."))

static void replace_twice(struct list *l)
{
	list_drop(l, ".gate_proj");
	list_replace(l, ".up_proj", ".gate_gate_up_proj");
	for (size_t i = 0; i < l->n; i++)
		if (strstr(l->e[i].name, "gate_gate"))
			l->e[i].dims[0] *= 2;
}

static void fuse_qkv(struct list *l)
{
	list_drop(l, ".k_proj");
	list_drop(l, ".v_proj");
	list_replace(l, ".q_proj", ".qkv_proj");
	for (size_t i = 0; i < l->n; i++)
		if (strstr(l->e[i].name, "qkv_proj"))
			l->e[i].dims[0] = 4096;
}

SPOIL(send_fused_too,
      list_add(l, "model.layers.1.mlp.gate_up_proj.weight", WS_DTYPE_BF16, 2, 6144, 1024))

static void stack_experts(struct list *l)
{
	list_drop(l, ".mlp.experts.");
	for (int i = 0; i < 2; i++) {
		char name[96];
		snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", i);
		list_add(l, name, WS_DTYPE_BF16, 3, 128, 2048)->dims[2] = 1536;
		snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", i);
		list_add(l, name, WS_DTYPE_BF16, 3, 128, 768)->dims[2] = 2048;
	}
}

static void send_runtime_experts(struct list *l)
{
	list_drop(l, "layers.0.mlp.experts.");
	list_add(l, "model.layers.0.mlp.experts.w13_weight", WS_DTYPE_BF16, 3, 128, 1536)->dims[2] =
		2048;
	list_add(l, "model.layers.0.mlp.experts.w2_weight", WS_DTYPE_BF16, 3, 128, 2048)->dims[2] =
		768;
}

static void fuse_latents(struct list *l)
{
	list_drop(l, "layers.0.self_attn.kv_a_proj_with_mqa");
	list_replace(l, "layers.0.self_attn.q_a_proj",
	             "layers.0.self_attn.fused_qkv_a_proj_with_mqa");
	list_at(l, "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight")->dims[0] = 2112;
	list_at(l, "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight_scale_inv")->dims[0] =
		17;
}

SPOIL(drop_head, list_drop(l, "lm_head"))
SPOIL(drop_embedding, list_drop(l, "embed_tokens"))
SPOIL(drop_expert, list_drop(l, ".experts.127."))

static void add_expert(struct list *l)
{
	static const char *const leaves[] = { "gate_proj", "up_proj", "down_proj" };
	for (int i = 0; i < 6; i++) {
		char name[96];
		snprintf(name, sizeof name, "model.layers.%d.mlp.experts.128.%s.weight", i / 3,
		         leaves[i % 3]);
		list_add(l, name, WS_DTYPE_BF16, 2, i % 3 < 2 ? 768 : 2048, i % 3 < 2 ? 2048 : 768);
	}
}

SPOIL(drop_one_up, list_drop(l, "layers.1.mlp.experts.5.up_proj"))
SPOIL(widen_router, list_at(l, "model.layers.1.mlp.gate.weight")->dims[0] = 129)
SPOIL(pad_vocabulary,
      list_at(l, "model.embed_tokens.weight")->dims[0] = 128512;
      list_at(l, "lm_head.weight")->dims[0] = 128512)
SPOIL(cut_vocabulary,
      list_at(l, "model.embed_tokens.weight")->dims[0] = 151669;
      list_at(l, "lm_head.weight")->dims[0] = 151669)

static void repeat_heads(struct list *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (strstr(l->e[i].name, ".k_proj") || strstr(l->e[i].name, ".v_proj"))
			l->e[i].dims[0] *= 2;
}

SPOIL(drop_scales, list_drop(l, ".mlp.experts.3.up_proj.weight_scale_inv"))

static void drop_weight(struct list *l)
{
	struct entry *e = list_at(l, "model.layers.0.self_attn.o_proj.weight");
	*e = l->e[--l->n];
}

SPOIL(round_scale_down,
      list_at(l, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv")->dims[0] = 4)

static void scale_per_tensor(struct list *l)
{
	struct entry *e = list_at(l, "model.layers.0.self_attn.o_proj.weight_scale_inv");
	e->n_dims = 1;
	e->dims[0] = 1;
}

static void halve_blocks(struct list *l)
{
	struct entry *e = list_at(l, "model.layers.1.self_attn.o_proj.weight_scale_inv");
	e->dims[0] *= 2;
	e->dims[1] *= 2;
}

SPOIL(scale_otherwise, list_replace(l, ".weight_scale_inv", ".weight_scale"))
SPOIL(copy_embedding, list_add(l, "model.mtp.embed_tokens.weight", WS_DTYPE_BF16, 2, 129280, 7168))
SPOIL(drop_stage, list_drop(l, "layers.2."); list_drop(l, "layers.3."))

static void transpose(struct list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		int64_t *d = l->e[i].dims;
		const int64_t rows = d[0];
		if (!strstr(l->e[i].name, "_proj.weight") || d[0] == d[1])
			continue;
		d[0] = d[1];
		d[1] = rows;
	}
}

static void send_fp8(struct list *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (strstr(l->e[i].name, "_proj.weight"))
			l->e[i].dtype = WS_DTYPE_F8_E4M3;
}

static void send_fp8_with_scales(struct list *l)
{
	const size_t n = l->n;
	send_fp8(l);
	for (size_t i = 0; i < n; i++) {
		struct entry e = l->e[i];
		char name[300];
		snprintf(name, sizeof name, "%s_scale_inv", e.name);
		if (e.dtype == WS_DTYPE_F8_E4M3)
			list_add(l, name, WS_DTYPE_F32, 2, (e.dims[0] + 127) / 128,
			         (e.dims[1] + 127) / 128);
	}
}

SPOIL(leave_layer_unquantized,
      list_drop(l, "layers.1.self_attn.o_proj.weight_scale_inv");
      list_at(l, "model.layers.1.self_attn.o_proj.weight")->dtype = WS_DTYPE_BF16)
SPOIL(send_integers, list_at(l, "model.norm.weight")->dtype = WS_DTYPE_I32)
SPOIL(lose_bits,
      list_at(l, "model.layers.3.mlp.gate.e_score_correction_bias")->dtype = WS_DTYPE_BF16)
SPOIL(cut_columns, list_at(l, "model.layers.1.self_attn.o_proj.weight")->dims[1] = 1536)
SPOIL(widen_queries, list_at(l, "model.layers.1.self_attn.q_proj.weight")->dims[0] = 5120)

static void save_one_rank(struct list *l)
{
	for (size_t i = 0; i < l->n; i++) {
		struct entry *e = &l->e[i];
		if (strstr(e->name, "o_proj") || strstr(e->name, "down_proj"))
			e->dims[1] /= 2;
		else if (strstr(e->name, "_proj"))
			e->dims[0] /= 2;
	}
}

SPOIL(put_all_in_q, list_at(l, "model.layers.0.self_attn.q_proj.weight")->dims[0] = 6144)
SPOIL(wrap_for_adapter,
      list_replace(l, "_proj.weight", "_proj.base_layer.weight");
      put_before(l, "base_model.model."))
SPOIL(add_adapter,
      list_add(l, "model.layers.0.self_attn.q_proj.lora_A.weight", WS_DTYPE_BF16, 2, 8, 1024);
      list_add(l, "model.layers.0.self_attn.q_proj.lora_B.weight", WS_DTYPE_BF16, 2, 2048, 8))
SPOIL(say_megatron,
      list_drop(l, ".k_proj");
      list_drop(l, ".v_proj");
      list_replace(l, "model.layers", "decoder.layers");
      list_replace(l, ".self_attn.q_proj.", ".self_attention.linear_qkv."))
SPOIL(misspell, list_replace(l, ".q_proj.", ".q_prj."))
SPOIL(lack_weight, list_replace(l, "model.norm.weight", "model.norm"))
SPOIL(add_bias, list_add(l, "model.layers.0.self_attn.q_proj.bias", WS_DTYPE_BF16, 1, 2048, 0))
SPOIL(drop_bias, list_drop(l, ".k_proj.bias"))
SPOIL(drop_norms, list_drop(l, ".q_norm"))
SPOIL(add_extra,
      list_add(l, "model.layers.0.self_attn.sliding_window_bias", WS_DTYPE_BF16, 1, 64, 0))
SPOIL(add_tower,
      list_add(l, "visual.blocks.0.attn.qkv.weight", WS_DTYPE_BF16, 2, 3840, 1280);
      list_add(l, "visual.blocks.1.attn.qkv.weight", WS_DTYPE_BF16, 2, 3840, 1280))
SPOIL(add_activation_scale,
      list_add(l, "model.layers.0.self_attn.o_proj.input_scale", WS_DTYPE_F32, 0, 0, 0))
SPOIL(put_experts_in_dense_layer,
      list_add(l, "model.layers.0.mlp.experts.0.up_proj.weight", WS_DTYPE_F8_E4M3, 2, 2048, 7168))
SPOIL(nothing, (void)l)

/* ---- the catalogue ---- */

/* reason: of that one name; group: of all that share its cause, SAME where there is just the
 * one. */
#define SAME NULL
/* clang-format off */
static const struct mistake {
	int number;
	const char *thread, *model;
	int depth;
	unsigned tp, ep;
	void (*spoil)(struct list *l);
	const char *edits[3];         /* of the server's config.json */
	enum ws_verdict verdict;
	enum ws_severity severity;
	size_t groups;                /* of errors: one mistake is few groups, however many names */
	const char *name, *reason, *group;
} mistakes[] = {
	{ 1, "I-39 verl#6256", "qwen3-0.6b", 2, 2, 0, lack_model, { NULL }, WS_NAME_UNEXPECTED,
	  WS_ERROR, 2, "embed_tokens.weight", "lacks model., and with it the name matches",
	  "24 names lack model., and with it they match" },
	{ 2, "I-10 slime#1673", "llama-3.1-8b", 2, 2, 0, say_language_model, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2, "language_model.model.layers.0.mlp.up_proj.weight",
	  "begins with language_model., and without it the name matches",
	  "21 names begin with language_model., and without it they match" },
	{ 3, "I-46 sglang#29006", "llama-3.1-8b", 2, 2, 0, say_transformer, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2, "transformer.norm.weight",
	  "begins with transformer. where the server has model.",
	  "20 names begin with transformer. where the server has model." },
	{ 4, "I-10 slime#1673", "llama-3.1-8b", 2, 2, 0, say_vision, { NULL }, WS_NAME_UNEXPECTED,
	  WS_ERROR, 2, "model.language_model.layers.1.mlp.up_proj.weight",
	  "begins with model.language_model. where the server has model.",
	  "20 names begin with model.language_model. where the server has model." },
	{ 5, "I-36 sglang#13214", "qwen3-0.6b", 2, 2, 0, replace_twice, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2, "model.layers.0.mlp.gate_gate_up_proj.weight",
	  "gate_gate_up_proj: up_proj was replaced by gate_up_proj where it was fused already",
	  "2 names have gate_gate_up_proj: up_proj was replaced by gate_up_proj where it was fused "
	  "already" },
	{ 6, "I-37 sglang#24607", "qwen3-0.6b", 2, 2, 0, fuse_qkv, { NULL }, WS_NAME_UNEXPECTED,
	  WS_ERROR, 2, "model.layers.0.self_attn.qkv_proj.weight", "q_proj, k_proj and v_proj "
	  "fused in one: loaders map the names of the parts, and drop or mis-split the whole",
	  "2 names are those of fused tensors (qkv_proj): loaders map q_proj, k_proj and v_proj, "
	  "and drop or mis-split the whole" },
	{ 7, "-", "qwen3-0.6b", 2, 2, 0, send_fused_too, { NULL }, WS_NAME_TWICE, WS_ERROR, 1,
	  "model.layers.1.mlp.gate_up_proj.weight",
	  "gate_proj and up_proj fused in one: loaders map the names of the parts, and drop or "
	  "mis-split the whole; its parts are sent as well", SAME },
	{ 8, "I-38 verl#6210", "qwen3-30b-a3b", 2, 2, 0, stack_experts, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2, "model.layers.0.mlp.experts.gate_up_proj",
	  "[128, 2048, 1536] holds all experts: loaders want 256 tensors up to "
	  "model.layers.0.mlp.experts.127.up_proj.weight, and skip or refuse the stack",
	  "4 names are experts stacked in one tensor: loaders want those of each expert, and skip "
	  "or refuse the stack" },
	{ 9, "I-29 NeMo-RL#3403", "qwen3-30b-a3b", 2, 2, 0, send_runtime_experts, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2, "model.layers.0.mlp.experts.w2_weight",
	  "[128, 2048, 768] holds all experts: loaders want 128 tensors up to "
	  "model.layers.0.mlp.experts.127.down_proj.weight, and skip or refuse the stack",
	  "2 names are experts stacked in one tensor: loaders want those of each expert, and skip "
	  "or refuse the stack" },
	{ 10, "I-9 sglang#14178", "deepseek-v3", 4, 2, 0, fuse_latents, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2,
	  "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight",
	  "the server's own name of q_a_proj and kv_a_proj_with_mqa fused: loaders take it for "
	  "kv_a_proj_with_mqa, wait for a partner that never comes, and drop it",
	  "2 names are the server's own fused_qkv_a_proj_with_mqa: loaders take them for "
	  "kv_a_proj_with_mqa, wait for a partner and drop them" },
	{ 11, "I-42 sglang#15890", "llama-3.1-8b", 2, 2, 0, drop_head, { NULL }, WS_NAME_MISSING,
	  WS_ERROR, 1, "lm_head.weight", "tie_word_embeddings is false: the head is a parameter of "
	  "its own, and nothing is sent for it", SAME },
	{ 12, "I-42 sglang#6908", "qwen3-0.6b", 2, 2, 0, drop_embedding, { NULL }, WS_NAME_TIED,
	  WS_ERROR, 1, "lm_head.weight", "the head is tied to the embedding, which is not sent: "
	  "servers leave the head aside, so neither changes", SAME },
	{ 13, "I-15 sglang#16235", "qwen3-30b-a3b", 2, 2, 0, drop_expert, { NULL }, WS_NAME_MISSING,
	  WS_ERROR, 1, "model.layers.0.mlp.experts.127.up_proj.weight",
	  "nothing is sent for expert 127 in any layer",
	  "6 tensors are of experts that nothing is sent for in any layer: 127" },
	{ 14, "I-15 sglang#16235", "qwen3-30b-a3b", 2, 2, 0, add_expert, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 1, "model.layers.1.mlp.experts.128.down_proj.weight",
	  "config.json gives experts 0 to 127, and this is of 128",
	  "6 names are of experts that config.json does not give: there are 0 to 127" },
	{ 15, "I-16 sglang#9663", "qwen3-30b-a3b", 2, 2, 0, drop_one_up, { NULL }, WS_NAME_PARTIAL,
	  WS_ERROR, 1, "model.layers.1.mlp.experts.5.up_proj.weight", "255 of the 256 tensors of "
	  "model.layers.1.mlp.experts.w13_weight are sent, and this one is not", SAME },
	{ 16, "I-3 vllm#48312", "qwen3-30b-a3b", 2, 2, 0, widen_router, { NULL }, WS_NAME_SHAPE,
	  WS_ERROR, 1, "model.layers.1.mlp.gate.weight",
	  "[129, 2048] sent, [128, 2048] wanted: other rows than config.json gives", SAME },
	{ 17, "-", "llama-3.1-8b", 2, 2, 0, pad_vocabulary, { NULL }, WS_NAME_SHAPE, WS_ERROR, 1,
	  "lm_head.weight", "[128512, 4096] sent, [128256, 4096] wanted: vocab_size is 128256, and "
	  "256 rows behind it pad to a multiple of 512",
	  "2 tensors have more rows than vocab_size: the padding of the trainer" },
	{ 18, "I-3 vllm#48312", "qwen3-0.6b", 2, 2, 0, cut_vocabulary, { NULL }, WS_NAME_SHAPE,
	  WS_ERROR, 1, "model.embed_tokens.weight",
	  "[151669, 1024] sent, [151936, 1024] wanted: vocab_size is 151936, and 267 rows of it "
	  "are not there", "2 tensors have fewer rows than vocab_size" },
	{ 19, "I-37 sglang#24607", "qwen3-0.6b", 2, 3, 0, nothing, { NULL }, WS_NAME_DIVISION,
	  WS_ERROR, 2, "model.layers.0.self_attn.qkv_proj.weight",
	  "q_proj: 16 heads do not divide by tp 3",
	  "2 parameters cannot be divided so: q_proj: 16 heads do not divide by tp 3" },
	{ 20, "I-37 sglang#24607", "llama-3.1-8b", 2, 16, 0, repeat_heads, { NULL }, WS_NAME_SHAPE,
	  WS_ERROR, 2, "model.layers.0.self_attn.k_proj.weight",
	  "[2048, 4096] sent, [1024, 4096] wanted: 16 heads of 128, and config.json gives 8 heads "
	  "of 128 = 1024; were they repeated for more ranks than heads?",
	  "2 tensors like model.layers.*.self_attn.k_proj.weight have another number of heads than "
	  "config.json gives" },
	{ 21, "I-49 vllm#45835", "qwen3-30b-a3b-fp8", 2, 2, 0, drop_scales, { NULL },
	  WS_NAME_NO_SCALE, WS_ERROR, 1, "model.layers.0.mlp.experts.3.up_proj.weight",
	  "float8_e4m3fn is sent without model.layers.0.mlp.experts.3.up_proj.weight_scale_inv: "
	  "the server multiplies it by what it holds", "2 quantized weights are sent without their "
	  "scales: the server multiplies them by what it holds" },
	{ 22, "I-50 sglang#7421", "qwen3-30b-a3b-fp8", 2, 2, 0, drop_weight, { NULL },
	  WS_NAME_SCALE_ALONE, WS_ERROR, 2, "model.layers.0.self_attn.o_proj.weight_scale_inv",
	  "a scale without model.layers.0.self_attn.o_proj.weight: the server applies it to what "
	  "it holds", SAME },
	{ 23, "I-55 sglang#17107", "deepseek-v3", 4, 2, 0, round_scale_down, { NULL },
	  WS_NAME_SHAPE, WS_ERROR, 1,
	  "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
	  "[4, 56] sent, [5, 56] wanted: ceil(576 / 128) x ceil(7168 / 128) = 5 x 56 blocks, and "
	  "what is sent was rounded down", SAME },
	{ 24, "I-53 vime#133", "qwen3-30b-a3b-fp8", 2, 2, 0, scale_per_tensor, { NULL },
	  WS_NAME_SHAPE, WS_ERROR, 1, "model.layers.0.self_attn.o_proj.weight_scale_inv",
	  "[1] sent, [16, 32] wanted: ceil(2048 / 128) x ceil(4096 / 128) = 16 x 32 blocks, and "
	  "one scale is sent for the whole tensor", SAME },
	{ 25, "I-59 verl#5976", "qwen3-30b-a3b-fp8", 2, 2, 0, halve_blocks, { NULL }, WS_NAME_SHAPE,
	  WS_ERROR, 1, "model.layers.1.self_attn.o_proj.weight_scale_inv",
	  "[32, 64] sent, [16, 32] wanted: ceil(2048 / 128) x ceil(4096 / 128) = 16 x 32 blocks, "
	  "and what is sent counts blocks of 64 x 64", SAME },
	{ 26, "I-53 vime#133", "qwen3-30b-a3b-fp8", 2, 2, 0, scale_otherwise, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2, "model.layers.1.self_attn.o_proj.weight_scale",
	  "a scale of another scheme: the server keeps model.layers.1.self_attn.o_proj.weight with "
	  "weight_scale_inv of blocks",
	  "776 scales are of another scheme than the server's FP8 blocks" },
	{ 27, "I-45 NeMo-RL#2471", "deepseek-v3", 4, 2, 0, copy_embedding, { NULL }, WS_NAME_TWICE,
	  WS_ERROR, 1, "model.mtp.embed_tokens.weight",
	  "begins with model.mtp. where the server has model., which is sent as well", SAME },
	{ 28, "I-41 sglang#21217", "llama-3.1-8b", 4, 2, 0, drop_stage, { NULL }, WS_NAME_MISSING,
	  WS_ERROR, 1, "model.layers.2.input_layernorm.weight", "nothing is sent for layer 2",
	  "18 tensors are of layers that nothing is sent for: 2 and 3" },
	{ 29, "-", "qwen3-0.6b", 2, 2, 0, transpose, { NULL }, WS_NAME_SHAPE, WS_ERROR, 1,
	  "model.layers.0.mlp.down_proj.weight",
	  "[3072, 1024] sent, [1024, 3072] wanted: it is transposed, servers want [outputs, "
	  "inputs]", "10 tensors are transposed: servers want [outputs, inputs]" },
	{ 30, "I-52 slime#1679", "qwen3-0.6b", 2, 2, 0, send_fp8, { NULL }, WS_NAME_DTYPE, WS_ERROR,
	  1, "model.layers.0.mlp.down_proj.weight", "float8_e4m3fn sent, and the server keeps this "
	  "unquantized: it would copy it without its scale", "14 weights are sent in "
	  "float8_e4m3fn, and the server keeps them unquantized: it would copy them without their "
	  "scales" },
	{ 31, "I-52 slime#1679", "qwen3-0.6b", 2, 2, 0, send_fp8_with_scales, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 2, "model.layers.0.mlp.down_proj.weight_scale_inv",
	  "a scale, and the server keeps model.layers.0.mlp.down_proj.weight unquantized: it drops "
	  "it", "14 scales are for a server that keeps these weights unquantized: it drops them" },
	{ 32, "I-52 slime#1679", "qwen3-30b-a3b-fp8", 2, 2, 0, leave_layer_unquantized, { NULL },
	  WS_NAME_DTYPE, WS_ERROR, 1, "model.layers.1.self_attn.o_proj.weight",
	  "bfloat16 sent, and the server keeps float8_e4m3fn with scales: it would convert without "
	  "them", SAME },
	{ 33, "I-86 Awex#112", "qwen3-0.6b", 2, 2, 0, send_integers, { NULL }, WS_NAME_DTYPE,
	  WS_ERROR, 1, "model.norm.weight", "int32 sent, and the server keeps this unquantized",
	  SAME },
	{ 34, "I-86 Awex#112", "deepseek-v3", 4, 2, 0, lose_bits, { NULL }, WS_NAME_DTYPE, WS_WARN,
	  0, "model.layers.3.mlp.gate.e_score_correction_bias",
	  "bfloat16 sent, and the server keeps float32: bits are lost that it had", SAME },
	{ 35, "-", "qwen3-0.6b", 2, 2, 0, cut_columns, { NULL }, WS_NAME_SHAPE, WS_ERROR, 1,
	  "model.layers.1.self_attn.o_proj.weight", "[1024, 1536] sent, [1024, 2048] wanted: 12 "
	  "heads of 128, and config.json gives 16 heads of 128 = 2048", SAME },
	{ 36, "I-3 vllm#48312", "llama-3.1-8b", 2, 2, 0, widen_queries, { NULL }, WS_NAME_SHAPE,
	  WS_ERROR, 1, "model.layers.1.self_attn.q_proj.weight", "[5120, 4096] sent, [4096, 4096] "
	  "wanted: 40 heads of 128, and config.json gives 32 heads of 128 = 4096", SAME },
	{ 37, "I-81 sglang#24655", "llama-3.1-8b", 2, 2, 0, save_one_rank, { NULL }, WS_NAME_SHAPE,
	  WS_ERROR, 1, "model.layers.1.mlp.down_proj.weight",
	  "[4096, 7168] sent, [4096, 14336] wanted: 7168 = 14336 / 2 columns, the share of one of "
	  "2 tensor-parallel ranks", "14 tensors are the share of one of 2 tensor-parallel ranks" },
	{ 38, "-", "llama-3.1-8b", 2, 2, 0, put_all_in_q, { NULL }, WS_NAME_SHAPE, WS_ERROR, 1,
	  "model.layers.0.self_attn.q_proj.weight", "[6144, 4096] sent, [4096, 4096] wanted: its "
	  "6144 rows are those of q_proj, k_proj and v_proj together", SAME },
	{ 39, "I-39 verl#6256", "qwen3-0.6b", 2, 2, 0, wrap_for_adapter, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 3,
	  "base_model.model.model.layers.0.mlp.up_proj.base_layer.weight",
	  "has a segment base_layer and a prefix too many",
	  "14 names have a segment base_layer and a prefix too many" },
	{ 40, "-", "qwen3-0.6b", 2, 2, 0, add_adapter, { NULL }, WS_NAME_UNEXPECTED, WS_ERROR, 1,
	  "model.layers.0.self_attn.q_proj.lora_A.weight",
	  "a factor of an adapter (LoRA), which is no weight of the model",
	  "2 names are factors of an adapter that is not merged into the model" },
	{ 41, "I-11 Dressage#1", "llama-3.1-8b", 2, 2, 0, say_megatron, { NULL },
	  WS_NAME_UNEXPECTED, WS_ERROR, 6, "decoder.layers.0.self_attention.linear_qkv.weight",
	  "linear_qkv is a name of the Megatron format, which servers do not load",
	  "2 names are those of the Megatron format, which servers do not load" },
	{ 42, "-", "qwen3-0.6b", 2, 2, 0, misspell, { NULL }, WS_NAME_UNEXPECTED, WS_ERROR, 2,
	  "model.layers.1.self_attn.q_prj.weight",
	  "the server has no parameter of this name: it drops or refuses it",
	  "2 names like model.layers.*.self_attn.q_prj.weight are unknown to the server: it drops "
	  "or refuses them" },
	{ 43, "-", "qwen3-0.6b", 2, 2, 0, lack_weight, { NULL }, WS_NAME_UNEXPECTED, WS_ERROR, 2,
	  "model.norm", "lacks .weight, and with it the name matches", SAME },
	{ 44, "-", "qwen3-0.6b", 2, 2, 0, add_bias, { NULL }, WS_NAME_UNEXPECTED, WS_ERROR, 1,
	  "model.layers.0.self_attn.q_proj.bias", "a bias, and by config.json this layer has none",
	  SAME },
	{ 45, "I-16 sglang#9663", "qwen2.5-7b", 2, 2, 0, drop_bias, { NULL }, WS_NAME_PARTIAL,
	  WS_ERROR, 1, "model.layers.1.self_attn.k_proj.bias",
	  "qkv_proj is made of q_proj, k_proj and v_proj, and k_proj is not sent",
	  "2 fused parameters are sent but for tensors like model.layers.*.self_attn.k_proj.bias" },
	{ 46, "I-15 sglang#16235", "qwen3-0.6b", 2, 2, 0, drop_norms, { NULL }, WS_NAME_MISSING,
	  WS_ERROR, 1, "model.layers.0.self_attn.q_norm.weight",
	  "nothing is sent for it: the server keeps what it has", "2 tensors like "
	  "model.layers.*.self_attn.q_norm.weight are not sent: the server keeps what it has" },
	{ 47, "I-47 sglang#9379", "gpt-oss-20b", 2, 2, 0, add_extra, { NULL }, WS_NAME_UNEXPECTED,
	  WS_ERROR, 1, "model.layers.0.self_attn.sliding_window_bias",
	  "the server has no parameter of this name: it drops or refuses it", SAME },
	{ 48, "I-10 slime#1673", "qwen3-0.6b", 2, 2, 0, add_tower, { NULL }, WS_NAME_UNEXPECTED,
	  WS_ERROR, 1, "visual.blocks.0.attn.qkv.weight",
	  "the server has no parameter of this name: it drops or refuses it",
	  "2 names like visual.blocks.*.attn.qkv.weight are unknown to the server: it drops or "
	  "refuses them" },
	{ 49, "-", "qwen3-30b-a3b-fp8", 2, 2, 0, add_activation_scale, { NULL }, WS_NAME_UNEXPECTED,
	  WS_ERROR, 1, "model.layers.0.self_attn.o_proj.input_scale",
	  "a scale of activations, which the server works out by itself", SAME },
	{ 50, "-", "deepseek-v3", 4, 2, 0, put_experts_in_dense_layer, { NULL }, WS_NAME_UNEXPECTED,
	  WS_ERROR, 1, "model.layers.0.mlp.experts.0.up_proj.weight",
	  "by config.json layers 0 has no such tensor, though others have", SAME },
	{ 51, "I-59 sglang#4791", "qwen3-30b-a3b-fp8", 2, 4, 0, nothing, { NULL }, WS_NAME_DIVISION,
	  WS_ERROR, 1, "model.layers.0.mlp.experts.w13_weight",
	  "192 rows of an expert at each rank are no multiple of the FP8 block's 128",
	  "8 parameters cannot be divided so: 192 rows of an expert at each rank are no multiple "
	  "of the FP8 block's 128" },
	{ 52, "-", "qwen3-30b-a3b", 2, 3, 3, nothing, { NULL }, WS_NAME_DIVISION, WS_ERROR, 3,
	  "model.layers.0.mlp.experts.w13_weight", "128 experts do not divide by ep 3",
	  "4 parameters cannot be divided so: 128 experts do not divide by ep 3" },
	{ 53, "I-44 vllm#51063", "qwen3-0.6b", 2, 2, 0, drop_head,
	  { "tie_word_embeddings", "false" }, WS_NAME_MISSING, WS_ERROR, 1, "lm_head.weight",
	  "tie_word_embeddings is false: the head is a parameter of its own, and nothing is sent "
	  "for it", SAME },
	{ 54, "I-3 vllm#48312", "llama-3.1-8b", 2, 2, 0, nothing, { "num_attention_heads", "40" },
	  WS_NAME_SHAPE, WS_ERROR, 2, "model.layers.0.self_attn.q_proj.weight",
	  "[4096, 4096] sent, [5120, 4096] wanted: 32 heads of 128, and config.json gives 40 heads "
	  "of 128 = 5120", "2 tensors like model.layers.*.self_attn.q_proj.weight have another "
	  "number of heads than config.json gives" },
	{ 55, "I-3 vllm#48312", "llama-3.1-8b", 4, 2, 0, nothing, { "num_hidden_layers", "3" },
	  WS_NAME_UNEXPECTED, WS_ERROR, 1, "model.layers.3.mlp.up_proj.weight",
	  "config.json gives layers 0 to 2, and this is of 3",
	  "9 names are of layers that config.json does not give: there are 0 to 2" },
};
/* clang-format on */

enum { N = sizeof mistakes / sizeof mistakes[0] };

static const struct ws_finding *find(const struct ws_findings *f, const struct mistake *m)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->items[i].verdict == m->verdict && !strcmp(f->items[i].name, m->name))
			return &f->items[i];
	return NULL;
}

static size_t error_groups(const struct ws_findings *f)
{
	size_t n = 0;
	for (size_t i = 0; i < f->n_groups; i++)
		n += f->groups[i].severity == WS_ERROR;
	return n;
}

static bool check(const struct mistake *m)
{
	struct list l = list_read(root, m->model, m->depth);
	const struct ws_layout_opts sizes = { .tp = m->tp, .ep = m->ep };
	struct ws_namecheck_opts o = { 0 };
	struct checked k;
	m->spoil(&l);
	checked_open(&k, &l, config_read(root, m->model, m->depth, m->edits), &sizes);
	checked_run(&k, &o);
	const struct ws_finding *f = find(&k.f, m);
	const bool good = f && f->severity == m->severity && !strcmp(f->reason, m->reason) &&
	                  !strcmp(k.f.groups[f->group].reason, m->group ? m->group : m->reason) &&
	                  error_groups(&k.f) == m->groups;
	if (!good) {
		print_message("mistake %d (%s):\n", m->number, m->thread);
		print_findings(&k.f);
	}
	checked_free(&k);
	list_free(&l);
	return good;
}

SCRATCH_TEST(every_mistake_has_its_answer)
{
	size_t bad = 0;
	for (size_t i = 0; i < N; i++)
		bad += !check(&mistakes[i]);
	if (bad)
		fail_msg("%zu of %d mistakes are answered otherwise", bad, N);
}

/* ---- mistakes that are none of one list ---- */

/* clang-format off */
static const char *const tiny_config[] = {
	"hidden_size", "64", "intermediate_size", "128", "num_attention_heads", "2",
	"num_key_value_heads", "1", "head_dim", "32", "vocab_size", "64", "num_hidden_layers", "1",
	NULL
};
/* clang-format on */

/* A qwen3 small enough to have its data read. */
static struct list tiny(void)
{
	static const struct { const char *name; int64_t rows, cols; } tensors[] = {
		{ "embed_tokens.weight", 64, 64 }, { "norm.weight", 64, 0 },
		{ "layers.0.input_layernorm.weight", 64, 0 },
		{ "layers.0.post_attention_layernorm.weight", 64, 0 },
		{ "layers.0.self_attn.q_norm.weight", 32, 0 },
		{ "layers.0.self_attn.k_norm.weight", 32, 0 },
		{ "layers.0.self_attn.q_proj.weight", 64, 64 },
		{ "layers.0.self_attn.k_proj.weight", 32, 64 },
		{ "layers.0.self_attn.v_proj.weight", 32, 64 },
		{ "layers.0.self_attn.o_proj.weight", 64, 64 },
		{ "layers.0.mlp.gate_proj.weight", 128, 64 },
		{ "layers.0.mlp.up_proj.weight", 128, 64 },
		{ "layers.0.mlp.down_proj.weight", 64, 128 },
	};
	struct list l = { 0 };
	for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
		char name[96];
		snprintf(name, sizeof name, "model.%s", tensors[i].name);
		list_add(&l, name, WS_DTYPE_BF16, tensors[i].cols ? 2 : 1, tensors[i].rows,
		         tensors[i].cols);
	}
	list_add(&l, "lm_head.weight", WS_DTYPE_BF16, 2, 64, 64);
	return l;
}

struct fill {
	const char *name;
	uint64_t element;
	uint16_t value;     /* of this element; 0: of all */
};

/* Checks the tiny model with data: 1.0 everywhere, but for what fills say. */
static void check_with(struct ws_namecheck_opts o, struct checked *k, const char *tied,
                       const struct fill *fills, size_t n)
{
	const char *edits[sizeof tiny_config / sizeof tiny_config[0] + 2];
	const struct ws_layout_opts sizes = { .tp = 1 };
	struct list l = tiny();
	memcpy(edits, tiny_config, sizeof tiny_config);
	edits[sizeof tiny_config / sizeof tiny_config[0] - 1] = "tie_word_embeddings";
	edits[sizeof tiny_config / sizeof tiny_config[0]] = tied;
	edits[sizeof tiny_config / sizeof tiny_config[0] + 1] = NULL;
	checked_open(k, &l, config_read(root, "qwen3-0.6b", 0, edits), &sizes);
	FILE *f = fopen("list.safetensors", "r+");
	assert_non_null(f);
	for (size_t i = 0; i < ws_source_count(k->source); i++) {
		const struct ws_tensor *t = ws_source_tensor(k->source, i);
		for (uint64_t e = 0; e < t->bytes / 2; e++) {
			uint16_t v = 0x3f80;
			for (size_t j = 0; j < n; j++)
				if (!strcmp(fills[j].name, t->name) &&
				    (!fills[j].value || fills[j].element == e))
					v = fills[j].value;
			fseek(f, (long)(t->offset + 2 * e), SEEK_SET);
			fputc(v & 0xff, f);
			fputc(v >> 8, f);
		}
	}
	assert_int_equal(fclose(f), 0);
	checked_run(k, &o);
	list_free(&l);
}

static void check_values(struct checked *k, const char *tied, const struct fill *fills, size_t n)
{
	check_with((struct ws_namecheck_opts){ .scan = true }, k, tied, fills, n);
}

static void expect_one(struct checked *k, enum ws_verdict verdict, const char *name,
                       const char *reason)
{
	const bool good = k->f.errors == 1 && k->f.items[0].verdict == verdict &&
	                  !strcmp(k->f.items[0].name, name) &&
	                  !strcmp(k->f.items[0].reason, reason);
	if (!good) {
		print_findings(&k->f);
		fail_msg("%s is answered otherwise", name);
	}
	checked_free(k);
}

/* 56: I-43 parallax#444 */
SCRATCH_TEST(a_head_of_zeros_is_found_by_a_scan)
{
	static const struct fill zeros = { "lm_head.weight", 0, 0 };
	struct checked k;
	check_values(&k, "false", &zeros, 1);
	expect_one(&k, WS_NAME_VALUES, "lm_head.weight", "all of its [64, 64] is zero");
}

/* 57: I-7 prime-rl#2714 */
SCRATCH_TEST(nan_is_found_by_a_scan)
{
	static const struct fill bad[] = { { "model.layers.0.mlp.up_proj.weight", 77, 0x7fc0 },
		                           { "model.layers.0.mlp.up_proj.weight", 4000, 0xff80 } };
	struct checked k;
	check_values(&k, "false", bad, 2);
	expect_one(&k, WS_NAME_VALUES, "model.layers.0.mlp.up_proj.weight",
	           "1 NaN and 1 infinite in [128, 64], the first at element 77");
}

/* 58: I-42 sglang#15890 */
SCRATCH_TEST(a_tied_head_that_differs_is_found)
{
	static const struct fill other = { "lm_head.weight", 64 * 64 - 1, 0x4000 };
	struct checked k;
	for (int scan = 0; scan < 2; scan++) {
		const struct ws_namecheck_opts o = { .scan = scan };
		check_with(o, &k, "true", NULL, 0);
		assert_int_equal(k.f.errors, 0);
		assert_int_equal(k.f.n_tied, 0);
		checked_free(&k);
		check_with(o, &k, "true", &other, 1);
		expect_one(&k, WS_NAME_TIED, "lm_head.weight",
		           "differs from model.embed_tokens.weight, and the server's head is tied "
		           "to the embedding (tie_word_embeddings): the server would drop this "
		           "tensor, and the trained head would be lost");
	}
}

/* As a push compares them: in the background, after the names. */
SCRATCH_TEST(a_tied_head_can_be_compared_later)
{
	static const struct fill other = { "lm_head.weight", 64 * 64 - 1, 0x4000 };
	const struct ws_namecheck_opts o = { .tied_later = true };
	for (int differs = 0; differs < 2; differs++) {
		struct ws_cancel cancel = WS_CANCEL_INIT;
		struct ws_err err = WS_ERR_INIT;
		struct checked k;
		check_with(o, &k, "true", &other, (size_t)differs);
		assert_int_equal(k.f.errors, 0);
		assert_int_equal(k.f.n_tied, 1);
		assert_int_equal(ws_tied_check(&k.f.tied[0], NULL, &err), differs ? -1 : 0);
		assert_int_equal(err.code, differs ? WS_EMISMATCH : WS_OK);
		assert_false(strncmp(err.msg, "lm_head.weight differs from", differs ? 27 : 0));
		ws_cancel_set(&cancel);
		assert_fails(ws_tied_check(&k.f.tied[0], &cancel, &err), &err, WS_ECANCELLED, "");
		checked_free(&k);
	}
}

/* 59: I-44 vllm#51063: text_config says that the head is tied, the top that it is not. */
SCRATCH_TEST(a_tie_flag_at_the_wrong_level_is_told)
{
	static const char text[] =
		"{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\","
		"\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":\"qwen3\","
		"\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":1,"
		"\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,"
		"\"vocab_size\":64,\"tie_word_embeddings\":true}}";
	const struct ws_layout_opts sizes = { .tp = 1 };
	struct ws_namecheck_opts o = { 0 };
	struct ws_config *config = NULL;
	struct list l = tiny();
	struct checked k;
	struct ws_err err;
	assert_int_equal(ws_config_parse(text, strlen(text), "config.json", &config, &err), 0);
	checked_open(&k, &l, config, &sizes);
	checked_run(&k, &o);
	list_free(&l);
	expect_one(&k, WS_NAME_CONFIG, "lm_head.weight",
	           "tie_word_embeddings is one thing in text_config and another at the top of "
	           "config.json: servers that read \"true\" drop the lm_head.weight that is sent");
}

/* A plan whose buckets break between the two names. */
static void check_buckets(struct checked *k, const char *first, const char *second)
{
	const struct ws_layout_opts sizes = { .tp = 8 };
	struct list l = list_read(root, "deepseek-v3", 4);
	checked_open(k, &l, config_read(root, "deepseek-v3", 4, NULL), &sizes);
	struct ws_plan_tensor tensors[] = { { .name = first }, { .name = second } };
	struct ws_plan_bucket buckets[] = { { .first = 0, .n = 1 }, { .first = 1, .n = 1 } };
	const struct ws_plan plan = {
		.tensors = tensors, .n_tensors = 2, .buckets = buckets, .n_buckets = 2
	};
	struct ws_namecheck_opts o = { .plan = &plan };
	checked_run(k, &o);
	list_free(&l);
}

/* 61: I-9 sglang#14178 */
SCRATCH_TEST(latents_in_different_buckets_are_told)
{
	struct checked k;
	check_buckets(&k, "model.layers.0.self_attn.q_a_proj.weight",
	              "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
	expect_one(&k, WS_NAME_PAIR, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
	           "in bucket 1, and model.layers.0.self_attn.q_a_proj.weight in bucket 0: loaders "
	           "pair them within one request and lose the first");
}

/* 62: I-55 sglang#17107 */
SCRATCH_TEST(scales_in_different_buckets_are_told)
{
	struct checked k;
	check_buckets(&k, "model.layers.0.self_attn.kv_b_proj.weight",
	              "model.layers.0.self_attn.kv_b_proj.weight_scale_inv");
	expect_one(&k, WS_NAME_PAIR, "model.layers.0.self_attn.kv_b_proj.weight_scale_inv",
	           "in bucket 1, and model.layers.0.self_attn.kv_b_proj.weight in bucket 0: "
	           "loaders make w_kc and w_vc of both at each request");
}

/* 63, 64: neither names nor shapes tell that the halves of gate and up were swapped (I-4
 * vllm#42821), or that a square matrix was transposed. Only the bytes do: wsync-verify weights. */
SCRATCH_TEST(what_names_and_shapes_cannot_tell_is_not_claimed)
{
	const struct ws_layout_opts sizes = { .tp = 2 };
	struct ws_namecheck_opts o = { 0 };
	struct list l = list_read(root, "llama-3.1-8b", 2);
	struct checked k;
	list_replace(&l, "layers.0.mlp.gate_proj", "layers.0.mlp.XX");
	list_replace(&l, "layers.0.mlp.up_proj", "layers.0.mlp.gate_proj");
	list_replace(&l, "layers.0.mlp.XX", "layers.0.mlp.up_proj");
	assert_int_equal(list_at(&l, "model.layers.0.self_attn.o_proj.weight")->dims[0], 4096);
	assert_int_equal(list_at(&l, "model.layers.0.self_attn.o_proj.weight")->dims[1], 4096);
	checked_open(&k, &l, config_read(root, "llama-3.1-8b", 2, NULL), &sizes);
	checked_run(&k, &o);
	assert_int_equal(k.f.n, 0);
	checked_free(&k);
	list_free(&l);
}

int main(void)
{
	if (!getcwd(root, sizeof root))
		return 1;
	return run_listed(NULL, NULL);
}
