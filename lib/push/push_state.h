/* SPDX-License-Identifier: Apache-2.0 */
/* push_state.h - what the files of the push share: push.c (the life of a run), push_open.c
 * (before and after), push_report.c (what it says, and how long it takes), push_targets.c (the
 * endpoints of a call), push_plan.c (what is sent), push_group.c (to whom it is broadcast),
 * push_connect.c (who the endpoints are and what is legal), push_names.c (what the tensors are
 * called), push_fp8.c (who keeps FP8), push_values.c (what tensors are computed from),
 * push_transfer.c (buckets), push_ready.c (buckets made beforehand), push_protocol.h (how they
 * get into servers), push_sender.c and push_round.c (turns of several), push_lead.c and
 * push_follow.c (several at once), push_verify.c (hashes), push_trace.c (when what ran),
 * push_ledger.c (what stays written down, and who else may push), push_complete.c (was an
 * earlier push completed?), push_others.c (who else pushes), push_twins.c (two names of one
 * server), push_instance.c (are they still the same servers?), push_guard.c (ends a push that
 * hangs in a file system), push_files.c (descriptors). */
#ifndef WS_PUSH_STATE_H
#define WS_PUSH_STATE_H

#include "endpoint_call.h"
#include "explain.h"
#include "group.h"
#include "hashes.h"
#include "job.h"
#include "payloads.h"
#include "push_target.h"
#include "round.h"
#include "scatter.h"
#include "wsync/tool/audit.h"
#include "wsync/tool/ledger.h"
#include "wsync/push.h"

/* What an endpoint wants to hear around an update (push_brackets.c). */
enum push_bracket { PUSH_BRACKET_NONE, PUSH_BRACKET_SESSION, PUSH_BRACKET_PROCESS };

struct push_guard;
struct push_lead;

struct push_endpoint {
	const char *url;                   /* borrowed from the options */
	const struct push_weights weights; /* changed by push_target_event only */
	bool paused;                       /* by us, and not resumed yet */
	/* this run has sent the pause, and the server did not refuse it */
	bool paused_now;
	bool found_paused;                 /* perhaps, by a push that died */
	bool found_stopped;                /* paused when we came, by nobody known */
	bool left_paused;                  /* and so at the end, for the push of somebody else */
	bool told_pause;                   /* it said that it is paused, after our pause */
	bool grouped;                      /* it was asked to join, and has not left since */
	bool lost;                         /* its connection broke, */
	/* or a deadline passed without its answer: hardly waited for */
	bool silent;
	enum push_bracket bracket;
	/* it had released memory when a run began, and is not whole since */
	bool slept;
	unsigned asleep;                   /* enum ws_memory: and this is still released */
	char message[256];                 /* the last words worth reporting */
};

/* A run calls back here, for a caller that adds steps of its own (verify_reset.c). -1 ends
 * the run as any failure does. */
enum push_step {
	PUSH_STEP_PREPARE, /* the push may be made, and no endpoint is paused yet */
	/* the endpoints are paused and recorded as partial, and nothing was sent yet */
	PUSH_STEP_CHANGE,
	PUSH_STEP_JUDGE    /* everything was sent, and the endpoints are still paused */
};

/* The endpoints. The arrays have opts.n_endpoints items each, in the same order. */
struct push_targets {
	struct push_endpoint *endpoints;
	struct ws_endpoint_info *infos;
	struct ws_member *members;         /* ranks, and how joining went */
	struct ws_err *errs;               /* of the last request to all */
	struct ws_endpoint_answer *answers; /* of the last request to those in urls */
	struct ws_ev_endpoint_result *results;
	struct ws_audit_target *listed;    /* what each of them lists; n_listed 0: not asked yet */
	size_t n_listed;
	const char **urls;                 /* scratch: the endpoints a call goes to */
	size_t *index;                     /* scratch: urls[k] is endpoint index[k] */
	bool *flags;                       /* scratch */
	bool known;                        /* infos are filled, */
	bool probed;                       /* and that in this run */
	const char *twin;                  /* may be one server with another one; NULL: none is */
};

