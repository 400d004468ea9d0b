/* SPDX-License-Identifier: Apache-2.0 */
/* feed.c - two walks along a list of steps: what is read, and what the stream is told. */
#include "feed.h"

#include "feed_boxes.h"
#include "feed_desk.h"
#include "feed_ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const int64_t SETTLE_NS = 2 * WS_NS_PER_S;

int ws_feed_open(struct ws_feed *f, struct ws_gpu *gpu, struct ws_err *err)
{
	memset(f, 0, sizeof *f);
	f->gpu = gpu;
	for (int i = 0; i < WS_FEED_BOXES; i++)
		f->boxes[i].feed = f;
	return ws_stream_new(gpu, &f->stream, err) || ws_stream_new(gpu, &f->copies, err) ||
	                       ws_gpu_event_new(gpu, &f->copied, err) ||
	                       ws_ring_open(gpu, &f->ring, err) ?
	               -1 :
	               0;
}

int ws_feed_make_here(struct ws_feed *f, uint64_t scratch, struct ws_err *err)
{
	if (!f->compute && ws_compute_open(f->gpu, &f->compute, err))
		return -1;
	return ws_feed_desk_open(f->gpu, f->compute, scratch ? scratch : WS_FEED_SCRATCH, &f->desk,
	                         err);
}

int ws_feed_try_to_make(struct ws_feed *f, bool must, const struct ws_log *log, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	if (ws_feed_make_here(f, 0, &why) == 0)
		return 0;
	if (must && err)
		*err = why;
	if (!must)
		ws_log(log, 1, "transform: all tensors are made on the CPU: %s", why.msg);
	return must ? -1 : 0;
}

bool ws_feed_makes(const struct ws_feed *f, const struct ws_formula_out *out)
{
	return f->desk && out && ws_feed_formula_fits(out->formula, f->desk->bytes);
}

void ws_feed_settle(struct ws_feed *f)
{
	struct ws_stream *const both[] = { f->copies, f->stream };
	for (int i = 0; i < 2; i++)
		if (both[i])
			ws_stream_wait(f->gpu, both[i], ws_deadline_in(SETTLE_NS), NULL, NULL);
}

void ws_feed_close(struct ws_feed *f)
{
	if (!f->gpu)
		return;
	ws_feed_settle(f); /* what ends a stream or unpins memory does not */
	for (int i = 0; i < WS_FEED_BOXES; i++)
		ws_feed_drop(&f->boxes[i]);
	ws_gpu_event_free(f->gpu, f->copied);
	ws_stream_free(f->gpu, f->copies);
	ws_stream_free(f->gpu, f->stream);
	ws_ring_close(f->ring);
	ws_feed_desk_close(f->desk);
	ws_compute_close(f->compute);
	for (int i = 0; i < WS_FEED_BOXES; i++)
		ws_gpu_free(f->gpu, f->boxes[i].at);
	memset(f, 0, sizeof *f);
}

void ws_feed_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                    uint64_t *pinned)
{
	const uint64_t box = bytes + (uint64_t)payloads * (WS_FEED_ALIGN - 1);
	*gpu = box * (buckets < WS_FEED_BOXES ? buckets : WS_FEED_BOXES);
	*pinned = (uint64_t)WS_RING_SLOTS * WS_RING_SLOT;
}

void ws_feed_trace(struct ws_feed *f, struct ws_trace *trace)
{
	ws_ring_trace(f->ring, trace);
	if (f->desk)
		f->desk->trace = trace;
}

void ws_feed_notice(struct ws_feed *f)
{
	ws_ring_notice(f->ring);
}

void ws_feed_memory_to_make(uint64_t *gpu, uint64_t *pinned)
{
	uint64_t more, more_pinned;
	ws_feed_desk_memory(&more, &more_pinned);
	*gpu += more;
	*pinned += more_pinned;
}

/* ---- boxes ---- */

struct ws_feed_box *ws_feed_box(struct ws_feed *f, const struct ws_payload *payloads, size_t n)
{
	struct ws_feed_box *unused = NULL;
	for (int i = 0; i < WS_FEED_BOXES; i++) {
		struct ws_feed_box *b = &f->boxes[i];
		if (b->payloads == payloads)
			return b;
		if (!b->payloads)
			unused = b;
	}
	if (unused) {
		ws_feed_drop(unused);
		unused->payloads = payloads;
		unused->n_payloads = n;
	}
	return unused;
}

/* What is being read is let go; the payload that is not here yet begins anew. */
static void stop_reading(struct ws_feed_box *b)
{
	if (b->feed->reading == b) {
		ws_ring_forget(b->feed->ring);
		b->feed->reading = NULL;
	}
	b->done = (struct ws_feed_at){ .step = b->steps ? ws_feed_steps_find(b->steps, b->loaded) :
		                                          0 };
	b->asked = b->done;
	b->made = b->judged = 0;
	for (size_t i = 0; i < b->done.step; i++)
		b->made += b->steps->list[i].kind == WS_FEED_FINISH;
	b->judged = b->made;
}

