/* SPDX-License-Identifier: Apache-2.0 */
/* pool_jobs.c - jobs: divided into tiles, read from front to back, ended. */
#include "worker_pool_core.h"

#include "wsync/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void pool_free_job(struct ws_pool_job *r)
{
	free(r->items);
	free(r->first);
	free(r->tiles);
	free(r);
}

static int lay_out(struct ws_pool_job *r, const struct ws_tiled *const *items)
{
	size_t n = 0;
	r->items = calloc(r->n_items + 1, sizeof *r->items);
	r->first = calloc(r->n_items + 1, sizeof *r->first);
	if (!r->items || !r->first)
		return -1;
	for (size_t k = 0; k < r->n_items; k++) {
		r->items[k] = items[k];
		r->first[k] = n;
		n += (size_t)((items[k]->bytes + items[k]->tile - 1) / items[k]->tile);
	}
	r->first[r->n_items] = n;
	r->tiles = calloc(n + 1, sizeof *r->tiles);
	if (!r->tiles)
		return -1;
	for (size_t k = 0; k < r->n_items; k++) {
		uint64_t left = items[k]->bytes;
		for (size_t i = r->first[k]; i < r->first[k + 1]; i++, left -= items[k]->tile) {
			const uint64_t size = left < items[k]->tile ? left : items[k]->tile;
			assert(items[k]->scan_only || size <= ws_worker_pool_tile(r->pool));
			r->tiles[i].n = items[k]->scan_only ? 0 : (uint32_t)size;
			r->tiles[i].room = ws_tilemem_room(r->tiles[i].n);
		}
	}
	return 0;
}

static void append_job(struct ws_worker_pool *w, struct ws_pool_job *r)
{
	struct ws_pool_job **end = &w->jobs;
	while (*end)
		end = &(*end)->next;
	*end = r;
	w->n_jobs++;
}

int ws_pool_job_begin(struct ws_worker_pool *w, const struct ws_tiled *const *items, size_t n,
                      bool eager, struct ws_pool_job **out, struct ws_err *err)
{
	struct ws_pool_job *r = calloc(1, sizeof *r);
	if (!r)
		return ws_oom(err);
	*r = (struct ws_pool_job){
		.pool = w, .n_items = n, .eager = eager, .wanted = SIZE_MAX, .failed = SIZE_MAX
	};
	if (lay_out(r, items)) {
		pool_free_job(r);
		return ws_oom(err);
	}
	pthread_mutex_lock(&w->lock);
	const int rc = pool_start_threads(w, err);
	if (rc == 0)
		append_job(w, r);
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
	if (rc) {
		pool_free_job(r);
		return -1;
	}
	for (size_t k = 0; k < n; k++)
		if (items[k]->hold)
			items[k]->hold(items[k]);
	*out = r;
	return 0;
}

void ws_pool_job_set_eager(struct ws_pool_job *r)
{
	pthread_mutex_lock(&r->pool->lock);
	r->eager = true;
	pthread_cond_broadcast(&r->pool->work);
	pthread_mutex_unlock(&r->pool->lock);
}

const struct ws_tiled *ws_pool_job_item(const struct ws_pool_job *r, size_t item)
{
	return r->items[item];
}

/* Drops the items before this one, or holds them again. Called by the reader without the lock. */
static void drop_items(struct ws_pool_job *r, size_t before)
{
	for (; r->past < before; r->past++)
		if (r->items[r->past]->drop)
			r->items[r->past]->drop(r->items[r->past]);
	for (; r->past > before; r->past--)
		if (r->items[r->past - 1]->hold)
			r->items[r->past - 1]->hold(r->items[r->past - 1]);
}

void ws_pool_job_end(struct ws_pool_job *r)
{
	if (!r)
		return;
	struct ws_worker_pool *w = r->pool;
	drop_items(r, r->n_items);
	pthread_mutex_lock(&w->lock);
	struct ws_pool_job **p = &w->jobs;
	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
	w->n_jobs--;
	for (size_t i = 0; i < pool_count(r); i++)
		if (r->tiles[i].state == READY)
			pool_forget(r, &r->tiles[i]);
	__atomic_store_n(&r->ended, true, __ATOMIC_RELAXED); /* workers read it without the lock */
	if (r->n_making == 0)
		pool_free_job(r);
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The reader is at this tile now: drops the tiles before it. */
static void go_to(struct ws_pool_job *r, size_t tile)
{
	for (size_t i = r->at; i < tile; i++)
		if (r->tiles[i].state == READY && !r->tiles[i].pinned)
			pool_forget(r, &r->tiles[i]);
	if (tile < r->at || r->front < tile)
		r->front = tile;
	r->at = tile;
}

static int wait_for(struct ws_pool_job *r, size_t tile, struct ws_err *err)
{
	struct ws_worker_pool *w = r->pool;
	r->wanted = tile;
	while (r->tiles[tile].state != READY && r->tiles[tile].state != FAILED) {
		pthread_cond_broadcast(&w->work);
		pthread_cond_wait(&w->done, &w->lock);
	}
	r->wanted = SIZE_MAX;
	if (r->tiles[tile].state == READY)
		return 0;
	if (err)
		*err = r->err;
	return -1;
}

int ws_pool_job_read(struct ws_pool_job *r, size_t item, uint64_t at, void *dst, size_t n,
                     struct ws_err *err)
{
	struct ws_worker_pool *w = r->pool;
	const uint64_t size = r->items[item]->tile;
	int rc = 0;
	assert(at <= r->items[item]->bytes && n <= r->items[item]->bytes - at);
	pthread_mutex_lock(&w->lock);
	while (n && rc == 0) {
		const size_t i = r->first[item] + (size_t)(at / size);
		const size_t from = (size_t)(at % size);
		struct tile *t = &r->tiles[i];
		const size_t some = t->n - from < n ? t->n - from : n;
		if (i != r->at)
			go_to(r, i);
		rc = wait_for(r, i, err);
		if (rc)
			break;
		t->pinned = true;
		pthread_mutex_unlock(&w->lock);
		drop_items(r, item);
		memcpy(dst, (const char *)t->bytes + from, some);
		pthread_mutex_lock(&w->lock);
		t->pinned = false;
		if (from + some == t->n)
			go_to(r, i + 1);
		if (from + some == t->n || w->starved)
			pthread_cond_broadcast(&w->work);
		dst = (char *)dst + some;
		at += some;
		n -= some;
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int ws_pool_job_wait(struct ws_pool_job *r, int timeout_ms, struct ws_err *err)
{
	struct ws_worker_pool *w = r->pool;
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	const int64_t ns = until.tv_nsec + (int64_t)timeout_ms * WS_NS_PER_MS;
	until.tv_sec += ns / WS_NS_PER_S;
	until.tv_nsec = ns % WS_NS_PER_S;
	int timed_out = 0;
	pthread_mutex_lock(&w->lock);
	while (r->n_scanned < pool_count(r) && !timed_out &&
	       !(r->failed != SIZE_MAX && r->n_making == 0))
		timed_out = timeout_ms < 0 ? pthread_cond_wait(&w->done, &w->lock) :
		                             pthread_cond_timedwait(&w->done, &w->lock, &until);
	const bool over =
		r->n_scanned == pool_count(r) || (r->failed != SIZE_MAX && r->n_making == 0);
	const bool failed = over && r->failed != SIZE_MAX;
	if (failed && err)
		*err = r->err;
	pthread_mutex_unlock(&w->lock);
	return failed ? -1 : over;
}