/* What is sent (push_plan.c). */
struct push_material {
	struct ws_input input;
	struct ws_plan *plan;
	const struct ws_push_source *source; /* the caller's */
	char name[1024];                   /* of the source */
	const char *weight_version;
	bool all_names;                    /* nothing was included or excluded */
	struct ws_config *server; /* of an endpoint that keeps FP8, by which tensors are chosen */
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
	bool spoilt;                       /* a transfer was begun and not finished */
	/* a source changed in use, or a sender failed: commits are withdrawn */
	bool torn;
	bool incomplete;                   /* nothing but push_complete has failed */
	bool label_told;                   /* which weight versions stay */
	struct ws_err failure;             /* what *result->err points to */
};

/* Of several senders (senders/). */
struct push_turn {
	/* of several senders of one group, when we are the first; NULL */
	struct push_lead *lead;
	/* tensors and batches that another sender asked us for */
	size_t n_shared, n_batches;
	int fd;                            /* the senders' lock, held; -1 */
	char text[64];                     /* "turn of sender 1 of 2", for sentences */
	bool has_turn;                     /* the senders' lock is held */
	bool in_round;                     /* our last turn did not end its round */
	bool not_last;                     /* others have still to come: no flush, no version */
	/* but a flush: a round before was abandoned, and none flushed its parts */
	bool flush_too;
	bool anew;              /* the round was lost by a server, and is kept without any turn */
	struct ws_round *round; /* of this turn, or of the last one; NULL: there was none */
	struct ws_round
		*known_round; /* the last half round with this lock that is known here; NULL */
	struct ws_parts parts;             /* of the round */
	struct ws_ev_round event;          /* the same for events */
	char event_text[512];
};

/* Locks and records (push_ledger.c). */
struct push_recovery {
	struct ws_ledger
		*ledger; /* record of this run, or of the last one while its group is kept; NULL */
	struct ws_ledger_list
		left; /* what earlier runs left, as far as no file says it */
	bool unrecorded;                   /* records were to be written and cannot be */
	struct ws_locks *locks;            /* of the endpoints; NULL: there are none to be had */
	bool claimed;                      /* no other push is known to be at work there */
	bool recorded;                     /* this run has recorded its plan */
	bool contradicts;                  /* if it is not recorded, wsync-ctl repair goes by the
	                                    * record of an earlier push, and resumes or wakes what
	                                    * this run leaves */
	bool heir;                         /* earlier pushes left something at our endpoints */
	int64_t heir_began;                /* when the last of these began, by its clock; 0: none */
	enum ws_asleep asleep_as; /* is the memory that its source lists as released refused? Else
	                             pending */
};

/* What is compared, before and afterwards. */
struct push_checks {
	struct ws_audit names;             /* of all endpoints together (push_names.c) */
	struct ws_hashes hashes;           /* push_verify.c */
	struct ws_job values;              /* looks at values, in the background (push_values.c) */
	struct ws_cancel stop_values;
	bool on_values;
};

