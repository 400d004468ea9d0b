/* SPDX-License-Identifier: Apache-2.0 */
/* fake_stream.c - streams and events of the double: queues whose work is done at once, or, when
 * a test defers it, as late as a driver may do it, so that memory which is touched too early or
 * freed too soon shows in the numbers. */
#include "fake_core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

struct stream {
	struct stream *next;
	struct fake_work *first, **end;
	int device;
};

struct fake_event {
	struct stream *in;          /* where it was recorded last */
	unsigned recorded, reached; /* turns */
	bool timed;
	int theirs;                 /* another process's: a descriptor; 0: ours */
};

static struct stream null_stream = { .end = &null_stream.first }, *streams;
static bool deferred;
static unsigned busy;

void fake_defer(bool on)
{
	deferred = on;
	if (!on)
		fake_finish_all();
}

void fake_busy(unsigned n)
{
	busy = n;
}

/* ---- work ---- */

/* NULL: no such stream. */
static struct stream *stream_of(CUstream s)
{
	if (!s)
		return &null_stream;
	return fake_find(FAKE_STREAM, (uintptr_t)s) ? (struct stream *)(void *)s : NULL;
}

static void wait_for(struct fake_work *w);

/* It hangs, or is not done by those outside that do it, or waits for a stream of that kind. */
static bool is_stuck(const struct stream *s)
{
	const struct fake_work *w = s->first;
	return w && (w->hangs || (w->done && !w->done(w->arg)) ||
	             (w->run == wait_for && w->event->reached < w->turn && is_stuck(w->event->in)));
}

static void do_one(struct stream *s)
{
	struct fake_work *w = s->first;
	if (!w || is_stuck(s))
		return;
	s->first = w->next;
	if (!s->first)
		s->end = &s->first;
	w->run(w);
	free(w);
}

static void go_on(struct stream *s)
{
	while (s->first && !is_stuck(s))
		do_one(s);
}

/* What a query finds done: all that can be, or one thing more. */
static void do_some(struct stream *s)
{
	if (deferred)
		do_one(s);
	else
		go_on(s);
}

/* A driver waits for what others do; for how long, nobody can say. */
static void wait_a_little(struct stream *s)
{
	static const struct timespec nap = { .tv_nsec = 1000000 };
	for (int i = 0; i < 2000 && s->first && s->first->done; i++) {
		nanosleep(&nap, NULL);
		go_on(s);
	}
}

static void finish(struct stream *s)
{
	go_on(s);
	wait_a_little(s);
	if (!s->first)
		return;
	fake_mistake("a driver would wait here for a kernel that hangs");
	fake_let_go();
	go_on(s);
}

void fake_let_go(void)
{
	for (struct fake_work *w = null_stream.first; w; w = w->next)
		w->hangs = false;
	for (struct stream *s = streams; s; s = s->next)
		for (struct fake_work *w = s->first; w; w = w->next)
			w->hangs = false;
	if (deferred)
		return;
	go_on(&null_stream);
	for (struct stream *s = streams; s; s = s->next)
		go_on(s); /* one whose work others do may wait */
}

void fake_finish_all(void)
{
	const int device = fake_device();
	finish(&null_stream);
	for (struct stream *s = streams; s; s = s->next)
		if (device < 0 || s->device == device)
			finish(s);
}

