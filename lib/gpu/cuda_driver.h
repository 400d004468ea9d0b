/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_driver.h - the part of NVIDIA's driver API that wsync uses, loaded at run time.
 *
 * Nothing links against CUDA: libcuda.so.1 is opened at run time, so that one build runs on
 * machines with and without a GPU. A build without the CUDA Toolkit has these functions too, and
 * those that can fail return an error (no_cuda.c). No type of the toolkit appears here; device
 * addresses are integers.
 *
 * A failing driver call is WS_EDEVICE with the driver's message and its number in `native`. A
 * ws_gpu is current on one thread; another thread calls ws_gpu_use first. Free everything that
 * was made with a ws_gpu before you close it. */
#ifndef WS_GPU_CUDA_DRIVER_H
#define WS_GPU_CUDA_DRIVER_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the driver ---- */

struct ws_cuda; /* opaque */

struct ws_cuda_opts {
	const char *library; /* a path or a name for dlopen; NULL: libcuda.so.1 */
};

/* False in a build without CUDA; there the hint of ws_cuda_open says how to build with it. */
bool ws_cuda_built(void);
/* WS_EDEVICE: no driver, a driver that lacks a function, or a driver that does not start. A driver
 * that finds no GPU opens with a count of 0. */
int ws_cuda_open(const struct ws_cuda_opts *opts, struct ws_cuda **out, struct ws_err *err);
void ws_cuda_close(struct ws_cuda *c); /* NULL is fine; the library itself stays loaded */
int ws_cuda_version(const struct ws_cuda *c); /* the driver's CUDA version: 13000 is 13.0 */
int ws_cuda_count(const struct ws_cuda *c);

struct ws_cuda_device {
	int ordinal;         /* its number in this process */
	char name[128];      /* printable */
	int major, minor;    /* compute capability */
	int multiprocessors;
	uint64_t memory;     /* total bytes */
	uint8_t uuid[16];
	char bus[16];        /* "0000:1b:00.0" */
};
int ws_cuda_device(const struct ws_cuda *c, int ordinal, struct ws_cuda_device *out,
                   struct ws_err *err);
/* "GPU-8d2f...", or "MIG-8d2f..." for a MIG instance, as nvidia-smi -L shows it and
 * CUDA_VISIBLE_DEVICES takes it. Returns text. */
enum { WS_CUDA_UUID_TEXT = 48, WS_CUDA_UUID_KIND = 4 /* characters before the number */ };
char *ws_cuda_uuid_text(const struct ws_cuda_device *d, char text[WS_CUDA_UUID_TEXT]);

/* Finds a GPU by its UUID, as ws_cuda_uuid_text writes it, or by a beginning that only one GPU
 * has, of which "GPU-" or "MIG-" is not enough. Upper and lower case are the same. */
int ws_cuda_find(const struct ws_cuda *c, const char *uuid, int *ordinal, struct ws_err *err);

/* ---- one GPU ---- */

struct ws_gpu;               /* opaque: a device and its primary context, which torch uses too */
typedef uint64_t ws_devptr;  /* an address on a device; 0: none */

/* Makes the GPU's context current on this thread. Closing it on the same thread restores the
 * context before. c must outlive the GPU. */
int ws_gpu_open(struct ws_cuda *c, int ordinal, struct ws_gpu **out, struct ws_err *err);
void ws_gpu_close(struct ws_gpu *g); /* NULL is fine */
int ws_gpu_use(struct ws_gpu *g, struct ws_err *err);
const struct ws_cuda_device *ws_gpu_device(const struct ws_gpu *g);

int ws_gpu_memory(struct ws_gpu *g, uint64_t *free_bytes, uint64_t *all_bytes, struct ws_err *err);
int ws_gpu_alloc(struct ws_gpu *g, uint64_t bytes, ws_devptr *out, struct ws_err *err);
void ws_gpu_free(struct ws_gpu *g, ws_devptr p); /* 0 is fine */
/* Host memory that the device reads and writes without the CPU. */
int ws_gpu_alloc_pinned(struct ws_gpu *g, uint64_t bytes, void **out, struct ws_err *err);
void ws_gpu_free_pinned(struct ws_gpu *g, void *p); /* NULL is fine */

/* ---- memory of one process read by another, on one machine (CUDA IPC) ---- */

enum { WS_IPC_HANDLE_BYTES = 64 };

/* p comes from ws_gpu_alloc. The handle is opaque, and a process that opens it may also write.
 * Small allocations share blocks of WS_IPC_BLOCK bytes, and a handle opens the whole block:
 * allocate exported memory in multiples of it, so that nothing else is shared. */
#define WS_IPC_BLOCK (UINT64_C(2) << 20)
int ws_gpu_ipc_export(struct ws_gpu *g, ws_devptr p, unsigned char handle[WS_IPC_HANDLE_BYTES],
                      struct ws_err *err);
