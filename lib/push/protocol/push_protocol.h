/* SPDX-License-Identifier: Apache-2.0 */
/* push_protocol.h - protocols: how buckets get into one kind of server, and by which routes.
 *
 * Only the protocol itself reads its state, p->own. The push calls its functions in this order:
 * planned, legal, prepare, begin, bucket for each bucket (or transfer), end, done. If anything
 * fails from prepare on, undo follows. */
#ifndef WS_PUSH_PROTOCOL_H
#define WS_PUSH_PROTOCOL_H

#include "push_state.h"
#include "wsync/lineage.h"

/* One bucket of the plan, with its bytes. */
struct push_bucket {
	size_t b;
	bool last;
	/* the request that loads this bucket also flushes the cache */
	bool flush;
	struct ws_payload *payloads;
	size_t n_payloads;
};

/* Functions may be NULL (nothing to do), except takes and one of bucket and transfer. */
struct push_protocol {
	const char *name;     /* as in --protocol */
	const char *routes;   /* the routes that a server needs for it, for messages */
	bool (*takes)(const struct ws_capabilities *can); /* does the server have them? */
	bool tensors_only;    /* its requests have no load format */
	bool needs_pause;     /* servers do not hold back generation during its requests */
	bool groupless;       /* there is no process group: requests have or name the weights */
	/* pipeline stages and replicas are allowed, because a request is for the whole server */
	bool any_ranks;
	bool files;           /* servers read files themselves: no load format, no session */
	bool exports;         /* servers read GPU memory of this machine */
	/* an update that is prepared has to be completed before the next one */
	bool prepares;
	/* Does each bucket's request name its tensors alone, so that later buckets may still be cut
	 * otherwise? NULL: no. */
	bool (*one_by_one)(const struct ws_push *p);
	/* -1: it cannot send this plan to these endpoints. No endpoint is paused yet. */
	int (*legal)(struct ws_push *p, struct ws_err *err);
	/* Completes the plan, also in a dry run. The endpoints may be unknown. */
	int (*planned)(struct ws_push *p, struct ws_err *err);
	/* Adds the protocol's members to the event of the plan. */
	void (*tell_plan)(const struct ws_push *p, struct ws_ev_plan *plan);
	/* A copy of the weights exists, so changes of the sources no longer matter. */
	bool (*has_copy)(const struct ws_push *p);
	/* Does the work that needs no paused endpoint. No endpoint is paused yet. */
	int (*prepare)(struct ws_push *p, struct ws_err *err);
	/* The group has formed and the endpoints are paused. */
	int (*begin)(struct ws_push *p, struct ws_err *err);
	/* Like ws_transport_ops.makes. */
	bool (*makes)(const struct ws_push *p, const struct ws_recipe_output *f);
	/* A hint to load these payloads, which are the next bucket's. NULL: they will not be sent,
	 * and are about to be freed. */
	void (*stage)(struct ws_push *p, const struct ws_payload *payloads, size_t n);
	int (*bucket)(struct ws_push *p, const struct push_bucket *k, struct ws_err *err);
	int (*end)(struct ws_push *p, struct ws_err *err);
	/* Replaces begin, bucket and end: does the whole transfer, and forms the group for it. That
	 * group lasts for one run. */
	int (*transfer)(struct ws_push *p, struct ws_err *err);
	/* Of protocols that can stage. stages: adds its members to the record of a staged update
	 * (push_staged.c). found: takes them from the record of the update that is to be
	 * completed. load: asks the paused endpoints to load it. */
	void (*stages)(const struct ws_push *p, struct ws_journal_staged *out);
	int (*found)(struct ws_push *p, const struct ws_journal_record *r, struct ws_err *err);
	int (*load)(struct ws_push *p, struct ws_err *err);
	/* The group is gone, and the endpoints are still paused. Ends the protocol's open steps at
	 * the servers, where it allows that. Has deadlines of its own and cannot be cancelled. */
	void (*undo)(struct ws_push *p);
	/* The run is over, after the resume. */
	void (*done)(struct ws_push *p, bool ok);
	/* Frees p->own after a run; `ended`: the push closes. NULL: free(3) after each run. */
	void (*forget)(struct ws_push *p, bool ended);
};

extern const struct push_protocol push_update, push_session, push_two_phase, push_receive;
extern const struct push_protocol push_ep_scatter, push_tensor, push_ipc, push_disk, push_write;
extern const struct push_protocol push_vllm, push_vllm_ipc;
/* For protocols without a transport: a name, and functions that are called before the transfer. */
extern const struct ws_transport_ops push_tensor_transport, push_ipc_transport, push_disk_transport;

/* Returns p->own; the first call allocates n zeroed bytes. NULL: out of memory. */
void *push_own(struct ws_push *p, size_t n, struct ws_err *err);
void push_forget_own(struct ws_push *p, bool ended);

/* ---- push_scope.c: begin, end and undo of an update ---- */

