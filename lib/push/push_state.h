/* SPDX-License-Identifier: Apache-2.0 */
/* push_state.h - the state of a push, and the declarations that the files of this folder share.
 * push.c has the phases of a run; push_open.c opens and closes; push_plan.c makes the plan;
 * push_group.c forms the group. push_transfer.c sends the buckets; push_target.c decides the state
 * of an endpoint's weights. push_report.c and push_trace.c report events. push_watchdog.c finds the
 * causes of waits that fail, and push_guard.c ends a push that hangs.
 *
 * The folders have headers of their own: push_servers.h, push_checks.h, push_recovery.h,
 * push_senders.h, push_protocol.h, scatter.h, disk.h. */
#ifndef WS_PUSH_STATE_H
#define WS_PUSH_STATE_H

#include "pace.h"
#include "payloads.h"
#include "push_checks.h"
#include "push_recovery.h"
#include "push_senders.h"
#include "push_servers.h"
#include "watchdog.h"

struct push_guard;

/* A run calls push_watch.step at these points, for a caller with steps of its own (verify_reset.c).
 * If the step returns -1, the run fails. */
enum push_step {
	PUSH_STEP_PREPARE, /* the checks have passed, and no endpoint is paused yet */
	/* the endpoints are paused and recorded as partial, and nothing was sent yet */
	PUSH_STEP_CHANGE,
	PUSH_STEP_JUDGE    /* everything was sent, and the endpoints are still paused */
};

/* The source and the plan (push_plan.c). */
struct push_material {
	struct ws_input input;
	struct ws_plan *plan;
	enum ws_load_format format; /* of the plan; kept after the plan is freed */
	const struct ws_push_source *source; /* the caller's */
	char name[1024];                   /* of the source */
	const char *weight_version;
	bool all_names;                    /* no include and no exclude: all tensors are sent */
	bool target_only;                  /* updates name the target model (push_scope.c) */
	/* config of an endpoint that keeps FP8, to choose the tensors to quantize; NULL */
	struct ws_config *server_config;
	struct ws_transform_report report;
};

/* The process group (push_group.c). */
struct push_link {
	const struct ws_transport_ops *transport;
	struct ws_transport_gpu gpu;
	char *nccl_path;                   /* library that nccl_from's Python loads; NULL */
	char nccl_version[32];             /* of the local library; "": NCCL is not used */
	struct ws_group *group;            /* NULL: not formed yet, or dropped after a failure */
	char name[128];                    /* of the group, or of the last one */
	struct ws_group_place place; /* of the last group; port 0: all endpoints have answered */
};

/* How far a run has come. */
struct push_run {
	ws_deadline until;
	enum ws_phase phase;               /* set by push_enter, like phase_since and ns */
	int64_t since, phase_since;
	int64_t ns[WS_PHASE_COUNT];
	uint64_t span, phase_span;         /* of the trace */
	const char *phase_why;             /* the error of this phase, for the trace; NULL */
	const char *failed_why;            /* the error of this run; NULL */
	int64_t transfer_since;
	uint64_t progress_base;            /* progress of the transport when the transfer began */
	uint64_t sent_base;                /* bytes that the group had sent when the run began */
	uint64_t posted;                   /* payload bytes in requests, on disk, or of a worker */
	size_t n_made[2]; /* tensors computed by the CPU [0] and by the GPU [1] */
	size_t bucket;
	bool weights_dirty; /* a transfer was begun and not finished */
	/* a source changed in use, or a sender failed: commits are withdrawn */
	bool commits_void;
	bool incomplete;                   /* only push_complete has failed */
	bool flush_failed;                 /* push_flush_again has */
	bool label_told;                   /* warned about weight versions that stay */
	bool labelled;                     /* the request that loads has set ours */
	struct ws_err failure;             /* *result->err points here */
};

/* The observers of the push. */
struct push_watch {
	struct ws_watchdog *watchdog;      /* observes the waits, and finds why a wait fails */
	struct push_guard *guard;          /* watches the thread of the push; NULL: no guard */
	int (*step)(void *ctx, struct ws_push *p, enum push_step step,
	            struct ws_err *err); /* called at each push_step; NULL */
	void *step_ctx;
};

struct ws_push {
	struct ws_push_opts opts;
	struct ws_http *http;
	const struct push_protocol *protocol;
	ws_deadline deadline;              /* ws_push_set_deadline; 0: none */
	void *own;                         /* state of the protocol (push_own); NULL */
	struct push_targets to;
	struct push_material from;
	struct push_link link;
	struct push_run run;
	struct ws_pace pace;               /* of --bucket-size auto; outlives a run */
	struct push_turn turn;
	struct push_recovery recovery;
	struct push_checks checks;
	struct push_watch watch;
};

/* ---- push_evidence.c ---- */

/* What was established of endpoint i. */
struct ws_evidence push_evidence(const struct ws_push *p, size_t i);
/* What {require} could require of endpoint i and is established: enum ws_require. */
unsigned push_established(const struct ws_push *p, size_t i);

/* ---- push.c ---- */

/* Frees what belongs to one run. */
void push_forget_run(struct ws_push *p);
/* The word of --verify. */
const char *push_verify_name(const struct ws_push *p);

