/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank.cu - out = bf16(w + scale * (b @ a)), as lib/transform/lora/lowrank.h: for each element
 * s = 0; for r rising, s = fma(b[i][r], a[r][j], s); delta = s * scale, rounded. The deltas of
 * several terms are summed first, in their order.
 *
 * A block of threads computes a tile of 64 x 128, each thread 4 x 8 of it, with the sums in
 * registers and 16 ranks of both factors at a time in shared memory. w is loaded before the sums
 * begin, and two blocks share a multiprocessor, so that one loads while the other adds. At rank
 * 16 memory is the limit. Larger ranks use the same code, because the order of cuBLAS's sums is
 * not defined. */
#include "numbers.h"

enum {
	ROWS = WS_MERGE_ROWS,
	COLS = WS_MERGE_COLS,
	THREADS = WS_MERGE_THREADS,
	WARPS = THREADS / 32
};
enum { DOWN = 4, EACH = 8, ACROSS = COLS / EACH, CHUNK = 16, PAD = 4 };

struct sums {
	float at[DOWN][EACH];
};

struct place {
	int64_t row, col;  /* position of this thread's first element */
	int64_t rows, cols; /* rows and columns of the matrix from there on; may be 0 or less */
};

/* Loads zeros outside the matrix; sums with them are never written. */
INLINE void load_factors(const struct ws_merge_args m, const uint32_t k, int64_t row, int64_t col,
                         int64_t first, float a[CHUNK][COLS], float b[CHUNK][ROWS + PAD])
{
	const float *factor_a = (const float *)(uintptr_t)m.terms[k].a;
	const float *factor_b = (const float *)(uintptr_t)m.terms[k].b;
	const int64_t rank = m.terms[k].rank;
	for (uint32_t i = threadIdx.x; i < CHUNK * COLS; i += THREADS) {
		const uint32_t r = i / COLS, c = i % COLS;
		const uint32_t there = first + r < rank && col + c < m.cols;
		a[r][c] = there ? factor_a[(first + r) * m.cols + col + c] : 0;
	}
	for (uint32_t i = threadIdx.x; i < CHUNK * ROWS; i += THREADS) {
		const uint32_t r = i % CHUNK, c = i / CHUNK;
		const uint32_t there = first + r < rank && row + c < m.rows;
		b[r][c] = there ? factor_b[(row + c) * rank + first + r] : 0;
	}
}

INLINE void add_rank(struct sums *s, const float *a, const float *b)
{
	float left[DOWN], right[EACH];
	UNROLL
	for (int i = 0; i < DOWN; i++)
		left[i] = b[i];
	UNROLL
	for (int j = 0; j < EACH; j++)
		right[j] = a[j];
	UNROLL
	for (int i = 0; i < DOWN; i++) {
		UNROLL
		for (int j = 0; j < EACH; j++)
			s->at[i][j] = __fmaf_rn(left[i], right[j], s->at[i][j]);
	}
}

/* Skips missing ranks instead of adding zeros: a sum of -0 would become +0. */
INLINE void add_ranks(struct sums *s, int64_t n, float a[CHUNK][COLS], float b[CHUNK][ROWS + PAD])
{
	const uint32_t x = threadIdx.x % ACROSS * EACH, y = threadIdx.x / ACROSS * DOWN;
	if (n >= CHUNK) {
		UNROLL
		for (int r = 0; r < CHUNK; r++)
			add_rank(s, &a[r][x], &b[r][y]);
	} else {
		for (int r = 0; r < n; r++)
			add_rank(s, &a[r][x], &b[r][y]);
	}
}

/* The sums of one term. */
INLINE void add_all(const struct ws_merge_args m, const uint32_t k, int64_t row, int64_t col,
                    struct sums *s)
{
	__shared__ __align__(16) float a[CHUNK][COLS];
	__shared__ __align__(16) float b[CHUNK][ROWS + PAD];
	UNROLL
	for (int i = 0; i < DOWN; i++) {
		UNROLL
		for (int j = 0; j < EACH; j++)
			s->at[i][j] = 0;
	}
	for (int64_t first = 0; first < m.terms[k].rank; first += CHUNK) {
		load_factors(m, k, row, col, first, a, b);
		__syncthreads();
		add_ranks(s, m.terms[k].rank - first, a, b);
		__syncthreads();
	}
}

INLINE void scale_sums(struct sums *s, float scale)
{
	UNROLL
	for (int i = 0; i < DOWN; i++) {
		UNROLL
		for (int j = 0; j < EACH; j++)
			s->at[i][j] = __fmul_rn(s->at[i][j], scale);
	}
}

/* The deltas of all terms. Unrolled, so that constants index the terms, which stay in the
 * parameter space. */
INLINE void make_deltas(const struct ws_merge_args m, int64_t row, int64_t col, struct sums *all,
                        const uint32_t most)
{
	add_all(m, 0, row, col, all);
	scale_sums(all, m.terms[0].scale);
	UNROLL
	for (uint32_t k = 1; k < most; k++) {
		struct sums more;
		if (k >= m.n_terms)
			break;
		add_all(m, k, row, col, &more);
		scale_sums(&more, m.terms[k].scale);
		UNROLL
		for (int i = 0; i < DOWN; i++) {
			UNROLL
			for (int j = 0; j < EACH; j++)
				all->at[i][j] = __fadd_rn(all->at[i][j], more.at[i][j]);
		}
	}
}

