/* SPDX-License-Identifier: Apache-2.0 */
/* serve_scatter.h - the plan of a scatter request: serve_scatter_plan.c decodes the request and
 * makes the plan, serve_scatter.c receives. */
#ifndef WS_ENDPOINT_SERVE_SCATTER_H
#define WS_ENDPOINT_SERVE_SCATTER_H

#include "serve_model.h"

struct ws_serve_piece {
	size_t param;
	int64_t from, to;         /* rows; to < 0: up to the last */
	unsigned source;          /* training rank */
	int64_t layer;            /* of experts: a layer is a batch */
	size_t order;             /* position in the plan */
};

struct ws_serve_scatter {
	const struct ws_serve_model *model;
	struct ws_serve_piece *pieces;
	size_t n, cap;
	size_t *ends;             /* of each batch: index behind its last piece */
	size_t n_batches;
	enum ws_serve_fault_kind fault;
};

/* The request, with its defaults. */
struct ws_serve_share_rq {
	struct ws_serve_init init;
	const struct ws_json *names, *experts, *others;
	int64_t world, per_rank, batch;
	bool flush, skip_flush, free_kv;
};

int ws_serve_scatter_decode(const struct ws_serve *s, const struct ws_json *body,
                            struct ws_serve_share_rq *rq, struct ws_err *err);
/* Fills in the pieces and the ends of batches, in the order in which they are received. */
int ws_serve_scatter_plan(struct ws_serve_scatter *x, const struct ws_serve_share_rq *rq,
                          const struct ws_log *log, struct ws_err *err);
void ws_serve_scatter_fini(struct ws_serve_scatter *x);

#endif
