/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_hash_avx2.c - eight words at a time. From one eight to the next i * C + S rises by 8 * C, and
 * rotl(i, r) by 8 << r: the bits that wrap around are the same in a whole tile, which begins at a
 * multiple of 2^13. */
#include "gpu_hash.h"

#ifdef __x86_64__

#include <immintrin.h>

enum { AHEAD = 32 }; /* vectors to prefetch: a KiB */

static inline __m256i fmix(__m256i x)
{
	x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
	x = _mm256_mullo_epi32(x, _mm256_set1_epi32((int)0x85ebca6b));
	x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 13));
	x = _mm256_mullo_epi32(x, _mm256_set1_epi32((int)0xc2b2ae35));
	return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

static uint32_t total(__m256i x)
{
	uint32_t lane[8], sum = 0;
	_mm256_storeu_si256((__m256i *)lane, x);
	for (unsigned k = 0; k < 8; k++)
		sum += lane[k];
	return sum;
}

/* rotl(i, r) of eight indexes */
static inline __m256i rotated(__m256i i, int r)
{
	return _mm256_or_si256(_mm256_slli_epi32(i, r), _mm256_srli_epi32(i, 32 - r));
}

static inline __m256i times(__m256i i, uint32_t c, uint32_t s)
{
	return _mm256_add_epi32(_mm256_mullo_epi32(i, _mm256_set1_epi32((int)c)),
	                        _mm256_set1_epi32((int)s));
}

void ws_gpu_hash_words_avx2(const void *words, size_t n, uint32_t i, uint32_t *h1, uint32_t *h2)
{
	const __m256i *at = words, *const end = at + n / 8;
	const __m256i index = _mm256_add_epi32(_mm256_set1_epi32((int)i),
	                                       _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
	const __m256i step1 = _mm256_set1_epi32((int)(8 * UINT32_C(0x27d4eb2d)));
	const __m256i step2 = _mm256_set1_epi32((int)(8 * UINT32_C(0x165667b1)));
	const __m256i turn1 = _mm256_set1_epi32(8 << 15), turn2 = _mm256_set1_epi32(8 << 13);
	__m256i p1 = times(index, 0x27d4eb2d, 0x243f6a88), r1 = rotated(index, 15);
	__m256i p2 = times(index, 0x165667b1, 0x02c74ee7), r2 = rotated(index, 13);
	__m256i s1 = _mm256_setzero_si256(), s2 = s1;
	for (; at < end; at++) {
		/* Prefetching beyond the end is harmless. */
		_mm_prefetch((const char *)(at + AHEAD), _MM_HINT_T0);
		const __m256i w = _mm256_loadu_si256(at);
		s1 = _mm256_add_epi32(s1, fmix(_mm256_xor_si256(w, _mm256_xor_si256(p1, r1))));
		s2 = _mm256_add_epi32(s2, fmix(_mm256_xor_si256(w, _mm256_xor_si256(p2, r2))));
		p1 = _mm256_add_epi32(p1, step1);
		p2 = _mm256_add_epi32(p2, step2);
		r1 = _mm256_add_epi32(r1, turn1);
		r2 = _mm256_add_epi32(r2, turn2);
	}
	*h1 += total(s1);
	*h2 += total(s2);
}

#endif
