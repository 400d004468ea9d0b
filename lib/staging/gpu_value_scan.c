/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_value_scan.c - queues kernels over all numbers of a batch of scans, on the GPUs that hold
 * them, and waits once for all of them.
 *
 * Each scan has a 32-bit maximum on each GPU, which its kernels raise. The weights belong to
 * another process and stay mapped while their source is open. At the end only a hung GPU has work
 * left. */
#include "gpu_value_scan.h"

#include "compute.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 1024, MOST_GPUS = 16 };
static const uint64_t FOUND_BYTES = BATCH * sizeof(uint32_t);
static const int64_t PATIENCE_NS = 60 * WS_NS_PER_S;

struct device {
	struct ws_gpu *gpu;
	struct ws_compute *compute;
	struct ws_stream *stream;
	ws_devptr found;
	uint32_t *copied; /* pinned */
};

struct scan {
	struct ws_cuda *cuda;
	struct device devices[MOST_GPUS];
	size_t n_devices;
};

/* ---- GPUs ---- */

static int set_up(struct device *d, struct ws_err *err)
{
	void *copied;
	if (ws_compute_open(d->gpu, &d->compute, err) || ws_stream_new(d->gpu, &d->stream, err) ||
	    ws_gpu_alloc(d->gpu, FOUND_BYTES, &d->found, err) ||
	    ws_gpu_alloc_pinned(d->gpu, FOUND_BYTES, &copied, err))
		return -1;
	d->copied = copied;
	return ws_gpu_fill(d->gpu, d->found, 0, FOUND_BYTES, d->stream, err);
}

static void close_all(struct scan *l)
{
	bool stuck = false;
	while (l->n_devices > 0) {
		struct device *d = &l->devices[--l->n_devices];
		/* frees the memory even if this fails */
		ws_gpu_use(d->gpu, NULL);
		if (d->stream && !ws_stream_settle(d->gpu, d->stream)) {
			stuck = true; /* leak the memory that it writes to */
			continue;
		}
		ws_gpu_free_pinned(d->gpu, d->copied);
		ws_gpu_free(d->gpu, d->found);
		ws_stream_free(d->gpu, d->stream);
		ws_compute_close(d->compute);
		ws_gpu_close(d->gpu);
	}
	if (!stuck)
		ws_cuda_close(l->cuda);
}

static int find_ordinal(const struct scan *l, const uint8_t uuid[16], int *ordinal,
                        struct ws_err *err)
{
	struct ws_cuda_device d;
	for (*ordinal = 0; *ordinal < ws_cuda_count(l->cuda); ++*ordinal) {
		if (ws_cuda_device(l->cuda, *ordinal, &d, err))
			return -1;
		if (memcmp(d.uuid, uuid, sizeof d.uuid) == 0)
			return 0;
	}
	return ws_err_set(err, WS_EDEVICE, "the GPU is not visible here");
}

/* Makes the device current. */
static int use_device(struct scan *l, const uint8_t uuid[16], struct device **out,
                      struct ws_err *err)
{
	int ordinal;
	for (size_t i = 0; i < l->n_devices; i++)
		if (memcmp(ws_gpu_device(l->devices[i].gpu)->uuid, uuid, 16) == 0) {
			*out = &l->devices[i];
			return ws_gpu_use((*out)->gpu, err);
		}
	if (l->n_devices == MOST_GPUS)
		return ws_err_set(err, WS_EDEVICE, "weights are on more than %d GPUs", MOST_GPUS);
	struct device *d = &l->devices[l->n_devices];
	if (find_ordinal(l, uuid, &ordinal, err) || ws_gpu_open(l->cuda, ordinal, &d->gpu, err))
		return -1;
	l->n_devices++;
	*out = d;
	return set_up(d, err);
}

/* ---- one scan ---- */

static uint32_t mask_of(enum ws_dtype dtype)
{
	const unsigned bits = ws_dtype_bits(dtype);
	return dtype == WS_DTYPE_F8_E8M0 ? 0xff : UINT32_MAX >> (33 - bits);
}

