/* SPDX-License-Identifier: Apache-2.0 */
/* formula.h - how the bytes of a made tensor come about, for whoever computes
 * them elsewhere than here.
 *
 * Rows of numbers: read, or unpacked from codes; changed by low-rank pairs; made FP8 or not.
 * Whoever follows it has the bits that lib/transform makes, or does not begin. It says where
 * bytes are and what is done to them, and nothing of catalogs or recipes. Not everything has
 * one: numbers of F16, types that are converted, and what no kernel does are made here.
 *
 * A number that is not finite makes no bytes; who finds one asks the span's fill for them, which
 * then says where it is and why not, or makes them after all. */
#ifndef WS_TRANSFORM_FORMULA_H
#define WS_TRANSFORM_FORMULA_H

#include "fp8.h"
#include "payload.h"
#include "unpack.h"

/* Rows [row, row+rows) += scale * b @ a. Both are dense fp32; a [rank, cols], b [rows, rank]. */
struct ws_formula_pair {
	int64_t row, rows, rank;
	float scale;
	struct ws_span a, b;
};

/* One of the two tensors that a formula makes: what struct ws_span points at. */
struct ws_formula_out {
	const struct ws_formula *formula;
	bool scales;                   /* or the numbers, or codes */
};

struct ws_formula {
	const char *name;              /* of the weight */
	int64_t rows, cols;
	enum ws_dtype dtype;           /* BF16 or F32: of the numbers, before they become FP8 */

	/* The numbers, row by row; or codes, and what they are unpacked with (unpack.h). */
	enum ws_packing packing;
	struct ws_payload base;
	/* fp8: fp32, whole; nvfp4: E4M3; nf4: fp32, or bytes where nested */
	struct ws_payload scales;
	struct ws_payload nested;      /* fp32 */
	int64_t n_scales;              /* of fp8; 1: one for all */
	int64_t each;                  /* fp8: rows of one matrix of a stack */
	int64_t bn, bk;                /* numbers under one scale */
	int64_t nested_block;          /* nf4: 0: not nested */
	float tensor_scale;            /* nvfp4 */
	const float *levels;           /* nf4: 16 */
	struct ws_span map;            /* nf4, where nested: 256 of fp32 */
	float nested_offset;

	/* In this order; of those that reach a row the deltas are added up and then to it, or
	 * with two_step rounded and added one by one. */
	const struct ws_formula_pair *pairs;
	size_t n_pairs;
	bool two_step;

	bool quantized;
	struct ws_fp8_rule rule;       /* its blocks are no larger than the weight */

	struct ws_formula_out out[2];  /* numbers or codes; scales */
};

/* The largest |delta|, as added, and |w| that were met where it was followed, for the report. */
void ws_formula_note(const struct ws_formula *f, float max_delta, float max_w);

#endif
