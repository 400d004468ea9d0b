/* SPDX-License-Identifier: Apache-2.0 */
/* transpose.h - copying between strided boxes in memory. */
#ifndef WS_MODEL_TRANSPOSE_H
#define WS_MODEL_TRANSPOSE_H

#include "wsync/dtype.h"

struct ws_spread_axis {
	int64_t n, from, to; /* strides in bytes; > 0 where there is a second */
};

struct ws_spread {
	unsigned size;       /* bytes of an element: 1, 2, 4 or 8 */
	unsigned n;          /* axes, in any order; 0: one element */
	struct ws_spread_axis axes[WS_MAX_DIMS];
};

/* The boxes do not overlap. */
void ws_spread(const struct ws_spread *s, const uint8_t *src, uint8_t *dst);

#endif
