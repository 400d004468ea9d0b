/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h - environment variables for programs that load NCCL, and for NCCL. */
#ifndef WSYNC_CMD_NCCL_H
#define WSYNC_CMD_NCCL_H

#include "wsync/endpoint.h"

/* Call before any library is loaded and while the program has one thread. Sends the output of
 * NCCL_DEBUG to stderr, unless NCCL_DEBUG_FILE is set. Returns the library to load: `file`, or
 * $WSYNC_NCCL_LIB if neither option names one. NULL: the usual library. */
const char *nccl_prepare(const char *file, const char *python);
/* After nccl_prepare: sets what SGLang sets, unless the user did. For programs without a push. */
void nccl_as_sglang(void);
/* Sets what the servers of a group set, unless the user did (ws_push_opts.nccl_settings). -1: the
 * servers differ, or NCCL was started with other settings. */
int nccl_set(const struct ws_nccl_settings *s, struct ws_err *err);

/* Waits, at most a second, until NCCL's output so far is on stderr. run_exit calls it. */
void nccl_finish(void);

#endif
