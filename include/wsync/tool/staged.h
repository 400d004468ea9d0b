/* SPDX-License-Identifier: Apache-2.0 */
/* staged.h - updates that servers have received and not loaded yet (ws_push_opts.stage). */
#ifndef WSYNC_STAGED_H
#define WSYNC_STAGED_H

#include "wsync/tool/journal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The last record of a staged update at this endpoint, also of one whose stage was cut short, and
 * the endpoint's number in the record. NULL: none. */
struct ws_journal_entry *ws_staged_at(const struct ws_journal_list *list, const char *url,
                                      size_t *endpoint);

/* True if its open update is of a kind that can be staged. */
bool ws_staged_can(const struct ws_journal_endpoint *e);
/* True if the endpoint has all of its update, and has not begun to load it. */
bool ws_staged_waits(const struct ws_journal_record *r, const struct ws_journal_endpoint *e);
/* True if the server was restarted since, and has lost the update. */
bool ws_staged_lost(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info);
/* A checkpoint waits that was staged for another start of the server, or for another server: it is
 * not known to fit this one. */
bool ws_staged_strange(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info);
/* Sets that as the error, and returns -1. */
int ws_staged_refuse_strange(const char *url, struct ws_err *err);

struct ws_discarding {
	struct ws_journal_entry *entry; /* these two as ws_staged_at returned them */
	size_t endpoint;
	struct ws_err err; /* out: WS_OK: nothing is staged there any more; WS_EREFUSED: its server
	                    * cannot drop an update */
};

/* Drops these updates, and forgets those that a restart of the server has ended; the entries no
 * longer have them then. A checkpoint that was written for them is removed with the last endpoint,
 * unless a server was asked to load it. Of opts: http, state_dir, timeout_ns,
 * lock_wait_ns, cancel. -1: *err is the first failure. */
int ws_staged_discard(struct ws_discarding *items, size_t n, const struct ws_repair_opts *opts,
                      struct ws_err *err);

/* For a record whose stage was cut short, and that is repaired: removes the checkpoint that it had
 * written. */
int ws_staged_clean(const struct ws_journal_record *r, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
