/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_library.h - the part of NCCL that wsync uses, loaded at run time: joining a communicator as
 * any rank, broadcasts of bytes, and a sum of one number.
 *
 * NCCL needs the same version at every rank, so load the library that the servers' torch loads,
 * not the one of the system. NCCL's own header is not needed: the functions and structs used here
 * are the same since 2.14. Communicators are non-blocking: every wait has a deadline, and a
 * failed communicator is aborted, which never waits for other ranks.
 *
 * A failed NCCL call is WS_EDATA, or WS_EDEVICE if CUDA failed below it, with NCCL's message and
 * its number in `native`. NCCL uses the GPU that is current on the calling thread. */
#ifndef WS_GPU_NCCL_LIBRARY_H
#define WS_GPU_NCCL_LIBRARY_H

#include "cuda_driver.h"

/* ---- the library ---- */

struct ws_nccl; /* opaque */

struct ws_nccl_opts {
	/* a path or a name for dlopen; NULL: libnccl.so.2 in the usual places */
	const char *library;
};

/* WS_EDEVICE: no such library, a function is missing, or it is older than 2.14. */
int ws_nccl_open(const struct ws_nccl_opts *opts, struct ws_nccl **out, struct ws_err *err);
void ws_nccl_close(struct ws_nccl *n); /* NULL is fine; the library itself stays loaded */
int ws_nccl_version(const struct ws_nccl *n); /* NCCL's number: 22809 is 2.28.9 */
const char *ws_nccl_version_text(const struct ws_nccl *n); /* "2.28.9" */
const char *ws_nccl_path(const struct ws_nccl *n); /* the file, printable */

/* Finds the libnccl.so.2 that torch loads in a Python environment. python: its interpreter, a
 * name on the PATH, or the directory of a virtual environment. Runs it until the deadline. */
enum { WS_NCCL_PATH_MAX = 4096 };
int ws_nccl_find(const char *python, ws_deadline until, const struct ws_cancel *cancel,
                 char path[WS_NCCL_PATH_MAX], struct ws_err *err);

/* ---- communicators ---- */

/* Rank 0 makes it and all ranks need it. They connect to the process that made it. */
struct ws_nccl_id {
	char bytes[128];
};
int ws_nccl_id_new(const struct ws_nccl *n, struct ws_nccl_id *out, struct ws_err *err);

struct ws_comm; /* opaque; one thread at a time, with its GPU current */

struct ws_comm_opts {
	const struct ws_nccl *nccl; /* borrowed, as long as the communicator */
	struct ws_nccl_id id;
	unsigned rank, size;        /* 0 <= rank < size */
};

/* Starts to join; NCCL continues in the background until all ranks have joined. */
int ws_comm_open(const struct ws_comm_opts *opts, struct ws_comm **out, struct ws_err *err);
/* *ready: all ranks have joined. -1: it failed, now or earlier, and was aborted. */
int ws_comm_ready(struct ws_comm *c, bool *ready, struct ws_err *err);
/* Waits until it is ready. A timeout or a cancel aborts it. */
int ws_comm_wait(struct ws_comm *c, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err);
/* Queues an in-place broadcast of root's bytes in the stream. Every rank queues the same
 * broadcasts in the same order. The first waits for ranks that have not joined. 0 bytes: does
 * nothing. */
int ws_comm_broadcast(struct ws_comm *c, ws_devptr at, uint64_t bytes, unsigned root,
                      struct ws_stream *s, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_err *err);
/* Queues an in-place sum over all ranks of one float32 in the stream: vLLM's workers do it right
 * after they have joined. Waits like ws_comm_broadcast. */
int ws_comm_all_reduce_one(struct ws_comm *c, ws_devptr at, struct ws_stream *s, ws_deadline until,
                           const struct ws_cancel *cancel, struct ws_err *err);
/* An event that was recorded after the broadcasts. */
struct ws_comm_event {
	struct ws_gpu *gpu;
	struct ws_gpu_event *event;
	void (*meanwhile)(void *ctx); /* called while it waits; NULL: none */
	void *ctx;
};
/* Waits for the event. A dead peer shows in the communicator and never in the stream, so this
 * polls both. A failure, a timeout or a cancel aborts the communicator. */
int ws_comm_wait_event(struct ws_comm *c, const struct ws_comm_event *m, ws_deadline until,
                       const struct ws_cancel *cancel, struct ws_err *err);
/* Stops all its work at once; every later call except close fails. */
void ws_comm_abort(struct ws_comm *c);
/* Waits for queued work until the deadline, then leaves; unfinished work is aborted. NULL is
 * fine. */
void ws_comm_close(struct ws_comm *c, ws_deadline until);

#endif
