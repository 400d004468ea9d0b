/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank.h - adds scale * B @ A to a tile of numbers, in a fixed order of additions. */
#ifndef WS_TRANSFORM_LOWRANK_H
#define WS_TRANSFORM_LOWRANK_H

#include "floats.h"

/* The factors as fp32, packed for one tensor: b is [rows, rank] (row-major), a is
 * [rank, cols]. For each element: s = 0; for r rising, s = fma(b[i][r], a[r][j], s), rounded to
 * fp32 once; delta = s * scale, rounded again. The products of bf16 factors are exact in fp32,
 * so that for them it makes no difference whether a machine fuses or not. */
struct ws_lowrank {
	const float *a, *b;
	int64_t rank, cols;
	float scale;
};

/* delta[i][j] for the first n rows of b and columns [col, col+m); row i at delta + i * stride. */
void ws_lowrank_tile(const struct ws_lowrank *l, int64_t n, int64_t col, int64_t m, float *delta,
                     size_t stride);
/* ws_floats_add for BF16, faster. Ties go to even, a NaN stays a quiet NaN. */
void ws_merge_bf16(struct ws_sum_tile *t);

#endif
