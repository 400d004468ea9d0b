/* SPDX-License-Identifier: Apache-2.0 */
/* staging_ring.c - the cycle of a slot: free, requested, being read, read, being copied, free. */
#include "staging_ring.h"

#include "file.h"
#include "job.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* how often a wait checks for a cancel */
static const int64_t POLL_NS = 10 * WS_NS_PER_MS;

enum state { FREE, REQUESTED, READING, READ, FAILED };

struct slot {
	char *memory;
	struct ws_gpu_event *copied; /* recorded by the owner; complete if never recorded */
	enum state state;
	struct ws_span span;
	uint64_t at;
	size_t n;
	struct ws_err err;
	/* For the trace: start and bytes of a copy whose end was not traced yet; 0: none. */
	_Atomic int64_t copying;
	_Atomic uint64_t copied_bytes;
};

struct ws_ring {
	struct ws_gpu *gpu;
	void *memory;           /* of all slots */
	pthread_mutex_t lock;   /* of the slots' states and the members below */
	pthread_cond_t work, done;
	struct slot slots[WS_RING_SLOTS];
	unsigned first, n;      /* n pending requests, in order */
	bool filling;           /* a computed span's fill is running */
	bool stop;
	pthread_t readers[WS_RING_READERS];
	unsigned n_readers;
	struct ws_trace *trace; /* NULL: none */
	_Atomic int64_t copy_ended; /* time of the last traced end of a copy */
};

static struct slot *slot_of(struct ws_ring *r, unsigned i)
{
	return &r->slots[(r->first + i) % WS_RING_SLOTS];
}

/* ---- readers ---- */

static int fill_slot(struct slot *s)
{
	return s->span.fd >= 0 ? ws_file_pread(s->span.fd, "a file of the source",
	                                       s->span.offset + s->at, s->memory, s->n, &s->err) :
	                         s->span.fill(s->span.ctx, s->at, s->memory, s->n, &s->err);
}

static int read_slot(struct ws_ring *r, struct slot *s)
{
	const struct ws_trace_what read = { .row = WS_TRACE_READ,
		                            .name = s->span.fd >= 0 ? "into pinned memory" :
		                                                      "computed bytes" };
	const uint64_t span = ws_trace_begin(r->trace, &read);
	const int rc = fill_slot(s);
	ws_trace_end(r->trace, span,
	             &(struct ws_trace_end){ .bytes = s->n, .unfinished = rc != 0 });
	return rc;
}

/* The oldest request that may be read now. Requests after a failed one are not started; earlier
 * ones are. */
static struct slot *find_work(struct ws_ring *r)
{
	bool filling = r->filling;
	for (unsigned i = 0; i < r->n; i++) {
		struct slot *s = slot_of(r, i);
		const bool made = s->span.fd < 0;
		if (s->state == REQUESTED && !(made && filling))
			return s;
		if (s->state == FAILED)
			break;
		filling = filling || (made && s->state == REQUESTED);
	}
	return NULL;
}

static void *reader_thread(void *arg)
{
	struct ws_ring *r = arg;
	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		struct slot *s = find_work(r);
		if (!s) {
			pthread_cond_wait(&r->work, &r->lock);
			continue;
		}
		const bool made = s->span.fd < 0;
		s->state = READING;
		r->filling = r->filling || made;
		pthread_mutex_unlock(&r->lock);
		const int rc = read_slot(r, s);
		pthread_mutex_lock(&r->lock);
		s->state = rc ? FAILED : READ;
		if (made) {
			r->filling = false;
			pthread_cond_signal(&r->work); /* the next fill may begin */
		}
		pthread_cond_broadcast(&r->done);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* Starts one more reader if there are more requests than readers. Fails only if no reader runs. */
static int start_reader(struct ws_ring *r, struct ws_err *err)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	const unsigned most = processors < 2               ? 2 :
	                      processors > WS_RING_READERS ? WS_RING_READERS :
	                                                     (unsigned)processors;
	if (r->n_readers >= most || r->n_readers > r->n)
		return 0;
	r->n_readers += ws_thread_start(&r->readers[r->n_readers], reader_thread, r,
	                                r->n_readers ? NULL : err) == 0;
	return r->n_readers ? 0 : -1;
}

/* ---- the owner ---- */

static int set_up_slots(struct ws_ring *r, struct ws_err *err)
{
	if (ws_gpu_alloc_pinned(r->gpu, (uint64_t)WS_RING_SLOTS * WS_RING_SLOT, &r->memory, err))
		return -1;
	for (int i = 0; i < WS_RING_SLOTS; i++) {
		r->slots[i].memory = (char *)r->memory + (size_t)i * WS_RING_SLOT;
		if (ws_gpu_event_new(r->gpu, &r->slots[i].copied, err))
			return -1;
	}
	return 0;
}

int ws_ring_open(struct ws_gpu *gpu, struct ws_ring **out, struct ws_err *err)
{
	struct ws_ring *r = calloc(1, sizeof *r);
	if (!r)
		return ws_oom(err);
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->work, NULL);
	pthread_cond_init(&r->done, &monotonic);
	pthread_condattr_destroy(&monotonic);
	r->gpu = gpu;
	if (set_up_slots(r, err)) {
		ws_ring_close(r);
		return -1;
	}
	*out = r;
	return 0;
}

