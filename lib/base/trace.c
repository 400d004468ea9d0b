/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - the recorder: rings of ended spans, a table of open spans, and rows.
 *
 * One lock is held for some hundred nanoseconds. That is cheap: a span lasts a microsecond or more,
 * and a push records a few thousand in a second. Pages without a span cost no memory. */
#include "trace_core.h"

#include "wsync/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEPT = 65536, LEAST = 16 };

const char *trace_row_name(enum ws_trace_row kind)
{
	static const char *const names[] = {
		[WS_TRACE_PUSH] = "push",           [WS_TRACE_PHASES] = "phases",
		[WS_TRACE_BUCKETS] = "buckets",     [WS_TRACE_READ] = "read",
		[WS_TRACE_TRANSFORM] = "transform", [WS_TRACE_COPY] = "copy",
		[WS_TRACE_WIRE] = "wire",           [WS_TRACE_STARVED] = "starved",
		[WS_TRACE_APPLY] = "apply",         [WS_TRACE_HTTP] = "HTTP",
		[WS_TRACE_VERIFY] = "verify",
	};
	return names[kind];
}

static int64_t unix_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * WS_NS_PER_S + now.tv_nsec;
}

int ws_trace_open(size_t spans, struct ws_trace **out, struct ws_err *err)
{
	struct ws_trace *t = calloc(1, sizeof *t);
	if (!t)
		return ws_oom(err);
	pthread_mutex_init(&t->lock, NULL);
	spans = !spans ? KEPT : spans < LEAST ? LEAST : spans;
	for (int c = 0; c < TRACE_CLASSES; c++) {
		t->rings[c].most = c == TRACE_FINE ? spans - spans / 4 : spans / 4;
		t->rings[c].spans = calloc(t->rings[c].most, sizeof *t->rings[c].spans);
	}
	t->open = calloc(TRACE_OPEN, sizeof *t->open);
	t->idle = calloc(TRACE_OPEN, sizeof *t->idle);
	t->rows = calloc(TRACE_ROWS, sizeof *t->rows);
	if (!t->rings[TRACE_COARSE].spans || !t->rings[TRACE_FINE].spans || !t->open || !t->idle ||
	    !t->rows) {
		ws_trace_close(t);
		return ws_oom(err);
	}
	for (uint16_t i = TRACE_OPEN - 1; i > 0; i--)
		t->idle[t->n_idle++] = i;
	t->start = ws_now_ns();
	t->start_unix = unix_ns();
	*out = t;
	return 0;
}

void ws_trace_close(struct ws_trace *t)
{
	if (!t)
		return;
	pthread_mutex_destroy(&t->lock);
	for (int c = 0; c < TRACE_CLASSES; c++)
		free(t->rings[c].spans);
	free(t->open);
	free(t->idle);
	free(t->rows);
	free(t);
}

/* ---- rows: all with the lock held ------------------------------------------------------------ */

static void copy_text(char *dst, size_t n, const char *text)
{
	const size_t len = text ? strnlen(text, n) : 0;
	memcpy(dst, text ? text : "", len < n ? len : n - 1);
	dst[len < n ? len : n - 1] = 0;
}

static bool is_of(const struct trace_row *r, const char *of)
{
	return strncmp(r->of, of, sizeof r->of - 1) == 0;
}

static uint16_t add_row(struct ws_trace *t, const struct ws_trace_what *what, const char *of,
                        unsigned lane)
{
	if (t->n_rows + 1 >= TRACE_ROWS)
		return 0;
	const uint16_t i = ++t->n_rows;
	struct trace_row *r = &t->rows[i];
	*r = (struct trace_row){ .kind = what->row, .lane = lane };
	copy_text(r->of, sizeof r->of, of);
	return i;
}

/* Finds or adds a lane that has been free since that time; 0: there are too many rows. */
static uint16_t find_row(struct ws_trace *t, const struct ws_trace_what *what, int64_t since)
{
	const char *of = what->of ? what->of : "";
	uint16_t *link = &t->first[what->row];
	unsigned lanes = 0;
	for (; *link; link = &t->rows[*link].next) {
		const struct trace_row *r = &t->rows[*link];
		if (!is_of(r, of))
			continue;
		if (!r->busy && r->free_since <= since)
			return *link;
		lanes++;
	}
	*link = add_row(t, what, of, lanes + 1);
	return *link;
}

/* ---- spans ----------------------------------------------------------------------------------- */

static uint64_t begin(struct ws_trace *t, const struct ws_trace_what *what, int64_t since)
{
	const uint16_t row = t->n_idle ? find_row(t, what, since) : 0;
	if (!row) {
		t->lost++;
		return 0;
	}
	const bool current = what->row == WS_TRACE_WIRE || what->row == WS_TRACE_HTTP;
	const uint16_t i = t->idle[--t->n_idle];
	struct trace_span *s = &t->open[i];
	s->since = since;
	s->until = 0; /* it has not ended */
	s->row = row;
	s->bucket = what->bucket ? what->bucket : current ? t->bucket : 0;
	copy_text(s->name, sizeof s->name, what->name ? what->name : trace_row_name(what->row));
	copy_text(s->about, sizeof s->about, what->about);
	s->why[0] = 0;
	t->rows[row].busy = true;
	return i;
}

uint64_t ws_trace_begin(struct ws_trace *t, const struct ws_trace_what *what)
{
	if (!t)
		return 0;
	const int64_t now = ws_now_ns();
	/* No span begins before the trace. */
	const int64_t since = !what->since || what->since > now ? now
	                      : what->since < t->start          ? t->start : what->since;
	pthread_mutex_lock(&t->lock);
	const uint64_t span = begin(t, what, since);
	pthread_mutex_unlock(&t->lock);
	return span;
}

static struct trace_ring *ring_of(struct ws_trace *t, const struct trace_span *s)
{
	switch (t->rows[s->row].kind) {
	case WS_TRACE_READ:
	case WS_TRACE_TRANSFORM:
	case WS_TRACE_COPY:
	case WS_TRACE_STARVED:
	case WS_TRACE_VERIFY: return &t->rings[TRACE_FINE];
	default:              return &t->rings[TRACE_COARSE];
	}
}

static void end(struct ws_trace *t, uint64_t span, const struct ws_trace_end *how, int64_t at)
{
	struct trace_span *s = &t->open[span];
	struct trace_ring *ring = ring_of(t, s);
	s->until = at < s->since ? s->since : at;
	s->bytes = how->bytes;
	s->status = how->status > 0 && how->status < UINT16_MAX ? (uint16_t)how->status : 0;
	s->unfinished = how->unfinished;
	copy_text(s->why, sizeof s->why, how->why);
	t->rows[s->row].busy = false;
	t->rows[s->row].free_since = s->until;
	ring->spans[ring->ended++ % ring->most] = *s;
	s->row = 0;
	t->idle[t->n_idle++] = (uint16_t)span;
}

void ws_trace_end(struct ws_trace *t, uint64_t span, const struct ws_trace_end *how)
{
	static const struct ws_trace_end nothing = { 0 };
	if (!t || !span)
		return;
	how = how ? how : &nothing;
	const int64_t at = how->at ? how->at : ws_now_ns();
	pthread_mutex_lock(&t->lock);
	end(t, span, how, at);
	pthread_mutex_unlock(&t->lock);
}

void ws_trace_bucket(struct ws_trace *t, uint64_t bucket)
{
	if (!t)
		return;
	pthread_mutex_lock(&t->lock);
	t->bucket = bucket;
	pthread_mutex_unlock(&t->lock);
}
