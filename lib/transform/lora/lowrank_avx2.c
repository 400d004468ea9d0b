/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank_avx2.c - lowrank.c eight columns at a time.
 *
 * Six rows at a time are 12 sums, which hides the latency of two multipliers and leaves registers
 * for two vectors of a and one of b. */
#include "lowrank_simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { WIDTH = 16 };

struct sums {
	__m256 left, right;
};

static inline __attribute__((always_inline)) struct sums begin(const float *out, bool goes_on)
{
	if (!goes_on)
		return (struct sums){ _mm256_setzero_ps(), _mm256_setzero_ps() };
	return (struct sums){ _mm256_loadu_ps(out), _mm256_loadu_ps(out + 8) };
}

static inline __attribute__((always_inline)) struct sums add(struct sums s, const float *b,
                                                             struct sums a)
{
	const __m256 x = _mm256_broadcast_ss(b);
	return (struct sums){ _mm256_fmadd_ps(x, a.left, s.left),
		              _mm256_fmadd_ps(x, a.right, s.right) };
}

static inline __attribute__((always_inline)) void end(struct sums s, float *out, bool ends,
                                                      float scale)
{
	const __m256 x = _mm256_set1_ps(scale);
	_mm256_storeu_ps(out, ends ? _mm256_mul_ps(s.left, x) : s.left);
	_mm256_storeu_ps(out + 8, ends ? _mm256_mul_ps(s.right, x) : s.right);
}

static void do_row(const struct ws_strip *s, int64_t i)
{
	const float *b = s->b + (size_t)i * s->b_stride;
	float *out = s->out + (size_t)i * s->stride;
	struct sums x = begin(out, s->goes_on);
	for (int64_t r = 0; r < s->rank; r++)
		x = add(x, b + r, begin(s->a + r * WIDTH, true));
	end(x, out, s->ends, s->scale);
}

static void do_six_rows(const struct ws_strip *s, int64_t i)
{
	const size_t k = s->b_stride, n = s->stride;
	const float *b = s->b + (size_t)i * k;
	float *out = s->out + (size_t)i * n;
	struct sums x0 = begin(out, s->goes_on), x1 = begin(out + n, s->goes_on),
	            x2 = begin(out + 2 * n, s->goes_on), x3 = begin(out + 3 * n, s->goes_on),
	            x4 = begin(out + 4 * n, s->goes_on), x5 = begin(out + 5 * n, s->goes_on);
	for (int64_t r = 0; r < s->rank; r++, b++) {
		const struct sums a = begin(s->a + r * WIDTH, true);
		x0 = add(x0, b, a);
		x1 = add(x1, b + k, a);
		x2 = add(x2, b + 2 * k, a);
		x3 = add(x3, b + 3 * k, a);
		x4 = add(x4, b + 4 * k, a);
		x5 = add(x5, b + 5 * k, a);
	}
	end(x0, out, s->ends, s->scale);
	end(x1, out + n, s->ends, s->scale);
	end(x2, out + 2 * n, s->ends, s->scale);
	end(x3, out + 3 * n, s->ends, s->scale);
	end(x4, out + 4 * n, s->ends, s->scale);
	end(x5, out + 5 * n, s->ends, s->scale);
}

static void strip(const struct ws_strip *s)
{
	int64_t i = 0;
	for (; i + 6 <= s->n; i += 6)
		do_six_rows(s, i);
	for (; i < s->n; i++)
		do_row(s, i);
}

/* Rounds to bf16, in the upper halves; the lower halves are zero. */
static inline __m256i round_up(__m256 x)
{
	const __m256i bits = _mm256_castps_si256(x);
	const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
	const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
	const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
	const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
	const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
	return _mm256_and_si256(_mm256_blendv_epi8(up, quiet, nan), upper);
}

static inline __m256i magnitude(__m256 x)
{
	return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

static uint32_t largest(__m256i x)
{
	uint32_t each[8], max = 0;
	_mm256_storeu_si256((__m256i *)(void *)each, x);
	for (int i = 0; i < 8; i++)
		max = each[i] > max ? each[i] : max;
	return max;
}

static void merge_avx2(const struct ws_merge_row *m, uint32_t max[2])
{
	__m256i max_d = _mm256_setzero_si256(), max_w = max_d;
	int64_t j = 0;
	for (; j + 8 <= m->m; j += 8) {
		const __m256 w = _mm256_loadu_ps(m->w + j);
		__m256 d = _mm256_loadu_ps(m->delta + j);
		if (m->two_step)
			d = _mm256_castsi256_ps(round_up(d));
		max_d = _mm256_max_epu32(max_d, magnitude(d));
		max_w = _mm256_max_epu32(max_w, magnitude(w));
		const __m256i sum = _mm256_srli_epi32(round_up(_mm256_add_ps(w, d)), 16);
		const __m128i codes = _mm_packus_epi32(_mm256_castsi256_si128(sum),
		                                       _mm256_extracti128_si256(sum, 1));
		_mm_storeu_si128((__m128i *)(void *)(m->out + j), codes);
	}
	const uint32_t d = largest(max_d), w = largest(max_w);
	max[0] = d > max[0] ? d : max[0];
	max[1] = w > max[1] ? w : max[1];
	const struct ws_merge_row rest = { m->w + j, m->delta + j, m->out + j, m->m - j,
		                           m->two_step };
	ws_lowrank_scalar.merge(&rest, max);
}

const struct ws_lowrank_ops ws_lowrank_avx2 = { WIDTH, strip, merge_avx2 };
#else
typedef int nothing_here;
#endif
