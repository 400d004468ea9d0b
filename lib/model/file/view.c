/* SPDX-License-Identifier: Apache-2.0 */
/* view.c - turns strided pieces into runs of files or of GPU memory.
 *
 * For each index of the axes outside the concatenated axis, each piece contributes one slab of
 * equal runs. */
#include "view.h"

#include "checkpoint.h"

/* bytes; a smaller run costs less to copy than to send by itself */
static const int64_t RUN_MIN = 4096;

struct walk {
	const struct ws_item *item;
	ws_view_run_fn *fn;
	void *ctx;
	unsigned axis;   /* axis of the concatenation; 0 for a single piece */
	unsigned size;   /* bytes of an element */
};

static struct walk walk_of(const struct ws_item *item)
{
	return (struct walk){
		.item = item,
		.axis = item->view->n_pieces == 1 ? 0 : item->view->axis,
		.size = ws_dtype_bits(item->dtype) / 8,
	};
}

static int64_t product(const int64_t *dims, unsigned from, unsigned to)
{
	int64_t n = 1;
	for (unsigned d = from; d < to; d++)
		n *= dims[d];
	return n;
}

/* Finds the contiguous axes [*axis, n) of the piece; returns their number of elements. */
static int64_t find_run(const struct walk *w, const struct ws_piece *p, unsigned *axis)
{
	int64_t run = 1;
	unsigned d = w->item->view->n_dims;
	for (; d > w->axis && (p->dims[d - 1] == 1 || p->strides[d - 1] == run); d--)
		run *= p->dims[d - 1];
	*axis = d;
	return run;
}

/* True if the piece's tensor is in a file or on a GPU, and can be sent from there. */
static bool lies_there(const struct ws_piece *p)
{
	struct ws_span span;
	ws_source_span(p->source, p->from, &span);
	return span.fd >= 0 || span.gpu_address;
}

/* True if the piece's runs are large enough for spans of their own. */
static bool is_filed(const struct walk *w, const struct ws_piece *p)
{
	unsigned axis;
	const int64_t run = find_run(w, p, &axis);
	if (run * w->size < RUN_MIN &&
	    (axis > w->axis || product(w->item->view->dims, 0, w->axis) > 1))
		return false;
	return lies_there(p);
}

static int emit_run(const struct walk *w, const struct ws_piece *p, uint64_t at, int64_t n)
{
	return w->fn(w->ctx, &(struct ws_view_run){ .item = w->item, .piece = p, .at = at * w->size,
	                                           .length = (uint64_t)n * w->size });
}

/* Emits the runs of one slab, over the axes [d, end). */
static int walk_slab(const struct walk *w, const struct ws_piece *p, unsigned d, unsigned end,
                     int64_t elements, uint64_t at)
{
	int rc = 0;
	if (d == end)
		return emit_run(w, p, at, elements);
	for (int64_t i = 0; i < p->dims[d] && rc == 0; i++)
		rc = walk_slab(w, p, d + 1, end, elements, at + (uint64_t)(i * p->strides[d]));
	return rc;
}

static int walk_piece(const struct walk *w, const struct ws_piece *p, uint64_t at)
{
	unsigned end;
	const int64_t elements = find_run(w, p, &end);
	return walk_slab(w, p, w->axis, end, elements, at);
}

/* Emits consecutive gathered pieces as one run. */
static int walk_gathered(const struct walk *w, size_t first, size_t n)
{
	const struct ws_view *v = w->item->view;
	struct ws_view_run s = { .item = w->item, .first = first, .n = n };
	for (size_t i = first; i < first + n; i++)
		s.length += (uint64_t)product(v->pieces[i].dims, w->axis, w->item->view->n_dims);
	s.length *= (uint64_t)product(w->item->view->dims, 0, w->axis) * w->size;
	return w->fn(w->ctx, &s);
}

/* Without axes outside the concatenated axis, each piece is sent or gathered by itself. */
static int walk_pieces(const struct walk *w)
{
	const struct ws_view *v = w->item->view;
	int rc = 0;
	for (size_t i = 0, n; i < v->n_pieces && rc == 0; i += n) {
		for (n = 0; i + n < v->n_pieces && !is_filed(w, &v->pieces[i + n]); n++)
			;
		if (n)
			rc = walk_gathered(w, i, n);
		else
			rc = walk_piece(w, &v->pieces[i], v->pieces[i].at);
		n += n == 0;
	}
	return rc;
}

/* For each index of the outer axes, emits one slab of every piece. */
static int walk_slabs(const struct walk *w, unsigned d, const int64_t *index)
{
	const struct ws_view *v = w->item->view;
	int64_t next[WS_MAX_DIMS];
	int rc = 0;
	for (unsigned k = 0; k < d; k++)
		next[k] = index[k];
	if (d < w->axis) {
		for (next[d] = 0; next[d] < w->item->view->dims[d] && rc == 0; next[d]++)
			rc = walk_slabs(w, d + 1, next);
		return rc;
	}
	for (size_t i = 0; i < v->n_pieces && rc == 0; i++) {
		uint64_t at = v->pieces[i].at;
		for (unsigned k = 0; k < d; k++)
			at += (uint64_t)(index[k] * v->pieces[i].strides[k]);
		rc = walk_piece(w, &v->pieces[i], at);
	}
	return rc;
}

int ws_view_walk(const struct ws_item *item, ws_view_run_fn *fn, void *ctx)
{
	struct walk w = walk_of(item);
	const struct ws_view *v = item->view;
	w.fn = fn;
	w.ctx = ctx;
	if (item->bytes == 0)
		return 0;
	if (product(v->dims, 0, w.axis) == 1)
		return walk_pieces(&w);
	for (size_t i = 0; i < v->n_pieces; i++)
		if (!is_filed(&w, &v->pieces[i]))
			return walk_gathered(&w, 0, v->n_pieces);
	const int64_t none = 0;
	return walk_slabs(&w, 0, &none);
}

bool ws_view_copied(const struct ws_item *item)
{
	const struct walk w = walk_of(item);
	for (size_t i = 0; item->bytes && i < item->view->n_pieces; i++)
		if (!is_filed(&w, &item->view->pieces[i]))
			return true;
	return false;
}

static bool box_of(const struct ws_item *item, const struct ws_piece *p, struct ws_strided *out)
{
	const unsigned bits = ws_dtype_bits(item->dtype);
	struct ws_span span;
	ws_source_span(p->source, p->from, &span);
	if (!span.gpu_address || bits % 8)
		return false;
	*out = (struct ws_strided){ .gpu_address = span.gpu_address,
		                    .ctx = span.ctx,
		                    .at = p->at * (bits / 8),
		                    .size = bits / 8,
		                    .n_dims = item->view->n_dims };
	int64_t step = 1;
	for (unsigned d = item->view->n_dims; d-- > 0; step *= item->view->dims[d]) {
		out->dims[d] = p->dims[d];
		out->read[d] = p->strides[d];
		out->write[d] = step;
	}
	return true;
}

bool ws_view_strided(const struct ws_item *item, struct ws_strided *out)
{
	const struct ws_view *v = item->view;
	uint64_t to = 0;
	for (size_t i = 0; i < v->n_pieces; i++) {
		if (!box_of(item, &v->pieces[i], &out[i]))
			return false;
		out[i].to = to;
		to += (uint64_t)product(v->dims, v->axis + 1, v->n_dims) *
		      (uint64_t)v->pieces[i].dims[v->axis] * out[i].size;
	}
	return true;
}
