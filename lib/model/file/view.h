/* SPDX-License-Identifier: Apache-2.0 */
/* view.h - divides the bytes of a view into runs that are sent from their place, and runs that must
 * be gathered.
 *
 * A view run is a run of a file or of GPU memory (4 KiB or more, or a whole piece), or consecutive
 * pieces with smaller runs, which are gathered tile by tile in a buffer of at most 4 MiB. */
#ifndef WS_MODEL_VIEW_H
#define WS_MODEL_VIEW_H

#include "payload.h"
#include "wsync/tool/catalog.h"

struct ws_view_run {
	const struct ws_item *item;
	const struct ws_piece *piece; /* a run of piece->from; NULL: gathered pieces */
	uint64_t at;                  /* first byte of the run in piece->from */
	uint64_t length;              /* bytes */
	size_t first, n;              /* gathered: pieces [first, first+n) of the view */
};

/* Calls fn for each run of the view in order, until it returns non-zero; returns that value. */
typedef int ws_view_run_fn(void *ctx, const struct ws_view_run *s);
int ws_view_walk(const struct ws_item *item, ws_view_run_fn *fn, void *ctx);
/* True if some bytes of the view must be gathered. */
bool ws_view_copied(const struct ws_item *item);

/* Fills out[i] with the box of piece i, for assembly on a GPU. False: a piece is not in GPU memory,
 * or has elements of less than a byte. */
bool ws_view_strided(const struct ws_item *item, struct ws_strided *out);

/* The gather buffer. One thread at a time; the data must not change. */
struct ws_gather_buffer;
struct ws_gather_buffer *
ws_gather_buffer_new(void); /* NULL: out of memory. Allocates its memory at the first read. */
void ws_gather_buffer_free(struct ws_gather_buffer *t); /* NULL is fine */
/* Reads bytes [at, at+n) of pieces [first, first+n_pieces) of the item's view. A read that begins
 * at the end of the last read is served from a tile of megabytes. Any other read gathers little
 * more than it needs. */
int ws_gather_buffer_read(struct ws_gather_buffer *t, const struct ws_item *item, size_t first,
                          size_t n_pieces, uint64_t at, void *dst, size_t n, struct ws_err *err);

/* A gather buffer shared by all items of a catalog. */
struct ws_reader *ws_reader_new(void); /* NULL: out of memory */
void ws_reader_free(struct ws_reader *r); /* NULL is fine */

#endif
