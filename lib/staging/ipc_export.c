/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_export.c - one allocation, its parts used in turn, and a thread that loads the next part. */
#include "ipc_export.h"

#include "gpu_stage.h"
#include "job.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

struct load {
	const struct ws_payload *payloads; /* NULL: nothing */
	size_t n;
};

struct ws_ipc_export {
	struct ws_cuda *cuda;
	struct ws_gpu *gpu;
	struct ws_gpu_stage stage; /* used by the thread while it runs */
	ws_devptr memory;
	uint64_t part;       /* bytes */
	unsigned parts;
	unsigned char handle[WS_IPC_HANDLE_BYTES];
	struct ws_job job;
	struct ws_cancel stop;
	struct load now, next;
	unsigned turn;       /* the part that `now` is loaded into */
};

/* ---- opening ---- */

static struct ws_ipc_export *new_export(struct ws_err *err)
{
	struct ws_ipc_export *l = calloc(1, sizeof *l);
	if (!l) {
		ws_oom(err);
		return NULL;
	}
	l->job.fd = -1;
	l->stop = (struct ws_cancel)WS_CANCEL_INIT;
	return l;
}

int ws_ipc_export_open(const struct ws_ipc_export_opts *opts, struct ws_ipc_export **out,
                       struct ws_err *err)
{
	const struct ws_transport_gpu *g = &opts->gpu;
	struct ws_ipc_export *l = new_export(err);
	if (!l)
		return -1;
	if (ws_job_init(&l->job, err) || ws_transport_gpu_open(g, &l->cuda, &l->gpu, err) ||
	    ws_gpu_stage_open(&l->stage, l->gpu, err) ||
	    ws_gpu_stage_try_kernels(&l->stage, g, err)) {
		ws_ipc_export_close(l);
		return -1;
	}
	ws_gpu_stage_trace(&l->stage, opts->trace);
	*out = l;
	return 0;
}

int ws_ipc_export_check(const struct ws_transport_gpu *gpu, struct ws_err *err)
{
	struct ws_ipc_export *l = new_export(err);
	if (!l)
		return -1;
	const int rc = ws_transport_gpu_open(gpu, &l->cuda, &l->gpu, err);
	ws_ipc_export_close(l);
	return rc;
}

/* A part that was never handed out can be reused at once; servers may still read the next part. */
static void unuse_part(struct ws_ipc_export *l)
{
	if (l->now.payloads)
		l->turn = (l->turn + l->parts - 1) % l->parts;
	l->now = (struct load){ 0 };
}

/* Stops the load. */
static void stop(struct ws_ipc_export *l)
{
	ws_cancel_set(&l->stop);
	ws_job_wait(&l->job, NULL);
	l->stop = (struct ws_cancel)WS_CANCEL_INIT;
	unuse_part(l);
}

void ws_ipc_export_close(struct ws_ipc_export *l)
{
	if (!l)
		return;
	stop(l);
	ws_job_fini(&l->job);
	if (l->gpu) {
		/* frees the memory even if this fails */
		ws_gpu_use(l->gpu, NULL);
		ws_gpu_stage_close(&l->stage);
		ws_gpu_free(l->gpu, l->memory);
	}
	ws_gpu_close(l->gpu);
	ws_cuda_close(l->cuda);
	free(l);
}

/* ---- memory ---- */

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static uint64_t part_of(uint64_t bytes)
{
	return round_up(bytes ? bytes : 1, WS_GPU_STAGE_ALIGN);
}

static unsigned parts_of(size_t buckets)
{
	return buckets < WS_IPC_EXPORT_PARTS ? (unsigned)buckets + (buckets == 0) :
	                                       WS_IPC_EXPORT_PARTS;
}

void ws_ipc_export_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                          uint64_t *pinned)
{
	ws_gpu_stage_memory(0, bytes, payloads, gpu, pinned);
	*gpu += round_up(parts_of(buckets) * part_of(bytes), WS_IPC_BLOCK);
}

static void free_memory(struct ws_ipc_export *l)
{
	ws_gpu_free(l->gpu, l->memory);
	l->memory = 0;
	l->part = 0;
	l->parts = 0;
}

