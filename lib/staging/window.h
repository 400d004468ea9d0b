/* SPDX-License-Identifier: Apache-2.0 */
/* window.h - what another process exports of its GPUs' memory, seen piece by piece from this side.
 *
 * A thread of its own opens the handles and copies into pinned memory, so that whoever
 * reads needs no context and keeps the one he has. The last few pieces stay, and the next
 * ones are fetched while one is read: many small reads cost a copy of the host each. The
 * first failure of the GPU is that of every later call. A GPU that is stuck keeps what it
 * writes to, also after close. */
#ifndef WS_STAGING_WINDOW_H
#define WS_STAGING_WINDOW_H

#include "cuda_driver.h"
#include "manifest.h"

enum { WS_WINDOW_PIECE = 4 << 20, WS_WINDOW_PIECES = 8 };

struct ws_window_opts {
	const struct ws_manifest *manifest; /* borrowed until close */
	struct ws_cuda *cuda;               /* likewise */
	const int *ordinals;                /* likewise: of each of the manifest's devices, here */
	/* Is what was read to be believed? Asked by the thread now and then. */
	int (*look)(void *ctx, struct ws_err *err);
	void *ctx;
	const struct ws_cancel *cancel;     /* of all reads; borrowed until close; NULL: none */
};

struct ws_window; /* opaque */

/* No GPU is opened before something is asked for. */
int ws_window_open(const struct ws_window_opts *opts, struct ws_window **out, struct ws_err *err);
void ws_window_close(struct ws_window *w); /* NULL is fine; nobody reads any longer */

/* From any thread. */
int ws_window_read(struct ws_window *w, size_t allocation, uint64_t at, void *dst, size_t n,
                   struct ws_err *err);
/* Where the allocation is in this process, in every context of its GPU, until close. */
int ws_window_address(struct ws_window *w, size_t allocation, ws_devptr *out, struct ws_err *err);

#endif
