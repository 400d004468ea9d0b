/* SPDX-License-Identifier: Apache-2.0 */
/* floats.h - BF16, F16 and F32 to fp32 and back: to nearest, ties to even; NaN stays NaN. */
#ifndef WS_TRANSFORM_FLOATS_H
#define WS_TRANSFORM_FLOATS_H

#include "wsync/dtype.h"

bool ws_floats_known(enum ws_dtype dtype); /* BF16, F16 or F32 */
void ws_floats_read(enum ws_dtype dtype, const void *src, size_t n, float *dst);
void ws_floats_write(enum ws_dtype dtype, const float *src, size_t n, void *dst);
/* False: *at is the index of the first number that is not finite, *value its value. */
bool ws_floats_finite(enum ws_dtype dtype, const void *x, size_t n, size_t *at, double *value);
/* Are all finite and below 2^126 (F16: 2^15)? That is a fourth of the range (F16: half), far from
 * where sums overflow. */
bool ws_floats_moderate(enum ws_dtype dtype, const void *x, size_t n);

/* A tile of n rows and m columns: out = w + delta, rounded to the type of out once; two_step: delta
 * is rounded to that type first. Strides are elements from row to row. max_delta (of deltas as
 * added) and max_w rise to the largest magnitude. If an element is not finite, neither is its
 * maximum, so checking both maxima checks all elements. */
struct ws_sum_tile {
	const float *w, *delta;
	void *out;
	size_t w_stride, delta_stride, out_stride;
	int64_t n, m;
	bool two_step;
	float max_delta, max_w;
};
void ws_floats_add(enum ws_dtype dtype, struct ws_sum_tile *t);

#endif
