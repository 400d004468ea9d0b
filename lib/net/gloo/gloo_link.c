/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_link.c - one connection of the mesh: incoming and outgoing messages.
 *
 * Small messages are read in batches; a large payload goes from the socket directly to its
 * destination, or is discarded. Announcements may come in any order and long before they are
 * needed; they are stored as notes. */
#include "gloo_peer.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	DIRECT = 8 * 1024,           /* payload bytes worth a recv of their own */
	PIECE_MAX = 1024 * 1024,
	TURN_MAX = 4 * 1024 * 1024,  /* read before the next connection gets its turn */
	NOTES_FIRST = 64,
	NOTES_MAX = 64 * 1024,       /* how far a peer may be ahead */
};

/* Destination for bytes that MSG_TRUNC discards: the kernel writes nothing here. */
static uint8_t nowhere[PIECE_MAX];

void ws_gloo_show(const struct ws_gloo *g, unsigned rank, enum ws_gloo_stage stage)
{
	if (g->watch)
		atomic_store_explicit(&g->watch->ranks[rank].stage, (int)stage,
		                      memory_order_relaxed);
}

void ws_gloo_lose(struct ws_gloo *g, struct ws_gloo_peer *p, const char *fmt, ...)
{
	if (p->gone)
		return;
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ws_err_set(&p->why, WS_EDATA, "rank %u %s", p->rank, text);
	ws_err_rank(&p->why, p->rank);
	p->gone = true;
	ws_gloo_show(g, p->rank, WS_GLOO_LOST);
	ws_log(g->log, 1, "gloo: %s", p->why.msg);

	pthread_mutex_lock(&g->lock);
	if (p->fd >= 0)
		close(p->fd); /* close also removes it from the epoll set */
	p->fd = -1;
	pthread_mutex_unlock(&g->lock);
	p->watched = 0;
	p->full = false;
}

/* ---- notes ---- */

static bool is_free(const struct ws_gloo_note *n)
{
	return !n->recv_ready && !n->send_ready;
}

struct ws_gloo_note *ws_gloo_note(const struct ws_gloo_peer *p, uint32_t tag)
{
	struct ws_gloo_note *n = p->n_notes ? &p->notes[tag & (p->n_notes - 1)] : NULL;
	return n && n->tag == tag && !is_free(n) ? n : NULL;
}

/* Each note gets a slot of its own in the larger table: tags that differ in n low bits also differ
 * in n + 1. */
static int grow_notes(struct ws_gloo_peer *p)
{
	const uint32_t n = p->n_notes ? 2 * p->n_notes : NOTES_FIRST;
	struct ws_gloo_note *notes = n <= NOTES_MAX ? calloc(n, sizeof *notes) : NULL;
	if (!notes)
		return -1;
	for (uint32_t i = 0; i < p->n_notes; i++)
		if (!is_free(&p->notes[i]))
			notes[p->notes[i].tag & (n - 1)] = p->notes[i];
	free(p->notes);
	p->notes = notes;
	p->n_notes = n;
	return 0;
}

static struct ws_gloo_note *slot_for(struct ws_gloo_peer *p, uint32_t tag)
{
	for (;;) {
		struct ws_gloo_note *n = p->n_notes ? &p->notes[tag & (p->n_notes - 1)] : NULL;
		if (n && (is_free(n) || n->tag == tag)) {
			n->tag = tag;
			return n;
		}
		if (grow_notes(p))
			return NULL;
	}
}

static void take_note(struct ws_gloo *g, struct ws_gloo_peer *p, const struct ws_gloo_message *m,
                      uint32_t tag)
{
	if ((int32_t)(tag - g->tag) < 0) {
		ws_gloo_lose(g, p, "is at collective %" PRIu32 ", we are at %" PRIu32
		             ": the ranks disagree about how many ran", tag, g->tag);
		return;
	}
	struct ws_gloo_note *n = slot_for(p, tag);
	if (!n) {
		ws_gloo_lose(g, p, "is at collective %" PRIu32 ", too far ahead of ours, %" PRIu32,
		             tag, g->tag);
		return;
	}
	bool *flag = m->opcode == WS_GLOO_RECV_READY ? &n->recv_ready : &n->send_ready;
	if (*flag) {
		ws_gloo_lose(g, p, "announced collective %" PRIu32 " twice", tag);
		return;
	}
	*flag = true;
	*(m->opcode == WS_GLOO_RECV_READY ? &n->recv_length : &n->send_length) = m->length;
}

