/* SPDX-License-Identifier: Apache-2.0 */
/* serve_rank.h - one tensor-parallel rank of a group, and how operations run on all ranks. */
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
	struct ws_gloo *gloo;           /* set under the endpoint's lock; NULL with NCCL */
	struct ws_serve_nccl *nccl;     /* NULL with gloo */
	char prefix[512];

	/* the current operation: */
	int (*work)(struct ws_serve_rank *r, struct ws_err *err);
	ws_deadline until;
	struct ws_err err;
	pthread_t thread;
	bool threaded, failed;
	bool struck;       /* the update's fault has struck */

	/* the current update: */
	const struct ws_serve_update *update;
	struct ws_hash *hash;
	uint64_t *hashes;  /* one per slot; NULL: not hashing */
	bool copies;       /* copies to the slots' memory, which is not in one piece */
	size_t slot;       /* the cursor: next byte is byte `at` of this slot */
	uint64_t at;
	uint64_t received;
};

/* Runs work in one thread per rank, and returns when all have ended. The first rank that fails
 * aborts the others, and the group becomes unusable. */
int ws_serve_run_ranks(struct ws_serve_group *g,
                       int (*work)(struct ws_serve_rank *, struct ws_err *), ws_deadline until,
                       struct ws_err *err);
/* Likewise, but first waits until the group is not busy. work finds job in its group. */
int ws_serve_group_work(struct ws_serve_group *g,
                        int (*work)(struct ws_serve_rank *, struct ws_err *), void *job,
                        ws_deadline until, struct ws_err *err);
/* Faults on the wire, serve_wire.c. 0: no fault, or it only delays. */
int ws_serve_spoil_store(struct ws_serve_rank *r, struct ws_err *err);
int ws_serve_spoil_joining(struct ws_serve_rank *r, enum ws_serve_fault_kind kind,
                           struct ws_err *err);
/* Applies a fault midway: "slow" waits and returns 0; "hang" waits, "die" dies, all others -1. */
int ws_serve_strike(struct ws_serve_rank *r, enum ws_serve_fault_kind kind, struct ws_err *err);

/* Waits until the group is not busy, and makes it busy. -1: the group is unusable. */
int ws_serve_group_begin(struct ws_serve_group *g, struct ws_err *err);
void ws_serve_group_end(struct ws_serve_group *g);

#endif
