/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_scratch.h - device memory for kernel jobs, their launches, and the records of findings. */
#ifndef WS_STAGING_GPU_SCRATCH_H
#define WS_STAGING_GPU_SCRATCH_H

#include "gpu_stage_steps.h"
#include "wsync/trace.h"

struct ws_gpu_scratch {
	struct ws_gpu *gpu; /* both borrowed */
	struct ws_compute *compute;
	ws_devptr memory, records;
	uint64_t bytes; /* of memory; a band uses half, and the next band the other half */
	struct ws_gpu_event *half_done[2]; /* recorded after the last kernel that uses a half */
	unsigned half;                     /* of the current band */
	char *results;                     /* pinned: copies of the records */
	struct ws_gpu_event *result_event[WS_GPU_SCRATCH_RECORDS];
	struct ws_trace *trace; /* NULL: no trace. The span of a job ends when it is checked */
	int64_t begun[WS_GPU_SCRATCH_RECORDS], checked; /* times */
};

int ws_gpu_scratch_open(struct ws_gpu *gpu, struct ws_compute *compute, uint64_t bytes,
                        struct ws_gpu_scratch **out, struct ws_err *err);
void ws_gpu_scratch_close(struct ws_gpu_scratch *d); /* NULL is fine */
/* Bytes of device and pinned memory of a scratch of WS_GPU_SCRATCH_BYTES. */
void ws_gpu_scratch_memory(uint64_t *gpu, uint64_t *pinned);

/* Starts a band in this half: later copies wait until no kernel uses the half any more. */
int ws_gpu_scratch_switch(struct ws_gpu_scratch *d, unsigned half, struct ws_stream *stream,
                          struct ws_stream *copies, struct ws_err *err);
/* Queues a step of a kernel job in the stream. */
int ws_gpu_scratch_run(struct ws_gpu_scratch *d, const struct ws_stage_steps *steps,
                       const struct ws_stage_step *s, struct ws_stream *stream, struct ws_err *err);
/* Waits for job i, one of the last WS_GPU_SCRATCH_RECORDS. *good false: the kernels found a number
 * that is not finite, or numbers so large that a sum may not be. Then the fill must decide. */
int ws_gpu_scratch_check_result(struct ws_gpu_scratch *d, const struct ws_stage_steps *steps,
                                size_t i, bool *good, ws_deadline until,
                                const struct ws_cancel *cancel, struct ws_err *err);

#endif
