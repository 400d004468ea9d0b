/* SPDX-License-Identifier: Apache-2.0 */
/* pool_workers.c - the threads: each has a scratch, finds the most urgent tile, and makes it. */
#include "worker_pool_core.h"

#include "job.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { CACHE_PART = 6 };

/* ---- scratches ------------------------------------------------------------------------------- */

void *ws_scratch_take(struct ws_scratch *b, size_t n)
{
	n = (n + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
	assert(n <= b->size - b->used);
	void *p = b->bytes + b->used;
	b->used += n;
	return p;
}

size_t ws_scratch_left(const struct ws_scratch *b)
{
	return b->size - b->used;
}

bool ws_scratch_cancelled(const struct ws_scratch *b)
{
	return b->unwanted && __atomic_load_n(b->unwanted, __ATOMIC_RELAXED);
}

static int set_up_scratch(struct ws_worker_pool *w, struct ws_scratch *b)
{
	const size_t cache = pool_part_of_scratch(w, CACHE_PART);
	b->size = pool_part_of_scratch(w, 2);
	b->factor_cache = aligned_alloc(POOL_ALIGN, cache + b->size);
	if (!b->factor_cache)
		return -1;
	b->cache_floats = cache / sizeof(float);
	b->bytes = (char *)b->factor_cache + cache;
	ws_buf_init(&b->buf, pool_part_of_scratch(w, POOL_BUF_PART));
	return 0;
}

/* ---- threads --------------------------------------------------------------------------------- */

static size_t item_of(const struct ws_pool_job *r, size_t tile)
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

/* Finds the next tile for a thread. */
static bool find_work(struct ws_worker_pool *w, struct ws_pool_job **job, size_t *tile)
{
	for (struct ws_pool_job *r = w->jobs; r; r = r->next) {
		if (r->wanted != SIZE_MAX && r->tiles[r->wanted].state == ABSENT &&
		    pool_make_room(w, r, r->tiles[r->wanted].room)) {
			*job = r;
			*tile = r->wanted;
			return true;
		}
	}
	for (struct ws_pool_job *r = w->jobs; r; r = r->next) {
		const size_t i = r->eager ? pool_next_to_make(r) : pool_count(r);
		if (i == pool_count(r) || r->failed < i)
			continue;
		if (!r->items[item_of(r, i)]->scan_only &&
		    !pool_may_go_ahead(w, r, r->tiles[i].room))
			continue;
		*job = r;
		*tile = i;
		return true;
	}
	return false;
}

static void note_failure(struct ws_pool_job *r, size_t tile, const struct ws_err *err)
{
	r->tiles[tile].state = FAILED;
	if (tile < r->failed) {
		r->failed = tile;
		r->err = *err;
	}
}

static int make_bytes(struct ws_worker_pool *w, struct ws_scratch *scratch,
                      const struct ws_tiled *item, uint64_t at, void *bytes, size_t n,
                      struct ws_err *err)
{
	char of[32];
	if (!w->trace)
		return item->make(item, at, bytes, n, scratch, err);
	snprintf(of, sizeof of, "thread %td", scratch - w->scratches + 1);
	const struct ws_trace_what tile = { .row = WS_TRACE_TRANSFORM,
		                            .of = of,
		                            .about = item->name,
		                            .name = item->scan_only ? "check values" : "make" };
	const uint64_t span = ws_trace_begin(w->trace, &tile);
	const int rc = item->make(item, at, bytes, n, scratch, err);
	ws_trace_end(w->trace, span,
	             &(struct ws_trace_end){ .bytes = item->scan_only ? 0 : n,
	                                     .unfinished = rc != 0 });
	return rc;
}

/* Called and returns with the lock held. */
static void make_tile(struct ws_worker_pool *w, struct ws_scratch *scratch, struct ws_pool_job *r,
                      size_t i)
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
	if (!item->scan_only) {
		r->held += t->room;
		w->held += t->room;
		bytes = pool_find_memory(w, t->room);
		pool_count_peak(w);
	}
	pthread_mutex_unlock(&w->lock);
	if (!item->scan_only && !bytes)
		bytes = ws_tilemem_new(t->room);
	scratch->used = 0;
	scratch->unwanted = &r->ended;
	const size_t n = (size_t)(left < item->tile ? left : item->tile);
	const int rc = !item->scan_only && !bytes ?
	                       ws_oom(&err) :
	                       make_bytes(w, scratch, item, at, bytes, n, &err);
	pthread_mutex_lock(&w->lock);
	w->made++;
	r->n_making--;
	t->bytes = bytes;
	t->state = READY;
	if (item->scan_only)
		r->n_scanned++;
	else if (rc || r->ended || i < r->at) {
		if (!bytes) { /* pool_forget subtracts only existing memory */
			r->held -= t->room;
			w->held -= t->room;
		}
		pool_forget(r, t);
	}
	if (rc)
		note_failure(r, i, &err);
	if (r->ended && r->n_making == 0)
		pool_free_job(r);
	pthread_cond_broadcast(&w->done);
	pthread_cond_broadcast(&w->work); /* there may be room again */
}

struct worker_arg {
	struct ws_worker_pool *pool;
	unsigned number;
};

static void *worker_thread(void *arg)
{
	struct worker_arg self = *(struct worker_arg *)arg;
	struct ws_worker_pool *w = self.pool;
	free(arg);
	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		struct ws_pool_job *r;
		size_t i;
		if (find_work(w, &r, &i))
			make_tile(w, &w->scratches[self.number], r, i);
		else
			pthread_cond_wait(&w->work, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int start_thread(struct ws_worker_pool *w)
{
	struct worker_arg *self = malloc(sizeof *self);
	struct ws_scratch *scratch = &w->scratches[w->n_started];
	if (!self || set_up_scratch(w, scratch)) {
		free(self);
		return -1;
	}
	*self = (struct worker_arg){ w, w->n_started };
	if (ws_thread_start(&w->threads[w->n_started], worker_thread, self, NULL)) {
		free(scratch->factor_cache);
		scratch->factor_cache = NULL;
		free(self);
		return -1;
	}
	w->n_started++;
	w->started_bytes += w->worker_bytes;
	pool_count_peak(w);
	return 0;
}

int pool_start_threads(struct ws_worker_pool *w, struct ws_err *err)
{
	while (w->n_started < w->n_threads && start_thread(w) == 0)
		continue;
	return w->n_started ?
	               0 :
	               ws_err_set(err, WS_ESYSTEM, "cannot start a thread with %llu MiB to work in",
	                          (unsigned long long)(w->worker_bytes >> 20));
}
