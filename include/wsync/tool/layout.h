/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - the parameters that a server has at run time, and where each checkpoint tensor goes.
 *
 * A layout is made from a family's rules, a model's config and the parallel sizes. It has two
 * lists: parts, the tensors of a checkpoint by their Hugging Face names and full shapes; and
 * params, the server's runtime parameters by its module names and with the local shape of one
 * rank. Every part goes to one param; ws_layout_place says which box of it goes to which box of
 * a given rank's. At tp 1 and ep 1 a param is the fused tensor that trainers keep.
 *
 * Sources: SGLang's model loaders (stacked_params_mapping, FusedMoE) and parallel layers: heads of
 * keys and values are replicated when there are fewer than ranks, vocabularies are padded to a
 * multiple of 64 (or of 64 * tp, where tp does not divide that), experts are divided by ep first
 * and their inner dimension by tp / ep. */
#ifndef WSYNC_LAYOUT_H
#define WSYNC_LAYOUT_H

#include "wsync/tool/config.h"
#include "wsync/dtype.h"
#include "wsync/tool/namemap.h"
#include "wsync/tool/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a tensor is divided among the ranks. */
enum ws_split {
	WS_SPLIT_NONE,   /* every rank has all of it */
	WS_SPLIT_EVEN,   /* along axis, in tp equal pieces */
	/* along axis, by units (heads); fewer units than ranks: each is replicated */
	WS_SPLIT_HEADS,
	WS_SPLIT_VOCAB,  /* along axis 0, padded: the last ranks may have less, and zeros behind */
	WS_SPLIT_EXPERT, /* owned by one ep rank (by all of them, where it is a shared expert behind
	                  * the routed ones); within it along axis in tp / ep equal pieces */
	WS_SPLIT_STEPS   /* along axis, in pieces of ceil(steps / tp) * units, a step being `units`
	                  * long: the last ranks may have less, and zeros behind */
};

struct ws_part {
	const char *name;         /* in the checkpoint; owned by the layout */
	enum ws_dtype dtype;      /* with `exact` the servers' dtype; else any floating type */
	bool exact;
	bool optional;            /* servers do without it (a bias some checkpoints lack) */
	bool draft;               /* of a draft model, which is whole or missing */
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS]; /* full */
	size_t param;             /* the parameter it goes to */
	enum ws_split split;
	int axis;                 /* of dims */
	/* WS_SPLIT_HEADS: heads along axis; WS_SPLIT_STEPS: a step's length */
	int64_t units;
	bool ep;                  /* holds all experts: its first axis is divided by ep, and `axis`
	                           * by tp / ep */
	/* its last two axes are swapped in the param: loaders transpose it */
	bool transposed;
	int64_t expert;           /* WS_SPLIT_EXPERT: its index among all; else -1 */
	uint32_t rule;            /* ws_layout_rule */
};

struct ws_param {
	const char *name;         /* the server's; owned by the layout */
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS]; /* local, of `rank` of the options */
	size_t first, n_parts;    /* parts[first .. first+n_parts), in the order they lie in it */
	const char *tied_to;      /* another param whose memory it is (lm_head); NULL */
	const char *trouble;      /* why it cannot be divided ("32 heads do not divide by tp 6");
	                           * dims are then those at tp 1. NULL: it can */
	uint32_t rule;
};

/* Another name that trainers use for a fused parameter. */
struct ws_alias {
	const char *name;         /* "model.layers.0.mlp.experts.gate_up_proj" */
	size_t param;
	/* axis d of the trainer's tensor is axis order[d] of the param's */
	int order[WS_MAX_DIMS];
	unsigned n_dims;
	int64_t groups;           /* > 0: rows of the parts are interleaved in so many groups, as
	                           * Megatron keeps q, k and v of each query group together */
	uint32_t rule;
};

struct ws_layout_opts {
	unsigned tp, ep;          /* 0: 1; ep divides tp */
	unsigned attention_tp;    /* with dp attention tp / dp; 0: tp */
	unsigned rank;            /* whose local shapes params have */
	bool fuse_shared;         /* shared experts are further experts behind the routed ones, as
	                           * SGLang fuses them for DeepSeek */
	/* ignore quantization_config: the checkpoint and server in bf16 */
	bool unquantized;
	bool packed_scales;       /* of FP8: as in transform.h */
	/* include the next-token layers (of a draft model); else they are skipped */
	bool nextn;
};

struct ws_layout;

/* WS_EINPUT: the config lacks a key that the rules need (the message names it), or the
 * shapes of its quantization are unknown. WS_EUSAGE: sizes that no server can have. A
 * param that does not divide is no error: its `trouble` says why. Takes about 40 ms for
 * 90,000 parts. */
int ws_layout_make(const struct ws_family *f, const struct ws_config *c,
                   const struct ws_layout_opts *opts, struct ws_layout **out, struct ws_err *err);
