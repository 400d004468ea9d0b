/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_export.h - buckets in GPU memory that other processes open and read (CUDA IPC).
 *
 * The memory is one allocation, so that readers open one handle. It has three parts, used in turn:
 * while servers read bucket b, bucket b+1 is loaded into the next part. That part had bucket b-2.
 * Servers that received b-1 and answered are done with b-2, even if they copy on their GPU a little
 * after their answer.
 *
 * This module does not know the readers. The caller makes sure that no server reads the memory at a
 * new reserve or at close. One thread at a time calls these functions; another thread loads. */
#ifndef WS_STAGING_IPC_EXPORT_H
#define WS_STAGING_IPC_EXPORT_H

#include "cuda_driver.h"
#include "payload.h"
#include "gpu_stage.h"

enum { WS_IPC_EXPORT_PARTS = 3 };

struct ws_ipc_export; /* opaque */

struct ws_ipc_export_opts {
	struct ws_transport_gpu gpu;
	struct ws_trace *trace; /* of reads and copies; NULL: none */
	const struct ws_log *log;
};
int ws_ipc_export_open(const struct ws_ipc_export_opts *opts, struct ws_ipc_export **out,
                       struct ws_err *err);
void ws_ipc_export_close(struct ws_ipc_export *l); /* NULL is fine */
/* Can the GPU be opened? */
int ws_ipc_export_check(const struct ws_transport_gpu *gpu, struct ws_err *err);
/* Like `memory` of a data plane (transport.h). */
void ws_ipc_export_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                          uint64_t *pinned);

/* Reserves memory for this many buckets of at most so many bytes. Memory that is large enough is
 * kept, with its handle. */
int ws_ipc_export_reserve(struct ws_ipc_export *l, size_t buckets, uint64_t bytes,
                          struct ws_err *err);
/* The handle of the reserved memory: 64 bytes. */
const unsigned char *ws_ipc_export_handle(const struct ws_ipc_export *l);
uint64_t ws_ipc_export_part_bytes(const struct ws_ipc_export *l);
/* Will this output be computed on the GPU, if it is part of a payload? */
bool ws_ipc_export_computes(const struct ws_ipc_export *l, const struct ws_recipe_output *f);
const struct ws_cuda_device *ws_ipc_export_device(const struct ws_ipc_export *l);

/* Announces the payloads to load after the next take. They must stay valid until they are taken, or
 * until a call with NULL, which stops the load. */
void ws_ipc_export_next(struct ws_ipc_export *l, const struct ws_payload *payloads, size_t n);
/* Loads these payloads, or waits until they are loaded. *at: their offset in the memory. All
 * readers must have answered for the payloads that were taken before. */
int ws_ipc_export_take(struct ws_ipc_export *l, const struct ws_payload *payloads, size_t n,
                       ws_deadline until, const struct ws_cancel *cancel, uint64_t *at,
                       struct ws_err *err);

#endif
