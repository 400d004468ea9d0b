/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_out.h - the stream of items to one child in the tree.
 *
 * Every child goes at its own pace: announced a window ahead, then item by item as it is ready.
 * Where the bytes come from is the source's business. */
#ifndef WS_NET_GLOO_OUT_H
#define WS_NET_GLOO_OUT_H

#include "gloo_peer.h"

enum { WS_GLOO_WINDOW = 256 }; /* items announced, or asked for, ahead */

struct ws_gloo_out {
	struct ws_gloo_peer *peer;
	unsigned index;     /* among the children: its place as a consumer of the ring */
	size_t announced;   /* items */
	size_t item;        /* being sent; those before are sent */
	bool begun;         /* its message is on the way */
	uint64_t at;        /* bytes of it that are */
	uint64_t sent;      /* payload bytes of all items */
	size_t span;        /* the source's: where in the item's spans */
	uint64_t span_at;
	uint64_t traced;    /* its span of the trace; 0: there is none, or it has ended */
};

/* The next bytes of an item: of a file (fd >= 0), of memory, or zeros (bytes NULL). n 0: none
 * yet. */
struct ws_gloo_piece {
	int fd;
	uint64_t offset;
	const void *bytes;
	size_t n;
};

struct ws_gloo_source {
	size_t n_items;
	uint32_t tag; /* of the first */
	bool plain;   /* point to point: items match receives by their order alone */
	bool ending;  /* begin no other item: finish those that are begun, with zeros where a file
	               * has no more bytes */
	uint64_t (*length)(const struct ws_gloo_source *s, size_t item);
	void (*peek)(struct ws_gloo_source *s, const struct ws_gloo_out *o,
	             struct ws_gloo_piece *piece);
	void (*took)(struct ws_gloo_source *s, struct ws_gloo_out *o, size_t n);
};

/* Sends what can be sent now. -1: the source's fault, or the child wants something else. */
int ws_gloo_out_pump(struct ws_gloo *g, struct ws_gloo_out *o, struct ws_gloo_source *s,
                     struct ws_err *err);
bool ws_gloo_out_done(const struct ws_gloo_out *o, const struct ws_gloo_source *s);
/* In the middle of an item: a part of it is with the child's machine, a part is not. */
bool ws_gloo_out_midway(const struct ws_gloo_out *o);
/* The child is lost before it took everything: says so. */
int ws_gloo_out_check(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                      struct ws_err *err);
/* Appends "rank 2: not ready for item 7 (no RECV_READY)" and the like, after "; " if *text has
 * something. Returns false if the child has taken everything. */
bool ws_gloo_out_explain(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                         struct ws_buf *text);

/* A span of the trace for what goes to this child, which ends when it has all, or now. */
void ws_gloo_out_trace(struct ws_gloo *g, struct ws_gloo_out *o);
void ws_gloo_out_traced(struct ws_gloo *g, struct ws_gloo_out *o, const struct ws_gloo_source *s,
                        bool now);

/* "12.0 MiB of 512 MiB of item 3". Returns dst. */
char *ws_gloo_part(char *dst, size_t n, uint64_t part, uint64_t whole, size_t item);

#endif