/* Who follows the push. */
struct push_watch {
	struct ws_explain *explain;        /* what is waited for, and why it does not come */
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

/* push_plan.c */
void push_name_source(struct ws_push *p, const struct ws_push_source *s);
/* Opens the source and plans its buckets, once the servers are known. A source without a config is
 * of the model that the servers run, if their config can be read here; --quantize makes FP8 of
 * what they keep in FP8; buckets are flattened if all servers take that. */
int push_make_plan(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err);
void push_emit_plan(struct ws_push *p);
/* The most of a GPU that one of the plan's buckets takes. */
uint64_t push_largest_box(const struct ws_push *p);

/* push_group.c */
/* What left may come back as something else, so its endpoints are then asked anew who they are. */
void push_leave_dead_group(struct ws_push *p);
/* for the record: nobody hears of it yet */
int push_name_group(struct ws_push *p, struct ws_err *err);
int push_init_group(struct ws_push *p, struct ws_err *err);
void push_drop_group(struct ws_push *p); /* with the endpoints; there is one */
uint64_t push_sent(const struct ws_push *p); /* payload bytes of the group, since it formed */
int64_t push_first_byte(const struct ws_push *p); /* from the start of the run; 0: none has left */

/* push.c */
void push_forget_run(struct ws_push *p); /* what belongs to a run */
const char *push_verify_name(const struct ws_push *p); /* of the option */
/* After an error on the way to an endpoint that has everything: where it is not there any more,
 * its weights are not either, and what comes back in its place has others. */
void push_note_gone(struct ws_push *p, size_t i, const struct ws_err *why);

/* push_report.c */
enum { PUSH_CLEAN_UP_S = 10 }; /* after a failure, for each phase */
void push_enter(struct ws_push *p, enum ws_phase phase); /* the phase before has ended */
/* So much of the phase transfer was not for sending: servers loaded what they had got. */
void push_applied(struct ws_push *p, int64_t ns);
void push_emit(struct ws_push *p, const struct ws_event *ev);
void push_warn(struct ws_push *p, const char *url, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* push_targets.c */
/* Notes whether a connection broke, or a deadline passed without an answer. */
void push_note_silence(struct ws_push *p, size_t i, const struct ws_err *said);
/* What clean-up may take that may take `most`: hardly anything where an endpoint is silent. */
ws_deadline push_patience(const struct ws_push *p, int64_t most);
/* Collects the endpoints that pass into urls/index; returns how many. */
size_t push_select(struct ws_push *p, bool (*wanted)(const struct push_endpoint *));

/* push_trace.c */
void push_trace_run(struct ws_push *p);   /* begins, */
void push_trace_phase(struct ws_push *p); /* has come to a phase, */
void push_trace_over(struct ws_push *p, const struct ws_ev_end *r); /* and is over */
void push_trace_leave(struct ws_push *p); /* its group ends */
void push_trace_left(struct ws_push *p);
/* Bucket or batch b of n, until its end: a span, with which the trace is told where the push is. */
uint64_t push_trace_bucket(struct ws_push *p, size_t b, size_t n);
void push_trace_bucket_end(struct ws_push *p, uint64_t span, uint64_t bytes, int rc,
                           const struct ws_err *err);
/* What is over now and began then: servers loaded what they got; bytes left that no data plane
 * sent. */
void push_trace_apply(struct ws_push *p, size_t b, int64_t since);
void push_trace_posted(struct ws_push *p, const char *of, size_t b, int64_t since, uint64_t bytes);

/* push_guard.c: without a guard these do nothing */
int push_guard_open(struct ws_push *p, struct ws_err *err);
void push_guard_close(struct ws_push *p);
/* The guard watches the calling thread from now on, or no longer. */
void push_guard_watch(struct ws_push *p, bool on);
/* The thread is not hung, and the guard copies the state of the push. To be called before a
 * request or a byte leaves and before anything that may block, once the state says what that may
 * change. Does not return once the guard has taken over. */
void push_alive(struct ws_push *p);
/* Likewise; and `due` is the deadline of what begins now, until the next such call. */
void push_alive_until(struct ws_push *p, ws_deadline due);

/* push_hang.c */
int push_hang_open(struct ws_push *p, struct ws_err *err);
void push_hang_phase(struct ws_push *p);  /* the phase has just begun */

/* push_connect.c */
int push_connect(struct ws_push *p, struct ws_err *err);  /* probe and check, once */
/* can it be in a group? */
int push_check_ranks(const struct ws_endpoint_info *info, struct ws_err *err);
/* the plan against transport and options */
int push_check_plan(struct ws_push *p, struct ws_err *err);
int push_pause(struct ws_push *p, struct ws_err *err);
int push_flush(struct ws_push *p, struct ws_err *err);
/* Tells every endpoint that is paused to continue; has deadlines of its own and cannot be
 * cancelled. -1: one of them did not agree, and is warned about. */
int push_resume(struct ws_push *p, struct ws_err *err);

/* push_twins.c: -1: two URLs lead to one server, or cancelled */
int push_twins(struct ws_push *p, struct ws_err *err);
/* the group did not form: names one that may have come twice */
void push_twins_suspect(struct ws_push *p);

/* push_others.c: is somebody else at work there? -1: yes, or an endpoint did not answer */
int push_others_connect(struct ws_push *p, struct ws_err *err); /* warns */
/* Right before our pause: is an endpoint that was found paused still paused? */
int push_others_recheck(struct ws_push *p, struct ws_err *err);
/* the begin of an update was: why? */
void push_others_refused(struct ws_push *p, struct ws_err *err);
/* Somebody else has paused it, and this push has changed nothing there. If this push resumed it,
 * it would answer in the middle of another push. */
bool push_others_stopped(const struct push_endpoint *e);
void push_others_leave(struct ws_push *p); /* the run failed: such endpoints stay paused */
int push_others_begin(struct ws_push *p, struct ws_err *err);   /* the endpoints are paused */
/* ours: our weight version is set. An endpoint at which somebody was at work is partial. */
int push_others_check(struct ws_push *p, bool ours, struct ws_err *err);
/* sets the weight version, between checks */
int push_others_end(struct ws_push *p, struct ws_err *err);
/* push_instance.c: are the endpoints still the servers that push_connect asked? -1: *err says
 * which is not, and it is partial */
int push_check_instances(struct ws_push *p, struct ws_err *err); /* in the middle */
/* after they were resumed; of the group's peers too */
int push_check_end(struct ws_push *p, struct ws_err *err);

/* push_files.c: may this process open what is needed for so many endpoints, and, once they
 * are known, for their ranks? */
int push_check_files(const struct ws_push *p, struct ws_err *err);
int push_check_ranks_files(const struct ws_push *p, struct ws_err *err);

/* push_ledger.c: one record for each run that may change endpoints. The next run of this process
 * knows of what this one left by its record only, as any other process does */
/* What a record would say of this endpoint now, but for the URL. */
struct ws_ledger_endpoint;
void push_describe(const struct ws_push *p, size_t i, struct ws_ledger_endpoint *out);
/* Takes the endpoints for ourselves, and their troubles with them: what dead pushes left there. */
int push_claim(struct ws_push *p, struct ws_err *err);
/* What a dead push paused and we found or made whole is ours to resume. */
void push_take_over_pauses(struct ws_push *p);
void push_release(struct ws_push *p, bool ok); /* the run is over */
/* Writes down what the phase that was just entered may do, before anything of it is done. */
int push_record(struct ws_push *p, struct ws_err *err);
/* Likewise, and what is pushed, before the endpoints are asked to join a group. */
int push_record_begin(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err);
/* The record is in a file, where wsync-ctl repair finds it. */
bool push_has_record(const struct ws_push *p);
void push_record_end(struct ws_push *p); /* the push is over */
/* Of a mixture, where the failure has no hint of its own. */
void push_name_remedy(const struct ws_push *p, struct ws_err *err);

/* push_complete.c: an endpoint that an earlier push left partial is committed only
 * by a push that completes it */
struct ws_ledger_sent;
/* what this run sends; there is a plan */
void push_load(const struct ws_push *p, struct ws_ledger_sent *out);
/* everything of this run, whatever other parts it lacks */
bool push_has_all(const struct push_endpoint *e);
/* Judges the endpoints that have all of this run. -1: one of them stays partial, and *err is
 * WS_EPARTIAL. To be called as soon as an endpoint is committed, and for the error again
 * later, with the same outcome. */
int push_complete(struct ws_push *p, struct ws_err *err);

/* push_rules.c */
/* As the options say, or never where no endpoint has anything to flush. */
enum ws_push_flush push_flush_when(const struct ws_push *p);
bool push_flushes(const struct ws_push *p); /* does any of them flush, told to or not? */
/* -1: this pause and this flush do not go together at this endpoint. */
int push_refuse_pause(const struct ws_push *p, size_t i, bool idle, struct ws_err *err);

/* push_wake.c */
/* it has released memory, or its weights are not back */
bool push_is_asleep(const struct push_endpoint *e);
/* said: ws_push_source.asleep. -1: it contradicts what is known of an endpoint. */
int push_note_asleep(struct ws_push *p, unsigned said, struct ws_err *err);
int push_wake_weights(struct ws_push *p, struct ws_err *err);
/* The rest, of those that are to be resumed. ok: the run has not failed,
 * and *err says why this did. */
int push_wake_caches(struct ws_push *p, bool ok, struct ws_err *err);
void push_hint_asleep(struct ws_push *p, struct ws_err *err); /* where a failure looks like sleep */

/* push_lock.c: waits for a lock of somebody else, in pieces: after each a line says who has it */
struct push_wait {
	int64_t since, told, most, pace;
	ws_deadline until;
};
void push_wait_begin(struct push_wait *w, int64_t most);
/* How long the next piece may last: never 0, which would be no wait. */
int64_t push_wait_piece(const struct push_wait *w);
/* The piece is over, and so: "turn of sender 1 of 2: process 7 is still at work on it". false:
 * so is the wait, and the sentence says how long it was. */
bool push_wait_on(struct ws_push *p, struct push_wait *w, struct ws_err *so);

/* push_sender.c: turns of several senders */
/* How long another is waited for, who may for `wait`: no longer than the push may take. 0 stays
 * 0. */
int64_t push_lock_wait(const struct ws_push *p, int64_t wait);
/* The ID of the round of this run: --round, else the weight version; "" without either.
 * Printable. */
int push_round_id(const struct ws_push *p, char id[WS_ROUND_ID], struct ws_err *err);
int push_sender_enter(struct ws_push *p, struct ws_err *err); /* waits for ours */
/* notes what is sent to whom; the plan is made */
int push_sender_part(struct ws_push *p, struct ws_err *err);
/* ok: our turn counts. -1: it was to count, but the other senders cannot know of it. */
int push_sender_leave(struct ws_push *p, bool ok, struct ws_err *err);

/* push_round.c: the lock of the senders, and the round with it */
/* Fills p->turn.round and p->turn.parts. -1 is also that a round in which others had a
 * turn is not there any more. */
int push_round_take(struct ws_push *p, const char *id, int64_t wait, struct ws_err *err);
void push_round_anew(struct ws_push *p,
                     const char *id); /* p->turn.round has this ID, and nobody had a turn */
/* keep: p->turn.round and p->turn.parts stand there from now on. -1: they do not; the
 * lock is free in any case. */
int push_round_drop(struct ws_push *p, bool keep, struct ws_err *err);

/* push_lead.c: several senders of one group. We are the first */
bool push_together(const struct ws_push *p); /* is it that at all? */
bool push_leads(const struct ws_push *p);
int push_lead_gather(struct ws_push *p, struct ws_err *err); /* what each has; the store is open */
int push_lead_share(struct ws_push *p, struct ws_err *err);  /* tells each what to send */
/* Waits until each of the others has sent its share and found its source unchanged. */
int push_lead_sent(struct ws_push *p, struct ws_err *err);
/* Tells all how it ended, and waits a moment for them to have read it. The store is still open. */
void push_lead_end(struct ws_push *p, const struct ws_err *why);
/* What all of them have together and who has it; without others it is the push's own, and NULL. */
const struct ws_plan *push_lead_plan(const struct ws_push *p, const struct ws_senders **have);
int push_lead_watch(void *ctx, struct ws_err *err); /* of a ws_together: has one of them failed? */
void push_lead_free(struct ws_push *p);

/* push_follow.c: or another */
bool push_follows(const struct ws_push *p);
int push_follow(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err); /* a run */

/* push_names.c */
int push_names(struct ws_push *p, struct ws_err *err);
int push_find_targets(struct ws_push *p, struct ws_err *err); /* asks, where nobody did */
void push_names_forget(struct ws_push *p); /* the endpoints may be others now */

/* push_fp8.c */
/* Sets p->from.server for a push that quantizes. */
void push_find_server(struct ws_push *p);
int push_check_fp8(struct ws_push *p, struct ws_err *err);  /* can all of them take what is sent? */

/* push_shown.c */
enum push_shown { SHOWN_NOTHING, SHOWN_SCALES, SHOWN_NO_SCALES };
/* Has it scales of FP8 blocks, of one of the weights of the plan? -1: cancelled, or the system. */
int push_ask_scales(struct ws_push *p, const struct ws_endpoint_info *info, enum push_shown *out,
                    struct ws_err *err);

/* push_values.c */
/* Adds the memory of a GPU, and pinned memory, that looking takes. */
void push_values_memory(const struct ws_push *p, uint64_t *gpu, uint64_t *pinned);
int push_values_begin(struct ws_push *p, struct ws_err *err); /* in the background */
int push_values(struct ws_push *p, struct ws_err *err);       /* waits for it */
void push_values_end(struct ws_push *p);                    /* drops what is not done */

/* push_transfer.c */
int push_transfer(struct ws_push *p, struct ws_err *err);
/* -1: a source has changed since it was opened, and `torn` is set. Once --disk-dir has its copy,
 * which was checked before it was published, the source no longer matters: 0. */
int push_check_sources(struct ws_push *p, struct ws_err *err);

/* push_verify.c */
int push_hash_begin(struct ws_push *p, struct ws_err *err); /* in the background */
void push_hash_end(struct ws_push *p);                      /* drops what is not done */
int push_verify_can(struct ws_push *p, struct ws_err *err);
int push_verify(struct ws_push *p, struct ws_err *err);
int push_set_version(struct ws_push *p, struct ws_err *err);

#endif
