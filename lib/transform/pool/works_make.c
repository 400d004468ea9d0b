/* SPDX-License-Identifier: Apache-2.0 */
/* works_make.c - the threads: each has a desk, looks for the tile that is
 * needed most, and makes it. */
#include "works_core.h"

#include "job.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHELF_PART = 6 };

/* ---- desks ----------------------------------------------------------------------------------- */

void *ws_desk_take(struct ws_desk *b, size_t n)
{
	n = (n + WORKS_ALIGN - 1) / WORKS_ALIGN * WORKS_ALIGN;
	assert(n <= b->size - b->used);
	void *p = b->bytes + b->used;
	b->used += n;
	return p;
}

size_t ws_desk_left(const struct ws_desk *b)
{
	return b->size - b->used;
}

bool ws_desk_unwanted(const struct ws_desk *b)
{
	return b->unwanted && __atomic_load_n(b->unwanted, __ATOMIC_RELAXED);
}

static int set_up_desk(struct ws_works *w, struct ws_desk *b)
{
	const size_t shelf = works_part_of_desk(w, SHELF_PART);
	b->size = works_part_of_desk(w, 2);
	b->shelf = aligned_alloc(WORKS_ALIGN, shelf + b->size);
	if (!b->shelf)
		return -1;
	b->shelf_floats = shelf / sizeof(float);
	b->bytes = (char *)b->shelf + shelf;
	ws_buf_init(&b->buf, works_part_of_desk(w, WORKS_BUF_PART));
	return 0;
}

/* ---- threads --------------------------------------------------------------------------------- */

static size_t item_of(const struct ws_run *r, size_t tile)
{
	size_t lo = 0, hi = r->n_items;
	while (hi - lo > 1) {
		const size_t mid = lo + (hi - lo) / 2;
		if (r->first[mid] <= tile)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

/* What a thread should do now. */
static bool find_work(struct ws_works *w, struct ws_run **run, size_t *tile)
{
	for (struct ws_run *r = w->runs; r; r = r->next) {
		if (r->wanted != SIZE_MAX && r->tiles[r->wanted].state == ABSENT &&
		    works_make_room(w, r, r->tiles[r->wanted].room)) {
			*run = r;
			*tile = r->wanted;
			return true;
		}
	}
	for (struct ws_run *r = w->runs; r; r = r->next) {
		const size_t i = r->eager ? works_next_to_make(r) : works_count(r);
		if (i == works_count(r) || r->failed < i)
			continue;
		if (!r->items[item_of(r, i)]->dry && !works_may_go_ahead(w, r, r->tiles[i].room))
			continue;
		*run = r;
		*tile = i;
		return true;
	}
	return false;
}

static void note_failure(struct ws_run *r, size_t tile, const struct ws_err *err)
{
	r->tiles[tile].state = FAILED;
	if (tile < r->failed) {
		r->failed = tile;
		r->err = *err;
	}
}

static int make_bytes(struct ws_works *w, struct ws_desk *desk, const struct ws_tiled *item,
                      uint64_t at, void *bytes, size_t n, struct ws_err *err)
{
	char of[32];
	if (!w->trace)
		return item->make(item, at, bytes, n, desk, err);
	snprintf(of, sizeof of, "thread %td", desk - w->desks + 1);
	const struct ws_trace_what tile = { .row = WS_TRACE_TRANSFORM,
		                            .of = of,
		                            .about = item->name,
		                            .name = item->dry ? "look at values" : "make" };
	const uint64_t span = ws_trace_begin(w->trace, &tile);
	const int rc = item->make(item, at, bytes, n, desk, err);
	ws_trace_end(w->trace, span,
	             &(struct ws_trace_end){ .bytes = item->dry ? 0 : n, .unfinished = rc != 0 });
	return rc;
}

/* Called and returns with the lock held. */
static void make_tile(struct ws_works *w, struct ws_desk *desk, struct ws_run *r, size_t i)
{
	struct ws_err err = WS_ERR_INIT;
	struct tile *t = &r->tiles[i];
	const size_t k = item_of(r, i);
	const struct ws_tiled *item = r->items[k];
	const uint64_t at = (i - r->first[k]) * item->tile;
	const uint64_t left = item->bytes - at;
	t->state = MAKING;
	r->far = i < r->far ? r->far : i + 1;
	r->n_making++;
	void *bytes = NULL;
	if (!item->dry) {
		r->held += t->room;
		w->held += t->room;
		bytes = works_find_memory(w, t->room);
		works_count_peak(w);
	}
	pthread_mutex_unlock(&w->lock);
	if (!item->dry && !bytes)
		bytes = ws_tilemem_new(t->room);
	desk->used = 0;
	desk->unwanted = &r->ended;
	const size_t n = (size_t)(left < item->tile ? left : item->tile);
	const int rc =
		!item->dry && !bytes ? ws_oom(&err) : make_bytes(w, desk, item, at, bytes, n, &err);
	pthread_mutex_lock(&w->lock);
	w->made++;
	r->n_making--;
	t->bytes = bytes;
	t->state = READY;
	if (item->dry)
		r->n_dry++;
	else if (rc || r->ended || i < r->at) {
		if (!bytes) { /* works_forget counts what lies there */
			r->held -= t->room;
			w->held -= t->room;
		}
		works_forget(r, t);
	}
	if (rc)
		note_failure(r, i, &err);
	if (r->ended && r->n_making == 0)
		works_free_run(r);
	pthread_cond_broadcast(&w->done);
	pthread_cond_broadcast(&w->work); /* there may be room again */
}

struct worker {
	struct ws_works *works;
	unsigned number;
};

static void *work(void *arg)
{
	struct worker self = *(struct worker *)arg;
	struct ws_works *w = self.works;
	free(arg);
	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		struct ws_run *r;
		size_t i;
		if (find_work(w, &r, &i))
			make_tile(w, &w->desks[self.number], r, i);
		else
			pthread_cond_wait(&w->work, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int start_thread(struct ws_works *w)
{
	struct worker *self = malloc(sizeof *self);
	struct ws_desk *desk = &w->desks[w->n_started];
	if (!self || set_up_desk(w, desk)) {
		free(self);
		return -1;
	}
	*self = (struct worker){ w, w->n_started };
	if (ws_thread_start(&w->threads[w->n_started], work, self, NULL)) {
		free(desk->shelf);
		desk->shelf = NULL;
		free(self);
		return -1;
	}
	w->n_started++;
	w->desked += w->desk;
	works_count_peak(w);
	return 0;
}

int works_start_threads(struct ws_works *w, struct ws_err *err)
{
	while (w->n_started < w->n_threads && start_thread(w) == 0)
		continue;
	return w->n_started ?
	               0 :
	               ws_err_set(err, WS_ESYSTEM, "cannot start a thread with %llu MiB to work in",
	                          (unsigned long long)(w->desk >> 20));
}
