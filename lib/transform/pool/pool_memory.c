/* SPDX-License-Identifier: Apache-2.0 */
/* pool_memory.c - which tiles get memory: first tiles with a waiting reader, then tiles made ahead
 * for the oldest job, while they fit. */
#include "worker_pool_core.h"

void *pool_find_memory(struct ws_worker_pool *w, uint32_t room)
{
	void *found = ws_tilemem_find(&w->spares, room);
	ws_tilemem_trim(&w->spares, w->store > w->held ? w->store - w->held : 0);
	return found;
}

void pool_forget(struct ws_pool_job *r, struct tile *t)
{
	if (t->bytes) {
		r->held -= t->room;
		r->pool->held -= t->room;
		ws_tilemem_put(&r->pool->spares, t->bytes, t->room);
	}
	t->bytes = NULL;
	t->state = ABSENT;
}

size_t pool_next_to_make(struct ws_pool_job *r)
{
	while (r->front < pool_count(r) && r->tiles[r->front].state != ABSENT)
		r->front++;
	return r->front;
}

/* The farthest tile of the job that is not needed now; NULL: there is none. */
static struct tile *find_spare(struct ws_pool_job *r)
{
	for (size_t i = r->far; i-- > r->at;)
		if (r->tiles[i].state == READY && r->tiles[i].bytes && !r->tiles[i].pinned &&
		    i != r->wanted) {
			r->front = i < r->front ? i : r->front;
			return &r->tiles[i];
		}
	return NULL;
}

static struct ws_pool_job *greediest(struct ws_worker_pool *w, const struct ws_pool_job *but)
{
	struct ws_pool_job *most = NULL;
	for (struct ws_pool_job *r = w->jobs; r; r = r->next)
		if (r != but && r->held && (!most || r->held > most->held))
			most = r;
	return most;
}

bool pool_make_room(struct ws_worker_pool *w, struct ws_pool_job *r, size_t n)
{
	while (w->held + n > w->store) {
		struct ws_pool_job *from = greediest(w, r);
		struct tile *t = from ? find_spare(from) : NULL;
		for (struct ws_pool_job *x = w->jobs; !t && x; x = x->next)
			if ((t = x == r ? NULL : find_spare(x)))
				from = x;
		if (!t) {
			from = r;
			t = find_spare(r);
		}
		w->starved = !t;
		if (!t)
			return false; /* all tiles are being made or read; some are free soon */
		pool_forget(from, t);
	}
	return true;
}

bool pool_may_go_ahead(const struct ws_worker_pool *w, const struct ws_pool_job *r, size_t n)
{
	return r->held + n <= w->store / w->n_jobs &&
	       w->held + n <= w->store - ws_worker_pool_tile(w);
}
