/* SPDX-License-Identifier: Apache-2.0 */
/* computed_item.h - items whose bytes are computed, as the rest of the model side sees them.
 *
 * Who computes (lib/transform) puts a struct of his own behind struct ws_computed_item. Whoever
 * will read several made items says so beforehand and in which order; they are then made ahead of
 * him. */
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
struct ws_making; /* one reader's passage through several made items; opaque */

struct ws_computed_item_ops {
	/* Bytes [at, at+n) of one item, without notice: rising calls are fast. Any thread. */
	int (*read)(const struct ws_computed_item *m, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	/* Appends what tells this recipe from every other one, for the digest of a plan. */
	void (*describe)(const struct ws_computed_item *m, struct ws_buf *out);
	/* How its bytes come about, for whoever computes them himself; *out NULL:
	 * only this can. One thread. */
	int (*formula)(const struct ws_computed_item *m, const struct ws_formula_out **out,
	               struct ws_err *err);

	/* These n items, all with these operations, will be read by one thread at a time, each
	 * from its beginning, in this order; other reads are slow and not wrong. Never waits. */
	int (*begin)(const struct ws_computed_item *const *m, size_t n, struct ws_making **out,
	             struct ws_err *err);
	int (*next)(struct ws_making *g, size_t item, uint64_t at, void *dst, size_t n,
	            struct ws_err *err);
	void (*end)(struct ws_making *g); /* waits for nobody */
};

#endif
