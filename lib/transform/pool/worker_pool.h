/* SPDX-License-Identifier: Apache-2.0 */
/* worker_pool.h - a few threads make items tile by tile, ahead of their readers, in a fixed amount
 * of memory.
 *
 * A job is the pass of one reader over some items, in an order given beforehand. Tiles of the
 * oldest job are made first; every job has its share of the memory. A tile that a reader waits for
 * comes before all others: to make room for it, tiles without a reader are dropped and made
 * again later. So readers never block each other, and the pool never waits for a reader.
 *
 * Half of the memory holds tiles, three eighths are the scratch of the threads, an eighth is
 * for data that is kept between tiles (ws_worker_pool_reserve). */
#ifndef WS_TRANSFORM_WORKER_POOL_H
#define WS_TRANSFORM_WORKER_POOL_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"
#include "wsync/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_worker_pool;

/* One thread's memory. Its contents are lost after a tile, except the factor cache. */
struct ws_scratch {
	char *bytes;
	size_t size, used;
	struct ws_buf buf;   /* grows up to ws_worker_pool_buf() */
	float *factor_cache; /* kept from one tile to the next */
	size_t cache_floats;
	const void *cache_of; /* key of the factor cache; NULL: empty */
	int64_t cache_at[3];  /* part of the key */
	const bool *unwanted; /* atomic; NULL: never */
};

/* Returns n bytes, aligned to 64. Cannot fail, because the sizes of tiles and chunks are chosen to
 * fit. */
void *ws_scratch_take(struct ws_scratch *b, size_t n);
size_t ws_scratch_left(const struct ws_scratch *b);
/* Has the job of this tile ended? Then long computations stop, with any error. */
bool ws_scratch_cancelled(const struct ws_scratch *b);

struct ws_tiled {
	uint64_t bytes; /* > 0 */
	/* bytes of every tile but the last; > 0, at most ws_worker_pool_tile() unless scan_only */
	uint64_t tile;
	const char *name; /* for a trace; NULL */
	bool scan_only;   /* there is no output: dst is NULL, and bytes only counts units */
	/* Any thread. */
	int (*make)(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
	            struct ws_scratch *scratch, struct ws_err *err);
	/* hold: a job will read the item; drop: not any more. Both may be NULL. */
	void (*hold)(const struct ws_tiled *t);
	void (*drop)(const struct ws_tiled *t);
};

/* threads 0: one for each processor, at most 8. scratch: bytes; 0: 128 MiB; at least 16 MiB; with
 * too little memory there are fewer threads. The first job starts the threads. */
int ws_worker_pool_new(unsigned threads, uint64_t scratch, struct ws_worker_pool **out,
                       struct ws_err *err);
/* Ends the threads after their current tile. There must be no jobs; NULL is fine. */
void ws_worker_pool_free(struct ws_worker_pool *w);
/* Each tile becomes a span in its thread's row. Call it before the first job. */
void ws_worker_pool_trace(struct ws_worker_pool *w, struct ws_trace *trace);
size_t ws_worker_pool_tile(const struct ws_worker_pool *w);    /* most bytes of a tile */
size_t ws_worker_pool_scratch(const struct ws_worker_pool *w); /* bytes of a scratch */
size_t ws_worker_pool_buf(const struct ws_worker_pool *w);     /* most bytes of a scratch's buf */
/* Counts memory that is kept between tiles. False: there is not enough. */
bool ws_worker_pool_reserve(struct ws_worker_pool *w, uint64_t bytes);
void ws_worker_pool_unreserve(struct ws_worker_pool *w, uint64_t bytes);
/* Is more than half of that memory reserved? */
bool ws_worker_pool_reserve_is_scarce(struct ws_worker_pool *w);
/* The most memory in use at any time, never more than the limit; and the number of tiles made. */
uint64_t ws_worker_pool_peak(struct ws_worker_pool *w);
uint64_t ws_worker_pool_tiles_made(struct ws_worker_pool *w);

struct ws_pool_job;
/* eager: tiles are made ahead. Otherwise each tile is made when it is read. */
int ws_pool_job_begin(struct ws_worker_pool *w, const struct ws_tiled *const *items, size_t n,
                      bool eager, struct ws_pool_job **out, struct ws_err *err);
void ws_pool_job_set_eager(struct ws_pool_job *r); /* from now on */
const struct ws_tiled *ws_pool_job_item(const struct ws_pool_job *r, size_t item);
/* Reads bytes [at, at+n) of an item. One thread at a time; sequential reads are fast. */
int ws_pool_job_read(struct ws_pool_job *r, size_t item, uint64_t at, void *dst, size_t n,
                     struct ws_err *err);
/* For scan_only items: waits until all are done, or timeout_ms (-1: forever) have passed. 1: all
 * are done; 0: not yet; -1: the error of the first item, in order, that failed. */
int ws_pool_job_wait(struct ws_pool_job *r, int timeout_ms, struct ws_err *err);
void ws_pool_job_end(struct ws_pool_job *r); /* never waits; NULL is fine */

#endif
