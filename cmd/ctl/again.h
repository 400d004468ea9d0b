/* SPDX-License-Identifier: Apache-2.0 */
/* again.h - a recorded push, run once more. */
#ifndef WSYNC_CMD_AGAIN_H
#define WSYNC_CMD_AGAIN_H

#include "ctl.h"

#include "wsync/tool/journal.h"

/* Runs the wsync-push that lies beside this program, in the directory of the record, to these
 * endpoints, and waits for it. *status is its exit status. With --json it prints nothing: stdout
 * is ours. -1: it could not be run, or was killed, or the record cannot be repeated (WS_EINPUT).
 * The job's deadline is the push's --timeout; one that goes on in spite of it is killed. */
int again_run(const struct ctl_job *job, const struct ws_journal_record *rec,
              const char *const *urls, size_t n, int *status, struct ws_err *err);

#endif
