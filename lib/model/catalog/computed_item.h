/* SPDX-License-Identifier: Apache-2.0 */
/* computed_item.h - items whose bytes are computed, as an interface for the model side.
 *
 * The implementation (lib/transform) embeds struct ws_computed_item in a struct of its own. Several
 * items are announced in order, and computed ahead of their reader. */
#ifndef WS_MODEL_COMPUTED_ITEM_H
#define WS_MODEL_COMPUTED_ITEM_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

struct ws_computed_item {
	const struct ws_computed_item_ops *ops;
};

struct ws_recipe_output; /* lib/transform/merge/transform_recipe.h */
struct ws_computed_read; /* one reader's pass over several computed items; opaque */

struct ws_computed_item_ops {
	/* Reads bytes [at, at+n) of one item, unannounced; sequential reads are fast. Any
	 * thread. */
	int (*read)(const struct ws_computed_item *m, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	/* Appends everything that the bytes depend on, for the digest of a plan. */
	void (*describe)(const struct ws_computed_item *m, struct ws_buf *out);
	/* How to compute the bytes of an item elsewhere; *out NULL: only `read` can. One thread. */
	int (*recipe)(const struct ws_computed_item *m, const struct ws_recipe_output **out,
	              struct ws_err *err);

	/* Announces n items, all with these operations. One thread at a time reads each from its
	 * beginning, in this order; other reads are slow but correct. Never waits. */
	int (*begin)(const struct ws_computed_item *const *m, size_t n,
	             struct ws_computed_read **out, struct ws_err *err);
	int (*next)(struct ws_computed_read *g, size_t item, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	void (*end)(struct ws_computed_read *g); /* never waits */
};

#endif
