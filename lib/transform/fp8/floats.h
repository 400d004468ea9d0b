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
/* out = w + delta, rounded to dtype once; two_step: delta is rounded to it before. w and delta
 * have one stride; *max_delta and *max_w are raised, and NaN where there is one. */
void ws_floats_add(enum ws_dtype dtype, const float *w, const float *delta, size_t stride,
                   int64_t n, int64_t m, bool two_step, void *out, size_t out_stride,
                   float *max_delta, float *max_w);

#endif
