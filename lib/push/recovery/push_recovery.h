/* SPDX-License-Identifier: Apache-2.0 */
/* push_recovery.h - locks against other pushes, and records of what a dead push leaves. */
#ifndef WS_PUSH_RECOVERY_H
#define WS_PUSH_RECOVERY_H

#include "push_servers.h"
#include "wsync/tool/history.h"
#include "wsync/tool/journal.h"

struct ws_journal_endpoint;
struct ws_journal_sent;
struct ws_push;

struct push_recovery {
	/* record of this run, or of the last one while its group is kept; NULL */
	struct ws_journal *journal;
	struct ws_journal_list left; /* states that earlier runs left and no file has */
	bool unrecorded;            /* records should be written, but cannot be */
	struct ws_locks *locks;     /* of the endpoints; NULL: there are no locks */
	unsigned kept;              /* ws_locks_keep, while the group of a run is kept; 0: none */
	bool claimed;               /* no other push is known to work at the endpoints */
	bool recorded;              /* this run has recorded its plan */
	/* Without a record of this run, wsync-ctl repair would use that of an earlier push, and
	 * resume or wake endpoints that this run leaves. */
	bool contradicts;
	bool adopts_stale;   /* earlier pushes left records of our endpoints */
	int64_t stale_began; /* when the last of these began, by its clock; 0: none */
	/* the result for the source's list of released memory, until the run is recorded */
	enum ws_asleep asleep_as;
	enum ws_stage stage; /* of a run that stages or completes an update */
	enum ws_open_update staged_as;
	struct ws_journal_list staged_list; /* of a completion; it owns `staged` */
	struct ws_journal_entry *staged;    /* the update that this run completes; NULL: none */
	uint64_t history_id; /* of the lines of this run in the history; 0: they were not written */
	bool ends_staged; /* earlier runs left staged updates, which this push ends */
};

/* ---- push_journal.c: one record for each run that may change endpoints ----
 * Like any other process, the next run of this process learns the state that this run left from the
 * record only. */

/* Locks the endpoints, and adopts what dead pushes left there. */
int push_lock_endpoints(struct ws_push *p, struct ws_err *err);
/* Unlocks the endpoints at the end of the run. */
void push_unlock_endpoints(struct ws_push *p, bool ok);
/* Locks endpoint i for a moment between two runs. False: another push has it, or has had it since
 * the last run. The caller drops *out in both cases. */
bool push_lock_again(const struct ws_push *p, size_t i, struct ws_locks **out);
/* With the locks: has another push had endpoint i since the last run, whose group is kept? */
bool push_was_locked(const struct ws_push *p, size_t i);
/* Marks endpoints that a dead push paused as ours to resume, if they are whole. */
void push_take_over_pauses(struct ws_push *p);
/* Records the phase that was just entered. Call it before its first request. */
int push_record(struct ws_push *p, struct ws_err *err);
/* Also records the source, before the endpoints are asked to join a group. */
int push_record_begin(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err);
/* Notes why the run failed: wsync-ctl repair --again does not repeat what a server refused. */
void push_record_failure(struct ws_push *p, const struct ws_err *err);
/* Is the record in a file, where wsync-ctl repair finds it? */
bool push_has_record(const struct ws_push *p);
/* Closes the record at the end of the push. */
void push_record_end(struct ws_push *p);
/* Fills in the record of this endpoint as it is now, except for the URL. */
void push_describe(const struct ws_push *p, size_t i, struct ws_journal_endpoint *out);
/* Adds a hint to *err if endpoints are left partial or released, unless *err has a hint. */
void push_name_remedy(const struct ws_push *p, struct ws_err *err);

/* ---- push_history.c ---- */

/* Notes that this run will change the weights of the endpoints, and how it has ended. Call them
 * with the locks; without them they do nothing. */
void push_history_begin(struct ws_push *p);
void push_history(struct ws_push *p, bool ok, const struct ws_err *err);
/* Has a push that is no turn of our round changed the weights of endpoint i since it began? */
bool push_history_intrudes(const struct ws_push *p, const struct ws_history *h, size_t i);

/* ---- push_staged.c: updates that servers receive now and load later ---- */

/* For {stage}: -1: an endpoint has such an update, or an earlier push left it unfinished. Call it
 * once the servers are known. */
