/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_out.c - see gloo_out.h.
 *
 * Messages and small payloads are collected in the peer's queue and sent together. Large
 * payloads follow on their own, from a file with sendfile(2). Nothing may be sent between a
 * payload's message and its last byte, so announcements are made between items only. */
#include "gloo_out.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	SMALL = 16 * 1024,          /* a smaller piece is queued, not sent alone */
	QUEUE_FULL = 128 * 1024,
	PIECE_MAX = 1024 * 1024,
	/* bytes and time of one turn: bounded, because a slow disk blocks the other children */
	TURN_MAX = 8 * 1024 * 1024,
	TURN_MS = 100,
};

static uint8_t zeros[QUEUE_FULL]; /* not const: takes no space in the executable */

static size_t least(size_t a, uint64_t b)
{
	return b < a ? (size_t)b : a;
}

static void advance(struct ws_gloo_out *o, struct ws_gloo_source *s, size_t n)
{
	o->at += n;
	o->sent += n;
	s->took(s, o, n);
}

static uint32_t tag_of(const struct ws_gloo_source *s, size_t item)
{
	return s->tag + (uint32_t)item;
}

static int queue(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                 enum ws_gloo_opcode opcode, size_t item, struct ws_err *err)
{
	const uint64_t length = s->length(s, item);
	return s->plain ? ws_gloo_queue_plain(o->peer, opcode, length, err) :
	                  ws_gloo_queue(o->peer, opcode, tag_of(s, item), length, err);
}

/* False: the child has not requested the next item yet. */
static bool is_asked_for(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                         uint64_t *length)
{
	if (s->plain)
		return ws_gloo_plain_asked(o->peer, length);
	struct ws_gloo_note *note = ws_gloo_note(o->peer, tag_of(s, o->item));
	if (!note || !note->recv_ready)
		return false;
	note->recv_ready = false;
	*length = note->recv_length;
	return true;
}

static int announce(struct ws_gloo_out *o, const struct ws_gloo_source *s, struct ws_err *err)
{
	/* Announce in batches: half a window takes one packet instead of many. */
	if (o->announced > o->item + WS_GLOO_WINDOW / 2)
		return 0;
	while (o->announced < s->n_items && o->announced < o->item + WS_GLOO_WINDOW) {
		if (queue(o, s, WS_GLOO_SEND_READY, o->announced, err))
			return -1;
		o->announced++;
	}
	return 0;
}

/* Begins the next item if the child has requested it. */
static int begin_item(struct ws_gloo_out *o, const struct ws_gloo_source *s, struct ws_err *err)
{
	const uint64_t length = s->length(s, o->item);
	uint64_t asked = 0;
	if (!is_asked_for(o, s, &asked))
		return 0;
	if (asked != length) {
		ws_err_set(err, WS_EDATA,
		           "rank %u expects %" PRIu64 " bytes for item %zu, which has %" PRIu64,
		           o->peer->rank, asked, o->item, length);
		return ws_err_rank(err, o->peer->rank);
	}
	o->begun = true;
	o->at = 0;
	return queue(o, s, WS_GLOO_SEND_UNBOUND, o->item, err);
}

static void end_item(struct ws_gloo_out *o, const struct ws_gloo_source *s)
{
	if (o->begun && o->at == s->length(s, o->item)) {
		o->begun = false;
		o->item++;
		o->span = 0;
		o->span_at = 0;
	}
}

/* ---- file pieces ---- */

static int short_file(const struct ws_gloo_piece *p, struct ws_err *err)
{
	char link[64], name[256];
	snprintf(link, sizeof link, "/proc/self/fd/%d", p->fd);
	const ssize_t n = readlink(link, name, sizeof name - 1);
	name[n > 0 ? n : 0] = 0;
	return ws_err_set(err, WS_EINPUT,
	                  "%s: the file shrank while it was sent: nothing at byte %" PRIu64,
	                  n > 0 ? name : "input", p->offset);
}

