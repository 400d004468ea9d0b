/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_avx2.c - rows of fp8.c, 32 elements at a time.
 *
 * An addition does the rounding. 2^e is the power of two of y, at least 2^-6, the least normal one.
 * The sum y + 2^(e+20) has no bits below 2^(e-3), so its low bits are y / 2^(e-3), rounded: 8 plus
 * the mantissa of the code (16 after a carry), or a subnormal code. e gives the code's exponent.
 * The rest of a run is done by a step that ends with the run and repeats some elements. Runs
 * shorter than a step are done in a copy. */
#include "fp8_rows.h"
#include "fp8_table.h"

#ifdef __AVX2__
#include <immintrin.h>
#include <string.h>

enum { STEP = 32 };

/* ---- amax ------------------------------------------------------------------------------------ */

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

/* The upper words decide a 32-bit maximum. The shifted copy has the lower words there, so both are
 * compared. */
static uint32_t largest_bf16(__m256i amax)
{
	const __m256i upper = _mm256_max_epu32(amax, _mm256_slli_epi32(amax, 16));
	return largest_of_8(upper) & 0xffff0000;
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* |y| to codes without sign, in 32 bits each. */
static __m256i round8(__m256 y)
{
	const __m256i exponent = _mm256_set1_epi32(0x7f800000),
		      normal = _mm256_set1_epi32(121 << 23);
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

/* Packing works within halves of a register; this restores the order of 32 bytes. */
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
		c[i] = round8(
			scale8(_mm256_and_ps(_mm256_castsi256_ps(v[i]), magnitude), by, multiply));
	}
	/* Saturating packs keep the sign. */
	const __m256i codes =
		_mm256_packus_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
	const __m256i signs =
		_mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
	const __m256i sign = _mm256_and_si256(signs, _mm256_set1_epi8((char)0x80));
	store_in_order(out, _mm256_or_si256(codes, sign));
}

static inline __attribute__((always_inline)) void step_bf16(const uint16_t *x, __m256 by,
                                                            bool multiply, uint8_t *out)
{
	const __m256i magnitude = _mm256_set1_epi16(0x7fff), zero = _mm256_setzero_si256();
	__m256i v[2], c[2];
#pragma GCC unroll 4
	for (int i = 0; i < 2; i++) {
		v[i] = load(x + 16 * i);
		const __m256i m = _mm256_and_si256(v[i], magnitude);
		const __m256 low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, m));
		const __m256 high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, m));
		c[i] = _mm256_packs_epi32(round8(scale8(low, by, multiply)),
		                          round8(scale8(high, by, multiply)));
	}
	const __m256i codes = _mm256_packus_epi16(c[0], c[1]);
	const __m256i sign =
		_mm256_and_si256(_mm256_packs_epi16(v[0], v[1]), _mm256_set1_epi8((char)0x80));
	_mm256_storeu_si256((void *)out,
	                    _mm256_permute4x64_epi64(_mm256_or_si256(codes, sign), 0xd8));
}

/* ---- bf16 of one scale, by table: 32 codes from bytes ---------------------------------------- */

static __m256i both_halves(const uint8_t bytes[16])
{
	return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)bytes));
}

/* Returns non-zero words where one of two numbers is out of the range of the table. */
static inline __m256i outside(const struct ws_fp8_table *t, __m256i a, __m256i b)
{
	const __m256i magnitude = _mm256_set1_epi16(0x7fff),
		      first = _mm256_set1_epi16((short)t->first);
	a = _mm256_sub_epi16(_mm256_and_si256(a, magnitude), first);
	b = _mm256_sub_epi16(_mm256_and_si256(b, magnitude), first);
	return _mm256_subs_epu16(_mm256_max_epu16(a, b), _mm256_set1_epi16((short)t->span));
}

static inline __m256i look_up(const struct ws_fp8_table *t, __m256i a, __m256i b)
{
	const __m256i low = _mm256_set1_epi16(0xff), upper = _mm256_set1_epi16(0xf8);
	const __m256i mantissa =
		_mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
	const __m256i slot = _mm256_and_si256(_mm256_srli_epi16(mantissa, 3), _mm256_set1_epi8(15));
	const __m256i within = _mm256_and_si256(mantissa, _mm256_set1_epi8(7));
	const __m256i above =
		_mm256_cmpgt_epi8(within, _mm256_shuffle_epi8(both_halves(t->before), slot));
	/* 8 times the exponent, modulo 256. */
	const __m256i power = _mm256_packus_epi16(_mm256_and_si256(_mm256_srli_epi16(a, 4), upper),
	                                          _mm256_and_si256(_mm256_srli_epi16(b, 4), upper));
	const __m256i first = _mm256_shuffle_epi8(both_halves(t->code), slot);
	const __m256i code = _mm256_sub_epi8(_mm256_add_epi8(first, power), above);
	const __m256i sign =
		_mm256_and_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi8((char)0x80));
	return _mm256_permute4x64_epi64(_mm256_or_si256(code, sign), 0xd8);
}