void ws_layout_free(struct ws_layout *l); /* NULL is fine */

/* A model by the tensors of a checkpoint of it, where its family's rules are not known. */
struct ws_layout_like {
	const char *name;             /* of the checkpoint, for messages */
	const struct ws_tensor *tensors;
	size_t n;
	const struct ws_config *config;  /* beside it; NULL */
	const struct ws_family *generic; /* whose skip rules apply; its map outlives the layout */
};
/* At tp 1. Its params are what trainers keep in one tensor, and not what a server has: it tells
 * nothing of shares or of a server's own names (ws_layout_is_like). WS_EINPUT: sizes that no model
 * has. */
int ws_layout_like(const struct ws_layout_like *like, struct ws_layout **out, struct ws_err *err);
bool ws_layout_is_like(const struct ws_layout *l);
/* Is that the shape of the part? One number may be a scalar. */
bool ws_part_fits(const struct ws_part *p, unsigned n_dims, const int64_t *dims);
/* Is it of a layer of the text model with this number, or a higher one? */
bool ws_layer_is_behind(const char *name, int64_t layers);
/* Does a loader do without it, whatever the model (a mask, a scale of the KV cache)? */
bool ws_tensor_is_leftover(const struct ws_tensor *t);
/* A tensor of such a layout that trainers may keep in parts: q_proj, k_proj and v_proj for
 * qkv_proj, or for a stack of experts two tensors, or one, of each. */
struct ws_like_join {
	const struct ws_part *whole;
	size_t part, n_parts; /* this one, in their order in the whole */
};
/* False: the name is not that of a part. */
bool ws_layout_find_join(const struct ws_layout *l, const char *name, struct ws_like_join *out);
/* The name of part i of a whole; NULL: it has no parts, or no more. */
const char *ws_layout_join_part(const struct ws_part *whole, size_t i, char *dst, size_t n);

const struct ws_layout_opts *ws_layout_options(const struct ws_layout *l);
const char *ws_layout_family(const struct ws_layout *l);
/* The config's dtype, which parts have that no rule gives another. */
enum ws_dtype ws_layout_dtype(const struct ws_layout *l);
bool ws_layout_tied(const struct ws_layout *l); /* lm_head is the embedding */

size_t ws_layout_param_count(const struct ws_layout *l);
const struct ws_param *ws_layout_param(const struct ws_layout *l, size_t i);
const struct ws_param *ws_layout_find_param(const struct ws_layout *l, const char *name);
/* The same by the name that a server reports, which may be vLLM's: "mlp.experts.routed_experts.X"
 * for mlp.experts.X, "attn" and "embedding" of gpt-oss for self_attn and embed_tokens. */
const struct ws_param *ws_layout_find_shown(const struct ws_layout *l, const char *name);
size_t ws_layout_part_count(const struct ws_layout *l);
const struct ws_part *ws_layout_part(const struct ws_layout *l, size_t i);
const struct ws_part *ws_layout_find_part(const struct ws_layout *l, const char *name);
/* The i-th meaning of that trainer's name, NULL past the last: a name may stand for several
 * arrangements, which only the shape tells apart. */
const struct ws_alias *ws_layout_find_alias(const struct ws_layout *l, const char *name, size_t i);
/* The text of a rule, for messages: "column self_attn.qkv_proj <- q_proj k_proj v_proj". */
const char *ws_layout_rule(const struct ws_layout *l, uint32_t rule);
/* Why servers ignore this name ("the server computes it"); NULL: they do not. */
const char *ws_layout_skips(const struct ws_layout *l, const char *name);

struct ws_box {
	unsigned n_dims;
	int64_t at[WS_MAX_DIMS], size[WS_MAX_DIMS]; /* size 0 somewhere: empty */
};

/* Which box of the part (checkpoint coordinates) lies in which box of its param at that rank (local
 * coordinates). Both have the same element count and order (but for `transposed`); their ranks may
 * differ (an expert is a plane of w13). Empty boxes: nothing of it is there. Over all parts of a
 * param the second boxes cover the local shape exactly once, save the padding of vocabularies and
 * steps, which is behind them. Where the param has trouble, every rank has all of it. */
void ws_layout_place(const struct ws_layout *l, const struct ws_part *p, unsigned rank,
                     struct ws_box *from, struct ws_box *to);
/* Shape of a param at another rank. */
void ws_layout_dims(const struct ws_layout *l, const struct ws_param *p, unsigned rank,
                    int64_t dims[WS_MAX_DIMS]);

/* Renames a tensor of a checkpoint: removes segments that wrappers inserted ("_orig_mod."), then
 * applies the family's renames. Writes to dst (n bytes); returns dst, or NULL when it does not
 * fit. Works without a config. */
const char *ws_family_rename(const struct ws_family *f, const char *name, char *dst, size_t n);

#ifdef __cplusplus
}
#endif
#endif
