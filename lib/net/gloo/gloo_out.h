/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_out.h - the stream of items to one child in the tree.
 *
 * Every child has its own pace: items are announced a window ahead, then sent one by one as the
 * child requests them. The source provides the data. */
#ifndef WS_NET_GLOO_OUT_H
#define WS_NET_GLOO_OUT_H

#include "gloo_peer.h"

enum { WS_GLOO_WINDOW = 256 }; /* items announced or requested ahead */

struct ws_gloo_out {
	struct ws_gloo_peer *peer;
	unsigned index;     /* index among the children and as a consumer of the ring */
	size_t announced;   /* items */
	size_t item;        /* current item; earlier ones are sent */
	bool begun;         /* its message is queued or sent */
	uint64_t at;        /* sent bytes of the current item */
	uint64_t sent;      /* payload bytes of all items */
	size_t span;        /* for the source: position in the item's spans */
	uint64_t span_at;
	uint64_t traced;    /* its trace span; 0: none, or ended */
};

/* The next bytes of an item: of a file (fd >= 0), of memory, or zeros (bytes NULL). n 0: none
 * available yet. */
struct ws_gloo_piece {
	int fd;
	uint64_t offset;
	const void *bytes;
	size_t n;
};

struct ws_gloo_source {
	size_t n_items;
	uint32_t tag; /* of the first */
	bool plain;   /* point to point: items match receives by order alone */
	/* begin no more items: finish the current ones, with zeros if a file is too short */
	bool ending;
	uint64_t (*length)(const struct ws_gloo_source *s, size_t item);
	void (*peek)(struct ws_gloo_source *s, const struct ws_gloo_out *o,
	             struct ws_gloo_piece *piece);
	void (*took)(struct ws_gloo_source *s, struct ws_gloo_out *o, size_t n);
};

/* Sends what can be sent now. -1: the source failed, or the child expects something else. */
int ws_gloo_out_pump(struct ws_gloo *g, struct ws_gloo_out *o, struct ws_gloo_source *s,
                     struct ws_err *err);
bool ws_gloo_out_done(const struct ws_gloo_out *o, const struct ws_gloo_source *s);
/* True inside an item: only a part of it has reached the child's machine. */
bool ws_gloo_out_midway(const struct ws_gloo_out *o);
/* Sets the error that the child was lost before it had everything. */
int ws_gloo_out_check(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                      struct ws_err *err);
/* Appends "rank 2: not ready for item 7 (no RECV_READY)" and the like, after "; " if *text is
 * not empty. False: the child has everything. */
bool ws_gloo_out_explain(const struct ws_gloo_out *o, const struct ws_gloo_source *s,
                         struct ws_buf *text);

/* Begins a trace span for this child's data; it ends when the child has everything, or now. */
void ws_gloo_out_trace(struct ws_gloo *g, struct ws_gloo_out *o);
void ws_gloo_out_traced(struct ws_gloo *g, struct ws_gloo_out *o, const struct ws_gloo_source *s,
                        bool now);

/* "12.0 MiB of 512 MiB of item 3". Returns dst. */
char *ws_gloo_part(char *dst, size_t n, uint64_t part, uint64_t whole, size_t item);

#endif
