/* SPDX-License-Identifier: Apache-2.0 */
/* weight_reader.c - reads a base in pieces that fit the scratch, and checks it. */
#include "weight_reader.h"

#include "floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_PART = 4 };

size_t ws_weight_size(const struct ws_weight_reader *w)
{
	return ws_dtype_bits(w->dtype) / 8;
}

bool ws_weight_splits(const struct ws_weight_reader *w)
{
	return w->packed.packing == WS_PACK_NONE;
}

size_t ws_weight_share(const struct ws_worker_pool *w)
{
	return ws_worker_pool_scratch(w) / BENCH_PART;
}

size_t ws_weight_room(const struct ws_weight_reader *w)
{
	return ws_weight_share(w->pool) + w->n_deltas * sizeof(void *) + 1024;
}

struct edge {
	int64_t row, rank; /* from this row on, the sum of ranks changes by rank */
};

static int by_row(const void *x, const void *y)
{
	const struct edge *a = x, *b = y;
	const int order = (a->row > b->row) - (a->row < b->row);
	return order ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Finds the largest sum of ranks at one row. In a stack, each delta reaches only its own matrix. */
static int find_rank(struct ws_weight_reader *w, struct ws_err *err)
{
	struct edge *edges = calloc(2 * w->n_deltas + 1, sizeof *edges);
	int64_t rank = 0;
	if (!edges)
		return ws_oom(err);
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

static int refuse(const struct ws_weight_reader *w, const char *what, int64_t n, const char *of,
                  struct ws_err *err)
{
	ws_err_set(err, WS_EINPUT, "tensor '%s': %s %lld%s not fit into the scratch", w->name, what,
	           (long long)n, of);
	return ws_err_hint(err, "allow more of it: {scratch}");
}

int ws_weight_init(struct ws_weight_reader *w, struct ws_err *err)
{
	const uint64_t row = (uint64_t)w->cols * sizeof(float);
	if (!ws_weight_splits(w) &&
	    (row > ws_weight_share(w->pool) || row > ws_worker_pool_buf(w->pool) / 3 ||
	     row > ws_worker_pool_tile(w->pool)))
		return refuse(w, "a row of", w->cols, " numbers does", err);
	if (w->n_deltas * sizeof(void *) > ws_weight_share(w->pool) / 4)
		return refuse(w, "a list of", (int64_t)w->n_deltas, " changes does", err);
	if (find_rank(w, err))
		return -1;
	if ((uint64_t)w->rank * WS_WEIGHT_LEAST_COLS * 8 * sizeof(float) > ws_weight_share(w->pool))
		return refuse(w, "factors of rank", w->rank, " do", err);
	return 0;
}

int ws_weight_blame(const struct ws_weight_reader *w, int64_t row, int64_t col, double value,
                    struct ws_err *err)
{
	const struct ws_item *item = w->packed.weight;
	return ws_err_set(err, WS_EINPUT, "tensor '%s' has %s at row %lld, column %lld (%s)",
	                  item->name, isnan(value) ? "NaN" : "an infinity", (long long)row,
	                  (long long)col, ws_source_file_name(item->source, item->from->file));
}

/* ---- the base -------------------------------------------------------------------------------- */

static int check_finite(const struct ws_weight_reader *w, const struct ws_rect *r, const void *x,
                        struct ws_err *err)
{
	size_t at;
	double value;
	if (ws_floats_finite(w->dtype, x, (size_t)(r->n * r->m), &at, &value))
		return 0;
	return ws_weight_blame(w, r->row + (int64_t)at / r->m, r->col + (int64_t)at % r->m, value,
	                       err);
}

/* Reads elements [at, at+n) of a plain tensor, converted if it has another type. */
static int read_plain(struct ws_weight_reader *w, uint64_t at, size_t n, void *dst,
                      struct ws_scratch *scratch, struct ws_err *err)
{
	const struct ws_item *item = w->packed.weight;
	const size_t size = ws_dtype_bits(item->dtype) / 8;
	if (item->dtype == w->dtype)
		return ws_item_read(item, at * size, dst, n * size, err);
	const size_t used = scratch->used,
		     most = ws_weight_share(w->pool) / (size + sizeof(float)) - 32;
	char *raw = ws_scratch_take(scratch, most * size);
	float *x = ws_scratch_take(scratch, most * sizeof *x);
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
	scratch->used = used;
	return rc;
}

static int read_packed(struct ws_weight_reader *w, int64_t row, int64_t n, void *dst,
                       struct ws_scratch *scratch, struct ws_err *err)
{
	const size_t used = scratch->used;
	const int64_t most = (int64_t)(ws_weight_share(w->pool) / sizeof(float)) / w->cols;
	float *x = ws_scratch_take(scratch, (size_t)((most < n ? most : n) * w->cols) * sizeof *x);
	int rc = 0;
	while (n && rc == 0) {
		const int64_t some = n < most ? n : most;
		const size_t count = (size_t)(some * w->cols);
		rc = ws_packed_rows(&w->packed, row, some, x, &scratch->buf, err);
		if (rc)
			break;
		ws_floats_write(w->dtype, x, count, dst);
		dst = (char *)dst + count * ws_weight_size(w);
		row += some;
		n -= some;
	}
	scratch->used = used;
	return rc;
}

static int read_base(struct ws_weight_reader *w, const struct ws_rect *r, void *dst,
                     struct ws_scratch *scratch, struct ws_err *err)
{
	if (!ws_weight_splits(w))
		return read_packed(w, r->row, r->n, dst, scratch, err);
	if (r->m == w->cols)
		return read_plain(w, (uint64_t)(r->row * w->cols), (size_t)(r->n * r->m), dst,
		                  scratch, err);
	for (int64_t i = 0; i < r->n; i++, dst = (char *)dst + (size_t)r->m * ws_weight_size(w))
		if (read_plain(w, (uint64_t)((r->row + i) * w->cols + r->col), (size_t)r->m, dst,
		               scratch, err))
			return -1;
	return 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void note_moderate(struct ws_weight_reader *w, const void *x, size_t n)
{
	if (!w->n_deltas || ws_floats_moderate(w->dtype, x, n))
		return;
	pthread_mutex_lock(&w->lock);
	w->large = true;
	pthread_mutex_unlock(&w->lock);
}

int ws_weight_read(struct ws_weight_reader *w, const struct ws_rect *r, bool plain, void *dst,
                   struct ws_scratch *scratch, struct ws_err *err)
{
	if (read_base(w, r, dst, scratch, err))
		return -1;
	if (!w->n_deltas && !plain && w->looked_at)
		return 0;
	if (check_finite(w, r, dst, err))
		return -1;
	if (plain)
		note_moderate(w, dst, (size_t)(r->n * r->m));
	return plain || !w->n_deltas ? 0 : ws_weight_merge(w, r, dst, scratch, err);
}

/* ---- checking ahead -------------------------------------------------------------------------- */

static void raise_to_all(float *max, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		*max = fabsf(x[i]) > *max ? fabsf(x[i]) : *max;
}

/* *max: the largest magnitude. */
static int look_at(const struct ws_factor *f, int64_t rows, int64_t cols, float *x,
                   int64_t room_for, float *max, struct ws_buf *buf, struct ws_err *err)
{
	const int64_t m = cols < room_for ? cols : room_for,
		      n = room_for / m < rows ? room_for / m : rows;
	*max = 0;
	for (int64_t i = 0; i < rows; i += n)
		for (int64_t j = 0; j < cols; j += m) {
			const struct ws_rect r = { i, rows - i < n ? rows - i : n, j,
				                   cols - j < m ? cols - j : m };
			if (ws_factor_read(f, &r, x, buf, err))
				return -1;
			raise_to_all(max, x, r.n * r.m);
		}
	return 0;
}

int ws_weight_check_factors(struct ws_weight_reader *w, struct ws_scratch *scratch,
                            struct ws_err *err)
{
	const size_t used = scratch->used;
	const int64_t n = (int64_t)(ws_weight_share(w->pool) / 2 / sizeof(float));
	float *x = ws_scratch_take(scratch, (size_t)n * sizeof *x), max_a, max_b;
	double bound = 0;
	int rc = 0;
	for (size_t i = 0; i < w->n_deltas && rc == 0; i++) {
		const struct ws_delta *d = w->deltas[i];
		const struct ws_factor a = ws_delta_a(d), b = ws_delta_b(d);
		const double scale = fabs((double)d->scale);
		rc = look_at(&a, d->rank, d->cols, x, n, &max_a, &scratch->buf, err) ||
		                     look_at(&b, d->rows, d->rank, x, n, &max_b, &scratch->buf,
		                             err) ?
		             -1 :
		             0;
		/* The sum must be within the range of fp32 before it is scaled, too. */
		bound += rc ? 0 :
		              (double)d->rank * (double)max_a * (double)max_b *
		                         (scale > 1 ? scale : 1);
	}
	pthread_mutex_lock(&w->lock);
	w->bound = bound;
	pthread_mutex_unlock(&w->lock);
	scratch->used = used;
	return rc;
}

bool ws_weight_is_steep(struct ws_weight_reader *w)
{
	pthread_mutex_lock(&w->lock);
	const bool steep =
		w->n_deltas && (w->large || w->bound >= (w->dtype == WS_DTYPE_F16 ? 16000 : 5e37));
	pthread_mutex_unlock(&w->lock);
	return steep;
}
