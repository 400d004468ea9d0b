/* SPDX-License-Identifier: Apache-2.0 */
/* lora.h - PEFT adapters: their files, and the tensors that they bind to.
 *
 * delta = scaling * B @ A, A [r, in], B [out, r]; scaling = alpha / r, or alpha / sqrt(r) with
 * use_rslora. rank_pattern and alpha_pattern override r and alpha for modules whose name ends like
 * a pattern. Conv1D (GPT-2): the base is [in, out], the delta is transposed. Embeddings:
 * lora_embedding_A [r, rows], lora_embedding_B [cols, r], delta = (B @ A)^T. modules_to_save
 * replace tensors. MoE: one pair for each expert, one shared by all (A or B with one expert), or
 * 3-D stacks over experts. */
#ifndef WS_TRANSFORM_LORA_H
#define WS_TRANSFORM_LORA_H

#include "wsync/tool/catalog.h"
#include "wsync/transform.h"

struct ws_adapter; /* opaque */

/* A directory with adapter_config.json and adapter_model.safetensors (or its shards). */
int ws_adapter_open(const char *dir, struct ws_adapter **out, struct ws_err *err);
void ws_adapter_close(struct ws_adapter *a); /* NULL is fine */
const struct ws_source *ws_adapter_source(const struct ws_adapter *a);
const char *ws_adapter_dir(const struct ws_adapter *a); /* as it was opened */
/* Tells it of the base, before binding: names of modules are also tried as the family renames them,
 * and the config's model type says which layers have their inputs first. Both are borrowed and may
 * be NULL. */
struct ws_family;
void ws_adapter_suit(struct ws_adapter *a, const struct ws_family *family,
                     const struct ws_config *config);
bool ws_adapter_ties(const struct ws_adapter *a); /* ensure_weight_tying */

/* One low-rank change of one tensor: rows x cols of it += scale * b @ a, where
 *   a[r][j] is element a_at + r * a_row + j * a_col of item a,
 *   b[i][r] is element b_at + i * b_row + r * b_col of item b.
 * It changes rows [row, row + rows) of the target, in all columns. A target of three axes counts as
 * a matrix of dims[0] * dims[1] rows. */
struct ws_delta {
	const struct ws_item *a, *b;
	uint64_t a_at, b_at;
	int64_t a_row, a_col, b_row, b_col;
	int64_t row, rows, cols, rank;
	float scale;
};

struct ws_binding {
	const char *target;             /* name of the base's tensor; borrowed from the catalog */
	const struct ws_item *replaced; /* modules_to_save and trained biases: takes the target's
	                                 * place, and deltas are added to it; NULL: none */
	const struct ws_delta *deltas;
	size_t n_deltas;
};

struct ws_bindings {
	struct ws_binding *items;       /* sorted by target */
	size_t n;
	const struct ws_item **left_over; /* adapter tensors that bound to nothing */
	size_t n_left_over;
	size_t n_lacking;               /* modules that the config names and that have no factors */
	const char *lacking_first;      /* a tensor of the base; NULL: none */
	void *priv;
};

/* Binds an adapter to tensors of the base, by names and shapes. shape gives the decoded shape of an
 * item of a quantized base (unpack.h). layout, or NULL, gives the rows of fused tensors (qkv_proj,
 * gate_up_proj) for separate deltas. WS_EINPUT: a half is missing, ranks disagree, shapes do not
 * fit, or nothing binds ("made for another model", with the nearest names). */
typedef void ws_shape_fn(void *ctx, const struct ws_item *item, int64_t *rows, int64_t *cols);
int ws_adapter_bind(struct ws_adapter *a, const struct ws_catalog *base,
                    const struct ws_layout *layout, ws_shape_fn *shape, void *ctx,
                    struct ws_bindings *out, struct ws_err *err);
void ws_bindings_free(struct ws_bindings *b);
/* NULL: nothing binds to the target. */
const struct ws_binding *ws_bindings_find(const struct ws_bindings *b, const char *target);

#endif
