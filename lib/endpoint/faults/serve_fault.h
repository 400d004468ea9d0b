/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fault.h - configured faults: of routes (serve_fault.c), in memory (serve_corrupt.c), and on
 * the wire (serve_wire.c). */
#ifndef WS_ENDPOINT_SERVE_FAULT_H
#define WS_ENDPOINT_SERVE_FAULT_H

#include "wsync/err.h"
#include "wsync/tool/serve.h"

#include <stdbool.h>
#include <stdint.h>

enum ws_serve_fault_kind {
	WS_FAULT_NONE, WS_FAULT_REFUSE, WS_FAULT_HANG, WS_FAULT_DROP, WS_FAULT_DIE, WS_FAULT_SLOW,
	WS_FAULT_GARBAGE, WS_FAULT_WRONG_LENGTH,
	WS_FAULT_BATCH_VARIANT, /* only /generate, at every call from K on */
	WS_FAULT_STALE,         /* only of routes that flush */
	WS_FAULT_CORRUPT        /* serve_corrupt.c; "flip" is short for it */
};

/* Changes of weights that arrived correctly. */
enum ws_serve_corruption {
	WS_CORRUPT_FLIP,     /* one bit of the tensor changes */
	WS_CORRUPT_TRUNCATE, /* the tensor's last bytes keep their old values */
	WS_CORRUPT_DROP,     /* all bytes of the tensor keep their old values */
	WS_CORRUPT_SWAP      /* the tensor swaps its bytes with another of the request */
};

struct ws_serve_corrupt {
	enum ws_serve_corruption how;
	uint64_t at, bytes; /* FLIP: byte offset; TRUNCATE: byte count, 0: one element */
	int rank;           /* the only rank that is changed; -1: all ranks */
};

struct ws_serve_fault {
	enum ws_serve_fault_kind kind;
	const char *route; /* into the table of routes */
	uint64_t call;
	char tensor[256];  /* CORRUPT: a glob of tensor names, by default "*" */
	struct ws_serve_corrupt corrupt;
};

int ws_serve_fault_parse(const char *text, enum ws_serve_lineage lineage,
                         struct ws_serve_fault *out, struct ws_err *err);
/* Steps that are not routes: actions of the endpoint itself, counted since its start. */
enum ws_serve_wire {
	WS_WIRE_STORE,   /* a group's first rank connects to the store */
	WS_WIRE_CONNECT, /* a group's first rank joins the mesh */
	WS_WIRE_PAYLOAD, /* a group's ranks receive the tensors of one request or bucket */
	WS_WIRE_STEPS
};
/* Counts the step. Returns the fault that is due now, or NONE. */
enum ws_serve_fault_kind ws_serve_wire_fault(struct ws_serve *s, enum ws_serve_wire step);
void ws_serve_linger(struct ws_serve *s); /* waits slow_ns, or until the endpoint stops */
/* Whether the fault ends the endpoint or the connection midway, without an answer. */
static inline bool ws_serve_fault_ends(enum ws_serve_fault_kind kind)
{
	return kind == WS_FAULT_DROP || kind == WS_FAULT_DIE;
}
const char *ws_serve_fault_name(enum ws_serve_fault_kind kind);
int ws_serve_fault_set_tensor(struct ws_serve_fault *f, const char *glob, struct ws_err *err);

/* Parses "HOW[,KEY=VALUE]..." into f, which the caller has set to all tensors and ranks. */
int ws_serve_corrupt_parse(const char *spec, struct ws_serve_fault *f, struct ws_err *err);
/* Checks that this endpoint supports the fault. */
int ws_serve_corrupt_check(const struct ws_serve *s, const struct ws_serve_fault *f,
                           struct ws_err *err);
/* The tensors of one request; borrows from it. Call all three functions in the scheduler. */
struct ws_serve_corrupted;
struct ws_serve_note; /* serve_journal.h */
struct ws_serve_slot; /* serve_weights.h; only their names are read */
/* Before the load: copies the old bytes that the fault needs. fault NULL (no fault is due): *out
 * becomes NULL. */
int ws_serve_corrupt_begin(struct ws_serve *s, const struct ws_serve_fault *fault,
                           const struct ws_serve_slot *slots, size_t n,
                           struct ws_serve_corrupted **out, struct ws_err *err);
/* After the load: corrupts one tensor and notes its name. Frees v (may be NULL). */
void ws_serve_corrupt_end(struct ws_serve *s, struct ws_serve_corrupted *v,
                          struct ws_serve_note *note);
void ws_serve_corrupt_free(struct ws_serve_corrupted *v); /* after a failed load; NULL is fine */

#endif
