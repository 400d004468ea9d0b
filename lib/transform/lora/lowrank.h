/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank.h - adds scale * B @ A to a tile of numbers, in a fixed order of additions. */
#ifndef WS_TRANSFORM_LOWRANK_H
#define WS_TRANSFORM_LOWRANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The factors as fp32, packed for one tensor: b is [rows, rank] (row-major), a is
 * [rank, cols]. For each element: s = 0; for r rising, s = fma(b[i][r], a[r][j], s), rounded to
 * fp32 once; delta = s * scale, rounded again. The products of bf16 factors are exact in fp32,
 * so that for them it makes no difference whether a machine fuses or not. */
struct ws_lowrank {
	const float *a, *b;
	int64_t rank, cols;
	float scale;
};

/* delta[i][j] for rows [row, row+n) and columns [col, col+m); row i at delta + (i - row) *
 * stride. */
void ws_lowrank_tile(const struct ws_lowrank *l, int64_t row, int64_t n, int64_t col, int64_t m,
                     float *delta, size_t stride);
/* out = bf16(w + delta) for a tile of n x m; two_step rounds delta to bf16 first. Ties go
 * to even, a NaN stays a quiet NaN. *max_delta and *max_w are set to the largest |delta| (as added)
 * and |w| of the tile. They are infinite or NaN if an element is, so checking them checks all. */
void ws_merge_bf16(const float *w, size_t w_stride, const float *delta, size_t delta_stride,
                   int64_t n, int64_t m, int two_step, uint16_t *out, size_t out_stride,
                   float *max_delta, float *max_w);

#endif
