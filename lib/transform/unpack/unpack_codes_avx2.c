/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_codes_avx2.c - unpack_codes.c with AVX2 and F16C: sixteen nibbles at a time. */
#include "unpack_core.h"

#ifdef __AVX2__
#include <immintrin.h>
#include <string.h>

/* The levels of eight codes, one in each word: two tables of eight; bit 3 selects the table. */
static inline __m256 look_up(__m256i codes, __m256 low, __m256 high)
{
	const __m256 a = _mm256_permutevar8x32_ps(low, codes),
		     b = _mm256_permutevar8x32_ps(high, codes);
	return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}

/* Decodes n codes, a multiple of 16. */
static inline void decode_run(const uint8_t *codes, bool high_first, __m256 low, __m256 high,
                              float scale, int64_t n, float *out)
{
	const __m128i nibble = _mm_set1_epi8(15);
	const __m256 s = _mm256_set1_ps(scale);
	for (int64_t i = 0; i < n; i += 16) {
		const __m128i raw = _mm_loadl_epi64((const __m128i *)(const void *)(codes + i / 2));
		const __m128i lo = _mm_and_si128(raw, nibble);
		const __m128i hi = _mm_and_si128(_mm_srli_epi16(raw, 4), nibble);
		const __m128i c =
			high_first ? _mm_unpacklo_epi8(hi, lo) : _mm_unpacklo_epi8(lo, hi);
		const __m256i a = _mm256_cvtepu8_epi32(c),
			      b = _mm256_cvtepu8_epi32(_mm_srli_si128(c, 8));
		_mm256_storeu_ps(out + i, _mm256_mul_ps(look_up(a, low, high), s));
		_mm256_storeu_ps(out + i + 8, _mm256_mul_ps(look_up(b, low, high), s));
	}
}

static inline void decode_whole(const struct ws_nibbles *s, int64_t block, bool high_first,
                                int64_t first, int64_t n_blocks, float *out)
{
	const __m256 low = _mm256_loadu_ps(s->levels), high = _mm256_loadu_ps(s->levels + 8);
	const float *const scales = s->scales + first / block;
	for (int64_t b = 0; b < n_blocks; b++)
		decode_run(s->codes + (first + b * block) / 2, high_first, low, high, scales[b],
		           block, out + b * block);
}

static void decode_nibbles(const struct ws_nibbles *s, int64_t first, int64_t n, float *out)
{
	const int64_t rest = (s->block - first % s->block) % s->block;
	const int64_t head = n < rest ? n : rest;
	ws_unpack_scalar.nibbles(s, first, head, out);
	first += head;
	const int64_t n_blocks = (n - head) / s->block, whole = n_blocks * s->block;
	if (s->block == 16 && !s->high_first) /* nvfp4, whose blocks are too short for a loop */
		decode_whole(s, 16, false, first, n_blocks, out + head);
	else
		decode_whole(s, s->block, s->high_first, first, n_blocks, out + head);
	ws_unpack_scalar.nibbles(s, first + whole, n - head - whole, out + head + whole);
}

/* An E4M3 magnitude, shifted left by seven bits, is a half that is 2^8 times smaller, in subnormals
 * too. Only NaN must be set. */
static inline __m256i to_halves(const uint8_t *codes)
{
	const __m256i magnitude = _mm256_set1_epi16(0x7f);
	const __m128i raw = _mm_loadu_si128((const __m128i *)(const void *)codes);
	const __m256i c = _mm256_cvtepu8_epi16(raw), m = _mm256_and_si256(c, magnitude);
	const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(c, m), 8);
	const __m256i nan = _mm256_slli_epi16(_mm256_cmpeq_epi16(m, magnitude), 7);
	return _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16(m, 7)),
	                       _mm256_and_si256(nan, _mm256_set1_epi16(0x7f80)));
}

/* Decodes n codes, a multiple of 16, with one scale. */
static inline void decode_e4m3_run(const uint8_t *codes, int64_t n, float scale, float *out)
{
	const __m256 up = _mm256_set1_ps(256), s = _mm256_set1_ps(scale);
	for (int64_t i = 0; i < n; i += 16) {
		const __m256i h = to_halves(codes + i);
		const __m256 a = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
		const __m256 b = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
		_mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(a, up), s));
		_mm256_storeu_ps(out + i + 8, _mm256_mul_ps(_mm256_mul_ps(b, up), s));
	}
}

static void decode_e4m3(const uint8_t *codes, int64_t n, int64_t block, const float *scales,
                        float *out)
{
	for (int64_t i = 0; i < n; i += block) {
		const int64_t m = n - i < block ? n - i : block, whole = m & ~(int64_t)15;
		decode_e4m3_run(codes + i, whole, scales[i / block], out + i);
		ws_unpack_scalar.e4m3(codes + i + whole, m - whole, block, scales + i / block,
		                      out + i + whole);
	}
}

static void widen_bf16(const uint8_t *src, size_t n, float *out)
{
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
		const __m256i w = _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
		_mm256_storeu_ps(out + i, _mm256_castsi256_ps(w));
	}
	ws_unpack_scalar.widen_bf16(src + 2 * i, n - i, out + i);
}

static void widen_f16(const uint8_t *src, size_t n, float *out)
{
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));
		_mm256_storeu_ps(out + i, _mm256_cvtph_ps(h));
	}
	ws_unpack_scalar.widen_f16(src + 2 * i, n - i, out + i);
}

static bool all_finite(const float *x, size_t n)
{
	const __m256i exponent = _mm256_set1_epi32(0x7f800000);
	__m256i bad = _mm256_setzero_si256();
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		const __m256i b = _mm256_castps_si256(_mm256_loadu_ps(x + i));
		bad = _mm256_or_si256(bad,
		                      _mm256_cmpeq_epi32(_mm256_and_si256(b, exponent), exponent));
	}
	return _mm256_testz_si256(bad, bad) && ws_unpack_scalar.finite(x + i, n - i);
}

const struct ws_unpack_kernels ws_unpack_avx2 = {
	decode_nibbles, decode_e4m3, widen_bf16, widen_f16, all_finite,
};
#else
typedef int nothing_here; /* C requires a declaration */
#endif
