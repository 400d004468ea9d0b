/* SPDX-License-Identifier: Apache-2.0 */
/* worker_pool_core.h - shared by the files of the pool:
 *
 *   worker_pool.c   the pool and its limits
 *   pool_memory.c   which job gets memory next
 *   pool_workers.c  the threads
 *   pool_jobs.c     jobs and their readers
 *
 * One lock guards the pool: a tile is about a millisecond of work, so the lock is taken a few
 * thousand times a second at most. Callers hold it, unless a comment says otherwise. If a job ends
 * while one of its tiles is being made, the thread that makes the tile frees the job. */
#ifndef WS_TRANSFORM_WORKER_POOL_CORE_H
#define WS_TRANSFORM_WORKER_POOL_CORE_H

#include "tilemem.h"
#include "worker_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { POOL_MOST_THREADS = 64, POOL_ALIGN = 64, POOL_BUF_PART = 3 };

enum state { ABSENT, MAKING, READY, FAILED };

struct tile {
	void *bytes;
	uint32_t n, room; /* its bytes, and the bytes of its memory (tilemem.h) */
	uint8_t state;
	bool pinned; /* a reader copies from it */
};

struct ws_pool_job {
	struct ws_worker_pool *pool;
	struct ws_pool_job *next; /* younger */
	const struct ws_tiled **items;
	size_t n_items;
	size_t *first; /* first tile of each item; [n_items]: number of tiles */
	struct tile *tiles;
	size_t at;         /* tile that the reader is at */
	size_t front;      /* every tile in [at, front) is made, being made, or has failed */
	size_t far;        /* no tile from here on was ever made */
	size_t past;       /* items that were dropped */
	size_t wanted;     /* tile that the reader waits for; SIZE_MAX */
	size_t failed;     /* the first tile that could not be made; SIZE_MAX */
	struct ws_err err; /* of that tile */
	uint64_t held;
	size_t n_making, n_scanned;
	bool eager, ended;
};

struct ws_worker_pool {
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	pthread_t threads[POOL_MOST_THREADS];
	struct ws_scratch scratches[POOL_MOST_THREADS];
	unsigned n_threads, n_started;
	struct ws_pool_job *jobs; /* the oldest first */
	size_t n_jobs;
	uint64_t store, worker_bytes, keep; /* limits */
	uint64_t held, started_bytes, kept; /* in use */
	uint64_t scratch, peak, made;
	struct ws_tilemem spares; /* within the store too */
	struct ws_trace *trace;   /* NULL: none */
	bool starved;             /* a tile with a waiting reader found no room */
	bool stop;
};

static inline size_t pool_count(const struct ws_pool_job *r)
{
	return r->first[r->n_items];
}

/* worker_pool.c */
size_t pool_part_of_scratch(const struct ws_worker_pool *w, unsigned part);
void pool_count_peak(struct ws_worker_pool *w);

/* pool_memory.c */
/* Takes memory of the right size from the spares; NULL: there is none. */
void *pool_find_memory(struct ws_worker_pool *w, uint32_t room);
void pool_forget(struct ws_pool_job *r, struct tile *t);
size_t pool_next_to_make(struct ws_pool_job *r);
/* For a tile with a waiting reader: drops other tiles, those of its own job last. False: no
 * room. */
bool pool_make_room(struct ws_worker_pool *w, struct ws_pool_job *r, size_t n);
/* Is there room for a tile without a waiting reader? */
bool pool_may_go_ahead(const struct ws_worker_pool *w, const struct ws_pool_job *r, size_t n);

/* pool_workers.c */
/* Fails only if no thread could be started. */
int pool_start_threads(struct ws_worker_pool *w, struct ws_err *err);

/* pool_jobs.c */
void pool_free_job(struct ws_pool_job *r);

#endif
