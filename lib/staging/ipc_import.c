/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc_import.h"

#include "job.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { AHEAD = 2 };
static const int64_t PATIENCE_NS = 60 * WS_NS_PER_S, CHECK_NS = WS_NS_PER_S / 20;
/* how often a wait checks for a cancel */
static const int64_t CANCEL_POLL_NS = 20 * WS_NS_PER_MS;

enum state { EMPTY, ASKED, LOADED };

struct piece {
	void *memory;       /* pinned; NULL: not yet */
	size_t allocation;
	uint64_t number; /* bytes from number * WS_IPC_IMPORT_PIECE */
	enum state state;
	unsigned readers;   /* the piece is not reused while this is above 0 */
	uint64_t used;      /* value of `uses` at the last use */
};

struct device {
	struct ws_gpu *gpu;
	struct ws_stream *stream;
};

struct ws_ipc_import {
	struct ws_ipc_import_opts opts;
	struct device *devices;
	ws_devptr *addresses;     /* of the allocations; 0: not opened */
	struct piece pieces[WS_IPC_IMPORT_PIECES];
	uint64_t uses;
	size_t to_open; /* index of an allocation to open, plus 1; 0: none */
	int64_t checked_ns;
	/* guards all members, except those that the thread alone changes while it loads */
	pthread_mutex_t lock;
	pthread_cond_t wanted, done;
	pthread_t thread;
	bool running, ending, failed;
	bool stuck;               /* a GPU still writes into a piece, maybe forever */
	struct ws_err err;
};

/* ---- the thread: with the GPUs, without the lock ---- */

static int open_device(struct ws_ipc_import *w, size_t i, struct ws_err *err)
{
	struct device *d = &w->devices[i];
	if (!d->gpu && ws_gpu_open(w->opts.cuda, w->opts.ordinals[i], &d->gpu, err))
		return -1;
	return ws_gpu_use(d->gpu, err) || (!d->stream && ws_stream_new(d->gpu, &d->stream, err)) ?
	               -1 :
	               0;
}

static int check_valid(struct ws_ipc_import *w, struct ws_err *err)
{
	const int64_t now = ws_now_ns();
	if (w->checked_ns && now - w->checked_ns < CHECK_NS)
		return 0;
	w->checked_ns = now;
	return w->opts.still_valid(w->opts.ctx, err);
}

/* Opens a handle once. If the exporting process has ended, a failure reports that. */
static int open_allocation(struct ws_ipc_import *w, size_t i, ws_devptr *out, struct ws_err *err)
{
	const struct ws_manifest_allocation *a = &w->opts.manifest->allocations[i];
	if (open_device(w, (size_t)a->device, err))
		return -1;
	*out = w->addresses[i];
	if (*out || ws_gpu_ipc_open(w->devices[a->device].gpu, a->handle, out, err) == 0)
		return 0;
	w->opts.still_valid(w->opts.ctx, err);
	return -1;
}

static int load(struct ws_ipc_import *w, struct piece *p, ws_devptr *opened, struct ws_err *err)
{
	const struct ws_manifest_allocation *a = &w->opts.manifest->allocations[p->allocation];
	const uint64_t from = p->number * WS_IPC_IMPORT_PIECE;
	const uint64_t n =
		a->bytes - from < WS_IPC_IMPORT_PIECE ? a->bytes - from : WS_IPC_IMPORT_PIECE;
	if (open_allocation(w, p->allocation, opened, err))
		return -1;
	struct device *d = &w->devices[a->device];
	if (!p->memory && ws_gpu_alloc_pinned(d->gpu, WS_IPC_IMPORT_PIECE, &p->memory, err))
		return -1;
	if (ws_gpu_copy_out(d->gpu, p->memory, *opened + from, n, d->stream, err))
		return -1;
	if (ws_stream_wait(d->gpu, d->stream, ws_deadline_in(PATIENCE_NS), w->opts.cancel, err)) {
		w->stuck = !ws_stream_settle(d->gpu, d->stream);
		return -1;
	}
	return check_valid(w, err);
}

/* Pieces with waiting readers come before those that are read ahead. */
static struct piece *find_request(struct ws_ipc_import *w)
{
	struct piece *found = NULL;
	for (size_t i = 0; i < WS_IPC_IMPORT_PIECES; i++) {
		struct piece *p = &w->pieces[i];
		if (p->state != ASKED)
			continue;
		if (!found || (p->readers && !found->readers) ||
		    (!p->readers == !found->readers && p->used < found->used))
			found = p;
	}
	return found;
}

