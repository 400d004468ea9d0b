/* SPDX-License-Identifier: Apache-2.0 */
/* weight_merge.c - adds low-rank deltas to numbers in the scratch.
 *
 * Rows with the same deltas are merged together. The factor cache holds the A factors of the last
 * merge, because tiles of one weight follow each other. B factors are read for the current rows. */
#include "weight_reader.h"

#include "floats.h"
#include "lowrank.h"

#include <string.h>

enum { MOST_ROWS = 64 };

/* A tile of at most MOST_ROWS rows that the same deltas reach, and what is needed to merge it. */
struct merge {
	struct ws_weight_reader *w;
	const struct ws_delta **deltas; /* the deltas of its rows */
	size_t n_deltas;
	int64_t rank;        /* the sum of their ranks */
	int64_t begin;       /* the first row with exactly these deltas */
	int64_t row, n;      /* of the weight */
	int64_t col, m;      /* columns whose A factors are cached */
	/* B factors of these rows, one delta after the other */
	const float *b;
	float *sum, *more, *x;
	int64_t step;        /* columns of sum, more and x */
	float max_delta, max_w;
};

/* Reads the A factors of g->deltas for a window of columns, unless they are cached. */
static int fill_factor_cache(const struct merge *g, struct ws_scratch *scratch, struct ws_err *err)
{
	const int64_t at[3] = { g->begin, g->col, g->m };
	float *to = scratch->factor_cache;
	if (scratch->cache_of == g->w && memcmp(scratch->cache_at, at, sizeof at) == 0)
		return 0;
	scratch->cache_of = NULL;
	for (size_t k = 0; k < g->n_deltas; k++) {
		const struct ws_factor a = ws_delta_a(g->deltas[k]);
		const struct ws_rect r = { 0, g->deltas[k]->rank, g->col, g->m };
		if (ws_factor_read(&a, &r, to, &scratch->buf, err))
			return -1;
		to += r.n * r.m;
	}
	scratch->cache_of = g->w;
	memcpy(scratch->cache_at, at, sizeof at);
	return 0;
}

static void make_delta(const struct merge *g, size_t k, const float *a, const float *b, int64_t col,
                       int64_t m, float *out)
{
	const struct ws_delta *d = g->deltas[k];
	const struct ws_lowrank l = {
		.a = a, .b = b, .rank = d->rank, .cols = g->m, .scale = d->scale
	};
	ws_lowrank_tile(&l, g->n, col - g->col, m, out, (size_t)g->step);
}

/* A NaN is kept. */
static void raise_to(float *max, float x)
{
	if (*max == *max && !(x <= *max))
		*max = x;
}

/* Like ws_merge_bf16, for all types, tile by tile in place. */
static void add_to(struct merge *g, void *w, size_t stride, int64_t m)
{
	const size_t size = ws_weight_size(g->w), step = (size_t)g->step;
	struct ws_sum_tile t = { .w = g->x, .w_stride = step, .delta = g->sum,
		                 .delta_stride = step, .out = w, .out_stride = stride,
		                 .n = g->n, .m = m, .two_step = g->w->two_step };
	for (int64_t i = 0; i < g->n; i++)
		ws_floats_read(g->w->dtype, (char *)w + (size_t)i * stride * size, (size_t)m,
		               g->x + i * g->step);
	if (g->w->dtype == WS_DTYPE_BF16)
		ws_merge_bf16(&t);
	else
		ws_floats_add(g->w->dtype, &t);
	raise_to(&g->max_delta, t.max_delta);
	raise_to(&g->max_w, t.max_w);
}

static void merge_columns(struct merge *g, int64_t col, int64_t m, void *w, size_t stride,
                          const struct ws_scratch *scratch)
{
	const float *a = scratch->factor_cache, *b = g->b;
	for (size_t k = 0; k < g->n_deltas; k++) {
		float *out = k == 0 || g->w->two_step ? g->sum : g->more;
		make_delta(g, k, a, b, col, m, out);
		a += g->deltas[k]->rank * g->m;
		b += g->deltas[k]->rank * g->n;
		if (g->w->two_step)
			add_to(g, w, stride, m);
		for (int64_t i = 0; out == g->more && i < g->n; i++)
			for (int64_t j = 0; j < m; j++)
				g->sum[i * g->step + j] += out[i * g->step + j];
	}
	if (!g->w->two_step)
		add_to(g, w, stride, m);
}

/* Finds the deltas at g->row, and shortens g->n to the rows that have exactly these. */
static void find_deltas(struct merge *g)
{
	g->n_deltas = 0;
	g->rank = g->begin = 0;
	for (size_t i = 0; i < g->w->n_deltas; i++) {
		const struct ws_delta *d = g->w->deltas[i];
		const int64_t end = d->row + d->rows, next = g->row < d->row ? d->row : end;
		const int64_t last = g->row >= end ? end : g->row >= d->row ? d->row : 0;
		if (g->row < next && next - g->row < g->n)
			g->n = next - g->row;
		g->begin = last > g->begin ? last : g->begin;
		if (g->row < d->row || g->row >= end)
			continue;
		g->deltas[g->n_deltas++] = d;
		g->rank += d->rank;
	}
}

