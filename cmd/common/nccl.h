/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h - what the environment says to programs that load NCCL, and to NCCL. */
#ifndef WSYNC_CMD_NCCL_H
#define WSYNC_CMD_NCCL_H

/* To be called before anything is loaded. Sets what inference servers set in their processes,
 * unless the user did, and sends what NCCL_DEBUG asks for to stderr, unless NCCL_DEBUG_FILE
 * names a place. Returns the library to load: `file`, or $WSYNC_NCCL_LIB where neither option
 * names one. NULL: the usual. */
const char *nccl_prepare(const char *file, const char *python);

/* What NCCL has said so far is on stderr, or a second has passed; run_exit calls it. */
void nccl_finish(void);

#endif
