/* SPDX-License-Identifier: Apache-2.0 */
/* push_servers.h - detects, checks, pauses and resumes the servers of a push. Servers are resumed
 * after every failure, unless they have some old and some new weights. */
#ifndef WS_PUSH_SERVERS_H
#define WS_PUSH_SERVERS_H

#include "endpoint_call.h"
#include "group.h"
#include "push_target.h"
#include "wsync/evidence.h"
#include "wsync/push.h"
#include "wsync/tool/name_check_run.h"

struct push_protocol;
struct ws_push;

/* The calls that an endpoint expects before and after an update (push_scope.c). */
enum push_scope {
	PUSH_SCOPE_NONE,
	PUSH_SCOPE_SESSION,
	PUSH_SCOPE_PROCESS,
	PUSH_SCOPE_TRANSFER /* of vLLM */
};

/* What an endpoint keeps and what is sent to it (push_fp8.c); all NULL: not established. */
struct push_format {
	const char *keeps, *sends; /* words of formats.h */
	const char *verdict;       /* right, assumed, allowed */
	const char *by;            /* told, config, names, option */
	unsigned fits;             /* enum ws_fits: the verdict as a number */
};

struct push_endpoint {
	struct push_format format;
	/* of its weights that are not quantized (push_fp8.c) */
	bool has_type;
	enum ws_dtype type;
	const char *draft;                 /* as in evidence.h */
	const char *adapters;              /* the same */
	const char *url;                   /* borrowed from the options */
	const struct push_weights weights; /* changed by push_target_event only */
	bool paused;                       /* by this push, and not resumed yet */
	bool paused_now;                   /* this run sent a pause that was not refused */
	bool found_paused;                 /* perhaps paused, by a push that died */
	bool found_stopped;                /* paused before this run, unknown by whom */
	bool left_paused;                  /* found_stopped, and paused at the end */
	bool confirmed_pause;              /* it confirmed our pause */
	struct ws_caches caches;           /* in this run; all untold: it has not come so far */
	bool left_open;                    /* an earlier push was cut off inside an update (vLLM) */
	bool may_finish;                   /* the push that left it so is dead, and recorded */
	bool holds_parts;                  /* when we began (push_may_hold_parts) */
	bool grouped;                      /* a join request was sent, and it has not left since */
	bool disconnected;                 /* its connection broke */
	bool timed_out;                    /* no answer before a deadline or a cancel */
	bool asked, sent;                  /* by the last push_request_ask */
	enum ws_identity_end end;          /* what the last roll call has found */
	/* our weight version replaced another one, and was read back */
	bool label_moved, label_read;
	bool labelled;                     /* it has answered that it has our weight version */
	bool unflushed;                    /* has new weights, and the cache of the old ones */
	bool staged;                       /* has a whole update that it has not loaded */
	bool start_unknown;                /* whether the update was staged for this start of it */
	/* percent of its bytes that its checksums have proven in this run; < 0: none */
	double coverage;
	struct ws_ev_proof proof;          /* bytes 0: its own checksums were not compared */
	size_t not_covered; /* by it, because nothing was sent */
	int64_t paused_since, paused_ns;   /* of this run's pause; 0: it did not pause */
	enum push_scope scope;
	bool slept;        /* a run found memory released, and not all is back yet */
	unsigned asleep;   /* enum ws_memory: still released */
	unsigned unsure;   /* the same: a request to wake it was not answered */
	/* as the record said that this run has cleaned up; instance: of that start, or 0 */
	struct {
		unsigned asleep, unsure;
		uint64_t instance;
	} cleaned;
	bool recorded;     /* a record says which memory is released, or unsure: */
	unsigned recorded_asleep, recorded_unsure;
	bool hand_paused;  /* wsync-ctl has paused it, as far as is recorded */
	char message[256]; /* its last message for the report */
	char left[128];    /* how an earlier push left it; "": whole, as far as is recorded */
};

/* One request to some of the endpoints. The arrays have room for all of them. */
struct push_call {
	size_t n;
	const char **urls;
	size_t *index;                      /* urls[k] is endpoint index[k] */
	struct ws_endpoint_answer *answers; /* answers[k] is that of urls[k] */
	const struct ws_endpoint_info **infos; /* infos[k] is that of urls[k] */
};

/* All endpoints: each array has opts.n_endpoints items, in the order of the options. They are
 * separate arrays where a function of a lower layer fills one array at once. */
