/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_recv.c - a rank other than the root of a broadcast: receives, and forwards to its children.
 *
 * A root with several broadcasts at once (torch's async_op) may begin a later one first, so several
 * items are requested ahead only if any order is possible:
 *   placed     goes to its dst, or, if small, to our own memory until all children have it;
 *   discarded  not wanted: not even copied from the socket;
 *   streamed   the rest: through a ring, in order, requested one at a time. Once such an item has
 *              begun no other item can come between, so the next item is requested then, not at
 *              its end. */
#include "gloo_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* an item without dst gets its own memory up to this size */
	KEEP = 64 * 1024,
	LEAF_RING = 512 * 1024,       /* size of the ring without readers: fits the cache */
};

struct item {
	enum { PLACED, DISCARDED, STREAMED } how;
	bool begun;
	uint8_t *mem;
	uint64_t got;
};

struct receiving {
	struct ws_gloo_call call;     /* first member: the loop passes a pointer to it */
	struct ws_gloo_source source;
	struct ws_gloo *g;
	struct ws_gloo_peer *parent;
	const struct ws_gloo_sink *sinks;
	struct item *items;
	size_t n, n_asked, n_begun, n_complete;
	size_t current;               /* the arriving item; n: none */
	size_t n_shown;               /* items that were passed to take() completely */
	uint64_t shown;               /* bytes of the next item that were passed to take() */
	/* items whose own memory is freed; items that have memory now */
	size_t n_freed, n_kept;
	struct ws_flow *ring;
	uint64_t received, progress_before;
	unsigned n_out;
	struct ws_gloo_out out[32];
};

static struct receiving *receiving_of(const struct ws_gloo_source *source)
{
	return (struct receiving *)((char *)(uintptr_t)source - offsetof(struct receiving, source));
}

/* ---- requesting items ---- */

static bool is_kept(const struct receiving *r, size_t i)
{
	return r->items[i].how == PLACED && !r->sinks[i].dst;
}

/* Whether item i may be requested before all earlier items have begun. */
static bool may_ask(const struct receiving *r, size_t i)
{
	if (i >= r->n_begun + WS_GLOO_WINDOW)
		return false;
	if (is_kept(r, i) && r->n_kept >= WS_GLOO_WINDOW)
		return false;
	if (r->n_begun == i)
		return true;
	return r->items[i].how != STREAMED && r->items[i - 1].how != STREAMED;
}

static int request_items(struct receiving *r, struct ws_err *err)
{
	/* In batches, but early enough that the root always has items to send. */
	if (r->n_asked > r->n_begun + WS_GLOO_WINDOW / 2)
		return 0;
	while (r->n_asked < r->n && may_ask(r, r->n_asked)) {
		const size_t i = r->n_asked;
		if (is_kept(r, i)) {
			r->items[i].mem = malloc(r->sinks[i].length + 1);
			if (!r->items[i].mem)
				return ws_oom(err);
			r->n_kept++;
		}
		if (ws_gloo_queue(r->parent, WS_GLOO_RECV_READY, r->source.tag + (uint32_t)i,
		                  r->sinks[i].length, err))
			return -1;
		r->n_asked++;
	}
	return 0;
}

/* ---- received data ---- */

static int wrong_length(const struct receiving *r, size_t i, uint64_t length, struct ws_err *err)
{
	ws_err_set(err, WS_EDATA,
	           "rank %u sends %" PRIu64 " bytes as item %zu, which should have %" PRIu64,
	           r->parent->rank, length, i, r->sinks[i].length);
	return ws_err_rank(err, r->parent->rank);
}

static int begin(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint32_t tag, uint64_t length,
                 struct ws_err *err)
{
	struct receiving *r = (struct receiving *)call;
	const size_t i = tag - r->source.tag;
	if (p != r->parent) {
		ws_gloo_lose(r->g, p, "sent a broadcast, which only rank %u should",
		             r->parent->rank);
		return 0;
	}
	if (i >= r->n_asked || r->items[i].begun) {
		ws_gloo_lose(r->g, p, "sent collective %" PRIu32 " unasked", tag);
		return 0;
	}
	if (length != r->sinks[i].length)
		return wrong_length(r, i, length, err);
	struct ws_gloo_note *note = ws_gloo_note(p, tag);
	if (note)
		note->send_ready = false;
	r->items[i].begun = true;
	r->n_begun++;
	if (length == 0)
		r->n_complete++;
	else
		r->current = i;
	return 0;
}

static size_t place(struct ws_gloo_call *call, struct ws_gloo_peer *p, void **at)
{
	struct receiving *r = (struct receiving *)call;
	(void)p;
	const struct item *it = &r->items[r->current];
	if (it->how == STREAMED)
		return ws_flow_room(r->ring, at);
	*at = it->mem ? it->mem + it->got : NULL;
	const uint64_t left = r->sinks[r->current].length - it->got;
	return left < SIZE_MAX ? (size_t)left : SIZE_MAX;
}

