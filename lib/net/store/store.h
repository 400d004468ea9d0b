/* SPDX-License-Identifier: Apache-2.0 */
/* store.h - torch.distributed's TCPStore: the server that we run as rank 0, and a client.
 *
 * The server runs one poll loop in a thread and supports the three opcode tables of torch (A: up
 * to 2.0, B: 2.1, C: 2.2 and later), detected from the first bytes of a connection. Keys are
 * bytes. Our own process uses ws_store_set/get without a socket.
 *
 * Anyone who reaches the port can use the store. Therefore keys, values, memory and connections
 * are limited; keys set with `once` cannot be changed from outside, nor those of one member by
 * another; incomplete requests have a deadline. What members do is recorded for ws_store_trouble;
 * what strangers do ends their connections, and is recorded for ws_store_stranger. */
#ifndef WS_NET_STORE_H
#define WS_NET_STORE_H

#include "wsync/tool/buf.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"
#include "wsync/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- server ---- */

struct ws_store; /* opaque; every function may be called from any thread */

struct ws_store_opts {
	const char *host;         /* address to listen on */
	uint16_t port;            /* 0: any */
	/* both for the look-up if the host is a name; until 0: no time for one */
	ws_deadline until;
	const struct ws_cancel *cancel;
	unsigned world_size;      /* N: at most N-1 members; 0: unlimited */
	unsigned senders;         /* lower ranks are our own and other senders'; 0: 1 */
	const char *group;        /* group name G, in the keys of its members; NULL: all are */
	/* 0: 8 N + 256; beyond it a stranger's connection is closed for each new one: the oldest
	 * that is silent, else that has not joined, else that is no member's */
	unsigned max_connections;
	size_t max_bytes;         /* stored keys and values; 0: 256 MiB */
	int64_t request_ns;       /* limit for an incomplete request; 0: 10 s */
	const struct ws_log *log; /* borrowed */
};

int ws_store_open(const struct ws_store_opts *opts, struct ws_store **out, struct ws_err *err);
uint16_t ws_store_port(const struct ws_store *s);
/* Closes every connection and the listener at once: waiting peers fail within milliseconds. */
void ws_store_close(struct ws_store *s); /* NULL is fine */

/* once: drops connections that try to change or delete the key. */
int ws_store_set(struct ws_store *s, const char *key, const void *value, size_t n, bool once,
                 struct ws_err *err);
/* Waits for the key. WS_ETIMEOUT names the key. Appends the value to *value. */
int ws_store_get(struct ws_store *s, const char *key, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err);

/* A peer that sets this key, followed by its number (2 for the second), is one of several
 * senders; messages name it by that number. */
#define WS_STORE_SENDER "wsync/sender/"

/* The purpose of a key that a peer read or wrote; it explains silent hangs. */
enum ws_store_key {
	WS_KEY_OTHER, WS_KEY_INIT, WS_KEY_NCCL_ID, WS_KEY_GLOO_ADDRESS, WS_KEY_GLOO_RANK,
	WS_KEY_PG_WRAPPER,   /* TORCH_DISTRIBUTED_DEBUG=DETAIL */
	WS_KEY_SCALABLE_ID,  /* TORCH_NCCL_RANKS_PER_ROOT */
	WS_KEY_NCCL2, WS_KEY_SEQ_NUM, WS_KEY_BARRIER, WS_KEY_PYNCCL
};
enum ws_store_key ws_store_classify(const char *key, size_t n, const char *group);

struct ws_store_peer {
	char address[64];      /* "10.0.0.2:41234" */
	char epoch;            /* 'A', 'B', 'C'; '?' before the first byte */
	bool connected;        /* false: it has left */
	bool joined;           /* sent ADD init/ */
	bool asked;            /* waits for the NCCL id, or has published a gloo address */
	bool foreign;          /* waits for a key of another group */
	int rank;              /* from its gloo keys; -1: unknown */
	unsigned sender;       /* from WS_STORE_SENDER; 0: not a sender */
	char waits_for[128];   /* first missing key of its WAIT, printable; "" */
};

