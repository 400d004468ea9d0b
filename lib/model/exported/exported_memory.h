/* SPDX-License-Identifier: Apache-2.0 */
/* exported_memory.h - access to the memory of other processes, provided by the opener of a source.
 *
 * Several threads may make all calls at once, except open and close. */
#ifndef WS_MODEL_EXPORTED_MEMORY_H
#define WS_MODEL_EXPORTED_MEMORY_H

#include "manifest.h"
#include "payload.h"
#include "wsync/tool/memory.h"

struct ws_ipc_source; /* opaque: the memory that one manifest names */

struct ws_memory_ops {
	/* Opens the memory; fails if the process is gone or one of its devices cannot be reached.
	 * Borrows the manifest until close, and cancel (or NULL), which cancels every other call.
	 * Copies path, the manifest's file, for messages. */
	int (*open)(const struct ws_manifest *m, const char *path, const struct ws_cancel *cancel,
	            struct ws_ipc_source **out, struct ws_err *err);
	/* Copies bytes [at, at+n) to dst. The range must be inside the allocation. */
	int (*read)(struct ws_ipc_source *mem, size_t allocation, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	/* Returns the GPU address of byte `at` of an allocation. */
	int (*gpu_address)(struct ws_ipc_source *mem, size_t allocation, uint64_t at,
	                   struct ws_gpu_address *out, struct ws_err *err);
	/* Checks that the process still has the memory, so that all data read since open is
	 * valid. */
	int (*check)(struct ws_ipc_source *mem, struct ws_err *err);
	void (*close)(struct ws_ipc_source *mem); /* NULL is fine */
	uint64_t pinned_bytes; /* host memory that reading needs */
};

#endif