/* Passes new bytes of placed items to take(), in order. */
static int show(struct receiving *r, struct ws_err *err)
{
	for (; r->n_shown < r->n && r->items[r->n_shown].begun; r->n_shown++, r->shown = 0) {
		const struct ws_gloo_sink *sink = &r->sinks[r->n_shown];
		const struct item *it = &r->items[r->n_shown];
		const uint64_t fresh = it->got - r->shown;
		if (it->how == PLACED && sink->take && fresh &&
		    sink->take(sink->ctx, it->mem + r->shown, (size_t)fresh, err))
			return -1;
		r->shown = it->got;
		if (it->got < sink->length)
			break;
	}
	return 0;
}

static int placed(struct ws_gloo_call *call, struct ws_gloo_peer *p, const void *at, size_t n,
                  struct ws_err *err)
{
	struct receiving *r = (struct receiving *)call;
	(void)p;
	struct item *it = &r->items[r->current];
	const struct ws_gloo_sink *sink = &r->sinks[r->current];
	it->got += n;
	r->received += n;
	if (it->how == STREAMED) {
		if (sink->take && sink->take(sink->ctx, at, n, err))
			return -1;
		ws_flow_commit(r->ring, n);
	}
	if (it->got == sink->length) {
		r->n_complete++;
		r->current = r->n;
	}
	return show(r, err);
}

/* ---- the source of our children's streams ---- */

static uint64_t length_of(const struct ws_gloo_source *source, size_t item)
{
	return receiving_of(source)->sinks[item].length;
}

static void peek(struct ws_gloo_source *source, const struct ws_gloo_out *o,
                 struct ws_gloo_piece *piece)
{
	struct receiving *r = receiving_of(source);
	const struct item *it = &r->items[o->item];
	*piece = (struct ws_gloo_piece){ .fd = -1 };
	if (it->how == STREAMED) {
		const size_t n = ws_flow_peek(r->ring, o->index, &piece->bytes);
		const uint64_t left = r->sinks[o->item].length - o->at;
		piece->n = n < left ? n : (size_t)left;
	} else if (it->mem) {
		piece->bytes = it->mem + o->at;
		piece->n = (size_t)(it->got - o->at);
	}
}

static void took(struct ws_gloo_source *source, struct ws_gloo_out *o, size_t n)
{
	struct receiving *r = receiving_of(source);
	if (r->items[o->item].how == STREAMED)
		ws_flow_consume(r->ring, o->index, n);
}

/* ---- the call ---- */

static void give_back(struct receiving *r)
{
	size_t past = r->n_shown;
	for (unsigned i = 0; i < r->n_out; i++)
		past = r->out[i].item < past ? r->out[i].item : past;
	for (; r->n_freed < past; r->n_freed++) {
		if (!is_kept(r, r->n_freed))
			continue;
		free(r->items[r->n_freed].mem);
		r->items[r->n_freed].mem = NULL;
		r->n_kept--;
	}
}

/* If the next item's length is announced and wrong, reports that before the root gives up. */
static int check_announced(const struct receiving *r, struct ws_err *err)
{
	const size_t i = r->n_begun;
	const struct ws_gloo_note *note =
		i < r->n ? ws_gloo_note(r->parent, r->source.tag + (uint32_t)i) : NULL;
	return note && note->send_ready && note->send_length != r->sinks[i].length ?
	           wrong_length(r, i, note->send_length, err) : 0;
}

static int check_parent(const struct receiving *r, struct ws_err *err)
{
	char part[96];
	if (check_announced(r, err))
		return -1;
	if (!r->parent->gone || r->n_complete == r->n)
		return 0;
	if (!err)
		return -1;
	*err = r->parent->why;
	const size_t used = strlen(err->msg);
	if (r->current < r->n)
		snprintf(err->msg + used, sizeof err->msg - used, " (after %s)",
		         ws_gloo_part(part, sizeof part, r->items[r->current].got,
		                      r->sinks[r->current].length, r->current));
	else
		snprintf(err->msg + used, sizeof err->msg - used, " (before item %zu)", r->n_begun);
	return -1;
}

