/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_avx2.c - rows of fp8.c, 32 elements at a time.
 *
 * Rounding is left to an addition: y + 2^(e+20), where 2^e is y's power of two and at least E4M3's least
 * normal one, has no mantissa bits below 2^(e-3), so the sum's low bits are the code's mantissa (16 or 8
 * plus it, a carry included) and e its exponent. Rests of a run are done by a step that ends with the
 * run and does some elements twice; shorter runs are done from a copy. */
#include "fp8_rows.h"

#ifndef __AVX2__

const struct ws_fp8_level *ws_fp8_avx2(void)
{
	return NULL;
}

#else

#include <immintrin.h>
#include <string.h>

enum { STEP = 32 };

/* ---- amax --------------------------------------------------------------------------------------- */

static __m256i load(const void *x)
{
	return _mm256_loadu_si256(x);
}

static uint32_t largest_of_8(__m256i v)
{
	__m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
	m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
	return (uint32_t)_mm_cvtsi128_si32(m);
}

static __m256i raise_f32(__m256i amax, const float *x)
{
	const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
#pragma GCC unroll 4
	for (int i = 0; i < STEP; i += 8)
		amax = _mm256_max_epu32(amax, _mm256_and_si256(load(x + i), magnitude));
	return amax;
}

static __m256i raise_bf16(__m256i amax, const uint16_t *x)
{
	const __m256i magnitude = _mm256_set1_epi16(0x7fff);
#pragma GCC unroll 4
	for (int i = 0; i < STEP; i += 16)
		amax = _mm256_max_epu16(amax, _mm256_and_si256(load(x + i), magnitude));
	return amax;
}

static uint32_t largest_f32(__m256i amax)
{
	return largest_of_8(amax);
}

/* The upper word of a pair decides which is greater, so with the lower moved there both are seen. */
static uint32_t largest_bf16(__m256i amax)
{
	const __m256i upper = _mm256_max_epu32(amax, _mm256_slli_epi32(amax, 16));
	return largest_of_8(upper) & 0xffff0000;
}

/* ---- codes -------------------------------------------------------------------------------------- */

/* |y| to codes without sign, in 32 bits each. */
static __m256i round8(__m256 y)
{
	const __m256i exponent = _mm256_set1_epi32(0x7f800000), normal = _mm256_set1_epi32(121 << 23);
	y = _mm256_min_ps(y, _mm256_set1_ps(448));
	__m256i e = _mm256_and_si256(_mm256_castps_si256(y), exponent);
	e = _mm256_max_epi32(e, normal);
	const __m256i magic = _mm256_add_epi32(e, _mm256_set1_epi32(20 << 23));
	const __m256 sum = _mm256_add_ps(y, _mm256_castsi256_ps(magic));
	const __m256i mantissa = _mm256_sub_epi32(_mm256_castps_si256(sum), magic);
	return _mm256_add_epi32(mantissa, _mm256_srli_epi32(_mm256_sub_epi32(e, normal), 20));
}

static __m256 scale8(__m256 x, __m256 by, bool multiply)
{
	return multiply ? _mm256_mul_ps(x, by) : _mm256_div_ps(x, by);
}

/* Packing works within halves of a register; this puts 32 bytes back in order. */
static void store_in_order(uint8_t *out, __m256i codes)
{
	const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	_mm256_storeu_si256((void *)out, _mm256_permutevar8x32_epi32(codes, order));
}

static inline __attribute__((always_inline)) void step_f32(const float *x, __m256 by, bool multiply,
                                                            uint8_t *out)
{
	const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
	__m256i v[4], c[4];
#pragma GCC unroll 4
	for (int i = 0; i < 4; i++) {
		v[i] = load(x + 8 * i);
		c[i] = round8(scale8(_mm256_and_ps(_mm256_castsi256_ps(v[i]), magnitude), by, multiply));
	}
	/* Saturation leaves the sign of what is packed. */
	const __m256i codes = _mm256_packus_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
	const __m256i signs = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
	const __m256i sign = _mm256_and_si256(signs, _mm256_set1_epi8((char)0x80));
	store_in_order(out, _mm256_or_si256(codes, sign));
}

static inline __attribute__((always_inline)) void step_bf16(const uint16_t *x, __m256 by, bool multiply,
                                                             uint8_t *out)
{
	const __m256i magnitude = _mm256_set1_epi16(0x7fff), zero = _mm256_setzero_si256();
	__m256i v[2], c[2];
#pragma GCC unroll 4
	for (int i = 0; i < 2; i++) {
		v[i] = load(x + 16 * i);
		const __m256i m = _mm256_and_si256(v[i], magnitude);
		const __m256 low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, m));
		const __m256 high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, m));
		c[i] = _mm256_packs_epi32(round8(scale8(low, by, multiply)), round8(scale8(high, by, multiply)));
	}
	const __m256i codes = _mm256_packus_epi16(c[0], c[1]);
	const __m256i sign = _mm256_and_si256(_mm256_packs_epi16(v[0], v[1]), _mm256_set1_epi8((char)0x80));
	_mm256_storeu_si256((void *)out, _mm256_permute4x64_epi64(_mm256_or_si256(codes, sign), 0xd8));
}

/* ---- runs --------------------------------------------------------------------------------------- */

#define RUN(verb, type, element, multiply) \
	static void verb##_##type(const void *x, size_t n, float by, uint8_t *out) \
	{ \
		const element *const run = x; \
		const __m256 all = _mm256_set1_ps(by); \
		for (size_t i = 0; i + STEP <= n; i += STEP) \
			step_##type(run + i, all, multiply, out + i); \
		if (n % STEP && n > STEP) { \
			step_##type(run + n - STEP, all, multiply, out + n - STEP); \
		} else if (n % STEP) { \
			element copy[STEP] = { 0 }; \
			uint8_t codes[STEP]; \
			memcpy(copy, run, n * sizeof copy[0]); \
			step_##type(copy, all, multiply, codes); \
			memcpy(out, codes, n); \
		} \
	}

#define ROWS(type, element) \
	static uint32_t amax_##type(const void *x, size_t n) \
	{ \
		const element *const run = x; \
		__m256i amax = _mm256_setzero_si256(); \
		for (size_t i = 0; i + STEP <= n; i += STEP) \
			amax = raise_##type(amax, run + i); \
		if (n % STEP && n > STEP) { \
			amax = raise_##type(amax, run + n - STEP); \
		} else if (n % STEP) { \
			element copy[STEP] = { 0 }; \
			memcpy(copy, run, n * sizeof copy[0]); \
			amax = raise_##type(amax, copy); \
		} \
		return largest_##type(amax); \
	} \
	RUN(divide, type, element, false) \
	RUN(multiply, type, element, true)
ROWS(f32, float)
ROWS(bf16, uint16_t)

const struct ws_fp8_level *ws_fp8_avx2(void)
{
	static const struct ws_fp8_level level = {
		"avx2",
		{ amax_f32, divide_f32, multiply_f32 },
		{ amax_bf16, divide_bf16, multiply_bf16 },
	};
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &level : NULL;
}

#endif
