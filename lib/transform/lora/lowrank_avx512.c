/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank_avx512.c - lowrank.c for sixteen columns at a time, with masks for the last columns. */
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

static inline __attribute__((always_inline)) struct sums add(struct sums s, const float *b,
                                                             struct sums a)
{
	const __m512 x = _mm512_set1_ps(*b);
	return (struct sums){ _mm512_fmadd_ps(x, a.left, s.left),
		              _mm512_fmadd_ps(x, a.right, s.right) };
}

static inline __attribute__((always_inline)) void end(struct sums s, float *out, bool ends,
                                                      float scale)
{
	const __m512 x = _mm512_set1_ps(scale);
	_mm512_storeu_ps(out, ends ? _mm512_mul_ps(s.left, x) : s.left);
	_mm512_storeu_ps(out + 16, ends ? _mm512_mul_ps(s.right, x) : s.right);
}

#include "lowrank_rows.h"

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

const struct ws_lowrank_ops ws_lowrank_avx512 = { WIDTH, strip, merge_avx512 };
#else
typedef int nothing_here;
#endif
