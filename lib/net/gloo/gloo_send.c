/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_send.c - the root of a broadcast.
 *
 * Data of files goes to each child separately, from the page cache. Computed data is computed
 * once, by one thread, into a ring that every child reads; so the slowest child delays the others
 * by at most the ring. A lost child does not end the call: the others get everything, so a dead
 * server does not cost the other servers their weights.
 *
 * A call that fails for an error on our side first finishes the items that it has begun.
 * torch's gloo notices a closed connection between payloads, but inside one it waits until the
 * group's timeout of half an hour (seen with 1.13 and 2.6: the receive in progress is in no
 * list that the error reaches), and a server would be frozen that long. Bytes that are not
 * available, because the file shrank or computing failed, are then sent as zeros: whatever a
 * receiver reports about such an item, the call has failed. */
#include "gloo_out.h"

#include "job.h"

#include <assert.h>
#include <stdlib.h>

enum {
	TILE = 1024 * 1024,
	RING = 8 * TILE,            /* computed bytes that the slowest child has not taken */
	FINISH_S = 10,     /* limit for finishing the begun items of a failed call */
	FINISH_STALL_S = 1,
	FINISH_SLICE_MS = 20,
	FILE_SLOW_MS = 20,
	STARVED_MS = 1,    /* shorter waits are not traced */
};

struct sending {
	struct ws_gloo_call call;     /* first member: the loop passes a pointer to it */
	struct ws_gloo_source source; /* reached by container_of */
	struct ws_gloo *g;
	const struct ws_payload *items;
	uint64_t progress_before;
	size_t tile;
	pthread_t producer;
	bool producing;
	unsigned n_out, n_lost;
	struct ws_err loss;           /* error of the first lost child */
	uint64_t sent_before;
	int64_t starved_since, starved_ns; /* begin of the current wait; 0: not waiting */
	int64_t starving_since;            /* likewise, including earlier turns */
	bool lost[32];
	struct ws_gloo_out out[32];
};

/* ---- computing bytes ---- */

static int make_span(struct sending *s, const struct ws_span *span, struct ws_err *err)
{
	for (uint64_t at = 0; at < span->length;) {
		const uint64_t left = span->length - at;
		const size_t n = left < s->tile ? (size_t)left : s->tile;
		void *dst;
		if (ws_flow_wait_room(s->call.flow, n, &dst) ||
		    span->fill(span->ctx, at, dst, n, err))
			return -1;
		ws_flow_commit(s->call.flow, n);
		at += n;
	}
	return 0;
}

static void *produce(void *arg)
{
	struct sending *s = arg;
	struct ws_err err = WS_ERR_INIT; /* stays empty when stopped */
	for (size_t i = 0; i < s->source.n_items; i++) {
		const struct ws_payload *p = &s->items[i];
		for (size_t k = 0; k < p->n_spans; k++) {
			if (p->spans[k].fd < 0 && make_span(s, &p->spans[k], &err)) {
				ws_flow_fail(s->call.flow, &err);
				return NULL;
			}
		}
	}
	return NULL;
}

static bool has_made_bytes(const struct ws_payload *items, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < items[i].n_spans; k++)
			if (items[i].spans[k].fd < 0)
				return true;
	return false;
}

static int start_producer(struct sending *s, struct ws_err *err)
{
	if (!has_made_bytes(s->items, s->source.n_items))
		return 0;
	const size_t ring = s->g->ring_bytes < RING ? s->g->ring_bytes : RING;
	if (ws_flow_open(&s->g->flow, ring, s->n_out, err))
		return -1;
	s->call.flow = s->g->flow;
	s->tile = ring / 4 < TILE ? ring / 4 + 1 : TILE;
	s->producing = ws_thread_start(&s->producer, produce, s, err) == 0;
	return s->producing ? 0 : ws_err_wrap(err, "gloo");
}

static void stop_producer(struct sending *s)
{
	if (s->producing) {
		ws_flow_stop(s->call.flow);
		pthread_join(s->producer, NULL);
	}
}

/* ---- the source of the children's streams ---- */

static struct sending *sending_of(const struct ws_gloo_source *source)
{
	return (struct sending *)((char *)(uintptr_t)source - offsetof(struct sending, source));
}

static uint64_t length_of(const struct ws_gloo_source *source, size_t item)
{
	return sending_of(source)->items[item].length;
}

static void peek(struct ws_gloo_source *source, const struct ws_gloo_out *o,
                 struct ws_gloo_piece *piece)
{
	struct sending *s = sending_of(source);
	const struct ws_span *span = &s->items[o->item].spans[o->span];
	const uint64_t left = span->length - o->span_at;
	*piece = (struct ws_gloo_piece){ .fd = span->fd };
	if (span->fd >= 0) {
		piece->offset = span->offset + o->span_at;
		piece->n = left < SIZE_MAX / 2 ? (size_t)left : SIZE_MAX / 2;
	} else {
		const size_t n = ws_flow_peek(s->call.flow, o->index, &piece->bytes);
		piece->n = n < left ? n : (size_t)left;
		if (n == 0 && source->ending && ws_flow_failed(s->call.flow, NULL))
			*piece = (struct ws_gloo_piece){ .fd = -1,
				                         .n = left < SIZE_MAX ? (size_t)left :
				                                                SIZE_MAX };
	}
}

