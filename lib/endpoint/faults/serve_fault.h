/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fault.h - misbehaviour by appointment: serve_fault.c, and serve_wire.c on the wire. */
#ifndef WS_ENDPOINT_SERVE_FAULT_H
#define WS_ENDPOINT_SERVE_FAULT_H

#include "wsync/dtype.h"
#include "wsync/err.h"
#include "wsync/tool/serve.h"

#include <stdint.h>

enum ws_serve_fault_kind {
	WS_FAULT_NONE, WS_FAULT_REFUSE, WS_FAULT_HANG, WS_FAULT_DROP, WS_FAULT_DIE, WS_FAULT_FLIP,
	WS_FAULT_SLOW, WS_FAULT_GARBAGE, WS_FAULT_WRONG_LENGTH,
	WS_FAULT_BATCH_VARIANT, /* of /generate, at every call from K on */
	WS_FAULT_STALE,         /* of /flush_cache */
	WS_FAULT_CORRUPT        /* serve_corrupt.h */
};

/* What becomes of weights that came whole. */
enum ws_serve_corruption {
	WS_CORRUPT_FLIP,          /* one bit of a tensor */
	WS_CORRUPT_TRUNCATE,      /* its last bytes stay what they were */
	WS_CORRUPT_PERMUTE,       /* its elements move by one */
	WS_CORRUPT_DROP,          /* it stays what it was */
	WS_CORRUPT_COPY,          /* it gets the bytes of another one of the request */
	WS_CORRUPT_SWAP,          /* ... which gets those of this one */
	WS_CORRUPT_RETYPE,        /* its bytes are taken for numbers of another type */
	WS_CORRUPT_DROP_BUCKET,   /* all tensors of the request stay what they were */
	WS_CORRUPT_STALE_BUCKET,  /* ... the bytes in their middle do */
	WS_CORRUPT_REPEAT_BUCKET, /* they get the bytes of the request before */
	WS_CORRUPT_SWAP_BUCKETS   /* ... whose tensors get those of this one */
};

enum ws_serve_spot { WS_AT_BYTE, WS_AT_MIDDLE, WS_AT_LAST, WS_AT_PADDING };

struct ws_serve_corrupt {
	enum ws_serve_corruption how;
	enum ws_serve_spot spot;
	uint64_t at, bytes;       /* bytes 0: one element */
	unsigned bit;
	int rank;                 /* only there; -1: at all ranks */
	enum ws_dtype as;
};

struct ws_serve_fault {
	enum ws_serve_fault_kind kind;
	const char *route; /* into the table of routes */
	uint64_t call;
	char tensor[256];  /* FLIP, CORRUPT: a glob, "*" where none was given */
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
const char *ws_serve_fault_name(enum ws_serve_fault_kind kind);

#endif
