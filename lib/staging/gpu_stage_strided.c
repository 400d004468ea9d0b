/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_stage_strided.c - cuts strided copies to a range of their span. On each axis the range has up
 * to three parts: the end of one index, whole indices, and the beginning of one index. */
#include "gpu_stage_steps.h"

#include <string.h>

_Static_assert((int)WS_STRIDED_DIMS == (int)WS_MAX_DIMS, "a range has the axes of a tensor");

/* ---- cutting ---- */

struct range {
	uint64_t begin, end; /* bytes of the span */
	ws_strided_fn *fn;
	void *ctx;
};

/* Bytes of the span from the first element to the last, with one index on each axis before d. */
static uint64_t reach(const struct ws_strided *b, unsigned d)
{
	uint64_t n = 1;
	for (; d < b->n_dims; d++)
		n += (uint64_t)((b->dims[d] - 1) * b->write[d]);
	return n * b->size;
}

/* The elements with indices [first, end) of axis d. */
static struct ws_strided slice(const struct ws_strided *b, unsigned d, int64_t first, int64_t end)
{
	struct ws_strided s = *b;
	s.at += (uint64_t)(first * b->read[d]) * b->size;
	s.to += (uint64_t)(first * b->write[d]) * b->size;
	s.dims[d] = end - first;
	return s;
}

static int cut(const struct ws_strided *b, unsigned d, const struct range *r, struct ws_err *err);

static int cut_slice(const struct ws_strided *b, unsigned d, int64_t i, const struct range *r,
                     struct ws_err *err)
{
	const struct ws_strided s = slice(b, d, i, i + 1);
	return cut(&s, d + 1, r, err);
}

/* Axes before d have one index. On axis d, indices from `first` on begin in the range, and indices
 * before `end` end in it. */
static int cut(const struct ws_strided *b, unsigned d, const struct range *r, struct ws_err *err)
{
	if (b->to >= r->end || b->to + reach(b, d) <= r->begin)
		return 0;
	if (b->to >= r->begin && b->to + reach(b, d) <= r->end)
		return r->fn(r->ctx, b, err);
	if (b->dims[d] == 1)
		return cut(b, d + 1, r, err);
	const uint64_t step = (uint64_t)b->write[d] * b->size, one = reach(b, d + 1);
	const uint64_t before = r->begin > b->to ? r->begin - b->to : 0;
	const int64_t first = (int64_t)((before + step - 1) / step);
	const uint64_t whole = r->end >= b->to + one ? (r->end - b->to - one) / step + 1 : 0;
	const int64_t end = whole < (uint64_t)b->dims[d] ? (int64_t)whole : b->dims[d];
	if (first > end) /* one index contains all of the range */
		return cut_slice(b, d, end, r, err);
	int rc = first > 0 ? cut_slice(b, d, first - 1, r, err) : 0;
	if (rc == 0 && first < end) {
		const struct ws_strided s = slice(b, d, first, end);
		rc = r->fn(r->ctx, &s, err);
	}
	return rc || end == b->dims[d] ? rc : cut_slice(b, d, end, r, err);
}

int ws_strided_cut(const struct ws_strided *b, uint64_t from, uint64_t n, ws_strided_fn *fn,
                   void *ctx, struct ws_err *err)
{
	const struct range r = { from, from + n, fn, ctx };
	return cut(b, 0, &r, err);
}

/* ---- gathering ---- */

struct gather {
	struct ws_compute *compute;
	struct ws_stream *stream;
	ws_devptr from, to; /* beginning of the tensor, and of the output */
	uint64_t skip;      /* bytes of the span before the range */
};

static int gather_part(void *ctx, const struct ws_strided *b, struct ws_err *err)
{
	const struct gather *g = ctx;
	struct ws_gather_job job = { .src = g->from + b->at,
		                     .dst = g->to + (b->to - g->skip),
		                     .size = b->size,
		                     .n_dims = b->n_dims };
	memcpy(job.dims, b->dims, sizeof job.dims);
	memcpy(job.read, b->read, sizeof job.read);
	memcpy(job.write, b->write, sizeof job.write);
	return ws_compute_gather(g->compute, &job, g->stream, err);
}

static bool is_known(const struct ws_strided *b)
{
	return b->size == 1 || b->size == 2 || b->size == 4 || b->size == 8;
}

/* Can kernels copy the whole span? edges: the range's bounds and destination, for the alignment. */
static int lies_here(const struct ws_span *span, const struct ws_cuda_device *gpu, uint64_t edges,
                     bool *here, struct ws_err *err)
{
	struct ws_gpu_address address;
	*here = true;
	for (size_t i = 0; i < span->n_strided && *here; i++) {
		const struct ws_strided *b = &span->strided[i];
		if (b->gpu_address(b->ctx, &address, err))
			return -1;
		*here = is_known(b) && (edges | address.at) % b->size == 0 &&
		        memcmp(address.gpu, gpu->uuid, sizeof address.gpu) == 0;
	}
	return 0;
}

int ws_gpu_strided_read(struct ws_compute *c, const struct ws_cuda_device *gpu,
                    const struct ws_span *span, uint64_t from, uint64_t n, ws_devptr to,
                    struct ws_stream *s, bool *here, struct ws_err *err)
{
	struct gather g = { .compute = c, .stream = s, .to = to, .skip = from };
	struct ws_gpu_address address;
	if (lies_here(span, gpu, from | n | to, here, err))
		return -1;
	for (size_t i = 0; i < span->n_strided && *here; i++) {
		const struct ws_strided *b = &span->strided[i];
		if (b->to >= from + n || b->to + reach(b, 0) <= from)
			continue;
		if (b->gpu_address(b->ctx, &address, err))
			return -1;
		g.from = address.at;
		if (ws_strided_cut(b, from, n, gather_part, &g, err))
			return -1;
	}
	return 0;
}