/* ---- push_plan.c ---- */

void push_name_source(struct ws_push *p, const struct ws_push_source *s);
/* Opens the source and plans its buckets, once the servers are detected. A source without a config
 * uses the config of a server, if it can be read here. --quantize converts the tensors that servers
 * keep in FP8. Buckets are flattened if all servers support that. */
int push_make_plan(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err);
/* Would a push of this source to this server have the plan of this digest? 1: yes; 0: no; -1: not
 * known, because the source cannot be opened. Call it between runs. */
int push_has_plan(struct ws_push *p, const struct ws_push_source *s,
                  const struct ws_endpoint_info *info, uint64_t digest);
void push_emit_plan(struct ws_push *p);
/* The size that bucket b of the plan, or the last one, is cut for; 0: none, because batches are
 * sent, or servers load files, or there is no plan. */
uint64_t push_bucket_limit(const struct ws_push *p, size_t b);
uint64_t push_last_bucket_limit(const struct ws_push *p);
/* The GPU memory of the plan's largest bucket. */
uint64_t push_largest_staging(const struct ws_push *p);

/* ---- push_group.c ---- */

/* Drops a group whose peers have left. A restarted server may have changed, so the endpoints are
 * detected again. */
void push_leave_dead_group(struct ws_push *p);
/* Chooses the group's name, for the record. No endpoint knows it yet. */
int push_name_group(struct ws_push *p, struct ws_err *err);
int push_init_group(struct ws_push *p, struct ws_err *err);
/* Ends the group here and at the endpoints. Call it only while p->link.group is set, with the locks
 * of a run, or without: push_end_group. */
void push_drop_group(struct ws_push *p);
void push_end_group(struct ws_push *p);
/* Payload bytes of the group since it formed. */
uint64_t push_sent(const struct ws_push *p);
/* Time from the start of the run to the first byte sent; 0: no byte was sent yet. */
int64_t push_first_byte(const struct ws_push *p);

/* ---- push_transfer.c ---- */

int push_transfer(struct ws_push *p, struct ws_err *err);
/* Is the bucket size adapted to what is measured while sending? Not with a data plane that
 * allocates memory for its buckets before the pause. */
bool push_follows_pace(const struct ws_push *p);
/* Returns -1 and sets `commits_void` if a source has changed since it was opened. Returns 0 once
 * --disk-dir has a checked copy: the source no longer matters then. */
int push_check_sources(struct ws_push *p, struct ws_err *err);

/* ---- push_report.c ---- */

enum { PUSH_CLEAN_UP_S = 10 }; /* for each phase of the clean-up */
/* Ends the current phase and begins this one. */
void push_enter(struct ws_push *p, enum ws_phase phase);
/* Moves ns from phase `transfer` to phase `apply`: the servers loaded weights in that time. */
void push_applied(struct ws_push *p, int64_t ns);
void push_emit(struct ws_push *p, const struct ws_event *ev);
/* e->code WS_OK: the endpoint agreed, and message is its answer. */
void push_emit_endpoint(struct ws_push *p, size_t i, enum ws_phase phase, const struct ws_err *e,
                        const char *message, int64_t ns);
/* url: NULL if no endpoint is concerned. */
void push_warn(struct ws_push *p, const char *url, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- push_trace.c: without --trace these do nothing ---- */

void push_trace_run(struct ws_push *p);                             /* a run begins */
void push_trace_phase(struct ws_push *p);                           /* a phase begins */
void push_trace_over(struct ws_push *p, const struct ws_ev_end *r); /* the run ends */
void push_trace_leave(struct ws_push *p);                           /* leaving the group begins */
void push_trace_left(struct ws_push *p);                            /* and has ended */
/* Opens a span for bucket or batch b of n. */
uint64_t push_trace_bucket(struct ws_push *p, size_t b, size_t n);
void push_trace_bucket_end(struct ws_push *p, uint64_t span, uint64_t bytes, int rc,
                           const struct ws_err *err);
/* Spans from `since` to now: servers loaded a bucket (apply); bytes were sent in requests or
 * written to disk, without a data plane (posted). */
void push_trace_apply(struct ws_push *p, size_t b, int64_t since);
void push_trace_posted(struct ws_push *p, const char *of, size_t b, int64_t since, uint64_t bytes);

/* ---- push_guard.c: without a guard these do nothing ---- */

int push_guard_open(struct ws_push *p, struct ws_err *err);
void push_guard_close(struct ws_push *p);
/* Starts or stops watching the calling thread. */
void push_guard_watch(struct ws_push *p, bool on);
/* Reports that the thread is not hung, and copies the state of the push for the guard. Call it
 * before a request or a byte is sent, and before any call that may block. Update the states of the
 * endpoints first. Does not return once the guard has taken over. */
void push_alive(struct ws_push *p);
/* Also sets the deadline of the step that begins now, until the next such call. */
void push_alive_until(struct ws_push *p, ws_deadline due);

/* ---- push_watchdog.c ---- */

int push_watchdog_open(struct ws_push *p, struct ws_err *err);
/* Sets the limits of the phase that has just begun. */
void push_watchdog_phase(struct ws_push *p);

#endif