static int gather_file(struct ws_gloo_peer *peer, const struct ws_gloo_piece *p, struct ws_err *err)
{
	if (ws_buf_reserve(&peer->out, p->n))
		return ws_buf_check(&peer->out, "gloo messages", err);
	for (size_t done = 0; done < p->n;) {
		const ssize_t n = pread(p->fd, peer->out.data + peer->out.len, p->n - done,
		                        (off_t)(p->offset + done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ws_err_errno(err, "read at byte %" PRIu64, p->offset + done);
		if (n == 0)
			return short_file(p, err);
		peer->out.len += (size_t)n;
		done += (size_t)n;
	}
	return 0;
}

/* True if the error is the file's and not the connection's. */
static bool is_files_fault(int error)
{
	return error == EIO || error == EINVAL || error == EOVERFLOW || error == ENOMEM ||
	       error == EBADF || error == ENOSYS;
}

/* ---- the queue ---- */

static int gather(struct ws_gloo_out *o, struct ws_gloo_source *s,
                  const struct ws_gloo_piece *piece, struct ws_err *err)
{
	const size_t before = o->peer->out.len;
	bool have = false;
	if (piece->fd >= 0) {
		have = gather_file(o->peer, piece, err) == 0;
		if (!have)
			o->peer->out.len = before; /* removes a partly queued message */
		if (!have && !s->ending)
			return -1;
	}
	if (!have)
		ws_buf_add(&o->peer->out, piece->fd < 0 && piece->bytes ? piece->bytes : zeros,
		           piece->n);
	if (ws_buf_check(&o->peer->out, "gloo messages", err))
		return -1;
	advance(o, s, piece->n);
	return 0;
}

/* Queues messages and small pieces until a large piece is next (then *piece is set), no data is
 * available, or the queue is large enough to send. */
static int fill_queue(struct ws_gloo_out *o, struct ws_gloo_source *s, struct ws_gloo_piece *piece,
                      struct ws_err *err)
{
	piece->n = 0;
	while (ws_gloo_queued(o->peer) < QUEUE_FULL) {
		end_item(o, s);
		if (!o->begun) {
			if (o->item == s->n_items || s->ending)
				return 0;
			if (announce(o, s, err) || begin_item(o, s, err))
				return -1;
			if (!o->begun)
				return 0;
			continue;
		}
		s->peek(s, o, piece);
		if (piece->n == 0)
			return 0;
		piece->n = least(piece->n, PIECE_MAX);
		if (piece->n > SMALL)
			return 0;
		if (gather(o, s, piece, err))
			return -1;
		piece->n = 0;
	}
	return 0;
}

static int send_large(struct ws_gloo *g, struct ws_gloo_out *o, struct ws_gloo_source *s,
                      const struct ws_gloo_piece *piece, struct ws_err *err)
{
	ssize_t n;
	if (piece->fd >= 0) {
		off_t offset = (off_t)piece->offset;
		n = sendfile(o->peer->fd, piece->fd, &offset, piece->n);
		if (s->ending && (n == 0 || (n < 0 && is_files_fault(errno))))
			return send_large(g, o, s,
			                  &(struct ws_gloo_piece){ .fd = -1, .n = piece->n }, err);
		if (n == 0)
			return short_file(piece, err);
		/* Not every file system supports sendfile: send a part of the piece through the
		 * queue instead. */
		if (n < 0 && (errno == EINVAL || errno == ENOSYS)) {
			struct ws_gloo_piece part = *piece;
			part.n = least(part.n, QUEUE_FULL);
			return gather(o, s, &part, err);
		}
		if (n < 0 && is_files_fault(errno))
			return ws_err_errno(err, "read at byte %" PRIu64, piece->offset);
	} else {
		n = send(o->peer->fd, piece->bytes ? piece->bytes : zeros,
		         piece->bytes ? piece->n : least(sizeof zeros, piece->n), MSG_NOSIGNAL);
	}
	if (n < 0)
		ws_gloo_send_failed(g, o->peer);
	else
		advance(o, s, (size_t)n);
	return 0;
}

int ws_gloo_out_pump(struct ws_gloo *g, struct ws_gloo_out *o, struct ws_gloo_source *s,
                     struct ws_err *err)
{
	const uint64_t before = o->sent;
	const ws_deadline turn = ws_deadline_in(TURN_MS * WS_NS_PER_MS);
	while (o->peer->fd >= 0 && !o->peer->full) {
		struct ws_gloo_piece piece;
		if (fill_queue(o, s, &piece, err))
			return -1;
		const bool queued = ws_gloo_queued(o->peer) > 0;
		if (!queued && piece.n == 0)
			return 0;
		if (queued)
			ws_gloo_flush(g, o->peer, piece.n > 0);
		if (piece.n && o->peer->fd >= 0 && !o->peer->full &&
		    send_large(g, o, s, &piece, err))
			return -1;
		/* Also if this turn ends here: after its last byte a child may close at once. */
		end_item(o, s);
		if (o->sent - before > TURN_MAX || ws_deadline_passed(turn))
			o->peer->full = true; /* the loop returns to it at once */
	}
	return 0;
}

bool ws_gloo_out_done(const struct ws_gloo_out *o, const struct ws_gloo_source *s)
{
	return o->item == s->n_items && ws_gloo_queued(o->peer) == 0;
}

/* Bytes that were sent but not acknowledged by the child's machine. */
static uint64_t on_the_way(const struct ws_gloo_out *o)
{
	int in_socket = 0;
	if (o->peer->fd < 0 || ioctl(o->peer->fd, SIOCOUTQ, &in_socket))
		in_socket = 0;
	return (uint64_t)in_socket + ws_gloo_queued(o->peer);
}

bool ws_gloo_out_midway(const struct ws_gloo_out *o)
{
	return o->peer->fd >= 0 && (o->begun || on_the_way(o) > 0);
}

/* ---- progress in messages ---- */

char *ws_gloo_part(char *dst, size_t n, uint64_t part, uint64_t whole, size_t item)
{
	char a[32], b[32];
	snprintf(dst, n, "%s of %s of item %zu", ws_format_size(a, sizeof a, part),
	         ws_format_size(b, sizeof b, whole), item);
	return dst;
}

/* Bytes of the item that the peer's machine has acknowledged, as far as is known. */
static uint64_t taken(const struct ws_gloo_out *o)
{
	const uint64_t pending = on_the_way(o);
	return o->at > pending ? o->at - pending : 0;
}

int ws_gloo_out_check(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                      struct ws_err *err)
{
	char part[96];
	if (!o->peer->gone || ws_gloo_out_done(o, s))
		return 0;
	if (err)
		*err = o->peer->why;
	if (!err)
		return -1;
	const size_t used = strlen(err->msg);
	if (o->item == s->n_items)
		snprintf(err->msg + used, sizeof err->msg - used, " (before it took everything)");
	else if (o->begun)
		snprintf(err->msg + used, sizeof err->msg - used, " (after %s)",
		         ws_gloo_part(part, sizeof part, o->at, s->length(s, o->item), o->item));
	else
		snprintf(err->msg + used, sizeof err->msg - used, " (before item %zu)", o->item);
	return -1;
}

bool ws_gloo_out_explain(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                         struct ws_buf *text)
{
	char part[96];
	if (ws_gloo_out_done(o, s))
		return false;
	ws_buf_printf(text, "%srank %u: ", text->len ? "; " : "", o->peer->rank);
	if (o->peer->fd < 0)
		ws_buf_puts(text, "has not connected");
	else if (o->item == s->n_items)
		ws_buf_puts(text, "has not taken the last bytes");
	else if (o->begun)
		ws_buf_printf(text, "took %s", ws_gloo_part(part, sizeof part, taken(o),
		                                            s->length(s, o->item), o->item));
	else
		ws_buf_printf(text, "not ready for item %zu (no RECV_READY)", o->item);
	return true;
}

/* ---- the trace ---- */

void ws_gloo_out_trace(struct ws_gloo *g, struct ws_gloo_out *o)
{
	char of[32];
	if (!g->trace)
		return;
	snprintf(of, sizeof of, "rank %u", o->peer->rank);
	o->traced =
		ws_trace_begin(g->trace, &(struct ws_trace_what){ .row = WS_TRACE_WIRE, .of = of });
}

void ws_gloo_out_traced(struct ws_gloo *g, struct ws_gloo_out *o, const struct ws_gloo_source *s,
                        bool now)
{
	const bool done = o->traced && ws_gloo_out_done(o, s);
	if (!o->traced || !(done || now))
		return;
	ws_trace_end(g->trace, o->traced,
	             &(struct ws_trace_end){ .bytes = o->sent,
	                                     .unfinished = !done,
	                                     .why = !done && o->peer->gone ? o->peer->why.msg :
	                                                                     NULL });
	o->traced = 0;
}
