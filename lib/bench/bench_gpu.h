/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu.h - the measured GPU. Its own clock gives the times. */
#ifndef WS_BENCH_GPU_H
#define WS_BENCH_GPU_H

#include "cuda_driver.h"
#include "bench_samples.h"

struct bench_gpu {
	struct ws_cuda *cuda;
	struct ws_gpu *gpu;
	struct ws_stream *stream;
	struct ws_gpu_event *from, *to;
	const struct ws_cancel *cancel;
};

/* The caller calls bench_gpu_close even after a failure. */
int bench_gpu_open(struct bench_gpu *g, const struct ws_bench_gpu *which,
                   const struct ws_cancel *cancel, struct ws_err *err);
void bench_gpu_close(struct bench_gpu *g);
/* Waits until the GPU has finished all work in g->stream. */
int bench_gpu_wait(struct bench_gpu *g, struct ws_err *err);

/* Calls start `times` times in a row, which adds work to g->stream. *ns is the mean time of one. */
struct bench_gpu_work {
	int (*start)(void *ctx, struct ws_err *err);
	void *ctx;
	unsigned times;
};
int bench_gpu_time(struct bench_gpu *g, const struct bench_gpu_work *work, int64_t *ns,
                   struct ws_err *err);

#endif
