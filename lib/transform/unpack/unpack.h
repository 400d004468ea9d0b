/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h - quantized bases: finds the tensors that make up one weight, and decodes its rows.
 *
 *   fp8    X F8_E4M3 [.., R, C], usually M.weight. X_scale_inv [.., ceil(R/bn), ceil(C/bk)] in F32,
 *          BF16, F16 or F8_E8M0; or X_scale: one number, one for each row, or one for each block.
 *          M.input_scale may be present and is not used.
 *          value: code * scale
 *   nvfp4  ModelOpt: X U8 [.., R, C/2] (low nibble first), X_scale F8_E4M3 [.., R, ceil(C/16)],
 *          X_scale_2 F32 scalar. M.input_scale as above.
 *          value: E2M1(code) * (scale * scale_2)
 *   nf4    bitsandbytes: X of any dtype; its bytes hold ceil(n/2) pairs of codes, high nibble first
 *          (U8 [n/2, 1] unless quant_storage was set). X.absmax F32 [ceil(n/blocksize)],
 *          X.quant_map F32 [16], X.quant_state.bitsandbytes__nf4
 *          (JSON in U8: blocksize, dtype, shape, ...).
 *          Double quantization: absmax is U8, with X.nested_absmax F32 and X.nested_quant_map
 *          F32 [256]. Blocks run over the whole tensor, across rows.
 *          value: quant_map[code] * absmax
 *          absmax = nested_quant_map[code] * nested_absmax + nested_offset
 *
 * All products and sums are fp32, each rounded once. The libraries of these formats then round to
 * 16 bits, which ws_packed_rows does not. A negative zero of E2M1 or E4M3 stays negative. */
#ifndef WS_TRANSFORM_UNPACK_H
#define WS_TRANSFORM_UNPACK_H

#include "wsync/tool/buf.h"
#include "wsync/tool/catalog.h"
#include "wsync/tool/config.h"

enum ws_packing { WS_PACK_NONE, WS_PACK_FP8, WS_PACK_NVFP4, WS_PACK_NF4 };
const char *ws_packing_name(enum ws_packing p); /* "none", "fp8", ... */

enum { WS_PACK_PARTS = 6 };

/* One weight. It does not change once found, so any number of threads may use it. NONE: a plain
 * tensor; its rows can be read if it is F32, BF16 or F16. */
struct ws_packed {
	enum ws_packing packing;
	const struct ws_item *weight; /* its codes, or the plain tensor */
	unsigned n_dims;              /* of the decoded weight */
	int64_t dims[WS_MAX_DIMS];
	/* cols is the last of dims, rows all others; a vector is one row */
	int64_t rows, cols;
	enum ws_dtype dtype; /* type that its numbers are rounded to in use: NONE: its own;
	                      * nf4: the quant_state's; else BF16 */
	int64_t bn, bk;      /* numbers under one scale: fp8: rows and columns of a block; nvfp4: 1,
	                      * 16; nf4: 1, blocksize */
	/* the other tensors of the weight, in the order above; NULL: missing */
	const struct ws_item *parts[WS_PACK_PARTS];
	void *priv;
};

/* Describes the weight whose codes, or plain numbers, are this item. parts: the other tensors of
 * the weight, which the caller leaves out if it unpacks the weight. weight NULL: item is such a
 * part. WS_EINPUT, with names: shapes or types do not fit together, parts are missing, or the
 * packing is known and not unpacked (GPTQ, AWQ, int4, ...). MXFP4 of gpt-oss (_blocks, _scales) is
 * NONE. config: for block sizes; may be NULL. Of tensors, reads only single numbers and tables. */
int ws_packed_find(const struct ws_catalog *c, const struct ws_item *item,
                   const struct ws_quant *config, struct ws_packed *out, struct ws_err *err);
void ws_packed_free(struct ws_packed *p); /* zeros are fine */

/* Reads rows [row, row+n) as fp32, cols each. scratch belongs to one thread and may serve many
 * weights; it grows to 2 MiB, or to two rows if they are longer. WS_EINPUT, with tensor and
 * position: a code, a scale or their product is not finite. */
int ws_packed_rows(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                   struct ws_buf *scratch, struct ws_err *err);

#endif
