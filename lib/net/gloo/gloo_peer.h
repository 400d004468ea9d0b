/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_peer.h - the internals of a group: the other ranks, their connections, and the loop that
 * serves them during a call.
 *
 * A lost or misbehaving peer does not fail a call by itself: it is marked as gone with the
 * reason, and the call decides whether it still needs that peer. */
#ifndef WS_NET_GLOO_PEER_H
#define WS_NET_GLOO_PEER_H

#include "flow.h"
#include "gloo.h"
#include "gloo_wire.h"
#include "wsync/tool/str.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* An announcement of a peer for a tag, not handled yet. Slots of a table are indexed by the low
 * bits of the tag: pending tags are close together. */
struct ws_gloo_note {
	uint32_t tag;
	bool recv_ready, send_ready; /* both false: the slot is free */
	uint64_t recv_length, send_length;
};

struct ws_gloo_peer {
	unsigned rank;
	int fd;            /* -1: not connected yet, or no longer */
	bool gone;         /* permanently; `why` is the reason */
	struct ws_err why;

	struct ws_gloo_address address; /* as published by the peer */
	bool we_connect, lazy;
	int64_t id;        /* G2b: the identifier that we send first when we connect */
	int listener;      /* G1: the port to which this peer connects; else -1 */

	uint8_t *in;       /* received bytes that are not parsed yet: [in_at, in_len) */
	size_t in_at, in_len;
	uint64_t payload_left; /* bytes of the current message */
	bool large;        /* payload of that message, or of the last one */
	bool stalled;      /* no room for its bytes now: the socket is not read */

	struct ws_buf out; /* messages and small payloads to send: from out_at on */
	size_t out_at;
	bool full;         /* the socket is full */

	uint32_t watched;  /* requested epoll events */
	struct ws_gloo_note *notes;
	uint32_t n_notes;  /* a power of two, or 0 */
	struct ws_buf asked; /* lengths of the plain receives that the peer announced, u64 each */
	size_t asked_at;     /* earlier ones are served */
};

/* A connection whose rank is not known yet. */
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
	struct ws_gloo_watch *watch;    /* NULL: not watched */
	struct ws_trace *trace;         /* NULL: none */
	struct ws_gloo_address address; /* our address; G1: with the port of no particular peer */
	struct ws_gloo_peer *peers;     /* by rank; our own entry is unused */
	int listener;                   /* G2b */
	int epoll, wake;                /* wake: eventfd of ws_gloo_abort */
	pthread_mutex_t lock;           /* held to close, replace or shut down a peer's fd */
	atomic_bool aborted;
	_Atomic uint64_t progress, sent;
	_Atomic int64_t first_byte;
	uint32_t tag;                   /* tag of the next item */
	struct ws_flow *flow;           /* of the last call that needed one; NULL */
	bool broken;                    /* a call failed: the state of the other ranks is unknown */
	struct ws_gloo_entrant entrants[WS_GLOO_ENTRANTS];
};

/* The current call: a collective, or (ops NULL) only new connections. */
struct ws_gloo_call {
	const struct ws_gloo_call_ops *ops;
	ws_deadline until;
	const struct ws_cancel *cancel;
	struct ws_flow *flow; /* wakes the loop; NULL: none */
	bool busy;            /* there is work that needs no waiting */
	sigset_t old_mask;
	bool pipe_pending, cancel_watched;
};

/* These fail only for errors on our side; errors of a peer go to ws_gloo_lose. */
struct ws_gloo_call_ops {
	/* Does what is possible now; *done: everything is done. */
	int (*step)(struct ws_gloo_call *call, bool *done, struct ws_err *err);
	/* Called when a payload begins. */
	int (*begin)(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint32_t tag,
	             uint64_t length, struct ws_err *err);
	/* Likewise for a plain send; NULL: none is expected. */
	int (*begin_plain)(struct ws_gloo_call *call, struct ws_gloo_peer *p, uint64_t length,
	                   struct ws_err *err);
	/* Destination of the next bytes, and how many fit: 0: none now; *at NULL: discard them. */
	size_t (*place)(struct ws_gloo_call *call, struct ws_gloo_peer *p, void **at);
	int (*placed)(struct ws_gloo_call *call, struct ws_gloo_peer *p, const void *at, size_t n,
	              struct ws_err *err);
	/* Appends to *text which ranks the call waits for, and why. Returns the first of them;
	 * 0: none except rank 0. */
	unsigned (*explain)(struct ws_gloo_call *call, struct ws_buf *text);
};

