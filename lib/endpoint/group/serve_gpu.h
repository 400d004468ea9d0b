/* SPDX-License-Identifier: Apache-2.0 */
/* serve_gpu.h - the GPUs of an endpoint, one for each of its ranks: what comes over NCCL into
 * them, and what others show on them.
 *
 * Weights lie in host memory all the same: what was received on a GPU is
 * copied out, hashed and loaded. */
#ifndef WS_ENDPOINT_SERVE_GPU_H
#define WS_ENDPOINT_SERVE_GPU_H

#include "pickle_bucket.h"
#include "serve_rank.h"

#include "nccl_library.h"

struct ws_serve_gpus {
	struct ws_cuda *cuda;
	struct ws_nccl *nccl; /* NULL: not asked for */
	struct ws_gpu *of_rank[WS_SERVE_MAX_TP];
	struct ws_cancel stopping; /* no waiting for others' GPUs any longer */
	struct ws_serve_ipc *ipc; /* serve_ipc.c, of the scheduler; NULL: nothing came so */
};

/* What the options ask for. A thread that uses one calls ws_gpu_use first;
 * whoever opens them closes them. */
int ws_serve_gpus_open(struct ws_serve *s, const struct ws_serve_opts *opts, struct ws_err *err);
void ws_serve_gpus_stop(struct ws_serve *s); /* from any thread */
void ws_serve_gpus_close(struct ws_serve *s);

/* From a GPU through pinned memory, piece by piece, to `take` and to dst where that is not
 * NULL. A GPU that is not even done two seconds after a failure keeps the memory, and
 * closing then leaves it behind. */
struct ws_serve_outlet; /* of one rank; opaque */
int ws_serve_outlet_open(struct ws_gpu *g, struct ws_serve_outlet **out, struct ws_err *err);
void ws_serve_outlet_close(struct ws_serve_outlet *o); /* NULL is fine */
int ws_serve_outlet_run(struct ws_serve_outlet *o, ws_devptr from, const struct ws_gloo_sink *to,
                        ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

/* In the scheduler: the bytes of a bucket that are in another process's
 * memory, which the caller frees. */
int ws_serve_ipc_fetch(struct ws_serve *s, const struct ws_pickle_bucket *b, uint8_t **bytes,
                       struct ws_err *err);
/* In the scheduler: a request's buckets have been fetched. last: no other is
 * to come, or it has failed. */
void ws_serve_ipc_fetched(struct ws_serve *s, bool last);
/* It is not read here any longer, says its counter, if it has one. */
void ws_serve_give_back(const struct ws_pickle_memory *m, const struct ws_log *log);
void ws_serve_ipc_close(struct ws_serve *s);

/* ---- of one rank, in its thread ---- */

/* The store has been reached. Eager servers join now, lazy ones when they receive. */
int ws_serve_nccl_join(struct ws_serve_rank *r, struct ws_err *err);
/* A broadcast for each sink, as ws_gloo_recv has them. Before number `struck`
 * the update's fault strikes. */
int ws_serve_nccl_receive(struct ws_serve_rank *r, const struct ws_gloo_sink *sinks, size_t n,
                          size_t struck, struct ws_err *err);
/* All ranks at once: none of them may have work. */
void ws_serve_nccl_leave(struct ws_serve_group *g);

#endif