int push_stage_check(struct ws_push *p, struct ws_err *err);
/* Everything has arrived; false: that could not be recorded. */
void push_stage_done(struct ws_push *p, bool done);
/* For {complete}: finds the update that the endpoints have, and the protocol to complete it. */
int push_staged_find(struct ws_push *p, struct ws_err *err);
/* -1: a file of the source is not one that was staged. The digest does not cover its bytes. */
int push_staged_files(const struct ws_push *p, struct ws_err *err);
/* Moves the endpoints from that record to the record of this run, which must be saved. */
int push_staged_take(struct ws_push *p, struct ws_err *err);
/* -1: an endpoint is not the server that the update was staged for. Warns about those that got
 * another weight version since. */
int push_staged_check(struct ws_push *p, struct ws_err *err);
/* After a failure: sets the version of the endpoints that have loaded their update. */
void push_staged_label(struct ws_push *p);
/* The endpoint has loaded its update, or has none any more. */
void push_staged_over(struct ws_push *p, size_t i);
/* Asks endpoints that have loaded their update to leave its group. */
void push_staged_leave(struct ws_push *p);
void push_staged_forget(struct ws_push *p);
/* Has the record a staged update at one of our endpoints, finished or not? */
bool push_staged_has(const struct ws_push *p, const struct ws_journal_record *r);
/* -1: this push would end such an update without a pause. */
int push_staged_may_end(const struct ws_push *p, struct ws_err *err);
/* Ends the updates of earlier runs at the endpoints, which are paused. They may load them. */
int push_staged_end(struct ws_push *p, struct ws_err *err);
/* Writes the stage, as the record has it. */
void push_staged_describe(const struct ws_push *p, struct ws_journal_staged *out);

/* Removes the checkpoint that was written for a staged update, but not one that a server may have
 * loaded: later pushes to the same endpoints remove that. */
int push_remove_written(const struct ws_journal_record *r, struct ws_err *err);

/* ---- push_inherit.c: what earlier pushes left ---- */

/* Finds the endpoint of this push for the URL in a record: the exact URL, else another URL of the
 * same endpoint. n_endpoints: none. */
size_t push_find_endpoint(const struct ws_push *p, const char *url);
/* True for the record that this run writes. */
bool push_own_entry(const struct ws_push *p, const struct ws_journal_entry *entry);
/* Adopts the states in all records. Call it with the locks. */
void push_read_records(struct ws_push *p);
/* Once the servers are known: forgets what records say of earlier starts of them, and adopts
 * records that name them by other URLs. */
void push_match_records(struct ws_push *p);
/* The other URLs by which records name our endpoints, at most `most`. Returns how many. */
size_t push_aliases(const struct ws_push *p, const struct ws_journal_list *list, const char **urls,
                    size_t most);
/* Ends groups and updates that earlier pushes left open at our endpoints: they block this push. */
void push_clean_up(struct ws_push *p, struct ws_journal_entry *entry);

/* ---- push_complete.c ----
 * An endpoint that an earlier push left partial is committed only by a push that completes it. */

/* Describes the weights that this run sends. Call it once there is a plan. */
void push_describe_sent(const struct ws_push *p, struct ws_journal_sent *out);
/* True if the endpoint has everything of this run, even if other parts are missing. */
bool push_has_all(const struct push_endpoint *e);
/* Marks endpoints as partial if this run does not complete an earlier push. -1: there is one, and
 * *err is WS_EPARTIAL. Call it once endpoints are committed, and later again for the error: the
 * result is the same. */
int push_complete(struct ws_push *p, struct ws_err *err);

/* ---- push_lock.c: waits in pieces for another process, and names it in events ---- */

struct push_wait {
	int64_t since, told, most, pace;
	ws_deadline until;
};
void push_wait_begin(struct push_wait *w, int64_t most);
/* How long the next piece may last. Never 0, which would mean not to wait. */
int64_t push_wait_piece(const struct push_wait *w);
/* Call it after each piece; *so names the process that is waited for. Returns false once the total
 * wait is used up, and adds the waited time to *so. */
bool push_wait_on(struct ws_push *p, struct push_wait *w, struct ws_err *so);

#endif
