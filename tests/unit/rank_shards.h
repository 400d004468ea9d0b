/* SPDX-License-Identifier: Apache-2.0 */
/* rank_shards.h - the tiny mixture of experts as a rank has it, cut element by element: what
 * trainers save and servers keep. */
#ifndef TESTS_RANK_SHARDS_H
#define TESTS_RANK_SHARDS_H

#include "tiny_moe.h"

static struct tensors checkpoint, rank_tensors;

/* How a trainer saves. */
struct trainer {
	int tp, ep;
	bool fused;          /* under servers' names: qkv_proj, gate_up_proj, w13_weight */
	bool grouped;        /* linear_qkv, by query groups */
	int64_t vocab;       /* rows of the padded vocabulary; 0: the last rank has fewer */
	bool first_only;     /* what is replicated is saved by rank 0 alone */
	bool whole_vocab;    /* the embedding is not divided */
};

/* ---- cutting ---- */

static const struct tensor *cut(const char *name, const struct tensor *t, int axis, int64_t at,
                                int64_t size)
{
	int64_t dims[2] = { t->dims[0], t->dims[1] };
	dims[axis] = size;
	const struct tensor *to = tensors_add(&rank_tensors, name, t->n, dims[0], dims[1], 0);
	for (int64_t i = 0; i < dims[0]; i++)
		for (int64_t k = 0; k < (t->n > 1 ? dims[1] : 1); k++) {
			const int64_t x = i + (axis == 0 ? at : 0), y = k + (axis == 1 ? at : 0);
			if (x < t->dims[0])
				copy_element(to, i, k, 0, t, x, y, 0);
			else
				memset(element(to, i, k, 0), 0x7f, ELEMENT); /* padding */
		}
	return to;
}

static void cut_vocab(const struct trainer *how, const char *name, int rank)
{
	const struct tensor *t = tensors_find(&checkpoint, name);
	const int64_t rows = how->vocab ? how->vocab / how->tp : (VOCAB + how->tp - 1) / how->tp;
	int64_t mine = rows;
	if (how->whole_vocab) {
		cut(name, t, 0, 0, VOCAB);
		return;
	}
	if (!how->vocab && rank * rows + mine > VOCAB)
		mine = VOCAB > rank * rows ? VOCAB - rank * rows : 0;
	cut(name, t, 0, rank * rows, mine);
}

/* Heads of keys and values: with fewer than ranks several have the same. */
static const struct tensor *cut_heads(const char *name, int heads, int tp, int rank)
{
	const struct tensor *t = tensors_find(&checkpoint, name);
	const int mine = heads >= tp ? heads / tp : 1;
	const int first = heads >= tp ? rank * mine : rank / (tp / heads);
	return cut(name, t, 0, first * DIM, mine * DIM);
}

static void cut_attention(const struct trainer *how, const char *layer, int rank)
{
	static const char *const names[] = { "q_proj.weight", "k_proj.weight", "v_proj.weight",
		                             "q_proj.bias", "k_proj.bias", "v_proj.bias" };
	static const char *const kinds[] = { "weight", "bias" };
	char name[160];
	for (int kind = 0; kind < 2; kind++) {
		const struct tensor *parts[3];
		const size_t before = rank_tensors.n;
		for (int i = 0; i < 3; i++) {
			snprintf(name, sizeof name, "%s.self_attn.%s", layer, names[kind * 3 + i]);
			parts[i] = cut_heads(name, i ? KV : HEADS, how->tp, rank);
		}
		if (!how->fused && !how->grouped)
			continue;
		const int groups = how->grouped ? KV > how->tp ? KV / how->tp : 1 : 1;
		snprintf(name, sizeof name, "%s.self_attn.%s.%s", layer,
		         how->grouped ? "linear_qkv" : "qkv_proj", kinds[kind]);
		stack(&rank_tensors, name, parts, 3, groups);
		for (size_t i = before; i < before + 3; i++)
			free(rank_tensors.v[i].bytes);
		rank_tensors.v[before] = rank_tensors.v[before + 3];
		rank_tensors.n = before + 1;
	}
	snprintf(name, sizeof name, "%s.self_attn.o_proj.weight", layer);
	cut(name, tensors_find(&checkpoint, name), 1, rank * (HEADS * DIM / how->tp),
	    HEADS * DIM / how->tp);
}

