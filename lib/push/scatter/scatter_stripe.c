/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_stripe.c - reads a box of a tensor run by run. A box that is one run of a file is sent
 * from that file. */
#include "scatter_stripe.h"

#include "checkpoint.h"

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

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct ws_stripe *s = ctx;
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
