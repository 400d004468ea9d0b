/* SPDX-License-Identifier: Apache-2.0 */
/* push_senders.h - several senders of one update: one after the other, by a lock and a round
 * (push_sender.c, push_round.c), or all in one group (push_leader.c, push_worker.c). */
#ifndef WS_PUSH_PUSH_SENDERS_H
#define WS_PUSH_PUSH_SENDERS_H

#include "round.h"
#include "senders.h"
#include "wsync/push.h"

struct push_leader;
struct ws_push;
struct ws_senders;

struct push_turn {
	struct push_leader *lead; /* one group, without turns: set at its first sender only */
	/* tensors and batches that the first sender asked for */
	size_t n_shared, n_batches;
	int fd;                 /* the senders' lock, held; -1 */
	char text[64];          /* "turn of sender 1 of 2", for messages */
	bool has_turn;          /* the senders' lock is held */
	bool in_round;          /* the last turn of this sender did not end its round */
	bool not_last;          /* other senders follow: no flush, no version */
	const char *version;    /* that the last turn sets; NULL: unknown */
	bool flush_too;         /* flush anyway: an abandoned round left its parts unflushed */
	bool anew;              /* a server lost parts: keep the round, without any turn */
	struct ws_round *round; /* of this turn, or of the last one; NULL: no turn yet */
	/* the last unfinished round with this lock that this process knows; NULL */
	struct ws_round *known_round;
	struct ws_parts parts;    /* of the round */
	struct ws_ev_round event; /* the round as an event */
	char event_text[512];
};

/* ---- push_sender.c: turns ---- */

/* Caps a lock wait at the push's remaining time. 0 means do not wait. */
int64_t push_lock_wait(const struct ws_push *p, int64_t wait);
/* Writes the printable ID of this run's round: --round, else the weight version, else "". */
int push_round_id(const struct ws_push *p, char id[WS_ROUND_ID], struct ws_err *err);
/* Waits for the turn of this sender. */
int push_sender_enter(struct ws_push *p, struct ws_err *err);
/* Adds this sender's tensors and servers to the round. Call it once there is a plan. */
int push_sender_part(struct ws_push *p, struct ws_err *err);
/* Ends the turn; ok: it counts. -1: it should count, but could not be written to the round. */
int push_sender_leave(struct ws_push *p, bool ok, struct ws_err *err);

/* ---- push_round.c: the senders' lock, and the round in its file ---- */

/* Takes the lock and reads p->turn.round and p->turn.parts. Also returns -1 if a round in which
 * others had a turn is lost. */
int push_round_take(struct ws_push *p, const char *id, int64_t wait, struct ws_err *err);
/* Begins the round `id` in p->turn.round, without any turn. */
void push_round_anew(struct ws_push *p, const char *id);
/* Releases the lock; keep: first writes p->turn.round and p->turn.parts. -1: they were not written;
 * the lock is released in any case. */
int push_round_drop(struct ws_push *p, bool keep, struct ws_err *err);

/* ---- push_leader.c: several senders of one group; this is the first ---- */

/* Do several senders send in one group? */
bool push_together(const struct ws_push *p);
/* How many ranks of the group send. The ranks of the endpoints follow. */
unsigned push_sending_ranks(const struct ws_push *p);
bool push_is_leader(const struct ws_push *p);
/* Collects each sender's list of tensors. The store is open. */
int push_leader_gather(struct ws_push *p, struct ws_err *err);
/* Writes each sender's share to the store. */
int push_leader_share(struct ws_push *p, struct ws_err *err);
/* Waits until all other senders have sent their shares and found their sources unchanged. */
int push_leader_sent(struct ws_push *p, struct ws_err *err);
/* Reports to all senders how the push ended, and waits a moment until they have read that. The
 * store is still open. */
void push_leader_end(struct ws_push *p, const struct ws_err *why);
/* The plan of all senders together; *have: the senders that have each tensor. Without other senders
 * it is the push's own plan, and *have is NULL. */
const struct ws_plan *push_leader_plan(const struct ws_push *p, const struct ws_senders **have);
/* The watch function of a group's wait: -1 once another sender has failed. */
int push_leader_watch(void *ctx, struct ws_err *err);
void push_leader_free(struct ws_push *p);

/* ---- push_worker.c: several senders of one group; this is another one ---- */

bool push_is_worker(const struct ws_push *p);
/* Does the whole run. */
int push_worker(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err);

#endif
