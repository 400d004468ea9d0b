/* SPDX-License-Identifier: Apache-2.0 */
/* process_id.h - which process wrote something down, and whether it still runs.
 *
 * A process id alone is given to another process sooner or later: the start time tells
 * them apart, the boot id tells the boots apart, and the namespace tells containers apart,
 * which number on their own. */
#ifndef WS_BASE_PROCESS_ID_H
#define WS_BASE_PROCESS_ID_H

#include "wsync/tool/process.h"

/* What /proc does not tell is 0 or "". */
void ws_process_self(struct ws_process *out);
enum ws_process_fate ws_process_fate(const struct ws_process *p);

/* The state and the start time out of the text of /proc/PID/stat; the name in it may be
 * anything. */
int ws_process_stat(const char *text, char *state, uint64_t *start_ticks);

#endif