/* Called with the lock held; releases it during the request. */
static void run_request(struct ws_ipc_import *w, struct piece *p)
{
	const size_t allocation = w->to_open ? w->to_open - 1 : p->allocation;
	const bool to_open = w->to_open != 0;
	ws_devptr opened = 0;
	struct ws_err err = WS_ERR_INIT;
	pthread_mutex_unlock(&w->lock);
	const int rc =
		to_open ? open_allocation(w, allocation, &opened, &err) : load(w, p, &opened, &err);
	pthread_mutex_lock(&w->lock);
	if (opened)
		w->addresses[allocation] = opened;
	if (to_open)
		w->to_open = 0;
	else
		p->state = rc ? EMPTY : LOADED;
	if (rc) {
		w->failed = true;
		w->err = err;
	}
	pthread_cond_broadcast(&w->done);
}

static void free_all(struct ws_ipc_import *w)
{
	const struct ws_manifest *m = w->opts.manifest;
	for (size_t i = 0; i < m->n_devices; i++) {
		struct device *d = &w->devices[i];
		if (!d->gpu)
			continue;
		/* frees the memory even if this fails */
		ws_gpu_use(d->gpu, NULL);
		for (size_t k = 0; k < m->n_allocations; k++)
			if (m->allocations[k].device == i)
				ws_gpu_ipc_close(d->gpu, w->addresses[k]);
		ws_stream_free(d->gpu, d->stream);
	}
	for (size_t i = 0; i < WS_IPC_IMPORT_PIECES; i++)
		for (size_t k = 0; k < m->n_devices && w->pieces[i].memory; k++)
			if (w->devices[k].gpu) { /* any GPU can free pinned memory */
				ws_gpu_free_pinned(w->devices[k].gpu, w->pieces[i].memory);
				w->pieces[i].memory = NULL;
			}
	for (size_t i = m->n_devices; i-- > 0;)
		ws_gpu_close(w->devices[i].gpu);
}

