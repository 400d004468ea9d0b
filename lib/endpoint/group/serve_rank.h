/* SPDX-License-Identifier: Apache-2.0 */
/* serve_rank.h - one tensor-parallel rank of a group, for the files that make it work. */
#ifndef WS_ENDPOINT_SERVE_RANK_H
#define WS_ENDPOINT_SERVE_RANK_H

#include "serve_group.h"
#include "serve_model.h"

#include "gloo.h"
#include "hash.h"
#include "store.h"

struct ws_serve_rank {
	struct ws_serve_group *group;
	unsigned tp_rank;
	struct ws_store_client *client; /* the group's cancel flag ends its calls */
	struct ws_gloo *gloo;           /* set under the endpoint's lock; others abort it */
	struct ws_serve_nccl *nccl;     /* instead of gloo */
	char prefix[512];

	/* of the operation in work */
	int (*work)(struct ws_serve_rank *r, struct ws_err *err);
	ws_deadline until;
	struct ws_err err;
	pthread_t thread;
	bool threaded, failed;
	bool struck;       /* the fault of the update did */

	/* of the update in work */
	const struct ws_serve_update *update;
	struct ws_hash *hash;
	uint64_t *hashes;  /* one per slot; NULL: not hashing */
	bool copies;       /* memory that is not in one piece */
	size_t slot;       /* the cursor: next byte is byte `at` of this slot */
	uint64_t at;
	uint64_t received;
};

/* Runs work in one thread per rank, and ends when all have ended. The first one that fails
 * aborts the others, and the group is of no more use. */
int ws_serve_run_ranks(struct ws_serve_group *g,
                       int (*work)(struct ws_serve_rank *, struct ws_err *), ws_deadline until,
                       struct ws_err *err);
/* Likewise, when it is our turn; job is what work finds in its group. */
int ws_serve_group_work(struct ws_serve_group *g,
                        int (*work)(struct ws_serve_rank *, struct ws_err *), void *job,
                        ws_deadline until, struct ws_err *err);
/* Faults of the wire, serve_wire.c. 0: nothing more happens now. */
int ws_serve_spoil_store(struct ws_serve_rank *r, struct ws_err *err);
int ws_serve_spoil_joining(struct ws_serve_rank *r, enum ws_serve_fault_kind kind,
                           struct ws_err *err);
/* What an endpoint does in the middle of things: waits (0), or ends in one way or another. */
int ws_serve_strike(struct ws_serve_rank *r, enum ws_serve_fault_kind kind, struct ws_err *err);

/* A group moves one thing at a time. -1: it is of no more use. */
int ws_serve_group_begin(struct ws_serve_group *g, struct ws_err *err);
void ws_serve_group_end(struct ws_serve_group *g);

#endif
