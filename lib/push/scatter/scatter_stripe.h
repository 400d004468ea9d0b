/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_stripe.h - a box of one tensor that lies in a parameter as one row of
 * bytes: what sends are made of. */
#ifndef WS_PUSH_SCATTER_STRIPE_H
#define WS_PUSH_SCATTER_STRIPE_H

#include "payload.h"
#include "wsync/tool/plan.h"

struct ws_stripe {
	const struct ws_plan_tensor *tensor; /* NULL: zeros */
	int64_t at[WS_MAX_DIMS], size[WS_MAX_DIMS]; /* the box of it */
	uint64_t to;                         /* first byte in the parameter */
	uint64_t length;                     /* bytes */
	uint64_t run;                        /* bytes that lie together in the tensor */
};

/* Sets length and run by tensor, at and size, which lie within the tensor. */
void ws_stripe_measure(struct ws_stripe *s);
/* The bytes; a range of a file where they are one. The stripe must stay,
 * and its tensor have an item. */
void ws_stripe_span(struct ws_stripe *s, struct ws_span *span);
/* Of a box of so many sizes, the elements that follow each other in a tensor of these dims. */
uint64_t ws_stripe_run(unsigned n, const int64_t *size, const int64_t *dims);
uint64_t ws_stripe_offset(unsigned n, const int64_t *at, const int64_t *dims);
uint64_t ws_stripe_elements(unsigned n, const int64_t *size);

#endif