struct push_targets {
	struct push_endpoint *endpoints;
	struct ws_endpoint_info *infos;
	struct ws_member *members;             /* their ranks, and the results of joining */
	struct ws_err *errs;                   /* of the last request to all endpoints */
	struct ws_ev_endpoint_result *results; /* the results of the last run */
	struct ws_name_check_target *listed;   /* the tensors of each endpoint */
	size_t n_listed;                       /* 0: not requested yet */
	struct push_call call;                 /* the last one */
	bool known;                            /* infos are filled */
	bool probed;                           /* infos were filled in this run */
	const char *twin;                      /* may be the same server as another URL; NULL */
};

/* ---- push_targets.c ---- */

/* Allocates the arrays for p->opts.n_endpoints. */
int push_targets_open(struct ws_push *p, struct ws_err *err);
void push_targets_close(struct ws_push *p);
/* Starts a call without endpoints; push_call_add adds endpoint i. */
struct push_call *push_call_new(struct ws_push *p);
void push_call_add(struct ws_push *p, size_t i);
/* Starts a call to the endpoints for which wanted returns true (NULL: all). Returns how many. */
size_t push_select(struct ws_push *p, bool (*wanted)(const struct push_endpoint *));
/* The call that was started and selected, for a function of lib/client. */
struct ws_call push_call_made(const struct ws_push *p, ws_deadline until,
                              const struct ws_cancel *cancel);
/* Records whether the connection broke, or a deadline passed without an answer. */
void push_note_failure(struct ws_push *p, size_t i, const struct ws_err *said);
/* The deadline of a clean-up step that may take `most`: short if an endpoint is silent. */
ws_deadline push_cleanup_deadline(const struct ws_push *p, int64_t most);

/* ---- push_connect.c ---- */

/* Detects the servers, unless an earlier run did and its group still exists. */
int push_connect(struct ws_push *p, struct ws_err *err);
/* The endpoint as a member of a group; borrows both. */
struct ws_member push_member_of(const char *url, const struct ws_endpoint_info *info);
/* -1: the ranks of this endpoint cannot be in a group. */
int push_check_ranks(const struct ws_endpoint_info *info, struct ws_err *err);
/* Checks the plan against the data plane and the options. */
int push_check_plan(struct ws_push *p, struct ws_err *err);

/* ---- push_choose.c: the protocol ---- */

const struct ws_capabilities *push_can(const struct ws_push *p, size_t i);
/* Sets p->protocol: the one from the options, or the first that all endpoints support. */
int push_choose(struct ws_push *p, struct ws_err *err);
const struct push_protocol *push_protocol_asked(enum ws_protocol asked);
/* Before the plan exists, it assumes buckets without mixed dtypes. */
enum ws_load_format push_choose_format(const struct ws_push *p);
/* Do all endpoints take the tensors of the plan in its format and order, wherever its buckets are
 * cut? Some take flattened buckets of one dtype only. */
bool push_takes_any_buckets(const struct ws_push *p);
/* Checks protocol, load format, version and --verify of this plan at these endpoints. */
int push_legal(struct ws_push *p, struct ws_err *err);

/* ---- push_rules.c: pause and flush ---- */

/* Returns the option's value, or never if no endpoint has a cache to flush. */
enum ws_push_flush push_flush_when(const struct ws_push *p);
/* Will any endpoint flush, with or without a request to? */
bool push_flushes(const struct ws_push *p);
/* -1: this endpoint does not support this pause, or not together with this flush. */
int push_refuse_pause(const struct ws_push *p, size_t i, bool idle, struct ws_err *err);

/* ---- push_pause.c ---- */

int push_pause(struct ws_push *p, struct ws_err *err);
int push_flush(struct ws_push *p, struct ws_err *err);
/* Flushes servers that loaded the new weights but found requests when they were to flush. -1: at
 * least one still could not; its weights are committed all the same. */
int push_flush_again(struct ws_push *p, struct ws_err *err);
/* After the weights: clears what a flush leaves, fills `caches` and warns of old ones. -1:
 * cancelled, or a system error. */
int push_clear_caches(struct ws_push *p, struct ws_err *err);
/* The same as push_flush_again, once, after the push has failed elsewhere. */
void push_flush_undo(struct ws_push *p);
/* Resumes every paused endpoint that is not left paused on purpose. Has deadlines of its own and
 * cannot be cancelled. -1: an endpoint was not resumed; there was a warning about it. */
