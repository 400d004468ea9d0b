/* SPDX-License-Identifier: Apache-2.0 */
/* hang.h - a wait that did not end: what was seen, what it probably means, what to do about it.
 *
 * The facts are collected at the moment a deadline passes (or somebody loses patience). The cause
 * is a pure function of them, and so is the text. Strings of foreign origin in
 * here are printable already. */
#ifndef WSYNC_HANG_H
#define WSYNC_HANG_H

#include "wsync/tool/buf.h"
#include "wsync/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ws_hang_end {
	WS_HANG_WAITING,    /* it goes on */
	WS_HANG_DEADLINE,   /* it took too long */
	WS_HANG_CANCELLED   /* somebody interrupted it */
};

/* What was waited for. */
enum ws_hang_wait {
	WS_HANG_ANSWER,     /* answers of endpoints, and nothing else */
	WS_HANG_FORMING,    /* the ranks, to form a group */
	WS_HANG_MOVING,     /* the ranks, to take what is sent */
	WS_HANG_OURSELVES   /* work of our own */
};

/* The request that was in flight to an endpoint, or the last one. */
enum ws_hang_request {
	WS_HANG_NO_REQUEST, WS_HANG_CONNECTING, WS_HANG_SENDING, WS_HANG_SENT, WS_HANG_ANSWERING,
	WS_HANG_ANSWERED,   /* completely, whatever it says */
	WS_HANG_BROKEN      /* the connection failed */
};

/* An endpoint asked once more, when it was too late, whether it is alive. */
enum ws_hang_probe {
	WS_HANG_NOT_PROBED,
	WS_HANG_REFUSED,    /* nobody takes connections there */
	WS_HANG_UNREACHED,  /* no connection within the time of a probe */
	WS_HANG_SILENT,     /* a connection, and no answer */
	WS_HANG_ANSWERS
};

struct ws_hang_endpoint {
	const char *url;         /* borrowed of who collected */
	unsigned rank_offset, n_ranks; /* 0 ranks: of no group */
	enum ws_hang_request request;
	char route[80];          /* "POST /init_weights_update_group"; "" */
	int64_t request_ns;      /* how long that has taken */
	long status;             /* HTTP; 0: none */
	size_t buckets;          /* how many it has answered */
	unsigned unnamed;        /* that joined the store from its address, rank not known */
	enum ws_hang_probe front;  /* GET /model_info, which needs no scheduler */
	enum ws_hang_probe health; /* GET /health */
	long health_status;
};

enum ws_hang_store { WS_HANG_ABSENT, WS_HANG_JOINED, WS_HANG_ASKED, WS_HANG_LEFT };
enum ws_hang_link { WS_HANG_LINK_UNKNOWN, WS_HANG_APART, WS_HANG_LINKED, WS_HANG_LINK_LOST };

struct ws_hang_rank {
	/* whose; n_endpoints: another sender's, whose place is behind them */
	size_t endpoint;
	enum ws_hang_store store; /* ASKED: for the NCCL id, or it published its address */
	char address[64];        /* from where it reached the store; "" */
	char waits_for[128];     /* a key of the store; "" nothing */
	enum ws_hang_link link;  /* on the data plane */
	uint64_t due, taken; /* bytes of the bucket that we send to it, and that have left; 0 due:
	                      * it gets its own through another rank */
};

struct ws_hang_peer {            /* at the store, of which no rank is known */
	char address[64];
	bool joined, connected, asked;
	bool foreign;            /* it waits for a key of another group */
	char waits_for[128];
};

struct ws_hang {
	enum ws_hang_end end;
	enum ws_hang_wait wait;
	enum ws_phase phase;
	char what[64];           /* "joining the group", "bucket 3 of 9", "pause"; "" */
	int64_t waited_ns;
	int64_t limit_ns;        /* 0: not known */
	const char *field;       /* "init_ns", which raises it; static; NULL: none does */

	char group[128];         /* "": no group in this */
	char backend[16];
	char address[64];        /* of our store, as it was told to the endpoints */
	uint16_t port;
	bool loopback;           /* the address means everybody's own machine */
	unsigned world_size;     /* with us */
	unsigned joined;         /* how many peers ever did */
	/* are there of which nobody knows whose: several endpoints share the address */
	unsigned loose;

	size_t bucket, buckets;  /* of MOVING: from 0; 0 buckets: not told */
	uint64_t bytes;          /* of it */
	int64_t still_ns;        /* since a byte last moved */
	int64_t starved_ns;      /* ranks were ready, and our source had no bytes */
	bool flush;              /* its answer comes after a flush of caches */

	struct ws_hang_endpoint *endpoints;
	size_t n_endpoints;
	struct ws_hang_rank *ranks;   /* [rank - 1]; world_size - 1 of them */
	size_t n_ranks;
	struct ws_hang_peer *peers;   /* some */
	size_t n_peers;

	/* ws_hang_find_cause: "missing-ranks", as wsync(7) lists them; static */
	const char *cause;
	char likely[512], remedy[640];
};

/* Fills cause, likely and remedy. */
void ws_hang_find_cause(struct ws_hang *h);
/* "connecting", "unreached", "asked" ..., by the values of the enums; NULL: nothing is known */
extern const char *const ws_hang_request_names[], *const ws_hang_probe_names[];
extern const char *const ws_hang_store_names[], *const ws_hang_link_names[];

/* The facts, in sentences; without the cause. */
void ws_hang_tell(const struct ws_hang *h, struct ws_buf *out);
/* One line: "waiting 30 s for ranks 3, 4 of http://gpu8:30000: not at the store yet". */
void ws_hang_tell_briefly(const struct ws_hang *h, struct ws_buf *out);

/* Frees the arrays. NULL is fine. */
void ws_hang_fini(struct ws_hang *h);

#ifdef __cplusplus
}
#endif
#endif
