/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_p2p.c - plain sends and receives (gloo.h).
 *
 * Each peer has a lane with its sends and its receives, in order; lanes do not wait for each
 * other. Data that is in no file is computed in the calling thread, a tile at a time. */
#include "gloo.h"

#include "gloo_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 1024 * 1024, SCRATCH = 64 * 1024 };

struct exchange;

struct lane {
	struct ws_gloo_peer *peer;
	struct exchange *x;

	size_t *send;                 /* indices of the transfers to send */
	struct ws_gloo_source source; /* n_items: length of `send` */
	struct ws_gloo_out out;
	uint8_t *tile;                /* computed bytes: [tile_at, tile_n) are not sent yet */
	size_t tile_at, tile_n;

	size_t *recv;
	size_t n_recv, n_asked, n_begun, n_complete;
	uint64_t got;                 /* bytes of the receive that was begun last */
};

struct exchange {
	struct ws_gloo_call call;     /* first member: the loop passes a pointer to it */
	struct ws_gloo *g;
	const struct ws_gloo_transfer *transfers;
	size_t n;
	struct lane *lanes;           /* by rank */
	size_t *places;               /* memory of all lists */
	uint8_t *scratch;             /* for data of a sink without memory */
	struct ws_err made;           /* why data could not be computed */
	uint64_t received, progress_before, sent_before;
};

/* ---- sending ---- */

static struct lane *lane_of(const struct ws_gloo_source *source)
{
	return (struct lane *)((char *)(uintptr_t)source - offsetof(struct lane, source));
}

static const struct ws_payload *payload_of(const struct lane *l, size_t item)
{
	return &l->x->transfers[l->send[item]].payload;
}

static uint64_t length_of(const struct ws_gloo_source *source, size_t item)
{
	return payload_of(lane_of(source), item)->length;
}

/* Computes the next tile of a span; false: failed. */
static bool make_tile(struct lane *l, const struct ws_span *span, uint64_t at)
{
	const uint64_t left = span->length - at;
	if (!l->tile && !(l->tile = malloc(TILE))) {
		ws_oom(&l->x->made);
		return false;
	}
	l->tile_at = 0;
	l->tile_n = left < TILE ? (size_t)left : TILE;
	if (span->fill(span->ctx, at, l->tile, l->tile_n, &l->x->made) == 0)
		return true;
	if (l->x->made.code == WS_OK)
		ws_err_set(&l->x->made, WS_EINPUT, "the bytes could not be computed");
	l->tile_n = 0;
	return false;
}

static void peek(struct ws_gloo_source *source, const struct ws_gloo_out *o,
                 struct ws_gloo_piece *piece)
{
	struct lane *l = lane_of(source);
	const struct ws_span *span = &payload_of(l, o->item)->spans[o->span];
	const uint64_t left = span->length - o->span_at;
	*piece = (struct ws_gloo_piece){ .fd = span->fd };
	if (span->fd >= 0) {
		piece->offset = span->offset + o->span_at;
		piece->n = left < SIZE_MAX / 2 ? (size_t)left : SIZE_MAX / 2;
	} else if (l->tile_at < l->tile_n || make_tile(l, span, o->span_at)) {
		piece->bytes = l->tile + l->tile_at;
		piece->n = l->tile_n - l->tile_at;
	}
}

static void took(struct ws_gloo_source *source, struct ws_gloo_out *o, size_t n)
{
	struct lane *l = lane_of(source);
	const struct ws_span *span = &payload_of(l, o->item)->spans[o->span];
	if (span->fd < 0)
		l->tile_at += n;
	o->span_at += n;
	if (o->span_at == span->length) {
		o->span++;
		o->span_at = 0;
	}
}

/* ---- receiving ---- */

static const struct ws_gloo_sink *sink_at(const struct lane *l, size_t i)
{
	return &l->x->transfers[l->recv[i]].sink;
}

static int request_transfers(struct lane *l, struct ws_err *err)
{
	for (; l->n_asked < l->n_recv && l->n_asked < l->n_begun + WS_GLOO_WINDOW; l->n_asked++)
		if (ws_gloo_queue_plain(l->peer, WS_GLOO_RECV_READY, sink_at(l, l->n_asked)->length,
		                        err))
			return -1;
	return 0;
}

