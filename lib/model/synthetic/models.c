/* SPDX-License-Identifier: Apache-2.0 */
#include "synthetic.h"

#include "name_index.h"
#include "suggest.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SCALE_BLOCK = 128 }; /* rows and columns of weight_block_size in FP8 checkpoints */

static const struct ws_model models[] = {
	{ .name = "qwen3-0.6b", .family = WS_FAMILY_QWEN3, .hidden = 1024, .intermediate = 3072,
	  .layers = 28, .heads = 16, .kv_heads = 8, .head_dim = 128, .vocab = 151936, .tied = true,
	  .position = 40960, .eos = 151645 },
	{ .name = "qwen3-8b", .family = WS_FAMILY_QWEN3, .hidden = 4096, .intermediate = 12288,
	  .layers = 36, .heads = 32, .kv_heads = 8, .head_dim = 128, .vocab = 151936,
	  .position = 40960, .eos = 151645 },
	{ .name = "qwen3-30b-a3b", .family = WS_FAMILY_QWEN3_MOE, .hidden = 2048,
	  .intermediate = 6144, .layers = 48, .heads = 32, .kv_heads = 4, .head_dim = 128,
	  .vocab = 151936, .experts = 128, .moe_intermediate = 768, .position = 40960,
	  .eos = 151645 },
	{ .name = "qwen3-235b-a22b", .family = WS_FAMILY_QWEN3_MOE, .hidden = 4096,
	  .intermediate = 12288, .layers = 94, .heads = 64, .kv_heads = 4, .head_dim = 128,
	  .vocab = 151936, .experts = 128, .moe_intermediate = 1536, .position = 40960,
	  .eos = 151645 },
	{ .name = "deepseek-v3", .family = WS_FAMILY_DEEPSEEK_V3, .hidden = 7168,
	  .intermediate = 18432, .layers = 61, .heads = 128, .kv_heads = 128, .vocab = 129280,
	  .experts = 256, .moe_intermediate = 2048, .dense_layers = 3, .nextn_layers = 1,
	  .q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128,
	  .position = 163840, .eos = 1 },
	{ .name = "llama-3.1-8b", .family = WS_FAMILY_LLAMA, .hidden = 4096, .intermediate = 14336,
	  .layers = 32, .heads = 32, .kv_heads = 8, .head_dim = 128, .vocab = 128256,
	  .position = 131072, .eos = 128001 },
	{ .name = "glm-4.5-air", .family = WS_FAMILY_GLM4_MOE, .hidden = 4096,
	  .intermediate = 10944, .layers = 46, .heads = 96, .kv_heads = 8, .head_dim = 128,
	  .vocab = 151552, .experts = 128, .moe_intermediate = 1408, .dense_layers = 1,
	  .nextn_layers = 1, .position = 131072, .eos = 151329 },
	{ .name = "gpt-oss-20b", .family = WS_FAMILY_GPT_OSS, .hidden = 2880, .intermediate = 2880,
	  .layers = 24, .heads = 64, .kv_heads = 8, .head_dim = 64, .vocab = 201088, .experts = 32,
	  .moe_intermediate = 2880, .position = 131072, .eos = 200002 },
};

enum { N_MODELS = sizeof models / sizeof models[0] };

const struct ws_model *ws_model_at(size_t i)
{
	return i < N_MODELS ? &models[i] : NULL;
}

const struct ws_model *ws_model_find(const char *name, struct ws_err *err)
{
	char known[256] = "";
	const struct ws_model *nearest = &models[0];
	unsigned least = UINT_MAX;
	for (size_t i = 0; i < N_MODELS; i++) {
		const char *other = models[i].name;
		const unsigned edits = ws_edit_distance(name, strlen(name), other, strlen(other));
		if (strcmp(name, other) == 0)
			return &models[i];
		if (edits < least) {
			nearest = &models[i];
			least = edits;
		}
		const size_t used = strlen(known);
		snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", models[i].name);
	}
	ws_err_set(err, WS_EUSAGE, "no synthetic model '%s': there are %s", ws_quote(name).text,
	           known);
	if (least <= strlen(nearest->name) / 2)
		ws_err_hint(err, "did you mean synthetic:%s?", nearest->name);
	return NULL;
}

