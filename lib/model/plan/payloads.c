/* SPDX-License-Identifier: Apache-2.0 */
#include "payloads.h"

#include "checkpoint.h"
#include "hash.h"
#include "computed_item.h"
#include "view.h"

#include <stdlib.h>

/* Context of a fill function: the origin of a span's gathered or computed bytes. */
struct fill {
	struct fill *next;
	struct bundle *bundle;
	const struct ws_item *item;
	size_t first, n; /* views: pieces; computed items: first is the index in bundle->computed */
	size_t tensor;   /* index in the plan */
	struct ws_span whole; /* runs of memory: span of the whole tensor */
	uint64_t skip;        /* runs of memory: offset of the run in `whole` */
	struct ws_strided *strided; /* views of GPU memory: boxes of the pieces; owned */
};

/* Allocated together with the payloads, which come last. */
struct bundle {
	struct ws_span *spans;
	size_t n_spans, cap;
	struct ws_gather_buffer *gather; /* shared: spans are sent one after the other */
	struct fill *fills;
	const struct ws_computed_item **computed; /* computed items of the bucket, in order */
	size_t n_computed;
	/* computes these items ahead of the reader; NULL: no computed items */
	struct ws_computed_read *reading;
	uint64_t *hashes;         /* by tensor of the plan; NULL: hashes are not wanted */
	struct ws_hash *hash;     /* hash of the current tensor */
	struct ws_payload payloads[];
};

static struct bundle *bundle_of(struct ws_payload *payloads)
{
	return (struct bundle *)(void *)((char *)payloads - offsetof(struct bundle, payloads));
}

struct building {
	struct bundle *bundle;
	struct ws_payload *payload;
	size_t tensor;
	ws_elsewhere_fn *elsewhere;
	void *ctx;
	struct ws_err *err;
};

static int fill_from_view(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct fill *f = ctx;
	return ws_gather_buffer_read(f->bundle->gather, f->item, f->first, f->n, at, dst, n, err);
}

static int fill_from_run(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct fill *f = ctx;
	return f->whole.fill(f->whole.ctx, f->skip + at, dst, n, err);
}

static int place_of_run(void *ctx, struct ws_gpu_address *out, struct ws_err *err)
{
	const struct fill *f = ctx;
	if (f->whole.gpu_address(f->whole.ctx, out, err))
		return -1;
	out->at += f->skip;
	return 0;
}

/* Hashing works because payloads are read from the first byte to the last. */
static void watch(const struct fill *f, uint64_t at, const void *bytes, size_t n)
{
	struct bundle *b = f->bundle;
	if (at == 0)
		ws_hash_reset(b->hash);
	ws_hash_add(b->hash, bytes, n);
	if (at + n == f->item->bytes)
		b->hashes[f->tensor] = ws_hash_digest(b->hash);
}

static int fill_computed(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct fill *f = ctx;
	if (f->item->computed->ops->next(f->bundle->reading, f->first, at, dst, n, err))
		return -1;
	if (f->bundle->hashes)
		watch(f, at, dst, n);
	return 0;
}

static int fill_from_item(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	return ws_item_read(ctx, at, dst, n, err);
}

/* True if two runs of a file are adjacent: they become one span, for one sendfile(2). */
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
			return ws_oom(x->err);
		b->spans = p;
		b->cap = cap;
	}
	b->spans[b->n_spans++] = *span;
	x->payload->n_spans++;
	return 0;
}

/* Takes ownership of fill.strided. The caller sets the span's length and functions. */
static int add_fill(struct building *x, struct fill fill, struct ws_span span)
{
	struct bundle *b = x->bundle;
	struct fill *f = malloc(sizeof *f);
	if (!f) {
		free(fill.strided);
		return ws_oom(x->err);
	}
	*f = fill;
	f->bundle = b;
	f->next = b->fills;
	b->fills = f;
	span.fd = -1;
	span.ctx = f;
	return add_span(x, &span);
}

static int add_gathered(struct building *x, const struct ws_view_run *s)
{
	struct bundle *b = x->bundle;
	if (!b->gather)
		b->gather = ws_gather_buffer_new();
	return b->gather ?
	               add_fill(x, (struct fill){ .item = s->item, .first = s->first, .n = s->n },
	                        (struct ws_span){ .length = s->length, .fill = fill_from_view }) :
	               ws_oom(x->err);
}

/* *added is false if some pieces are not on a GPU. */
static int add_boxes(struct building *x, const struct ws_item *item, bool *added)
{
	struct bundle *b = x->bundle;
	const size_t n = item->view->n_pieces;
	struct ws_strided *boxes = calloc(n + 1, sizeof *boxes);
	if (!boxes)
		return ws_oom(x->err);
	*added = item->bytes && ws_view_strided(item, boxes);
	if (!b->gather)
		b->gather = ws_gather_buffer_new();
	if (!*added || !b->gather) {
		free(boxes);
		return *added ? ws_oom(x->err) : 0;
	}
	return add_fill(x, (struct fill){ .item = item, .n = n, .strided = boxes },
	                (struct ws_span){ .length = item->bytes,
	                                  .fill = fill_from_view,
	                                  .strided = boxes,
	                                  .n_strided = n });
}

static int add_run(struct building *x, const struct ws_view_run *s, const struct ws_span *whole)
{
	return add_fill(x, (struct fill){ .whole = *whole, .skip = s->at },
	                (struct ws_span){ .length = s->length,
	                                  .fill = fill_from_run,
	                                  .gpu_address = place_of_run });
}

