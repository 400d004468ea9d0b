/* SPDX-License-Identifier: Apache-2.0 */
/* synthetic.h - names and shapes of known models, without their weights. */
#ifndef WS_MODEL_SYNTHETIC_H
#define WS_MODEL_SYNTHETIC_H

#include "stream.h"
#include "wsync/tool/source.h"
#include "wsync/tool/buf.h"
#include "wsync/dtype.h"
#include <stdbool.h>

struct ws_synthetic {
	struct ws_tensor *tensors;
	struct ws_stream *streams; /* one for each tensor */
	size_t n;
	char *names;
};

#define WS_SYNTHETIC_INIT { 0, 0, 0, 0 }

/* spec is MODEL or MODEL:SEED; the default seed is 0. */
int ws_synthetic_make(const char *spec, struct ws_synthetic *out, struct ws_err *err);
void ws_synthetic_free(struct ws_synthetic *syn); /* NULL is fine */

/* The architectures of synthetic checkpoints. The numbers are from each model's config.json, and
 * the members are named after its keys. */
enum ws_model_family {
	WS_FAMILY_LLAMA, WS_FAMILY_QWEN3, WS_FAMILY_QWEN3_MOE, WS_FAMILY_DEEPSEEK_V3,
	WS_FAMILY_GLM4_MOE, WS_FAMILY_GPT_OSS
};

struct ws_model {
	const char *name;
	enum ws_model_family family;
	int hidden, intermediate, layers, heads, kv_heads, vocab;
	bool tied;        /* no lm_head: the head is the embedding */
	int head_dim;
	int experts, moe_intermediate;             /* 0: dense */
	int dense_layers;                          /* leading layers without experts */
	int nextn_layers;                          /* next-token layers, after `layers` */
	int q_rank, kv_rank, nope_dim, rope_dim, v_dim; /* latent attention */
	int position, eos;                         /* max_position_embeddings, eos_token_id */
};

const struct ws_model *ws_model_at(size_t i); /* NULL past the end */
const struct ws_model *ws_model_find(const char *name, struct ws_err *err); /* NULL: WS_EUSAGE */

/* Called for every tensor of a checkpoint of that model; n_dims is 1 to 4. */
typedef void ws_model_emit_fn(void *ctx, const char *name, enum ws_dtype dtype, unsigned n_dims,
                              const int64_t *dims);
void ws_model_walk(const struct ws_model *m, ws_model_emit_fn *emit, void *ctx);

/* Appends the model's config.json. */
int ws_model_config(const struct ws_model *m, struct ws_buf *out, struct ws_err *err);

#endif
