/* SPDX-License-Identifier: Apache-2.0 */
/* look.h - the numbers that are computed with, for whoever sees where they lie that all of them
 * are fine, so that they need not be read.
 *
 * He tells no more than the largest magnitude: what it leaves in doubt is read and
 * judged here, which also says where a number is that is none. So it does not matter to
 * what is found who has looked. */
#ifndef WS_TRANSFORM_LOOK_H
#define WS_TRANSFORM_LOOK_H

#include "payload.h"

#include "wsync/cancel.h"
#include "wsync/dtype.h"
#include "wsync/transform.h"

struct ws_product;

struct ws_look {
	/* spans with a place or boxes, which borrow from the transform's sources */
	struct ws_payload of;
	enum ws_dtype dtype;  /* BF16, F16, F32, F8_E4M3 or F8_E8M0 */
	bool seen;            /* all of them were; and this is */
	/* the largest magnitude: bits of an element without its sign, of E8M0 all */
	uint32_t largest;
};

/* Fills in seen and largest, as far as he can. */
typedef void ws_look_fn(void *ctx, struct ws_look *looks, size_t n, const struct ws_cancel *cancel);

/* ws_transform_check, where look may be asked first; NULL: nobody is. */
int ws_transform_check_with(const struct ws_transform *t, const struct ws_plan *plan,
                            ws_look_fn *look, void *ctx, const struct ws_cancel *cancel,
                            struct ws_err *err);

/* Of these products, `fine` is set to whether look has seen that nothing in their
 * bases is to be read again. */
int ws_look_at_products(struct ws_product *const *products, size_t n, ws_look_fn *look, void *ctx,
                        const struct ws_cancel *cancel, struct ws_err *err);

#endif
