/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_codes.c - nibbles, E4M3, F16 and BF16 to fp32, in plain C, which defines the bits. */
#include "unpack_core.h"

#include "float_bits.h"
#include "fp8.h"
#include "simd.h"

#include <string.h>

/* Elements [first, first+n) of one block. */
static void decode_block(const struct ws_nibbles *s, int64_t first, int64_t n, float scale,
                         float *out)
{
	for (int64_t i = 0; i < n; i++) {
		const int64_t e = first + i;
		const bool high = (e % 2 == 0) == s->high_first;
		out[i] = s->levels[high ? s->codes[e / 2] >> 4 : s->codes[e / 2] & 15] * scale;
	}
}

static void decode_nibbles(const struct ws_nibbles *s, int64_t first, int64_t n, float *out)
{
	while (n > 0) {
		const int64_t left = s->block - first % s->block;
		const int64_t m = n < left ? n : left;
		decode_block(s, first, m, s->scales[first / s->block], out);
		first += m;
		out += m;
		n -= m;
	}
}

static void decode_e4m3(const uint8_t *codes, int64_t n, int64_t block, const float *scales,
                        float *out)
{
	ws_fp8_decode_row(codes, 0, n, block, scales, out);
}

static void widen_bf16(const uint8_t *src, size_t n, float *out)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t h;
		memcpy(&h, src + 2 * i, sizeof h);
		out[i] = ws_float_of((uint32_t)h << 16);
	}
}

/* A subnormal is its mantissa times 2^-24. A NaN becomes a quiet NaN. */
static float from_half(uint16_t h)
{
	const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31,
		       mantissa = h & 1023;
	if (exponent == 31)
		return ws_float_of(sign | 0x7f800000 |
		                   (mantissa ? mantissa << 13 | 0x00400000 : 0));
	if (exponent == 0)
		return ws_float_of(sign | ws_float_bits((float)mantissa * 0x1p-24f));
	return ws_float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

static void widen_f16(const uint8_t *src, size_t n, float *out)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t h;
		memcpy(&h, src + 2 * i, sizeof h);
		out[i] = from_half(h);
	}
}

static bool all_finite(const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((ws_float_bits(x[i]) & 0x7f800000) == 0x7f800000)
			return false;
	return true;
}

const struct ws_unpack_kernels ws_unpack_scalar = {
	decode_nibbles, decode_e4m3, widen_bf16, widen_f16, all_finite,
};

const struct ws_unpack_kernels *ws_unpack_kernels(void)
{
#ifdef __x86_64__
	if (ws_simd_avx2())
		return &ws_unpack_avx2;
#endif
	return &ws_unpack_scalar;
}
