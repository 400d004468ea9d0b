/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fault.h - faults on request: serve_fault.c, serve_corrupt.c in memory, and serve_wire.c on
 * the wire. */
#ifndef WS_ENDPOINT_SERVE_FAULT_H
#define WS_ENDPOINT_SERVE_FAULT_H

#include "wsync/err.h"
#include "wsync/tool/serve.h"

#include <stdbool.h>
#include <stdint.h>

enum ws_serve_fault_kind {
	WS_FAULT_NONE, WS_FAULT_REFUSE, WS_FAULT_HANG, WS_FAULT_DROP, WS_FAULT_DIE, WS_FAULT_SLOW,
	WS_FAULT_GARBAGE, WS_FAULT_WRONG_LENGTH,
	WS_FAULT_BATCH_VARIANT, /* of /generate, at every call from K on */
	WS_FAULT_STALE,         /* of /flush_cache */
	WS_FAULT_CORRUPT        /* serve_corrupt.c; "flip" is short for it */
};

/* Changes of weights that arrived whole. */
enum ws_serve_corruption {
	WS_CORRUPT_FLIP,     /* one bit of a tensor changes */
	WS_CORRUPT_TRUNCATE, /* its last bytes stay what they were */
	WS_CORRUPT_DROP,     /* all of it stays what it was */
	WS_CORRUPT_SWAP      /* it changes places with another tensor of the request */
};

struct ws_serve_corrupt {
	enum ws_serve_corruption how;
	uint64_t at, bytes; /* FLIP: the byte; TRUNCATE: how many, 0: one element */
	int rank;           /* only there; -1: at all ranks */
};

struct ws_serve_fault {
	enum ws_serve_fault_kind kind;
	const char *route; /* into the table of routes */
	uint64_t call;
	char tensor[256];  /* CORRUPT: a glob, "*" where none was given */
	struct ws_serve_corrupt corrupt;
};

int ws_serve_fault_parse(const char *text, enum ws_serve_lineage lineage,
                         struct ws_serve_fault *out, struct ws_err *err);
/* Steps that are no route: the endpoint's own doings, counted over its life. */
enum ws_serve_wire {
	WS_WIRE_STORE,   /* a group's first rank turns to the store */
	WS_WIRE_CONNECT, /* ... joins the mesh */
	WS_WIRE_PAYLOAD, /* ... receives the tensors of one request, or of one bucket */
	WS_WIRE_STEPS
};
/* Counts the step. What is due now, or NONE. */
enum ws_serve_fault_kind ws_serve_wire_fault(struct ws_serve *s, enum ws_serve_wire step);
void ws_serve_linger(struct ws_serve *s); /* for what "slow" takes, or until the endpoint stops */
/* In the middle of things: the endpoint or the connection goes, without an answer. */
static inline bool ws_serve_fault_ends(enum ws_serve_fault_kind kind)
{
	return kind == WS_FAULT_DROP || kind == WS_FAULT_DIE;
}
const char *ws_serve_fault_name(enum ws_serve_fault_kind kind);
int ws_serve_fault_set_tensor(struct ws_serve_fault *f, const char *glob, struct ws_err *err);

/* "HOW[,KEY=VALUE]...", into a fault for all tensors and ranks. */
int ws_serve_corrupt_parse(const char *spec, struct ws_serve_fault *f, struct ws_err *err);
/* Can this endpoint have this fault? */
int ws_serve_corrupt_check(const struct ws_serve *s, const struct ws_serve_fault *f,
                           struct ws_err *err);
/* The tensors of one request, which lasts longer than they. In the scheduler, all three. */
struct ws_serve_corrupted;
struct ws_serve_note; /* serve_journal.h */
struct ws_serve_slot; /* serve_weights.h; only their names are read */
/* Before they are loaded: copies what will be needed. *out NULL: no fault is due, as with fault
 * NULL. */
int ws_serve_corrupt_begin(struct ws_serve *s, const struct ws_serve_fault *fault,
                           const struct ws_serve_slot *slots, size_t n,
                           struct ws_serve_corrupted **out, struct ws_err *err);
/* After that: corrupts one, and notes its name. Takes v (NULL is fine). */
void ws_serve_corrupt_end(struct ws_serve *s, struct ws_serve_corrupted *v,
                          struct ws_serve_note *note);
void ws_serve_corrupt_free(struct ws_serve_corrupted *v); /* NULL is fine: the load failed */

#endif
