/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_peer.h - the inside of a group: the other ranks, their connections, and the loop that serves
 * them while a call runs.
 *
 * A lost or misbehaving peer does not fail a call by itself: it is marked gone with the reason, and
 * the call decides whether it still needs that peer. */
#ifndef WS_NET_GLOO_PEER_H
#define WS_NET_GLOO_PEER_H

#include "flow.h"
#include "gloo.h"
#include "gloo_wire.h"
#include "wsync/tool/str.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* What a peer has announced for a tag and nobody has acted on yet. Slots of a table indexed by the
 * low bits of the tag: what is pending lies close together. */
struct ws_gloo_note {
	uint32_t tag;
	bool recv_ready, send_ready; /* neither: the slot is free */
	uint64_t recv_length, send_length;
};

struct ws_gloo_peer {
	unsigned rank;
	int fd;            /* -1: not connected, not yet or no more */
	bool gone;         /* for ever, because of why */
	struct ws_err why;

	struct ws_gloo_address address; /* as it published it */
	bool we_connect, lazy;
	int64_t id;        /* G2b: what we say first when we connect */
	int listener;      /* G1: the port where this peer connects; else -1 */

	uint8_t *in;       /* bytes received and not yet parsed: [in_at, in_len) */
	size_t in_at, in_len;
	uint64_t payload_left; /* of the message being read */
	bool large;        /* that message's payload, or the last one's */
	bool stalled;      /* its bytes have no place at the moment: not read */

	struct ws_buf out; /* messages and small payloads on their way: from out_at on */
	size_t out_at;
	bool full;         /* the socket takes no more at the moment */

	uint32_t watched;  /* what epoll is asked for */
	struct ws_gloo_note *notes;
	uint32_t n_notes;  /* a power of two, or 0 */
	struct ws_buf asked; /* plain receives that the peer announced: their lengths, u64 each */
	size_t asked_at;     /* those before are served */
};

/* A connection that has not said yet who it is. */
struct ws_gloo_entrant {
	int fd;            /* -1: free */
	ws_deadline until;
	uint8_t id[8];
	size_t n;
};

enum { WS_GLOO_ENTRANTS = 64, WS_GLOO_IN = 64 * 1024 };

struct ws_gloo {
	unsigned rank, size;
	enum ws_gloo_layout layout;
	size_t ring_bytes;
	const struct ws_log *log;
	struct ws_gloo_watch *watch;    /* NULL: nobody looks */
	struct ws_trace *trace;         /* NULL: none */
	struct ws_gloo_address address; /* ours; G1: with the port of no peer in particular */
	struct ws_gloo_peer *peers;     /* by rank; our own entry is unused */
	int listener;                   /* G2b */
	int epoll, wake;                /* wake: eventfd of ws_gloo_abort */
	pthread_mutex_t lock;           /* who closes or replaces a peer's fd, or shuts it down */
	atomic_bool aborted;
	_Atomic uint64_t progress, sent;
	_Atomic int64_t first_byte;
	uint32_t tag;                   /* of the next item */
	bool broken;                    /* a call failed: nobody knows what the others have seen */
	struct ws_gloo_entrant entrants[WS_GLOO_ENTRANTS];
};

/* What is served: a collective, or (ops NULL) only newcomers. */
struct ws_gloo_call {
	const struct ws_gloo_call_ops *ops;
	ws_deadline until;
	const struct ws_cancel *cancel;
	struct ws_flow *flow; /* wakes the loop; NULL: none */
	bool busy;            /* there is more to do without waiting */
	sigset_t old_mask;
	bool pipe_pending, cancel_watched;
};

