/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_avx512.c - rows of fp8.c, 16 elements at a time, rests by masks.
 *
 * Rounds as fp8_avx2.c does. A masked element reads as zero, whose magnitude raises nothing. */
#include "fp8_rows.h"
#include "fp8_table.h"

#if !defined(__AVX512BW__) || !defined(__AVX512VL__)

const struct ws_fp8_level *ws_fp8_avx512(void)
{
	return NULL;
}

#else

#include <immintrin.h>

enum { STEP = 16 };

/* The bits of 16 elements as floats. */
static __m512i load_f32(const float *x, __mmask16 mask)
{
	return _mm512_maskz_loadu_epi32(mask, x);
}

static __m512i load_bf16(const uint16_t *x, __mmask16 mask)
{
	return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16);
}

static __mmask16 first(size_t n)
{
	return (__mmask16)(n >= STEP ? 0xffff : (1u << n) - 1);
}

static __m512i magnitude(__m512i bits)
{
	return _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
}

/* |y| to codes without sign, in 32 bits each. */
static __m512i round16(__m512 y)
{
	const __m512i exponent = _mm512_set1_epi32(0x7f800000),
		      normal = _mm512_set1_epi32(121 << 23);
	y = _mm512_min_ps(y, _mm512_set1_ps(448));
	__m512i e = _mm512_and_si512(_mm512_castps_si512(y), exponent);
	e = _mm512_max_epi32(e, normal);
	const __m512i magic = _mm512_add_epi32(e, _mm512_set1_epi32(20 << 23));
	const __m512 sum = _mm512_add_ps(y, _mm512_castsi512_ps(magic));
	const __m512i mantissa = _mm512_sub_epi32(_mm512_castps_si512(sum), magic);
	return _mm512_add_epi32(mantissa, _mm512_srli_epi32(_mm512_sub_epi32(e, normal), 20));
}

static void store(uint8_t *out, __mmask16 mask, __m512i codes, __m512i x)
{
	const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(x, 24), _mm512_set1_epi32(0x80));
	_mm512_mask_cvtepi32_storeu_epi8(out, mask, _mm512_or_si512(codes, sign));
}

#define ROWS(type, element)                                                                        \
	static uint32_t amax_##type(const void *x, size_t n)                                       \
	{                                                                                          \
		const element *const run = x;                                                      \
		__m512i amax = _mm512_setzero_si512();                                             \
		for (size_t i = 0; i < n; i += STEP)                                               \
			amax = _mm512_max_epu32(amax,                                              \
			                        magnitude(load_##type(run + i, first(n - i))));    \
		return _mm512_reduce_max_epu32(amax);                                              \
	}                                                                                          \
                                                                                                   \
	static void round_##type(const struct ws_fp8_block *b)                                     \
	{                                                                                          \
		const uint8_t *x = b->x;                                                           \
		uint8_t *out = b->out;                                                             \
		const __m512 by = _mm512_set1_ps(b->by);                                           \
		for (size_t row = 0; row < b->rows; row++, x += b->stride, out += b->out_stride)   \
			for (size_t i = 0; i < b->cols; i += STEP) {                               \
				const __mmask16 mask = first(b->cols - i);                         \
				const __m512i v =                                                  \
					load_##type((const element *)(const void *)x + i, mask);   \
				const __m512 m = _mm512_castsi512_ps(magnitude(v));                \
				const __m512 y =                                                   \
					b->multiply ? _mm512_mul_ps(m, by) : _mm512_div_ps(m, by); \
				store(out + i, mask, round16(y), v);                               \
			}                                                                          \
	}
ROWS(f32, float)
ROWS(bf16, uint16_t)

/* A table of bytes beats floats of any width, and memory is the limit from there on. */
static void codes_bf16(const struct ws_fp8_block *b)
{
	const struct ws_fp8_level *const table =
		b->rows * b->cols >= WS_FP8_TABLE_WORTH ? ws_fp8_avx2() : NULL;
	if (table)
		table->bf16.codes(b);
	else
		round_bf16(b);
}

const struct ws_fp8_level *ws_fp8_avx512(void)
{
	static const struct ws_fp8_level level = {
		"avx512",
		{ amax_f32, round_f32 },
		{ amax_bf16, codes_bf16 },
	};
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	                       __builtin_cpu_supports("avx512dq") &&
	                       __builtin_cpu_supports("avx512vl") ?
	               &level :
	               NULL;
}

#endif
