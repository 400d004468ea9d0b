/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_stripe.h - a box of one tensor that is one row of bytes in a parameter. A send consists
 * of stripes. */
#ifndef WS_PUSH_SCATTER_STRIPE_H
#define WS_PUSH_SCATTER_STRIPE_H

#include "payload.h"
#include "wsync/tool/plan.h"

struct ws_stripe {
	const struct ws_plan_tensor *tensor; /* NULL: zeros */
	int64_t at[WS_MAX_DIMS], size[WS_MAX_DIMS]; /* the box in it */
	uint64_t to;                         /* first byte in the parameter */
	uint64_t length;                     /* bytes */
	uint64_t run;                        /* contiguous bytes in the tensor */
};

/* Sets length and run from tensor, at and size. The box must be inside the tensor. */
void ws_stripe_measure(struct ws_stripe *s);
/* Makes a span of the bytes: a range of a file if they are contiguous there. The stripe must stay,
 * and its tensor must have an item. */
void ws_stripe_span(struct ws_stripe *s, struct ws_span *span);
/* How many elements of a box of these sizes are contiguous in a tensor of these dims. */
uint64_t ws_stripe_run(unsigned n, const int64_t *size, const int64_t *dims);
uint64_t ws_stripe_offset(unsigned n, const int64_t *at, const int64_t *dims);
uint64_t ws_stripe_elements(unsigned n, const int64_t *size);

#endif
