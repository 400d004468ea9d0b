/* SPDX-License-Identifier: Apache-2.0 */
/* works_core.h - what the files of the works share: works.c (all of it, and its
 * limits), works_room.c (who gets memory next), works_make.c (the threads), works_run.c
 * (runs and their readers).
 *
 * One lock for all of it: a tile is worth a millisecond of work, so it is taken a few thousand
 * times a second at most. Everything here wants it held unless it says otherwise. A run that was
 * ended while a tile of it was being made is freed by the thread that made it. */
#ifndef WS_TRANSFORM_WORKS_CORE_H
#define WS_TRANSFORM_WORKS_CORE_H

#include "tilemem.h"
#include "works.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { WORKS_MOST_THREADS = 64, WORKS_ALIGN = 64, WORKS_BUF_PART = 3 };

enum state { ABSENT, MAKING, READY, FAILED };

struct tile {
	void *bytes;
	uint32_t n, room;    /* how many bytes it has, and takes (tilemem.h) */
	uint8_t state;
	bool pinned; /* it is being read */
};

struct ws_run {
	struct ws_works *works;
	struct ws_run *next; /* younger */
	const struct ws_tiled **items;
	size_t n_items;
	size_t *first;       /* tile of each item's beginning; [n_items]: how many there are */
	struct tile *tiles;
	size_t at;           /* tile that the reader is at */
	size_t front;        /* every tile in [at, front) is made, or under way, or has failed */
	size_t far;          /* no tile from here on was ever made */
	size_t past;         /* items that were dropped */
	size_t wanted;       /* tile that the reader waits for; SIZE_MAX */
	size_t failed;       /* the first that could not be made; SIZE_MAX */
	struct ws_err err;   /* of that one */
	uint64_t held;
	size_t n_making, n_dry;
	bool eager, ended;
};

struct ws_works {
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	pthread_t threads[WORKS_MOST_THREADS];
	struct ws_desk desks[WORKS_MOST_THREADS];
	unsigned n_threads, n_started;
	struct ws_run *runs; /* the oldest first */
	size_t n_runs;
	uint64_t store, desk, keep;      /* limits */
	uint64_t held, desked, kept;     /* in use */
	uint64_t scratch, peak, made;
	struct ws_tilemem spares;         /* within the store too */
	struct ws_trace *trace;          /* NULL: none */
	bool starved; /* a tile that is waited for found no room */
	bool stop;
};

static inline size_t works_count(const struct ws_run *r)
{
	return r->first[r->n_items];
}

/* works.c */
size_t works_part_of_desk(const struct ws_works *w, unsigned part);
void works_count_peak(struct ws_works *w);

/* works_room.c */
/* Memory that was used before, of tiles that are gone; NULL: there is none. */
void *works_find_memory(struct ws_works *w, uint32_t room);
void works_forget(struct ws_run *r, struct tile *t);
size_t works_next_to_make(struct ws_run *r);
/* For a tile that is waited for: drops others, its own run's last. */
bool works_make_room(struct ws_works *w, struct ws_run *r, size_t n);
/* For one that nobody waits for yet. */
bool works_may_go_ahead(const struct ws_works *w, const struct ws_run *r, size_t n);

/* works_make.c */
/* Fewer threads will do; none will not. */
int works_start_threads(struct ws_works *w, struct ws_err *err);

/* works_run.c */
void works_free_run(struct ws_run *r);

#endif