static void *import_thread(void *arg)
{
	struct ws_ipc_import *w = arg;
	pthread_mutex_lock(&w->lock);
	while (!w->ending) {
		struct piece *p = find_request(w);
		if (!w->failed && (w->to_open || p))
			run_request(w, p);
		else
			pthread_cond_wait(&w->wanted, &w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	if (!w->stuck)
		free_all(w);
	return NULL;
}

/* ---- readers: with the lock ---- */

static int start(struct ws_ipc_import *w, struct ws_err *err)
{
	if (w->running)
		return 0;
	w->running = ws_thread_start(&w->thread, import_thread, w, err) == 0;
	return w->running ? 0 : ws_err_wrap(err, "reading memory of a GPU");
}

/* Waits for a result of the thread, at most CANCEL_POLL_NS. Fails when until_ns has passed. */
static int wait_a_while(struct ws_ipc_import *w, int64_t until_ns, struct ws_err *err)
{
	const ws_deadline next = ws_deadline_min(until_ns, ws_deadline_in(CANCEL_POLL_NS));
	const struct timespec t = { .tv_sec = next / WS_NS_PER_S, .tv_nsec = next % WS_NS_PER_S };
	if (ws_cancelled(w->opts.cancel))
		return ws_err_set(err, WS_ECANCELLED, "reading memory of a GPU was cancelled");
	if (w->failed) {
		if (err)
			*err = w->err;
		return -1;
	}
	pthread_cond_signal(&w->wanted);
	if (pthread_cond_timedwait(&w->done, &w->lock, &t) && ws_now_ns() >= until_ns)
		return ws_err_set(err, WS_ETIMEOUT,
		                  "reading memory of a GPU took longer than %lld s",
		                  (long long)(PATIENCE_NS / WS_NS_PER_S));
	return 0;
}

static struct piece *find(struct ws_ipc_import *w, size_t allocation, uint64_t number)
{
	for (size_t i = 0; i < WS_IPC_IMPORT_PIECES; i++) {
		struct piece *p = &w->pieces[i];
		if (p->state != EMPTY && p->allocation == allocation && p->number == number)
			return p;
	}
	return NULL;
}

/* Reuses the least recently used piece; NULL: all pieces are in use. */
static struct piece *request(struct ws_ipc_import *w, size_t allocation, uint64_t number)
{
	struct piece *oldest = NULL;
	for (size_t i = 0; i < WS_IPC_IMPORT_PIECES; i++) {
		struct piece *p = &w->pieces[i];
		if (p->state != ASKED && !p->readers && (!oldest || p->used < oldest->used))
			oldest = p;
	}
	if (oldest) {
		oldest->allocation = allocation;
		oldest->number = number;
		oldest->state = ASKED;
		oldest->used = ++w->uses;
	}
	return oldest;
}

static void request_ahead(struct ws_ipc_import *w, size_t allocation, uint64_t number)
{
	const uint64_t bytes = w->opts.manifest->allocations[allocation].bytes;
	for (uint64_t k = number + 1; k <= number + AHEAD && k * WS_IPC_IMPORT_PIECE < bytes; k++)
		if (!find(w, allocation, k) && !request(w, allocation, k))
			break;
	pthread_cond_signal(&w->wanted);
}

static struct piece *find_or_request(struct ws_ipc_import *w, size_t allocation, uint64_t number)
{
	struct piece *p = find(w, allocation, number);
	return p ? p : request(w, allocation, number);
}

/* Returns a loaded piece that counts this reader. */
static struct piece *take(struct ws_ipc_import *w, size_t allocation, uint64_t number,
                          struct ws_err *err)
{
	const int64_t until_ns = ws_now_ns() + PATIENCE_NS;
	struct piece *p = NULL;
	for (;;) {
		if (!p && (p = find_or_request(w, allocation, number)))
			p->readers++;
		if (p && p->state == LOADED)
			break;
		if (wait_a_while(w, until_ns, err)) {
			if (p)
				p->readers--;
			return NULL;
		}
	}
	p->used = ++w->uses;
	request_ahead(w, allocation, number);
	return p;
}

int ws_ipc_import_read(struct ws_ipc_import *w, size_t allocation, uint64_t at, void *dst, size_t n,
                       struct ws_err *err)
{
	uint8_t *to = dst;
	pthread_mutex_lock(&w->lock);
	int rc = start(w, err);
	while (n > 0 && rc == 0) {
		const size_t within = (size_t)(at % WS_IPC_IMPORT_PIECE);
		const size_t some =
			n < WS_IPC_IMPORT_PIECE - within ? n : WS_IPC_IMPORT_PIECE - within;
		struct piece *p = take(w, allocation, at / WS_IPC_IMPORT_PIECE, err);
		rc = p ? 0 : -1;
		if (p) {
			pthread_mutex_unlock(&w->lock);
			memcpy(to, (const uint8_t *)p->memory + within, some);
			pthread_mutex_lock(&w->lock);
			if (--p->readers == 0)
				pthread_cond_broadcast(&w->done); /* a waiting reader may take it */
		}
		to += some;
		at += some;
		n -= some;
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

int ws_ipc_import_address(struct ws_ipc_import *w, size_t allocation, ws_devptr *out,
                          struct ws_err *err)
{
	const int64_t until_ns = ws_now_ns() + PATIENCE_NS;
	pthread_mutex_lock(&w->lock);
	int rc = start(w, err);
	while (rc == 0 && !w->addresses[allocation]) {
		if (!w->to_open)
			w->to_open = allocation + 1;
		rc = wait_a_while(w, until_ns, err);
	}
	if (rc == 0)
		*out = w->addresses[allocation];
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* ---- opening and closing ---- */

int ws_ipc_import_open(const struct ws_ipc_import_opts *opts, struct ws_ipc_import **out,
                       struct ws_err *err)
{
	pthread_condattr_t monotonic;
	struct ws_ipc_import *w = calloc(1, sizeof *w);
	if (w) {
		w->opts = *opts;
		w->devices = calloc(opts->manifest->n_devices + 1, sizeof *w->devices);
		w->addresses = calloc(opts->manifest->n_allocations + 1, sizeof *w->addresses);
	}
	if (!w || !w->devices || !w->addresses) {
		if (w) {
			free(w->devices);
			free(w->addresses);
		}
		free(w);
		return ws_oom(err);
	}
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&w->wanted, &monotonic);
	pthread_cond_init(&w->done, &monotonic);
	pthread_condattr_destroy(&monotonic);
	*out = w;
	return 0;
}

void ws_ipc_import_close(struct ws_ipc_import *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->ending = true;
	pthread_cond_signal(&w->wanted);
	pthread_mutex_unlock(&w->lock);
	if (w->running)
		pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->done);
	pthread_cond_destroy(&w->wanted);
	pthread_mutex_destroy(&w->lock);
	free(w->addresses);
	free(w->devices);
	free(w);
}