struct walk {
	const struct ws_model *m;
	ws_model_emit_fn *emit;
	void *ctx;
	char name[192];
	size_t prefix; /* length of the current prefix: "model.layers.3." */
};

/* Sets the prefix of the following names. */
__attribute__((format(printf, 2, 3)))
static void enter(struct walk *w, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	w->prefix = (size_t)vsnprintf(w->name, sizeof w->name, fmt, ap);
	va_end(ap);
}

/* Dimensions end at the first 0. */
static void put_dims(struct walk *w, const char *leaf, enum ws_dtype dtype, const int64_t dims[4])
{
	unsigned n = 0;
	while (n < 4 && dims[n])
		n++;
	snprintf(w->name + w->prefix, sizeof w->name - w->prefix, "%s", leaf);
	w->emit(w->ctx, w->name, dtype, n, dims);
}

static void put(struct walk *w, const char *leaf, enum ws_dtype dtype, int rows, int cols)
{
	put_dims(w, leaf, dtype, (const int64_t[4]){ rows, cols });
}

static void put_bf16(struct walk *w, const char *leaf, int rows, int cols)
{
	put(w, leaf, WS_DTYPE_BF16, rows, cols);
}

/* Emits the weight of a linear layer; FP8 checkpoints also have its scales. */
static void put_linear(struct walk *w, const char *module, int out, int in)
{
	char leaf[128];
	const bool fp8 = w->m->family == WS_FAMILY_DEEPSEEK_V3;
	snprintf(leaf, sizeof leaf, "%s.weight", module);
	put(w, leaf, fp8 ? WS_DTYPE_F8_E4M3 : WS_DTYPE_BF16, out, in);
	if (!fp8)
		return;
	snprintf(leaf, sizeof leaf, "%s.weight_scale_inv", module);
	put(w, leaf, WS_DTYPE_F32, (out + SCALE_BLOCK - 1) / SCALE_BLOCK,
	    (in + SCALE_BLOCK - 1) / SCALE_BLOCK);
}

static void walk_gated_mlp(struct walk *w, const char *module, int intermediate)
{
	static const char *const parts[] = { "gate_proj", "up_proj", "down_proj" };
	for (int i = 0; i < 3; i++) {
		char path[96];
		snprintf(path, sizeof path, "%s.%s", module, parts[i]);
		if (i < 2)
			put_linear(w, path, intermediate, w->m->hidden);
		else
			put_linear(w, path, w->m->hidden, intermediate);
	}
}

static void walk_experts(struct walk *w)
{
	const struct ws_model *m = w->m;
	/* in models with shared experts the router adds a bias to its scores */
	const bool shared = m->family != WS_FAMILY_QWEN3_MOE;
	put_bf16(w, "mlp.gate.weight", m->experts, m->hidden);
	if (shared)
		put(w, "mlp.gate.e_score_correction_bias", WS_DTYPE_F32, m->experts, 0);
	for (int e = 0; e < m->experts; e++) {
		char module[48];
		snprintf(module, sizeof module, "mlp.experts.%d", e);
		walk_gated_mlp(w, module, m->moe_intermediate);
	}
	if (shared)
		walk_gated_mlp(w, "mlp.shared_experts", m->moe_intermediate);
}

static void walk_attention(struct walk *w)
{
	const struct ws_model *m = w->m;
	const int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
	put_linear(w, "self_attn.q_proj", q, m->hidden);
	put_linear(w, "self_attn.k_proj", kv, m->hidden);
	put_linear(w, "self_attn.v_proj", kv, m->hidden);
	put_linear(w, "self_attn.o_proj", m->hidden, q);
	if (m->family == WS_FAMILY_QWEN3 || m->family == WS_FAMILY_QWEN3_MOE) {
		put_bf16(w, "self_attn.q_norm.weight", m->head_dim, 0);
		put_bf16(w, "self_attn.k_norm.weight", m->head_dim, 0);
	} else if (m->family == WS_FAMILY_GLM4_MOE || m->family == WS_FAMILY_GPT_OSS) {
		put_bf16(w, "self_attn.q_proj.bias", q, 0);
		put_bf16(w, "self_attn.k_proj.bias", kv, 0);
		put_bf16(w, "self_attn.v_proj.bias", kv, 0);
	}
	if (m->family == WS_FAMILY_GPT_OSS) {
		put_bf16(w, "self_attn.o_proj.bias", m->hidden, 0);
		put_bf16(w, "self_attn.sinks", m->heads, 0);
	}
}

