/* SPDX-License-Identifier: Apache-2.0 */
#include "payloads.h"

#include "checkpoint.h"
#include "view.h"

#include <stdlib.h>

/* What a span of gathered bytes is had from. */
struct fill {
	struct fill *next;
	struct ws_tiles *tiles;
	const struct ws_item *item;
	size_t first, n;
};

/* What is allocated with the payloads, which come last. */
struct bundle {
	struct ws_span *spans;
	size_t n_spans, cap;
	struct ws_tiles *tiles; /* one for all: spans are sent one after the other */
	struct fill *fills;
	struct ws_payload payloads[];
};

static struct bundle *bundle_of(struct ws_payload *payloads)
{
	return (struct bundle *)(void *)((char *)payloads - offsetof(struct bundle, payloads));
}

struct building {
	struct bundle *bundle;
	struct ws_payload *payload;
};

static int fill_from_view(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct fill *f = ctx;
	return ws_tiles_read(f->tiles, f->item, f->first, f->n, at, dst, n, err);
}

/* Neighbours in a file become one span: one sendfile(2) for what lies together. */
static bool follows(const struct ws_span *a, const struct ws_span *b)
{
	return a->fd >= 0 && a->fd == b->fd && a->offset + a->length == b->offset;
}

static int add_span(struct building *x, const struct ws_span *span)
{
	struct bundle *b = x->bundle;
	x->payload->length += span->length;
	if (x->payload->n_spans && follows(&b->spans[b->n_spans - 1], span)) {
		b->spans[b->n_spans - 1].length += span->length;
		return 0;
	}
	if (b->n_spans == b->cap) {
		const size_t cap = b->cap ? b->cap * 2 : 64;
		struct ws_span *p = reallocarray(b->spans, cap, sizeof *p);
		if (!p)
			return -1;
		b->spans = p;
		b->cap = cap;
	}
	b->spans[b->n_spans++] = *span;
	x->payload->n_spans++;
	return 0;
}

static int add_fill(struct building *x, const struct ws_stretch *s)
{
	struct bundle *b = x->bundle;
	struct fill *f = malloc(sizeof *f);
	if (!f)
		return -1;
	if (!b->tiles)
		b->tiles = ws_tiles_new();
	*f = (struct fill){ b->fills, b->tiles, s->item, s->first, s->n };
	b->fills = f;
	if (!b->tiles)
		return -1;
	return add_span(x, &(struct ws_span){ .length = s->length, .fd = -1, .fill = fill_from_view,
	                                      .ctx = f });
}

static int add_stretch(void *ctx, const struct ws_stretch *s)
{
	struct ws_span span;
	if (!s->piece)
		return add_fill(ctx, s);
	ws_source_span(s->piece->source, s->piece->from, &span);
	span.offset += s->at;
	span.length = s->length;
	return add_span(ctx, &span);
}

static int add_item(struct building *x, const struct ws_item *item)
{
	struct ws_span span;
	if (item->view)
		return ws_view_walk(item, add_stretch, x);
	ws_source_span(item->source, item->from, &span);
	return add_span(x, &span);
}

int ws_plan_payloads(const struct ws_plan *p, size_t bucket, struct ws_payload **out, size_t *n_out,
                     struct ws_err *err)
{
	const struct ws_plan_bucket *b = &p->buckets[bucket];
	const size_t n = p->format == WS_FORMAT_FLATTENED ? 1 : b->n;
	struct bundle *bundle = calloc(1, sizeof *bundle + n * sizeof(struct ws_payload));
	int rc = bundle ? 0 : -1;
	for (size_t i = 0; i < b->n && rc == 0; i++) {
		struct building x = { bundle, &bundle->payloads[n == 1 ? 0 : i] };
		rc = add_item(&x, p->tensors[b->first + i].item);
	}
	if (rc) {
		if (bundle)
			ws_plan_payloads_free(bundle->payloads, n);
		return ws_err_set(err, WS_ESYSTEM, "bucket %zu: out of memory", bucket);
	}
	/* The spans have come to rest. */
	const struct ws_span *span = bundle->spans;
	for (size_t i = 0; i < n; i++) {
		bundle->payloads[i].spans = span;
		span += bundle->payloads[i].n_spans;
	}
	*out = bundle->payloads;
	*n_out = n;
	return 0;
}

void ws_plan_payloads_free(struct ws_payload *payloads, size_t n)
{
	(void)n;
	if (!payloads)
		return;
	struct bundle *b = bundle_of(payloads);
	while (b->fills) {
		struct fill *next = b->fills->next;
		free(b->fills);
		b->fills = next;
	}
	ws_tiles_free(b->tiles);
	free(b->spans);
	free(b);
}

int ws_plan_hash(const struct ws_plan *p, size_t i, uint64_t *hash, struct ws_err *err)
{
	return ws_item_hash(p->tensors[i].item, hash, err);
}
