/* SPDX-License-Identifier: Apache-2.0 */
/* journal_core.h - the side of the journal that a push writes, and the text of its files. */
#ifndef WS_STATE_JOURNAL_CORE_H
#define WS_STATE_JOURNAL_CORE_H

#include "wsync/tool/buf.h"
#include "wsync/tool/journal.h"

enum { JOURNAL_SCHEMA = 1, JOURNAL_BYTES_MAX = 16 << 20, JOURNAL_ENDPOINTS_MAX = 65536 };

struct ws_journal; /* one push's file */

/* Makes the directories and a name; nothing is written before the first save. state_dir NULL:
 * the record is kept in memory. urls outlive it. */
int ws_journal_open(const char *state_dir, const char *const *urls, size_t n,
                    struct ws_journal **out, struct ws_err *err);
/* The file cannot be written: it is removed, and the record is kept in memory from now on. */
void ws_journal_to_memory(struct ws_journal *l);
/* What the next save writes: the caller changes it, its strings are the caller's. */
struct ws_journal_record *ws_journal_record(struct ws_journal *l);
const char *ws_journal_path(const struct ws_journal *l); /* NULL: it is kept in memory */
/* What is pushed: copied, because it may change while the push goes on. version NULL: none. */
int ws_journal_source(struct ws_journal *l, const char *const *paths, size_t n, const char *version,
                      struct ws_err *err);
/* Adds a file that is read for the source of the last ws_journal_source. path
 * is copied; id NULL: memory. */
int ws_journal_add_file(struct ws_journal *l, const char *path, const uint64_t *id,
                        struct ws_err *err);
/* Replaces the file, and returns when that has reached the disk. In memory: does nothing. */
int ws_journal_save(struct ws_journal *l, struct ws_err *err);
/* Takes over what others have changed in the file since it was saved: a push that cleared it,
 * and wsync-ctl sleep and wake. */
void ws_journal_reread(struct ws_journal *l);
/* The push is over. If nothing is left to repair, the file is removed, else it is written a last
 * time. A record in memory, or that cannot be written, then goes to *left (NULL: it is lost). */
void ws_journal_close(struct ws_journal *l, struct ws_journal_list *left); /* l NULL is fine */
/* Removes the file. */
void ws_journal_abandon(struct ws_journal *l); /* NULL is fine */

const char *ws_open_update_name(enum ws_open_update open_update); /* "" none */
/* Ends the open updates of these endpoints. `open_update` is cleared where one answered. -1:
 * cancelled or system. */
int ws_journal_end_updates(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                           const char *group, ws_deadline until, const struct ws_cancel *cancel,
                           struct ws_err *err);
/* Asks those that may be in the group to leave it. `grouped` is cleared where one answered. */
void ws_journal_leave_group(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                            const char *group, ws_deadline until, const struct ws_cancel *cancel);

/* Ranks of those that did not answer may come to the group of this record only now: they are let
 * go. Returns how many came; at once where all had answered. */
unsigned ws_journal_release_late(const struct ws_journal_record *r, ws_deadline until,
                                 const struct ws_cancel *cancel);

/* ---- files ---- */

/* STATE_DIR/pushes and STATE_DIR/locks, to be freed; NULL: out of memory. */
char *ws_journal_pushes(const char *state_dir);
char *ws_journal_locks(const char *state_dir);
int ws_journal_check_dir(const char *pushes, struct ws_err *err);
/* Reads entry->path into the rest of it: entry->err says why it is not believed. */
void ws_journal_read(struct ws_journal_entry *entry);
/* Writes all of these endpoints but url and version into the file of another push. An
 * endpoint that owes nothing is removed, and the file with the last one. A file that
 * no longer exists is fine. */
int ws_journal_update(const char *path, const struct ws_journal_endpoint *now, size_t n,
                      struct ws_err *err);
/* The same for an entry of a list: its file, or, if its path is NULL, its record in memory. */
int ws_journal_change(struct ws_journal_entry *e, const struct ws_journal_endpoint *now, size_t n,
                      struct ws_err *err);
/* What a push sends. */
struct ws_journal_sent {
	uint64_t digest;         /* of its plan */
	uint64_t tensors, bytes; /* of its plan */
	bool whole;              /* no part was chosen by options */
	/* whole, and compared with the names of the servers: nothing is missing */
	bool checked;
};
/* Does a push that sends this complete what the push of this record left at one of its
 * endpoints, e? The same plan does. Any other must be whole, and checked or at least as large.
 * The turn of one of several senders is not whole. */
bool ws_journal_completes(const struct ws_journal_sent *sent, const struct ws_journal_record *r,
                          const struct ws_journal_endpoint *e);
/* Removes these endpoints from all records of the list but `own` (a path, or NULL) that a push of
 * `sent` completes: a later push has recorded their state. The caller holds their locks, so no
 * other push is at work there. An endpoint with a group that was not left yet stays in its
 * record, in the phase destroy, and is not pushed to again. The other records keep all but the
 * memory, because only one record may say which memory to wake. */
void ws_journal_clear(struct ws_journal_list *list, const char *own, const char *const *urls,
                      size_t n, const struct ws_journal_sent *sent);

/* ---- text ---- */

/* The endpoint of this exact URL, as records of one push have it; NULL: none. */
const struct ws_journal_endpoint *ws_journal_find(const struct ws_journal_endpoint *items, size_t n,
                                                  const char *url);
/* Replaces the file at path. */
int ws_journal_write(const char *path, const struct ws_journal_record *r, struct ws_err *err);
void ws_journal_print(const struct ws_journal_record *r, struct ws_buf *text);
/* path is for messages. What *out points to lives until ws_journal_drop. */
int ws_journal_parse(const char *path, const char *text, size_t len, struct ws_journal_record *out,
                     void **priv, struct ws_err *err);
void ws_journal_drop(struct ws_journal_record *r, void *priv);

#endif