void ws_feed_drop(struct ws_feed_box *b)
{
	/* else nothing of it is read, and what is may be another thread's */
	if (b->loaded < b->n_payloads)
		stop_reading(b);
	ws_feed_steps_free(b->steps);
	b->steps = NULL;
	b->payloads = NULL;
	b->n_payloads = b->loaded = 0;
	b->asked = b->done = (struct ws_feed_at){ 0 };
	b->made = b->judged = 0;
	if (b->lent)
		ws_feed_lend(b, 0, 0);
}

void ws_feed_lend(struct ws_feed_box *b, ws_devptr at, uint64_t capacity)
{
	if (!b->lent)
		ws_gpu_free(b->feed->gpu, b->at);
	b->lent = capacity > 0;
	b->at = at;
	b->capacity = capacity;
}

uint64_t ws_feed_after(uint64_t place, const struct ws_payload *p)
{
	return place + (p->length + WS_FEED_ALIGN - 1) / WS_FEED_ALIGN * WS_FEED_ALIGN;
}

static uint64_t room_for(const struct ws_feed_box *b)
{
	uint64_t wants = 0;
	for (size_t i = 0; i < b->n_payloads; i++)
		wants = ws_feed_after(wants, &b->payloads[i]);
	return wants;
}

bool ws_feed_grows(const struct ws_feed_box *b)
{
	return b->at && room_for(b) > b->capacity;
}

static int make_room(struct ws_feed *f, struct ws_feed_box *b, struct ws_err *err)
{
	uint64_t wants = room_for(b);
	if (wants <= b->capacity)
		return 0;
	assert(!b->lent); /* whoever lent it has made it large enough */
	wants = wants > f->least ? wants : f->least;
	ws_gpu_free(f->gpu, b->at);
	b->at = 0;
	b->capacity = 0;
	if (ws_gpu_alloc(f->gpu, wants, &b->at, err)) {
		ws_err_hint(
			err,
			"two buckets lie on the GPU at once: a smaller --bucket-size needs less");
		return -1;
	}
	b->capacity = wants;
	return 0;
}

static int prepare(struct ws_feed *f, struct ws_feed_box *b, struct ws_err *err)
{
	return b->steps ? 0 :
	       make_room(f, b, err) || ws_feed_steps_make(b->payloads, b->n_payloads, b->at,
	                                                  f->desk, &b->steps, err) ?
	                  -1 :
	                  0;
}

/* ---- steps ---- */

static size_t piece_at(const struct ws_feed_step *s, uint64_t in)
{
	return s->n - in < WS_RING_SLOT ? (size_t)(s->n - in) : WS_RING_SLOT;
}

static void go_past(struct ws_feed_at *at, const struct ws_feed_step *s, size_t n)
{
	at->in += n;
	if (at->in < s->n)
		return;
	at->step++;
	at->in = 0;
}

/* As far as there are slots. */
static int ask_ahead(struct ws_feed *f, struct ws_feed_box *b, struct ws_err *err)
{
	for (bool asked = true; asked && b->asked.step < b->steps->n;) {
		const struct ws_feed_step *s = &b->steps->list[b->asked.step];
		if (s->kind == WS_FEED_PLACED)
			break; /* its turn decides whether it is read at all */
		if (s->kind != WS_FEED_READ) {
			b->asked.step++;
			continue;
		}
		const size_t n = piece_at(s, b->asked.in);
		if (ws_ring_ask(f->ring, s->span, s->from + b->asked.in, n, &asked, err))
			return -1;
		if (asked)
			go_past(&b->asked, s, n);
	}
	return 0;
}

static int copy_whole(struct ws_feed *f, const struct ws_feed_step *s, bool *here,
                      struct ws_err *err)
{
	struct ws_place place;
	if (s->span->place(s->span->ctx, &place, err))
		return -1;
	*here = memcmp(place.gpu, ws_gpu_device(f->gpu)->uuid, sizeof place.gpu) == 0;
	return *here ? ws_gpu_copy(f->gpu, s->to, place.at + s->from, s->n, f->stream, err) : 0;
}

/* Where there are no kernels for this GPU, the CPU gathers. */
static int gather(struct ws_feed *f, const struct ws_feed_step *s, bool *here, struct ws_err *err)
{
	*here = false;
	f->no_compute =
		f->no_compute || (!f->compute && ws_compute_open(f->gpu, &f->compute, NULL));
	return f->no_compute ? 0 :
	                       ws_boxes_gather(f->compute, ws_gpu_device(f->gpu), s->span, s->from,
	                                       s->n, s->to, f->stream, here, err);
}

