/* SPDX-License-Identifier: Apache-2.0 */
/* record.h - what pushes have written down, in words. */
#ifndef WSYNC_CMD_RECORD_H
#define WSYNC_CMD_RECORD_H

#include "ctl.h"

/* "dead", "alive", "elsewhere", "ended" or "unreadable". */
const char *record_fate(const struct ws_journal_entry *e);
/* "42 s", "7 min", "3 h" */
char *record_age(char *dst, size_t n, int64_t since);

/* The records of this user's pushes; none where there is no state directory. What cannot be read
 * is warned about. Freed by the caller. */
void record_read(const struct ctl_job *job, struct ws_journal_list *list);
/* The last push that may have left this endpoint paused, or NULL. No server says whether it is. */
const struct ws_journal_entry *record_of_pause(const struct ws_journal_list *list, const char *url);
/* That push, as member "paused_by" of the object that is open: null where there is none. */
void record_put_pause(struct ws_jw *w, const struct ws_journal_entry *e);
/* And as a line: who paused url, when, and what helps. */
void record_say_pause(struct ui *ui, const char *url, const struct ws_journal_entry *e);
/* One for each endpoint of the job that a push has left paused. */
void record_say_pauses(struct ctl_job *job, const struct ws_journal_list *list);

#endif
