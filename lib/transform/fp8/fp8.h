/* SPDX-License-Identifier: Apache-2.0 */
/* fp8.h - quantizes blocks of numbers to E4M3, with one scale for each block.
 *
 * E4M3FN: 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448; no infinity;
 * subnormals in steps of 2^-9. Rounding is to nearest, ties to even, after clamping to
 * +-448. All arithmetic is fp32 without contraction: the results are the same bits on every
 * machine. A zero keeps its sign. */
#ifndef WS_TRANSFORM_FP8_H
#define WS_TRANSFORM_FP8_H

#include "wsync/transform.h"

#include <stddef.h>
#include <stdint.h>

uint8_t ws_fp8_from_float(float x); /* finite; clamps */
float ws_fp8_to_float(uint8_t code);

struct ws_fp8_rule {
	enum ws_scale_rule rule;
	bool ue8m0;
	int64_t bn, bk; /* block rows and columns, > 0 */
};

/* An element that is not finite. */
struct ws_fp8_bad {
	int64_t row, col;
	float value;
};

/* rows x cols of a tensor, all in one row of blocks: rows is at most bn. Row r begins r * stride
 * elements after x. Blocks are counted from the first column; a ragged one is padded with 0. */
struct ws_fp8_band {
	const void *x;
	bool is_f32; /* else BF16 */
	size_t stride;
	int64_t rows, cols;
};

/* scales gets ceil(cols / bk) values. False: *bad is the first element that is not finite; scales
 * are then undefined. */
bool ws_fp8_scales(const struct ws_fp8_rule *r, const struct ws_fp8_band *b, float *scales,
                   struct ws_fp8_bad *bad);
/* The scale of a block with this largest magnitude. */
float ws_fp8_scale(const struct ws_fp8_rule *r, float amax);
/* Needs the result of ws_fp8_scales. codes: row r at codes + r * codes_stride. */
void ws_fp8_codes(const struct ws_fp8_rule *r, const struct ws_fp8_band *b, const float *scales,
                  uint8_t *codes, size_t codes_stride);

/* Decodes cols codes of one row, from column col on: out = code * scale of its block (fp32). */
void ws_fp8_decode_row(const uint8_t *codes, int64_t col, int64_t cols, int64_t bk,
                       const float *scales, float *out);

#endif
