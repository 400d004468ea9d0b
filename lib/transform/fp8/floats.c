/* SPDX-License-Identifier: Apache-2.0 */
#include "floats.h"

#include "float_bits.h"
#include "unpack_core.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256 }; /* of constant length, for the compiler to make vectors of */

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
	/* subnormals are steps of 2^-24, half a unit of 0.5's last place twice */
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

/* ---- what is not finite ---------------------------------------------------------------------- */

static float number_at(enum ws_dtype dtype, const void *x, size_t i)
{
	float out;
	ws_floats_read(dtype, (const char *)x + i * (ws_dtype_bits(dtype) / 8), 1, &out);
	return out;
}

/* Magnitudes sort like integers. limit: as the type has it, of F32 the upper half. */
static bool block_is_below(enum ws_dtype dtype, const void *x, uint16_t limit)
{
	uint32_t bad = 0;
	if (dtype == WS_DTYPE_F32) {
		const uint32_t *u = x, wide = (uint32_t)limit << 16;
		for (int i = 0; i < BLOCK; i++)
			bad |= (u[i] & 0x7fffffff) >= wide;
	} else {
		const uint16_t *h = x;
		uint16_t any = 0;
		for (int i = 0; i < BLOCK; i++)
			any |= (uint16_t)((h[i] & 0x7fff) >= limit);
		bad = any;
	}
	return !bad;
}

static bool block_is_finite(enum ws_dtype dtype, const void *x)
{
	return block_is_below(dtype, x, dtype == WS_DTYPE_F16 ? 0x7c00 : 0x7f80);
}

bool ws_floats_moderate(enum ws_dtype dtype, const void *x, size_t n)
{
	const size_t size = ws_dtype_bits(dtype) / 8, blocks = n / BLOCK;
	const uint16_t limit = dtype == WS_DTYPE_F16 ? 0x7800 : 0x7e80;
	const char *at = x;
	bool all = true;
	for (size_t i = 0; all && i < blocks; i++, at += BLOCK * size)
		all = block_is_below(dtype, at, limit);
	for (size_t i = 0; all && i < n % BLOCK; i++) {
		const float v = fabsf(number_at(dtype, at, i));
		all = v < (dtype == WS_DTYPE_F16 ? 0x1p15f : 0x1p126f);
	}
	return all;
}

bool ws_floats_finite(enum ws_dtype dtype, const void *x, size_t n, size_t *at, double *value)
{
	const size_t size = ws_dtype_bits(dtype) / 8;
	for (size_t i = 0; i < n;) {
		if (n - i >= BLOCK && block_is_finite(dtype, (const char *)x + i * size)) {
			i += BLOCK;
			continue;
		}
		for (const size_t end = n - i < BLOCK ? n : i + BLOCK; i < end; i++) {
			const float v = number_at(dtype, x, i);
			if (isfinite(v))
				continue;
			*at = i;
			*value = v;
			return false;
		}
	}
	return true;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static float raised(float max, float x)
{
	const float a = fabsf(x);
	return a <= max ? max : a; /* NaN is taken, and stays */
}

void ws_floats_add(enum ws_dtype dtype, const float *w, const float *delta, size_t stride,
                   int64_t n, int64_t m, bool two_step, void *out, size_t out_stride,
                   float *max_delta, float *max_w)
{
	const size_t size = ws_dtype_bits(dtype) / 8;
	float largest_delta = *max_delta, largest_w = *max_w;
	for (int64_t i = 0; i < n; i++) {
		const float *a = w + (size_t)i * stride, *b = delta + (size_t)i * stride;
		char *to = (char *)out + (size_t)i * out_stride * size;
		for (int64_t j = 0; j < m; j++, to += size) {
			float d = b[j];
			if (two_step) {
				uint32_t raw; /* of any of the types */
				ws_floats_write(dtype, &d, 1, &raw);
				ws_floats_read(dtype, &raw, 1, &d);
			}
			const float sum = a[j] + d;
			ws_floats_write(dtype, &sum, 1, to);
			if (largest_delta == largest_delta)
				largest_delta = raised(largest_delta, d);
			if (largest_w == largest_w)
				largest_w = raised(largest_w, a[j]);
		}
	}
	*max_delta = largest_delta;
	*max_w = largest_w;
}
