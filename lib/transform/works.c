/* SPDX-License-Identifier: Apache-2.0 */
/* works.c - the threads, the tiles, and who gets memory next.
 *
 * One lock for all of it: a tile is worth a millisecond of work, so it is taken a few thousand times a
 * second at most. A run that was ended while a tile of it was being made is freed by the thread that
 * made it. */
#include "works.h"

#include "tilemem.h"
#include "wsync/clock.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 64, SHELF_PART = 6, BUF_PART = 3, ALIGN = 64, MOST_OF_A_TILE = 256 << 20 };
static const uint64_t DEFAULT_SCRATCH = UINT64_C(128) << 20, LEAST_SCRATCH = UINT64_C(16) << 20;
static const uint64_t LEAST_BENCH = UINT64_C(3) << 20;

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
	pthread_t threads[MOST_THREADS];
	struct ws_bench benches[MOST_THREADS];
	unsigned n_threads, n_started;
	struct ws_run *runs; /* the oldest first */
	size_t n_runs;
	uint64_t store, bench, keep;      /* limits */
	uint64_t held, benched, kept;     /* in use */
	uint64_t scratch, peak, made;
	struct ws_tilemem spares;         /* within the store too */
	bool starved; /* a tile that is waited for found no room */
	bool stop;
};

/* ---- benches ------------------------------------------------------------------------------------- */

void *ws_bench_take(struct ws_bench *b, size_t n)
{
	n = (n + ALIGN - 1) / ALIGN * ALIGN;
	assert(n <= b->size - b->used);
	void *p = b->bytes + b->used;
	b->used += n;
	return p;
}

size_t ws_bench_left(const struct ws_bench *b)
{
	return b->size - b->used;
}

bool ws_bench_unwanted(const struct ws_bench *b)
{
	return b->unwanted && __atomic_load_n(b->unwanted, __ATOMIC_RELAXED);
}

/* A sixth is the shelf, a third is what buf may grow to, half is the bench itself. */
static size_t part_of_bench(const struct ws_works *w, unsigned part)
{
	return (size_t)(w->bench / part) / ALIGN * ALIGN;
}

static int set_up_bench(struct ws_works *w, struct ws_bench *b)
{
	const size_t shelf = part_of_bench(w, SHELF_PART);
	b->size = part_of_bench(w, 2);
	b->shelf = aligned_alloc(ALIGN, shelf + b->size);
	if (!b->shelf)
		return -1;
	b->shelf_floats = shelf / sizeof(float);
	b->bytes = (char *)b->shelf + shelf;
	ws_buf_init(&b->buf, part_of_bench(w, BUF_PART));
	return 0;
}

static void count_peak(struct ws_works *w)
{
	const uint64_t now = w->held + w->spares.spared + w->benched + w->kept;
	assert(now <= w->scratch);
	if (now > w->peak)
		w->peak = now;
}

/* ---- memory -------------------------------------------------------------------------------------- */

static void *find_memory(struct ws_works *w, uint32_t room)
{
	void *found = ws_tilemem_find(&w->spares, room);
	ws_tilemem_trim(&w->spares, w->store > w->held ? w->store - w->held : 0);
	return found;
}

static void forget_tile(struct ws_run *r, struct tile *t)
{
	if (t->bytes) {
		r->held -= t->room;
		r->works->held -= t->room;
		ws_tilemem_put(&r->works->spares, t->bytes, t->room);
	}
	t->bytes = NULL;
	t->state = ABSENT;
}

static size_t count_of(const struct ws_run *r)
{
	return r->first[r->n_items];
}

static size_t next_to_make(struct ws_run *r)
{
	while (r->front < count_of(r) && r->tiles[r->front].state != ABSENT)
		r->front++;
	return r->front;
}

/* The farthest tile of the run that nobody needs at once; NULL: there is none. */
static struct tile *find_spare(struct ws_run *r)
{
	for (size_t i = r->far; i-- > r->at;)
		if (r->tiles[i].state == READY && r->tiles[i].bytes && !r->tiles[i].pinned && i != r->wanted) {
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

/* For a tile that is waited for: drops others, its own run's last. */
static bool make_room(struct ws_works *w, struct ws_run *r, size_t n)
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
			return false; /* what is held is being made or read, and will be free soon */
		forget_tile(from, t);
	}
	return true;
}

