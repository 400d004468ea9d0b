/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu.c - opens the measured GPU, times work on it, and describes the GPU and NCCL. */
#include "bench_gpu.h"

#include "nccl_library.h"

#include <stdio.h>

static const int64_t PATIENCE_NS = 600 * WS_NS_PER_S; /* for one sample */

int bench_gpu_open(struct bench_gpu *g, const struct ws_bench_gpu *which,
                   const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_cuda_opts driver = { .library = which->driver };
	*g = (struct bench_gpu){ .cancel = cancel };
	return ws_cuda_open(&driver, &g->cuda, err) ||
	                       ws_gpu_open(g->cuda, (int)which->device, &g->gpu, err) ||
	                       ws_stream_new(g->gpu, &g->stream, err) ||
	                       ws_gpu_timer_new(g->gpu, &g->from, err) ||
	                       ws_gpu_timer_new(g->gpu, &g->to, err) ?
	               -1 :
	               0;
}

void bench_gpu_close(struct bench_gpu *g)
{
	if (g->gpu) {
		ws_stream_free(g->gpu, g->stream);
		ws_gpu_event_free(g->gpu, g->from);
		ws_gpu_event_free(g->gpu, g->to);
	}
	ws_gpu_close(g->gpu);
	ws_cuda_close(g->cuda);
	*g = (struct bench_gpu){ 0 };
}

int bench_gpu_wait(struct bench_gpu *g, struct ws_err *err)
{
	return ws_stream_wait(g->gpu, g->stream, ws_deadline_in(PATIENCE_NS), g->cancel, err);
}

int bench_gpu_time(struct bench_gpu *g, const struct bench_gpu_work *work, int64_t *ns,
                   struct ws_err *err)
{
	int64_t all = 0;
	if (ws_gpu_event_record(g->gpu, g->from, g->stream, err))
		return -1;
	for (unsigned i = 0; i < work->times; i++)
		if (work->start(work->ctx, err))
			return -1;
	if (ws_gpu_event_record(g->gpu, g->to, g->stream, err) ||
	    ws_gpu_event_wait(g->gpu, g->to, ws_deadline_in(PATIENCE_NS), g->cancel, err) ||
	    ws_gpu_event_elapsed(g->gpu, g->from, g->to, &all, err))
		return -1;
	*ns = all / work->times;
	return 0;
}

/* ---- names and versions ---- */

static int describe_nccl(const struct ws_bench_gpu *which, struct ws_bench_machine *out,
                         struct ws_err *err)
{
	const struct ws_nccl_opts library = { .library = which->nccl };
	struct ws_nccl *nccl;
	if (ws_nccl_open(&library, &nccl, err))
		return -1;
	snprintf(out->nccl, sizeof out->nccl, "%s", ws_nccl_version_text(nccl));
	snprintf(out->nccl_path, sizeof out->nccl_path, "%s", ws_nccl_path(nccl));
	ws_nccl_close(nccl);
	return 0;
}

int ws_bench_machine(const struct ws_bench_gpu *which, bool nccl, struct ws_bench_machine *out,
                     struct ws_err *err)
{
	const struct ws_cuda_opts driver = { .library = which->driver };
	struct ws_cuda_device device;
	struct ws_cuda *cuda;
	*out = (struct ws_bench_machine){ 0 };
	if (ws_cuda_open(&driver, &cuda, err))
		return -1;
	int rc = ws_cuda_device(cuda, (int)which->device, &device, err);
	if (rc == 0) {
		snprintf(out->gpu, sizeof out->gpu, "%s", device.name);
		out->gpus = (unsigned)ws_cuda_count(cuda);
		out->major = device.major;
		out->minor = device.minor;
		out->multiprocessors = device.multiprocessors;
		out->memory = device.memory;
		out->cuda = ws_cuda_version(cuda);
		rc = nccl ? describe_nccl(which, out, err) : 0;
	}
	ws_cuda_close(cuda);
	return rc;
}

int ws_bench_find_nccl(const char *python, int64_t timeout_ns, const struct ws_cancel *cancel,
                       char path[WS_BENCH_NCCL_PATH], struct ws_err *err)
{
	return ws_nccl_find(python, ws_deadline_in(timeout_ns), cancel, path, err);
}
