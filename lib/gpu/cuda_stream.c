/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_stream.c - streams, events and kernel launches. */
#include "cuda_core.h"

#include <stdio.h>
#include <time.h>

/* ---- streams and events ---- */

static CUevent cu_event(struct ws_gpu_event *m)
{
	return (CUevent)(void *)m;
}

int ws_stream_new(struct ws_gpu *g, struct ws_stream **out, struct ws_err *err)
{
	CUstream s;
	if (ws_cuda_check(g, g->cuda->cu.stream_new(&s, CU_STREAM_NON_BLOCKING), "making a stream",
	                  err))
		return -1;
	*out = (struct ws_stream *)(void *)s;
	return 0;
}

void ws_stream_free(struct ws_gpu *g, struct ws_stream *s)
{
	if (s)
		g->cuda->cu.stream_free(ws_cuda_stream(s));
}

/* The driver's own waits have no timeout, so this polls: first without a pause, because most waits
 * are short, then with pauses that are short compared to a bucket. */
static int wait_for(struct ws_gpu *g, struct ws_stream *s, struct ws_gpu_event *m,
                    ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	static const struct timespec pause = { .tv_nsec = 50000 };
	for (unsigned asked = 0;; asked++) {
		const CUresult rc = m ? g->cuda->cu.event_query(cu_event(m)) :
		                        g->cuda->cu.stream_query(ws_cuda_stream(s));
		if (rc != CUDA_ERROR_NOT_READY)
			return ws_cuda_check(g, rc, "queued work", err);
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "waiting for GPU %d was cancelled",
			                  g->ordinal);
		if (ws_deadline_passed(until))
			return ws_err_set(err, WS_ETIMEOUT, "GPU %d (%s) is not done in time",
			                  g->ordinal, g->device.name);
		if (asked > 100)
			nanosleep(&pause, NULL);
	}
}

int ws_stream_wait(struct ws_gpu *g, struct ws_stream *s, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_err *err)
{
	return wait_for(g, s, NULL, until, cancel, err);
}

bool ws_stream_settle(struct ws_gpu *g, struct ws_stream *s)
{
	struct ws_err err = WS_ERR_INIT; /* another error: a lost GPU writes nothing */
	return ws_stream_wait(g, s, ws_deadline_in(2 * WS_NS_PER_S), NULL, &err) == 0 ||
	       err.code != WS_ETIMEOUT;
}

static int new_event(struct ws_gpu *g, unsigned flags, struct ws_gpu_event **out,
                     struct ws_err *err)
{
	CUevent m;
	if (ws_cuda_check(g, g->cuda->cu.event_new(&m, flags), "making an event", err))
		return -1;
	*out = (struct ws_gpu_event *)(void *)m;
	return 0;
}

int ws_gpu_event_new(struct ws_gpu *g, struct ws_gpu_event **out, struct ws_err *err)
{
	return new_event(g, CU_EVENT_DISABLE_TIMING, out, err);
}

int ws_gpu_timer_new(struct ws_gpu *g, struct ws_gpu_event **out, struct ws_err *err)
{
	return new_event(g, CU_EVENT_DEFAULT, out, err);
}

void ws_gpu_event_free(struct ws_gpu *g, struct ws_gpu_event *m)
{
	if (m)
		g->cuda->cu.event_free(cu_event(m));
}

int ws_gpu_event_record(struct ws_gpu *g, struct ws_gpu_event *m, struct ws_stream *s,
                        struct ws_err *err)
{
	return ws_cuda_check(g, g->cuda->cu.event_record(cu_event(m), ws_cuda_stream(s)),
	                     "recording an event", err);
}

int ws_gpu_event_query(struct ws_gpu *g, struct ws_gpu_event *m, bool *reached, struct ws_err *err)
{
	const CUresult rc = g->cuda->cu.event_query(cu_event(m));
	if (rc != CUDA_ERROR_NOT_READY && ws_cuda_check(g, rc, "queued work", err))
		return -1;
	*reached = rc == CUDA_SUCCESS;
	return 0;
}

