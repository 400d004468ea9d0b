/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_bytes.c - the bytes of one rank's parameter, out of the checkpoint tensors it is made of.
 *
 * A part lies in its parameter as one row of bytes (gate rows behind up rows, an expert behind the other);
 * in the checkpoint it is a box, read run by run. Where that box is one run of a file, it is sent
 * from there. What no part covers is padding, behind all of them: zeros. */
#include "scatter_state.h"

#include "checkpoint.h"

#include <stdlib.h>
#include <string.h>

struct stripe {                 /* a part at a rank */
	const struct ws_item *item; /* NULL: zeros */
	unsigned n_dims;
	int64_t at[WS_MAX_DIMS], size[WS_MAX_DIMS]; /* the box of the item */
	uint64_t to, length;        /* bytes in the parameter */
	uint64_t run;               /* bytes that lie together in the item */
	uint64_t element;
};

struct store {                  /* what the payloads of a batch point to */
	struct ws_span *spans;
	size_t n_spans;
	struct stripe *stripes;
	size_t n_stripes, cap;
	size_t *first, *count;      /* of each send */
};

/* ---- boxes -------------------------------------------------------------------------------------- */

static uint64_t elements(unsigned n, const int64_t *size)
{
	uint64_t count = 1;
	for (unsigned d = 0; d < n; d++)
		count *= (uint64_t)size[d];
	return count;
}

/* Elements of the box that follow each other in a tensor of these dims. */
static uint64_t run_length(unsigned n, const int64_t *size, const int64_t *dims)
{
	uint64_t run = 1;
	for (unsigned d = n; d-- > 0;) {
		run *= (uint64_t)size[d];
		if (size[d] != dims[d])
			break;
	}
	return run;
}

static uint64_t offset_of(unsigned n, const int64_t *at, const int64_t *dims)
{
	uint64_t offset = 0;
	for (unsigned d = 0; d < n; d++)
		offset = offset * (uint64_t)dims[d] + (uint64_t)at[d];
	return offset;
}

/* The first element of the box's k-th run. */
static uint64_t run_at(const struct stripe *s, uint64_t k)
{
	int64_t at[WS_MAX_DIMS];
	uint64_t inner = 1, run = s->run / s->element;
	memcpy(at, s->at, sizeof at);
	for (unsigned d = s->n_dims; d-- > 0;) {
		if (inner >= run) {
			at[d] += (int64_t)(k % (uint64_t)s->size[d]);
			k /= (uint64_t)s->size[d];
		}
		inner *= (uint64_t)s->size[d];
	}
	return offset_of(s->n_dims, at, s->item->dims);
}

/* ---- reading ------------------------------------------------------------------------------------ */

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct stripe *s = ctx;
	uint8_t *to = dst;
	if (!s->item) {
		memset(dst, 0, n);
		return 0;
	}
	while (n > 0) {
		const uint64_t within = at % s->run;
		const size_t some = n < s->run - within ? n : (size_t)(s->run - within);
		if (ws_item_read(s->item, run_at(s, at / s->run) * s->element + within, to, some, err))
			return -1;
		to += some;
		at += some;
		n -= some;
	}
	return 0;
}

static void make_span(struct stripe *s, struct ws_span *span)
{
	*span = (struct ws_span){ .length = s->length, .fd = -1, .fill = fill, .ctx = s };
	if (!s->item || s->item->maker || s->item->view || s->run < s->length)
		return;
	struct ws_span file;
	ws_source_span(s->item->source, s->item->from, &file);
	if (file.fd < 0)
		return;
	file.offset += offset_of(s->n_dims, s->at, s->item->dims) * s->element;
	file.length = s->length;
	*span = file;
}

/* ---- one parameter ------------------------------------------------------------------------------ */

static int by_place(const void *a, const void *b)
{
	const struct stripe *x = a, *y = b;
	return x->to < y->to ? -1 : x->to > y->to;
}

/* 1: it is in *out; 0: nothing of it is at that rank. */
static int cut(const struct ws_scatter *s, const struct ws_param *p, const struct ws_part *part,
               unsigned rank, struct stripe *out, struct ws_err *err)
{
	const struct ws_plan_tensor *t = ws_scatter_tensor(s, part);
	struct ws_box from, to;
	int64_t dims[WS_MAX_DIMS];
	ws_layout_place(s->opts.layout, part, rank, &from, &to);
	ws_layout_dims(s->opts.layout, p, rank, dims);
	const uint64_t count = elements(to.n_dims, to.size);
	if (!count)
		return 0;
	if (part->transposed || run_length(to.n_dims, to.size, dims) != count)
		return ws_err_set(err, WS_EREFUSED, "parameter %s: %s does not lie in it as one row of bytes",
		                  p->name, part->name);
	*out = (struct stripe){ .item = t->item, .n_dims = from.n_dims,
		                .element = ws_dtype_bits(t->dtype) / 8 };
	memcpy(out->at, from.at, sizeof out->at);
	memcpy(out->size, from.size, sizeof out->size);
	out->to = offset_of(to.n_dims, to.at, dims) * out->element;
	out->length = count * out->element;
	out->run = run_length(from.n_dims, from.size, t->dims) * out->element;
	return 1;
}

