/* SPDX-License-Identifier: Apache-2.0 */
/* push_recovery.h - locks and records: who may push, and what a push that dies leaves behind. */
#ifndef WS_PUSH_RECOVERY_H
#define WS_PUSH_RECOVERY_H

#include "push_servers.h"
#include "wsync/tool/journal.h"

struct ws_journal_endpoint;
struct ws_journal_sent;
struct ws_push;

struct push_recovery {
	/* record of this run, or of the last one while its group is kept; NULL */
	struct ws_journal *journal;
	struct ws_journal_list left; /* what earlier runs left and no file says */
	bool unrecorded;            /* records should be written and cannot be */
	struct ws_locks *locks;     /* of the endpoints; NULL: none are to be had */
	bool claimed;               /* no other push is known to be at work there */
	bool recorded;              /* this run has recorded its plan */
	/* Without a record of this run, wsync-ctl repair would go by that of an earlier push, and
	 * resume or wake what this run leaves. */
	bool contradicts;
	bool adopts_stale;   /* earlier pushes left something at our endpoints */
	int64_t stale_began; /* when the last of these began, by its clock; 0: none */
	/* Is the memory refused that the source lists as released? Else it is pending. */
	enum ws_asleep asleep_as;
};

/* ---- push_journal.c: one record for each run that may change endpoints ----
 * The next run of this process knows what this one left from its record only, as any other
 * process does. */

/* Locks the endpoints, and adopts what dead pushes left there. */
int push_lock_endpoints(struct ws_push *p, struct ws_err *err);
/* Unlocks them: the run is over. */
void push_unlock_endpoints(struct ws_push *p, bool ok);
/* Makes endpoints ours to resume that a dead push paused and that are whole. */
void push_take_over_pauses(struct ws_push *p);
/* Records the phase that was just entered, before anything of it is done. */
int push_record(struct ws_push *p, struct ws_err *err);
/* Likewise, with what is pushed, before the endpoints are asked to join a group. */
int push_record_begin(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err);
/* Is the record in a file, where wsync-ctl repair finds it? */
bool push_has_record(const struct ws_push *p);
/* The push is closed. */
void push_record_end(struct ws_push *p);
/* What a record would say of this endpoint now, except for the URL. */
void push_describe(const struct ws_push *p, size_t i, struct ws_journal_endpoint *out);
/* Adds the remedy to the failure of a push that leaves a mixture, unless it has a hint already. */
void push_name_remedy(const struct ws_push *p, struct ws_err *err);

/* ---- push_complete.c ----
 * An endpoint that an earlier push left partial is committed only by a push that completes it. */

/* What this run sends. There is a plan. */
void push_describe_sent(const struct ws_push *p, struct ws_journal_sent *out);
/* It has everything of this run, whatever other parts it lacks. */
bool push_has_all(const struct push_endpoint *e);
/* Decides about the endpoints that have all of this run. -1: one of them stays partial, and *err
 * is WS_EPARTIAL. Call it as soon as an endpoint is committed, and again later for the error: the
 * outcome is the same. */
int push_complete(struct ws_push *p, struct ws_err *err);

/* ---- push_lock.c: waits in pieces for another process, and reports after each who it is ---- */

struct push_wait {
	int64_t since, told, most, pace;
	ws_deadline until;
};
void push_wait_begin(struct push_wait *w, int64_t most);
/* How long the next piece may last. Never 0, which would be no wait. */
int64_t push_wait_piece(const struct push_wait *w);
/* Call after each piece; *so says who is waited for. Returns false once the total wait is used up,
 * and adds the waited time to *so. */
bool push_wait_on(struct ws_push *p, struct push_wait *w, struct ws_err *so);

#endif
