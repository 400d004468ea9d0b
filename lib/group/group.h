/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - one process group: the store that we host, the servers that we asked to join, and the
 * transport that joined as rank 0; and the work that needs HTTP and the data plane at once. */
#ifndef WS_GROUP_H
#define WS_GROUP_H

#include "endpoint_call.h"
#include "transport.h"

struct ws_member {
	const char *url;       /* borrowed */
	const char *host;      /* of the url, without brackets */
	unsigned rank_offset;  /* first rank of this endpoint; it has `ranks` of them */
	unsigned ranks;
	int64_t ns;            /* out: how long its init took */
	bool stays;            /* out: it refused to leave */
	/* out: it was asked to join and has not answered; it may still take that up */
	bool late;
};

struct ws_group_place {
	char host[64];  /* an address literal */
	uint16_t port;  /* 0: they were told of none */
};

struct ws_together;

/* Follows the waits of a group (watchdog.h does). All functions must be there. */
struct ws_group_watch {
	void (*begins)(void *ctx, const struct ws_together *w);
	void (*moved)(void *ctx);                        /* bytes were sent */
	/* the thread of the group is at work, until `due` at most */
	void (*alive)(void *ctx, ws_deadline due);
	void (*failed)(void *ctx, enum ws_hang_end end); /* nothing is closed yet */
	void (*ends)(void *ctx);
};

struct ws_group_opts {
	struct ws_http *http;               /* borrowed */
	struct ws_member *members;          /* borrowed; rank_offset is filled in */
	size_t n_members;
	unsigned senders; /* the first so many ranks are not the members': we and others
	                   * that send; 0: 1 */
	const struct ws_transport_ops *ops;
	struct ws_transport_gpu gpu;
	const char *master_address;         /* NULL: chosen */
	uint16_t master_port;
	const char *name;                   /* NULL: wsync-<8 hex> */
	/* ws_group_open only binds the store: see ws_group_join */
	bool own_requests;
	const struct ws_log *log;
	const struct ws_cancel *cancel;
	struct ws_trace *trace;             /* borrowed; NULL: none */
	/* out: where members were told to come; NULL: not wanted */
	struct ws_group_place *place;
	/* `place` is known, and no member was asked to come yet. -1 ends ws_group_open. NULL:
	 * none */
	int (*bound)(void *ctx, struct ws_err *err);
	void *bound_ctx;
	const struct ws_group_watch *watch; /* NULL: none */
	void *watch_ctx;
};

struct ws_group; /* opaque */

/* wsync-<8 hex>: fresh for each attempt, because a half-dead group of any other name may still
 * stand at a server. n should be 16 at least. */
int ws_group_fresh_name(char *name, size_t n, struct ws_err *err);
/* Binds the store, asks all members at once to join, joins. On failure nothing is left open. */
int ws_group_open(const struct ws_group_opts *opts, ws_deadline until, struct ws_group **out,
                  struct ws_err *err);
/* With own_requests: where the store is, for the caller to tell the members in
 * requests of his own; and joins while those are in flight, which must not be answered
 * before. watch: see ws_together. */
const char *ws_group_master(const struct ws_group *g, uint16_t *port);
int ws_group_join(struct ws_group *g, struct ws_endpoint_call *calls, struct ws_err *errs,
                  int (*watch)(void *ctx, struct ws_err *err), void *ctx, ws_deadline until,
                  struct ws_err *err);
/* Asks the members to leave while our side is aborted, and waits for their answers until `until`.
 * lost (or NULL): in, whose connection broke and who therefore gets a moment only; out, who did not
 * answer. */
void ws_group_close(struct ws_group *g, bool *lost, ws_deadline until); /* NULL is fine */

/* What follows closes our side only: the members are not asked. */
void ws_group_forget(struct ws_group *g);

/* Releases ranks that join after their group is gone, which would block their server for torch's
 * half hour: listens at the group's address until some connect or `until` passes. Returns how
 * many; 0 also where it cannot listen there. */
unsigned ws_group_release_late(const struct ws_group_place *place, const char *group,
                               ws_deadline until, const struct ws_cancel *cancel);

const char *ws_group_name(const struct ws_group *g);
struct ws_store *ws_group_store(const struct ws_group *g);
unsigned ws_group_world_size(const struct ws_group *g);
struct ws_transport *ws_group_transport(const struct ws_group *g);
/* false: a peer left since, so the next broadcast would fail. */
bool ws_group_alive(const struct ws_group *g);

/* HTTP requests that are answered only once the data plane has moved, and the data plane that moves
 * only once the requests were read: both are run together. */
struct ws_together {
	struct ws_group *group;
	/* started by the caller, one per member; answered ones stay so */
	struct ws_endpoint_call *calls;
	size_t n;                       /* 0: the data plane alone */
	/* the answers belong to what is sent next: they are not waited for */
	bool later;
	struct ws_err *errs;            /* out: per member, WS_OK where it agreed */
	char (*messages)[256];          /* out: per member, its words; may be NULL */
	ws_deadline until;
	const struct ws_cancel *cancel;
	const char *what;               /* subject of a deadline's sentence: "bucket 3 of 9" */
	bool joining;                   /* what the store has seen (ws_store_trouble) is fatal */
	/* Called likewise: -1 where somebody of whom this group knows
	 * nothing has failed. May be NULL. */
	int (*watch)(void *ctx, struct ws_err *err);
	void (*tick)(void *ctx);        /* called some ten times a second; may be NULL */
	void *ctx;                      /* of both */
	enum ws_code wire;              /* out: how the data plane's work ended */
	int64_t wire_ns;                /* out: start to the end of the data plane's work */
};

/* 0: every request was agreed to and the data plane is done. -1: the first cause. On
 * return no call is in flight (but after `later` when all is well) and the transport is
 * at rest. A refusal aborts the data plane at once; when an endpoint vanishes, the others
 * get what they can still get. */
int ws_group_together(struct ws_together *w, struct ws_err *err);

#endif
