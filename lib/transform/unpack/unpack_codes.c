/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_codes.c - nibbles, F16 and BF16 to fp32 and back, in plain C, which defines the bits. */
#include "unpack_core.h"

#include "fp8.h"

#include <stdatomic.h>
#include <string.h>

static uint32_t bits_of(float x)
{
	uint32_t b;
	memcpy(&b, &x, sizeof b);
	return b;
}

static float of_bits(uint32_t b)
{
	float x;
	memcpy(&x, &b, sizeof x);
	return x;
}

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
		out[i] = of_bits((uint32_t)h << 16);
	}
}

/* A subnormal is its mantissa in steps of 2^-24; NaNs stay NaNs, quiet ones. */
static float from_half(uint16_t h)
{
	const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31,
		       mantissa = h & 1023;
	if (exponent == 31)
		return of_bits(sign | 0x7f800000 | (mantissa ? mantissa << 13 | 0x00400000 : 0));
	if (exponent == 0)
		return of_bits(sign | bits_of((float)mantissa * 0x1p-24f));
	return of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static void widen_f16(const uint8_t *src, size_t n, float *out)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t h;
		memcpy(&h, src + 2 * i, sizeof h);
		out[i] = from_half(h);
	}
}

static void round_bf16(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint32_t b = bits_of(x[i]);
		x[i] = of_bits((b + 0x7fff + (b >> 16 & 1)) & 0xffff0000);
	}
}

/* Adding and taking away a power of two whose last place is that of the half rounds to it; what
 * comes to 2^16 has no half. */
static float to_half(float x)
{
	const uint32_t sign = bits_of(x) & 0x80000000, a = bits_of(x) & 0x7fffffff;
	/* 2^-14, the smallest normal one */
	const uint32_t exponent = a >> 23 > 113 ? a >> 23 : 113;
	if (a >= 0x7f800000)
		return x;
	if (exponent >= 143)
		return of_bits(sign | 0x7f800000);
	const float magic = of_bits((exponent + 13) << 23);
	const float y = (of_bits(a) + magic) - magic;
	return of_bits(sign | (y >= 0x1p16f ? 0x7f800000 : bits_of(y)));
}

static void round_f16(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = to_half(x[i]);
}

static bool all_finite(const float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((bits_of(x[i]) & 0x7f800000) == 0x7f800000)
			return false;
	return true;
}

const struct ws_unpack_kernels ws_unpack_scalar = {
	"scalar",  decode_nibbles, decode_e4m3, widen_bf16,
	widen_f16, round_bf16,     round_f16,   all_finite,
};

/* ---- which of them ---- */

static _Atomic(const struct ws_unpack_kernels *) chosen;

static const struct ws_unpack_kernels *best(void)
{
#ifdef __x86_64__ /* what has these two has F16C */
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &ws_unpack_avx2;
#endif
	return &ws_unpack_scalar;
}

const struct ws_unpack_kernels *ws_unpack_kernels(void)
{
	const struct ws_unpack_kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
	if (!k) {
		k = best();
		atomic_store_explicit(&chosen, k, memory_order_relaxed);
	}
	return k;
}

const char *ws_unpack_level(void)
{
	return ws_unpack_kernels()->level;
}

bool ws_unpack_set_level(const char *level)
{
	const struct ws_unpack_kernels *k = best();
	if (strcmp(level, ws_unpack_scalar.level) == 0)
		k = &ws_unpack_scalar;
	if (strcmp(level, k->level) != 0)
		return false;
	atomic_store_explicit(&chosen, k, memory_order_relaxed);
	return true;
}