static void took(struct ws_gloo_source *source, struct ws_gloo_out *o, size_t n)
{
	struct sending *s = sending_of(source);
	const struct ws_span *span = &s->items[o->item].spans[o->span];
	const void *bytes;
	/* otherwise zeros were sent */
	if (span->fd < 0 && ws_flow_peek(s->call.flow, o->index, &bytes))
		ws_flow_consume(s->call.flow, o->index, n);
	o->span_at += n;
	if (o->span_at == span->length) {
		o->span++;
		o->span_at = 0;
	}
}

/* ---- the call ---- */

static int refuse_payload(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint32_t tag,
                          uint64_t length, struct ws_err *err)
{
	(void)tag, (void)length, (void)err;
	ws_gloo_lose(((struct sending *)call)->g, p, "sent a broadcast, but we are the root");
	return 0;
}

static unsigned explain(struct ws_gloo_call *call, struct ws_buf *text)
{
	const struct sending *s = (const struct sending *)call;
	unsigned first = 0;
	for (unsigned i = 0; i < s->n_out; i++)
		if (!s->lost[i] && ws_gloo_out_explain(&s->out[i], &s->source, text) && !first)
			first = s->out[i].peer->rank;
	return first;
}

/* Skips the data of a lost child, so that it does not block the ring. */
static void pass_by(struct sending *s, unsigned i)
{
	const void *bytes;
	if (s->call.flow)
		ws_flow_consume(s->call.flow, i, ws_flow_peek(s->call.flow, i, &bytes));
}

static int serve_child(struct sending *s, unsigned i, struct ws_err *err)
{
	struct ws_gloo_out *o = &s->out[i];
	struct ws_err loss = WS_ERR_INIT;
	if (!s->lost[i] && ws_gloo_out_pump(s->g, o, &s->source, err))
		return -1;
	if (!s->lost[i] && ws_gloo_out_check(o, &s->source, &loss)) {
		s->lost[i] = true;
		if (s->n_lost++ == 0)
			s->loss = loss;
	}
	if (s->lost[i])
		pass_by(s, i);
	return 0;
}

static bool is_hungry(struct sending *s, unsigned i)
{
	const struct ws_gloo_out *o = &s->out[i];
	const void *bytes;
	/* After the last item, or an item's last span, the kernel may still have unsent bytes. */
	if (!ws_gloo_out_midway(o) || o->item >= s->source.n_items ||
	    o->span >= s->items[o->item].n_spans)
		return false;
	return s->items[o->item].spans[o->span].fd < 0 &&
	       ws_flow_peek(s->call.flow, i, &bytes) == 0;
}

/* True if every unfinished child could take data and the ring has no data for any of them. (If the
 * ring has data for a child, this child blocks the ring.) */
static bool is_starving(struct sending *s)
{
	bool any = false;
	for (unsigned i = 0; s->call.flow && i < s->n_out; i++) {
		if (s->lost[i] || ws_gloo_out_done(&s->out[i], &s->source))
			continue;
		if (!is_hungry(s, i))
			return false;
		any = true;
	}
	return any;
}

static void trace_starved(struct sending *s, const char *name, int64_t since, int64_t least_ms)
{
	struct ws_trace *t = s->g->trace;
	if (t && ws_now_ns() - since > least_ms * WS_NS_PER_MS)
		ws_trace_end(t,
		             ws_trace_begin(t, &(struct ws_trace_what){ .row = WS_TRACE_STARVED,
		                                                        .name = name,
		                                                        .since = since }),
		             NULL);
}

/* Sockets never delay the other children; only a file that is not in the page cache does. */
static void mark_serving(struct sending *s, int64_t since)
{
	if (s->g->watch)
		atomic_store_explicit(&s->g->watch->serving_since, since, memory_order_relaxed);
}

/* began: time at which the children were served. */
static void time_the_source(struct sending *s, int64_t began)
{
	const int64_t now = ws_now_ns();
	if (now - began > FILE_SLOW_MS * WS_NS_PER_MS)
		s->starved_ns += now - began;
	trace_starved(s, "a file is read", began, FILE_SLOW_MS);
	if (s->starved_since)
		s->starved_ns += now - s->starved_since;
	s->starved_since = is_starving(s) ? now : 0;
	if (s->starving_since && !s->starved_since) {
		trace_starved(s, "bytes are made", s->starving_since, STARVED_MS);
		s->starving_since = 0;
	} else if (!s->starving_since) {
		s->starving_since = s->starved_since;
	}
	atomic_store_explicit(&s->g->watch->starved_ns, s->starved_ns, memory_order_relaxed);
}

