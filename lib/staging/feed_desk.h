/* SPDX-License-Identifier: Apache-2.0 */
/* feed_desk.h - where formulas are followed on a GPU: kernels, scratch, and what
 * they tell of the numbers. */
#ifndef WS_STAGING_FEED_DESK_H
#define WS_STAGING_FEED_DESK_H

#include "feed_formula.h"
#include "wsync/trace.h"

struct ws_feed_desk {
	struct ws_gpu *gpu; /* both borrowed */
	struct ws_compute *compute;
	ws_devptr scratch, records;
	/* of scratch, half of which a band has: one is copied while another is made */
	uint64_t bytes;
	struct ws_gpu_event *used[2]; /* the last kernel that was asked for with each half */
	unsigned turn;      /* the half of the last band */
	char *found;        /* pinned: the records, copied out */
	struct ws_gpu_event *told[WS_FEED_RECORDS];
	struct ws_trace *trace; /* NULL: none. A making is a span that ends when it was judged */
	int64_t begun[WS_FEED_RECORDS], judged; /* when */
};

int ws_feed_desk_open(struct ws_gpu *gpu, struct ws_compute *compute, uint64_t scratch,
                      struct ws_feed_desk **out, struct ws_err *err);
void ws_feed_desk_close(struct ws_feed_desk *d); /* NULL is fine */
/* Bytes of the GPU and pinned memory that it takes, with WS_FEED_SCRATCH. */
void ws_feed_desk_memory(uint64_t *gpu, uint64_t *pinned);

/* A band begins, in that half: what is copied from now on waits until
 * nothing there is used any more. */
int ws_feed_desk_turn(struct ws_feed_desk *d, unsigned turn, struct ws_stream *stream,
                      struct ws_stream *copies, struct ws_err *err);
/* Has the stream do a step that is about a making. */
int ws_feed_desk_do(struct ws_feed_desk *d, const struct ws_feed_steps *steps,
                    const struct ws_feed_step *s, struct ws_stream *stream, struct ws_err *err);
/* Waits for making i, which was the last but WS_FEED_RECORDS or later. *good false: numbers were
 * met that are not finite, or so large that a sum of them might not be; whether it is, only
 * making it elsewhere tells. */
int ws_feed_desk_judge(struct ws_feed_desk *d, const struct ws_feed_steps *steps, size_t i,
                       bool *good, ws_deadline until, const struct ws_cancel *cancel,
                       struct ws_err *err);

#endif
