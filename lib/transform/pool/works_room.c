/* SPDX-License-Identifier: Apache-2.0 */
/* works_room.c - who gets memory next: whoever is waited for, then whoever is read first, as far
 * as what is made ahead fits beside. */
#include "works_core.h"

void *works_find_memory(struct ws_works *w, uint32_t room)
{
	void *found = ws_tilemem_find(&w->spares, room);
	ws_tilemem_trim(&w->spares, w->store > w->held ? w->store - w->held : 0);
	return found;
}

void works_forget(struct ws_run *r, struct tile *t)
{
	if (t->bytes) {
		r->held -= t->room;
		r->works->held -= t->room;
		ws_tilemem_put(&r->works->spares, t->bytes, t->room);
	}
	t->bytes = NULL;
	t->state = ABSENT;
}

size_t works_next_to_make(struct ws_run *r)
{
	while (r->front < works_count(r) && r->tiles[r->front].state != ABSENT)
		r->front++;
	return r->front;
}

/* The farthest tile of the run that nobody needs at once; NULL: there is none. */
static struct tile *find_spare(struct ws_run *r)
{
	for (size_t i = r->far; i-- > r->at;)
		if (r->tiles[i].state == READY && r->tiles[i].bytes && !r->tiles[i].pinned &&
		    i != r->wanted) {
			r->front = i < r->front ? i : r->front;
			return &r->tiles[i];
		}
	return NULL;
}

static struct ws_run *greediest(struct ws_works *w, const struct ws_run *but)
{
	struct ws_run *most = NULL;
	for (struct ws_run *r = w->runs; r; r = r->next)
		if (r != but && r->held && (!most || r->held > most->held))
			most = r;
	return most;
}

bool works_make_room(struct ws_works *w, struct ws_run *r, size_t n)
{
	while (w->held + n > w->store) {
		struct ws_run *from = greediest(w, r);
		struct tile *t = from ? find_spare(from) : NULL;
		for (struct ws_run *x = w->runs; !t && x; x = x->next)
			if ((t = x == r ? NULL : find_spare(x)))
				from = x;
		if (!t) {
			from = r;
			t = find_spare(r);
		}
		w->starved = !t;
		if (!t)
			return false; /* what is held is being made or read, and will be free soon
			               */
		works_forget(from, t);
	}
	return true;
}

bool works_may_go_ahead(const struct ws_works *w, const struct ws_run *r, size_t n)
{
	return r->held + n <= w->store / w->n_runs && w->held + n <= w->store - ws_works_tile(w);
}
