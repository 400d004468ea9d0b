/* SPDX-License-Identifier: Apache-2.0 */
/* feed_steps.h - what is to be done for a bucket, in order. */
#ifndef WS_SYNC_FEED_STEPS_H
#define WS_SYNC_FEED_STEPS_H

#include "cuda.h"
#include "payload.h"

enum ws_feed_kind {
	WS_FEED_READ,   /* bytes of a span to the GPU */
	WS_FEED_PLACED, /* the same, where they may be there already; becomes a READ where they are not */
	WS_FEED_END     /* of a payload */
};

struct ws_feed_step {
	enum ws_feed_kind kind;
	const struct ws_span *span;
	uint64_t from, n; /* bytes of the span */
	ws_devptr to;
};

struct ws_feed_steps {
	struct ws_feed_step *list;
	size_t n, cap;
};

/* All of these payloads, the first of them at `at`. */
int ws_feed_steps_make(const struct ws_payload *payloads, size_t n, ws_devptr at, struct ws_feed_steps **out,
                       struct ws_err *err);
void ws_feed_steps_free(struct ws_feed_steps *s); /* NULL is fine */
/* The first step of payload i. */
size_t ws_feed_steps_find(const struct ws_feed_steps *s, size_t i);

#endif