int push_resume(struct ws_push *p, struct ws_err *err);
/* Call it after an error at an endpoint that has all weights. If the server is gone, its weights
 * are lost, and a server that replaces it has others. */
void push_note_gone(struct ws_push *p, size_t i, const struct ws_err *why);

/* ---- push_twins.c: do two URLs lead to one server? ---- */

/* -1: they do, or the push was cancelled. */
int push_twins(struct ws_push *p, struct ws_err *err);
/* After the group did not form: warns about an endpoint that may be listed twice. */
void push_twins_suspect(struct ws_push *p);

/* ---- push_others.c: does another push change these endpoints? ----
 * -1: yes, or an endpoint did not answer. */

/* Warns about endpoints that are paused, but not by a push that is recorded here. */
int push_others_connect(struct ws_push *p, struct ws_err *err);
/* Right before our pause: is an endpoint that was found paused still paused? */
int push_others_recheck(struct ws_push *p, struct ws_err *err);
/* After an endpoint refused to begin an update: adds a hint if another update is open there. */
void push_others_refused(struct ws_push *p, struct ws_err *err);
/* Another push or operator has paused it, and this push has changed nothing there. If this push
 * resumed it, it would serve in the middle of the other push. */
bool push_others_stopped(const struct push_endpoint *e);
/* After a failure: endpoints for which push_others_stopped is true stay paused. */
void push_others_leave(struct ws_push *p);
/* Checks once the endpoints are paused. */
int push_others_begin(struct ws_push *p, struct ws_err *err);
/* Sets the weight version, between two checks. An endpoint that another push or an operator changed
 * becomes partial. */
int push_others_end(struct ws_push *p, struct ws_err *err);

/* ---- push_instance.c: are the endpoints still the servers that were detected? ----
 * -1: *err names the endpoint that is not; it becomes partial. */

/* After they were detected: does each URL lead to one server? Nothing has changed there. */
int push_roll_call(struct ws_push *p, struct ws_err *err);
int push_check_instances(struct ws_push *p, struct ws_err *err); /* before the last bucket */
int push_check_end(struct ws_push *p, struct ws_err *err);       /* after resuming; peers too */

/* ---- push_in_step.c ---- */

/* Is endpoint i a vLLM? */
bool push_to_vllm(const struct ws_push *p, size_t i);

/* -1: the workers of a vLLM answer earlier requests, or it is inside the update of another push. */
int push_in_step(struct ws_push *p, struct ws_err *err);
/* Layers of this vLLM may hold parts of an earlier update. Only before our first request that
 * changes the server. */
bool push_may_hold_parts(const struct ws_push *p, size_t i);
/* Keeps that in `holds_parts` of all endpoints. */
void push_note_parts(struct ws_push *p);
/* Finishes the updates of dead pushes. Incomplete layers become those that the server has, so this
 * push must send everything. */
int push_finish_left_open(struct ws_push *p, ws_deadline until, struct ws_err *err);

/* ---- push_files.c: may this process open enough descriptors? ---- */

int push_check_files(const struct ws_push *p, struct ws_err *err);       /* for all endpoints */
int push_check_ranks_files(const struct ws_push *p, struct ws_err *err); /* for all ranks */

/* ---- push_wake.c: memory that servers have released ---- */

/* Memory of the endpoint is still released, or its weights are not back. */
bool push_is_asleep(const struct push_endpoint *e);
/* Is some of its memory released, or may it be? Then a prompt may crash it. */
bool push_lacks_memory(const struct push_endpoint *e);
/* Their resumes were answered: pauses by wsync-ctl are over. */
void push_note_resumed(struct ws_push *p);
/* Takes what records say of the memory of the servers, once they are known. */
void push_read_memory(struct ws_push *p);
/* said: ws_push_source.asleep. -1: it contradicts the records of an endpoint. */
int push_note_asleep(struct ws_push *p, unsigned said, struct ws_err *err);
/* -1: a server says that it sleeps, and this push does not wake it. */
int push_check_awake(const struct ws_push *p, struct ws_err *err);
int push_wake_weights(struct ws_push *p, struct ws_err *err);
/* Wakes the rest at the endpoints that will be resumed. ok: the run has not failed; then *err says
 * why waking failed. */
int push_wake_caches(struct ws_push *p, bool ok, struct ws_err *err);
/* Adds a hint to a failure that looks like released memory. */
void push_hint_asleep(struct ws_push *p, struct ws_err *err);

#endif
