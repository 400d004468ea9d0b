/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h - payloads from wherever their bytes are into memory of a GPU, through a ring of pinned
 * memory: while one piece is read or made, those before it are copied. What is on this GPU
 * already is copied there, or gathered where it is boxes.
 *
 * What a bucket needs is a list of steps. Two things walk along it: what is to be read is asked
 * of the ring as far ahead as that has slots, and behind it, step by step, two streams of the
 * GPU are told what to do: one copies what was read, the other makes something of it, and each
 * waits for the other only where it must, so that one tensor is copied while another is made.
 *
 * A span with a formula is made on the GPU, where that was opened for it, from what the formula
 * says; when that meets numbers which are none, its fill is asked, which then says so. So a
 * payload is loaded when what the kernels tell of it has been looked at.
 *
 * There are two boxes, so that one may be filled while the other is sent. One thread at a time
 * calls these, with the GPU current. */
#ifndef WS_STAGING_FEED_H
#define WS_STAGING_FEED_H

#include "cuda_driver.h"
#include "payload.h"
#include "wsync/log.h"
#include "wsync/trace.h"

enum { WS_FEED_BOXES = 2, WS_FEED_ALIGN = 256 };

struct ws_feed_steps; /* opaque */
struct ws_feed_desk;
struct ws_compute;

/* A place among the steps. */
struct ws_feed_at {
	size_t step;
	uint64_t in; /* bytes of it that are behind */
};

struct ws_feed_box {
	struct ws_feed *feed;
	ws_devptr at;
	/* bytes of the GPU; as many as the largest bucket had */
	uint64_t capacity;
	bool lent;                          /* until it is dropped */
	const struct ws_payload *payloads;  /* borrowed; NULL: the box is free */
	size_t n_payloads;
	/* payloads that are here, once the stream is past them */
	size_t loaded;
	struct ws_feed_steps *steps;        /* NULL: none yet */
	struct ws_feed_at asked, done;
	size_t made, judged;                /* formulas that were followed, and looked at */
};

struct ws_feed {
	struct ws_gpu *gpu;                 /* borrowed */
	/* kernels, and copies on the GPU: past it, payloads are here */
	struct ws_stream *stream;
	/* from the host; stream waits for them where it needs them */
	struct ws_stream *copies;
	struct ws_gpu_event *copied; /* the end of copies, as stream waits for it */
	/* stream does not wait yet for what was last asked of copies */
	bool behind;
	struct ws_ring *ring;
	struct ws_compute *compute;         /* NULL: no kernel was wanted yet */
	bool no_compute;                    /* there is none to be had */
	struct ws_feed_desk *desk;          /* NULL: nothing is made here */
	/* bytes that a box has, so that it is large enough for later buckets */
	uint64_t least;
	struct ws_feed_box *reading;        /* of which box the ring has something; NULL */
	struct ws_feed_box boxes[WS_FEED_BOXES];
};

/* On failure, too, it may be closed. */
int ws_feed_open(struct ws_feed *f, struct ws_gpu *gpu, struct ws_err *err);
/* Formulas are followed from now on, in so many bytes of scratch; 0: 192 MiB. */
int ws_feed_make_here(struct ws_feed *f, uint64_t scratch, struct ws_err *err);
/* So, or where that cannot be had and need not be, by the CPU. */
int ws_feed_try_to_make(struct ws_feed *f, bool must, const struct ws_log *log, struct ws_err *err);
/* Will this one be? */
bool ws_feed_makes(const struct ws_feed *f, const struct ws_formula_out *out);
/* What was asked of the stream is over: nothing is read or written any more. Waits for the GPU
 * alone, and not for one that hangs. */
void ws_feed_settle(struct ws_feed *f);
/* Settles first. Zeros are fine. */
void ws_feed_close(struct ws_feed *f);
/* The most memory of the GPU and pinned memory that it takes, for so many buckets of at most so
 * many bytes and payloads; and how much more where formulas are followed. */
void ws_feed_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                    uint64_t *pinned);
void ws_feed_memory_to_make(uint64_t *gpu, uint64_t *pinned);

/* What is read, copied and made from now on are spans of it; NULL: of none. After
 * ws_feed_make_here. */
void ws_feed_trace(struct ws_feed *f, struct ws_trace *trace);
/* For the trace: which copies are over by now. Any thread with the GPU current. */
void ws_feed_notice(struct ws_feed *f);

/* The box that has these payloads, or a free one that will. */
struct ws_feed_box *ws_feed_box(struct ws_feed *f, const struct ws_payload *payloads, size_t n);
/* Memory for a free box, enough for its payloads and not its own. */
void ws_feed_lend(struct ws_feed_box *b, ws_devptr at, uint64_t capacity);
/* Its payloads, which nobody reads any more; the memory stays. When all of them are loaded, another
 * thread may be feeding the other box meanwhile. */
void ws_feed_drop(struct ws_feed_box *b);
/* Must it give its memory back for a larger one? That waits for all that the GPU is at. */
bool ws_feed_grows(const struct ws_feed_box *b);
/* Has payload number `loaded` brought next, in whole or not at all. Those behind it are begun.
 * Where it fails, nothing that was begun goes on. */
int ws_feed_load(struct ws_feed *f, struct ws_feed_box *b, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err);
/* Where the next payload is, when place is where this one was. */
uint64_t ws_feed_after(uint64_t place, const struct ws_payload *p);

#endif