/* ---- in ---- */

/* Send announcements are ignored: the message itself has the same data. */
static int take_plain(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                      const struct ws_gloo_message *m, struct ws_err *err)
{
	if (m->opcode == WS_GLOO_RECV_READY) {
		if (p->asked.len - p->asked_at >= NOTES_MAX * sizeof m->length)
			ws_gloo_lose(g, p, "waits for too many messages");
		else
			ws_buf_add(&p->asked, &m->length, sizeof m->length);
		return ws_buf_check(&p->asked, "gloo messages", err);
	}
	if (m->opcode != WS_GLOO_SEND_UNBOUND)
		return 0;
	if (!call->ops->begin_plain) {
		ws_gloo_lose(g, p, "runs a plain send where a broadcast was expected");
		return 0;
	}
	p->payload_left = m->length;
	p->large = m->length >= WS_GLOO_IN;
	return call->ops->begin_plain(call, p, m->length, err);
}

bool ws_gloo_plain_asked(struct ws_gloo_peer *p, uint64_t *length)
{
	if (p->asked.len == p->asked_at)
		return false;
	memcpy(length, p->asked.data + p->asked_at, sizeof *length);
	p->asked_at += sizeof *length;
	if (p->asked.len == p->asked_at) {
		ws_buf_reset(&p->asked);
		p->asked_at = 0;
	}
	return true;
}

static int take_message(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                        const uint8_t *preamble, struct ws_err *err)
{
	struct ws_gloo_message m;
	struct ws_err why;
	uint32_t tag;
	if (ws_gloo_message_unpack(preamble, &m, &why)) {
		ws_gloo_lose(g, p, "sent a %s", why.msg);
		return 0;
	}
	if (m.slot == WS_GLOO_PLAIN_SLOT)
		return take_plain(g, p, call, &m, err);
	if (ws_gloo_slot_tag(m.slot, &tag, &why)) {
		ws_gloo_lose(g, p, "%s", why.msg);
		return 0;
	}
	if (m.opcode != WS_GLOO_SEND_UNBOUND) {
		take_note(g, p, &m, tag);
		return 0;
	}
	p->payload_left = m.length;
	p->large = m.length >= WS_GLOO_IN;
	return call->ops->begin(call, p, tag, m.length, err);
}

static size_t least(size_t a, uint64_t b)
{
	return b < a ? (size_t)b : a;
}

/* Delivers payload bytes that were read together with a message. */
static int take_payload(struct ws_gloo_peer *p, struct ws_gloo_call *call, struct ws_err *err)
{
	void *at = NULL;
	size_t n = call->ops->place(call, p, &at);
	if (n == 0) {
		p->stalled = true;
		return 0;
	}
	n = least(least(n, p->in_len - p->in_at), p->payload_left);
	if (at)
		memcpy(at, p->in + p->in_at, n);
	p->in_at += n;
	p->payload_left -= n;
	return call->ops->placed(call, p, at, n, err);
}

int ws_gloo_parse(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                  struct ws_err *err)
{
	while (!p->gone && !p->stalled) {
		const size_t have = p->in_len - p->in_at;
		if (p->payload_left && have) {
			if (take_payload(p, call, err))
				return -1;
		} else if (!p->payload_left && have >= WS_GLOO_PREAMBLE) {
			const uint8_t *preamble = p->in + p->in_at;
			p->in_at += WS_GLOO_PREAMBLE;
			if (take_message(g, p, call, preamble, err))
				return -1;
		} else {
			memmove(p->in, p->in + p->in_at, have);
			p->in_at = 0;
			p->in_len = have;
			break;
		}
	}
	return 0;
}

static ssize_t read_gulp(struct ws_gloo_peer *p, size_t *asked)
{
	/* Another large payload usually follows: the next recv puts it directly into place. */
	*asked = (p->large ? WS_GLOO_IN / 16 : WS_GLOO_IN) - p->in_len;
	const ssize_t got = recv(p->fd, p->in + p->in_len, *asked, 0);
	if (got > 0)
		p->in_len += (size_t)got;
	return got;
}

