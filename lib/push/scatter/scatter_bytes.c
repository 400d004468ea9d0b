/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_bytes.c - the bytes of one rank's parameter, from the checkpoint's tensors.
 *
 * A part is one row of bytes in its parameter (gate rows behind up rows, an expert behind the
 * other). In the checkpoint it is a box (stripe.h). Bytes behind all parts are padding,
 * which is sent as zeros. */
#include "scatter_state.h"

#include <stdlib.h>
#include <string.h>

struct store {                  /* memory that the payloads of a batch use */
	struct ws_span *spans;
	struct ws_stripes stripes;
	size_t *first, *count;      /* of each send */
};

static const struct ws_plan_tensor *find(const void *scatter, const struct ws_part *part)
{
	return ws_scatter_tensor(scatter, part);
}

/* ---- one batch ------------------------------------------------------------------------------- */

static int add_piece(const struct ws_scatter *s, const struct ws_scatter_entry *e,
                     const struct ws_scatter_range *range, unsigned rank,
                     struct ws_scatter_sends *out, struct ws_err *err)
{
	struct store *st = out->priv;
	const struct ws_part *part = ws_layout_part(s->opts.layout, e->param->first);
	int64_t dims[WS_MAX_DIMS];
	uint64_t hi = 0, lo = 0;
	ws_layout_dims(s->opts.layout, e->param, rank, dims);
	ws_dtype_bytes(part->exact ? part->dtype : s->opts.dtype, e->param->n_dims, dims, &hi);
	if (range->to >= 0) {
		const uint64_t row = hi / (uint64_t)dims[0];
		lo = (uint64_t)range->from * row;
		hi = (uint64_t)range->to * row;
	}
	st->first[out->n] = st->stripes.n;
	if (ws_stripes_add(&st->stripes, s->opts.layout, e->param, rank, lo, hi, find, s, err))
		return -1;
	st->count[out->n] = st->stripes.n - st->first[out->n];
	out->items[out->n++] =
		(struct ws_scatter_send){ .rank = rank, .payload = { .length = hi - lo } };
	return 0;
}

static int add_entry(const struct ws_scatter *s, const struct ws_scatter_entry *e, unsigned sender,
                     struct ws_scatter_sends *out, struct ws_err *err)
{
	for (size_t i = e->first_range; i < e->first_range + e->n_ranges; i++)
		for (unsigned r = 0; s->ranges[i].sender == sender && r < s->tp; r++)
			if (add_piece(s, e, &s->ranges[i], r, out, err))
				return -1;
	return 0;
}

static size_t count_sends(const struct ws_scatter *s, const struct ws_scatter_batch *b,
                          unsigned sender)
{
	size_t n = 0;
	for (size_t i = b->first; i < b->first + b->n; i++)
		for (size_t k = 0; k < s->entries[i].n_ranges; k++)
			n += s->ranges[s->entries[i].first_range + k].sender == sender ? s->tp : 0;
	return n;
}

static int open_sends(size_t n, struct ws_scatter_sends *out, struct ws_err *err)
{
	struct store *st = calloc(1, sizeof *st);
	*out = (struct ws_scatter_sends){ .priv = st, .items = calloc(n + 1, sizeof *out->items) };
	if (st) {
		st->first = calloc(n + 1, sizeof *st->first);
		st->count = calloc(n + 1, sizeof *st->count);
	}
	return st && st->first && st->count && out->items ? 0 : ws_oom(err);
}

/* Spans point to the stripes, so all stripes must have been added. */
static int make_spans(struct ws_scatter_sends *out, struct ws_err *err)
{
	struct store *st = out->priv;
	st->spans = calloc(st->stripes.n + 1, sizeof *st->spans);
	if (!st->spans)
		return ws_oom(err);
	for (size_t i = 0; i < st->stripes.n; i++)
		ws_stripe_span(&st->stripes.items[i], &st->spans[i]);
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
	int rc = open_sends(count_sends(s, b, sender), out, err);
	for (size_t i = b->first; rc == 0 && i < b->first + b->n; i++)
		rc = add_entry(s, &s->entries[i], sender, out, err);
	if (rc == 0)
		rc = make_spans(out, err);
	if (rc)
		ws_scatter_sends_free(out);
	return rc;
}

const struct ws_stripe *ws_scatter_stripes(const struct ws_scatter_sends *sends, size_t i,
                                           size_t *n)
{
	const struct store *st = sends->priv;
	*n = st->count[i];
	return st->stripes.items + st->first[i];
}

void ws_scatter_sends_free(struct ws_scatter_sends *sends)
{
	if (!sends)
		return;
	struct store *st = sends->priv;
	if (st) {
		free(st->spans);
		free(st->stripes.items);
		free(st->first);
		free(st->count);
	}
	free(st);
	free(sends->items);
	*sends = (struct ws_scatter_sends){ 0 };
}
