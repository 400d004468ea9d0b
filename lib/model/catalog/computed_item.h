/* SPDX-License-Identifier: Apache-2.0 */
/* computed_item.h - items whose bytes are computed, as the model layer sees them.
 *
 * lib/transform embeds struct ws_computed_item in a struct of its own. A caller that reads
 * several such items announces them in order with begin(); they are then computed ahead of it. */
#ifndef WS_MODEL_COMPUTED_ITEM_H
#define WS_MODEL_COMPUTED_ITEM_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

struct ws_computed_item {
	const struct ws_computed_item_ops *ops;
};

struct ws_formula_out; /* lib/transform/merge/formula.h */
struct ws_making; /* one reader's pass over announced items; opaque */

struct ws_computed_item_ops {
	/* Reads bytes [at, at+n) of one item without announcement; ascending reads are fast.
	 * Any thread. */
	int (*read)(const struct ws_computed_item *m, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	/* Appends a description that is unique to this transform, for the digest of a plan. */
	void (*describe)(const struct ws_computed_item *m, struct ws_buf *out);
	/* The formula of the bytes, for a caller that computes them itself; *out NULL: only
	 * this code can. One thread. */
	int (*formula)(const struct ws_computed_item *m, const struct ws_formula_out **out,
	               struct ws_err *err);

	/* Announces n items with these operations: one thread at a time reads each from its
	 * beginning, in this order. Other reads are correct but slow. Never blocks. */
	int (*begin)(const struct ws_computed_item *const *m, size_t n, struct ws_making **out,
	             struct ws_err *err);
	int (*next)(struct ws_making *g, size_t item, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	void (*end)(struct ws_making *g); /* does not block */
};

#endif