static ssize_t read_payload(struct ws_gloo_peer *p, struct ws_gloo_call *call, size_t *asked,
                            struct ws_err *err)
{
	void *at = NULL;
	*asked = least(call->ops->place(call, p, &at), p->payload_left);
	if (*asked == 0) {
		p->stalled = true;
		errno = EAGAIN;
		return -1;
	}
	*asked = least(*asked, PIECE_MAX);
	const ssize_t got = recv(p->fd, at ? at : nowhere, *asked, at ? 0 : MSG_TRUNC);
	if (got <= 0)
		return got;
	p->payload_left -= (uint64_t)got;
	return call->ops->placed(call, p, at, (size_t)got, err) ? -2 : got;
}

int ws_gloo_read(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                 struct ws_err *err)
{
	if (!p->in && !(p->in = malloc(WS_GLOO_IN)))
		return ws_oom(err);
	for (size_t total = 0; total < TURN_MAX;) {
		if (ws_gloo_parse(g, p, call, err))
			return -1;
		if (p->gone || p->stalled)
			return 0;
		size_t asked = 0;
		const ssize_t got = p->payload_left >= DIRECT ? read_payload(p, call, &asked, err) :
		                                                read_gulp(p, &asked);
		if (got == -2)
			return -1;
		if (got == 0) {
			ws_gloo_lose(g, p, "closed its connection");
		} else if (got < 0) {
			if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
				ws_gloo_lose(g, p, "lost its connection: %s", strerror(errno));
			return 0;
		}
		total += (size_t)got;
		if ((size_t)got < asked) /* drained; new data wakes us again */
			total = TURN_MAX;
	}
	return ws_gloo_parse(g, p, call, err);
}

/* ---- out ---- */

static int queue(struct ws_gloo_peer *p, const struct ws_gloo_message *m, struct ws_err *err)
{
	uint8_t preamble[WS_GLOO_PREAMBLE];
	ws_gloo_message_pack(m, preamble);
	ws_buf_add(&p->out, preamble, sizeof preamble);
	return ws_buf_check(&p->out, "gloo messages", err);
}

int ws_gloo_queue(struct ws_gloo_peer *p, enum ws_gloo_opcode opcode, uint32_t tag,
                  uint64_t length, struct ws_err *err)
{
	return queue(p, &(struct ws_gloo_message){ opcode, ws_gloo_slot(tag), length }, err);
}

int ws_gloo_queue_plain(struct ws_gloo_peer *p, enum ws_gloo_opcode opcode, uint64_t length,
                        struct ws_err *err)
{
	return queue(p, &(struct ws_gloo_message){ opcode, WS_GLOO_PLAIN_SLOT, length }, err);
}

void ws_gloo_spoil(struct ws_gloo *g, unsigned peer)
{
	static const uint8_t no_message[WS_GLOO_PREAMBLE] = { 0xde, 0xad, 0xbe, 0xef, 0xde,
		                                              0xad, 0xbe, 0xef, 0xff, 0xff };
	if (peer < g->size && peer != g->rank)
		ws_buf_add(&g->peers[peer].out, no_message, sizeof no_message);
}

size_t ws_gloo_queued(const struct ws_gloo_peer *p)
{
	return p->out.len - p->out_at;
}

void ws_gloo_send_failed(struct ws_gloo *g, struct ws_gloo_peer *p)
{
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		p->full = true;
	else if (errno == EPIPE)
		ws_gloo_lose(g, p, "closed its connection");
	else if (errno != EINTR)
		ws_gloo_lose(g, p, "lost its connection: %s", strerror(errno));
}

void ws_gloo_flush(struct ws_gloo *g, struct ws_gloo_peer *p, bool more)
{
	while (p->fd >= 0 && !p->full && ws_gloo_queued(p)) {
		const ssize_t n = send(p->fd, p->out.data + p->out_at, ws_gloo_queued(p),
		                       MSG_NOSIGNAL | (more ? MSG_MORE : 0));
		if (n < 0)
			ws_gloo_send_failed(g, p);
		else
			p->out_at += (size_t)n;
	}
	if (ws_gloo_queued(p) == 0) {
		ws_buf_reset(&p->out);
		p->out_at = 0;
	}
}