int ws_gpu_event_wait(struct ws_gpu *g, struct ws_gpu_event *m, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	return wait_for(g, NULL, m, until, cancel, err);
}

int ws_stream_wait_event(struct ws_gpu *g, struct ws_stream *s, struct ws_gpu_event *m,
                         struct ws_err *err)
{
	const CUresult rc = g->cuda->cu.stream_wait_event(ws_cuda_stream(s), cu_event(m), 0);
	return ws_cuda_check(g, rc, "ordering two streams", err);
}

int ws_gpu_event_elapsed(struct ws_gpu *g, struct ws_gpu_event *from, struct ws_gpu_event *to,
                         int64_t *ns, struct ws_err *err)
{
	float ms;
	const CUresult rc = g->cuda->cu.event_elapsed(&ms, cu_event(from), cu_event(to));
	if (ws_cuda_check(g, rc, "timing", err))
		return -1;
	*ns = (int64_t)((double)ms * 1e6);
	return 0;
}

/* ---- kernels ---- */

/* Code of CUDA 13 loads from driver 580 on; code of one CUDA 12 loads into the drivers of all. */
static int hint_at_driver(const struct ws_gpu *g, CUresult rc, struct ws_err *err)
{
	const int version = g->cuda->version;
	const bool about_code = rc == CUDA_ERROR_INVALID_IMAGE ||
	                        rc == CUDA_ERROR_NO_BINARY_FOR_GPU ||
	                        rc == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
	if (!about_code || version / 1000 >= CUDA_VERSION / 1000)
		return -1;
	return ws_err_hint(err,
	                   "the driver supports CUDA %d.%d, and the kernels were built with CUDA "
	                   "%d.%d: install a newer driver, or a build made with CUDA %d",
	                   version / 1000, version % 1000 / 10, CUDA_VERSION / 1000,
	                   CUDA_VERSION % 1000 / 10, version / 1000);
}

int ws_module_load(struct ws_gpu *g, const void *image, const char *what, struct ws_module **out,
                   struct ws_err *err)
{
	CUmodule m;
	char text[96];
	snprintf(text, sizeof text, "loading the kernels of %s", what);
	const CUresult rc = g->cuda->cu.module_load(&m, image);
	if (ws_cuda_check(g, rc, text, err))
		return hint_at_driver(g, rc, err);
	*out = (struct ws_module *)(void *)m;
	return 0;
}

void ws_module_free(struct ws_gpu *g, struct ws_module *m)
{
	if (m)
		g->cuda->cu.module_free((CUmodule)(void *)m);
}

int ws_module_kernel(struct ws_gpu *g, struct ws_module *m, const char *name,
                     struct ws_kernel **out, struct ws_err *err)
{
	CUfunction f;
	char text[96];
	snprintf(text, sizeof text, "kernel %s", name);
	if (ws_cuda_check(g, g->cuda->cu.module_kernel(&f, (CUmodule)(void *)m, name), text, err))
		return -1;
	*out = (struct ws_kernel *)(void *)f;
	return 0;
}

int ws_gpu_launch(struct ws_gpu *g, const struct ws_launch *l, struct ws_stream *s,
                  struct ws_err *err)
{
	void *args[] = { (void *)(uintptr_t)l->args };
	const CUfunction f = (CUfunction)(void *)(uintptr_t)l->kernel;
	const CUresult rc = g->cuda->cu.launch(f, l->blocks, 1, 1, l->threads, 1, 1, 0,
	                                       ws_cuda_stream(s), args, NULL);
	if (rc == CUDA_SUCCESS)
		return 0;
	char text[96];
	snprintf(text, sizeof text, "starting kernel %s", l->name);
	return ws_cuda_check(g, rc, text, err);
}
