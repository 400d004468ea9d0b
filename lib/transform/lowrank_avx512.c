/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank_avx512.c - lowrank.c sixteen columns at a time. Six rows of a strip are 12 sums, which hides
 * the latency of two multipliers; the last columns of a row are done under a mask. */
#include "lowrank_simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { WIDTH = 32 };

struct sums {
	__m512 left, right;
};

static inline __attribute__((always_inline)) struct sums begin(const float *out, bool goes_on)
{
	if (!goes_on)
		return (struct sums){ _mm512_setzero_ps(), _mm512_setzero_ps() };
	return (struct sums){ _mm512_loadu_ps(out), _mm512_loadu_ps(out + 16) };
}

static inline __attribute__((always_inline)) struct sums add(struct sums s, float b, struct sums a)
{
	const __m512 x = _mm512_set1_ps(b);
	return (struct sums){ _mm512_fmadd_ps(x, a.left, s.left), _mm512_fmadd_ps(x, a.right, s.right) };
}

static inline __attribute__((always_inline)) void end(struct sums s, float *out, bool ends, float scale)
{
	const __m512 x = _mm512_set1_ps(scale);
	_mm512_storeu_ps(out, ends ? _mm512_mul_ps(s.left, x) : s.left);
	_mm512_storeu_ps(out + 16, ends ? _mm512_mul_ps(s.right, x) : s.right);
}

static void do_row(const struct ws_strip *s, int64_t i)
{
	const float *b = s->b + (size_t)i * s->b_stride;
	float *out = s->out + (size_t)i * s->stride;
	struct sums x = begin(out, s->goes_on);
	for (int64_t r = 0; r < s->rank; r++)
		x = add(x, b[r], begin(s->a + r * WIDTH, true));
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
		x0 = add(x0, b[0], a);
		x1 = add(x1, b[k], a);
		x2 = add(x2, b[2 * k], a);
		x3 = add(x3, b[3 * k], a);
		x4 = add(x4, b[4 * k], a);
		x5 = add(x5, b[5 * k], a);
	}
	end(x0, out, s->ends, s->scale);
	end(x1, out + n, s->ends, s->scale);
	end(x2, out + 2 * n, s->ends, s->scale);
	end(x3, out + 3 * n, s->ends, s->scale);
	end(x4, out + 4 * n, s->ends, s->scale);
	end(x5, out + 5 * n, s->ends, s->scale);
}

static void strip_avx512(const struct ws_strip *s)
{
	int64_t i = 0;
	for (; i + 6 <= s->n; i += 6)
		do_six_rows(s, i);
	for (; i < s->n; i++)
		do_row(s, i);
}

/* To bf16, in the upper halves; what is below is zero. */
static inline __m512i round_up(__m512 x)
{
	const __m512i bits = _mm512_castps_si512(x);
	const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
	const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
	const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
	const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
	return _mm512_and_si512(_mm512_mask_mov_epi32(up, nan, quiet),
	                        _mm512_set1_epi32((int)0xffff0000));
}

static inline __m512i magnitude(__m512 x)
{
	return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

static void merge_avx512(const struct ws_merge_row *m, uint32_t max[2])
{
	__m512i max_d = _mm512_setzero_si512(), max_w = max_d;
	for (int64_t j = 0; j < m->m; j += 16) {
		const int64_t left = m->m - j;
		const __mmask16 here = (__mmask16)(left >= 16 ? 0xffffu : (1u << left) - 1);
		const __m512 w = _mm512_maskz_loadu_ps(here, m->w + j);
		__m512 d = _mm512_maskz_loadu_ps(here, m->delta + j);
		if (m->two_step)
			d = _mm512_castsi512_ps(round_up(d));
		max_d = _mm512_max_epu32(max_d, magnitude(d));
		max_w = _mm512_max_epu32(max_w, magnitude(w));
		const __m512i sum = _mm512_srli_epi32(round_up(_mm512_add_ps(w, d)), 16);
		_mm256_mask_storeu_epi16(m->out + j, here, _mm512_cvtepi32_epi16(sum));
	}
	const uint32_t d = _mm512_reduce_max_epu32(max_d), w = _mm512_reduce_max_epu32(max_w);
	max[0] = d > max[0] ? d : max[0];
	max[1] = w > max[1] ? w : max[1];
}

const struct ws_lowrank_ops ws_lowrank_avx512 = { WIDTH, strip_avx512, merge_avx512 };
#else
typedef int nothing_here;
#endif
