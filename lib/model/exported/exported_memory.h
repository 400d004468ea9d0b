/* SPDX-License-Identifier: Apache-2.0 */
/* exported_memory.h - memory of other processes, as the model side sees it: who opens a source gives these.
 *
 * Every call but open and close may come from any thread, several at once. */
#ifndef WS_MODEL_EXPORTED_MEMORY_H
#define WS_MODEL_EXPORTED_MEMORY_H

#include "manifest.h"
#include "payload.h"
#include "wsync/tool/memory.h"

struct ws_loan; /* opaque: the memory that one manifest names */

struct ws_memory_ops {
	/* The process is there, and so is a way to each of its devices: what is not is said
	 * here. The manifest is borrowed until close, and so is what cancels every other call,
	 * or NULL; path is its file, for messages, and copied. */
	int (*open)(const struct ws_manifest *m, const char *path, const struct ws_cancel *cancel,
	            struct ws_loan **out, struct ws_err *err);
	/* Copies bytes [at, at+n) of an allocation, which has them, to dst. */
	int (*read)(struct ws_loan *mem, size_t allocation, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	/* Where byte `at` of it is. */
	int (*place)(struct ws_loan *mem, size_t allocation, uint64_t at, struct ws_place *out,
	             struct ws_err *err);
	/* The process still has what was read: nothing that was read since open is to be
	 * doubted. */
	int (*check)(struct ws_loan *mem, struct ws_err *err);
	void (*close)(struct ws_loan *mem); /* NULL is fine */
	uint64_t pinned_bytes; /* memory of the host that reading takes */
};

#endif
