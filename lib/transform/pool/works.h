/* SPDX-License-Identifier: Apache-2.0 */
/* works.h - things made tile by tile, by a few threads, ahead of whoever reads them, within a fixed
 * amount of memory.
 *
 * A run is one reader's passage through some of these things, in an order said beforehand. Tiles
 * of the oldest run are made first; every run has its share of the memory. A reader who waits
 * for a tile gets it before all else, for which tiles that nobody waits for are dropped and made
 * again later: so several readers get on whatever the others do, and nobody waits for a reader.
 *
 * Of the scratch, half holds tiles, three eighths are the desks of the threads, an eighth is for
 * what is kept between tiles (ws_works_keep). */
#ifndef WS_TRANSFORM_WORKS_H
#define WS_TRANSFORM_WORKS_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"
#include "wsync/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_works;

/* One thread's memory. What lies on it is lost after a tile, but for the shelf. */
struct ws_desk {
	char *bytes;
	size_t size, used;
	struct ws_buf buf;      /* for whoever wants one that grows, as far as it may */
	float *shelf;           /* kept from one tile to the next, and what it is: */
	size_t shelf_floats;
	const void *shelf_of;   /* NULL: nothing */
	const bool *unwanted;   /* atomic; NULL: never */
	int64_t shelf_at[3];
};

/* n bytes at a multiple of 64. The sizes of tiles and chunks are chosen so that this cannot
 * fail. */
void *ws_desk_take(struct ws_desk *b, size_t n);
size_t ws_desk_left(const struct ws_desk *b);
/* The run that the tile is for has ended. Whoever needs long for one gives
 * up then: any error will do. */
bool ws_desk_unwanted(const struct ws_desk *b);

struct ws_tiled {
	uint64_t bytes;  /* > 0 */
	/* bytes of every tile but the last; > 0, at most ws_works_tile() unless dry */
	uint64_t tile;
	const char *name; /* for a trace; NULL */
	bool dry;        /* nothing is kept of it: dst is NULL, and bytes are a mere count */
	/* Any thread. */
	int (*make)(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
	            struct ws_desk *desk, struct ws_err *err);
	/* A run has it in front of it, or not any more. May be NULL. */
	void (*hold)(const struct ws_tiled *t);
	void (*drop)(const struct ws_tiled *t);
};

/* threads 0: one for each processor, at most 8. scratch 0: 128 MiB; at least 16 MiB; too little of
 * it makes for fewer threads. They are started with the first run. */
int ws_works_new(unsigned threads, uint64_t scratch, struct ws_works **out, struct ws_err *err);
/* Ends the threads after the tile that they are at. No reader may be left; NULL is fine. */
void ws_works_free(struct ws_works *w);
/* Each tile is a span, on a row of its thread. Before the first run. */
void ws_works_trace(struct ws_works *w, struct ws_trace *trace);
size_t ws_works_tile(const struct ws_works *w);  /* most bytes of a tile */
size_t ws_works_desk(const struct ws_works *w); /* bytes of a desk */
size_t ws_works_buf(const struct ws_works *w);   /* most bytes of a desk's buf */
/* Memory between tiles: false where there is none left. */
bool ws_works_keep(struct ws_works *w, uint64_t bytes);
void ws_works_unkeep(struct ws_works *w, uint64_t bytes);
bool ws_works_keep_is_scarce(struct ws_works *w); /* more than half of it is in use */
/* The most that was held at any time, never more than the scratch; and how many tiles were made. */
uint64_t ws_works_peak(struct ws_works *w);
uint64_t ws_works_made(struct ws_works *w);

struct ws_run;
/* eager: tiles are made ahead. Otherwise one at a time, when it is read. */
int ws_run_begin(struct ws_works *w, const struct ws_tiled *const *items, size_t n, bool eager,
                 struct ws_run **out, struct ws_err *err);
void ws_run_eager(struct ws_run *r); /* from now on */
const struct ws_tiled *ws_run_item(const struct ws_run *r, size_t item);
/* Bytes [at, at+n) of an item; one thread at a time, fast when it goes on where it was. */
int ws_run_read(struct ws_run *r, size_t item, uint64_t at, void *dst, size_t n,
                struct ws_err *err);
/* Of dry items: waits until all are made, or timeout_ms (-1: for ever) have passed. 1: they are;
 * 0: not yet; -1: the first of them, in order, that failed. */
int ws_run_wait(struct ws_run *r, int timeout_ms, struct ws_err *err);
void ws_run_end(struct ws_run *r); /* waits for nobody; NULL is fine */

#endif
