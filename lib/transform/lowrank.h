/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank.h - adds scale * B @ A to a tile of numbers, in a fixed order of additions. */
#ifndef WS_TRANSFORM_LOWRANK_H
#define WS_TRANSFORM_LOWRANK_H

#include <stddef.h>
#include <stdint.h>

/* The factors as fp32, packed by whoever merges one tensor: b is [rows, rank] (row-major), a is
 * [rank, cols]. For each element: sum over r of b[i][r] * a[r][j] with r rising, each product and each
 * sum rounded to fp32 (no contraction unless `fused` says so on every level alike), then times scale. */
struct ws_lowrank {
	const float *a, *b;
	int64_t rank, cols;
	float scale;
};

/* delta[i][j] for rows [row, row+n) and columns [col, col+m); row i at delta + (i - row) * stride. */
void ws_lowrank_tile(const struct ws_lowrank *l, int64_t row, int64_t n, int64_t col, int64_t m,
                     float *delta, size_t stride);
/* w = round(w + delta) to bf16, w in and out as fp32 tile of n x m or straight to bf16 codes. two_step
 * rounds delta to bf16 first. Returns the largest |delta| and *|w| of the tile. */
void ws_merge_bf16(const float *w, size_t w_stride, const float *delta, size_t delta_stride, int64_t n,
                   int64_t m, int two_step, uint16_t *out, size_t out_stride, float *max_delta,
                   float *max_w);

#endif
