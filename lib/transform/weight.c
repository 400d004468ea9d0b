/* SPDX-License-Identifier: Apache-2.0 */
/* weight.c - numbers in, numbers out, in pieces that fit on a bench.
 *
 * A quarter of the bench is for this file: what is read there before it is converted, and the sums of
 * deltas. The shelf holds the A factors that were merged last, since the tiles of one weight follow each
 * other; B factors are read for the rows at hand. */
#include "weight.h"

#include "factor.h"
#include "floats.h"
#include "lowrank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_PART = 4, MOST_ROWS = 64, LEAST_COLS = 16 };

size_t ws_weight_size(const struct ws_weight *w)
{
	return ws_dtype_bits(w->dtype) / 8;
}

bool ws_weight_splits(const struct ws_weight *w)
{
	return w->packed.packing == WS_PACK_NONE;
}

static size_t room(const struct ws_works *w)
{
	return ws_works_bench(w) / BENCH_PART;
}

size_t ws_weight_room(const struct ws_weight *w)
{
	return room(w->works) + w->n_deltas * sizeof(void *) + 1024;
}

struct edge {
	int64_t row, rank; /* from that row on there is so much more, or less */
};

static int by_row(const void *x, const void *y)
{
	const struct edge *a = x, *b = y;
	const int order = (a->row > b->row) - (a->row < b->row);
	return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* A stack of matrices has one delta for each of them: only those that share rows are needed at once. */
static int find_rank(struct ws_weight *w, struct ws_err *err)
{
	struct edge *edges = calloc(2 * w->n_deltas + 1, sizeof *edges);
	int64_t rank = 0;
	if (!edges)
		return ws_err_set(err, WS_ESYSTEM, "tensor '%s': out of memory", w->name);
	for (size_t i = 0; i < w->n_deltas; i++) {
		const struct ws_delta *d = w->deltas[i];
		edges[2 * i] = (struct edge){ d->row, d->rank };
		edges[2 * i + 1] = (struct edge){ d->row + d->rows, -d->rank };
	}
	qsort(edges, 2 * w->n_deltas, sizeof *edges, by_row);
	w->rank = 0;
	for (size_t i = 0; i < 2 * w->n_deltas; i++) {
		rank += edges[i].rank;
		w->rank = rank > w->rank ? rank : w->rank;
	}
	free(edges);
	return 0;
}

static int refuse(const struct ws_weight *w, const char *what, int64_t n, const char *of, struct ws_err *err)
{
	ws_err_set(err, WS_EINPUT, "tensor '%s': %s %lld%s not fit into the scratch", w->name, what,
	           (long long)n, of);
	return ws_err_hint(err, "allow more of it: --scratch");
}

int ws_weight_init(struct ws_weight *w, struct ws_err *err)
{
	const uint64_t row = (uint64_t)w->cols * sizeof(float);
	if (!ws_weight_splits(w) && (row > room(w->works) || row > ws_works_buf(w->works) / 3 ||
	                             row > ws_works_tile(w->works)))
		return refuse(w, "a row of", w->cols, " numbers does", err);
	if (w->n_deltas * sizeof(void *) > room(w->works) / 4)
		return refuse(w, "a list of", (int64_t)w->n_deltas, " changes does", err);
	if (find_rank(w, err))
		return -1;
	if (w->rank > 0 && (uint64_t)w->rank * LEAST_COLS * 8 * sizeof(float) > room(w->works))
		return refuse(w, "factors of rank", w->rank, " do", err);
	return 0;
}

int ws_weight_blame(const struct ws_weight *w, int64_t row, int64_t col, double value, struct ws_err *err)
{
	const struct ws_item *item = w->packed.weight;
	return ws_err_set(err, WS_EINPUT, "tensor '%s' has %s at row %lld, column %lld (%s)",
	                  item->name, isnan(value) ? "NaN" : "an infinity", (long long)row, (long long)col,
	                  ws_source_file_name(item->source, item->from->file));
}

/* ---- the base ------------------------------------------------------------------------------------ */

static int check_finite(const struct ws_weight *w, const void *x, int64_t row, int64_t n, int64_t col,
                        int64_t m, struct ws_err *err)
{
	size_t at;
	double value;
	if (ws_floats_finite(w->dtype, x, (size_t)(n * m), &at, &value))
		return 0;
	return ws_weight_blame(w, row + (int64_t)at / m, col + (int64_t)at % m, value, err);
}

/* Elements [at, at+n) of a tensor as it lies there, converted where it is of another type. */
static int read_plain(struct ws_weight *w, uint64_t at, size_t n, void *dst, struct ws_bench *bench,
                      struct ws_err *err)
{
	const struct ws_item *item = w->packed.weight;
	const size_t size = ws_dtype_bits(item->dtype) / 8;
	if (item->dtype == w->dtype)
		return ws_item_read(item, at * size, dst, n * size, err);
	const size_t used = bench->used, most = room(w->works) / (size + sizeof(float)) - 32;
	char *raw = ws_bench_take(bench, most * size);
	float *x = ws_bench_take(bench, most * sizeof *x);
	int rc = 0;
	while (n && rc == 0) {
		const size_t some = n < most ? n : most;
		rc = ws_item_read(item, at * size, raw, some * size, err);
		if (rc)
			break;
		ws_floats_read(item->dtype, raw, some, x);
		ws_floats_write(w->dtype, x, some, dst);
		dst = (char *)dst + some * ws_weight_size(w);
		at += some;
		n -= some;
	}
	bench->used = used;
	return rc;
}

static int read_packed(struct ws_weight *w, int64_t row, int64_t n, void *dst, struct ws_bench *bench,
                       struct ws_err *err)
{
	const size_t used = bench->used;
	const int64_t most = (int64_t)(room(w->works) / sizeof(float)) / w->cols;
	float *x = ws_bench_take(bench, (size_t)((most < n ? most : n) * w->cols) * sizeof *x);
	int rc = 0;
	while (n && rc == 0) {
		const int64_t some = n < most ? n : most;
		const size_t count = (size_t)(some * w->cols);
		rc = ws_packed_rows(&w->packed, row, some, x, &bench->buf, err);
		if (rc)
			break;
		ws_floats_write(w->dtype, x, count, dst);
		dst = (char *)dst + count * ws_weight_size(w);
		row += some;
		n -= some;
	}
	bench->used = used;
	return rc;
}

static int read_base(struct ws_weight *w, int64_t row, int64_t n, int64_t col, int64_t m, void *dst,
                     struct ws_bench *bench, struct ws_err *err)
{
	if (!ws_weight_splits(w))
		return read_packed(w, row, n, dst, bench, err);
	if (m == w->cols)
		return read_plain(w, (uint64_t)(row * w->cols), (size_t)(n * m), dst, bench, err);
	for (int64_t i = 0; i < n; i++, dst = (char *)dst + (size_t)m * ws_weight_size(w))
		if (read_plain(w, (uint64_t)((row + i) * w->cols + col), (size_t)m, dst, bench, err))
			return -1;
	return 0;
}

/* ---- deltas -------------------------------------------------------------------------------------- */

/* A tile of at most MOST_ROWS rows that the same deltas reach, and what is needed to merge it. */
struct merge {
	struct ws_weight *w;
	const struct ws_delta **deltas; /* those that reach it */
	size_t n_deltas;
	int64_t rank;        /* of these together */
	int64_t begin;       /* the first row that just these reach */
	int64_t row, n;      /* of the weight */
	int64_t col, m;      /* columns whose A lies on the shelf */
	const float *b;      /* of those rows: the factors of each delta behind those of the other */
	float *sum, *more, *x;
	int64_t step;        /* columns of these three */
	float max_delta, max_w;
};

/* The A factors of those deltas, for a window of columns. */
static int fill_shelf(const struct merge *g, struct ws_bench *bench, struct ws_err *err)
{
	const int64_t at[3] = { g->begin, g->col, g->m };
	float *to = bench->shelf;
	if (bench->shelf_of == g->w && memcmp(bench->shelf_at, at, sizeof at) == 0)
		return 0;
	bench->shelf_of = NULL;
	for (size_t k = 0; k < g->n_deltas; k++) {
		const struct ws_factor a = ws_delta_a(g->deltas[k]);
		if (ws_factor_read(&a, 0, g->deltas[k]->rank, g->col, g->m, to, &bench->buf, err))
			return -1;
		to += g->deltas[k]->rank * g->m;
	}
	bench->shelf_of = g->w;
	memcpy(bench->shelf_at, at, sizeof at);
	return 0;
}

static void make_delta(const struct merge *g, size_t k, const float *a, const float *b, int64_t col, int64_t m,
                       float *out)
{
	const struct ws_delta *d = g->deltas[k];
	const struct ws_lowrank l = { .a = a, .b = b, .rank = d->rank, .cols = g->m, .scale = d->scale };
	ws_lowrank_tile(&l, 0, g->n, col - g->col, m, out, (size_t)g->step);
}

/* NaN is taken, and stays. */
static void raise_to(float *max, float x)
{
	if (*max == *max && !(x <= *max))
		*max = x;
}

/* As ws_merge_bf16, for the other types, and tile by tile in place. */
static void add_to(struct merge *g, void *w, size_t stride, int64_t m)
{
	float max_delta = 0, max_w = 0;
	const size_t size = ws_weight_size(g->w);
	for (int64_t i = 0; i < g->n; i++)
		ws_floats_read(g->w->dtype, (char *)w + (size_t)i * stride * size, (size_t)m,
		               g->x + i * g->step);
	if (g->w->dtype == WS_DTYPE_BF16)
		ws_merge_bf16(g->x, (size_t)g->step, g->sum, (size_t)g->step, g->n, m, g->w->two_step, w,
		              stride, &max_delta, &max_w);
	else
		ws_floats_add(g->w->dtype, g->x, g->sum, (size_t)g->step, g->n, m, g->w->two_step, w,
		              stride, &max_delta, &max_w);
	raise_to(&g->max_delta, max_delta);
	raise_to(&g->max_w, max_w);
}

static void merge_columns(struct merge *g, int64_t col, int64_t m, void *w, size_t stride,
                          const struct ws_bench *bench)
{
	const float *a = bench->shelf, *b = g->b;
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

/* The deltas that reach g->row, and how many of g->n rows from there on they all reach and no others do. */
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

static int read_b(struct merge *g, struct ws_bench *bench, struct ws_err *err)
{
	float *b = ws_bench_take(bench, (size_t)(g->rank * g->n) * sizeof *b);
	g->b = b;
	for (size_t k = 0; k < g->n_deltas; k++) {
		const struct ws_delta *d = g->deltas[k];
		const struct ws_factor f = ws_delta_b(d);
		if (ws_factor_read(&f, g->row - d->row, g->n, 0, d->rank, b, &bench->buf, err))
			return -1;
		b += g->n * d->rank;
	}
	return 0;
}

/* What a tile's columns may be: three arrays of them in half of the room, the B factors have the other. */
static int64_t columns_at_once(const struct ws_weight *w, int64_t n, int64_t m)
{
	const int64_t most = (int64_t)(room(w->works) / 2 / (3 * sizeof(float))) / n - 16;
	const int64_t good = most < 512 ? most : 512; /* for the nearest cache */
	return m < good ? m : good;
}

/* One group of rows in one window of columns; w points at its first number. */
static int merge_rows(struct merge *g, void *w, size_t stride, struct ws_bench *bench, struct ws_err *err)
{
	const size_t used = bench->used, size = ws_weight_size(g->w);
	g->step = columns_at_once(g->w, g->n, g->m);
	const size_t tile = (size_t)(g->n * g->step) * sizeof(float);
	g->sum = ws_bench_take(bench, tile);
	g->more = ws_bench_take(bench, tile);
	g->x = ws_bench_take(bench, tile);
	const int rc = read_b(g, bench, err);
	for (int64_t at = 0; rc == 0 && at < g->m; at += g->step) {
		const int64_t m = g->m - at < g->step ? g->m - at : g->step;
		merge_columns(g, g->col + at, m, (char *)w + (size_t)at * size, stride, bench);
	}
	bench->used = used;
	return rc;
}

/* Rows at once: of their B factors no more than half of the room. */
static int64_t rows_at_once(const struct ws_weight *w, int64_t rank, int64_t n)
{
	int64_t most = (int64_t)(room(w->works) / 2 / sizeof(float)) / rank - 1;
	const int64_t tall = (int64_t)(room(w->works) / 2 / (3 * sizeof(float))) / (2 * LEAST_COLS);
	most = most < tall ? most : tall;
	most = most < MOST_ROWS ? most : MOST_ROWS;
	most = most < 1 ? 1 : most;
	return n < most ? n : most;
}

static int note_largest(struct ws_weight *w, const struct merge *g, const void *x, int64_t stride,
                        struct ws_err *err)
{
	pthread_mutex_lock(&w->lock);
	w->max_delta = g->max_delta > w->max_delta ? g->max_delta : w->max_delta;
	w->max_w = g->max_w > w->max_w ? g->max_w : w->max_w;
	pthread_mutex_unlock(&w->lock);
	/* Sums overflow only where something was near the end of the range. */
	const double limit = w->dtype == WS_DTYPE_F16 ? 32000. : 1e38;
	if (g->max_delta < limit && g->max_w < limit)
		return 0;
	for (int64_t i = 0; i < g->n; i++) {
		size_t at;
		double value;
		if (ws_floats_finite(w->dtype, (const char *)x + (size_t)(i * stride) * ws_weight_size(w),
		                     (size_t)g->m, &at, &value))
			continue;
		return ws_err_set(err, WS_EINPUT, "tensor '%s': with its change it is beyond the range of "
		                  "%s at row %lld, column %lld", w->name, ws_dtype_torch(w->dtype),
		                  (long long)(g->row + i), (long long)(g->col + (int64_t)at));
	}
	return 0;
}

/* Rows that the same deltas reach, in windows of columns as wide as the shelf, in groups of rows. */
static int merge_alike(const struct merge *all, void *x, struct ws_bench *bench, struct ws_err *err)
{
	const size_t size = ws_weight_size(all->w);
	const int64_t window = (int64_t)bench->shelf_floats / all->rank;
	struct merge g = *all;
	for (int64_t j = 0; j < all->m; j += g.m) {
		g.col = all->col + j;
		g.m = all->m - j < window ? all->m - j : window;
		if (fill_shelf(&g, bench, err))
			return -1;
		for (int64_t i = 0; i < all->n; i += g.n) {
			void *at = (char *)x + (size_t)(i * all->m + j) * size;
			g.row = all->row + i;
			g.n = rows_at_once(g.w, g.rank, all->n - i);
			g.max_delta = g.max_w = 0;
			if (merge_rows(&g, at, (size_t)all->m, bench, err) ||
			    note_largest(g.w, &g, at, all->m, err))
				return -1;
		}
	}
	return 0;
}

/* Adds the deltas to numbers that were read, in place. */
static int merge(struct ws_weight *w, int64_t row, int64_t n, int64_t col, int64_t m, void *x,
                 struct ws_bench *bench, struct ws_err *err)
{
	const size_t used = bench->used;
	struct merge g = { .w = w, .deltas = ws_bench_take(bench, w->n_deltas * sizeof *g.deltas),
		           .col = col, .m = m };
	int rc = 0;
	for (int64_t i = 0; i < n && rc == 0; i += g.n) {
		g.row = row + i;
		g.n = n - i;
		find_deltas(&g);
		if (g.n_deltas)
			rc = merge_alike(&g, (char *)x + (size_t)(i * m) * ws_weight_size(w), bench, err);
	}
	bench->used = used;
	return rc;
}

static void note_moderate(struct ws_weight *w, const void *x, size_t n)
{
	if (!w->n_deltas || ws_floats_moderate(w->dtype, x, n))
		return;
	pthread_mutex_lock(&w->lock);
	w->large = true;
	pthread_mutex_unlock(&w->lock);
}

int ws_weight_read(struct ws_weight *w, int64_t row, int64_t n, int64_t col, int64_t m, bool plain,
                   void *dst, struct ws_bench *bench, struct ws_err *err)
{
	if (read_base(w, row, n, col, m, dst, bench, err))
		return -1;
	if (!w->n_deltas && !plain && w->looked_at)
		return 0;
	if (check_finite(w, dst, row, n, col, m, err))
		return -1;
	if (plain)
		note_moderate(w, dst, (size_t)(n * m));
	return plain || !w->n_deltas ? 0 : merge(w, row, n, col, m, dst, bench, err);
}

/* ---- looking ahead ------------------------------------------------------------------------------- */

static void raise_to_all(float *max, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		*max = fabsf(x[i]) > *max ? fabsf(x[i]) : *max;
}

/* *max: the largest magnitude. */
static int look_at(const struct ws_factor *f, int64_t rows, int64_t cols, float *x, int64_t room_for,
                   float *max, struct ws_buf *buf, struct ws_err *err)
{
	const int64_t m = cols < room_for ? cols : room_for, n = room_for / m < rows ? room_for / m : rows;
	*max = 0;
	for (int64_t i = 0; i < rows; i += n)
		for (int64_t j = 0; j < cols; j += m) {
			const int64_t tall = rows - i < n ? rows - i : n, wide = cols - j < m ? cols - j : m;
			if (ws_factor_read(f, i, tall, j, wide, x, buf, err))
				return -1;
			raise_to_all(max, x, tall * wide);
		}
	return 0;
}

int ws_weight_check_factors(struct ws_weight *w, struct ws_bench *bench, struct ws_err *err)
{
	const size_t used = bench->used;
	const int64_t n = (int64_t)(room(w->works) / 2 / sizeof(float));
	float *x = ws_bench_take(bench, (size_t)n * sizeof *x), max_a, max_b;
	double bound = 0;
	int rc = 0;
	for (size_t i = 0; i < w->n_deltas && rc == 0; i++) {
		const struct ws_delta *d = w->deltas[i];
		const struct ws_factor a = ws_delta_a(d), b = ws_delta_b(d);
		const double scale = fabs((double)d->scale);
		rc = look_at(&a, d->rank, d->cols, x, n, &max_a, &bench->buf, err) ||
		     look_at(&b, d->rows, d->rank, x, n, &max_b, &bench->buf, err) ? -1 : 0;
		/* Before it is scaled, the sum must be within the range of fp32 too. */
		bound += rc ? 0 : (double)d->rank * (double)max_a * (double)max_b * (scale > 1 ? scale : 1);
	}
	pthread_mutex_lock(&w->lock);
	w->bound = bound;
	pthread_mutex_unlock(&w->lock);
	bench->used = used;
	return rc;
}

bool ws_weight_is_steep(struct ws_weight *w)
{
	pthread_mutex_lock(&w->lock);
	const bool steep = w->n_deltas && (w->large || w->bound >= (w->dtype == WS_DTYPE_F16 ? 16000 : 5e37));
	pthread_mutex_unlock(&w->lock);
	return steep;
}
