/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h - quantized bases: which tensors of a checkpoint make up one weight, and its rows as numbers.
 *
 *   fp8    X.weight F8_E4M3 [R, C], X.weight_scale_inv fp32 or bf16 [ceil(R/bn), ceil(C/bk)]
 *   nvfp4  X.weight U8 [R, C/2] (low nibble first), X.weight_scale F8_E4M3 [R, C/16],
 *          X.weight_scale_2 fp32 scalar (ModelOpt); X.input_scale is not used
 *   nf4    X.weight U8 [R*C/2, 1] (high nibble first), X.weight.absmax, X.weight.quant_map,
 *          X.weight.quant_state.bitsandbytes__nf4 (JSON in U8: blocksize, dtype, shape, ...), and with
 *          double quantization X.weight.nested_absmax, X.weight.nested_quant_map (bitsandbytes) */
#ifndef WS_TRANSFORM_UNPACK_H
#define WS_TRANSFORM_UNPACK_H

#include "wsync/catalog.h"

enum ws_packing { WS_PACK_NONE, WS_PACK_FP8, WS_PACK_NVFP4, WS_PACK_NF4 };
const char *ws_packing_name(enum ws_packing p); /* "fp8", ... */

/* One weight. NONE: any floating tensor, as it is. */
struct ws_packed {
	enum ws_packing packing;
	const struct ws_item *weight;   /* its codes, or it */
	int64_t rows, cols;             /* of the weight as numbers; a vector is one row */
	int64_t bn, bk;                 /* fp8 */
	float *scales;                  /* what is small is read when it is first needed: fp8 and nvfp4 */
	size_t n_scales;
	const struct ws_item *parts[6]; /* scale tensors, in the order of the list above */
	void *priv;
};

/* What item is the first of: *out, and in parts the items that go with it (the caller leaves those out
 * of what it sends). An item that belongs to another's weight gives *out with weight NULL. Shapes and
 * types that do not fit together, or a kind not known (GPTQ, AWQ, int4): WS_EINPUT naming them.
 * config: for block sizes; may be NULL. */
int ws_packed_find(const struct ws_catalog *c, const struct ws_item *item, const struct ws_quant *config,
                   struct ws_packed *out, struct ws_err *err);
void ws_packed_free(struct ws_packed *p);

/* Rows [row, row+n) as fp32, C each; scratch grows as needed and may be shared between calls of one
 * thread. Exact where the packing is; NaN in codes or scales is WS_EINPUT naming the tensor and place. */
struct ws_buf;
int ws_packed_rows(struct ws_packed *p, int64_t row, int64_t n, float *out, struct ws_buf *scratch,
                   struct ws_err *err);

#endif
