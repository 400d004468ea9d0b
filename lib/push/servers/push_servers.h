/* SPDX-License-Identifier: Apache-2.0 */
/* push_servers.h - the servers of a push: detecting them, what they can take, pausing them, and
 * resuming them on every way out, unless they have some old and some new weights. */
#ifndef WS_PUSH_SERVERS_H
#define WS_PUSH_SERVERS_H

#include "endpoint_call.h"
#include "group.h"
#include "push_target.h"
#include "wsync/push.h"
#include "wsync/tool/name_check_run.h"

struct push_protocol;
struct ws_push;

/* The calls that an endpoint expects before and after an update (push_scope.c). */
enum push_scope { PUSH_SCOPE_NONE, PUSH_SCOPE_SESSION, PUSH_SCOPE_PROCESS };

struct push_endpoint {
	const char *url;                   /* borrowed from the options */
	const struct push_weights weights; /* changed by push_target_event only */
	bool paused;                       /* by this push, and not resumed yet */
	bool paused_now;                   /* this run sent the pause, and it was not refused */
	bool found_paused;                 /* perhaps, by a push that died */
	bool found_stopped;                /* paused before this run, nobody knows by whom */
	bool left_paused;                  /* and paused at the end, for somebody else's push */
	bool confirmed_pause;              /* it confirmed our pause */
	bool grouped;                      /* it was asked to join, and has not left since */
	bool disconnected;                 /* its connection broke */
	bool timed_out;                    /* no answer before a deadline or a cancel */
	bool asked, sent;                  /* by the last push_request_ask; the request left */
	bool replaced;                     /* another server answers at its URL now */
	enum push_scope scope;
	bool slept;        /* a run found memory released, and it is not whole yet */
	unsigned asleep;   /* enum ws_memory: still released */
	char message[256]; /* its last words that are worth reporting */
};

/* One request to some of the endpoints. The arrays have room for all of them. */
struct push_call {
	size_t n;
	const char **urls;
	size_t *index;                      /* urls[k] is endpoint index[k] */
	struct ws_endpoint_answer *answers; /* answers[k] is that of urls[k] */
};

/* All endpoints: each array has opts.n_endpoints items, in the order of the options. They are
 * arrays, and not members of push_endpoint, where functions of lower layers fill all at once. */
struct push_targets {
	struct push_endpoint *endpoints;
	struct ws_endpoint_info *infos;
	struct ws_member *members;             /* ranks, and how joining went */
	struct ws_err *errs;                   /* of the last request to all */
	struct ws_ev_endpoint_result *results; /* how the last run ended */
	struct ws_name_check_target *listed;   /* what each endpoint lists */
	size_t n_listed;                       /* 0: not asked yet */
	struct push_call call;                 /* the last one */
	bool known;                            /* infos are filled */
	bool probed;                           /* and were in this run */
	const char *twin;                      /* may be the same server as another one; NULL */
};

/* ---- push_targets.c ---- */

/* Allocates the arrays for p->opts.n_endpoints. */
int push_targets_open(struct ws_push *p, struct ws_err *err);
void push_targets_close(struct ws_push *p);
/* Starts a call to nobody, and adds endpoint i to it. */
struct push_call *push_call_new(struct ws_push *p);
void push_call_add(struct ws_push *p, size_t i);
/* Starts a call to the endpoints for which wanted returns true (NULL: all); returns how many. */
size_t push_select(struct ws_push *p, bool (*wanted)(const struct push_endpoint *));
/* Notes whether the connection broke, or a deadline passed without an answer. */
void push_note_failure(struct ws_push *p, size_t i, const struct ws_err *said);
/* The deadline of a clean-up step that may take `most`: short if an endpoint is silent. */
ws_deadline push_cleanup_deadline(const struct ws_push *p, int64_t most);

/* ---- push_connect.c ---- */

/* Detects the servers, unless an earlier run did and its group is still there. */
int push_connect(struct ws_push *p, struct ws_err *err);
/* -1: the ranks of this endpoint cannot be in a group. */
int push_check_ranks(const struct ws_endpoint_info *info, struct ws_err *err);
/* Checks the plan against the data plane and the options. */
int push_check_plan(struct ws_push *p, struct ws_err *err);

/* ---- push_choose.c: the protocol ---- */

