/* SPDX-License-Identifier: Apache-2.0 */
#include "payloads.h"

#include "checkpoint.h"

#include <stdlib.h>

/* Neighbours in a file become one span: one sendfile(2) for what lies together. */
static int follows(const struct ws_span *a, const struct ws_span *b)
{
	return a->fd >= 0 && a->fd == b->fd && a->offset + a->length == b->offset;
}

int ws_plan_payloads(const struct ws_plan *p, size_t bucket, struct ws_payload **out, size_t *n_out,
                     struct ws_err *err)
{
	const struct ws_plan_bucket *b = &p->buckets[bucket];
	const size_t n = p->format == WS_FORMAT_FLATTENED ? 1 : b->n;
	/* One block, payloads before spans, so that freeing the payloads frees all. */
	const size_t bytes = n * sizeof(struct ws_payload) + b->n * sizeof(struct ws_span);
	struct ws_payload *payloads = calloc(1, bytes);
	if (!payloads)
		return ws_err_set(err, WS_ESYSTEM, "bucket %zu: out of memory", bucket);
	struct ws_span *spans = (struct ws_span *)(void *)(payloads + n), *span = spans;
	for (size_t i = 0; i < b->n; i++) {
		struct ws_payload *payload = &payloads[n == 1 ? 0 : i];
		const struct ws_item *item = p->tensors[b->first + i].item;
		ws_source_span(item->source, item->from, span);
		payload->length += span->length;
		if (payload->n_spans && follows(span - 1, span)) {
			span[-1].length += span->length;
			continue;
		}
		if (payload->n_spans++ == 0)
			payload->spans = span;
		span++;
	}
	*out = payloads;
	*n_out = n;
	return 0;
}

void ws_plan_payloads_free(struct ws_payload *payloads, size_t n)
{
	(void)n;
	free(payloads);
}

int ws_plan_hash(const struct ws_plan *p, size_t i, uint64_t *hash, struct ws_err *err)
{
	return ws_item_hash(p->tensors[i].item, hash, err);
}