static void keep_books(struct sending *s)
{
	uint64_t slowest = UINT64_MAX, sum = 0;
	for (unsigned i = 0; i < s->n_out; i++) {
		slowest = !s->lost[i] && s->out[i].sent < slowest ? s->out[i].sent : slowest;
		ws_gloo_show_sent(s->g, s->out[i].peer->rank, s->out[i].sent);
		sum += s->out[i].sent;
	}
	if (sum && !atomic_load_explicit(&s->g->first_byte, memory_order_relaxed))
		atomic_store_explicit(&s->g->first_byte, ws_now_ns(), memory_order_relaxed);
	atomic_store_explicit(&s->g->sent, s->sent_before + sum, memory_order_relaxed);
	if (slowest != UINT64_MAX)
		atomic_store_explicit(&s->g->progress, s->progress_before + slowest,
		                      memory_order_relaxed);
}

static int step(struct ws_gloo_call *call, bool *done, struct ws_err *err)
{
	struct sending *s = (struct sending *)call;
	const int64_t began = s->g->watch ? ws_now_ns() : 0;
	*done = true;
	mark_serving(s, began);
	if (s->call.flow && ws_flow_failed(s->call.flow, err))
		return -1;
	for (unsigned i = 0; i < s->n_out; i++) {
		if (serve_child(s, i, err))
			return -1;
		ws_gloo_out_traced(s->g, &s->out[i], &s->source, s->lost[i]);
		*done = *done && (s->lost[i] || ws_gloo_out_done(&s->out[i], &s->source));
	}
	keep_books(s);
	if (s->g->watch)
		time_the_source(s, began);
	mark_serving(s, 0);
	return 0;
}

/* True while a child is inside an item. */
static bool midway(struct sending *s, uint64_t *moved)
{
	bool any = false;
	*moved = 0;
	for (unsigned i = 0; i < s->n_out; i++) {
		struct ws_err ignored = WS_ERR_INIT;
		if (serve_child(s, i, &ignored))
			return false;
		any = any || (!s->lost[i] && ws_gloo_out_midway(&s->out[i]));
		*moved += s->out[i].sent;
	}
	return any;
}

static void finish_begun(struct sending *s)
{
	const ws_deadline last = ws_deadline_in(FINISH_S * WS_NS_PER_S);
	ws_deadline stall = ws_deadline_in(FINISH_STALL_S * WS_NS_PER_S);
	uint64_t before = 0, moved = 0;
	struct ws_err ignored = WS_ERR_INIT;
	s->source.ending = true;
	ws_gloo_call_uncancel(s->g, &s->call);
	while (midway(s, &moved) && !atomic_load(&s->g->aborted)) {
		if (moved != before)
			stall = ws_deadline_in(FINISH_STALL_S * WS_NS_PER_S);
		before = moved;
		if (ws_deadline_passed(ws_deadline_min(last, stall)))
			return;
		/* A timeout of this slice is no failure: no event reports that the last bytes are
		 * acknowledged. */
		s->call.until = ws_deadline_in(FINISH_SLICE_MS * WS_NS_PER_MS);
		if (ws_gloo_turn(s->g, &s->call, &ignored) && ignored.code != WS_ETIMEOUT)
			return;
		keep_books(s);
	}
}

static int run_send(struct sending *s, struct ws_err *err)
{
	if (ws_gloo_call_begin(s->g, &s->call, err))
		return -1;
	int rc = ws_gloo_call_run(s->g, &s->call, err);
	if (rc) {
		finish_begun(s);
		keep_books(s); /* also after a failure: some children may have received data */
	}
	s->g->tag += (uint32_t)s->source.n_items;
	if (rc == 0 && s->n_lost) {
		if (err)
			*err = s->loss;
		rc = -1;
	}
	return ws_gloo_call_end(s->g, &s->call, rc, err);
}

int ws_gloo_send(struct ws_gloo *g, const struct ws_payload *items, size_t n, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err)
{
	static const struct ws_gloo_call_ops ops = { .step = step, .begin = refuse_payload,
	                                             .explain = explain };
	struct sending *s = calloc(1, sizeof *s);
	if (!s)
		return ws_oom(err);
	s->call = (struct ws_gloo_call){ .ops = &ops, .until = until, .cancel = cancel };
	s->source = (struct ws_gloo_source){ .n_items = n, .tag = g->tag, .length = length_of,
	                                     .peek = peek, .took = took };
	s->g = g;
	s->items = items;
	s->progress_before = ws_gloo_progress(g);
	s->sent_before = ws_gloo_sent(g);
	unsigned children[32];
	s->n_out = ws_gloo_children(g->size, g->rank, g->rank, children);
	for (unsigned i = 0; i < s->n_out; i++)
		s->out[i] = (struct ws_gloo_out){ .peer = &g->peers[children[i]], .index = i };
	for (unsigned i = 0; i < s->n_out; i++)
		ws_gloo_out_trace(g, &s->out[i]);
	int rc = start_producer(s, err);
	if (rc == 0)
		rc = run_send(s, err);
	stop_producer(s);
	for (unsigned i = 0; i < s->n_out; i++)
		ws_gloo_out_traced(g, &s->out[i], &s->source, true);
	free(s);
	return rc;
}
