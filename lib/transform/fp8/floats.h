/* SPDX-License-Identifier: Apache-2.0 */
/* floats.h - rows of BF16, F16 and F32 to fp32 and back: nearest, ties to even; NaN stays NaN. */
#ifndef WS_TRANSFORM_FLOATS_H
#define WS_TRANSFORM_FLOATS_H

#include "wsync/dtype.h"

bool ws_floats_known(enum ws_dtype dtype); /* one of the three */
void ws_floats_read(enum ws_dtype dtype, const void *src, size_t n, float *dst);
void ws_floats_write(enum ws_dtype dtype, const float *src, size_t n, void *dst);
/* False: *at is the first that is not finite, *value is it. */
bool ws_floats_finite(enum ws_dtype dtype, const void *x, size_t n, size_t *at, double *value);
/* All are finite and below 2^126 (F16: 2^15), a fourth of the range (a half): far
 * from where sums overflow. */
bool ws_floats_moderate(enum ws_dtype dtype, const void *x, size_t n);

/* A tile of n rows and m columns: out = w + delta, rounded to out's type once; two_step: delta is
 * rounded to it before. Strides are elements from row to row. max_delta (of the deltas as added)
 * and max_w are raised to the largest magnitude; infinite or NaN if an element is, so checking
 * them checks all. */
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