/* Opens the allocation of another process, never our own, from its beginning. Close it as often
 * as it was opened. CUDA does not define what happens when the owner frees it: the reader must
 * stop reading before that. */
int ws_gpu_ipc_open(struct ws_gpu *g, const unsigned char handle[WS_IPC_HANDLE_BYTES],
                    ws_devptr *out, struct ws_err *err);
void ws_gpu_ipc_close(struct ws_gpu *g, ws_devptr p); /* 0 is fine */
/* Waits until the stream of another process has completed this event. */
int ws_gpu_ipc_wait(struct ws_gpu *g, const unsigned char event[WS_IPC_HANDLE_BYTES],
                    ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);
/* Bytes from p to the end of its allocation. */
int ws_gpu_size(struct ws_gpu *g, ws_devptr p, uint64_t *bytes, struct ws_err *err);

/* ---- streams: work in a stream is done in order, later. NULL is the default stream. ---- */

struct ws_stream; /* opaque, of the driver */
struct ws_gpu_event; /* opaque: an event of the driver */

int ws_stream_new(struct ws_gpu *g, struct ws_stream **out, struct ws_err *err);
void ws_stream_free(struct ws_gpu *g, struct ws_stream *s); /* NULL is fine */
/* Waits until all work in the stream is done. Reports failed kernels. */
int ws_stream_wait(struct ws_gpu *g, struct ws_stream *s, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_err *err);
/* After a failure: waits up to two seconds for the stream's work. Returns false if the GPU is
 * stuck; then leak the stream and the memory that its work uses, because freeing either may block
 * forever. */
bool ws_stream_settle(struct ws_gpu *g, struct ws_stream *s);

int ws_gpu_event_new(struct ws_gpu *g, struct ws_gpu_event **out, struct ws_err *err);
/* An event for ws_gpu_event_elapsed. Others have no time, which the GPU need not write then. */
int ws_gpu_timer_new(struct ws_gpu *g, struct ws_gpu_event **out, struct ws_err *err);
void ws_gpu_event_free(struct ws_gpu *g, struct ws_gpu_event *m); /* NULL is fine */
int ws_gpu_event_record(struct ws_gpu *g, struct ws_gpu_event *m, struct ws_stream *s,
                        struct ws_err *err);
/* *reached: the stream has completed the event, or the event was never recorded. */
int ws_gpu_event_query(struct ws_gpu *g, struct ws_gpu_event *m, bool *reached, struct ws_err *err);
int ws_gpu_event_wait(struct ws_gpu *g, struct ws_gpu_event *m, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err);
/* Later work in s starts only when the event is complete. The CPU does not wait. */
int ws_stream_wait_event(struct ws_gpu *g, struct ws_stream *s, struct ws_gpu_event *m,
                         struct ws_err *err);
/* Time between two timers. */
int ws_gpu_event_elapsed(struct ws_gpu *g, struct ws_gpu_event *from, struct ws_gpu_event *to,
                         int64_t *ns, struct ws_err *err);

/* The host memory must stay valid until the stream has done the copy. */
int ws_gpu_copy_in(struct ws_gpu *g, ws_devptr dst, const void *src, uint64_t bytes,
                   struct ws_stream *s, struct ws_err *err);
int ws_gpu_copy_out(struct ws_gpu *g, void *dst, ws_devptr src, uint64_t bytes, struct ws_stream *s,
                    struct ws_err *err);
int ws_gpu_copy(struct ws_gpu *g, ws_devptr dst, ws_devptr src, uint64_t bytes, struct ws_stream *s,
                struct ws_err *err);
int ws_gpu_fill(struct ws_gpu *g, ws_devptr dst, uint8_t byte, uint64_t bytes, struct ws_stream *s,
                struct ws_err *err);

/* ---- kernels ---- */

struct ws_module; /* opaque, of the driver */
struct ws_kernel; /* opaque, of the driver; lives as long as its module */

/* image: a fat binary; the driver takes the code for its device. what: its name in messages. */
/* WS_EDEVICE with a remedy if the driver is too old for the toolkit of this build. */
int ws_module_load(struct ws_gpu *g, const void *image, const char *what, struct ws_module **out,
                   struct ws_err *err);
void ws_module_free(struct ws_gpu *g, struct ws_module *m); /* NULL is fine */
int ws_module_kernel(struct ws_gpu *g, struct ws_module *m, const char *name,
                     struct ws_kernel **out, struct ws_err *err);

struct ws_launch {
	const struct ws_kernel *kernel;
	const char *name;    /* for messages */
	uint32_t blocks;     /* > 0 */
	uint32_t threads;    /* per block */
	const void *args;    /* the kernel's one argument, a struct passed by value */
};
int ws_gpu_launch(struct ws_gpu *g, const struct ws_launch *l, struct ws_stream *s,
                  struct ws_err *err);

/* A fat binary in this library: "fp8", "lowrank", ...; NULL: no such image. */
const void *ws_cuda_image(const char *name, size_t *bytes);

#endif