/* ---- gloo_mesh.c ---- */

/* Makes a group without connections; the caller checked size and rank. ws_gloo_close frees it. */
struct ws_gloo *ws_gloo_new(const struct ws_gloo_opts *o, struct ws_err *err);

/* ---- gloo_link.c: one connection ---- */

void ws_gloo_show(const struct ws_gloo *g, unsigned rank, enum ws_gloo_stage stage);
/* Progress of the current send. */
static inline void ws_gloo_show_sent(const struct ws_gloo *g, unsigned rank, uint64_t sent)
{
	if (g->watch)
		atomic_store_explicit(&g->watch->ranks[rank].sent, sent, memory_order_relaxed);
}

/* Marks the peer as gone: "rank N <why>". Closes its connection. */
void ws_gloo_lose(struct ws_gloo *g, struct ws_gloo_peer *p, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Reads available data, a bounded amount at a time, and passes it to the call. */
int ws_gloo_read(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                 struct ws_err *err);
/* Handles the complete messages in [in_at, in_len). */
int ws_gloo_parse(struct ws_gloo *g, struct ws_gloo_peer *p, struct ws_gloo_call *call,
                  struct ws_err *err);
int ws_gloo_queue(struct ws_gloo_peer *p, enum ws_gloo_opcode opcode, uint32_t tag,
                  uint64_t length, struct ws_err *err);
int ws_gloo_queue_plain(struct ws_gloo_peer *p, enum ws_gloo_opcode opcode, uint64_t length,
                        struct ws_err *err);
/* True: the peer waits for a plain send of *length bytes; removes that announcement. */
bool ws_gloo_plain_asked(struct ws_gloo_peer *p, uint64_t *length);
size_t ws_gloo_queued(const struct ws_gloo_peer *p); /* bytes */
/* Sends the queue until the socket is full. more: further bytes follow at once. */
void ws_gloo_flush(struct ws_gloo *g, struct ws_gloo_peer *p, bool more);
/* Handles errno of a failed send or recv: a full socket, or a lost peer. */
void ws_gloo_send_failed(struct ws_gloo *g, struct ws_gloo_peer *p);
/* The pending note for this tag, or NULL. */
struct ws_gloo_note *ws_gloo_note(const struct ws_gloo_peer *p, uint32_t tag);

/* ---- gloo_loop.c: all connections ---- */

int ws_gloo_loop_open(struct ws_gloo *g, struct ws_err *err);
int ws_gloo_call_begin(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err);
/* From now on the call ignores its cancel flag. */
void ws_gloo_call_uncancel(struct ws_gloo *g, struct ws_gloo_call *call);
/* Ends the call of ws_gloo_call_begin and returns rc; after a failure the group is unusable. */
int ws_gloo_call_end(struct ws_gloo *g, struct ws_gloo_call *call, int rc, struct ws_err *err);
/* Waits for an event, unless the call is busy, and handles it. */
int ws_gloo_turn(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err);
/* Runs steps and turns until everything is done. */
int ws_gloo_call_run(struct ws_gloo *g, struct ws_gloo_call *call, struct ws_err *err);
/* Makes fd the connection with p. */
void ws_gloo_adopt(struct ws_gloo *g, struct ws_gloo_peer *p, int fd);
void ws_gloo_unlisten(struct ws_gloo *g, int *listener);
int ws_gloo_watch_listener(struct ws_gloo *g, int fd, unsigned rank, struct ws_err *err);

#endif