static int refuse_broadcast(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint32_t tag,
                            uint64_t length, struct ws_err *err)
{
	(void)length, (void)err;
	ws_gloo_lose(((struct exchange *)call)->g, p, "sent collective %" PRIu32 " unasked", tag);
	return 0;
}

static int begin(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint64_t length,
                 struct ws_err *err)
{
	struct exchange *x = (struct exchange *)call;
	struct lane *l = &x->lanes[p->rank];
	if (l->n_begun == l->n_asked) {
		ws_gloo_lose(x->g, p, "sent a message unasked");
		return 0;
	}
	if (length != sink_at(l, l->n_begun)->length) {
		ws_err_set(err, WS_EDATA,
		           "rank %u sends %" PRIu64
		           " bytes as item %zu, which should have %" PRIu64,
		           p->rank, length, l->n_begun, sink_at(l, l->n_begun)->length);
		return ws_err_rank(err, p->rank);
	}
	l->n_begun++;
	l->got = 0;
	l->n_complete += length == 0;
	return 0;
}

static size_t place(struct ws_gloo_call *call, struct ws_gloo_peer *p, void **at)
{
	struct exchange *x = (struct exchange *)call;
	const struct lane *l = &x->lanes[p->rank];
	const struct ws_gloo_sink *sink = sink_at(l, l->n_complete);
	const uint64_t left = sink->length - l->got;
	*at = sink->dst ? (uint8_t *)sink->dst + l->got : sink->take ? x->scratch : NULL;
	if (!sink->dst && sink->take && left > SCRATCH)
		return SCRATCH;
	return left < SIZE_MAX ? (size_t)left : SIZE_MAX;
}

static int placed(struct ws_gloo_call *call, struct ws_gloo_peer *p, const void *at, size_t n,
                  struct ws_err *err)
{
	struct exchange *x = (struct exchange *)call;
	struct lane *l = &x->lanes[p->rank];
	const struct ws_gloo_sink *sink = sink_at(l, l->n_complete);
	l->got += n;
	x->received += n;
	if (sink->take && sink->take(sink->ctx, at, n, err))
		return -1;
	if (l->got == sink->length)
		l->n_complete++;
	return 0;
}

/* ---- the call ---- */

static unsigned explain(struct ws_gloo_call *call, struct ws_buf *text)
{
	const struct exchange *x = (const struct exchange *)call;
	unsigned first = 0;
	for (unsigned r = 0; r < x->g->size; r++) {
		const struct lane *l = &x->lanes[r];
		const bool taking =
			l->source.n_items && ws_gloo_out_explain(&l->out, &l->source, text);
		const bool sending = l->n_complete < l->n_recv;
		if (sending)
			ws_buf_printf(text, "%srank %u: has not sent item %zu",
			              text->len ? "; " : "", r, l->n_complete);
		if ((taking || sending) && !first)
			first = r;
	}
	return first;
}

static int step_lane(struct lane *l, bool *done, struct ws_err *err)
{
	struct exchange *x = l->x;
	if (request_transfers(l, err) || ws_gloo_out_pump(x->g, &l->out, &l->source, err))
		return -1;
	if (x->made.code) {
		if (err)
			*err = x->made;
		return -1;
	}
	ws_gloo_flush(x->g, l->peer, false);
	if (l->source.n_items && ws_gloo_out_check(&l->out, &l->source, err))
		return -1;
	if (l->peer->gone && l->n_complete < l->n_recv) {
		if (err)
			*err = l->peer->why;
		return -1;
	}
	ws_gloo_out_traced(x->g, &l->out, &l->source, false);
	*done = *done && l->n_complete == l->n_recv && ws_gloo_out_done(&l->out, &l->source);
	return 0;
}

static void keep_books(struct exchange *x)
{
	uint64_t sent = 0;
	for (unsigned r = 0; r < x->g->size; r++) {
		const struct lane *l = &x->lanes[r];
		sent += l->out.sent;
		if (l->source.n_items)
			ws_gloo_show_sent(x->g, r, l->out.sent);
	}
	if (sent && !atomic_load_explicit(&x->g->first_byte, memory_order_relaxed))
		atomic_store_explicit(&x->g->first_byte, ws_now_ns(), memory_order_relaxed);
	atomic_store_explicit(&x->g->sent, x->sent_before + sent, memory_order_relaxed);
	atomic_store_explicit(&x->g->progress, x->progress_before + sent + x->received,
	                      memory_order_relaxed);
}

