/* SPDX-License-Identifier: Apache-2.0 */
/* store_core.h - the store without its sockets and threads: connections that are fed bytes.
 *
 * store.c moves bytes between sockets and these buffers under one lock; tests and the fuzzer
 * feed them from memory. store_conn.c keeps connections and their limits, store_exec.c executes
 * requests, store_watch.c draws conclusions from keys, and store_diag.c reports them.
 *
 * Every process that reaches the port can send requests, so a connection counts only once it is a
 * member's: it has used a key with the group's name in it, is one of several senders, or was one of
 * exactly as many as the group has ranks when all servers had agreed to join. Every other is a
 * stranger's, or a rank's that has not come so far: it may join, read, and become a member, and
 * whatever else it does ends the connection and nothing else. */
#ifndef WS_NET_STORE_CORE_H
#define WS_NET_STORE_CORE_H

#include "store.h"
#include "store_keys.h"
#include "store_wire.h"

struct ws_store_core;

struct ws_store_conn {
	struct ws_store_conn *prev, *next;     /* all connections, oldest first */
	struct ws_store_conn *next_due;
	struct ws_store_core *core;
	uint64_t id;                           /* from 1 */
	int64_t since;                         /* when it was opened */
	int fd;                                /* owned by store.c; -1 in memory */
	char address[64];                      /* "10.0.0.2:41234" */
	size_t n_ip;                           /* length of the host in address */

	struct ws_buf rx, tx;
	size_t n_buffered;                     /* of both buffers, as counted in core->n_buffered */
	struct ws_store_scan scan;
	int64_t partial_since;                 /* begin of an incomplete request; 0: none */

	struct ws_store_waiter waiter;

	/* for store.c: wants a signal when there is room to send */
	bool polls_output;
	bool due;                              /* in core->due: has output, or is doomed */
	bool doomed;                           /* to be closed */
	bool joined, asked;
	bool member;
	/* has only sent WATCH_KEY: perhaps a twin */
	bool silent;
	int64_t gloo_since;                    /* a gloo peer whose epoch is unknown; else 0 */
	int rank;                              /* -1: unknown */
	unsigned sender;                       /* 0: not a sender */
};

struct ws_store_core {
	struct ws_store_keys keys;
	unsigned world_size, senders, max_connections;
	int64_t request_ns;
	char *group;                           /* owned; NULL: none */
	const struct ws_log *log;

	struct ws_store_conn *first, *last;
	struct ws_store_conn *due;             /* connections for store.c to handle */
	unsigned n_conns, n_partial, n_undecided;
	size_t n_buffered;                     /* bytes in all rx and tx */
	int64_t now;                           /* time of the current pass; > 0 */

	unsigned joined, refused;
	unsigned members;                      /* that have joined and are connected */
	bool agreed;                           /* all servers have answered that they joined */
	bool complete;                         /* all ranks are members */
	uint64_t last_id;
	struct ws_store_stranger strangers[WS_STORE_STRANGERS];
	unsigned n_strangers, n_told;          /* recorded, and fetched of these */
	/* the store is closing: leaving peers are not reported */
	bool closing;
	struct ws_store_peer *left;            /* joined peers that have left */
	size_t n_left;

	/* prefix "" until a peer publishes; epoch 0 until known */
	struct ws_store_gloo gloo;
	struct ws_err trouble;                 /* code WS_OK: none so far */
	/* called after a key is set, gloo is found, or trouble is seen */
	void (*changed)(void *ctx);
	void *ctx;
};

int ws_store_core_init(struct ws_store_core *core, const struct ws_store_opts *opts,
                       struct ws_err *err);
void ws_store_core_fini(struct ws_store_core *core);

/* ---- store_conn.c ---- */

/* NULL: beyond the limit of connections, or out of memory. */
struct ws_store_conn *ws_store_conn_open(struct ws_store_core *core, const char *address);
void ws_store_conn_close(struct ws_store_conn *c);
/* Executes the complete requests in c->rx. */
void ws_store_conn_run(struct ws_store_conn *c, int64_t now);
/* Call after bytes were removed from c->tx. */
void ws_store_conn_sent(struct ws_store_conn *c, size_t n);
/* Marks the connection for closing. A member's is trouble, a stranger's is recorded as one. */
void ws_store_conn_doom(struct ws_store_conn *c, const char *why);
void ws_store_conn_due(struct ws_store_conn *c);
/* Checks deadlines; call a few times a second while n_partial or n_undecided. */
void ws_store_core_tick(struct ws_store_core *core, int64_t now);
/* True if this client has a silent second connection: it is torch 2.0 or older. */
bool ws_store_conn_has_twin(const struct ws_store_conn *c);
char ws_store_conn_epoch(const struct ws_store_conn *c); /* 'A', 'B', 'C', '?' */

/* ---- store_exec.c ---- */

/* Executes one complete request; f begins after its opcode. Replies go to c->tx; may doom c. */
void ws_store_exec(struct ws_store_conn *c, enum ws_store_op op, struct ws_store_fields f);

/* ---- store_watch.c ---- */

/* A peer reads a key: sets keys that only rank 0 can set, and detects keys that cannot work. */
void ws_store_watch_read(struct ws_store_conn *c, struct ws_bytes key);
/* A peer has set a key. */
void ws_store_watch_write(struct ws_store_conn *c, struct ws_bytes key, struct ws_bytes value);
/* A peer has added to a counter. */
void ws_store_watch_count(struct ws_store_conn *c, struct ws_bytes key, int64_t sum);
/* A connection joins, unless the group is complete. */
int ws_store_watch_join(struct ws_store_conn *c);
/* False: this connection may not set, count or delete the key, and was doomed for it. */
bool ws_store_watch_may_write(struct ws_store_conn *c, struct ws_bytes key, bool counts);
/* All servers have agreed. If as many connections as ranks have joined, these are the ranks. */
void ws_store_watch_agreed(struct ws_store_core *core);
/* Records a stranger, once for each address and reason. */
void ws_store_watch_stranger(struct ws_store_core *core, const char *address, const char *why);
/* Decides between torch 2.0 and 2.1 for a gloo peer as soon as possible. */
void ws_store_watch_decide(struct ws_store_conn *c);
/* Call before the connection is closed. */
void ws_store_watch_left(struct ws_store_conn *c);
/* Records the first cause of trouble. The hint may be NULL. */
void ws_store_watch_trouble(struct ws_store_core *core, int rank, const char *hint, const char *fmt,
                            ...) __attribute__((format(printf, 4, 5)));
/* "10.0.0.2:41234 (rank 3)" */
const char *ws_store_watch_name(const struct ws_store_conn *c, char *dst, size_t n);

/* ---- store_names.c ---- */

/* Parts of a gloo key: prefix with its last "/", device index and rank. */
struct ws_store_gloo_key {
	size_t n_prefix;
	int device, rank;
	bool ours; /* the key is of the given group */
};
bool ws_store_gloo_key(struct ws_bytes key, const char *group, struct ws_store_gloo_key *out);
bool ws_store_key_has(struct ws_bytes key, const char *part);
/* True if it contains "/G/G/", as all keys of the group do, but for those of vLLM's NCCL. */
bool ws_store_key_ours(struct ws_bytes key, const char *group);

/* ---- store_diag.c ---- */

/* Saves a joined peer's report, which outlives its connection. */
void ws_store_remember_left(const struct ws_store_conn *c);

int ws_store_core_report(const struct ws_store_core *core, struct ws_store_report *out,
                         struct ws_err *err);

#endif
