/* SPDX-License-Identifier: Apache-2.0 */
/* store_core.h - the store without its sockets and threads: connections that are fed bytes.
 *
 * store.c moves bytes between sockets and these buffers under one lock; tests and the fuzzer feed
 * them from memory. store_conn.c keeps connections and their limits, store_exec.c
 * executes requests, store_watch.c draws conclusions from the keys that pass,
 * store_diag.c puts them into words. */
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
	int fd;                                /* store.c's; -1 in memory */
	char address[64];                      /* "10.0.0.2:41234" */
	size_t n_ip;                           /* how much of address is the host */

	struct ws_buf rx, tx;
	size_t n_buffered;                     /* of both, as counted in core->n_buffered */
	struct ws_store_scan scan;
	int64_t partial_since;                 /* a request is half received; 0: none */

	struct ws_store_waiter waiter;
	int64_t waits_since;

	/* store.c's: it is told when there is room to send */
	bool polls_output;
	bool due;                              /* in core->due: has output, or is doomed */
	bool doomed;                           /* to be closed */
	bool joined, asked;
	/* never sent a request but WATCH_KEY: perhaps a twin */
	bool silent;
	int64_t gloo_since;                    /* a gloo peer whose epoch is not told yet; else 0 */
	int rank;                              /* -1: not known */
	unsigned sender;                       /* 0: it is none */
	uint64_t requests;
};

struct ws_store_core {
	struct ws_store_keys keys;
	unsigned world_size, senders, max_connections;
	int64_t request_ns;
	char *group;                           /* owned; NULL: none */
	const struct ws_log *log;

	struct ws_store_conn *first, *last;
	struct ws_store_conn *due;             /* wants store.c's attention */
	unsigned n_conns, n_partial, n_undecided;
	size_t n_buffered;                     /* bytes in all rx and tx */
	int64_t now;                           /* of the pass at hand; > 0 */

	unsigned joined, refused;
	bool closing;                          /* nobody leaves any more: we close */
	struct ws_store_peer *left;            /* joined peers that have gone */
	size_t n_left;

	struct ws_store_gloo gloo;             /* prefix "" until a peer has published, epoch 0
	                                          until told */
	struct ws_err trouble;                 /* code WS_OK: none yet */
	void (*changed)(void *ctx);            /* a key was set, gloo found, or trouble seen */
	void *ctx;
};

int ws_store_core_init(struct ws_store_core *core, const struct ws_store_opts *opts,
                       struct ws_err *err);
void ws_store_core_fini(struct ws_store_core *core);

/* ---- store_conn.c ---- */

/* NULL: beyond the limit of connections, or out of memory. */
struct ws_store_conn *ws_store_conn_open(struct ws_store_core *core, const char *address);
void ws_store_conn_close(struct ws_store_conn *c);
/* Executes what is complete in c->rx. */
void ws_store_conn_run(struct ws_store_conn *c, int64_t now);
/* After bytes left c->tx. */
void ws_store_conn_sent(struct ws_store_conn *c, size_t n);
/* The connection is to be closed; why is for the log. */
void ws_store_conn_doom(struct ws_store_conn *c, const char *why);
void ws_store_conn_due(struct ws_store_conn *c);
/* Deadlines; to be called a few times a second while n_partial or n_undecided. */
void ws_store_core_tick(struct ws_store_core *core, int64_t now);
/* Does this client have a silent second connection? Then it is torch 2.0 or older. */
bool ws_store_conn_has_twin(const struct ws_store_conn *c);
char ws_store_conn_epoch(const struct ws_store_conn *c); /* 'A', 'B', 'C', '?' */

/* ---- store_exec.c ---- */

/* One complete request from behind its opcode. Replies go to c->tx; may doom c. */
void ws_store_exec(struct ws_store_conn *c, enum ws_store_op op, struct ws_store_fields f);

/* ---- store_watch.c ---- */

/* A peer asks for a key: answers what only rank 0 could, recognises what cannot work. */
void ws_store_watch_read(struct ws_store_conn *c, struct ws_bytes key);
/* A peer has set a key. */
void ws_store_watch_write(struct ws_store_conn *c, struct ws_bytes key, struct ws_bytes value);
/* A peer has counted on a key. */
void ws_store_watch_count(struct ws_store_conn *c, struct ws_bytes key, int64_t sum);
/* A peer joins, if there is room for it. */
int ws_store_watch_join(struct ws_store_conn *c);
/* A gloo peer that is torch 2.0 or 2.1: which, as soon as that can be told. */
void ws_store_watch_decide(struct ws_store_conn *c);
/* The connection is about to be closed. */
void ws_store_watch_left(struct ws_store_conn *c);
/* Remembers the first thing that cannot work. The hint may be NULL. */
void ws_store_watch_trouble(struct ws_store_core *core, int rank, const char *hint, const char *fmt,
                            ...) __attribute__((format(printf, 4, 5)));
/* "10.0.0.2:41234 (rank 3)" */
const char *ws_store_watch_name(const struct ws_store_conn *c, char *dst, size_t n);

/* ---- store_names.c ---- */

/* A gloo key in parts: its prefix up to and with "/", device index and rank. */
struct ws_store_gloo_key {
	size_t n_prefix;
	int device, rank;
	bool ours; /* of the group asked for */
};
bool ws_store_gloo_key(struct ws_bytes key, const char *group, struct ws_store_gloo_key *out);
bool ws_store_key_has(struct ws_bytes key, const char *part);

/* ---- store_diag.c ---- */

/* Keeps what the report says about a joined peer beyond its connection. */
void ws_store_remember_left(const struct ws_store_conn *c);

void ws_store_core_explain(const struct ws_store_core *core, uint16_t port, struct ws_buf *out);
int ws_store_core_report(const struct ws_store_core *core, struct ws_store_report *out,
                         struct ws_err *err);

#endif