/* A data plane that computes an item itself may still read some of its bytes, but usually reads
 * none. */
static int add_elsewhere(struct building *x, const struct ws_item *item,
                         const struct ws_recipe_output *recipe)
{
	return add_span(x, &(struct ws_span){ .length = item->bytes,
	                                      .fd = -1,
	                                      .fill = fill_from_item,
	                                      .ctx = (void *)(uintptr_t)item,
	                                      .recipe = recipe });
}

static int add_made(struct building *x, const struct ws_item *item)
{
	struct bundle *b = x->bundle;
	const struct ws_recipe_output *recipe = NULL;
	if (x->elsewhere && item->computed->ops->recipe(item->computed, &recipe, x->err))
		return -1;
	if (x->elsewhere && x->elsewhere(x->ctx, recipe))
		return add_elsewhere(x, item, recipe);
	b->computed[b->n_computed] = item->computed;
	return add_fill(x,
	                (struct fill){
				.item = item, .first = b->n_computed++, .tensor = x->tensor },
	                (struct ws_span){ .length = item->bytes, .fill = fill_computed });
}

static int add_view_run(void *ctx, const struct ws_view_run *s)
{
	struct ws_span span;
	if (!s->piece)
		return add_gathered(ctx, s);
	ws_source_span(s->piece->source, s->piece->from, &span);
	if (span.fd < 0)
		return add_run(ctx, s, &span);
	span.offset += s->at;
	span.length = s->length;
	return add_span(ctx, &span);
}

static int add_item(struct building *x, const struct ws_item *item)
{
	struct ws_span span;
	bool added = false;
	if (item->computed)
		return add_made(x, item);
	if (item->view && x->elsewhere && add_boxes(x, item, &added))
		return -1;
	if (added)
		return 0;
	if (item->view)
		return ws_view_walk(item, add_view_run, x);
	ws_source_span(item->source, item->from, &span);
	return add_span(x, &span);
}

static int add_items(const struct ws_plan *p, const struct ws_plan_bucket *b, struct building *x)
{
	struct bundle *bundle = x->bundle;
	bundle->computed = calloc(b->n, sizeof *bundle->computed);
	if (!bundle->computed)
		return ws_oom(x->err);
	for (size_t i = 0; i < b->n; i++) {
		x->payload = &bundle->payloads[p->format == WS_FORMAT_FLATTENED ? 0 : i];
		x->tensor = b->first + i;
		if (add_item(x, p->tensors[x->tensor].item))
			return -1;
	}
	return 0;
}

/* Starts computing at once, so that bytes are ready when the bucket is sent. */
static int begin_reading(struct bundle *b, struct ws_err *err)
{
	if (!b->n_computed)
		return 0;
	return b->computed[0]->ops->begin(b->computed, b->n_computed, &b->reading, err);
}

int ws_plan_payloads(const struct ws_plan *p, size_t bucket, struct ws_payload **out, size_t *n_out,
                     struct ws_err *err)
{
	return ws_plan_payloads_for_gpu(p, bucket, NULL, NULL, out, n_out, err);
}

int ws_plan_payloads_for_gpu(const struct ws_plan *p, size_t bucket, ws_elsewhere_fn *elsewhere,
                             void *ctx, struct ws_payload **out, size_t *n_out,
                             struct ws_err *err)
{
	const struct ws_plan_bucket *b = &p->buckets[bucket];
	const size_t n = p->format == WS_FORMAT_FLATTENED ? 1 : b->n;
	struct bundle *bundle = calloc(1, sizeof *bundle + n * sizeof(struct ws_payload));
	struct building x = { .bundle = bundle, .elsewhere = elsewhere, .ctx = ctx, .err = err };
	if (!bundle)
		return ws_oom(err);
	if (add_items(p, b, &x) || begin_reading(bundle, err)) {
		ws_plan_payloads_free(bundle->payloads, n);
		return -1;
	}
	/* The span array no longer grows, so pointers into it are valid. */
	const struct ws_span *span = bundle->spans;
	for (size_t i = 0; i < n; i++) {
		bundle->payloads[i].spans = span;
		span += bundle->payloads[i].n_spans;
	}
	*out = bundle->payloads;
	*n_out = n;
	return 0;
}

int ws_plan_payloads_watch(struct ws_payload *payloads, uint64_t *hashes, struct ws_err *err)
{
	struct bundle *b = bundle_of(payloads);
	if (b->n_computed && !b->hash && !(b->hash = ws_hash_new()))
		return ws_oom(err);
	b->hashes = hashes;
	return 0;
}

void ws_plan_payloads_free(struct ws_payload *payloads, size_t n)
{
	(void)n;
	if (!payloads)
		return;
	struct bundle *b = bundle_of(payloads);
	if (b->reading)
		b->computed[0]->ops->end(b->reading);
	free(b->computed);
	while (b->fills) {
		struct fill *next = b->fills->next;
		free(b->fills->strided);
		free(b->fills);
		b->fills = next;
	}
	ws_hash_free(b->hash);
	ws_gather_buffer_free(b->gather);
	free(b->spans);
	free(b);
}

int ws_plan_hash(const struct ws_plan *p, size_t i, uint64_t *hash, struct ws_err *err)
{
	return ws_item_hash(p->tensors[i].item, hash, err);
}
