/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_stage_steps.h - the steps of a bucket, in order: reads to the GPU, and kernels.
 *
 *   gpu_stage_steps.c    the list, made from payloads
 *   gpu_stage_recipe.c   the steps of one recipe (lib/transform), a band of rows at a time, so that
 *                        the same scratch memory serves weights of any size
 *   gpu_stage_strided.c  spans of strided device memory, put together by gather kernels */
#ifndef WS_STAGING_GPU_STAGE_STEPS_H
#define WS_STAGING_GPU_STAGE_STEPS_H

#include "compute.h"
#include "payload.h"

#include "transform_recipe.h"

#include <stdbool.h>

enum {
	WS_GPU_SCRATCH_BYTES = 192 << 20,
	WS_GPU_SCRATCH_RECORDS = 32,
	WS_GPU_SCRATCH_RECORD = 32 /* bytes */
};

enum ws_stage_kind {
	WS_STAGE_READ,     /* bytes of a span to the GPU */
	WS_STAGE_RESIDENT, /* copies bytes on the GPU; becomes a READ if they are elsewhere */
	WS_STAGE_END,      /* of a payload */
	WS_STAGE_BEGIN,    /* of a kernel job: clears its record */
	WS_STAGE_HALF,     /* switches to a half of the scratch, for the band that follows */
	WS_STAGE_UNPACK,
	WS_STAGE_MERGE,
	WS_STAGE_FP8,
	WS_STAGE_FINISH /* of a kernel job: copies its record out */
};

struct ws_stage_step {
	enum ws_stage_kind kind;
	union {
		struct {
			const struct ws_span *span;
			uint64_t from, n; /* bytes of the span */
			ws_devptr to;
		};
		size_t job;
		unsigned half;
		struct {
			struct ws_unpack_args unpack;
			enum ws_unpack_kind packing;
		};
		struct ws_merge_args merge;
		struct {
			struct ws_fp8_args fp8;
			bool is_f32;
		};
	};
};

/* One recipe to compute, and where its outputs go: numbers or codes, and scales. */
struct ws_kernel_job {
	const struct ws_transform_recipe *recipe;
	const struct ws_span *spans[2]; /* NULL: not in this bucket */
	ws_devptr to[2];
	ws_devptr record; /* in the scratch: number job % WS_GPU_SCRATCH_RECORDS */
};

struct ws_stage_steps {
	struct ws_stage_step *list;
	size_t n, cap;
	struct ws_kernel_job *jobs;
	size_t n_jobs, cap_jobs;
	unsigned half; /* of the scratch that the last band uses */
};

struct ws_gpu_scratch;

/* Makes the steps of these payloads; the first payload goes to `at`. scratch NULL: recipes are not
 * computed, and their spans are read like others. */
int ws_stage_steps_make(const struct ws_payload *payloads, size_t n, ws_devptr at,
                        const struct ws_gpu_scratch *scratch, struct ws_stage_steps **out,
                        struct ws_err *err);
void ws_stage_steps_free(struct ws_stage_steps *s); /* NULL is fine */
/* The first step of payload i. */
size_t ws_stage_steps_find(const struct ws_stage_steps *s, size_t i);

int ws_stage_steps_add(struct ws_stage_steps *s, const struct ws_stage_step *step,
                       struct ws_err *err);
/* Adds a read of bytes [from, from+n) of a span. */
int ws_stage_steps_read(struct ws_stage_steps *s, const struct ws_span *span, uint64_t from,
                        uint64_t n, ws_devptr to, struct ws_err *err);

/* ---- recipes ---- */

/* Does this much scratch suffice, wherever the outputs go? */
bool ws_stage_recipe_fits(const struct ws_transform_recipe *f, uint64_t scratch);
/* Adds the steps of m, the last of s->jobs. */
int ws_stage_recipe_add(struct ws_stage_steps *s, const struct ws_kernel_job *m, ws_devptr scratch,
                        uint64_t bytes, struct ws_err *err);

/* ---- strided spans ---- */

/* Cuts a strided copy: calls fn with the elements in bytes [from, from+n) of its span, as strided
 * copies, until a call returns non-zero; returns that value. Both ends are at elements. */
typedef int ws_strided_fn(void *ctx, const struct ws_strided *part, struct ws_err *err);
int ws_strided_cut(const struct ws_strided *b, uint64_t from, uint64_t n, ws_strided_fn *fn,
                   void *ctx, struct ws_err *err);

/* Queues copies of bytes [from, from+n) of a strided span to `to`. *here false: the source is not
 * on this GPU, or not aligned for its kernels; then nothing was queued. */
int ws_gpu_strided_read(struct ws_compute *c, const struct ws_cuda_device *gpu,
                    const struct ws_span *span, uint64_t from, uint64_t n, ws_devptr to,
                    struct ws_stream *s, bool *here, struct ws_err *err);

#endif
