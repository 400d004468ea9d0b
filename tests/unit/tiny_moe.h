/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_moe.h - a checkpoint with a layer of dense and one of sparse experts, and attention whose
 * keys have fewer heads than its queries. */
#ifndef TESTS_TINY_MOE_H
#define TESTS_TINY_MOE_H

#include "view.h"
#include "tensors.h"

enum { HIDDEN = 32, HEADS = 8, KV = 2, DIM = 6, INNER = 40, MID = 24, EXPERTS = 4, VOCAB = 100 };

static const char moe[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
	"\"hidden_size\":32,\"intermediate_size\":40,\"moe_intermediate_size\":24,"
	"\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
	"\"head_dim\":6,\"num_experts\":4,\"mlp_only_layers\":[0],\"decoder_sparse_step\":1,"
	"\"vocab_size\":100,\"attention_bias\":true,\"tie_word_embeddings\":false}";

static void add_attention(struct tensors *set, const char *layer)
{
	static const struct { const char *name; int n; int64_t rows, cols; } all[] = {
		{ "input_layernorm.weight", 1, HIDDEN, 0 },
		{ "self_attn.q_proj.weight", 2, HEADS * DIM, HIDDEN },
		{ "self_attn.k_proj.weight", 2, KV * DIM, HIDDEN },
		{ "self_attn.v_proj.weight", 2, KV * DIM, HIDDEN },
		{ "self_attn.q_proj.bias", 1, HEADS * DIM, 0 },
		{ "self_attn.k_proj.bias", 1, KV * DIM, 0 },
		{ "self_attn.v_proj.bias", 1, KV * DIM, 0 },
		{ "self_attn.o_proj.weight", 2, HIDDEN, HEADS * DIM },
		{ "self_attn.q_norm.weight", 1, DIM, 0 },
		{ "self_attn.k_norm.weight", 1, DIM, 0 },
		{ "post_attention_layernorm.weight", 1, HIDDEN, 0 },
	};
	char name[128];
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		snprintf(name, sizeof name, "%s.%s", layer, all[i].name);
		tensors_random(set, name, all[i].n, all[i].rows, all[i].cols, 0);
	}
}

static void add_mlp(struct tensors *set, const char *module, int64_t inner)
{
	char name[128];
	snprintf(name, sizeof name, "%s.gate_proj.weight", module);
	tensors_random(set, name, 2, inner, HIDDEN, 0);
	snprintf(name, sizeof name, "%s.up_proj.weight", module);
	tensors_random(set, name, 2, inner, HIDDEN, 0);
	snprintf(name, sizeof name, "%s.down_proj.weight", module);
	tensors_random(set, name, 2, HIDDEN, inner, 0);
}

static void make_checkpoint(struct tensors *set)
{
	char name[128];
	set->n = 0;
	tensors_random(set, "model.embed_tokens.weight", 2, VOCAB, HIDDEN, 0);
	add_attention(set, "model.layers.0");
	add_mlp(set, "model.layers.0.mlp", INNER);
	add_attention(set, "model.layers.1");
	tensors_random(set, "model.layers.1.mlp.gate.weight", 2, EXPERTS, HIDDEN, 0);
	for (int e = 0; e < EXPERTS; e++) {
		snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d", e);
		add_mlp(set, name, MID);
	}
	tensors_random(set, "model.norm.weight", 1, HIDDEN, 0, 0);
	tensors_random(set, "lm_head.weight", 2, VOCAB, HIDDEN, 0);
}

static void copy_row(const struct tensor *to, int64_t row, const struct tensor *from, int64_t x)
{
	for (int64_t k = 0; k < (to->n > 1 ? to->dims[1] : 1); k++)
		copy_element(to, row, k, 0, from, x, k, 0);
}

/* Rows of all, one after the other, or so many groups of each in turn. */
static void stack(struct tensors *out, const char *name, const struct tensor *const *parts, int n,
                  int64_t groups)
{
	int64_t rows = 0, row = 0;
	for (int i = 0; i < n; i++)
		rows += parts[i]->dims[0];
	const struct tensor *to = tensors_add(out, name, parts[0]->n, rows, parts[0]->dims[1], 0);
	for (int64_t g = 0; g < groups; g++)
		for (int i = 0; i < n; i++)
			for (int64_t r = 0; r < parts[i]->dims[0] / groups; r++)
				copy_row(to, row++, parts[i], g * (parts[i]->dims[0] / groups) + r);
}

static const struct tensor *expert(const struct tensors *set, int64_t e, const char *which)
{
	char name[128];
	snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", (int)e, which);
	return tensors_find(set, name);
}

/* Items that are views, and of those the ones whose bytes must be copied. */
static inline size_t count_views(const struct ws_catalog *c, size_t *copied)
{
	const struct ws_item *item;
	size_t n = *copied = 0;
	for (size_t i = 0; (item = ws_catalog_item(c, i)); i++) {
		n += item->view != NULL;
		*copied += item->view && ws_view_copied(item);
	}
	return n;
}

#endif
