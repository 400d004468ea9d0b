/* SPDX-License-Identifier: Apache-2.0 */
/* push_protocol.h - how buckets get into servers: the routes of one kind of server, as the push sees them.
 *
 * A protocol is stateless; what it must remember of a run is in struct ws_push. Its calls come in the order
 * legal, begin, bucket for each bucket, end; when anything fails from begin on, undo follows. */
#ifndef WS_SYNC_PUSH_PROTOCOL_H
#define WS_SYNC_PUSH_PROTOCOL_H

#include "push_state.h"

/* One bucket of the plan, its bytes at hand. */
struct push_bucket {
	size_t b;
	bool last;
	bool flush; /* as the user wants it of the request that brings this bucket's weights to life */
	struct ws_payload *payloads;
	size_t n_payloads;
};

/* All but bucket may be NULL: nothing to do. */
struct push_protocol {
	const char *name; /* as in --protocol */
	/* May this plan go to these endpoints so? Asked before anybody is paused. */
	int (*legal)(struct ws_push *p, struct ws_err *err);
	/* The group stands and the endpoints are paused. */
	int (*begin)(struct ws_push *p, struct ws_err *err);
	int (*bucket)(struct ws_push *p, const struct push_bucket *k, struct ws_err *err);
	int (*end)(struct ws_push *p, struct ws_err *err);
	/* The group is gone, the endpoints are still paused: leaves no server in the middle of the protocol,
	 * as far as it allows that. Has deadlines of its own and cannot be cancelled. */
	void (*undo)(struct ws_push *p);
};

extern const struct push_protocol push_update;

/* ---- push_request.c: one POST to every endpoint ---- */

struct push_request {
	const char *path;
	bool changes;                   /* whoever is sent it may hold a mixture of old and new from then on */
	bool over;                      /* out: it was sent to all, and errs of the push say what they made of it */
	struct ws_buf body;
	struct ws_jw w;                 /* stands in the body's object until it is sent */
	struct ws_endpoint_call *calls; /* one per endpoint */
	char (*messages)[256];          /* and what it said */
};

/* Closed by push_request_close in any case. */
int push_request_open(struct ws_push *p, struct push_request *r, const char *path, struct ws_err *err);
void push_request_close(struct ws_push *p, struct push_request *r);
/* names, dtypes and shapes of a bucket's tensors, as members of the object that w stands in. */
void push_write_tensors(struct ws_jw *w, const struct ws_plan *plan, size_t b);
/* Sends the request to all and broadcasts k meanwhile. *wire: how the data plane's work ended. */
int push_move(struct ws_push *p, struct push_request *r, const struct push_bucket *k, enum ws_code *wire,
              struct ws_err *err);

#endif
