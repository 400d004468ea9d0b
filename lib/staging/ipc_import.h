/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_import.h - reads GPU memory that another process exports, through a small cache of pieces.
 *
 * A thread opens the handles and copies into pinned memory, so that readers need no CUDA context
 * and keep their own. The last pieces are cached, and the next ones are fetched while one is read:
 * a small read costs one copy on the host. After the first failure of the GPU every call fails with
 * the same error. If a GPU hangs, the memory that it writes to is leaked at close. */
#ifndef WS_STAGING_IPC_IMPORT_H
#define WS_STAGING_IPC_IMPORT_H

#include "cuda_driver.h"
#include "manifest.h"

enum { WS_IPC_IMPORT_PIECE = 4 << 20, WS_IPC_IMPORT_PIECES = 8 };

struct ws_ipc_import_opts {
	const struct ws_manifest *manifest; /* borrowed until close */
	struct ws_cuda *cuda;               /* likewise */
	const int *ordinals;                /* likewise: local ordinals of the devices */
	/* Is the exporting process still alive? The thread calls it now and then. */
	int (*still_valid)(void *ctx, struct ws_err *err);
	void *ctx;
	const struct ws_cancel *cancel;     /* of all reads; borrowed until close; NULL: none */
};

struct ws_ipc_import; /* opaque */

/* Opens no GPU before the first read. */
int ws_ipc_import_open(const struct ws_ipc_import_opts *opts, struct ws_ipc_import **out,
                       struct ws_err *err);
void ws_ipc_import_close(struct ws_ipc_import *w); /* no reads may be running; NULL is fine */

/* Any thread. */
int ws_ipc_import_read(struct ws_ipc_import *w, size_t allocation, uint64_t at, void *dst, size_t n,
                       struct ws_err *err);
/* The address of the allocation in this process, in every context of its GPU, until close. */
int ws_ipc_import_address(struct ws_ipc_import *w, size_t allocation, ws_devptr *out,
                          struct ws_err *err);

#endif