/* All fail only for reasons of our own; a peer's fault is ws_gloo_lose. */
struct ws_gloo_call_ops {
	/* Does what can be done now; *done: nothing is left to do. */
	int (*step)(struct ws_gloo_call *call, bool *done, struct ws_err *err);
	/* A payload begins. */
	int (*begin)(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint32_t tag,
	             uint64_t length, struct ws_err *err);
	/* Likewise, of a plain send; NULL: none is expected. */
	int (*begin_plain)(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint64_t length,
	                   struct ws_err *err);
	/* Where its next bytes go and how many fit: 0: none now; *at NULL: they are thrown away. */
	size_t (*place)(struct ws_gloo_call *call, struct ws_gloo_peer *p, void **at);
	int (*placed)(struct ws_gloo_call *call, struct ws_gloo_peer *p, const void *at, size_t n,
	              struct ws_err *err);
	/* Appends to *text which ranks the call waits for, and for what. Returns the first of
	 * them; 0: none but rank 0. */
	unsigned (*explain)(struct ws_gloo_call *call, struct ws_buf *text);
};

/* ---- gloo_mesh.c ---- */

/* A group without any connection yet; its size and rank were checked. ws_gloo_close frees it. */
struct ws_gloo *ws_gloo_new(const struct ws_gloo_opts *o, struct ws_err *err);

/* ---- gloo_link.c: one connection ---- */

void ws_gloo_show(const struct ws_gloo *g, unsigned rank, enum ws_gloo_stage stage);
/* Of the send at hand. */
static inline void ws_gloo_show_sent(const struct ws_gloo *g, unsigned rank, uint64_t sent)
{
	if (g->watch)
		atomic_store_explicit(&g->watch->ranks[rank].sent, sent, memory_order_relaxed);
}

/* Marks the peer gone: "rank N <why>". Its connection is closed. */
void ws_gloo_lose(struct ws_gloo *g, struct ws_gloo_peer *p, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Reads what has come and hands it to the call, a bounded amount at a time. */
int ws_gloo_read(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                 struct ws_err *err);
/* Acts on the bytes [in_at, in_len) as far as they go. */
int ws_gloo_parse(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                  struct ws_err *err);
int ws_gloo_queue(struct ws_gloo_peer *p, enum ws_gloo_opcode opcode, uint32_t tag,
                  uint64_t length, struct ws_err *err);
int ws_gloo_queue_plain(struct ws_gloo_peer *p, enum ws_gloo_opcode opcode, uint64_t length,
                        struct ws_err *err);
/* True: the peer waits for a plain send of *length bytes, and now for one less. */
bool ws_gloo_plain_asked(struct ws_gloo_peer *p, uint64_t *length);
size_t ws_gloo_queued(const struct ws_gloo_peer *p); /* bytes */
/* Sends what is queued until the socket is full. more: further bytes follow at once. */
void ws_gloo_flush(struct ws_gloo *g, struct ws_gloo_peer *p, bool more);
/* What a failed send or recv left in errno: full socket, or a lost peer. */
void ws_gloo_send_failed(struct ws_gloo *g, struct ws_gloo_peer *p);
/* The pending note for this tag, or NULL. */
struct ws_gloo_note *ws_gloo_note(const struct ws_gloo_peer *p, uint32_t tag);

/* ---- gloo_loop.c: all connections ---- */

int ws_gloo_loop_open(struct ws_gloo *g, struct ws_err *err);
int ws_gloo_call_begin(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err);
/* From here on the call goes on whatever its cancel flag says. */
void ws_gloo_call_uncancel(struct ws_gloo *g, struct ws_gloo_call *call);
/* Ends what ws_gloo_call_begin began and returns rc; after a failure the group is broken. */
int ws_gloo_call_end(struct ws_gloo *g, struct ws_gloo_call *call, int rc, struct ws_err *err);
/* Waits for something to happen, unless the call is busy, and serves it. */
int ws_gloo_turn(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err);
/* Steps and turns until all is done. */
int ws_gloo_call_run(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err);
/* Takes fd as the connection with p. */
void ws_gloo_adopt(struct ws_gloo *g, struct ws_gloo_peer *p, int fd);
void ws_gloo_unlisten(struct ws_gloo *g, int *listener);
int ws_gloo_watch_listener(struct ws_gloo *g, int fd, unsigned rank, struct ws_err *err);

#endif