static unsigned explain(struct ws_gloo_call *call, struct ws_buf *text)
{
	const struct receiving *r = (const struct receiving *)call;
	const struct ws_gloo_peer *p = r->parent;
	unsigned first = r->n_complete < r->n ? p->rank : 0;
	char part[96];
	if (r->n_complete < r->n) {
		ws_buf_printf(text, "rank %u: ", p->rank);
		if (p->fd < 0)
			ws_buf_puts(text, "has not connected");
		else if (r->current < r->n)
			ws_buf_printf(text, "sent %s",
			              ws_gloo_part(part, sizeof part, r->items[r->current].got,
			                           r->sinks[r->current].length, r->current));
		else
			ws_buf_printf(text, "has not sent item %zu", r->n_begun);
	}
	for (unsigned i = 0; i < r->n_out; i++)
		if (ws_gloo_out_explain(&r->out[i], &r->source, text) && !first)
			first = r->out[i].peer->rank;
	return first;
}

static bool has_room(const struct receiving *r)
{
	void *at;
	return ws_flow_room(r->ring, &at) > 0;
}

static int step(struct ws_gloo_call *call, bool *done, struct ws_err *err)
{
	struct receiving *r = (struct receiving *)call;
	if (r->parent->stalled && has_room(r)) {
		r->parent->stalled = false;
		if (r->parent->fd >= 0 && ws_gloo_read(r->g, r->parent, &r->call, err))
			return -1;
	}
	*done = r->n_complete == r->n;
	for (unsigned i = 0; i < r->n_out; i++) {
		struct ws_gloo_out *o = &r->out[i];
		if (ws_gloo_out_pump(r->g, o, &r->source, err) ||
		    ws_gloo_out_check(o, &r->source, err))
			return -1;
		*done = *done && ws_gloo_out_done(o, &r->source);
	}
	/* Only progress of our children ends a stall, and the loop above may have made some. */
	r->call.busy = r->parent->stalled && has_room(r);
	if (show(r, err))
		return -1;
	give_back(r);
	if (request_items(r, err))
		return -1;
	ws_gloo_flush(r->g, r->parent, false);
	atomic_store_explicit(&r->g->progress, r->progress_before + r->received,
	                      memory_order_relaxed);
	return check_parent(r, err);
}

static int run_receive(struct receiving *r, struct ws_err *err)
{
	if (ws_gloo_call_begin(r->g, &r->call, err))
		return -1;
	const int rc = ws_gloo_call_run(r->g, &r->call, err);
	r->g->tag += (uint32_t)r->n;
	return ws_gloo_call_end(r->g, &r->call, rc, err);
}

static int prepare(struct receiving *r, struct ws_err *err)
{
	bool ring = false;
	r->items = calloc(r->n + 1, sizeof *r->items);
	if (!r->items)
		return ws_oom(err);
	for (size_t i = 0; i < r->n; i++) {
		const struct ws_gloo_sink *sink = &r->sinks[i];
		struct item *it = &r->items[i];
		it->mem = sink->dst;
		if (sink->dst || (sink->length <= KEEP && (sink->take || r->n_out)))
			it->how = PLACED;
		else
			it->how = sink->take || r->n_out ? STREAMED : DISCARDED;
		ring = ring || it->how == STREAMED;
	}
	const size_t bytes =
		r->n_out || r->g->ring_bytes < LEAF_RING ? r->g->ring_bytes : LEAF_RING;
	if (ring && ws_flow_open(&r->g->flow, bytes, r->n_out, err))
		return -1;
	r->ring = ring ? r->g->flow : NULL;
	return 0;
}

int ws_gloo_recv(struct ws_gloo *g, unsigned root, const struct ws_gloo_sink *items, size_t n,
                 ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	static const struct ws_gloo_call_ops ops = { .step = step, .begin = begin, .place = place,
	                                             .placed = placed, .explain = explain };
	if (root >= g->size || root == g->rank)
		return ws_err_set(err, WS_EUSAGE, "gloo: rank %u cannot receive from rank %u of %u",
		                  g->rank, root, g->size);
	struct receiving *r = calloc(1, sizeof *r);
	if (!r)
		return ws_oom(err);
	r->call = (struct ws_gloo_call){ .ops = &ops, .until = until, .cancel = cancel };
	r->source = (struct ws_gloo_source){ .n_items = n, .tag = g->tag, .length = length_of,
	                                     .peek = peek, .took = took };
	r->g = g;
	r->parent = &g->peers[ws_gloo_parent(g->size, root, g->rank)];
	r->sinks = items;
	r->n = r->current = n;
	r->progress_before = ws_gloo_progress(g);
	unsigned children[32];
	r->n_out = ws_gloo_children(g->size, root, g->rank, children);
	for (unsigned i = 0; i < r->n_out; i++)
		r->out[i] = (struct ws_gloo_out){ .peer = &g->peers[children[i]], .index = i };
	int rc = prepare(r, err);
	if (rc == 0)
		rc = run_receive(r, err);
	for (size_t i = 0; r->items && i < n; i++)
		if (is_kept(r, i))
			free(r->items[i].mem);
	free(r->items);
	free(r);
	return rc;
}
