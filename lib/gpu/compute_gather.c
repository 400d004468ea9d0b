/* SPDX-License-Identifier: Apache-2.0 */
/* compute_gather.c - strided copies: chooses the kernel, with as few axes as possible.
 *
 * Contiguous axes are merged into one and contiguous elements into wider ones. The rest is copied
 * in the order of the destination, or transposed through tiles where that would scatter the
 * reads. */
#include "compute_core.h"

#include <assert.h>
#include <string.h>

struct strided_copy {
	struct ws_gather_args a;
	unsigned size;
};

static void swap_axes(struct ws_gather_args *a, unsigned i, unsigned j)
{
	int64_t *const of[] = { a->dims, a->read, a->write };
	for (unsigned k = 0; k < 3; k++) {
		const int64_t kept = of[k][i];
		of[k][i] = of[k][j];
		of[k][j] = kept;
	}
}

/* Axes of more than one element, by rising stride in the destination. */
static void take_axes(struct strided_copy *b, const struct ws_gather_job *job)
{
	struct ws_gather_args *a = &b->a;
	for (unsigned d = job->n_dims; d-- > 0;) {
		if (job->dims[d] == 1)
			continue;
		a->dims[a->n_dims] = job->dims[d];
		a->read[a->n_dims] = job->read[d];
		a->write[a->n_dims] = job->write[d];
		for (unsigned i = a->n_dims++; i > 0 && a->write[i] < a->write[i - 1]; i--)
			swap_axes(a, i, i - 1);
	}
}

static void merge_axes(struct ws_gather_args *a)
{
	unsigned n = 0;
	for (unsigned d = 1; d < a->n_dims; d++) {
		if (a->read[d] == a->dims[n] * a->read[n] &&
		    a->write[d] == a->dims[n] * a->write[n])
			a->dims[n] *= a->dims[d];
		else
			swap_axes(a, ++n, d);
	}
	if (a->n_dims)
		a->n_dims = n + 1;
}

static bool can_widen(const struct strided_copy *b)
{
	const struct ws_gather_args *a = &b->a;
	const uint64_t wide = 2 * (uint64_t)b->size;
	bool even = b->size < 16 && a->src % wide == 0 && a->dst % wide == 0 && a->dims[0] % 2 == 0;
	for (unsigned d = 1; d < a->n_dims; d++)
		even = even && a->read[d] % 2 == 0 && a->write[d] % 2 == 0;
	return even;
}

static void widen(struct strided_copy *b)
{
	struct ws_gather_args *a = &b->a;
	if (!a->n_dims || a->read[0] != 1 || a->write[0] != 1)
		return;
	while (can_widen(b)) {
		b->size *= 2;
		a->dims[0] /= 2;
		for (unsigned d = 1; d < a->n_dims; d++) {
			a->read[d] /= 2;
			a->write[d] /= 2;
		}
	}
}

/* The axis that is contiguous in the source, if another one is in the destination; else 0. */
static unsigned transposed_axis(const struct ws_gather_args *a)
{
	enum { WORTH_IT = 8 }; /* elements: fewer leave most of a tile empty */
	if (a->n_dims < 2 || a->read[0] == 1 || a->write[0] != 1 || a->dims[0] < WORTH_IT)
		return 0;
	for (unsigned d = 1; d < a->n_dims; d++)
		if (a->read[d] == 1 && a->dims[d] >= WORTH_IT)
			return d;
	return 0;
}

static uint64_t count(const struct ws_gather_args *a, unsigned from)
{
	uint64_t n = 1;
	for (unsigned d = from; d < a->n_dims; d++)
		n *= (uint64_t)a->dims[d];
	return n;
}

static int transpose(struct ws_compute *c, struct strided_copy *b, unsigned axis,
                     struct ws_stream *s, struct ws_err *err)
{
	struct ws_gather_args *a = &b->a;
	/* The source's contiguous axis first, then the destination's. */
	swap_axes(a, 1, axis);
	swap_axes(a, 0, 1);
	const uint64_t across = ((uint64_t)a->dims[0] + WS_TRANSPOSE_TILE - 1) / WS_TRANSPOSE_TILE;
	const uint64_t down = ((uint64_t)a->dims[1] + WS_TRANSPOSE_TILE - 1) / WS_TRANSPOSE_TILE;
	a->count = across * down * count(a, 2);
	const enum ws_kernel_id id = b->size == 1 ? WS_KERNEL_transpose_1 :
	                             b->size == 2 ? WS_KERNEL_transpose_2 :
	                             b->size == 4 ? WS_KERNEL_transpose_4 :
	                                            WS_KERNEL_transpose_8;
	return ws_compute_run(c, id, a->count, WS_GATHER_THREADS, a, s, err);
}

int ws_compute_gather(struct ws_compute *c, const struct ws_gather_job *job, struct ws_stream *s,
                      struct ws_err *err)
{
	struct strided_copy b = { .a = { .src = job->src, .dst = job->dst }, .size = job->size };
	assert(job->n_dims <= WS_MAX_DIMS &&
	       (job->size == 1 || job->size == 2 || job->size == 4 || job->size == 8));
	assert(job->src % job->size == 0 && job->dst % job->size == 0);
	take_axes(&b, job);
	merge_axes(&b.a);
	widen(&b);
	const unsigned axis = transposed_axis(&b.a);
	if (axis)
		return transpose(c, &b, axis, s, err);
	b.a.count = count(&b.a, 0);
	const enum ws_kernel_id id = b.size == 1 ? WS_KERNEL_gather_1 :
	                             b.size == 2 ? WS_KERNEL_gather_2 :
	                             b.size == 4 ? WS_KERNEL_gather_4 :
	                             b.size == 8 ? WS_KERNEL_gather_8 :
	                                           WS_KERNEL_gather_16;
	const uint64_t blocks =
		b.a.count / WS_GATHER_THREADS + (b.a.count % WS_GATHER_THREADS != 0);
	return ws_compute_run(c, id, blocks, WS_GATHER_THREADS, &b.a, s, err);
}