static int read_b(struct merge *g, struct ws_scratch *scratch, struct ws_err *err)
{
	float *b = ws_scratch_take(scratch, (size_t)(g->rank * g->n) * sizeof *b);
	g->b = b;
	for (size_t k = 0; k < g->n_deltas; k++) {
		const struct ws_delta *d = g->deltas[k];
		const struct ws_factor f = ws_delta_b(d);
		const struct ws_rect r = { g->row - d->row, g->n, 0, d->rank };
		if (ws_factor_read(&f, &r, b, &scratch->buf, err))
			return -1;
		b += g->n * d->rank;
	}
	return 0;
}

/* Columns of a tile: three arrays use half of the share, the B factors the other half. */
static int64_t columns_at_once(const struct ws_weight_reader *w, int64_t n, int64_t m)
{
	const int64_t most = (int64_t)(ws_weight_share(w->pool) / 2 / (3 * sizeof(float))) / n - 16;
	const int64_t good = most < 512 ? most : 512; /* fits the L1 cache */
	return m < good ? m : good;
}

/* Merges one group of rows in one window of columns; w points to its first number. */
static int merge_rows(struct merge *g, void *w, size_t stride, struct ws_scratch *scratch,
                      struct ws_err *err)
{
	const size_t used = scratch->used, size = ws_weight_size(g->w);
	g->step = columns_at_once(g->w, g->n, g->m);
	const size_t tile = (size_t)(g->n * g->step) * sizeof(float);
	g->sum = ws_scratch_take(scratch, tile);
	g->more = ws_scratch_take(scratch, tile);
	g->x = ws_scratch_take(scratch, tile);
	const int rc = read_b(g, scratch, err);
	for (int64_t at = 0; rc == 0 && at < g->m; at += g->step) {
		const int64_t m = g->m - at < g->step ? g->m - at : g->step;
		merge_columns(g, g->col + at, m, (char *)w + (size_t)at * size, stride, scratch);
	}
	scratch->used = used;
	return rc;
}

/* Rows at once: their B factors fit half of the share. */
static int64_t rows_at_once(const struct ws_weight_reader *w, int64_t rank, int64_t n)
{
	int64_t most = (int64_t)(ws_weight_share(w->pool) / 2 / sizeof(float)) / rank - 1;
	const int64_t tall = (int64_t)(ws_weight_share(w->pool) / 2 / (3 * sizeof(float))) /
	                     (2 * WS_WEIGHT_LEAST_COLS);
	most = most < tall ? most : tall;
	most = most < MOST_ROWS ? most : MOST_ROWS;
	most = most < 1 ? 1 : most;
	return n < most ? n : most;
}

static int note_largest(struct ws_weight_reader *w, const struct merge *g, const void *x,
                        int64_t stride, struct ws_err *err)
{
	pthread_mutex_lock(&w->lock);
	w->max_delta = g->max_delta > w->max_delta ? g->max_delta : w->max_delta;
	w->max_w = g->max_w > w->max_w ? g->max_w : w->max_w;
	pthread_mutex_unlock(&w->lock);
	/* Sums overflow only if a number was near the end of the range. */
	const double limit = w->dtype == WS_DTYPE_F16 ? 32000. : 1e38;
	if (g->max_delta < limit && g->max_w < limit)
		return 0;
	for (int64_t i = 0; i < g->n; i++) {
		size_t at;
		double value;
		if (ws_floats_finite(w->dtype,
		                     (const char *)x + (size_t)(i * stride) * ws_weight_size(w),
		                     (size_t)g->m, &at, &value))
			continue;
		return ws_err_set(err, WS_EINPUT,
		                  "tensor '%s': with its change it is beyond the range of "
		                  "%s at row %lld, column %lld",
		                  w->name, ws_dtype_torch(w->dtype), (long long)(g->row + i),
		                  (long long)(g->col + (int64_t)at));
	}
	return 0;
}

/* Merges rows with the same deltas, in windows of columns that fit the factor cache, in groups of
 * rows. */
static int merge_alike(const struct merge *all, void *x, struct ws_scratch *scratch,
                       struct ws_err *err)
{
	const size_t size = ws_weight_size(all->w);
	const int64_t window = (int64_t)scratch->cache_floats / all->rank;
	struct merge g = *all;
	for (int64_t j = 0; j < all->m; j += g.m) {
		g.col = all->col + j;
		g.m = all->m - j < window ? all->m - j : window;
		if (fill_factor_cache(&g, scratch, err))
			return -1;
		for (int64_t i = 0; i < all->n; i += g.n) {
			void *at = (char *)x + (size_t)(i * all->m + j) * size;
			g.row = all->row + i;
			g.n = rows_at_once(g.w, g.rank, all->n - i);
			g.max_delta = g.max_w = 0;
			if (merge_rows(&g, at, (size_t)all->m, scratch, err) ||
			    note_largest(g.w, &g, at, all->m, err))
				return -1;
		}
	}
	return 0;
}

int ws_weight_merge(struct ws_weight_reader *w, const struct ws_rect *r, void *x,
                    struct ws_scratch *scratch, struct ws_err *err)
{
	const size_t used = scratch->used;
	struct merge g = { .w = w,
		           .deltas = ws_scratch_take(scratch, w->n_deltas * sizeof *g.deltas),
		           .col = r->col,
		           .m = r->m };
	int rc = 0;
	for (int64_t i = 0; i < r->n && rc == 0; i += g.n) {
		g.row = r->row + i;
		g.n = r->n - i;
		find_deltas(&g);
		if (g.n_deltas)
			rc = merge_alike(&g, (char *)x + (size_t)(i * r->m) * ws_weight_size(w),
			                 scratch, err);
	}
	scratch->used = used;
	return rc;
}
