/* SPDX-License-Identifier: Apache-2.0 */
/* transform_recipe.h - describes how to compute a tensor, for code that does so elsewhere (a GPU).
 *
 * Rows of numbers are read, or unpacked from codes; low-rank terms are added; the result is
 * quantized to FP8 or not. A recipe names the bytes and the operations on them, and knows no
 * catalogs. An implementation must give the bits of lib/transform, or leave the tensor to
 * lib/transform. Not every tensor has a recipe: F16 numbers, converted types, and cases without a
 * kernel are computed by lib/transform.
 *
 * If an implementation finds a number that is not finite, it calls the span's fill instead. The
 * fill reports the position and the cause, or makes the bytes after all. */
#ifndef WS_TRANSFORM_TRANSFORM_RECIPE_H
#define WS_TRANSFORM_TRANSFORM_RECIPE_H

#include "fp8.h"
#include "payload.h"
#include "unpack.h"

/* Rows [row, row+rows) += scale * b @ a. Both are dense fp32; a [rank, cols], b [rows, rank]. */
struct ws_lora_term {
	int64_t row, rows, rank;
	float scale;
	struct ws_span a, b;
};

/* One of the two outputs of a recipe; struct ws_span points to it. */
struct ws_recipe_output {
	const struct ws_transform_recipe *recipe;
	bool scales; /* else the numbers, or codes */
};

struct ws_transform_recipe {
	const char *name; /* the weight */
	int64_t rows, cols;
	enum ws_dtype dtype; /* BF16 or F32: type of the numbers, before FP8 */

	/* The numbers, row by row; or codes with their scales (unpack.h). */
	enum ws_packing packing;
	struct ws_payload base;
	/* fp8: fp32; nvfp4: E4M3; nf4: fp32, or bytes if nested */
	struct ws_payload scales;
	struct ws_payload nested; /* fp32 */
	int64_t n_scales;         /* fp8; 1: one for all */
	int64_t each;             /* fp8: rows of one matrix of a stack */
	int64_t bn, bk;           /* numbers under one scale */
	int64_t nested_block;     /* nf4: 0: not nested */
	float tensor_scale;       /* nvfp4 */
	const float *levels;      /* nf4: 16 */
	struct ws_span map;       /* nf4, nested: 256 fp32 values */
	float nested_offset;

	/* Applied in this order. The deltas of the terms that reach a row are summed, then added to
	 * it; two_step: each delta is rounded and added by itself. */
	const struct ws_lora_term *terms;
	size_t n_terms;
	bool two_step;

	bool quantized;
	struct ws_fp8_rule rule; /* blocks are no larger than the weight */

	struct ws_recipe_output out[2]; /* numbers or codes; scales */
};

/* Records the largest |delta|, as added, and |w| of an implementation, for the report. */
void ws_recipe_note(const struct ws_transform_recipe *f, float max_delta, float max_w);

struct ws_fused_weight;
/* Describes a weight. *out NULL: it has no recipe. The weight must outlive the recipe. */
int ws_recipe_make(struct ws_fused_weight *p, struct ws_transform_recipe **out, struct ws_err *err);
void ws_recipe_free(struct ws_transform_recipe *f); /* NULL is fine */

#endif
