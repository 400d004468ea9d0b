/* SPDX-License-Identifier: Apache-2.0 */
/* push_protocol.h - how buckets get into servers: the routes of one kind of
 * server, as the push sees them.
 *
 * A protocol's state is p->own, which nothing else reads. Its functions are called in the order
 * planned, legal, prepare, begin, bucket for each bucket (or transfer), end, done; if anything
 * fails from prepare on, undo follows. */
#ifndef WS_PUSH_PROTOCOL_H
#define WS_PUSH_PROTOCOL_H

#include "push_state.h"
#include "wsync/lineage.h"

/* One bucket of the plan, its bytes at hand. */
struct push_bucket {
	size_t b;
	bool last;
	/* as the user wants it of the request that brings this bucket's weights to life */
	bool flush;
	struct ws_payload *payloads;
	size_t n_payloads;
};

/* Functions may be NULL (nothing to do), except takes and one of bucket and transfer. */
struct push_protocol {
	const char *name;     /* as in --protocol */
	const char *routes;   /* what a server must have for it, in words */
	bool (*takes)(const struct ws_capabilities *can); /* has it that? */
	bool tensors_only;    /* its routes know no load format */
	bool needs_pause;     /* its requests do not keep those that generate away by themselves */
	bool groupless;       /* its requests hold the weights, and nobody joins a group */
	/* also to pipeline stages and to replicas: a request is the whole server's */
	bool any_ranks;
	bool files;           /* the servers read files by themselves: no load format, no session */
	bool exports;         /* they read memory of a GPU of this machine */
	/* an update that is prepared has to be completed before the next one */
	bool prepares;
	/* May this plan go to these endpoints so? Asked before anybody is paused. */
	int (*legal)(struct ws_push *p, struct ws_err *err);
	/* The plan is made, of a dry run too, and perhaps no endpoint is
	 * known: what else belongs to it? */
	int (*planned)(struct ws_push *p, struct ws_err *err);
	/* Adds what is the protocol's to the event of the plan. */
	void (*tell_plan)(const struct ws_push *p, struct ws_ev_plan *plan);
	/* There is a copy of what is sent, and the sources no longer matter. */
	bool (*has_copy)(const struct ws_push *p);
	/* Nobody is paused yet: what can be done without the endpoints. */
	int (*prepare)(struct ws_push *p, struct ws_err *err);
	/* The group stands and the endpoints are paused. */
	int (*begin)(struct ws_push *p, struct ws_err *err);
	/* As a transport's. */
	bool (*makes)(const struct ws_push *p, const struct ws_recipe_output *f);
	/* A hint that these payloads are the next bucket's, and are to be fetched; NULL: they never
	 * will be, and go. */
	void (*stage)(struct ws_push *p, const struct ws_payload *payloads, size_t n);
	int (*bucket)(struct ws_push *p, const struct push_bucket *k, struct ws_err *err);
	int (*end)(struct ws_push *p, struct ws_err *err);
	/* Instead of the three: all of the transfer, and the group's forming with it.
	 * That group is one run's only. */
	int (*transfer)(struct ws_push *p, struct ws_err *err);
	/* The group is gone, the endpoints are still paused: leaves no server in
	 * the middle of the protocol, as far as it allows that. Has deadlines of
	 * its own and cannot be cancelled. */
	void (*undo)(struct ws_push *p);
	/* The run is over, and everybody told to continue. */
	void (*done)(struct ws_push *p, bool ok);
	/* Frees p->own after a run; `ended`: of the last one. NULL: free(3) after each run. */
	void (*forget)(struct ws_push *p, bool ended);
};

extern const struct push_protocol push_update, push_session, push_two_phase, push_receive;
extern const struct push_protocol push_ep_scatter, push_tensor, push_ipc, push_disk;
/* Stand in for one: they have a name, and what is known before anything is sent. */
extern const struct ws_transport_ops push_tensor_transport, push_ipc_transport, push_disk_transport;

/* p->own, of n bytes: zeroed where there was none. NULL: out of memory. */
void *push_own(struct ws_push *p, size_t n, struct ws_err *err);
void push_forget_own(struct ws_push *p, bool ended);

/* ---- push_scope.c: begin, end and undo of an update ---- */

/* What endpoint i wants around an update. */
enum push_scope push_scope_of(const struct ws_push *p, size_t i);
int push_scope_begin(struct ws_push *p, struct ws_err *err);
int push_scope_end(struct ws_push *p, struct ws_err *err);
void push_scope_undo(struct ws_push *p);

/* ---- push_ipc.c ---- */

/* Of --backend ipc: are all endpoints on this machine? */
int push_ipc_check_hosts(const struct ws_push *p, struct ws_err *err);

/* ---- push_scatter.c ---- */

/* What sender `whose` is to send, as senders.h writes it. After legal. */
struct ws_sender_list;
int push_scatter_share(struct ws_push *p, const struct ws_sender_list *whose, struct ws_buf *out,
                       struct ws_err *err);

/* ---- push_request.c: one POST to every endpoint ---- */

struct push_request {
	const char *path;
	/* a server that gets it may have some old and some new weights then */
	bool changes;
	struct ws_buf body;
	struct ws_jw w;                 /* stands in the body's object until it is sent */
	struct ws_endpoint_call *calls; /* one per endpoint */
	char (*messages)[256];          /* and what it said */
};

/* Closed by push_request_close in any case. */
int push_request_open(struct ws_push *p, struct push_request *r, const char *path,
                      struct ws_err *err);
void push_request_close(struct ws_push *p, struct push_request *r);
/* names, dtypes and shapes of a bucket's tensors, as members of the object that w stands in. */
void push_write_tensors(struct ws_jw *w, const struct ws_plan *plan, size_t b);
/* num_buckets and buckets: the same of all. */
void push_write_buckets(struct ws_jw *w, const struct ws_plan *plan);
/* Sends it to all; the answers are to be had from push_move. From here on errs of the push say what
 * became of each endpoint. */
int push_request_start(struct ws_push *p, struct push_request *r, ws_deadline until,
                       struct ws_err *err);
/* Sends it to those that are wanted (NULL: all) and waits for their answers: errs of the push,
 * `asked` and `sent` of each endpoint. -1: the first that did not agree. */
int push_request_ask(struct ws_push *p, struct push_request *r,
                     bool (*wanted)(const struct push_endpoint *), ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err);
/* Keeps what an endpoint said for its result; with what is known from errs. */
void push_request_note(struct ws_push *p, const struct push_request *r);

/* ---- push_move.c: broadcasts ---- */

struct push_moved {
	/* the data plane has worked, and errs of the push say what the endpoints said */
	bool over;
	enum ws_code wire; /* how its work ended */
	int64_t ns, wire_ns;
};

/* Broadcasts a bucket while r (NULL: nothing) is in flight, and waits for its answers too
 * unless they come `later`. */
int push_move(struct ws_push *p, struct push_request *r, const struct push_bucket *k, bool later,
              struct push_moved *m, struct ws_err *err);
/* The tick of a push_move: says how far it has come. */
void push_moved_tick(void *ctx);
/* False: the source could not be read, and the broadcast was filled with other bytes. Servers
 * confirm those all the same. */
bool push_moved_source(const struct push_moved *m);
void push_moved_emit(struct ws_push *p, const struct push_bucket *k, const struct push_moved *m);

#endif