const struct ws_capabilities *push_can(const struct ws_push *p, size_t i);
/* Sets p->protocol: the one asked for, or the first that all endpoints take. */
int push_choose(struct ws_push *p, struct ws_err *err);
const struct push_protocol *push_protocol_asked(enum ws_protocol asked);
/* Before there is a plan: as if no bucket mixed dtypes. */
enum ws_load_format push_choose_format(const struct ws_push *p);
/* Checks protocol, load format, version and --verify of this plan at these endpoints. */
int push_legal(struct ws_push *p, struct ws_err *err);

/* ---- push_rules.c: pause and flush ---- */

/* As the options say, or never if no endpoint has anything to flush. */
enum ws_push_flush push_flush_when(const struct ws_push *p);
/* Does any of the endpoints flush, asked to or not? */
bool push_flushes(const struct ws_push *p);
/* -1: this pause and this flush do not go together at this endpoint. */
int push_refuse_pause(const struct ws_push *p, size_t i, bool idle, struct ws_err *err);

/* ---- push_pause.c ---- */

int push_pause(struct ws_push *p, struct ws_err *err);
int push_flush(struct ws_push *p, struct ws_err *err);
/* Resumes every endpoint that is paused and not left so on purpose. Has deadlines of its own and
 * cannot be cancelled. -1: one of them did not agree; it was warned about. */
int push_resume(struct ws_push *p, struct ws_err *err);
/* After an error on the way to an endpoint that has everything: if the server is gone, so are its
 * weights, and what comes back in its place has others. */
void push_note_gone(struct ws_push *p, size_t i, const struct ws_err *why);

/* ---- push_twins.c: do two URLs lead to one server? ---- */

/* -1: they do, or cancelled. */
int push_twins(struct ws_push *p, struct ws_err *err);
/* After a group did not form: warns about an endpoint that may be there twice. */
void push_twins_suspect(struct ws_push *p);

/* ---- push_others.c: is somebody else pushing to these endpoints? ----
 * -1: yes, or an endpoint did not answer. */

/* Warns. */
int push_others_connect(struct ws_push *p, struct ws_err *err);
/* Right before our pause: is an endpoint that was found paused still paused? */
int push_others_recheck(struct ws_push *p, struct ws_err *err);
/* After an endpoint refused to begin an update: adds to *err who is at work there. */
void push_others_refused(struct ws_push *p, struct ws_err *err);
/* Somebody else paused it, and this push has changed nothing there. If this push resumed it, it
 * would answer in the middle of the other push. */
bool push_others_stopped(const struct push_endpoint *e);
/* After a failure: such endpoints stay paused. */
void push_others_leave(struct ws_push *p);
/* Once the endpoints are paused. */
int push_others_begin(struct ws_push *p, struct ws_err *err);
/* Sets the weight version, between two checks. An endpoint that another push or an operator changed
 * becomes partial. */
int push_others_end(struct ws_push *p, struct ws_err *err);

/* ---- push_instance.c: are the endpoints still the servers that were detected? ----
 * -1: *err says which is not; it becomes partial. */

int push_check_instances(struct ws_push *p, struct ws_err *err); /* in the middle */
int push_check_end(struct ws_push *p, struct ws_err *err);       /* after resuming; the peers too */

/* ---- push_files.c: may this process open enough descriptors? ---- */

int push_check_files(const struct ws_push *p, struct ws_err *err);       /* for all endpoints */
int push_check_ranks_files(const struct ws_push *p, struct ws_err *err); /* for all ranks */

/* ---- push_wake.c: memory that servers have released ---- */

/* Some of its memory is released, or its weights are not back. */
bool push_is_asleep(const struct push_endpoint *e);
/* said: ws_push_source.asleep. -1: it contradicts what is known of an endpoint. */
int push_note_asleep(struct ws_push *p, unsigned said, struct ws_err *err);
int push_wake_weights(struct ws_push *p, struct ws_err *err);
/* Wakes the rest at the endpoints that will be resumed. ok: the run has not failed, and *err says
 * why waking did. */
int push_wake_caches(struct ws_push *p, bool ok, struct ws_err *err);
/* Adds a hint to a failure that looks like released memory. */
void push_hint_asleep(struct ws_push *p, struct ws_err *err);

#endif
