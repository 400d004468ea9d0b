/* SPDX-License-Identifier: Apache-2.0 */
/* gloo.h - one process group of torch's gloo backend, without libgloo.
 *
 * A full mesh of TCP connections, addresses exchanged through a store, and the binomial-tree
 * broadcast, as root or as another rank. Supports torch 1.13/2.0 (layout G1: one listening port
 * for each peer) and 2.2 and later (G2b: one port, an 8-byte identifier after connecting), with or
 * without identifiers. Other collectives and other transports than plain TCP are refused.
 *
 * One thread calls the collectives, in the same order as every other rank: each item of a send
 * or receive uses one tag. ws_gloo_abort may be called from any thread. */
#ifndef WS_NET_GLOO_H
#define WS_NET_GLOO_H

#include "payload.h"
#include "wsync/tool/buf.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"
#include "wsync/log.h"
#include "wsync/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_gloo; /* opaque */

enum ws_gloo_layout { WS_GLOO_G2B, WS_GLOO_G1 };

/* The store that gloo needs; keys are complete (with their prefix), values are bytes. */
struct ws_gloo_kv {
	void *ctx;
	int (*set)(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
	           struct ws_err *err);
	int (*get)(void *ctx, const char *key, ws_deadline until, const struct ws_cancel *cancel,
	           /* waits for the key; appends its value */
	           struct ws_buf *value, struct ws_err *err);
};

struct ws_store;
struct ws_store_client;
struct ws_gloo_kv ws_gloo_kv_store(struct ws_store *s); /* of the process that hosts it */
struct ws_gloo_kv ws_gloo_kv_client(struct ws_store_client *c);

/* Progress of the other ranks, for a thread that watches a call, or after a failure. Allocated
 * and zeroed by the caller. */
struct ws_gloo_rank_status {
	_Atomic int stage;          /* enum ws_gloo_stage */
	/* payload bytes of the current or last send that left for the rank */
	_Atomic uint64_t sent;
};
enum ws_gloo_stage { WS_GLOO_UNSEEN, WS_GLOO_PUBLISHED, WS_GLOO_CONNECTED, WS_GLOO_LOST };
struct ws_gloo_watch {
	struct ws_gloo_rank_status *ranks; /* `size` entries; our own is unused */
	/* the send's thread is writing to sockets; 0: it waits for them */
	_Atomic int64_t serving_since;
	/* of that send: time in which a rank was ready but no data was */
	_Atomic int64_t starved_ns;
};

struct ws_gloo_opts {
	unsigned rank, size;        /* size >= 2 */
	enum ws_gloo_layout layout;
	const char *prefix;         /* of every key, ends in "/" */
	const struct ws_gloo_kv *kv; /* used during ws_gloo_open only */
	const char *host;           /* address literal to listen on and to publish */
	bool rank_as_id;            /* G2b: publish no identifiers (newer torch's lazy mode) */
	size_t ring_bytes;          /* buffer for data that is in no file; 0: 32 MiB */
	const struct ws_log *log;   /* borrowed */
	struct ws_gloo_watch *watch; /* borrowed until ws_gloo_close; NULL: not watched */
	struct ws_trace *trace;     /* likewise: one trace span for each rank's send; NULL: none */
};

/* Publishes our address, waits for every other rank's, connects where that is our task, and
 * returns when all eager peers have connected. Lazy peers (they publish no identifiers) connect
 * with their first broadcast: they are accepted at any time and not waited for. */
int ws_gloo_open(const struct ws_gloo_opts *opts, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_gloo **out, struct ws_err *err);
void ws_gloo_abort(struct ws_gloo *g); /* running and later calls fail; peers see closed sockets */
void ws_gloo_close(struct ws_gloo *g); /* NULL is fine */

/* Broadcasts each item from this rank. Returns when the kernel has taken every byte for every
 * child. File spans are sent with sendfile; a thread computes other spans once, into a ring
 * that all children read. After a failure, here or in ws_gloo_recv, the group is unusable. */
int ws_gloo_send(struct ws_gloo *g, const struct ws_payload *items, size_t n, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err);

struct ws_gloo_sink {
	uint64_t length; /* expected bytes; another announced length is WS_EDATA */
	void *dst;       /* length bytes, filled in place; NULL: the data only goes to take() */
	/* Called with consecutive pieces in order, from the calling thread; may be NULL. */
	int (*take)(void *ctx, const void *bytes, size_t n, struct ws_err *err);
	void *ctx;
};

/* Receives each item broadcast by root (another rank), and forwards it to our children
 * meanwhile. */
int ws_gloo_recv(struct ws_gloo *g, unsigned root, const struct ws_gloo_sink *items, size_t n,
                 ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

/* For tests: the next data that this peer reads from us is an invalid message. */
void ws_gloo_spoil(struct ws_gloo *g, unsigned peer);

/* Payload bytes since ws_gloo_open: sent to the slowest child, or received. Any thread; for
 * progress. */
uint64_t ws_gloo_progress(const struct ws_gloo *g);
/* Payload bytes sent so far to all children, and the time of the first (ws_now_ns; 0: none yet). */
uint64_t ws_gloo_sent(const struct ws_gloo *g);
int64_t ws_gloo_first_byte(const struct ws_gloo *g);

/* The children of `rank` in the binomial tree of `size` ranks with root `root`, in sending
 * order; returns their number (at most 32). For tests and diagnosis. */
unsigned ws_gloo_children(unsigned size, unsigned root, unsigned rank, unsigned children[32]);
unsigned ws_gloo_parent(unsigned size, unsigned root, unsigned rank);

/* Plain sends and receives between two ranks of a gloo group, as in torch's isend, irecv and
 * batch_isend_irecv.
 *
 * A message's slot is torch's tag; only the default, 0, is supported. Between two ranks the
 * k-th send matches the k-th receive, so both must list their transfers in the same order.
 * Collectives of the group may run before and after, and count separately. */
struct ws_gloo_transfer {
	unsigned peer;
	bool receive;              /* else send */
	/* to send: file spans with sendfile, others computed when needed */
	struct ws_payload payload;
	struct ws_gloo_sink sink;  /* received */
};

/* Runs all transfers at once. Returns when everything is received and the kernel has taken all
 * sent data. After a failure the group is unusable. */
int ws_gloo_exchange(struct ws_gloo *g, const struct ws_gloo_transfer *transfers, size_t n,
                     ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

#endif
