/* SPDX-License-Identifier: Apache-2.0 */
/* factor.h - a part of a low-rank factor, however it is stored, as packed fp32. */
#ifndef WS_TRANSFORM_FACTOR_H
#define WS_TRANSFORM_FACTOR_H

#include "lora.h"

#include "wsync/tool/buf.h"

/* Element (i, j) is element at + i * row + j * col of the item. */
struct ws_factor {
	const struct ws_item *item;
	uint64_t at;
	int64_t row, col;
};

struct ws_factor ws_delta_a(const struct ws_delta *d); /* rank x cols */
struct ws_factor ws_delta_b(const struct ws_delta *d); /* rows x rank */

/* A rectangle of rows [row, row+n) and columns [col, col+m). */
struct ws_rect {
	int64_t row, n, col, m;
};

/* Reads a rectangle into out[n][m], the layout of lowrank.h. Fails with WS_EINPUT, tensor, position
 * and file if an element is not finite. buf belongs to the thread and grows to 128 KiB. */
int ws_factor_read(const struct ws_factor *f, const struct ws_rect *r, float *out,
                   struct ws_buf *buf, struct ws_err *err);

#endif