CUresult fake_do(CUstream handle, const struct fake_work *w)
{
	struct stream *s = stream_of(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	struct fake_work *copy = malloc(sizeof *copy);
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*copy = *w;
	copy->next = NULL;
	*s->end = copy;
	s->end = &copy->next;
	if (!deferred)
		go_on(s);
	return CUDA_SUCCESS;
}

static bool stream_touches(const struct stream *s, uint64_t at, size_t bytes)
{
	for (const struct fake_work *w = s->first; w; w = w->next)
		if (w->bytes && ((w->src < at + bytes && at < w->src + w->bytes) ||
		                 (w->dst < at + bytes && at < w->dst + w->bytes)))
			return true;
	return false;
}

bool fake_touches(uint64_t at, size_t bytes)
{
	bool any = stream_touches(&null_stream, at, bytes);
	for (struct stream *s = streams; s; s = s->next)
		any = any || stream_touches(s, at, bytes);
	return any;
}

/* ---- streams ---- */

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	ON_CONTEXT("%u", flags);
	struct stream *s = calloc(1, sizeof *s);
	if (!s || !fake_make(FAKE_STREAM, (uintptr_t)s, 0)) {
		free(s);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	s->end = &s->first;
	s->device = fake_device();
	s->next = streams;
	streams = s;
	*out = (CUstream)(void *)s;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
	GIVEN_BACK;
	struct stream *s = handle ? stream_of(handle) : NULL;
	if (!s) {
		fake_mistake("a stream is destroyed that is none");
		return CUDA_ERROR_INVALID_HANDLE;
	}
	finish(s); /* a driver returns at once and does the work all the same */
	struct stream **at = &streams;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	fake_unmake(fake_find(FAKE_STREAM, (uintptr_t)s));
	free(s);
	return CUDA_SUCCESS;
}

static bool is_busy(void)
{
	if (!busy)
		return false;
	if (busy != UINT32_MAX)
		busy--;
	return true;
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
	ON_CONTEXT("%s", "");
	struct stream *s = stream_of(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (is_busy())
		return CUDA_ERROR_NOT_READY;
	do_some(s);
	return s->first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* ---- events ---- */

static struct fake_event *event_of(CUevent e)
{
	return e && fake_find(FAKE_EVENT, (uintptr_t)e) ? (struct fake_event *)(void *)e : NULL;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	ON_CONTEXT("%u", flags);
	struct fake_event *e = calloc(1, sizeof *e);
	if (!e || !fake_make(FAKE_EVENT, (uintptr_t)e, 0)) {
		free(e);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	e->timed = !(flags & CU_EVENT_DISABLE_TIMING);
	*out = (CUevent)(void *)e;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
	GIVEN_BACK;
	struct fake_event *e = event_of(handle);
	if (!e) {
		fake_mistake("an event is destroyed that is none");
		return CUDA_ERROR_INVALID_HANDLE;
	}
	fake_finish_all(); /* queues may name it */
	fake_unmake(fake_find(FAKE_EVENT, (uintptr_t)e));
	if (e->theirs)
		close(e->theirs);
	free(e);
	return CUDA_SUCCESS;
}

/* Tests write the handle: "EVNT", a process and a descriptor there (i32 each), and zeros. The
 * event is reached when the file is not empty. */
EXPORT CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
	ON_CONTEXT("%s", "");
	char path[64];
	int32_t who[2];
	memcpy(who, handle.reserved + 4, sizeof who);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)who[0], (int)who[1]);
	if (memcmp(handle.reserved, "EVNT", 4) != 0)
		return CUDA_ERROR_INVALID_VALUE;
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	const CUresult rc = cuEventCreate(out, 0);
	if (rc)
		close(fd);
	else
		event_of(*out)->theirs = fd;
	return rc;
}

static void reach(struct fake_work *w)
{
	w->event->reached = w->turn;
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream s)
{
	ON_CONTEXT("%s", "");
	struct fake_event *e = event_of(handle);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	const struct fake_work w = { .run = reach, .event = e, .turn = ++e->recorded };
	e->in = stream_of(s);
	return fake_do(s, &w);
}

static void wait_for(struct fake_work *w)
{
	while (w->event->reached < w->turn)
		do_one(w->event->in);
}

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent handle, unsigned flags)
{
	ON_CONTEXT("%u", flags);
	struct fake_event *e = event_of(handle);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	const struct fake_work w = { .run = wait_for, .event = e, .turn = e->recorded };
	return fake_do(s, &w);
}

/* An event that was never recorded has been reached, as drivers have it. */
EXPORT CUresult cuEventQuery(CUevent handle)
{
	ON_CONTEXT("%s", "");
	struct fake_event *e = event_of(handle);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (is_busy())
		return CUDA_ERROR_NOT_READY;
	struct stat file;
	if (e->theirs)
		return fstat(e->theirs, &file) == 0 && file.st_size ? CUDA_SUCCESS :
		                                                      CUDA_ERROR_NOT_READY;
	if (e->reached < e->recorded)
		do_some(e->in);
	return e->reached < e->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* The toolkit renames this one to a version that older drivers do not have. */
#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	ON_CONTEXT("%s", "");
	const struct fake_event *a = event_of(from), *b = event_of(to);
	if (!a || !b || !a->recorded || !b->recorded || !a->timed || !b->timed)
		return CUDA_ERROR_INVALID_HANDLE;
	if (a->reached < a->recorded || b->reached < b->recorded)
		return CUDA_ERROR_NOT_READY;
	*ms = 1.5f;
	return CUDA_SUCCESS;
}