/* Merges one element; returns the bf16 and raises the largest magnitudes. */
INLINE uint32_t merge(const struct ws_merge_args m, uint32_t w, float delta, uint32_t *max_delta,
                      uint32_t *max_w)
{
	if (m.two_step)
		delta = from_bf16(to_bf16(delta));
	*max_delta = max(*max_delta, magnitude(bits_of(delta)));
	*max_w = max(*max_w, magnitude(w));
	return to_bf16(__fadd_rn(float_of(w), delta));
}

/* Merges up to eight elements of a row, one at a time. */
INLINE void merge_some(const struct ws_merge_args m, const struct place p, int i,
                       const struct sums *s, uint32_t *max_delta, uint32_t *max_w)
{
	const uint16_t *w = (const uint16_t *)(uintptr_t)m.w + (p.row + i) * m.w_stride + p.col;
	uint16_t *out = (uint16_t *)(uintptr_t)m.out + (p.row + i) * m.out_stride + p.col;
	UNROLL
	for (int j = 0; j < EACH; j++) {
		if (j >= p.cols)
			continue;
		out[j] = (uint16_t)merge(m, (uint32_t)w[j] << 16, s->at[i][j], max_delta, max_w);
	}
}

/* Loads eight elements of a row at once. */
INLINE uint4 load_eight(const struct ws_merge_args m, const struct place p, int i)
{
	return *(const uint4 *)(uintptr_t)(m.w +
	                                   (uint64_t)((p.row + i) * m.w_stride + p.col) * 2);
}

INLINE uint32_t merge_two(const struct ws_merge_args m, uint32_t w0, uint32_t w1, const float *sums,
                          uint32_t *max_delta, uint32_t *max_w)
{
	return merge(m, w0, sums[0], max_delta, max_w) | merge(m, w1, sums[1], max_delta, max_w)
	                                                         << 16;
}

INLINE void merge_eight(const struct ws_merge_args m, const struct place p, int i,
                        const struct sums *s, const uint4 v, uint32_t *max_delta,
                        uint32_t *max_w)
{
	const float *t = s->at[i];
	const uint32_t upper = 0xffff0000u;
	uint4 out;
	out.x = merge_two(m, v.x << 16, v.x & upper, t, max_delta, max_w);
	out.y = merge_two(m, v.y << 16, v.y & upper, t + 2, max_delta, max_w);
	out.z = merge_two(m, v.z << 16, v.z & upper, t + 4, max_delta, max_w);
	out.w = merge_two(m, v.w << 16, v.w & upper, t + 6, max_delta, max_w);
	*(uint4 *)(uintptr_t)(m.out + (uint64_t)((p.row + i) * m.out_stride + p.col) * 2) = out;
}

INLINE uint32_t is_whole(const struct ws_merge_args m, const struct place p)
{
	return p.rows >= DOWN && p.cols >= EACH && m.w % 16 == 0 && m.w_stride % 8 == 0 &&
	       m.out % 16 == 0 && m.out_stride % 8 == 0;
}

INLINE void tell_largest(const struct ws_merge_args m, uint32_t max_delta, uint32_t max_w)
{
	__shared__ uint32_t warps[2][WARPS];
	struct ws_found *found = (struct ws_found *)(uintptr_t)m.found;
	max_delta = largest_of_block(max_delta, warps[0]);
	max_w = largest_of_block(max_w, warps[1]);
	if (threadIdx.x == 0) {
		raise_to(&found->max_delta, max_delta);
		raise_to(&found->max_w, max_w);
	}
}

INLINE void merge_tile(const struct ws_merge_args m, const uint32_t most)
{
	const int64_t across = (m.cols + COLS - 1) / COLS, down = blockIdx.x / across;
	const int64_t row = down * ROWS, col = (blockIdx.x - down * across) * COLS;
	struct place p;
	p.row = row + threadIdx.x / ACROSS * DOWN;
	p.col = col + threadIdx.x % ACROSS * EACH;
	p.rows = m.rows - p.row;
	p.cols = m.cols - p.col;
	const uint32_t whole = is_whole(m, p);
	uint4 w[DOWN];
	struct sums s;
	uint32_t max_delta = 0, max_w = 0;
	UNROLL
	for (int i = 0; i < DOWN; i++)
		if (whole)
			w[i] = load_eight(m, p, i);
	make_deltas(m, row, col, &s, most);
	UNROLL
	for (int i = 0; i < DOWN; i++) {
		if (whole)
			merge_eight(m, p, i, &s, w[i], &max_delta, &max_w);
		else if (i < p.rows)
			merge_some(m, p, i, &s, &max_delta, &max_w);
	}
	tell_largest(m, max_delta, max_w);
}

/* One term, the usual case, and up to four, which need more registers. */
#define MERGE_KERNEL(name, most) \
	KERNEL(WS_MERGE_THREADS) name(const struct ws_merge_args m) \
	{ \
		merge_tile(m, most); \
	}
MERGE_KERNEL(merge_bf16, 1)
MERGE_KERNEL(merges_bf16, WS_MERGE_TERMS)