/* A gated linear unit over so many ranks; gate and up as one where they are fused. */
static void cut_mlp(const char *module, int64_t inner, int ranks, int rank, bool fused)
{
	const int64_t mine = inner / ranks;
	char name[3][160];
	static const char *const which[] = { "gate", "up", "down" };
	for (int i = 0; i < 3; i++)
		snprintf(name[i], sizeof name[i], "%s.%s_proj.weight", module, which[i]);
	const struct tensor *const parts[] = {
		cut(name[0], tensors_find(&checkpoint, name[0]), 0, rank * mine, mine),
		cut(name[1], tensors_find(&checkpoint, name[1]), 0, rank * mine, mine),
	};
	if (fused) {
		snprintf(name[0], sizeof name[0], "%s.gate_up_proj.weight", module);
		stack(&rank_tensors, name[0], parts, 2, 1);
		struct tensor *v = &rank_tensors.v[rank_tensors.n - 3];
		free(v[0].bytes);
		free(v[1].bytes);
		v[0] = v[2];
		rank_tensors.n -= 2;
	}
	cut(name[2], tensors_find(&checkpoint, name[2]), 1, rank * mine, mine);
}

/* [e, 2i, H] and [e, H, i] of a rank's own experts. */
static void stack_local_experts(int64_t first, int64_t n, int64_t at, int64_t size)
{
	const struct tensor *w13 =
		tensors_add(&rank_tensors, "model.layers.1.mlp.experts.w13_weight", 3, n, 2 * size,
	                    HIDDEN);
	const struct tensor *w2 = tensors_add(&rank_tensors, "model.layers.1.mlp.experts.w2_weight",
	                                      3, n, HIDDEN, size);
	for (int64_t e = 0; e < n; e++)
		for (int64_t i = 0; i < size; i++)
			for (int64_t h = 0; h < HIDDEN; h++) {
				copy_element(w13, e, i, h, expert(&checkpoint, first + e, "gate"),
				             at + i, h, 0);
				copy_element(w13, e, size + i, h,
				             expert(&checkpoint, first + e, "up"), at + i, h, 0);
				copy_element(w2, e, h, i, expert(&checkpoint, first + e, "down"), h,
				             at + i, 0);
			}
}

static void cut_experts(const struct trainer *how, int rank)
{
	const int within = how->tp / how->ep, owner = rank / within, t = rank % within;
	const int n = EXPERTS / how->ep;
	char module[128];
	if (how->fused) {
		stack_local_experts(owner * n, n, t * (MID / within), MID / within);
		return;
	}
	for (int e = owner * n; e < owner * n + n; e++) {
		snprintf(module, sizeof module, "model.layers.1.mlp.experts.%d", e);
		cut_mlp(module, MID, within, t, false);
	}
}

static void make_shard(const struct trainer *how, int rank)
{
	tensors_free(&rank_tensors);
	cut_vocab(how, "model.embed_tokens.weight", rank);
	cut_attention(how, "model.layers.0", rank);
	cut_attention(how, "model.layers.1", rank);
	cut_mlp("model.layers.0.mlp", INNER, how->tp, rank, how->fused || how->grouped);
	cut_experts(how, rank);
	cut_vocab(how, "lm_head.weight", rank);
	for (size_t i = 0; i < checkpoint.n; i++) {
		const struct tensor *t = &checkpoint.v[i];
		if ((strstr(t->name, "norm") || strstr(t->name, "mlp.gate.")) &&
		    (rank == 0 || !how->first_only))
			cut(t->name, t, 0, 0, t->dims[0]);
	}
}

#endif
