/* SPDX-License-Identifier: Apache-2.0 */
/* gloo.h - one process group of torch's gloo backend, spoken without libgloo.
 *
 * A full mesh of TCP connections, addresses exchanged through a store, and the binomial-tree
 * broadcast, as root and as any other rank. Speaks to torch 1.13/2.0 (layout G1: one listening port
 * per peer) and 2.2 and later (G2b: one port, an 8-byte identifier after connecting), identifiers
 * present or not. Other collectives are refused, never guessed. Transports other than plain TCP
 * are not spoken.
 *
 * One thread calls the collectives, in the same order as every other rank: each item of a send or
 * receive consumes one tag. ws_gloo_abort may be called from any thread. */
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

/* The store as gloo needs it; keys are complete (prefix included), values are bytes. */
struct ws_gloo_kv {
	void *ctx;
	int (*set)(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
	           struct ws_err *err);
	int (*get)(void *ctx, const char *key, ws_deadline until, const struct ws_cancel *cancel,
	           struct ws_buf *value, struct ws_err *err); /* waits for the key; appends */
};

/* What is known of the other ranks while a call runs, for who looks from another thread or when
 * the call has failed; the caller's, who makes it zero. */
struct ws_gloo_sight {
	_Atomic int stage;          /* enum ws_gloo_stage */
	/* payload bytes of the send at hand, or of the last, that left for it */
	_Atomic uint64_t sent;
};
enum ws_gloo_stage { WS_GLOO_UNSEEN, WS_GLOO_PUBLISHED, WS_GLOO_CONNECTED, WS_GLOO_LOST };
struct ws_gloo_watch {
	struct ws_gloo_sight *ranks; /* `size` of them; ours stays unused */
	/* the thread of that send is handing bytes to sockets; 0: it waits for them */
	_Atomic int64_t serving_since;
	/* of that send: how long a rank was ready and no bytes were there for it */
	_Atomic int64_t starved_ns;
};

struct ws_gloo_opts {
	unsigned rank, size;        /* size >= 2 */
	enum ws_gloo_layout layout;
	const char *prefix;         /* of every key, ends in "/" */
	const struct ws_gloo_kv *kv; /* used during ws_gloo_open only */
	const char *host;           /* address literal to listen on and to publish */
	bool rank_as_id;            /* G2b: publish no identifiers (newer torch's lazy mode) */
	size_t ring_bytes;          /* buffer for bytes that come from no file; 0: 32 MiB */
	const struct ws_log *log;   /* borrowed */
	struct ws_gloo_watch *watch; /* borrowed until ws_gloo_close; NULL: nobody looks */
	struct ws_trace *trace;     /* likewise: what is sent to each rank is a span; NULL: none */
};

/* Publishes our address, waits for every other rank's, connects where that is our part, and returns
 * once all eager peers have connected too. Lazy peers (they publish no identifiers) connect with
 * their first broadcast: they are accepted whenever they come, and not waited for here. */
int ws_gloo_open(const struct ws_gloo_opts *opts, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_gloo **out, struct ws_err *err);
void ws_gloo_abort(struct ws_gloo *g); /* running and later calls fail; peers see closed sockets */
void ws_gloo_close(struct ws_gloo *g); /* NULL is fine */

/* Broadcast from us, one per item. Returns when the kernel has taken every byte for every child.
 * File spans go by sendfile; other spans are made once, in a thread, into a ring that all
 * children read. After a failure, here or in ws_gloo_recv, the group is of no further use. */
int ws_gloo_send(struct ws_gloo *g, const struct ws_payload *items, size_t n, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err);

struct ws_gloo_sink {
	uint64_t length; /* bytes expected: another length announced by the peer is WS_EDATA */
	void *dst;       /* length bytes, filled in place; NULL: bytes are only shown to take */
	/* Called with consecutive pieces in order, from the calling thread; may be NULL. */
	int (*take)(void *ctx, const void *bytes, size_t n, struct ws_err *err);
	void *ctx;
};

/* Broadcasts from root (not us), one per item; forwards to our own children in the tree while bytes
 * arrive. */
int ws_gloo_recv(struct ws_gloo *g, unsigned root, const struct ws_gloo_sink *items, size_t n,
                 ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

/* For tests of others: what this peer reads of us next, during our next call, is no message. */
void ws_gloo_spoil(struct ws_gloo *g, unsigned peer);

/* Payload bytes moved since ws_gloo_open: by the slowest child when sending, received when
 * receiving. Any thread; for progress. */
uint64_t ws_gloo_progress(const struct ws_gloo *g);
/* Payload bytes sent so far, to all children together; and when the first
 * was (ws_now_ns; 0: never). */
uint64_t ws_gloo_sent(const struct ws_gloo *g);
int64_t ws_gloo_first_byte(const struct ws_gloo *g);

/* The children of `rank` in the binomial tree of `size` ranks rooted at `root`, in sending order;
 * returns how many (at most 32). For tests and explanations. */
unsigned ws_gloo_children(unsigned size, unsigned root, unsigned rank, unsigned children[32]);
unsigned ws_gloo_parent(unsigned size, unsigned root, unsigned rank);

/* plain sends and receives between two ranks of a gloo group, as torch's isend,
 * irecv and batch_isend_irecv make them.
 *
 * torch's tag is the slot of the message, and its default is 0: that one alone is spoken. Between
 * two ranks, the k-th send of one is the k-th receive of the other, and that is all that matches
 * them; so both must list their transfers in the same order. Collectives of the group may run
 * before and after, and count separately. */
struct ws_gloo_transfer {
	unsigned peer;
	bool receive;              /* else send */
	/* sent: file spans by sendfile, others made as they are needed */
	struct ws_payload payload;
	struct ws_gloo_sink sink;  /* received */
};

/* All of them at once, in both directions and with every peer. Returns when all that is received is
 * here and the kernel has taken what is sent. After a failure the group is of no further use. */
int ws_gloo_exchange(struct ws_gloo *g, const struct ws_gloo_transfer *transfers, size_t n,
                     ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);

#endif