/* ---- runs ------------------------------------------------------------------------------------ */

#define ROWS(type, element)                                                                        \
	static uint32_t amax_##type(const void *x, size_t n)                                       \
	{                                                                                          \
		const element *const run = x;                                                      \
		__m256i amax = _mm256_setzero_si256();                                             \
		for (size_t i = 0; i + STEP <= n; i += STEP)                                       \
			amax = raise_##type(amax, run + i);                                        \
		if (n % STEP && n > STEP) {                                                        \
			amax = raise_##type(amax, run + n - STEP);                                 \
		} else if (n % STEP) {                                                             \
			element copy[STEP] = { 0 };                                                \
			memcpy(copy, run, n * sizeof copy[0]);                                     \
			amax = raise_##type(amax, copy);                                           \
		}                                                                                  \
		return largest_##type(amax);                                                       \
	}                                                                                          \
                                                                                                   \
	static __attribute__((noinline)) void run_##type(const element *x, size_t n,               \
	                                                 const struct ws_fp8_block *b,             \
	                                                 uint8_t *out)                             \
	{                                                                                          \
		const __m256 by = _mm256_set1_ps(b->by);                                           \
		for (size_t i = 0; i + STEP <= n; i += STEP)                                       \
			step_##type(x + i, by, b->multiply, out + i);                              \
		if (n % STEP && n > STEP) {                                                        \
			step_##type(x + n - STEP, by, b->multiply, out + n - STEP);                \
		} else if (n % STEP) {                                                             \
			element copy[STEP] = { 0 };                                                \
			uint8_t codes[STEP];                                                       \
			memcpy(copy, x, n * sizeof copy[0]);                                       \
			step_##type(copy, by, b->multiply, codes);                                 \
			memcpy(out, codes, n);                                                     \
		}                                                                                  \
	}
ROWS(f32, float)
ROWS(bf16, uint16_t)

static void codes_f32(const struct ws_fp8_block *b)
{
	const uint8_t *x = b->x;
	uint8_t *out = b->out;
	for (size_t row = 0; row < b->rows; row++, x += b->stride, out += b->out_stride)
		run_f32((const float *)(const void *)x, b->cols, b, out);
}

/* Recomputes, by rounding, the steps with numbers that are not in the table. */
static __attribute__((noinline)) void mend(const struct ws_fp8_table *t, const uint16_t *x,
                                           size_t n, const struct ws_fp8_block *b, uint8_t *out)
{
	for (size_t i = 0; i + STEP <= n; i += STEP) {
		const __m256i far = outside(t, load(x + i), load(x + i + 16));
		if (!_mm256_testz_si256(far, far))
			run_bf16(x + i, STEP, b, out + i);
	}
}

static void codes_by_table(const struct ws_fp8_table *t, const struct ws_fp8_block *b)
{
	const uint8_t *row = b->x;
	uint8_t *out = b->out;
	for (size_t n = 0; n < b->rows; n++, row += b->stride, out += b->out_stride) {
		const uint16_t *const x = (const void *)row;
		__m256i far = _mm256_setzero_si256();
		size_t i = 0;
		for (; i + STEP <= b->cols; i += STEP) {
			const __m256i low = load(x + i), high = load(x + i + 16);
			far = _mm256_or_si256(far, outside(t, low, high));
			_mm256_storeu_si256((void *)(out + i), look_up(t, low, high));
		}
		if (!_mm256_testz_si256(far, far))
			mend(t, x, i, b, out);
		if (i < b->cols)
			run_bf16(x + i, b->cols - i, b, out + i);
	}
}

static void codes_by_rounding(const struct ws_fp8_block *b)
{
	const uint8_t *x = b->x;
	uint8_t *out = b->out;
	for (size_t row = 0; row < b->rows; row++, x += b->stride, out += b->out_stride)
		run_bf16((const uint16_t *)(const void *)x, b->cols, b, out);
}

static void codes_bf16(const struct ws_fp8_block *b)
{
	struct ws_fp8_table t;
	if (ws_fp8_make_table(b, codes_by_rounding, &t))
		codes_by_table(&t, b);
	else
		codes_by_rounding(b);
}

const struct ws_fp8_kernels ws_fp8_avx2 = {
	{ amax_f32, codes_f32 },
	{ amax_bf16, codes_bf16 },
};
#else
typedef int nothing_here; /* C requires a declaration */
#endif
