/* SPDX-License-Identifier: Apache-2.0 */
/* hang.h - describes a wait that did not end: facts, probable cause, remedy.
 *
 * The facts are collected when a deadline passes, when the user interrupts, and for the event of
 * a long wait. The cause and the text are pure functions of the facts. Strings of foreign origin in
 * here are already printable. */
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
	WS_HANG_WAITING,    /* the wait continues */
	WS_HANG_DEADLINE,   /* its deadline passed */
	WS_HANG_CANCELLED   /* it was interrupted */
};

/* The awaited event. */
enum ws_hang_wait {
	WS_HANG_ANSWER,     /* answers of endpoints, and nothing else */
	WS_HANG_FORMING,    /* the ranks, to form a group */
	WS_HANG_MOVING,     /* the ranks, to receive data */
	WS_HANG_OURSELVES   /* work of our own */
};

/* The request that was in flight to an endpoint, or the last one. */
enum ws_hang_request {
	WS_HANG_NO_REQUEST, WS_HANG_CONNECTING, WS_HANG_SENDING, WS_HANG_SENT, WS_HANG_ANSWERING,
	WS_HANG_ANSWERED,   /* completely, whatever it says */
	WS_HANG_BROKEN      /* the connection failed */
};

/* The result of a check, after the deadline, whether an endpoint is alive. */
enum ws_hang_probe {
	WS_HANG_NOT_PROBED,
	WS_HANG_REFUSED,    /* it accepts no connections */
	WS_HANG_UNREACHED,  /* no connection within the time of a probe */
	WS_HANG_SILENT,     /* a connection, and no answer */
	WS_HANG_ANSWERS
};

struct ws_hang_endpoint {
	const char *url;         /* borrowed from the collector */
	unsigned rank_offset, n_ranks; /* n_ranks 0: in no group */
	enum ws_hang_request request;
	char route[80];          /* "POST /init_weights_update_group"; "" */
	int64_t request_ns;      /* how long the request has taken */
	long status;             /* HTTP; 0: none */
	size_t buckets;          /* buckets that it has answered */
	unsigned unnamed;        /* peers of unknown rank that joined the store from its address */
	enum ws_hang_probe front;  /* GET /model_info, which needs no scheduler */
	enum ws_hang_probe health; /* GET /health */
	long health_status;
};

enum ws_hang_store { WS_HANG_ABSENT, WS_HANG_JOINED, WS_HANG_ASKED, WS_HANG_LEFT };
enum ws_hang_link { WS_HANG_LINK_UNKNOWN, WS_HANG_APART, WS_HANG_LINKED, WS_HANG_LINK_LOST };

struct ws_hang_rank {
	/* index of its endpoint; n_endpoints: the rank is another sender's, listed behind them */
	size_t endpoint;
	enum ws_hang_store store; /* ASKED: it requested the NCCL id, or published its address */
	char address[64];        /* from which it reached the store; "": unknown */
	char waits_for[128];     /* a key of the store; "" nothing */
	enum ws_hang_link link;  /* on the data plane */
	uint64_t due, taken; /* bytes of the bucket that we send to it, and those already sent;
	                      * due 0: it receives through another rank */
};

struct ws_hang_peer {            /* a peer at the store whose rank is unknown */
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
	const char *field;       /* option that raises the limit: "init_ns"; static; NULL: none */

	char group[128];         /* "": no group is involved */
	char backend[16];
	char address[64];        /* of our store, as sent to the endpoints */
	uint16_t port;
	bool loopback;           /* the address means each machine itself */
	unsigned world_size;     /* with us */
	unsigned joined;         /* peers that have ever joined */
	/* joined peers whose endpoint is unknown: several endpoints share the address */
	unsigned loose;

	size_t bucket, buckets;  /* of MOVING: index from 0; buckets 0: unknown */
	uint64_t bytes;          /* of the bucket */
	int64_t still_ns;        /* since a byte last moved */
	int64_t starved_ns;      /* ranks were ready, and our source had no bytes */
	bool flush;              /* the bucket's answer comes after a flush of caches */

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

/* Writes the facts as sentences, without the cause. */
void ws_hang_tell(const struct ws_hang *h, struct ws_buf *out);
/* One line: "waiting 30 s for ranks 3, 4 of http://gpu8:30000: not at the store yet". */
void ws_hang_tell_briefly(const struct ws_hang *h, struct ws_buf *out);

/* Frees the arrays. NULL is fine. */
void ws_hang_fini(struct ws_hang *h);

#ifdef __cplusplus
}
#endif
#endif
