/* SPDX-License-Identifier: Apache-2.0 */
/* feed_steps.h - what is to be done for a bucket, in order: bytes to be read to the GPU, and
 * what is made of them there. */
#ifndef WS_STAGING_FEED_STEPS_H
#define WS_STAGING_FEED_STEPS_H

#include "compute.h"
#include "payload.h"

#include "formula.h"

enum ws_feed_kind {
	WS_FEED_READ,   /* bytes of a span to the GPU */
	/* the same, where they may be there already; becomes a READ where they are not */
	WS_FEED_PLACED,
	WS_FEED_END,    /* of a payload */
	WS_FEED_BEGIN,  /* of a making, whose record is cleared */
	WS_FEED_TURN,   /* of a half of the scratch, for the band whose steps follow */
	WS_FEED_UNPACK,
	WS_FEED_MERGE,
	WS_FEED_FP8,
	WS_FEED_FINISH  /* of a making, whose record is copied out */
};

struct ws_feed_step {
	enum ws_feed_kind kind;
	union {
		struct {
			const struct ws_span *span;
			uint64_t from, n; /* bytes of the span */
			ws_devptr to;
		};
		size_t making;
		unsigned turn;
		struct ws_unpack_job unpack;
		struct ws_merge_job merge;
		struct ws_fp8_job fp8;
	};
};

/* One formula that is followed, and where its results go: numbers or codes, and scales. */
struct ws_feed_making {
	const struct ws_formula *formula;
	const struct ws_span *spans[2]; /* NULL: not in this bucket */
	ws_devptr to[2];
	ws_devptr record;               /* of the bench's, number making % WS_FEED_RECORDS */
};

struct ws_feed_steps {
	struct ws_feed_step *list;
	size_t n, cap;
	struct ws_feed_making *makings;
	size_t n_makings, cap_makings;
	unsigned turn;                  /* the half of the scratch that the last band has */
};

struct ws_feed_desk;

/* All of these payloads, the first of them at `at`. desk: what formulas are followed with; NULL:
 * none is, and their bytes are had as others are. */
int ws_feed_steps_make(const struct ws_payload *payloads, size_t n, ws_devptr at,
                       const struct ws_feed_desk *desk, struct ws_feed_steps **out,
                       struct ws_err *err);
void ws_feed_steps_free(struct ws_feed_steps *s); /* NULL is fine */
/* The first step of payload i. */
size_t ws_feed_steps_find(const struct ws_feed_steps *s, size_t i);

int ws_feed_steps_add(struct ws_feed_steps *s, const struct ws_feed_step *step, struct ws_err *err);
/* Bytes [from, from+n) of a span. */
int ws_feed_steps_read(struct ws_feed_steps *s, const struct ws_span *span, uint64_t from,
                       uint64_t n, ws_devptr to, struct ws_err *err);

#endif
