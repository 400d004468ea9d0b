/* SPDX-License-Identifier: Apache-2.0 */
/* serve_gpu.h - the GPUs of an endpoint, one for each of its ranks. They receive tensors over NCCL,
 * and read tensors that other processes share on them.
 *
 * Weights are kept in host memory nevertheless: tensors received on a GPU are copied out, hashed
 * and loaded. */
#ifndef WS_ENDPOINT_SERVE_GPU_H
#define WS_ENDPOINT_SERVE_GPU_H

#include "pickle_bucket.h"
#include "serve_rank.h"

#include "nccl_library.h"

struct ws_serve_gpus {
	struct ws_cuda *cuda;
	struct ws_nccl *nccl; /* NULL: not requested */
	struct ws_gpu *of_rank[WS_SERVE_MAX_TP];
	struct ws_cancel stopping; /* ends waits for shared GPU memory */
	struct ws_serve_ipc *ipc; /* serve_ipc.c, used in the scheduler; NULL: not used yet */
};

/* Opens the GPUs and libraries that the options request. Other threads call ws_gpu_use before they
 * use a GPU. The thread that opens the GPUs must close them. */
int ws_serve_gpus_open(struct ws_serve *s, const struct ws_serve_opts *opts, struct ws_err *err);
void ws_serve_gpus_stop(struct ws_serve *s); /* from any thread */
void ws_serve_gpus_close(struct ws_serve *s);

/* Copies from a GPU through pinned memory, piece by piece, to `take` and dst, if not NULL. If a GPU
 * is still copying two seconds after a failure, the pinned memory stays in use, and closing leaks
 * it. */
struct ws_serve_outlet; /* of one rank; opaque */
int ws_serve_outlet_open(struct ws_gpu *g, struct ws_serve_outlet **out, struct ws_err *err);
void ws_serve_outlet_close(struct ws_serve_outlet *o); /* NULL is fine */
int ws_serve_outlet_run(struct ws_serve_outlet *o, ws_devptr from, const struct ws_gloo_sink *to,
                        ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

/* In the scheduler: copies the bytes of a bucket from another process's GPU memory. The caller
 * frees *bytes. */
int ws_serve_ipc_fetch(struct ws_serve *s, const struct ws_pickle_bucket *b, uint8_t **bytes,
                       struct ws_err *err);
/* In the scheduler: call it after a request's buckets are fetched. last: no other request
 * follows, or this one failed. */
void ws_serve_ipc_fetched(struct ws_serve *s, bool last);
/* Decrements the memory's counter of readers, if it has one (serve_counter.c). */
void ws_serve_give_back(const struct ws_pickle_memory *m, const struct ws_log *log);
void ws_serve_ipc_close(struct ws_serve *s);

/* ---- called by one rank, in its thread ---- */

/* Called after the store is connected. Eager servers join now, lazy servers when they receive. */
int ws_serve_nccl_join(struct ws_serve_rank *r, struct ws_err *err);
/* Receives one broadcast for each sink, like ws_gloo_recv. The update's fault strikes before
 * broadcast number `struck`. */
int ws_serve_nccl_receive(struct ws_serve_rank *r, const struct ws_gloo_sink *sinks, size_t n,
                          size_t struck, struct ws_err *err);
/* Makes all ranks leave at once. No rank may have work. */
void ws_serve_nccl_leave(struct ws_serve_group *g);

#endif
