/* SPDX-License-Identifier: Apache-2.0 */
/* stripe.h - a box of one tensor that is one row of bytes in a server's runtime parameter. The
 * bytes of a parameter at a rank are a list of stripes. */
#ifndef WS_MODEL_STRIPE_H
#define WS_MODEL_STRIPE_H

#include "payload.h"
#include "wsync/tool/layout.h"
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
/* Copies bytes [at, at + n) of the stripe to dst. */
int ws_stripe_read(const struct ws_stripe *s, uint64_t at, void *dst, size_t n, struct ws_err *err);

struct ws_stripes {
	struct ws_stripe *items;
	size_t n, cap;
};

/* The tensor of a part; NULL: none. */
typedef const struct ws_plan_tensor *ws_stripe_find_fn(const void *ctx, const struct ws_part *part);

/* Adds the stripes of bytes [lo, hi) of a parameter at that rank, in order. Bytes behind all parts
 * are padding: a stripe of zeros. WS_EREFUSED: a tensor is missing, or is not one row of bytes
 * there, or goes over hi. */
int ws_stripes_add(struct ws_stripes *out, const struct ws_layout *l, const struct ws_param *p,
                   unsigned rank, uint64_t lo, uint64_t hi, ws_stripe_find_fn *find,
                   const void *ctx, struct ws_err *err);

#endif
