/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank.c - B @ A of low rank, and its addition, in plain C; chooses a faster implementation.
 *
 * Vectors run along the columns: each element has its own sum over the ranks, in the same order and
 * with the same roundings, whatever the width of a vector. This file is the reference. */
#include "lowrank.h"
#include "lowrank_simd.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { WIDTH = 16,     /* of the plain C */
       MAX_RANK = 128, /* ranks packed at a time: a strip has at most 16 KiB, half of an L1 cache */
       PANEL = 64,     /* columns packed at a time: a few lines of each row of A, not one */
       TAIL_ROWS = 32 };

static uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static float from_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static uint16_t to_bf16(float x)
{
	const uint32_t bits = bits_of(x);
	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void strip_scalar(const struct ws_strip *s)
{
	for (int64_t i = 0; i < s->n; i++) {
		const float *b = s->b + (size_t)i * s->b_stride;
		float *out = s->out + (size_t)i * s->stride;
		for (int64_t j = 0; j < WIDTH; j++) {
			float sum = s->goes_on ? out[j] : 0;
			for (int64_t r = 0; r < s->rank; r++)
				sum = fmaf(b[r], s->a[r * WIDTH + j], sum);
			out[j] = s->ends ? sum * s->scale : sum;
		}
	}
}

static void raise_to(uint32_t *max, float x)
{
	const uint32_t bits = bits_of(x) & 0x7fffffff;
	if (bits > *max)
		*max = bits;
}

static void merge_scalar(const struct ws_merge_row *m, uint32_t max[2])
{
	for (int64_t j = 0; j < m->m; j++) {
		float d = m->delta[j];
		if (m->two_step)
			d = from_bits((uint32_t)to_bf16(d) << 16);
		raise_to(&max[0], d);
		raise_to(&max[1], m->w[j]);
		m->out[j] = to_bf16(m->w[j] + d);
	}
}

const struct ws_lowrank_ops ws_lowrank_scalar = { WIDTH, strip_scalar, merge_scalar };

static const struct level {
	const char *name;
	const struct ws_lowrank_ops *ops;
} levels[] = {
#if defined(__x86_64__)
	{ "avx2", &ws_lowrank_avx2 },
	{ "avx512", &ws_lowrank_avx512 }, /* on request only, until it has run; see fp8.c */
#endif
	{ "scalar", &ws_lowrank_scalar },
};

static bool machine_has(const struct level *l)
{
#if defined(__x86_64__)
	if (l->ops == &ws_lowrank_avx512)
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
	if (l->ops == &ws_lowrank_avx2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
	return l->ops == &ws_lowrank_scalar;
}

static _Atomic(const struct level *) chosen;

static const struct level *choose(void)
{
	const struct level *l = atomic_load_explicit(&chosen, memory_order_relaxed);
	if (l)
		return l;
	for (l = levels; !machine_has(l);)
		l++;
	atomic_store_explicit(&chosen, l, memory_order_relaxed);
	return l;
}

const char *ws_lowrank_level(void)
{
	return choose()->name;
}

bool ws_lowrank_set_level(const char *level)
{
	for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
		if (strcmp(levels[i].name, level) == 0 && machine_has(&levels[i])) {
			atomic_store_explicit(&chosen, &levels[i], memory_order_relaxed);
			return true;
		}
	return false;
}

/* Columns [col, col + m) of ranks [first, first + n), strip behind strip. */
static void pack(const struct ws_lowrank *l, int64_t first, int64_t n, int64_t col, int64_t m,
                 float *panel, int64_t width)
{
	for (int64_t r = 0; r < n; r++) {
		const float *from = l->a + (first + r) * l->cols + col;
		for (int64_t j = 0; j < m; j += width) {
			const int64_t here = m - j < width ? m - j : width;
			float *to = panel + j * n + r * width;
			memcpy(to, from + j, (size_t)here * sizeof *to);
			memset(to + here, 0, (size_t)(width - here) * sizeof *to);
		}
	}
}

static void copy_columns(const float *from, size_t from_stride, float *to, size_t to_stride,
                         int64_t n, int64_t m)
{
	for (int64_t i = 0; i < n; i++)
		memcpy(to + (size_t)i * to_stride, from + (size_t)i * from_stride,
		       (size_t)m * sizeof *to);
}

/* The last columns of a tile, fewer than a strip: done beside it and copied in. */
static void run_tail(const struct ws_lowrank_ops *ops, const struct ws_strip *s, int64_t m)
{
	float tail[TAIL_ROWS * WS_MAX_WIDTH] = { 0 };
	const size_t width = (size_t)ops->width;
	for (int64_t i = 0; i < s->n; i += TAIL_ROWS) {
		struct ws_strip part = *s;
		float *out = s->out + (size_t)i * s->stride;
		part.n = s->n - i < TAIL_ROWS ? s->n - i : TAIL_ROWS;
		part.b = s->b + (size_t)i * s->b_stride;
		part.out = tail;
		part.stride = width;
		if (s->goes_on)
			copy_columns(out, s->stride, tail, width, part.n, m);
		ops->strip(&part);
		copy_columns(tail, width, out, s->stride, part.n, m);
	}
}

static void run_strips(const struct ws_lowrank_ops *ops, const struct ws_strip *panel, int64_t m)
{
	struct ws_strip s = *panel;
	for (int64_t j = 0; j < m; j += ops->width) {
		s.a = panel->a + j * s.rank;
		s.out = panel->out + j;
		if (m - j < ops->width)
			run_tail(ops, &s, m - j);
		else
			ops->strip(&s);
	}
}

void ws_lowrank_tile(const struct ws_lowrank *l, int64_t row, int64_t n, int64_t col, int64_t m,
                     float *delta, size_t stride)
{
	const struct ws_lowrank_ops *ops = choose()->ops;
	_Alignas(64) float packed[MAX_RANK * PANEL];
	for (int64_t j = 0; j < m; j += PANEL) {
		const int64_t width = m - j < PANEL ? m - j : PANEL;
		int64_t r = 0;
		do {
			const int64_t rank = l->rank - r < MAX_RANK ? l->rank - r : MAX_RANK;
			const struct ws_strip s = {
				.a = packed,
				.b = l->b + row * l->rank + r,
				.b_stride = (size_t)l->rank,
				.rank = rank,
				.n = n,
				.out = delta + j,
				.stride = stride,
				.goes_on = r > 0,
				.ends = r + rank == l->rank,
				.scale = l->scale,
			};
			pack(l, r, rank, col + j, width, packed, ops->width);
			run_strips(ops, &s, width);
			r += rank;
		} while (r < l->rank);
	}
}

void ws_merge_bf16(const float *w, size_t w_stride, const float *delta, size_t delta_stride,
                   int64_t n, int64_t m, int two_step, uint16_t *out, size_t out_stride,
                   float *max_delta, float *max_w)
{
	const struct ws_lowrank_ops *ops = choose()->ops;
	uint32_t max[2] = { 0, 0 };
	for (int64_t i = 0; i < n; i++) {
		const struct ws_merge_row r = {
			.w = w + (size_t)i * w_stride, .delta = delta + (size_t)i * delta_stride,
			.out = out + (size_t)i * out_stride, .m = m, .two_step = two_step,
		};
		ops->merge(&r, max);
	}
	*max_delta = from_bits(max[0]);
	*max_w = from_bits(max[1]);
}
