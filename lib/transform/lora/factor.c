/* SPDX-License-Identifier: Apache-2.0 */
/* factor.c - reads contiguous runs of the file and picks the elements: along the axis with the
 * smaller stride, and several lines at once if they are close together. */
#include "factor.h"

#include "floats.h"
#include "name_index.h"

#include <math.h>

enum { RUN = 16384 }; /* elements */

struct ws_factor ws_delta_a(const struct ws_delta *d)
{
	return (struct ws_factor){ d->a, d->a_at, d->a_row, d->a_col };
}

struct ws_factor ws_delta_b(const struct ws_delta *d)
{
	return (struct ws_factor){ d->b, d->b_at, d->b_row, d->b_col };
}

/* n elements: `step` apart in the file, `to` apart in the output. */
struct axis {
	int64_t n, step, to;
};

struct grid {
	const struct ws_item *item;
	uint64_t at;
	struct axis outer, inner; /* inner: the smaller step */
	float *out;
	struct ws_buf *buf;
};

static int blame(const struct ws_item *item, uint64_t element, float value, struct ws_err *err)
{
	const uint64_t cols = item->n_dims ? (uint64_t)item->dims[item->n_dims - 1] : 1;
	return ws_err_set(err, WS_EINPUT, "tensor '%s' has %s at row %llu, column %llu (%s)",
	                  ws_quote(item->name).text, isnan(value) ? "NaN" : "an infinity",
	                  (unsigned long long)(element / cols),
	                  (unsigned long long)(element % cols),
	                  ws_source_file_name(item->source, item->from->file));
}

/* Numbers [from, from+n) of the item. */
static const float *read_run(const struct grid *g, uint64_t from, size_t n, struct ws_err *err)
{
	const size_t size = ws_dtype_bits(g->item->dtype) / 8;
	ws_buf_reset(g->buf);
	if (ws_buf_reserve(g->buf, RUN * (size + sizeof(float)))) {
		ws_oom(err);
		return NULL;
	}
	float *x = (float *)(void *)g->buf->data;
	char *raw = g->buf->data + RUN * sizeof *x;
	if (ws_item_read(g->item, from * size, raw, n * size, err))
		return NULL;
	ws_floats_read(g->item->dtype, raw, n, x);
	return x;
}

/* Reads lines [i, i+n) of the outer axis, elements [j, j+m) of each, in one run of the file. */
static int pick(const struct grid *g, int64_t i, int64_t n, int64_t j, int64_t m,
                struct ws_err *err)
{
	const struct axis *outer = &g->outer, *inner = &g->inner;
	const uint64_t from = g->at + (uint64_t)(i * outer->step + j * inner->step);
	const float *x =
		read_run(g, from, (size_t)((n - 1) * outer->step + (m - 1) * inner->step + 1),
	                     err);
	if (!x)
		return -1;
	for (int64_t k = 0; k < n; k++) {
		float *out = g->out + (i + k) * outer->to + j * inner->to;
		for (int64_t l = 0; l < m; l++) {
			const int64_t at = k * outer->step + l * inner->step;
			if (!isfinite(x[at]))
				return blame(g->item, from + (uint64_t)at, x[at], err);
			out[l * inner->to] = x[at];
		}
	}
	return 0;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int read_grid(const struct grid *g, struct ws_err *err)
{
	const struct axis *outer = &g->outer, *inner = &g->inner;
	/* elements of a line at once */
	const int64_t m = least(inner->n, (RUN - 1) / inner->step + 1);
	const int64_t span = (m - 1) * inner->step + 1;
	int64_t n = 1; /* lines */
	if (m == inner->n && outer->step <= 2 * span)
		n = (RUN - span) / outer->step + 1;
	for (int64_t i = 0; i < outer->n; i += n)
		for (int64_t j = 0; j < inner->n; j += m)
			if (pick(g, i, least(outer->n - i, n), j, least(inner->n - j, m), err))
				return -1;
	return 0;
}

int ws_factor_read(const struct ws_factor *f, const struct ws_rect *r, float *out,
                   struct ws_buf *buf, struct ws_err *err)
{
	const struct axis rows = { r->n, f->row, r->m }, cols = { r->m, f->col, 1 };
	const bool turned = f->row < f->col;
	const struct grid g = { .item = f->item,
		                .at = f->at + (uint64_t)(r->row * f->row) +
		                      (uint64_t)(r->col * f->col),
		                .outer = turned ? cols : rows,
		                .inner = turned ? rows : cols,
		                .out = out,
		                .buf = buf };
	return read_grid(&g, err);
}