static int add_stripe(struct store *st, const struct stripe *s, struct ws_err *err)
{
	if (st->n_stripes == st->cap) {
		const size_t cap = st->cap ? st->cap * 2 : 256;
		struct stripe *more = reallocarray(st->stripes, cap, sizeof *more);
		if (!more)
			return ws_err_set(err, WS_ESYSTEM, "out of memory");
		st->stripes = more;
		st->cap = cap;
	}
	st->stripes[st->n_stripes++] = *s;
	return 0;
}

/* Stripes of bytes [lo, hi) of a rank's parameter. They must fill it without a gap. */
static int add_range(const struct ws_scatter *s, const struct ws_param *p, unsigned rank, uint64_t lo,
                     uint64_t hi, struct store *st, struct ws_err *err)
{
	const size_t first = st->n_stripes;
	uint64_t at = lo;
	for (size_t i = 0; i < p->n_parts; i++) {
		struct stripe x = { 0 };
		const int there = cut(s, p, ws_layout_part(s->opts.layout, p->first + i), rank, &x, err);
		if (there < 0)
			return -1;
		if (there && x.to >= lo && x.to < hi && add_stripe(st, &x, err))
			return -1;
	}
	qsort(st->stripes + first, st->n_stripes - first, sizeof *st->stripes, by_place);
	for (size_t i = first; i < st->n_stripes; i++) {
		if (st->stripes[i].to != at)
			return ws_err_set(err, WS_EREFUSED, "parameter %s: its parts leave a gap", p->name);
		at += st->stripes[i].length;
	}
	if (at > hi)
		return ws_err_set(err, WS_EREFUSED, "parameter %s: a part of it goes over the border of what one "
		                  "sender sends", p->name);
	const struct stripe zeros = { .to = at, .length = hi - at };
	return at < hi ? add_stripe(st, &zeros, err) : 0;
}

/* ---- one batch ---------------------------------------------------------------------------------- */

static int add_entry(const struct ws_scatter *s, const struct ws_scatter_entry *e, unsigned sender,
                     struct ws_scatter_sends *out, struct ws_err *err)
{
	struct store *st = out->priv;
	const struct ws_part *part = ws_layout_part(s->opts.layout, e->param->first);
	const enum ws_dtype dtype = part->exact ? part->dtype : s->opts.dtype;
	for (unsigned r = 0; r < s->tp; r++) {
		int64_t dims[WS_MAX_DIMS];
		uint64_t bytes = 0;
		ws_layout_dims(s->opts.layout, e->param, r, dims);
		ws_dtype_bytes(dtype, e->param->n_dims, dims, &bytes);
		const uint64_t share = e->layer >= 0 ? bytes / s->opts.senders : bytes;
		st->first[out->n] = st->n_stripes;
		if (add_range(s, e->param, r, sender * share, (sender + 1) * share, st, err))
			return -1;
		st->count[out->n] = st->n_stripes - st->first[out->n];
		out->items[out->n++] = (struct ws_scatter_send){ .rank = r, .payload = { .length = share } };
	}
	return 0;
}

static int open_sends(const struct ws_scatter *s, const struct ws_scatter_batch *b,
                      struct ws_scatter_sends *out, struct ws_err *err)
{
	const size_t n = b->n * s->tp;
	struct store *st = calloc(1, sizeof *st);
	*out = (struct ws_scatter_sends){ .priv = st, .items = calloc(n, sizeof *out->items) };
	if (st) {
		st->first = calloc(n, sizeof *st->first);
		st->count = calloc(n, sizeof *st->count);
	}
	return st && st->first && st->count && out->items ? 0 : ws_err_set(err, WS_ESYSTEM, "out of memory");
}

/* The stripes have come to rest. */
static int make_spans(struct ws_scatter_sends *out, struct ws_err *err)
{
	struct store *st = out->priv;
	st->spans = calloc(st->n_stripes + 1, sizeof *st->spans);
	if (!st->spans)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; i < st->n_stripes; i++)
		make_span(&st->stripes[i], &st->spans[i]);
	for (size_t i = 0; i < out->n; i++) {
		out->items[i].payload.spans = st->spans + st->first[i];
		out->items[i].payload.n_spans = st->count[i];
	}
	return 0;
}

int ws_scatter_sends(const struct ws_scatter *s, size_t batch, unsigned sender,
                     struct ws_scatter_sends *out, struct ws_err *err)
{
	const struct ws_scatter_batch *b = &s->batches[batch];
	int rc = open_sends(s, b, out, err);
	for (size_t i = b->first; rc == 0 && i < b->first + b->n; i++)
		if (sender == 0 || s->entries[i].layer >= 0)
			rc = add_entry(s, &s->entries[i], sender, out, err);
	if (rc == 0)
		rc = make_spans(out, err);
	if (rc)
		ws_scatter_sends_free(out);
	return rc;
}

void ws_scatter_sends_free(struct ws_scatter_sends *sends)
{
	if (!sends)
		return;
	struct store *st = sends->priv;
	if (st) {
		free(st->spans);
		free(st->stripes);
		free(st->first);
		free(st->count);
	}
	free(st);
	free(sends->items);
	*sends = (struct ws_scatter_sends){ 0 };
}
