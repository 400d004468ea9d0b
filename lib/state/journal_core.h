/* SPDX-License-Identifier: Apache-2.0 */
/* journal_core.h - writes and clears the records of pushes, and defines the text of their files. */
#ifndef WS_STATE_JOURNAL_CORE_H
#define WS_STATE_JOURNAL_CORE_H

#include "wsync/tool/buf.h"
#include "wsync/tool/journal.h"

/* Records of staged updates have the second schema: an older wsync must not end the updates. */
enum { JOURNAL_SCHEMA = 2, JOURNAL_BYTES_MAX = 16 << 20, JOURNAL_ENDPOINTS_MAX = 65536 };

struct ws_journal; /* one push's file */

/* Creates the directories and chooses a file name; the first save writes the file. state_dir NULL:
 * the record is kept in memory. urls must outlive the journal. */
int ws_journal_open(const char *state_dir, const char *const *urls, size_t n,
                    struct ws_journal **out, struct ws_err *err);
/* For a file that cannot be written: removes it and keeps the record in memory. */
void ws_journal_to_memory(struct ws_journal *l);
/* The record that the next save writes. The caller changes it and owns the strings it sets. */
struct ws_journal_record *ws_journal_record(struct ws_journal *l);
const char *ws_journal_path(const struct ws_journal *l); /* NULL: it is kept in memory */
/* Copies the sources and the version (NULL: none), which may change while the push goes on. */
int ws_journal_source(struct ws_journal *l, const char *const *paths, size_t n, const char *version,
                      struct ws_err *err);
/* Adds a file that the sources of the last ws_journal_source read. path is copied; id NULL: memory
 * of a process. */
int ws_journal_add_file(struct ws_journal *l, const char *path, const uint64_t *id,
                        struct ws_err *err);
/* Replaces the file and waits until it is on the disk. Does nothing for a record in memory. */
int ws_journal_save(struct ws_journal *l, struct ws_err *err);
/* Reads changes of others since the last save: a push that cleared endpoints, or wsync-ctl sleep
 * and wake. */
void ws_journal_reread(struct ws_journal *l);
/* The push is over. If nothing is left to repair, removes the file, else writes it a last time. A
 * record in memory, or one that cannot be written, is added to *left (NULL: it is lost). */
void ws_journal_close(struct ws_journal *l, struct ws_journal_list *left); /* l NULL is fine */
/* Removes the file and frees the journal. */
void ws_journal_abandon(struct ws_journal *l); /* NULL is fine */

const char *ws_open_update_name(enum ws_open_update open_update); /* "" none */
/* Ends the open updates of these endpoints, and clears `open_update` of those that answered.
 * loaded[i], which may be NULL: it was a two-phase update, and the server loaded what it had. -1:
 * cancelled or a system error. */
int ws_journal_end_updates(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                           const char *group, ws_deadline until, const struct ws_cancel *cancel,
                           bool *loaded, struct ws_err *err);
/* Asks the servers of these two-phase updates to drop what they received, which wsync-endpoint can.
 * Clears `open_update` of those that dropped it, or have no update. errs[i]: why not; WS_EREFUSED:
 * the server cannot. -1: cancelled or a system error. */
int ws_journal_drop_updates(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                            const char *group, ws_deadline until, const struct ws_cancel *cancel,
                            struct ws_err *errs, struct ws_err *err);
/* Sends the endpoints that may be in the group a request to leave it. Clears `grouped` of those
 * that answered. */
void ws_journal_leave_group(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                            const char *group, ws_deadline until, const struct ws_cancel *cancel);

/* Endpoints that did not answer may join the group of this record late: releases their ranks, so
 * that they stop waiting. Returns how many came; 0 at once if all endpoints had answered. */
unsigned ws_journal_release_late(const struct ws_journal_record *r, ws_deadline until,
                                 const struct ws_cancel *cancel);

/* ---- files ---- */

/* STATE_DIR/pushes and STATE_DIR/locks, to be freed; NULL: out of memory. */
char *ws_journal_pushes(const char *state_dir);
char *ws_journal_locks(const char *state_dir);
/* Reads the file entry->path into *entry; entry->err says why the file is not trusted. */
void ws_journal_read(struct ws_journal_entry *entry);
/* Writes these endpoints, all but url and version, into the file of another push. An endpoint that
 * owes nothing is removed; with the last one the file is removed too. A missing file is fine. */
int ws_journal_update(const char *path, const struct ws_journal_endpoint *now, size_t n,
                      struct ws_err *err);
/* The same for an entry of a list; if its path is NULL, changes its record in memory. */
int ws_journal_change(struct ws_journal_entry *e, const struct ws_journal_endpoint *now, size_t n,
                      struct ws_err *err);
/* Notes in the file of this record that a server was asked to load what was written. */
int ws_journal_use_written(struct ws_journal_entry *e, struct ws_err *err);
/* The extent of a push. */
struct ws_journal_sent {
	uint64_t digest;         /* of its plan */
	uint64_t tensors, bytes; /* of its plan */
	bool whole;              /* no part was chosen by options */
	/* whole, and compared with the servers' names: nothing is missing */
	bool checked;
	bool ok;                 /* it succeeded */
	bool refused;            /* a server refused what it sent */
};
/* True if a push of `sent` completes endpoint e, which the push of r left unfinished. The same plan
 * does. Any other must be whole, and checked or at least as large. One turn of several senders is
 * not whole. */
bool ws_journal_completes(const struct ws_journal_sent *sent, const struct ws_journal_record *r,
                          const struct ws_journal_endpoint *e);
/* Removes these endpoints from all records of the list except `own` (a path, or NULL), where a push
 * of `sent` completes them: a later push has recorded their state. The caller holds their locks, so
 * no other push is at work there. An endpoint that has not left its group stays recorded, in phase
 * destroy, and gets no further push. A record by hand says no more of incomplete weights that the
 * push has completed; where the push was refused, nothing is removed. */
void ws_journal_clear(struct ws_journal_list *list, const char *own, const char *const *urls,
                      size_t n, const struct ws_journal_sent *sent);

/* ---- text ---- */

/* The endpoint with exactly this URL; NULL: none. */
const struct ws_journal_endpoint *ws_journal_find(const struct ws_journal_endpoint *items, size_t n,
                                                  const char *url);
/* Replaces the file at path. */
int ws_journal_write(const char *path, const struct ws_journal_record *r, struct ws_err *err);
void ws_journal_print(const struct ws_journal_record *r, struct ws_buf *text);
/* path is for messages. The data of *out is valid until ws_journal_drop. */
int ws_journal_parse(const char *path, const char *text, size_t len, struct ws_journal_record *out,
                     void **priv, struct ws_err *err);
void ws_journal_drop(struct ws_journal_record *r, void *priv);

#endif
