/* SPDX-License-Identifier: Apache-2.0 */
/* transport.h - a data plane as the push sees it: rank 0 of a group that broadcasts buckets.
 *
 * Opening and sending run in a thread of the transport's own, because HTTP requests to the servers
 * must proceed at the same time: they start, fd becomes readable when the work is over, and wait
 * collects the outcome. One piece of work at a time, and one thread that calls all of this. */
#ifndef WS_GROUP_TRANSPORT_H
#define WS_GROUP_TRANSPORT_H

#include "payload.h"
#include "store.h"
#include "gpu_stage.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"
#include "wsync/tool/hang.h"
#include "wsync/log.h"
#include "wsync/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_transport_opts {
	unsigned world_size;       /* with us as rank 0 */
	/* the first so many ranks send, and learn from the store where to meet */
	unsigned senders;
	const char *host;          /* our address, a literal */
	struct ws_store *store;    /* borrowed; open as long as the transport */
	const char *group;         /* the group's name; borrowed likewise */
	struct ws_transport_gpu gpu;
	const struct ws_log *log;
	struct ws_trace *trace;    /* borrowed; NULL: none */
};

/* Of several senders: set in the store as soon as the receivers have published. The epoch of
 * their store protocol, then the prefix of their keys. */
#define WS_TRANSPORT_MEETING "wsync/meeting"

/* The first member of every implementation's own struct. */
struct ws_transport {
	const struct ws_transport_ops *ops;
};

struct ws_transport_send {
	unsigned rank;
	struct ws_payload payload;
};

/* What is known of one rank. */
struct ws_rank_status {
	enum ws_hang_link link;
	/* bytes of the work at hand that go from us to it, and that have left */
	uint64_t due, sent;
};

struct ws_transport_ops {
	const char *name; /* "gloo": ours, and what /init_weights_update_group is told */
	bool has_error_detail; /* its error says better than an answer why a peer left */
	int64_t settle_ns; /* what receivers need between the last broadcast and the group's end */
	/* Could it be opened on this machine? Asked before anybody is spoken to. May be NULL:
	 * yes. */
	int (*check)(const struct ws_transport_gpu *gpu, struct ws_err *err);
	/* The most memory of the GPU and pinned memory that sending takes, and computing
	 * nothing, of so many buckets of at most so many bytes and payloads. May be NULL: none. */
	void (*memory)(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
	               uint64_t *pinned);
	/* Begins to join the group; wait says how it went. */
	int (*open)(const struct ws_transport_opts *opts, ws_deadline until,
	            struct ws_transport **out, struct ws_err *err);
	/* Will it compute this output of a recipe (lib/transform) itself, if a span has it? NULL:
	 * there is no recipe. May be NULL: it computes nothing. */
	bool (*makes)(const struct ws_transport *t, const struct ws_recipe_output *f);
	/* While that goes on: every server has agreed to join; some do so with the first
	 * broadcast only. May be NULL. */
	void (*agreed)(struct ws_transport *t);
	/* A hint that these payloads come next: fetch what can be fetched. They must
	 * stay until they were sent, or until this is called with NULL, when they
	 * never will be. May be NULL. */
	void (*stage)(struct ws_transport *t, const struct ws_payload *payloads, size_t n);
	/* Begins the broadcasts, in order. The payloads must stay until wait. */
	int (*send_bucket)(struct ws_transport *t, const struct ws_payload *payloads, size_t n,
	                   ws_deadline until, struct ws_err *err);
	/* Begins to send each payload to one rank and to no other; between two ranks they
	 * keep their order. May be NULL: this data plane cannot. The array and the
	 * payloads must stay until wait. */
	int (*send_each)(struct ws_transport *t, const struct ws_transport_send *sends, size_t n,
	                 ws_deadline until, struct ws_err *err);
	int (*fd)(const struct ws_transport *t);
	/* Blocks until the work is over (after abort: soon). */
	int (*wait)(struct ws_transport *t, struct ws_err *err);
	/* Payload bytes that every receiver of ours has taken since open. */
	uint64_t (*progress)(const struct ws_transport *t);
	/* Payload bytes that have left this process since open; *first_ns (may be NULL): when
	 * the first of all did, 0 never. */
	uint64_t (*sent)(const struct ws_transport *t, int64_t *first_ns);
	/* While the work goes on and when it has failed; *starved_ns: how long of it receivers were
	 * ready and there was nothing to send. May be NULL. */
	void (*look)(const struct ws_transport *t, unsigned rank, struct ws_rank_status *out,
	             int64_t *starved_ns);
	/* What keeps the receivers from taking a tensor of this dtype, by itself or in a flattened
	 * bucket; NULL: nothing. Says more once the group is open; t may be NULL. The member may be
	 * NULL: every dtype is taken. */
	const char *(*refuses)(const struct ws_transport *t, const char *torch_dtype,
	                       bool flattened);
	/* Shuts the connections, from any thread and while the one that calls
	 * the rest hangs. May be NULL. */
	void (*cut)(struct ws_transport *t);
	/* Ends the work and the group: peers see closed connections. */
	void (*abort)(struct ws_transport *t);
	void (*close)(struct ws_transport *t); /* NULL is fine */
};

extern const struct ws_transport_ops ws_transport_gloo, ws_transport_nccl;

#endif