static bool may_go_ahead(const struct ws_works *w, const struct ws_run *r, size_t n)
{
	return r->held + n <= w->store / w->n_runs && w->held + n <= w->store - ws_works_tile(w);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

static void free_run(struct ws_run *r)
{
	free(r->items);
	free(r->first);
	free(r->tiles);
	free(r);
}

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
		    make_room(w, r, r->tiles[r->wanted].room)) {
			*run = r;
			*tile = r->wanted;
			return true;
		}
	}
	for (struct ws_run *r = w->runs; r; r = r->next) {
		const size_t i = r->eager ? next_to_make(r) : count_of(r);
		if (i == count_of(r) || r->failed < i)
			continue;
		if (!r->items[item_of(r, i)]->dry && !may_go_ahead(w, r, r->tiles[i].room))
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

/* Called and returns with the lock held. */
static void make_tile(struct ws_works *w, struct ws_bench *bench, struct ws_run *r, size_t i)
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
		bytes = find_memory(w, t->room);
		count_peak(w);
	}
	pthread_mutex_unlock(&w->lock);
	if (!item->dry && !bytes)
		bytes = ws_tilemem_new(t->room);
	bench->used = 0;
	bench->unwanted = &r->ended;
	const int rc = !item->dry && !bytes
	                       ? ws_err_set(&err, WS_ESYSTEM, "out of memory")
	                       : item->make(item, at, bytes, (size_t)(left < item->tile ? left : item->tile),
	                                    bench, &err);
	pthread_mutex_lock(&w->lock);
	w->made++;
	r->n_making--;
	t->bytes = bytes;
	t->state = READY;
	if (item->dry)
		r->n_dry++;
	else if (rc || r->ended || i < r->at) {
		if (!bytes) { /* forget_tile counts what lies there */
			r->held -= t->room;
			w->held -= t->room;
		}
		forget_tile(r, t);
	}
	if (rc)
		note_failure(r, i, &err);
	if (r->ended && r->n_making == 0)
		free_run(r);
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
			make_tile(w, &w->benches[self.number], r, i);
		else
			pthread_cond_wait(&w->work, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int start_thread(struct ws_works *w)
{
	struct worker *self = malloc(sizeof *self);
	struct ws_bench *bench = &w->benches[w->n_started];
	if (!self || set_up_bench(w, bench)) {
		free(self);
		return -1;
	}
	*self = (struct worker){ w, w->n_started };
	/* Signals belong to the thread that knows what to do about them. */
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	const int rc = pthread_create(&w->threads[w->n_started], NULL, work, self);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		free(bench->shelf);
		bench->shelf = NULL;
		free(self);
		return -1;
	}
	w->n_started++;
	w->benched += w->bench;
	count_peak(w);
	return 0;
}

/* Fewer threads will do; none will not. */
static int start_threads(struct ws_works *w, struct ws_err *err)
{
	while (w->n_started < w->n_threads && start_thread(w) == 0)
		continue;
	return w->n_started ? 0 : ws_err_set(err, WS_ESYSTEM, "cannot start a thread with %llu MiB to work in",
	                                     (unsigned long long)(w->bench >> 20));
}

static int lay_out(struct ws_run *r, const struct ws_tiled *const *items)
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
			assert(items[k]->dry || size <= ws_works_tile(r->works));
			r->tiles[i].n = items[k]->dry ? 0 : (uint32_t)size;
			r->tiles[i].room = ws_tilemem_room(r->tiles[i].n);
		}
	}
	return 0;
}

static void append_run(struct ws_works *w, struct ws_run *r)
{
	struct ws_run **end = &w->runs;
	while (*end)
		end = &(*end)->next;
	*end = r;
	w->n_runs++;
}

int ws_run_begin(struct ws_works *w, const struct ws_tiled *const *items, size_t n, bool eager,
                 struct ws_run **out, struct ws_err *err)
{
	struct ws_run *r = calloc(1, sizeof *r);
	if (!r)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	*r = (struct ws_run){ .works = w, .n_items = n, .eager = eager, .wanted = SIZE_MAX,
		              .failed = SIZE_MAX };
	if (lay_out(r, items)) {
		free_run(r);
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	}
	pthread_mutex_lock(&w->lock);
	const int rc = start_threads(w, err);
	if (rc == 0)
		append_run(w, r);
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
	if (rc) {
		free_run(r);
		return -1;
	}
	for (size_t k = 0; k < n; k++)
		if (items[k]->hold)
			items[k]->hold(items[k]);
	*out = r;
	return 0;
}

void ws_run_eager(struct ws_run *r)
{
	pthread_mutex_lock(&r->works->lock);
	r->eager = true;
	pthread_cond_broadcast(&r->works->work);
	pthread_mutex_unlock(&r->works->lock);
}

const struct ws_tiled *ws_run_item(const struct ws_run *r, size_t item)
{
	return r->items[item];
}

/* Lets go of items that lie behind; the reader's own thread, without the lock. */
static void drop_items(struct ws_run *r, size_t before)
{
	for (; r->past < before; r->past++)
		if (r->items[r->past]->drop)
			r->items[r->past]->drop(r->items[r->past]);
	for (; r->past > before; r->past--)
		if (r->items[r->past - 1]->hold)
			r->items[r->past - 1]->hold(r->items[r->past - 1]);
}