struct ws_store_report {
	unsigned joined;       /* value of the init/ counter */
	struct ws_store_peer *peers;
	size_t n_peers;
	unsigned refused;      /* connections or joins beyond the limits */
};

int ws_store_report(struct ws_store *s, struct ws_store_report *out, struct ws_err *err);
void ws_store_report_fini(struct ws_store_report *r); /* NULL is fine */

/* -1 and the message after an act of a member that cannot succeed (DETAIL wrapper, scalable init, a
 * peer of torch 2.1 in a gloo group, a peer too many, a member that left), else 0. */
int ws_store_trouble(struct ws_store *s, struct ws_err *err);
/* All servers have answered that they joined: from now on connections that joined, but have used no
 * key yet, count as members, if their number is that of the missing ranks. */
void ws_store_agreed(struct ws_store *s);

/* A connection that was closed because it did what no member does, or for a new one. */
struct ws_store_stranger {
	char address[64];
	const char *why; /* constant */
};
enum { WS_STORE_STRANGERS = 8 }; /* more are not recorded */
/* Fetches the next one that was not fetched before. False: there is none. */
bool ws_store_stranger(struct ws_store *s, struct ws_store_stranger *out);
/* Returns when all data that had arrived before the call is handled, closed connections
 * included. */
void ws_store_settle(struct ws_store *s);

/* -1: a joined sender has left; the message names it. */
int ws_store_lost_sender(struct ws_store *s, struct ws_err *err);

/* The prefix under which the gloo peers of the group publish, which also gives the layout.
 * Waits until all of them except senders have published (without a world size: one). Until rank
 * 0 publishes, peers wait in the store, where closing it fails them at once. After that they
 * wait for each other's connections, and a missing rank blocks the others for torch's timeout
 * of 30 minutes. Therefore this function also fails with the error of ws_store_trouble. */
struct ws_store_gloo {
	char prefix[512]; /* "/G/G//cpu//0/" or "/G/G/0/", ends in "/" */
	char epoch;       /* 'A': layout G1; 'B': G2a; 'C': G2b */
};
int ws_store_wait_gloo(struct ws_store *s, ws_deadline until, const struct ws_cancel *cancel,
                       struct ws_store_gloo *out, struct ws_err *err);

/* ---- client: one connection, one thread at a time ----
 *
 * Keys are given as they are on the wire: torch's own client puts a "/" before each. */

struct ws_store_client; /* opaque */

struct ws_store_client_opts {
	const char *host;
	uint16_t port;
	char epoch;        /* 'C' (also 0), or 'A' or 'B' for an older torch */
	bool no_join;      /* do not ADD init/ */
	/* borrowed until the disconnect; once set, all current and later calls fail with
	 * WS_ECANCELLED; may be NULL */
	const struct ws_cancel *stop;
};

/* Retries refused connections with back-off until the deadline; then WS_EREACH. */
int ws_store_connect(const struct ws_store_client_opts *opts, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_store_client **out,
                     struct ws_err *err);
void ws_store_disconnect(struct ws_store_client *c); /* NULL is fine */

int ws_store_client_set(struct ws_store_client *c, const char *key, const void *value, size_t n,
                        ws_deadline until, struct ws_err *err);
/* WAIT then GET, as torch does. cancel takes the place of `stop` for this call; NULL: `stop`. */
int ws_store_client_get(struct ws_store_client *c, const char *key, ws_deadline until,
                        const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err);
int ws_store_client_add(struct ws_store_client *c, const char *key, int64_t delta,
                        ws_deadline until, int64_t *value, struct ws_err *err);
/* WAIT; at the deadline or on a cancel CANCEL_WAIT (epochs B and C), then WS_ETIMEOUT or
 * WS_ECANCELLED; the client stays usable if the store answers that. cancel takes the place of
 * `stop` for this call; NULL: `stop`. */
int ws_store_client_wait(struct ws_store_client *c, const char *const *keys, size_t n,
                         ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err);
int ws_store_client_check(struct ws_store_client *c, const char *const *keys, size_t n,
                          ws_deadline until, bool *all, struct ws_err *err);
int ws_store_client_delete(struct ws_store_client *c, const char *key, ws_deadline until,
                           bool *deleted, struct ws_err *err);

#endif
