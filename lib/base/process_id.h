/* SPDX-License-Identifier: Apache-2.0 */
/* process_id.h - identifies the process that wrote a record, and checks whether it still runs.
 *
 * Process ids are reused sooner or later: the start time tells two processes apart. The boot id
 * tells boots apart, and the namespace tells containers apart, which number their processes
 * separately. */
#ifndef WS_BASE_PROCESS_ID_H
#define WS_BASE_PROCESS_ID_H

#include "wsync/tool/process.h"

/* Fields that /proc does not show are 0 or "". */
void ws_process_self(struct ws_process *out);
enum ws_process_fate ws_process_fate(const struct ws_process *p);

/* Parses the state and the start time from /proc/PID/stat. The process name in it may have any
 * characters. -1: malformed. */
int ws_process_stat(const char *text, char *state, uint64_t *start_ticks);

#endif
