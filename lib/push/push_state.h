/* SPDX-License-Identifier: Apache-2.0 */
/* push_state.h - the state of a push, and what the files of this folder share: push.c has the
 * phases of a run, push_open.c opens and closes, push_plan.c plans what is sent, push_group.c forms
 * the group, push_transfer.c sends the buckets, push_target.c decides what weights an endpoint has,
 * push_report.c and push_trace.c report, push_watchdog.c and push_guard.c notice that nothing
 * moves.
 *
 * The folders have headers of their own: push_servers.h, push_checks.h, push_recovery.h,
 * push_senders.h, push_protocol.h, scatter.h, disk.h. */
#ifndef WS_PUSH_STATE_H
#define WS_PUSH_STATE_H

#include "payloads.h"
#include "push_checks.h"
#include "push_recovery.h"
#include "push_senders.h"
#include "push_servers.h"
#include "watchdog.h"

struct push_guard;

/* A run calls back here, for a caller that adds steps of its own (verify_reset.c). -1 ends
 * the run as any failure does. */
enum push_step {
	PUSH_STEP_PREPARE, /* the push may be made, and no endpoint is paused yet */
	/* the endpoints are paused and recorded as partial, and nothing was sent yet */
	PUSH_STEP_CHANGE,
	PUSH_STEP_JUDGE    /* everything was sent, and the endpoints are still paused */
};

/* What is sent (push_plan.c). */
struct push_material {
	struct ws_input input;
	struct ws_plan *plan;
	enum ws_load_format format; /* of the plan, and of the last one once that is freed */
	const struct ws_push_source *source; /* the caller's */
	char name[1024];                   /* of the source */
	const char *weight_version;
	bool all_names;                    /* nothing was included or excluded */
	/* of an endpoint that keeps FP8, by which tensors are chosen */
	struct ws_config *server_config;
	struct ws_transform_report report;
};

/* The process group (push_group.c). */
struct push_link {
	const struct ws_transport_ops *transport;
	struct ws_transport_gpu gpu;
	char *nccl_path;                   /* of the Python that was asked; NULL: none was */
	char nccl_version[32];             /* of the library here; "": NCCL is not used */
	struct ws_group *group;            /* NULL: not initialised, or given up after a failure */
	char name[128];                    /* of the group, or of the last one */
	struct ws_group_place place; /* of the last one; port 0: all endpoints have answered */
};

/* How far a run has come. */
struct push_run {
	ws_deadline until;
	enum ws_phase phase;               /* entered by push_enter, as everything about time */
	int64_t since, phase_since;
	int64_t ns[WS_PHASE_COUNT];
	uint64_t span, phase_span;         /* of the trace */
	const char *phase_why;             /* the phase at hand has failed; NULL */
	const char *failed_why;            /* the run has; NULL */
	int64_t transfer_since;
	uint64_t progress_base;            /* of the transport when the transfer began */
	uint64_t sent_base;                /* likewise, when the run began */
	uint64_t posted;                   /* payload bytes that went by requests instead */
	size_t n_made[2]; /* tensors that the CPU makes, and those that the GPU does */
	size_t bucket;
	bool weights_dirty; /* a transfer was begun and not finished */
	/* a source changed in use, or a sender failed: commits are withdrawn */
	bool commits_void;
	bool incomplete;                   /* nothing but push_complete has failed */
	bool label_told;                   /* which weight versions stay */
	struct ws_err failure;             /* what *result->err points to */
};

/* Who follows the push. */
struct push_watch {
	struct ws_watchdog *watchdog;      /* observes the waits, and finds why one fails */
	struct push_guard *guard;          /* watches the thread of the push; NULL: nothing does */
	int (*step)(void *ctx, struct ws_push *p, enum push_step step,
	            struct ws_err *err); /* NULL: none */
	void *step_ctx;
};

struct ws_push {
	struct ws_push_opts opts;
	struct ws_http *http;
	const struct push_protocol *protocol;
	void *own;                         /* of the protocol (push_own); NULL */
	struct push_targets to;
	struct push_material from;
	struct push_link link;
	struct push_run run;
	struct push_turn turn;
	struct push_recovery recovery;
	struct push_checks checks;
	struct push_watch watch;
};

/* ---- push.c ---- */

/* Frees what belongs to one run. */
void push_forget_run(struct ws_push *p);
/* The word of --verify. */
const char *push_verify_name(const struct ws_push *p);

/* ---- push_plan.c ---- */

void push_name_source(struct ws_push *p, const struct ws_push_source *s);
/* Opens the source and plans its buckets, once the servers are known. A source without a config is
 * of the model that the servers run, if their config can be read here; --quantize makes FP8 of
 * what they keep in FP8; buckets are flattened if all servers take that. */
int push_make_plan(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err);
void push_emit_plan(struct ws_push *p);
/* The GPU memory of the plan's largest bucket. */
uint64_t push_largest_staging(const struct ws_push *p);

/* ---- push_group.c ---- */

/* Drops a group whose peers have left. A restarted server may have changed, so the endpoints are
 * detected again. */
void push_leave_dead_group(struct ws_push *p);
/* Chooses the group's name, for the record. No endpoint knows it yet. */
int push_name_group(struct ws_push *p, struct ws_err *err);
int push_init_group(struct ws_push *p, struct ws_err *err);
/* Ends the group here and at the endpoints. There is one. */
void push_drop_group(struct ws_push *p);
/* Payload bytes of the group since it formed. */
uint64_t push_sent(const struct ws_push *p);
/* When the first byte left, from the start of the run; 0: none has. */
int64_t push_first_byte(const struct ws_push *p);

/* ---- push_transfer.c ---- */

int push_transfer(struct ws_push *p, struct ws_err *err);
/* -1: a source has changed since it was opened, and `commits_void` is set. Once --disk-dir has its
 * copy, which was checked before it was published, the source no longer matters: 0. */
int push_check_sources(struct ws_push *p, struct ws_err *err);

/* ---- push_report.c ---- */

enum { PUSH_CLEAN_UP_S = 10 }; /* after a failure, for each phase */
/* Ends the phase at hand and enters this one. */
void push_enter(struct ws_push *p, enum ws_phase phase);
/* Counts ns of the phase `transfer` as `apply`: servers loaded what they had received. */
void push_applied(struct ws_push *p, int64_t ns);
void push_emit(struct ws_push *p, const struct ws_event *ev);
/* e->code WS_OK: the endpoint agreed, and message has its words. */
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
/* Spans from `since` to now: servers loaded what they received; bytes left by requests and not by
 * a data plane. */
void push_trace_apply(struct ws_push *p, size_t b, int64_t since);
void push_trace_posted(struct ws_push *p, const char *of, size_t b, int64_t since, uint64_t bytes);

/* ---- push_guard.c: without a guard these do nothing ---- */

int push_guard_open(struct ws_push *p, struct ws_err *err);
void push_guard_close(struct ws_push *p);
/* The guard watches the calling thread from now on, or no longer. */
void push_guard_watch(struct ws_push *p, bool on);
/* Tells the guard that the thread is not hung; the guard copies the state of the push. Call it
 * before a request or a byte leaves and before anything that may block, once the state says what
 * that may change. Does not return once the guard has taken over. */
void push_alive(struct ws_push *p);
/* Likewise; due: the deadline of what begins now, until the next such call. */
void push_alive_until(struct ws_push *p, ws_deadline due);

/* ---- push_watchdog.c ---- */

int push_watchdog_open(struct ws_push *p, struct ws_err *err);
/* A phase has just begun. */
void push_watchdog_phase(struct ws_push *p);

#endif
