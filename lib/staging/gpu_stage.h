/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_stage.h - loads payloads into GPU memory through a ring of pinned memory: one piece is read
 * or computed while earlier pieces are copied. Bytes that are already on this GPU are copied there,
 * or gathered if they are strided.
 *
 * A bucket becomes a list of steps. Two positions advance along it. The first requests reads from
 * the ring, as far ahead as it has slots. The second follows and queues work in two streams: one
 * copies pieces from the ring, the other runs kernels. Each stream waits for the other only where
 * it must, so that one tensor is copied while another is computed.
 *
 * If kernels are in use, a span with a recipe is computed on the GPU. If the kernels find numbers
 * that are not finite, the span's fill makes the bytes instead, or reports the error. So a payload
 * counts as loaded only after the records of its kernels were checked.
 *
 * There are two staging buffers: one is filled while the other is sent. One thread at a time calls
 * these functions, with the GPU current. */
#ifndef WS_STAGING_GPU_STAGE_H
#define WS_STAGING_GPU_STAGE_H

#include "wsync/endpoint.h"
#include "cuda_driver.h"
#include "payload.h"
#include "wsync/log.h"
#include "wsync/trace.h"

enum { WS_GPU_STAGE_BUFFERS = 2, WS_GPU_STAGE_ALIGN = 256 };

/* Options of everything that sends from a GPU: NCCL, and memory that servers map. */
struct ws_transport_gpu {
	const char *driver; /* libcuda; NULL: the loader finds it */
	const char *nccl;   /* libnccl; NULL: the usual places */
	/* NCCL's environment (push.h), and what it must be; NULL: as it is */
	int (*nccl_set)(const struct ws_nccl_settings *settings, struct ws_err *err);
	struct ws_nccl_settings nccl_settings;
	const char *uuid;   /* of the GPU (ws_cuda_find); NULL: `device` */
	int device;
	/* called with a warning; NULL: warnings are dropped */
	void (*warn)(void *ctx, const char *text);
	void *warn_ctx;
	uint64_t staging_bytes; /* of the largest bucket; 0: not known */
	bool compute;           /* run transforms on the GPU, as far as there are kernels */
	bool must_compute;      /* fail if there are no kernels */
};

/* Opens the driver and the GPU. On failure *cuda may be open. */
int ws_transport_gpu_open(const struct ws_transport_gpu *g, struct ws_cuda **cuda,
                          struct ws_gpu **gpu, struct ws_err *err);

struct ws_stage_steps; /* opaque */
struct ws_gpu_scratch;
struct ws_compute;

struct ws_stage_position {
	size_t step;
	uint64_t in; /* bytes of the step that are done */
};

struct ws_staging_buffer {
	struct ws_gpu_stage *stage;
	ws_devptr at;
	uint64_t capacity;                 /* bytes; as many as the largest bucket had */
	bool borrowed;                     /* the memory is the caller's, until release */
	const struct ws_payload *payloads; /* borrowed; NULL: the buffer is free */
	size_t n_payloads;
	size_t loaded;                /* payloads that are here once the stream is done */
	struct ws_stage_steps *steps; /* NULL: none yet */
	struct ws_stage_position requested, done;
	size_t launched, checked; /* kernel jobs */
};

struct ws_gpu_stage {
	struct ws_gpu *gpu;                 /* borrowed */
	struct ws_stream *stream;           /* kernels and copies on the GPU; payloads are complete
	                                     * when it is done */
	struct ws_stream *copies;           /* from the host; stream waits for it where it must */
	struct ws_gpu_event *copied;        /* the end of copies, for stream to wait for */
	bool behind;                        /* stream does not yet wait for the latest copies */
	struct ws_ring *ring;
	struct ws_compute *compute;        /* NULL: no kernel was needed yet */
	bool no_compute;                   /* loading the kernels failed */
	struct ws_gpu_scratch *scratch;    /* NULL: recipes are not computed here */
	uint64_t least;                    /* smallest allocation, so that later buckets fit */
	struct ws_staging_buffer *reading; /* the buffer that the ring reads for; NULL */
	struct ws_staging_buffer buffers[WS_GPU_STAGE_BUFFERS];
};

/* ws_gpu_stage_close may follow a failure, too. */
int ws_gpu_stage_open(struct ws_gpu_stage *f, struct ws_gpu *gpu, struct ws_err *err);
/* Computes recipes from now on, in this many bytes of scratch memory; 0: 192 MiB. */
int ws_gpu_stage_use_kernels(struct ws_gpu_stage *f, uint64_t scratch, struct ws_err *err);
/* The same with 192 MiB, if g->compute. If that fails, the CPU computes everything and g->warn is
 * called, or with g->must_compute it is an error. */
int ws_gpu_stage_try_kernels(struct ws_gpu_stage *f, const struct ws_transport_gpu *g,
                             struct ws_err *err);
/* Will this output be computed here? */
bool ws_gpu_stage_computes(const struct ws_gpu_stage *f, const struct ws_recipe_output *out);
/* Waits until the streams neither read nor write. Gives up on a GPU that hangs. */
void ws_gpu_stage_drain(struct ws_gpu_stage *f);
/* Drains first. A zeroed struct is fine. */
void ws_gpu_stage_close(struct ws_gpu_stage *f);
/* The most device and pinned memory for this many buckets of at most so many bytes and payloads.
 * The second function adds the memory that kernels need. */
void ws_gpu_stage_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                         uint64_t *pinned);
void ws_gpu_stage_kernel_memory(uint64_t *gpu, uint64_t *pinned);

/* Reads, copies and kernels become spans of this trace; NULL: none. Call it after
 * ws_gpu_stage_use_kernels. */
void ws_gpu_stage_trace(struct ws_gpu_stage *f, struct ws_trace *trace);
/* Ends the trace's spans of finished copies. Any thread that has the GPU current. */
void ws_gpu_stage_poll_trace(struct ws_gpu_stage *f);

/* The buffer of these payloads, or a free one for them; NULL: both are in use. */
struct ws_staging_buffer *ws_gpu_stage_buffer(struct ws_gpu_stage *f,
                                              const struct ws_payload *payloads, size_t n);
/* Lends the buffer memory of the caller, large enough for its payloads, until release. */
void ws_gpu_stage_set_memory(struct ws_staging_buffer *b, ws_devptr at, uint64_t capacity);
/* Releases the payloads; the buffer keeps its own memory. If all of them are loaded, another
 * thread may fill the other buffer meanwhile. */
void ws_gpu_stage_release(struct ws_staging_buffer *b);
/* Is its memory too small for its payloads? Replacing it waits for all work of the GPU. */
bool ws_gpu_stage_must_grow(const struct ws_staging_buffer *b);
/* Loads payload number `loaded`, completely or not at all, and requests reads of later payloads. A
 * failure stops all reads. */
int ws_gpu_stage_load(struct ws_gpu_stage *f, struct ws_staging_buffer *b, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err);
/* Offset of the payload that follows p; p is at this offset. */
uint64_t ws_gpu_stage_next_offset(uint64_t offset, const struct ws_payload *p);

#endif
