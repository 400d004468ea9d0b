/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fetch.h - fetches the tensors of a request, by any route, and keeps them or loads them into
 * the model. */
#ifndef WS_ENDPOINT_SERVE_FETCH_H
#define WS_ENDPOINT_SERVE_FETCH_H

#include "serve_decode.h"
#include "serve_journal.h"

struct ws_serve_call; /* serve_call.h */

/* fetch receives the bytes of u's tensors into u->load, else into slots[i].data if that is not
 * NULL. keep false: it discards them. */
struct ws_serve_fetch {
	int (*fetch)(struct ws_serve *s, void *ctx, struct ws_serve_update *u, bool keep,
	             struct ws_err *err);
	void *ctx;
};
/* For a fetch function: copies bytes [at, at+n) of tensor i to all ranks' parameters or to the
 * slot's data. */
void ws_serve_put(struct ws_serve *s, struct ws_serve_update *u, size_t i, uint64_t at,
                  const uint8_t *bytes, size_t n);
/* A fetch function: bytes has all tensors, one after the other. NULL: only their hashes are
 * kept. */
int ws_serve_fetch_bytes(struct ws_serve *s, void *bytes, struct ws_serve_update *u, bool keep,
                         struct ws_err *err);
/* In the scheduler: fetches u's tensors and keeps them, or loads them into the model. */
int ws_serve_fetch_all(struct ws_serve_call *c, const struct ws_serve_fetch *in,
                       struct ws_serve_update *u, struct ws_err *err);
/* In the scheduler: copies the slots' data into parameters of exactly these names. Needs a model
 * in memory. */
int ws_serve_copy_direct(struct ws_serve *s, const struct ws_serve_update *u,
                         struct ws_serve_note *note, struct ws_err *err);
/* In the scheduler: loads all tensors of a checkpoint, serve_disk.c. The caller frees u's slots,
 * which borrow from it. */
struct ws_source; /* wsync/tool/source.h */
int ws_serve_load_checkpoint(struct ws_serve_call *c, struct ws_serve_update *u,
                             const struct ws_source *source, struct ws_err *err);
void ws_serve_count_update(struct ws_serve *s, const struct ws_serve_update *u,
                           const struct ws_serve_note *note);
void ws_serve_note_update(struct ws_serve_note *note, const struct ws_serve_update *u);

#endif
