/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_library.h - the part of NCCL that wsync uses, loaded at run time: joining a communicator as
 * any rank, and broadcasts of bytes.
 *
 * NCCL wants the same version at every rank, so the library to load is the one that the
 * servers' torch loads, and not what a system happens to have. Nothing of NCCL's own header
 * is needed: the functions and structs used here have been the same since 2.14.
 * Communicators are non-blocking ones: every wait has a deadline, and what fails is aborted,
 * which never waits for others.
 *
 * A call that NCCL refuses is WS_EDATA, or WS_EDEVICE where CUDA failed under it,
 * with NCCL's own words and its number in `native`. NCCL works on the GPU that is
 * current on the calling thread. */
#ifndef WS_GPU_NCCL_LIBRARY_H
#define WS_GPU_NCCL_LIBRARY_H

#include "cuda_driver.h"

/* ---- the library ---- */

struct ws_nccl; /* opaque */

struct ws_nccl_opts {
	/* a path or a name for dlopen; NULL: libnccl.so.2, where it usually is */
	const char *library;
};

/* No such library, one that lacks a function, one older than 2.14: WS_EDEVICE. */
int ws_nccl_open(const struct ws_nccl_opts *opts, struct ws_nccl **out, struct ws_err *err);
void ws_nccl_close(struct ws_nccl *n); /* NULL is fine; the library itself stays loaded */
int ws_nccl_version(const struct ws_nccl *n); /* NCCL's number for it: 22809 is 2.28.9 */
const char *ws_nccl_version_text(const struct ws_nccl *n); /* "2.28.9" */
const char *ws_nccl_path(const struct ws_nccl *n); /* the file, printable */

/* The libnccl.so.2 that torch loads in a Python environment: python is its
 * interpreter, a name on the PATH or the directory of a virtual environment. Runs it,
 * for as long as `until` and no longer. */
enum { WS_NCCL_PATH_MAX = 4096 };
int ws_nccl_find(const char *python, ws_deadline until, const struct ws_cancel *cancel,
                 char path[WS_NCCL_PATH_MAX], struct ws_err *err);

/* ---- communicators ---- */

/* What rank 0 makes and all ranks must have; the process that made it is who they connect to. */
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

/* Begins to join; NCCL goes on by itself until all ranks are there. */
int ws_comm_open(const struct ws_comm_opts *opts, struct ws_comm **out, struct ws_err *err);
/* *ready: all ranks are there. -1: it has failed, now or since, and was aborted. */
int ws_comm_ready(struct ws_comm *c, bool *ready, struct ws_err *err);
/* Until it is ready. Passed deadlines and cancelling abort it. */
int ws_comm_wait(struct ws_comm *c, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err);
/* In place, in the stream's turn; root's bytes become everybody's. Every rank asks for
 * the same ones in the same order. The first one waits for ranks that have not joined. Of
 * no bytes, nothing is asked. */
int ws_comm_broadcast(struct ws_comm *c, ws_devptr at, uint64_t bytes, unsigned root,
                      struct ws_stream *s, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_err *err);
/* Where a stream has got when it has done all broadcasts before. */
struct ws_comm_event {
	struct ws_gpu *gpu;
	struct ws_gpu_event *event;
	void (*meanwhile)(void *ctx); /* called as long as it waits; NULL: nothing is */
	void *ctx;
};
/* Until the mark is reached. A peer that dies shows in the communicator and never in the stream,
 * so both are asked. Whatever fails, a passed deadline and cancelling abort it. */
int ws_comm_wait_event(struct ws_comm *c, const struct ws_comm_event *m, ws_deadline until,
                       const struct ws_cancel *cancel, struct ws_err *err);
/* Ends what it does, at once; every later call but close fails. */
void ws_comm_abort(struct ws_comm *c);
/* Lets what was asked of it end, until the deadline, and leaves; what cannot end
 * is aborted. NULL is fine. */
void ws_comm_close(struct ws_comm *c, ws_deadline until);

#endif
