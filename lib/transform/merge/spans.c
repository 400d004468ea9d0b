/* SPDX-License-Identifier: Apache-2.0 */
#include "spans.h"

#include "checkpoint.h"
#include "view.h"

#include <assert.h>
#include <stdlib.h>

int ws_spans_add(struct ws_spans *s, const struct ws_span *span, struct ws_err *err)
{
	if (s->n == s->cap) {
		const size_t cap = s->cap ? s->cap * 2 : 4;
		struct ws_span *list = reallocarray(s->list, cap, sizeof *list);
		if (!list)
			return ws_oom(err);
		s->list = list;
		s->cap = cap;
	}
	s->list[s->n++] = *span;
	return 0;
}

static int fill_from_item(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	return ws_item_read(ctx, at, dst, n, err);
}

static struct ws_span span_of_item(const struct ws_item *item)
{
	return (struct ws_span){ .length = item->bytes, .fd = -1, .fill = fill_from_item,
		                 .ctx = (void *)(uintptr_t)item };
}

/* 1: the run is not in a file. */
static int add_view_run(void *ctx, const struct ws_view_run *s)
{
	struct ws_span span;
	ws_source_span(s->piece->source, s->piece->from, &span);
	if (span.fd < 0)
		return 1;
	span.offset += s->at;
	span.length = s->length;
	return ws_spans_add(ctx, &span, NULL);
}

/* 1: not all of the item is on GPUs. */
static int add_boxes(struct ws_spans *s, const struct ws_item *item, struct ws_err *err)
{
	struct ws_span span = span_of_item(item);
	s->strided = calloc(item->view->n_pieces + 1, sizeof *s->strided);
	if (!s->strided)
		return ws_oom(err);
	if (!ws_view_strided(item, s->strided))
		return 1;
	span.strided = s->strided;
	span.n_strided = item->view->n_pieces;
	return ws_spans_add(s, &span, err);
}

static int add_view(struct ws_spans *s, const struct ws_item *item, struct ws_err *err)
{
	int rc = add_boxes(s, item, err);
	if (rc <= 0)
		return rc;
	if (!ws_view_copied(item)) {
		rc = ws_view_walk(item, add_view_run, s);
		if (rc <= 0)
			return rc ? ws_oom(err) : 0;
		s->n = 0;
	}
	const struct ws_span span = span_of_item(item);
	return ws_spans_add(s, &span, err);
}

int ws_spans_add_item(struct ws_spans *s, const struct ws_item *item, struct ws_err *err)
{
	struct ws_span span;
	assert(!item->computed && s->n == 0);
	if (item->view)
		return add_view(s, item, err);
	ws_source_span(item->source, item->from, &span);
	return ws_spans_add(s, &span, err);
}

struct ws_payload ws_spans_payload(const struct ws_spans *s)
{
	struct ws_payload p = { .spans = s->list, .n_spans = s->n };
	for (size_t i = 0; i < s->n; i++)
		p.length += s->list[i].length;
	return p;
}

void ws_spans_free(struct ws_spans *s)
{
	free(s->list);
	free(s->strided);
	*s = (struct ws_spans){ 0 };
}
