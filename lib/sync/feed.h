/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h - payloads from wherever their bytes are into memory of a GPU, through a ring of pinned memory:
 * while one piece is read or made, the one before it is copied. What is on this GPU already is copied there.
 *
 * There are two boxes, so that one may be filled while the other is sent. One thread at a time calls
 * these, with the GPU current. */
#ifndef WS_SYNC_FEED_H
#define WS_SYNC_FEED_H

#include "cuda.h"
#include "payload.h"

enum { WS_FEED_SLOTS = 4, WS_FEED_SLOT = 16 << 20, WS_FEED_BOXES = 2, WS_FEED_ALIGN = 256 };

struct ws_feed_box {
	ws_devptr at;
	uint64_t capacity;                  /* bytes of the GPU; as many as the largest bucket had */
	const struct ws_payload *payloads;  /* borrowed; NULL: the box is free */
	size_t n_payloads;
	size_t loaded;                      /* payloads that are here, once the stream is past them */
	uint64_t place;                     /* of the next one */
};

struct ws_feed {
	struct ws_gpu *gpu;                 /* borrowed */
	struct ws_stream *stream;
	struct {
		void *memory;
		struct ws_mark *copied;
	} slots[WS_FEED_SLOTS];
	unsigned slot;                      /* the next one */
	struct ws_feed_box boxes[WS_FEED_BOXES];
};

/* On failure, too, it may be closed. */
int ws_feed_open(struct ws_feed *f, struct ws_gpu *gpu, struct ws_err *err);
/* What was asked of the stream is over, or will be soon. Zeros are fine. */
void ws_feed_close(struct ws_feed *f);

/* The box that has these payloads, or a free one that will. */
struct ws_feed_box *ws_feed_box(struct ws_feed *f, const struct ws_payload *payloads, size_t n);
void ws_feed_drop(struct ws_feed_box *b); /* its payloads; the memory stays */
/* Has payload number `loaded` brought next, in whole or not at all. */
int ws_feed_load(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err);
/* Where the next payload is, when *place is where this one was. */
uint64_t ws_feed_after(uint64_t place, const struct ws_payload *p);

#endif
