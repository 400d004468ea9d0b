/* SPDX-License-Identifier: Apache-2.0 */
/* feed_formula.h - a formula (lib/transform) as steps of a feed, a band of rows at a time, so
 * that however large a weight is, the same scratch does. */
#ifndef WS_STAGING_FEED_FORMULA_H
#define WS_STAGING_FEED_FORMULA_H

#include "feed_steps.h"

#include <stdbool.h>

enum { WS_FEED_SCRATCH = 192 << 20, WS_FEED_RECORDS = 32, WS_FEED_RECORD = 32 };

/* Can it be followed in so much scratch, wherever its results go? */
bool ws_feed_formula_fits(const struct ws_formula *f, uint64_t scratch);
/* Steps of m, which is the last of s->makings. */
int ws_feed_formula_add(struct ws_feed_steps *s, const struct ws_feed_making *m, ws_devptr scratch,
                        uint64_t bytes, struct ws_err *err);

#endif
