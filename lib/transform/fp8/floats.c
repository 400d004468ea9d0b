/* SPDX-License-Identifier: Apache-2.0 */
#include "floats.h"

#include "float_bits.h"
#include "unpack_core.h"

#include <string.h>

enum { BLOCK = 256 }; /* constant, so that the compiler can vectorize */

bool ws_floats_known(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_BF16 || dtype == WS_DTYPE_F16 || dtype == WS_DTYPE_F32;
}

static uint16_t to_f16(float x)
{
	const uint32_t u = ws_float_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	if (a > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
	if (a >= 0x477ff000) /* from 65520 on */
		return (uint16_t)(sign | 0x7c00);
	/* subnormals are multiples of 2^-24, the last place of 0.5: adding 0.5 rounds to them */
	if (a < 0x38800000)
		return (uint16_t)(sign |
		                  (ws_float_bits(ws_float_of(a) + 0.5f) - ws_float_bits(0.5f)));
	return (uint16_t)(sign | (a - (UINT32_C(112) << 23) + 0xfff + (a >> 13 & 1)) >> 13);
}

void ws_floats_read(enum ws_dtype dtype, const void *src, size_t n, float *dst)
{
	if (dtype == WS_DTYPE_F32)
		memcpy(dst, src, n * sizeof *dst);
	else if (dtype == WS_DTYPE_BF16)
		ws_unpack_kernels()->widen_bf16(src, n, dst);
	else
		ws_unpack_kernels()->widen_f16(src, n, dst);
}

void ws_floats_write(enum ws_dtype dtype, const float *src, size_t n, void *dst)
{
	uint16_t *h = dst;
	if (dtype == WS_DTYPE_F32)
		memmove(dst, src, n * sizeof *src);
	else if (dtype == WS_DTYPE_BF16)
		for (size_t i = 0; i < n; i++)
			h[i] = ws_to_bf16(src[i]);
	else
		for (size_t i = 0; i < n; i++)
			h[i] = to_f16(src[i]);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Magnitudes sort like integers. limit: bits of the type; for F32 only the upper half. */
static inline bool are_below(enum ws_dtype dtype, const void *x, size_t n, uint16_t limit)
{
	const uint32_t *u = x, wide = (uint32_t)limit << 16;
	const uint16_t *h = x;
	uint32_t bad = 0;
	uint16_t bad_half = 0;
	if (dtype == WS_DTYPE_F32)
		for (size_t i = 0; i < n; i++)
			bad |= (u[i] & 0x7fffffff) >= wide;
	else
		for (size_t i = 0; i < n; i++)
			bad_half = (uint16_t)(bad_half | ((h[i] & 0x7fff) >= limit));
	return !bad && !bad_half;
}

/* Start of the first block with an element at or above the limit; n: there is none. */
static size_t block_beyond(enum ws_dtype dtype, const void *x, size_t n, uint16_t limit)
{
	const size_t size = ws_dtype_bits(dtype) / 8;
	const char *at = x;
	size_t i = 0;
	for (; n - i >= BLOCK; i += BLOCK, at += BLOCK * size)
		if (!are_below(dtype, at, BLOCK, limit))
			return i;
	return are_below(dtype, at, n - i, limit) ? n : i;
}

bool ws_floats_moderate(enum ws_dtype dtype, const void *x, size_t n)
{
	return block_beyond(dtype, x, n, dtype == WS_DTYPE_F16 ? 0x7800 : 0x7e80) == n;
}

bool ws_floats_finite(enum ws_dtype dtype, const void *x, size_t n, size_t *at, double *value)
{
	const size_t size = ws_dtype_bits(dtype) / 8;
	const uint16_t limit = dtype == WS_DTYPE_F16 ? 0x7c00 : 0x7f80;
	size_t i = block_beyond(dtype, x, n, limit);
	float v;
	if (i == n)
		return true;
	while (are_below(dtype, (const char *)x + i * size, 1, limit))
		i++;
	ws_floats_read(dtype, (const char *)x + i * size, 1, &v);
	*at = i;
	*value = v;
	return false;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* NaN is above all numbers. */
static uint32_t raised(uint32_t max, float x)
{
	const uint32_t a = ws_float_bits(x) & 0x7fffffff;
	return a > max ? a : max;
}

/* At most BLOCK numbers of a row. max: bits of the largest |delta| and |w|. */
static void add_some(enum ws_dtype dtype, const float *w, const float *delta, size_t n,
                     bool two_step, void *out, uint32_t max[2])
{
	float d[BLOCK], sum[BLOCK];
	uint32_t raw[BLOCK]; /* large enough for any type */
	uint32_t max_delta = max[0], max_w = max[1];
	memcpy(d, delta, n * sizeof *d);
	if (two_step) {
		ws_floats_write(dtype, d, n, raw);
		ws_floats_read(dtype, raw, n, d);
	}
	for (size_t i = 0; i < n; i++) {
		sum[i] = w[i] + d[i];
		max_delta = raised(max_delta, d[i]);
		max_w = raised(max_w, w[i]);
	}
	ws_floats_write(dtype, sum, n, out);
	max[0] = max_delta;
	max[1] = max_w;
}

void ws_floats_add(enum ws_dtype dtype, struct ws_sum_tile *t)
{
	const size_t size = ws_dtype_bits(dtype) / 8;
	uint32_t max[2] = { ws_float_bits(t->max_delta), ws_float_bits(t->max_w) };
	for (int64_t i = 0; i < t->n; i++) {
		const float *a = t->w + (size_t)i * t->w_stride,
			    *b = t->delta + (size_t)i * t->delta_stride;
		char *to = (char *)t->out + (size_t)i * t->out_stride * size;
		for (int64_t j = 0; j < t->m; j += BLOCK, to += BLOCK * size)
			add_some(dtype, a + j, b + j,
			         (size_t)(t->m - j < BLOCK ? t->m - j : BLOCK), t->two_step, to,
			         max);
	}
	t->max_delta = ws_float_of(max[0]);
	t->max_w = ws_float_of(max[1]);
}