void ws_run_end(struct ws_run *r)
{
	if (!r)
		return;
	struct ws_works *w = r->works;
	drop_items(r, r->n_items);
	pthread_mutex_lock(&w->lock);
	struct ws_run **p = &w->runs;
	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
	w->n_runs--;
	for (size_t i = 0; i < count_of(r); i++)
		if (r->tiles[i].state == READY)
			forget_tile(r, &r->tiles[i]);
	__atomic_store_n(&r->ended, true, __ATOMIC_RELAXED); /* makers look without the lock */
	if (r->n_making == 0)
		free_run(r);
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* The reader is at that tile now: what lies before it is not needed, what lies behind it may be. */
static void go_to(struct ws_run *r, size_t tile)
{
	for (size_t i = r->at; i < tile; i++)
		if (r->tiles[i].state == READY && !r->tiles[i].pinned)
			forget_tile(r, &r->tiles[i]);
	if (tile < r->at || r->front < tile)
		r->front = tile;
	r->at = tile;
}

static int wait_for(struct ws_run *r, size_t tile, struct ws_err *err)
{
	struct ws_works *w = r->works;
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

int ws_run_read(struct ws_run *r, size_t item, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	struct ws_works *w = r->works;
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

int ws_run_wait(struct ws_run *r, int timeout_ms, struct ws_err *err)
{
	struct ws_works *w = r->works;
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	const int64_t ns = until.tv_nsec + (int64_t)timeout_ms * WS_NS_PER_MS;
	until.tv_sec += ns / WS_NS_PER_S;
	until.tv_nsec = ns % WS_NS_PER_S;
	int timed_out = 0;
	pthread_mutex_lock(&w->lock);
	while (r->n_dry < count_of(r) && !timed_out && !(r->failed != SIZE_MAX && r->n_making == 0))
		timed_out = timeout_ms < 0 ? pthread_cond_wait(&w->done, &w->lock)
		                           : pthread_cond_timedwait(&w->done, &w->lock, &until);
	const bool over = r->n_dry == count_of(r) || (r->failed != SIZE_MAX && r->n_making == 0);
	const bool failed = over && r->failed != SIZE_MAX;
	if (failed && err)
		*err = r->err;
	pthread_mutex_unlock(&w->lock);
	return failed ? -1 : over;
}

/* ---- all of it ----------------------------------------------------------------------------------- */

static unsigned choose_threads(unsigned asked, uint64_t most)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	const unsigned n = asked ? asked : processors > 8 ? 8 : processors > 0 ? (unsigned)processors : 1;
	most = most < MOST_THREADS ? most : MOST_THREADS;
	return n > most ? (unsigned)most : n;
}

int ws_works_new(unsigned threads, uint64_t scratch, struct ws_works **out, struct ws_err *err)
{
	struct ws_works *w = calloc(1, sizeof *w);
	pthread_condattr_t monotonic;
	if (!w)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	w->scratch = !scratch ? DEFAULT_SCRATCH : scratch < LEAST_SCRATCH ? LEAST_SCRATCH : scratch;
	w->store = w->scratch / 2;
	w->n_threads = choose_threads(threads, w->scratch / 8 * 3 / LEAST_BENCH);
	w->bench = w->scratch / 8 * 3 / w->n_threads;
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
		ws_buf_free(&w->benches[i].buf);
		free(w->benches[i].shelf);
	}
	ws_tilemem_trim(&w->spares, 0);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->work);
	pthread_cond_destroy(&w->done);
	free(w);
}

/* No tile takes more memory than the largest is long (ws_tilemem_room). */
size_t ws_works_tile(const struct ws_works *w)
{
	const uint64_t most = w->store / 8 < MOST_OF_A_TILE ? w->store / 8 : MOST_OF_A_TILE;
	if (most < WS_TILEMEM_HUGE)
		return (size_t)(most < WS_TILEMEM_HUGE / 2 ? most : WS_TILEMEM_HUGE / 2);
	return (size_t)(most / WS_TILEMEM_HUGE * WS_TILEMEM_HUGE);
}

size_t ws_works_bench(const struct ws_works *w)
{
	return part_of_bench(w, 2);
}

size_t ws_works_buf(const struct ws_works *w)
{
	return part_of_bench(w, BUF_PART);
}

bool ws_works_keep(struct ws_works *w, uint64_t bytes)
{
	pthread_mutex_lock(&w->lock);
	const bool fits = bytes <= w->keep && w->kept <= w->keep - bytes;
	w->kept += fits ? bytes : 0;
	count_peak(w);
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
