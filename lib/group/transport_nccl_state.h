/* SPDX-License-Identifier: Apache-2.0 */
/* transport_nccl_state.h - state shared by transport_nccl.c, which joins and leaves, and
 * transport_nccl_send.c, which sends buckets and loads ahead. */
#ifndef WS_GROUP_TRANSPORT_NCCL_STATE_H
#define WS_GROUP_TRANSPORT_NCCL_STATE_H

#include "gpu_stage.h"
#include "job.h"
#include "nccl_library.h"
#include "transport.h"

#include <stdatomic.h>

enum { IN_FLIGHT = 8 }; /* broadcasts that are queued and not yet waited for, at most */

struct sending {
	const struct ws_payload *payloads;
	size_t n;
};

struct nccl {
	struct ws_transport base;
	struct ws_transport_opts opts;
	struct ws_cuda *cuda;
	struct ws_gpu *gpu;
	struct ws_nccl *nccl;
	struct ws_nccl_id id;
	struct ws_comm *comm;     /* used by the running job, else by the caller's thread */
	struct ws_stream *wire;
	ws_devptr number;         /* that vLLM's workers sum; 0: none */
	struct ws_gpu_event *fed, *done[IN_FLIGHT];
	struct ws_gpu_stage stage; /* used by the running loader, else by the running job */
	struct ws_job job, loader;
	struct ws_cancel stop;    /* set by abort */
	struct ws_cancel enough;  /* ends the loader */
	ws_deadline until;
	struct sending now, next;
	struct ws_staging_buffer *ahead; /* the loader fills it */
	atomic_bool agreed, stands;
	_Atomic uint64_t sent, taken;
	_Atomic int64_t first_ns;
};

/* A job: waits until the communicator is ready, then sends n->now. */
int nccl_send(void *n, struct ws_err *err);
/* Stops the loader; staging buffers keep the payloads that are loaded. */
void nccl_end_loading_ahead(struct nccl *n);
/* Releases all staging buffers except this bucket's; NULL: all of them. */
void nccl_drop_boxes_but(struct nccl *n, const struct ws_payload *payloads);

#endif