void ws_ring_close(struct ws_ring *r)
{
	if (!r)
		return;
	ws_ring_cancel(r);
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_broadcast(&r->work);
	pthread_mutex_unlock(&r->lock);
	for (unsigned i = 0; i < r->n_readers; i++)
		pthread_join(r->readers[i], NULL);
	for (int i = 0; i < WS_RING_SLOTS; i++)
		ws_gpu_event_free(r->gpu, r->slots[i].copied);
	ws_gpu_free_pinned(r->gpu, r->memory);
	pthread_cond_destroy(&r->done);
	pthread_cond_destroy(&r->work);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

unsigned ws_ring_pending(const struct ws_ring *r)
{
	return r->n; /* only the owner changes it */
}

int ws_ring_wait_free(struct ws_ring *r, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_err *err)
{
	return r->n == WS_RING_SLOTS ?
	               0 :
	               ws_gpu_event_wait(r->gpu, slot_of(r, r->n)->copied, until, cancel, err);
}

int ws_ring_request(struct ws_ring *r, const struct ws_span *span, uint64_t at, size_t n,
                    bool *asked, struct ws_err *err)
{
	struct slot *s = slot_of(r, r->n);
	*asked = false;
	if (r->n == WS_RING_SLOTS)
		return 0;
	if (ws_gpu_event_query(r->gpu, s->copied, asked, err))
		return -1;
	if (!*asked)
		return 0;
	*asked = false;
	if (start_reader(r, err))
		return -1;
	pthread_mutex_lock(&r->lock);
	s->state = REQUESTED;
	s->span = *span;
	s->at = at;
	s->n = n;
	s->err = (struct ws_err)WS_ERR_INIT;
	r->n++;
	pthread_cond_signal(&r->work);
	pthread_mutex_unlock(&r->lock);
	*asked = true;
	return 0;
}

static int wait_step(struct ws_ring *r, ws_deadline until, const struct ws_cancel *cancel,
                     struct ws_err *err)
{
	const int64_t ns = ws_deadline_min(until, ws_deadline_in(POLL_NS));
	const struct timespec at = { .tv_sec = ns / WS_NS_PER_S, .tv_nsec = ns % WS_NS_PER_S };
	if (ws_cancelled(cancel))
		return ws_err_set(err, WS_ECANCELLED, "reading was cancelled");
	if (ws_deadline_passed(until))
		return ws_err_set(err, WS_ETIMEOUT, "reading took too long");
	pthread_cond_timedwait(&r->done, &r->lock, &at);
	return 0;
}

static int wait_until_read(struct ws_ring *r, const struct slot *s, ws_deadline until,
                           const struct ws_cancel *cancel, struct ws_err *err)
{
	int rc = 0;
	pthread_mutex_lock(&r->lock);
	while (rc == 0 && s->state != READ && s->state != FAILED)
		rc = wait_step(r, until, cancel, err);
	if (rc == 0 && s->state == FAILED) {
		if (err)
			*err = s->err;
		rc = -1;
	}
	pthread_mutex_unlock(&r->lock);
	return rc;
}

int ws_ring_copy_next(struct ws_ring *r, ws_devptr dst, struct ws_stream *stream, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	struct slot *s = slot_of(r, 0);
	ws_ring_poll_trace(r);
	if (wait_until_read(r, s, until, cancel, err))
		return -1;
	const int64_t asked = ws_now_ns();
	if (ws_gpu_copy_in(r->gpu, dst, s->memory, s->n, stream, err) ||
	    ws_gpu_event_record(r->gpu, s->copied, stream, err))
		return -1;
	atomic_store(&s->copied_bytes, s->n);
	atomic_store(&s->copying, asked);
	pthread_mutex_lock(&r->lock);
	s->state = FREE;
	r->first = (r->first + 1) % WS_RING_SLOTS;
	r->n--;
	pthread_mutex_unlock(&r->lock);
	return 0;
}

void ws_ring_cancel(struct ws_ring *r)
{
	pthread_mutex_lock(&r->lock);
	const unsigned n = r->n;
	r->n = 0; /* readers start no more requests */
	for (unsigned i = 0; i < n; i++) {
		while (slot_of(r, i)->state == READING)
			pthread_cond_wait(&r->done, &r->lock);
		slot_of(r, i)->state = FREE;
	}
	pthread_mutex_unlock(&r->lock);
}

/* ---- the trace ---- */

void ws_ring_trace(struct ws_ring *r, struct ws_trace *trace)
{
	r->trace = trace;
}

/* All copies are in one stream, one after the other. */
static void trace_copy(struct ws_ring *r, int64_t asked, uint64_t bytes)
{
	const int64_t before = atomic_load(&r->copy_ended), now = ws_now_ns();
	const struct ws_trace_what copy = { .row = WS_TRACE_COPY,
		                            .since = asked > before ? asked : before };
	ws_trace_end(r->trace, ws_trace_begin(r->trace, &copy),
	             &(struct ws_trace_end){ .bytes = bytes, .at = now });
	atomic_store(&r->copy_ended, now);
}

void ws_ring_poll_trace(struct ws_ring *r)
{
	for (int i = 0; r->trace && i < WS_RING_SLOTS; i++) {
		struct slot *s = &r->slots[i];
		int64_t asked = atomic_load(&s->copying);
		const uint64_t bytes = atomic_load(&s->copied_bytes);
		bool reached = false;
		if (asked && ws_gpu_event_query(r->gpu, s->copied, &reached, NULL) == 0 &&
		    reached && atomic_compare_exchange_strong(&s->copying, &asked, 0))
			trace_copy(r, asked, bytes);
	}
}