static int scan_strided(struct scan *l, const struct ws_strided *b, enum ws_dtype dtype,
                        size_t slot, struct ws_err *err)
{
	struct ws_largest_job job = { .size = b->size,
		                      .mask = mask_of(dtype),
		                      .n_dims = b->n_dims };
	struct ws_gpu_address address;
	struct device *d = NULL;
	if (b->gpu_address(b->ctx, &address, err) || use_device(l, address.gpu, &d, err))
		return -1;
	if ((address.at + b->at) % b->size)
		return ws_err_set(err, WS_EDEVICE, "no kernel reads unaligned numbers");
	job.src = address.at + b->at;
	memcpy(job.dims, b->dims, sizeof job.dims);
	memcpy(job.read, b->read, sizeof job.read);
	job.found = d->found + slot * sizeof(uint32_t);
	return ws_compute_largest(d->compute, &job, d->stream, err);
}

static int scan_span(struct scan *l, const struct ws_span *s, enum ws_dtype dtype, size_t slot,
                     struct ws_err *err)
{
	const unsigned size = ws_dtype_bits(dtype) / 8;
	const struct ws_strided whole = { .gpu_address = s->gpu_address,
		                          .ctx = s->ctx,
		                          .size = size,
		                          .n_dims = 1,
		                          .dims = { (int64_t)(s->length / size) },
		                          .read = { 1 } };
	int rc = s->n_strided ? 0 : scan_strided(l, &whole, dtype, slot, err);
	for (size_t i = 0; i < s->n_strided && rc == 0; i++)
		rc = scan_strided(l, &s->strided[i], dtype, slot, err);
	return rc;
}

/* ---- batches ---- */

/* Copies the results of every GPU, and clears them for the next batch. */
static int collect(struct scan *l, const struct ws_cancel *cancel, struct ws_err *err)
{
	for (size_t i = 0; i < l->n_devices; i++) {
		const struct device *d = &l->devices[i];
		if (ws_gpu_use(d->gpu, err) ||
		    ws_gpu_copy_out(d->gpu, d->copied, d->found, FOUND_BYTES, d->stream, err) ||
		    ws_gpu_fill(d->gpu, d->found, 0, FOUND_BYTES, d->stream, err))
			return -1;
	}
	for (size_t i = 0; i < l->n_devices; i++) {
		const struct device *d = &l->devices[i];
		if (ws_gpu_use(d->gpu, err) ||
		    ws_stream_wait(d->gpu, d->stream, ws_deadline_in(PATIENCE_NS), cancel, err))
			return -1;
	}
	return 0;
}

static int scan_batch(struct scan *l, struct ws_value_scan *scans, size_t n,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < scans[i].of.n_spans; k++)
			if (scan_span(l, &scans[i].of.spans[k], scans[i].dtype, i, err))
				return -1;
	if (collect(l, cancel, err))
		return -1;
	for (size_t i = 0; i < n; i++) {
		scans[i].seen = true;
		for (size_t k = 0; k < l->n_devices; k++)
			if (l->devices[k].copied[i] > scans[i].largest)
				scans[i].largest = l->devices[k].copied[i];
	}
	return 0;
}

void ws_gpu_value_scan_run(void *ctx, struct ws_value_scan *scans, size_t n,
                           const struct ws_cancel *cancel)
{
	struct ws_gpu_value_scan *g = ctx;
	const struct ws_cuda_opts opts = { .library = g->library };
	struct scan l = { 0 };
	struct ws_err err = WS_ERR_INIT;
	int rc = ws_cuda_open(&opts, &l.cuda, &err);
	for (size_t i = 0; i < n && rc == 0 && !ws_cancelled(cancel); i += BATCH) {
		const size_t some = n - i < BATCH ? n - i : BATCH;
		rc = scan_batch(&l, scans + i, some, cancel, &err);
		g->seen += rc == 0 ? some : 0;
	}
	if (rc && err.code != WS_ECANCELLED)
		ws_log(g->log, 1, "values: the CPU checks them: %s", err.msg);
	close_all(&l);
}

void ws_gpu_value_scan_memory(uint64_t *gpu, uint64_t *pinned)
{
	*gpu = *pinned = FOUND_BYTES;
}