/* Emits the MXFP4 experts of a layer, all in one tensor: 16 bytes and a scale for 32 weights. */
static void walk_mxfp4_experts(struct walk *w)
{
	const struct ws_model *m = w->m;
	const int64_t e = m->experts, h = m->hidden, i = m->moe_intermediate;
	put_bf16(w, "mlp.router.weight", m->experts, m->hidden);
	put_bf16(w, "mlp.router.bias", m->experts, 0);
	put_dims(w, "mlp.experts.gate_up_proj_blocks", WS_DTYPE_U8,
	         (const int64_t[4]){ e, 2 * i, h / 32, 16 });
	put_dims(w, "mlp.experts.gate_up_proj_scales", WS_DTYPE_U8,
	         (const int64_t[4]){ e, 2 * i, h / 32 });
	put_bf16(w, "mlp.experts.gate_up_proj_bias", m->experts, 2 * m->moe_intermediate);
	put_dims(w, "mlp.experts.down_proj_blocks", WS_DTYPE_U8,
	         (const int64_t[4]){ e, h, i / 32, 16 });
	put_dims(w, "mlp.experts.down_proj_scales", WS_DTYPE_U8,
	         (const int64_t[4]){ e, h, i / 32 });
	put_bf16(w, "mlp.experts.down_proj_bias", m->experts, m->hidden);
}

static void walk_latent_attention(struct walk *w)
{
	const struct ws_model *m = w->m;
	put_linear(w, "self_attn.q_a_proj", m->q_rank, m->hidden);
	put_bf16(w, "self_attn.q_a_layernorm.weight", m->q_rank, 0);
	put_linear(w, "self_attn.q_b_proj", m->heads * (m->nope_dim + m->rope_dim), m->q_rank);
	put_linear(w, "self_attn.kv_a_proj_with_mqa", m->kv_rank + m->rope_dim, m->hidden);
	put_bf16(w, "self_attn.kv_a_layernorm.weight", m->kv_rank, 0);
	put_linear(w, "self_attn.kv_b_proj", m->heads * (m->nope_dim + m->v_dim), m->kv_rank);
	put_linear(w, "self_attn.o_proj", m->hidden, m->heads * m->v_dim);
}

/* Emits what a next-token layer has in addition: its own embedding, norms, projection and head. */
static void walk_nextn_extras(struct walk *w)
{
	const struct ws_model *m = w->m;
	put_bf16(w, "embed_tokens.weight", m->vocab, m->hidden);
	put_bf16(w, "enorm.weight", m->hidden, 0);
	put_bf16(w, "hnorm.weight", m->hidden, 0);
	put_bf16(w, "eh_proj.weight", m->hidden, 2 * m->hidden);
	put_bf16(w, "shared_head.norm.weight", m->hidden, 0);
	put_bf16(w, "shared_head.head.weight", m->vocab, m->hidden);
}

static void walk_layer(struct walk *w, int layer)
{
	const struct ws_model *m = w->m;
	enter(w, "model.layers.%d.", layer);
	put_bf16(w, "input_layernorm.weight", m->hidden, 0);
	if (m->family == WS_FAMILY_DEEPSEEK_V3)
		walk_latent_attention(w);
	else
		walk_attention(w);
	put_bf16(w, "post_attention_layernorm.weight", m->hidden, 0);
	if (m->family == WS_FAMILY_GPT_OSS)
		walk_mxfp4_experts(w);
	else if (m->experts && layer >= m->dense_layers)
		walk_experts(w);
	else
		walk_gated_mlp(w, "mlp", m->intermediate);
	if (layer >= m->layers)
		walk_nextn_extras(w);
}

void ws_model_walk(const struct ws_model *m, ws_model_emit_fn *emit, void *ctx)
{
	struct walk w = { .m = m, .emit = emit, .ctx = ctx };
	put_bf16(&w, "model.embed_tokens.weight", m->vocab, m->hidden);
	for (int i = 0; i < m->layers + m->nextn_layers; i++)
		walk_layer(&w, i);
	enter(&w, "%s", "");
	put_bf16(&w, "model.norm.weight", m->hidden, 0);
	if (!m->tied)
		put_bf16(&w, "lm_head.weight", m->vocab, m->hidden);
}
