/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h - environment variables for programs that load NCCL, and for NCCL. */
#ifndef WSYNC_CMD_NCCL_H
#define WSYNC_CMD_NCCL_H

/* Call before any library is loaded. Sets the variables that inference servers set, unless the user
 * did, and sends the output of NCCL_DEBUG to stderr, unless NCCL_DEBUG_FILE is set. Returns the
 * library to load: `file`, or $WSYNC_NCCL_LIB if neither option names one. NULL: the usual
 * library. */
const char *nccl_prepare(const char *file, const char *python);

/* Waits, at most a second, until NCCL's output so far is on stderr. run_exit calls it. */
void nccl_finish(void);

#endif
