/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - one process group: the store that we host, the invited servers, and our transport as
 * rank 0. ws_group_together waits for HTTP answers and the data plane at once. */
#ifndef WS_GROUP_H
#define WS_GROUP_H

#include "endpoint_call.h"
#include "transport.h"

struct ws_member {
	const char *url;       /* borrowed */
	const char *host;      /* host of the url, without brackets */
	const struct ws_endpoint_info *info; /* of a vLLM; NULL: an SGLang; borrowed */
	unsigned rank_offset;  /* first of the `ranks` ranks of this endpoint */
	unsigned ranks;
	int64_t ns;            /* out: duration of its last request */
	bool inside;           /* a vLLM inside an update: its own route refuses to let it leave */
	bool stays;            /* out: it refused to leave */
	/* out: it has not answered the request to join, and may still join */
	bool late;
};

struct ws_group_place {
	char host[64];  /* an address literal */
	uint16_t port;  /* 0: no store was opened */
};

struct ws_together;

/* Observes the waits of a group (see watchdog.h). No function may be NULL. */
struct ws_group_watch {
	void (*begins)(void *ctx, const struct ws_together *w);
	void (*moved)(void *ctx);                        /* bytes were sent */
	/* the group's thread is working; due: deadline of its current step */
	void (*alive)(void *ctx, ws_deadline due);
	void (*failed)(void *ctx, enum ws_hang_end end); /* before anything is closed */
	void (*ends)(void *ctx);
};

struct ws_group_opts {
	struct ws_http *http;               /* borrowed */
	struct ws_member *members;          /* borrowed; rank_offset is filled in */
	size_t n_members;
	unsigned senders; /* ranks below this send (we are rank 0); the members' ranks follow;
	                   * 0: 1 */
	const struct ws_transport_ops *ops;
	struct ws_transport_gpu gpu;
	bool packed;                        /* vLLM: a bucket is one broadcast */
	const char *master_address;         /* NULL: chosen */
	uint16_t master_port;
	const char *name;                   /* NULL: wsync-<8 hex> */
	/* ws_group_open only binds the store: see ws_group_join */
	bool own_requests;
	const struct ws_log *log;
	const struct ws_cancel *cancel;
	struct ws_trace *trace;             /* borrowed; NULL: none */
	/* out: address of the store; NULL: not wanted */
	struct ws_group_place *place;
	/* called when `place` is set, before any member is invited; -1: ws_group_open fails;
	 * may be NULL */
	int (*bound)(void *ctx, struct ws_err *err);
	void *bound_ctx;
	const struct ws_group_watch *watch; /* NULL: none */
	void *watch_ctx;
};

struct ws_group; /* opaque */

enum { WS_GROUP_NAME_MAX = 100 }; /* bytes */
/* Writes wsync-<8 hex>, a new name for each attempt: a server may still have a half-dead group of
 * an earlier name. n should be 16 at least. */
int ws_group_fresh_name(char *name, size_t n, struct ws_err *err);
/* Binds the store, invites all members at once, and joins. On failure nothing is left open. */
int ws_group_open(const struct ws_group_opts *opts, ws_deadline until, struct ws_group **out,
                  struct ws_err *err);
/* With own_requests: the caller sends the address of ws_group_master to the members in its own
 * requests. ws_group_join then joins while these are in flight; the members answer them only
 * later. watch: see ws_together. */
const char *ws_group_master(const struct ws_group *g, uint16_t *port);
int ws_group_join(struct ws_group *g, struct ws_endpoint_call *calls, struct ws_err *errs,
                  int (*watch)(void *ctx, struct ws_err *err), void *ctx, ws_deadline until,
                  struct ws_err *err);
/* Asks the members to leave, closes our side, and waits for their answers until `until`. lost (may
 * be NULL), per member: in: its connection broke, so it gets 1 s only; out: it did not
 * answer. */
void ws_group_close(struct ws_group *g, bool *lost, ws_deadline until); /* NULL is fine */

/* A later ws_group_close closes our side only and sends the members no request. */
void ws_group_forget(struct ws_group *g);
void ws_group_forget_member(struct ws_group *g, size_t i);

/* Releases ranks that join after their group is gone, which would block their server for torch's
 * timeout of 30 minutes: listens at the group's address until some connect or `until` passes.
 * Returns the number of ranks; 0 also if it cannot listen there. */
unsigned ws_group_release_late(const struct ws_group_place *place, const char *group,
                               ws_deadline until, const struct ws_cancel *cancel);

const char *ws_group_name(const struct ws_group *g);
struct ws_store *ws_group_store(const struct ws_group *g);
unsigned ws_group_world_size(const struct ws_group *g);
struct ws_transport *ws_group_transport(const struct ws_group *g);
/* False: a peer has left, so the next broadcast would fail. */
bool ws_group_alive(const struct ws_group *g);

/* Runs HTTP requests and the data plane at once: servers answer only when the data plane has moved,
 * and it moves only when they have read the requests. */
struct ws_together {
	struct ws_group *group;
	/* one per member, started by the caller; skipped if answered before (http.user not NULL) */
	struct ws_endpoint_call *calls;
	size_t n;                       /* 0: the data plane alone */
	/* do not wait for the answers: they come after a later send */
	bool later;
	struct ws_err *errs;            /* out: per member; WS_OK: it accepted */
	char (*messages)[256];          /* out: per member, its answer's message; may be NULL */
	ws_deadline until;
	const struct ws_cancel *cancel;
	const char *what;               /* subject of the timeout message: "bucket 3 of 9" */
	bool joining;                   /* the group forms: any ws_store_trouble is fatal */
	/* Called as often as tick; -1: something outside the group failed, for example another
	 * sender. May be NULL. */
	int (*watch)(void *ctx, struct ws_err *err);
	void (*tick)(void *ctx);        /* called about ten times a second; may be NULL */
	void *ctx;                      /* for watch and tick */
	enum ws_code wire;              /* out: result of the data plane's work */
	int64_t wire_ns;                /* out: duration of the data plane's work */
};

/* Returns 0 if all servers accepted and the data plane is done, else -1 and the first cause. On
 * return the transport is idle, and no call is in flight, except after a success with `later`.
 * A refusal aborts the data plane at once. If an endpoint vanishes, the transfer to the others
 * goes on as long as bytes move. */
int ws_group_together(struct ws_together *w, struct ws_err *err);

#endif
