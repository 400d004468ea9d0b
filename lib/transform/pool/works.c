/* SPDX-License-Identifier: Apache-2.0 */
/* works.c - all of the works: how many threads, how its memory is divided, what is counted. */
#include "works_core.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_OF_A_TILE = 256 << 20 };
static const uint64_t DEFAULT_SCRATCH = UINT64_C(128) << 20, LEAST_SCRATCH = UINT64_C(16) << 20;
static const uint64_t LEAST_DESK = UINT64_C(3) << 20;

/* A sixth is the shelf, a third is what buf may grow to, half is the desk itself. */
size_t works_part_of_desk(const struct ws_works *w, unsigned part)
{
	return (size_t)(w->desk / part) / WORKS_ALIGN * WORKS_ALIGN;
}

void works_count_peak(struct ws_works *w)
{
	const uint64_t now = w->held + w->spares.spared + w->desked + w->kept;
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
	most = most < WORKS_MOST_THREADS ? most : WORKS_MOST_THREADS;
	return n > most ? (unsigned)most : n;
}

int ws_works_new(unsigned threads, uint64_t scratch, struct ws_works **out, struct ws_err *err)
{
	struct ws_works *w = calloc(1, sizeof *w);
	pthread_condattr_t monotonic;
	if (!w)
		return ws_oom(err);
	w->scratch = !scratch ? DEFAULT_SCRATCH : scratch < LEAST_SCRATCH ? LEAST_SCRATCH : scratch;
	w->store = w->scratch / 2;
	w->n_threads = choose_threads(threads, w->scratch / 8 * 3 / LEAST_DESK);
	w->desk = w->scratch / 8 * 3 / w->n_threads;
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

void ws_works_free(struct ws_works *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	assert(!w->runs);
	w->stop = true;
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->n_started; i++) {
		pthread_join(w->threads[i], NULL);
		ws_buf_free(&w->desks[i].buf);
		free(w->desks[i].shelf);
	}
	ws_tilemem_trim(&w->spares, 0);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->work);
	pthread_cond_destroy(&w->done);
	free(w);
}

void ws_works_trace(struct ws_works *w, struct ws_trace *trace)
{
	w->trace = trace;
}

/* No tile takes more memory than the largest is long (ws_tilemem_room). */
size_t ws_works_tile(const struct ws_works *w)
{
	const uint64_t most = w->store / 8 < MOST_OF_A_TILE ? w->store / 8 : MOST_OF_A_TILE;
	if (most < WS_TILEMEM_HUGE)
		return (size_t)(most < WS_TILEMEM_HUGE / 2 ? most : WS_TILEMEM_HUGE / 2);
	return (size_t)(most / WS_TILEMEM_HUGE * WS_TILEMEM_HUGE);
}

size_t ws_works_desk(const struct ws_works *w)
{
	return works_part_of_desk(w, 2);
}

size_t ws_works_buf(const struct ws_works *w)
{
	return works_part_of_desk(w, WORKS_BUF_PART);
}

bool ws_works_keep(struct ws_works *w, uint64_t bytes)
{
	pthread_mutex_lock(&w->lock);
	const bool fits = bytes <= w->keep && w->kept <= w->keep - bytes;
	w->kept += fits ? bytes : 0;
	works_count_peak(w);
	pthread_mutex_unlock(&w->lock);
	return fits;
}

void ws_works_unkeep(struct ws_works *w, uint64_t bytes)
{
	pthread_mutex_lock(&w->lock);
	assert(bytes <= w->kept);
	w->kept -= bytes;
	pthread_mutex_unlock(&w->lock);
}

bool ws_works_keep_is_scarce(struct ws_works *w)
{
	pthread_mutex_lock(&w->lock);
	const bool scarce = w->kept > w->keep / 2;
	pthread_mutex_unlock(&w->lock);
	return scarce;
}

uint64_t ws_works_peak(struct ws_works *w)
{
	pthread_mutex_lock(&w->lock);
	const uint64_t peak = w->peak;
	pthread_mutex_unlock(&w->lock);
	return peak;
}

uint64_t ws_works_made(struct ws_works *w)
{
	pthread_mutex_lock(&w->lock);
	const uint64_t made = w->made;
	pthread_mutex_unlock(&w->lock);
	return made;
}
