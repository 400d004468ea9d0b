/* SPDX-License-Identifier: Apache-2.0 */
/* worker_pool.c - the number of threads, the division of the memory, and the counters. */
#include "worker_pool_core.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_OF_A_TILE = 256 << 20 };
static const uint64_t DEFAULT_SCRATCH = UINT64_C(128) << 20, LEAST_SCRATCH = UINT64_C(16) << 20;
static const uint64_t LEAST_WORKER_BYTES = UINT64_C(3) << 20;

/* A sixth of a thread's memory is the factor cache, a third is for buf, half is the scratch. */
size_t pool_part_of_scratch(const struct ws_worker_pool *w, unsigned part)
{
	return (size_t)(w->worker_bytes / part) / POOL_ALIGN * POOL_ALIGN;
}

void pool_count_peak(struct ws_worker_pool *w)
{
	const uint64_t now = w->held + w->spares.spared + w->started_bytes + w->kept;
	assert(now <= w->scratch);
	if (now > w->peak)
		w->peak = now;
}

static unsigned choose_threads(unsigned asked, uint64_t most)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	const unsigned n = asked          ? asked :
	                   processors > 8 ? 8 :
	                   processors > 0 ? (unsigned)processors :
	                                    1;
	most = most < POOL_MOST_THREADS ? most : POOL_MOST_THREADS;
	return n > most ? (unsigned)most : n;
}

int ws_worker_pool_new(unsigned threads, uint64_t scratch, struct ws_worker_pool **out,
                       struct ws_err *err)
{
	struct ws_worker_pool *w = calloc(1, sizeof *w);
	pthread_condattr_t monotonic;
	if (!w)
		return ws_oom(err);
	w->scratch = !scratch ? DEFAULT_SCRATCH : scratch < LEAST_SCRATCH ? LEAST_SCRATCH : scratch;
	w->store = w->scratch / 2;
	w->n_threads = choose_threads(threads, w->scratch / 8 * 3 / LEAST_WORKER_BYTES);
	w->worker_bytes = w->scratch / 8 * 3 / w->n_threads;
	w->keep = w->scratch / 8;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&w->work, NULL);
	pthread_cond_init(&w->done, &monotonic);
	pthread_condattr_destroy(&monotonic);
	*out = w;
	return 0;
}

void ws_worker_pool_free(struct ws_worker_pool *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	assert(!w->jobs);
	w->stop = true;
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->n_started; i++) {
		pthread_join(w->threads[i], NULL);
		ws_buf_free(&w->scratches[i].buf);
		free(w->scratches[i].factor_cache);
	}
	ws_tilemem_trim(&w->spares, 0);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->work);
	pthread_cond_destroy(&w->done);
	free(w);
}

void ws_worker_pool_trace(struct ws_worker_pool *w, struct ws_trace *trace)
{
	w->trace = trace;
}

/* The memory of the largest tile has no spare bytes (ws_tilemem_room). */
size_t ws_worker_pool_tile(const struct ws_worker_pool *w)
{
	const uint64_t most = w->store / 8 < MOST_OF_A_TILE ? w->store / 8 : MOST_OF_A_TILE;
	if (most < WS_TILEMEM_HUGE)
		return (size_t)(most < WS_TILEMEM_HUGE / 2 ? most : WS_TILEMEM_HUGE / 2);
	return (size_t)(most / WS_TILEMEM_HUGE * WS_TILEMEM_HUGE);
}

size_t ws_worker_pool_scratch(const struct ws_worker_pool *w)
{
	return pool_part_of_scratch(w, 2);
}

size_t ws_worker_pool_buf(const struct ws_worker_pool *w)
{
	return pool_part_of_scratch(w, POOL_BUF_PART);
}

bool ws_worker_pool_reserve(struct ws_worker_pool *w, uint64_t bytes)
{
	pthread_mutex_lock(&w->lock);
	const bool fits = bytes <= w->keep && w->kept <= w->keep - bytes;
	w->kept += fits ? bytes : 0;
	pool_count_peak(w);
	pthread_mutex_unlock(&w->lock);
	return fits;
}

void ws_worker_pool_unreserve(struct ws_worker_pool *w, uint64_t bytes)
{
	pthread_mutex_lock(&w->lock);
	assert(bytes <= w->kept);
	w->kept -= bytes;
	pthread_mutex_unlock(&w->lock);
}

bool ws_worker_pool_reserve_is_scarce(struct ws_worker_pool *w)
{
	pthread_mutex_lock(&w->lock);
	const bool scarce = w->kept > w->keep / 2;
	pthread_mutex_unlock(&w->lock);
	return scarce;
}

uint64_t ws_worker_pool_peak(struct ws_worker_pool *w)
{
	pthread_mutex_lock(&w->lock);
	const uint64_t peak = w->peak;
	pthread_mutex_unlock(&w->lock);
	return peak;
}

uint64_t ws_worker_pool_tiles_made(struct ws_worker_pool *w)
{
	pthread_mutex_lock(&w->lock);
	const uint64_t made = w->made;
	pthread_mutex_unlock(&w->lock);
	return made;
}