/* Bytes that are on this GPU go from where they are. */
static int copy_placed(struct ws_feed *f, struct ws_feed_box *b, struct ws_feed_step *s,
                       struct ws_err *err)
{
	bool here;
	if (s->span->n_boxes ? gather(f, s, &here, err) : copy_whole(f, s, &here, err))
		return -1;
	if (!here) {
		s->kind = WS_FEED_READ;
		return 0;
	}
	b->done.step++;
	b->asked = b->done;
	return 0;
}

/* The stream goes on only when all that was copied is here. */
static int catch_up(struct ws_feed *f, struct ws_err *err)
{
	if (f->behind && (ws_gpu_event_record(f->gpu, f->copied, f->copies, err) ||
	                  ws_stream_wait_event(f->gpu, f->stream, f->copied, err)))
		return -1;
	f->behind = false;
	return 0;
}

/* Of what was asked for; where nothing is, all slots are being copied. */
static int take_piece(struct ws_feed *f, struct ws_feed_at *done, const struct ws_feed_step *s,
                      ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	if (ws_ring_waiting(f->ring) == 0)
		return ws_ring_room(f->ring, until, cancel, err);
	if (ws_ring_take(f->ring, s->to + done->in, f->copies, until, cancel, err))
		return -1;
	f->behind = true;
	go_past(done, s, piece_at(s, done->in));
	return 0;
}

/* What a fill makes, in the place of what was made here. */
static int fill_anew(struct ws_feed *f, const struct ws_span *span, ws_devptr to, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_feed_step all = {
		.kind = WS_FEED_READ, .span = span, .n = span->length, .to = to
	};
	struct ws_feed_at asked = { 0 }, done = { 0 };
	while (done.step == 0) {
		const size_t n = piece_at(&all, asked.in);
		bool room = asked.step == 0;
		if (room && ws_ring_ask(f->ring, span, asked.in, n, &room, err))
			return -1;
		if (room)
			go_past(&asked, &all, n);
		else if (take_piece(f, &done, &all, until, cancel, err))
			return -1;
	}
	return 0;
}

/* Looks at the oldest making that nobody has looked at. */
static int judge_one(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_feed_making *m = &b->steps->makings[b->judged];
	bool good;
	if (ws_feed_desk_judge(f->desk, b->steps, b->judged, &good, until, cancel, err))
		return -1;
	for (int i = 0; i < 2 && !good; i++) {
		if (i == 0)
			ws_ring_forget(f->ring);
		if (m->spans[i] && fill_anew(f, m->spans[i], m->to[i], until, cancel, err))
			return -1;
		b->asked = b->done;
	}
	b->judged++;
	return 0;
}

static int judge(struct ws_feed *f, struct ws_feed_box *b, size_t most_left, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err)
{
	while (b->made - b->judged > most_left)
		if (judge_one(f, b, until, cancel, err))
			return -1;
	return 0;
}

/* A step of a making. */
static int make(struct ws_feed *f, struct ws_feed_box *b, const struct ws_feed_step *s,
                ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	if ((s->kind == WS_FEED_BEGIN && judge(f, b, WS_FEED_RECORDS - 1, until, cancel, err)) ||
	    catch_up(f, err) || ws_feed_desk_do(f->desk, b->steps, s, f->stream, err))
		return -1;
	b->made += s->kind == WS_FEED_FINISH;
	b->done.step++;
	return 0;
}

static int end_payload(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until,
                       const struct ws_cancel *cancel, struct ws_err *err)
{
	if (judge(f, b, 0, until, cancel, err) || catch_up(f, err))
		return -1;
	b->loaded++;
	b->done.step++;
	return 0;
}

/* The next piece of a step, or all of it. */
static int do_next(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_feed_step *s = &b->steps->list[b->done.step];
	switch (s->kind) {
	case WS_FEED_READ:
		return take_piece(f, &b->done, s, until, cancel, err);
	case WS_FEED_PLACED:
		return copy_placed(f, b, s, err);
	case WS_FEED_END:
		return end_payload(f, b, until, cancel, err);
	case WS_FEED_TURN:
		b->done.step++;
		return ws_feed_desk_turn(f->desk, s->turn, f->stream, f->copies, err);
	default:
		return make(f, b, s, until, cancel, err);
	}
}

static int load(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until,
                const struct ws_cancel *cancel, struct ws_err *err)
{
	const size_t wanted = b->loaded + 1;
	while (b->loaded < wanted) {
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "reading was cancelled");
		if (ask_ahead(f, b, err) || do_next(f, b, until, cancel, err))
			return -1;
	}
	return 0;
}

int ws_feed_load(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err)
{
	if (f->reading && f->reading != b)
		stop_reading(f->reading);
	f->reading = b;
	if (prepare(f, b, err) == 0 && load(f, b, until, cancel, err) == 0) {
		if (b->loaded == b->n_payloads)
			f->reading = NULL;
		return 0;
	}
	stop_reading(b);
	ws_feed_settle(f); /* memory that is copied from may be let go now */
	return -1;
}
