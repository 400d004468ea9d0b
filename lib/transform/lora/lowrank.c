/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank.c - B @ A of low rank, and its addition, in plain C.
 *
 * Vectors run along the columns: each element has its own sum over the ranks, in the same order and
 * with the same roundings, whatever the width of a vector. This file is the reference. */
#include "lowrank.h"
#include "float_bits.h"
#include "lowrank_simd.h"
#include "simd.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 16,     /* of the plain C */
       MAX_RANK = 128, /* ranks packed at a time: a strip has at most 16 KiB, half of an L1 cache */
       PANEL = 64,     /* columns packed at a time: several cache lines of each row of A */
       TAIL_ROWS = 32 };

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
	const uint32_t bits = ws_float_bits(x) & 0x7fffffff;
	if (bits > *max)
		*max = bits;
}

static void merge_scalar(const struct ws_merge_row *m, uint32_t max[2])
{
	for (int64_t j = 0; j < m->m; j++) {
		float d = m->delta[j];
		if (m->two_step)
			d = ws_float_of((uint32_t)ws_to_bf16(d) << 16);
		raise_to(&max[0], d);
		raise_to(&max[1], m->w[j]);
		m->out[j] = ws_to_bf16(m->w[j] + d);
	}
}

const struct ws_lowrank_ops ws_lowrank_scalar = { WIDTH, strip_scalar, merge_scalar };

const struct ws_lowrank_ops *ws_lowrank_ops(void)
{
#ifdef __x86_64__
	if (ws_simd_avx2())
		return &ws_lowrank_avx2;
#endif
	return &ws_lowrank_scalar;
}

/* Packs columns [col, col + m) of ranks [first, first + n), strip after strip. */
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

/* The last columns of a tile, fewer than a strip: computed in a buffer and copied. */
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

void ws_lowrank_tile(const struct ws_lowrank *l, int64_t n, int64_t col, int64_t m, float *delta,
                     size_t stride)
{
	const struct ws_lowrank_ops *ops = ws_lowrank_ops();
	_Alignas(64) float packed[MAX_RANK * PANEL];
	for (int64_t j = 0; j < m; j += PANEL) {
		const int64_t width = m - j < PANEL ? m - j : PANEL;
		int64_t r = 0;
		do {
			const int64_t rank = l->rank - r < MAX_RANK ? l->rank - r : MAX_RANK;
			const struct ws_strip s = {
				.a = packed,
				.b = l->b + r,
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

void ws_merge_bf16(struct ws_sum_tile *t)
{
	const struct ws_lowrank_ops *ops = ws_lowrank_ops();
	uint32_t max[2] = { ws_float_bits(t->max_delta), ws_float_bits(t->max_w) };
	for (int64_t i = 0; i < t->n; i++) {
		const struct ws_merge_row r = {
			.w = t->w + (size_t)i * t->w_stride,
			.delta = t->delta + (size_t)i * t->delta_stride,
			.out = (uint16_t *)t->out + (size_t)i * t->out_stride,
			.m = t->m,
			.two_step = t->two_step,
		};
		ops->merge(&r, max);
	}
	t->max_delta = ws_float_of(max[0]);
	t->max_w = ws_float_of(max[1]);
}
