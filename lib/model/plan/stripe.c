/* SPDX-License-Identifier: Apache-2.0 */
/* stripe.c - reads a box of a tensor run by run. A box that is one run of a file is sent
 * from that file. */
#include "stripe.h"

#include "checkpoint.h"

#include <stdlib.h>
#include <string.h>

uint64_t ws_stripe_elements(unsigned n, const int64_t *size)
{
	uint64_t count = 1;
	for (unsigned d = 0; d < n; d++)
		count *= (uint64_t)size[d];
	return count;
}

uint64_t ws_stripe_run(unsigned n, const int64_t *size, const int64_t *dims)
{
	uint64_t run = 1;
	for (unsigned d = n; d-- > 0;) {
		run *= (uint64_t)size[d];
		if (size[d] != dims[d])
			break;
	}
	return run;
}

uint64_t ws_stripe_offset(unsigned n, const int64_t *at, const int64_t *dims)
{
	uint64_t offset = 0;
	for (unsigned d = 0; d < n; d++)
		offset = offset * (uint64_t)dims[d] + (uint64_t)at[d];
	return offset;
}

static uint64_t element_of(const struct ws_stripe *s)
{
	return ws_dtype_bits(s->tensor->dtype) / 8;
}

void ws_stripe_measure(struct ws_stripe *s)
{
	const struct ws_plan_tensor *t = s->tensor;
	s->length = ws_stripe_elements(t->n_dims, s->size) * element_of(s);
	s->run = ws_stripe_run(t->n_dims, s->size, t->dims) * element_of(s);
}

/* The first element of the box's k-th run. */
static uint64_t run_at(const struct ws_stripe *s, uint64_t k)
{
	const struct ws_plan_tensor *t = s->tensor;
	int64_t at[WS_MAX_DIMS];
	uint64_t inner = 1, run = s->run / element_of(s);
	memcpy(at, s->at, sizeof at);
	for (unsigned d = t->n_dims; d-- > 0;) {
		if (inner >= run) {
			at[d] += (int64_t)(k % (uint64_t)s->size[d]);
			k /= (uint64_t)s->size[d];
		}
		inner *= (uint64_t)s->size[d];
	}
	return ws_stripe_offset(t->n_dims, at, t->dims);
}

int ws_stripe_read(const struct ws_stripe *s, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	uint8_t *to = dst;
	if (!s->tensor) {
		memset(dst, 0, n);
		return 0;
	}
	if (!s->tensor->item)
		return ws_err_set(err, WS_EINPUT, "tensor %s is another sender's", s->tensor->name);
	while (n > 0) {
		const uint64_t within = at % s->run;
		const size_t some = n < s->run - within ? n : (size_t)(s->run - within);
		if (ws_item_read(s->tensor->item, run_at(s, at / s->run) * element_of(s) + within,
		                 to, some, err))
			return -1;
		to += some;
		at += some;
		n -= some;
	}
	return 0;
}

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	return ws_stripe_read(ctx, at, dst, n, err);
}

void ws_stripe_span(struct ws_stripe *s, struct ws_span *span)
{
	const struct ws_item *item = s->tensor ? s->tensor->item : NULL;
	*span = (struct ws_span){ .length = s->length, .fd = -1, .fill = fill, .ctx = s };
	if (!item || item->computed || item->view || s->run < s->length)
		return;
	struct ws_span file;
	ws_source_span(item->source, item->from, &file);
	if (file.fd < 0)
		return;
	file.offset += ws_stripe_offset(s->tensor->n_dims, s->at, s->tensor->dims) * element_of(s);
	file.length = s->length;
	*span = file;
}

/* ---- the stripes of a parameter -------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct ws_stripe *x = a, *y = b;
	return x->to < y->to ? -1 : x->to > y->to;
}

/* 1: *out is the stripe; 0: this rank has nothing of the part. A part is one row of bytes in its
 * parameter (gate rows behind up rows, an expert behind the other). */
static int cut(const struct ws_layout *l, const struct ws_param *p, const struct ws_part *part,
               const struct ws_plan_tensor *t, unsigned rank, struct ws_stripe *out,
               struct ws_err *err)
{
	struct ws_box from, to;
	int64_t dims[WS_MAX_DIMS];
	ws_layout_place(l, part, rank, &from, &to);
	ws_layout_dims(l, p, rank, dims);
	const uint64_t count = ws_stripe_elements(to.n_dims, to.size);
	if (!count)
		return 0;
	if (!t)
		return ws_err_set(err, WS_EREFUSED, "parameter %s: the source has no %s", p->name,
		                  part->name);
	if (part->transposed || ws_stripe_run(to.n_dims, to.size, dims) != count)
		return ws_err_set(err, WS_EREFUSED,
		                  "parameter %s: %s does not lie in it as one row of bytes",
		                  p->name, part->name);
	*out = (struct ws_stripe){ .tensor = t };
	memcpy(out->at, from.at, sizeof out->at);
	memcpy(out->size, from.size, sizeof out->size);
	ws_stripe_measure(out);
	out->to = ws_stripe_offset(to.n_dims, to.at, dims) * (ws_dtype_bits(t->dtype) / 8);
	return 1;
}

static int add(struct ws_stripes *out, const struct ws_stripe *s, struct ws_err *err)
{
	if (out->n == out->cap) {
		const size_t cap = out->cap ? out->cap * 2 : 256;
		struct ws_stripe *more = reallocarray(out->items, cap, sizeof *more);
		if (!more)
			return ws_oom(err);
		out->items = more;
		out->cap = cap;
	}
	out->items[out->n++] = *s;
	return 0;
}

int ws_stripes_add(struct ws_stripes *out, const struct ws_layout *l, const struct ws_param *p,
                   unsigned rank, uint64_t lo, uint64_t hi, ws_stripe_find_fn *find,
                   const void *ctx, struct ws_err *err)
{
	const size_t first = out->n;
	uint64_t at = lo;
	for (size_t i = 0; i < p->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(l, p->first + i);
		struct ws_stripe x = { 0 };
		const int there = cut(l, p, part, find(ctx, part), rank, &x, err);
		if (there < 0 || (there && x.to >= lo && x.to < hi && add(out, &x, err)))
			return -1;
	}
	qsort(out->items + first, out->n - first, sizeof *out->items, by_place);
	for (size_t i = first; i < out->n; i++) {
		if (out->items[i].to != at)
			return ws_err_set(err, WS_EREFUSED, "parameter %s: its parts leave a gap",
			                  p->name);
		at += out->items[i].length;
	}
	if (at > hi)
		return ws_err_set(err, WS_EREFUSED,
		                  "parameter %s: a part of it is in the shares of two senders",
		                  p->name);
	const struct ws_stripe zeros = { .to = at, .length = hi - at };
	return at < hi ? add(out, &zeros, err) : 0;
}
