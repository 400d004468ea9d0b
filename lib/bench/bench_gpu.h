/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gpu.h - a GPU that is measured, timed by its own clock. */
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

/* To be closed in any case. */
int bench_gpu_open(struct bench_gpu *g, const struct ws_bench_gpu *which,
                   const struct ws_cancel *cancel, struct ws_err *err);
void bench_gpu_close(struct bench_gpu *g);
/* Until the GPU has done all that was asked of its stream. */
int bench_gpu_wait(struct bench_gpu *g, struct ws_err *err);

/* What start asks of the stream, so many times in a row; *ns is one of them, by the GPU's clock. */
struct bench_gpu_work {
	int (*start)(void *ctx, struct ws_err *err);
	void *ctx;
	unsigned times;
};
int bench_gpu_time(struct bench_gpu *g, const struct bench_gpu_work *work, int64_t *ns,
                   struct ws_err *err);

#endif