static int step(struct ws_gloo_call *call, bool *done, struct ws_err *err)
{
	struct exchange *x = (struct exchange *)call;
	int rc = 0;
	*done = true;
	for (unsigned r = 0; r < x->g->size && rc == 0; r++) {
		struct lane *l = &x->lanes[r];
		if (l->n_recv || l->source.n_items)
			rc = step_lane(l, done, err);
	}
	keep_books(x); /* also after a failure: some peers may have received data */
	return rc;
}

static int run_exchange(struct exchange *x, struct ws_err *err)
{
	if (ws_gloo_call_begin(x->g, &x->call, err))
		return -1;
	return ws_gloo_call_end(x->g, &x->call, ws_gloo_call_run(x->g, &x->call, err), err);
}

/* Counts first, so that each lane's two lists are contiguous. */
static void share_out(struct exchange *x)
{
	size_t *at = x->places;
	for (size_t i = 0; i < x->n; i++) {
		struct lane *l = &x->lanes[x->transfers[i].peer];
		l->n_recv += x->transfers[i].receive;
		l->source.n_items += !x->transfers[i].receive;
	}
	for (unsigned r = 0; r < x->g->size; r++) {
		struct lane *l = &x->lanes[r];
		l->peer = &x->g->peers[r];
		l->x = x;
		l->out = (struct ws_gloo_out){ .peer = l->peer };
		l->source = (struct ws_gloo_source){ .n_items = l->source.n_items,
			                             .plain = true,
			                             .length = length_of,
			                             .peek = peek,
			                             .took = took };
		l->send = at;
		at += l->source.n_items;
		l->recv = at;
		at += l->n_recv;
		l->n_recv = 0;
	}
	for (size_t i = 0; i < x->n; i++) {
		struct lane *l = &x->lanes[x->transfers[i].peer];
		if (x->transfers[i].receive)
			l->recv[l->n_recv++] = i;
		else
			*l->send++ = i;
	}
	for (unsigned r = 0; r < x->g->size; r++)
		x->lanes[r].send -= x->lanes[r].source.n_items;
	for (unsigned r = 0; r < x->g->size; r++)
		if (x->lanes[r].source.n_items)
			ws_gloo_out_trace(x->g, &x->lanes[r].out);
}

static int check(const struct ws_gloo *g, const struct ws_gloo_transfer *t, size_t n,
                 struct ws_err *err)
{
	for (size_t i = 0; i < n; i++)
		if (t[i].peer >= g->size || t[i].peer == g->rank)
			return ws_err_set(err, WS_EUSAGE, "gloo: rank %u has no peer %u among %u",
			                  g->rank, t[i].peer, g->size);
	return 0;
}

int ws_gloo_exchange(struct ws_gloo *g, const struct ws_gloo_transfer *transfers, size_t n,
                     ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	static const struct ws_gloo_call_ops ops = { .step = step,
		                                     .begin = refuse_broadcast,
		                                     .begin_plain = begin,
		                                     .place = place,
		                                     .placed = placed,
		                                     .explain = explain };
	if (check(g, transfers, n, err))
		return -1;
	struct exchange x = {
		.call = { .ops = &ops, .until = until, .cancel = cancel },
		.g = g,
		.transfers = transfers,
		.n = n,
		.lanes = calloc(g->size, sizeof *x.lanes),
		.places = calloc(n + 1, sizeof *x.places),
		.scratch = malloc(SCRATCH),
		.made = WS_ERR_INIT,
		.progress_before = ws_gloo_progress(g),
		.sent_before = ws_gloo_sent(g),
	};
	int rc = -1;
	if (!x.lanes || !x.places || !x.scratch) {
		ws_oom(err);
	} else {
		share_out(&x);
		rc = run_exchange(&x, err);
	}
	for (unsigned r = 0; x.lanes && r < g->size; r++) {
		ws_gloo_out_traced(g, &x.lanes[r].out, &x.lanes[r].source, true);
		free(x.lanes[r].tile);
	}
	free(x.lanes);
	free(x.places);
	free(x.scratch);
	return rc;
}