int ws_ipc_export_reserve(struct ws_ipc_export *l, size_t buckets, uint64_t bytes,
                          struct ws_err *err)
{
	const uint64_t part = part_of(bytes);
	const unsigned parts = parts_of(buckets);
	stop(l);
	if (part <= l->part && parts <= l->parts)
		return 0;
	/* Another push of the same process may come from another thread. */
	if (ws_gpu_use(l->gpu, err))
		return -1;
	free_memory(l);
	if (bytes > UINT64_MAX / 8)
		return ws_err_set(err, WS_EINPUT, "a bucket is larger than any GPU");
	if (ws_gpu_alloc(l->gpu, round_up(parts * part, WS_IPC_BLOCK), &l->memory, err)) {
		ws_err_hint(err,
		            "%u buckets lie on the GPU at once, beside the servers' own "
		            "memory: a smaller {bucket_size} needs less",
		            parts);
		return -1;
	}
	if (ws_gpu_ipc_export(l->gpu, l->memory, l->handle, err)) {
		free_memory(l);
		return -1;
	}
	l->part = part;
	l->parts = parts;
	return 0;
}

const unsigned char *ws_ipc_export_handle(const struct ws_ipc_export *l)
{
	return l->handle;
}

uint64_t ws_ipc_export_part_bytes(const struct ws_ipc_export *l)
{
	return l->part;
}

bool ws_ipc_export_computes(const struct ws_ipc_export *l, const struct ws_recipe_output *f)
{
	return ws_gpu_stage_computes(&l->stage, f);
}

const struct ws_cuda_device *ws_ipc_export_device(const struct ws_ipc_export *l)
{
	return ws_gpu_device(l->gpu);
}

/* ---- loading ---- */

static int load_all(struct ws_ipc_export *l, struct ws_staging_buffer *buffer, struct ws_err *err)
{
	while (buffer->loaded < buffer->n_payloads)
		if (ws_gpu_stage_load(&l->stage, buffer, WS_FOREVER, &l->stop, err))
			return -1;
	/* Readers do not see our stream, so the bytes must be complete. */
	const int rc = ws_stream_wait(l->gpu, l->stage.stream, WS_FOREVER, &l->stop, err);
	ws_gpu_stage_poll_trace(&l->stage);
	if (rc)
		ws_gpu_stage_drain(&l->stage);
	return rc;
}

static int load_now(void *arg, struct ws_err *err)
{
	struct ws_ipc_export *l = arg;
	if (ws_gpu_use(l->gpu, err))
		return -1;
	struct ws_staging_buffer *buffer =
		ws_gpu_stage_buffer(&l->stage, l->now.payloads, l->now.n);
	ws_gpu_stage_set_memory(buffer, l->memory + l->turn * l->part, l->part);
	const int rc = load_all(l, buffer, err);
	ws_gpu_stage_release(buffer);
	return rc;
}

static int start_load(struct ws_ipc_export *l, const struct load *what, struct ws_err *err)
{
	l->now = *what;
	l->turn = (l->turn + 1) % l->parts;
	return ws_job_start(&l->job, load_now, l, err);
}

void ws_ipc_export_next(struct ws_ipc_export *l, const struct ws_payload *payloads, size_t n)
{
	l->next = (struct load){ payloads, n };
	if (!payloads)
		stop(l);
}

/* Waits for the load. The loading thread has no deadline, so this stops it if time runs out. */
static int wait_loaded(struct ws_ipc_export *l, ws_deadline until, const struct ws_cancel *cancel,
                       struct ws_err *err)
{
	struct pollfd p[2] = { { .fd = l->job.fd, .events = POLLIN },
		               { .fd = ws_cancel_fd(cancel), .events = POLLIN } };
	while (l->job.running && !ws_job_over(&l->job) && !ws_cancelled(cancel) &&
	       !ws_deadline_passed(until))
		poll(p, 2, ws_deadline_poll_ms(until, 1000));
	if (!l->job.running || ws_job_over(&l->job))
		return ws_job_wait(&l->job, err);
	stop(l);
	return ws_cancelled(cancel) ? ws_err_set(err, WS_ECANCELLED, "reading was cancelled") :
	       ws_err_set(err, WS_ETIMEOUT, "the source was not read in time");
}

int ws_ipc_export_take(struct ws_ipc_export *l, const struct ws_payload *payloads, size_t n,
                       ws_deadline until, const struct ws_cancel *cancel, uint64_t *at,
                       struct ws_err *err)
{
	const struct load wanted = { payloads, n };
	if (l->now.payloads != payloads) {
		stop(l);
		if (start_load(l, &wanted, err))
			return -1;
	}
	if (wait_loaded(l, until, cancel, err)) {
		unuse_part(l);
		return -1;
	}
	l->now = (struct load){ 0 };
	*at = l->turn * l->part;
	const struct load next = l->next;
	l->next = (struct load){ 0 };
	return next.payloads && next.payloads != payloads ? start_load(l, &next, err) : 0;
}
