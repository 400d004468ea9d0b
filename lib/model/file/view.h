/* SPDX-License-Identifier: Apache-2.0 */
/* view.h - the bytes of items that are views: which of them lie in files, and how the rest is had.
 *
 * A stretch is a run of a file (4 KiB or more, or all of a piece), or consecutive pieces of which
 * smaller runs are gathered, tile by tile, in a buffer of at most 4 MiB. */
#ifndef WS_MODEL_VIEW_H
#define WS_MODEL_VIEW_H

#include "payload.h"
#include "wsync/tool/catalog.h"

struct ws_view_run {
	const struct ws_item *item;
	const struct ws_piece *piece; /* a run of piece->from; NULL: gathered */
	uint64_t at;                  /* its first byte in that tensor */
	uint64_t length;              /* bytes */
	size_t first, n;              /* gathered: pieces [first, first+n) of the view */
};

/* Calls fn for each stretch of the view in order, until it returns non-zero; returns that. */
typedef int ws_view_run_fn(void *ctx, const struct ws_view_run *s);
int ws_view_walk(const struct ws_item *item, ws_view_run_fn *fn, void *ctx);
/* Are any of its bytes gathered? */
bool ws_view_copied(const struct ws_item *item);

/* All pieces as boxes, one each, for whoever puts them together on a GPU. false: some are not in
 * the memory of one, or of elements that are no whole bytes. */
bool ws_view_boxes(const struct ws_item *item, struct ws_strided *out);

/* The buffer. One thread at a time; what is read must not change. */
struct ws_gather_buffer;
struct ws_gather_buffer *
ws_gather_buffer_new(void); /* NULL: out of memory. Little is allocated before a read */
void ws_gather_buffer_free(struct ws_gather_buffer *t); /* NULL is fine */
/* Bytes [at, at+n) of the stretch made of pieces [first, first+n_pieces) of the item's view. A read
 * that begins where the one before ended is served from a tile of megabytes; any other gathers
 * hardly more than it asks for. */
int ws_gather_buffer_read(struct ws_gather_buffer *t, const struct ws_item *item, size_t first,
                          size_t n_pieces, uint64_t at, void *dst, size_t n, struct ws_err *err);

/* A buffer that the items of a catalog share, for whoever reads them. */
struct ws_reader *ws_reader_new(void); /* NULL: out of memory */
void ws_reader_free(struct ws_reader *r); /* NULL is fine */

#endif
