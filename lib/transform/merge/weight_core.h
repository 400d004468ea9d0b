/* SPDX-License-Identifier: Apache-2.0 */
/* weight_core.h - what reading a weight (weight.c) and merging into it (weight_merge.c) share. */
#ifndef WS_TRANSFORM_WEIGHT_CORE_H
#define WS_TRANSFORM_WEIGHT_CORE_H

#include "weight.h"

enum { WS_WEIGHT_LEAST_COLS = 16 }; /* at once, however high the rank */

/* Bytes of a scratch, a quarter of it, that these two may use: for what is read before it is
 * converted, then for B factors (half of it) and the sums of deltas (the other). */
size_t ws_weight_share(const struct ws_worker_pool *w);
/* Adds the deltas to numbers that were read, in place. */
int ws_weight_merge(struct ws_weight *w, int64_t row, int64_t n, int64_t col, int64_t m, void *x,
                    struct ws_scratch *scratch, struct ws_err *err);

#endif