/* The requests that endpoint i expects around an update. */
enum push_scope push_scope_of(const struct ws_push *p, size_t i);
/* Writes which models an update is for, to servers that can choose. */
/* Sets `draft` of endpoint i, and warns if its draft model keeps its old weights. */
void push_note_draft(struct ws_push *p, size_t i);
/* The same of `adapters`. */
void push_note_adapters(struct ws_push *p, size_t i);
void push_write_selector(const struct ws_push *p, struct ws_jw *w);
int push_scope_begin(struct ws_push *p, struct ws_err *err);
int push_scope_end(struct ws_push *p, struct ws_err *err);
void push_scope_undo(struct ws_push *p);

/* ---- push_vllm.c ---- */

/* Is the protocol of this push one of vLLM's? */
bool push_speaks_vllm(const struct ws_push *p);

/* -1: this endpoint must stay paused if its weights are incomplete, and {on_partial} says no. */
int push_check_partial(const struct ws_push *p, size_t i, struct ws_err *err);
/* Is each request an update of its own, so that no layer may be cut? */
bool push_sends_whole_layers(const struct ws_push *p);

/* Adds to an error of a vLLM's workers what helps. */
void push_vllm_hint(const struct ws_push *p, size_t i, struct ws_err *said);

/* ---- push_export.c ---- */

/* With --backend ipc: checks that all endpoints are on this machine. */
int push_ipc_check_hosts(const struct ws_push *p, struct ws_err *err);

/* ---- push_scatter.c ---- */

/* Writes the share of sender `whose` in the format of senders.h. Call it after legal. */
struct ws_sender_list;
int push_scatter_share(struct ws_push *p, const struct ws_sender_list *whose, struct ws_buf *out,
                       struct ws_err *err);

/* ---- push_request.c: one POST to every endpoint ---- */

struct push_request {
	const char *path;
	/* a server that gets it may have some old and some new weights afterwards */
	bool changes;
	struct ws_buf body;
	struct ws_jw w;                 /* in the body's object, until the request is sent */
	struct ws_endpoint_call *calls; /* one per endpoint */
	char (*messages)[256];          /* and its answer */
};

/* The deadline of a bucket's request, if work on the bucket began at `since`: the time limit
 * includes the reading. */
ws_deadline push_bucket_until(const struct ws_push *p, int64_t since);
/* Call push_request_close in any case, also after -1. */
int push_request_open(struct ws_push *p, struct push_request *r, const char *path,
                      struct ws_err *err);
void push_request_close(struct ws_push *p, struct push_request *r);
/* Writes names, dtypes and shapes of a bucket's tensors as members of w's current object. */
void push_write_tensors(struct ws_jw *w, const struct ws_plan *plan, size_t b);
/* Writes the member `names`, or `shapes`, of n tensors. */
void push_write_names(struct ws_jw *w, const struct ws_plan_tensor *t, size_t n);
void push_write_shapes(struct ws_jw *w, const struct ws_plan_tensor *t, size_t n);
/* Writes num_buckets, and the array `buckets` with these members for each bucket. */
void push_write_buckets(struct ws_jw *w, const struct ws_plan *plan);
/* Sends the request to all endpoints; push_move collects the answers. From here on errs of the push
 * have the result of each endpoint. */
int push_request_start(struct ws_push *p, struct push_request *r, ws_deadline until,
                       struct ws_err *err);
/* Sends the request to the `wanted` endpoints (NULL: all) and waits for the answers. Sets errs of
 * the push, and `asked` and `sent` of each endpoint. -1: *err is the first failure. */
int push_request_ask(struct ws_push *p, struct push_request *r,
                     bool (*wanted)(const struct push_endpoint *), ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err);
/* Did endpoint i refuse before it loaded anything? Not if only its draft model refused, which says
 * the same after the target has loaded. */
bool push_request_unloaded(const struct ws_push *p, const struct push_request *r, size_t i);
/* Keeps each endpoint's answer or error as its message in the result. */
void push_request_note(struct ws_push *p, const struct push_request *r);

/* ---- push_move.c: broadcasts ---- */

struct push_moved {
	/* the broadcast is over, and errs of the push have the endpoints' answers */
	bool over;
	enum ws_code wire; /* the result of the broadcast */
	int64_t ns, wire_ns;
};

/* Broadcasts a bucket while r (NULL: no request) is in flight. Also waits for the answers to r,
 * unless they come `later`. */
int push_move(struct ws_push *p, struct push_request *r, const struct push_bucket *k, bool later,
              struct push_moved *m, struct ws_err *err);
/* The tick of push_move: reports the progress. */
void push_moved_tick(void *ctx);
/* False: the source could not be read, so the broadcast was filled with other bytes. Servers
 * confirm these too. */
bool push_moved_source(const struct push_moved *m);
void push_moved_emit(struct ws_push *p, const struct push_bucket *k, const struct push_moved *m);

#endif
