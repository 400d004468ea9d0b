/* SPDX-License-Identifier: Apache-2.0 */
/* fp8.c - E4M3 in plain C, which defines the bits.
 *
 *   code   s eeee mmm: (-1)^s * 2^(e-7) * 1.mmm; e 0: (-1)^s * 2^-6 * 0.mmm; s 1111 111: NaN
 *
 * Rounding works on the bits of a float: magnitudes sort like integers, and a carry out of the
 * mantissa increments the exponent, in subnormals too. */
#include "fp8.h"

#include "float_bits.h"
#include "fp8_rows.h"
#include "simd.h"

#include <math.h>

enum {
	LARGEST = 0x43e00000,        /* 448 */
	SMALLEST_NORMAL = 0x3c800000, /* 2^-6 */
	HALF_A_STEP = 0x3a800000     /* 2^-10: a tie between zero and the least subnormal */
};

/* v / 2^n to the nearest integer, halves to even. */
static uint32_t shift_to_even(uint32_t v, unsigned n)
{
	return (v + (1u << (n - 1)) - 1 + (v >> n & 1)) >> n;
}

uint8_t ws_fp8_from_float(float x)
{
	const uint32_t bits = ws_float_bits(x), magnitude = bits & 0x7fffffff;
	const uint32_t sign = bits >> 24 & 0x80;
	if (magnitude >= LARGEST)
		return (uint8_t)(sign | (magnitude > 0x7f800000 ? 0x7f : 0x7e));
	if (magnitude >= SMALLEST_NORMAL)
		return (uint8_t)(sign | shift_to_even(magnitude - (120u << 23), 20));
	if (magnitude <= HALF_A_STEP)
		return (uint8_t)sign;
	return (uint8_t)(sign |
	                 shift_to_even((magnitude & 0x7fffff) | 0x800000, 141 - (magnitude >> 23)));
}

/* Eight codes for each exponent: subnormals, then significands 8 to 15. The last code is NaN. */
#define SEVEN(sign, first, unit)                                                                   \
	sign(first) * (unit), sign(first + 1) * (unit), sign(first + 2) * (unit),                  \
		sign(first + 3) * (unit), sign(first + 4) * (unit), sign(first + 5) * (unit),      \
		sign(first + 6) * (unit)
#define NORMAL(sign, e)                                                                            \
	SEVEN(sign, 8, (float)(1 << (e)) / 1024), sign 15 * ((float)(1 << (e)) / 1024)
#define HALF(sign)                                                                                 \
	SEVEN(sign, 0.0f, 0x1p-9f), sign 0x7p-9f, NORMAL(sign, 1), NORMAL(sign, 2),                \
		NORMAL(sign, 3), NORMAL(sign, 4), NORMAL(sign, 5), NORMAL(sign, 6),                \
		NORMAL(sign, 7), NORMAL(sign, 8), NORMAL(sign, 9), NORMAL(sign, 10),               \
		NORMAL(sign, 11), NORMAL(sign, 12), NORMAL(sign, 13), NORMAL(sign, 14),            \
		SEVEN(sign, 8, 32.0f), NAN
static const float values[256] = { HALF(+), HALF(-) };

float ws_fp8_to_float(uint8_t code)
{
	return values[code];
}

void ws_fp8_decode_row(const uint8_t *codes, int64_t col, int64_t cols, int64_t bk,
                       const float *scales, float *out)
{
	for (int64_t i = 0; i < cols;) {
		const float scale = scales[(col + i) / bk];
		const int64_t left = bk - (col + i) % bk;
		const int64_t end = left < cols - i ? i + left : cols;
		for (; i < end; i++)
			out[i] = values[codes[i]] * scale;
	}
}

/* ---- rows in plain C ------------------------------------------------------------------------- */

static float f32_at(const void *x, size_t i)
{
	return ((const float *)x)[i];
}

static float bf16_at(const void *x, size_t i)
{
	return ws_float_of((uint32_t)((const uint16_t *)x)[i] << 16);
}

#define ROWS(type) \
	static uint32_t amax_##type(const void *x, size_t n) \
	{ \
		uint32_t amax = 0; \
		for (size_t i = 0; i < n; i++) { \
			const uint32_t magnitude = ws_float_bits(type##_at(x, i)) & 0x7fffffff; \
			amax = magnitude > amax ? magnitude : amax; \
		} \
		return amax; \
	} \
\
	static void codes_##type(const struct ws_fp8_block *b) \
	{ \
		const uint8_t *x = b->x; \
		uint8_t *out = b->out; \
		for (size_t row = 0; row < b->rows; row++, x += b->stride, out += b->out_stride) \
			for (size_t i = 0; i < b->cols; i++) { \
				const float v = type##_at(x, i); \
				out[i] = ws_fp8_from_float(b->multiply ? v * b->by : v / b->by); \
			} \
	}
ROWS(f32)
ROWS(bf16)

const struct ws_fp8_kernels ws_fp8_scalar = {
	{ amax_f32, codes_f32 },
	{ amax_bf16, codes_bf16 },
};

const struct ws_fp8_kernels *ws_fp8_kernels(void)
{
#ifdef __x86_64__
	if (ws_simd_avx2())
		return &ws_fp8_avx2;
#endif
	return &ws_fp8_scalar;
}
