/* SPDX-License-Identifier: Apache-2.0 */
/* transport.h - interface of a data plane: rank 0 of a group, which broadcasts buckets.
 *
 * open and the send functions start work in the transport's own thread, because HTTP requests to
 * the servers must proceed meanwhile. fd becomes readable when the work is over; wait returns its
 * result. One piece of work runs at a time. One thread calls all functions except cut. */
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
	unsigned world_size;       /* all ranks; we are rank 0 */
	/* ranks below this send; from 1 on they learn from WS_TRANSPORT_MEETING where to meet */
	unsigned senders;
	bool vllm;                 /* the other ranks are workers of vLLM */
	const char *host;          /* our address, a literal */
	struct ws_store *store;    /* borrowed; open as long as the transport */
	const char *group;         /* the group's name; borrowed as long */
	struct ws_transport_gpu gpu;
	const struct ws_log *log;
	struct ws_trace *trace;    /* borrowed; NULL: none */
};

/* Store key for several senders, set by rank 0 when the receivers have published. Its value: the
 * epoch of their store protocol, then the prefix of their keys. */
#define WS_TRANSPORT_MEETING "wsync/meeting"

/* The first member of every implementation's own struct. */
struct ws_transport {
	const struct ws_transport_ops *ops;
};

struct ws_transport_send {
	unsigned rank;
	struct ws_payload payload;
};

/* State of one rank. */
struct ws_rank_status {
	enum ws_hang_link link;
	/* payload bytes that we send to it in the current work: all of them, and those sent */
	uint64_t due, sent;
};

struct ws_transport_ops {
	const char *name; /* "gloo"; also the backend in /init_weights_update_group */
	bool has_error_detail; /* its error explains best why a peer left */
	int64_t settle_ns; /* pause for receivers between the last broadcast and the group's end */
	/* Checks that open can work on this machine, before any server is contacted. NULL: it
	 * always can. */
	int (*check)(const struct ws_transport_gpu *gpu, struct ws_err *err);
	/* The most GPU and pinned memory for sending this many buckets of at most so many bytes
	 * and payloads, without kernels. NULL: none. */
	void (*memory)(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
	               uint64_t *pinned);
	/* Starts to join the group; wait returns the result. */
	int (*open)(const struct ws_transport_opts *opts, ws_deadline until,
	            struct ws_transport **out, struct ws_err *err);
	/* The 128 bytes by which ranks of NCCL meet without a store. NULL: ranks need the store. */
	const void *(*unique_id)(const struct ws_transport *t, size_t *n);
	/* True if it computes this recipe output (lib/transform) itself; f NULL: no recipe. The
	 * function may be NULL: it computes nothing. */
	bool (*makes)(const struct ws_transport *t, const struct ws_recipe_output *f);
	/* Called during the join, when every server has accepted the invitation. Some servers join
	 * only with the first broadcast. May be NULL. */
	void (*agreed)(struct ws_transport *t);
	/* Hint: these payloads are sent next; load them ahead where possible. They must stay valid
	 * until they are sent, or until a call with NULL cancels the hint. May be NULL. */
	void (*stage)(struct ws_transport *t, const struct ws_payload *payloads, size_t n);
	/* Starts to broadcast the payloads in order. They must stay valid until wait. */
	int (*send_bucket)(struct ws_transport *t, const struct ws_payload *payloads, size_t n,
	                   ws_deadline until, struct ws_err *err);
	/* Starts to send each payload to its rank only; each rank gets its payloads in order. The
	 * array and the payloads must stay valid until wait. NULL: not supported. */
	int (*send_each)(struct ws_transport *t, const struct ws_transport_send *sends, size_t n,
	                 ws_deadline until, struct ws_err *err);
	int (*fd)(const struct ws_transport *t);
	/* Blocks until the work is over (after abort: soon). */
	int (*wait)(struct ws_transport *t, struct ws_err *err);
	/* Payload bytes since open that all ranks to which we send have taken. */
	uint64_t (*progress)(const struct ws_transport *t);
	/* Payload bytes that have left this process since open; *first_ns (may be NULL): time of
	 * the first byte, 0: none yet. */
	uint64_t (*sent)(const struct ws_transport *t, int64_t *first_ns);
	/* State of a rank during the work, or after it failed; *starved_ns: time in which receivers
	 * were ready but no data was. May be NULL. */
	void (*look)(const struct ws_transport *t, unsigned rank, struct ws_rank_status *out,
	             int64_t *starved_ns);
	/* Returns why receivers cannot take a tensor of this dtype, alone or in a flattened bucket;
	 * NULL: they can. t may be NULL; an open group detects more cases. The function may be
	 * NULL: every dtype works. */
	const char *(*refuses)(const struct ws_transport *t, const char *torch_dtype,
	                       bool flattened);
	/* Shuts the connections. Any thread may call it, also while the thread that calls the other
	 * functions hangs. May be NULL. */
	void (*cut)(struct ws_transport *t);
	/* Ends the work and the group: peers see closed connections. */
	void (*abort)(struct ws_transport *t);
	void (*close)(struct ws_transport *t); /* NULL is fine */
};

extern const struct ws_transport_ops ws_transport_gloo, ws_transport_nccl;

#endif
