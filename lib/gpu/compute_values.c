/* SPDX-License-Identifier: Apache-2.0 */
/* compute_values.c - the largest magnitude of a strided range. Order does not matter, so the range
 * is split into rows of elements. */
#include "compute_core.h"

#include <assert.h>
#include <string.h>

struct axes {
	unsigned n;
	int64_t dims[WS_MAX_DIMS], read[WS_MAX_DIMS];
};

/* Axes of more than one element, by rising stride; contiguous axes are merged. */
static void take_axes(struct axes *a, const struct ws_largest_job *job)
{
	*a = (struct axes){ 0 };
	for (unsigned d = 0; d < job->n_dims; d++) {
		unsigned i = a->n;
		if (job->dims[d] == 1)
			continue;
		for (; i > 0 && a->read[i - 1] > job->read[d]; i--) {
			a->dims[i] = a->dims[i - 1];
			a->read[i] = a->read[i - 1];
		}
		a->dims[i] = job->dims[d];
		a->read[i] = job->read[d];
		a->n++;
	}
	unsigned n = 0;
	for (unsigned d = 1; d < a->n; d++) {
		if (a->read[d] == a->dims[n] * a->read[n]) {
			a->dims[n] *= a->dims[d];
			continue;
		}
		a->dims[++n] = a->dims[d];
		a->read[n] = a->read[d];
	}
	a->n = a->n ? n + 1 : 0;
}

static int start(struct ws_compute *c, struct ws_values_args *a, unsigned size, struct ws_stream *s,
                 struct ws_err *err)
{
	const enum ws_kernel_id id = size == 1 ? WS_KERNEL_largest_1 :
	                             size == 2 ? WS_KERNEL_largest_2 :
	                                         WS_KERNEL_largest_4;
	const uint64_t each = WS_VALUES_CHUNK / size, cols = (uint64_t)a->cols,
		       rows = (uint64_t)a->rows;
	const bool is_long = rows == 1 || cols * size >= WS_VALUES_THREADS * 16 / 2;
	a->per_row = is_long ? (uint32_t)(cols / each + (cols % each != 0)) : 0;
	const uint64_t blocks =
		is_long ? rows * a->per_row : rows * cols / each + (rows * cols % each != 0);
	return ws_compute_run(c, id, blocks, WS_VALUES_THREADS, a, s, err);
}

/* A launch covers two axes; this loops over the others. */
static int walk(struct ws_compute *c, const struct axes *x, unsigned axis, struct ws_values_args *a,
                const struct ws_largest_job *job, struct ws_stream *s, struct ws_err *err)
{
	const unsigned first = x->n && x->read[0] == 1 ? 2 : 1;
	if (axis <= first)
		return start(c, a, job->size, s, err);
	const uint64_t src = a->src;
	int rc = 0;
	for (int64_t i = 0; i < x->dims[axis - 1] && rc == 0; i++) {
		a->src = src + (uint64_t)(i * x->read[axis - 1]) * job->size;
		rc = walk(c, x, axis - 1, a, job, s, err);
	}
	a->src = src;
	return rc;
}

int ws_compute_largest(struct ws_compute *c, const struct ws_largest_job *job, struct ws_stream *s,
                       struct ws_err *err)
{
	struct axes x;
	struct ws_values_args a = { .src = job->src,
		                    .found = job->found,
		                    .rows = 1,
		                    .cols = 1,
		                    .stride = 1,
		                    .mask = job->mask };
	assert(job->size == 1 || job->size == 2 || job->size == 4);
	assert(job->n_dims <= WS_MAX_DIMS && job->src % job->size == 0);
	take_axes(&x, job);
	/* the row axis follows the column axis, if there is one */
	const unsigned row = x.n && x.read[0] == 1;
	if (row)
		a.cols = x.dims[0];
	if (row < x.n) {
		a.rows = x.dims[row];
		a.stride = x.read[row];
	}
	return walk(c, &x, x.n, &a, job, s, err);
}
