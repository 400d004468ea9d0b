/* SPDX-License-Identifier: Apache-2.0 */
/* deeds.h - what is known of a server's memory, and of pauses by wsync-ctl.
 *
 * Few servers report which memory they have released, and SGLang crashes if it is to wake memory
 * that is awake, or to write weights where none are mapped. So it is recorded: in the records of
 * pushes, and in records by hand, which wsync-ctl makes. All changes and all questions go through
 * here:
 *
 * - A deed is recorded before its request. From then on a pause is possible, and the memory unsure.
 *   The answer settles it: the deed was done, or refused, and then all is as it was before. Without
 *   an answer it stays unsure. Nobody wakes, fills or reads unsure memory, until the server was
 *   restarted, or the user says what is true (a list of --asleep or --tags; repair --forget).
 * - All records about the server change alike. The record of the push or repair that asks is its
 *   own matter; the others lose what the answer has settled.
 * - A record is about one start of a server. It says nothing about others.
 * - What is released or paused is forgotten only by a wake or a resume that was answered, or by
 *   another start. The end of a push, whatever became of it, forgets nothing.
 * - The server's own word counts more than a record: a vLLM says whether it sleeps, and may be
 *   woken twice, so its memory is never unsure. Where a server reports pauses, one by hand is over
 *   when it says that it runs.
 * - wsync-ctl holds the lock of the endpoint meanwhile, as a push does. Only a pause needs none:
 *   a push that is at work there has its own record. */
#ifndef WSYNC_DEEDS_H
#define WSYNC_DEEDS_H

#include "wsync/tool/journal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is known ---- */

struct ws_known {
	bool told;                /* a record of this start of the server tells of its memory */
	bool restarted;           /* only a record of an earlier start does */
	bool slept;               /* released, or woken and not filled again */
	bool kept_caches;         /* only caches, by hand: a push without a pause leaves them */
	unsigned asleep;          /* enum ws_memory: released */
	unsigned unsure;          /* a request to release or to wake it was not answered */
	const struct ws_journal_entry *paused; /* the last record of a pause; NULL: none */
	const struct ws_journal_entry *mixed;  /* the last one of incomplete weights; NULL */
	const char *mixture;      /* what it says of them, as the start of a sentence */
};
/* What this record of the server says of it, unless its own word says otherwise. */
struct ws_journal_endpoint ws_known_now(const struct ws_journal_entry *e,
                                        const struct ws_journal_endpoint *at,
                                        const struct ws_endpoint_info *info);
/* Adds what these records say of the server at this URL to *k, which begins as zeros; the last
 * record counts. info NULL: it was not asked just now. */
void ws_known_add(struct ws_known *k, const struct ws_journal_list *list, const char *url,
                  const struct ws_endpoint_info *info);
struct ws_known ws_known(const struct ws_journal_list *list, const char *url,
                         const struct ws_endpoint_info *info);
/* Has the server weights that can be read? If not, a request to read them may crash it. */
bool ws_known_readable(const struct ws_known *k, const struct ws_endpoint_info *info);
/* "its weights are released" and the like; NULL: nothing is wrong with its memory. */
const char *ws_known_memory(const struct ws_known *k, const struct ws_endpoint_info *info);

/* ---- deeds ---- */

enum ws_deed_what {
	WS_DEED_NONE,             /* the record says nothing of it; only locks */
	WS_DEED_PAUSE, WS_DEED_RESUME, WS_DEED_SLEEP, WS_DEED_WAKE
};
struct ws_deed {
	const char *url;
	const struct ws_endpoint_info *info; /* NULL: not detected */
	enum ws_deed_what what;
	unsigned memory;          /* enum ws_memory, of SLEEP and WAKE */
};
enum ws_outcome { WS_UNANSWERED, WS_DONE, WS_REFUSED };
/* What an answer says of the request that was to do it. */
enum ws_outcome ws_deed_outcome(const struct ws_endpoint_answer *a);

struct ws_deeds;
/* For wsync-ctl: takes the locks until ws_deeds_end. What is read and decided afterwards stays true
 * until ws_deeds_ask. Reads url and what of at[]; the rest may be set until ws_deeds_ask. at and
 * its strings must outlive *out. WS_EREFUSED: another process is at work there. */
int ws_deeds_lock(const char *state_dir, const struct ws_deed *at, size_t n, struct ws_deeds **out,
                  struct ws_err *err);
/* Records that the requests are about to be sent. -1: nothing may be sent. */
int ws_deeds_ask(struct ws_deeds *d, struct ws_err *err);
/* Records that these requests are about to be sent. own NULL: as ws_deeds_lock and
 * ws_deeds_ask, which make a record where none tells of it. Else a push or a repair asks, which
 * holds the locks, and whose record is at `own`. at and its strings must outlive *out. -1: nothing
 * may be sent. WS_EREFUSED: another process is at work there. */
int ws_deeds_begin(const char *state_dir, const char *own, const struct ws_deed *at, size_t n,
                   struct ws_deeds **out, struct ws_err *err);
/* Records what became of at[i]. -1: it could not be recorded. */
int ws_deeds_answered(struct ws_deeds *d, size_t i, enum ws_outcome outcome, struct ws_err *err);
/* What was not answered stays unsure. */
void ws_deeds_end(struct ws_deeds *d); /* NULL is fine */
/* For a process without a state directory, whose records are this list: its push has woken memory
 * at this URL. The older records say no more about it; that of the push does. */
void ws_deeds_forget(struct ws_journal_list *list, const char *url);

#ifdef __cplusplus
}
#endif
#endif
