/* SPDX-License-Identifier: Apache-2.0 */
/* serve_boxes.h - copies between a tensor and the box of it that one rank holds, and converts
 * elements (serve_convert.c).
 *
 * Both sides are dense row-major arrays. A box of the tensor corresponds to a box of the local
 * array, with the same elements in the same order, or with the last two axes swapped. All counts
 * are in bytes, and the bytes of an element are one more axis, so a stream may be cut anywhere. */
#ifndef WS_ENDPOINT_SERVE_BOXES_H
#define WS_ENDPOINT_SERVE_BOXES_H

#include "wsync/tool/layout.h"

enum { WS_SERVE_AXES = WS_MAX_DIMS + 1 };

struct ws_serve_side {
	unsigned n_dims;                /* at least 1 */
	uint64_t at[WS_SERVE_AXES], size[WS_SERVE_AXES]; /* the box */
	uint64_t stride[WS_SERVE_AXES];
	uint64_t run;                   /* length of a contiguous piece of the box, in bytes */
};

struct ws_serve_boxes {
	struct ws_serve_side whole, local;
	uint64_t total, bytes;          /* size of the tensor; size of the box, 0: no box */
};

/* whole, local: the dims of the tensor and of the local array. size: bytes of one element.
 * transposed: the last two axes of the local array are swapped. */
void ws_serve_boxes_make(struct ws_serve_boxes *b, unsigned n_whole, const int64_t *whole,
                         const struct ws_box *from, unsigned n_local, const int64_t *local,
                         const struct ws_box *to, unsigned size, bool transposed);

/* bytes is [at, at+n) of the whole tensor. put copies its bytes in the box to the local array; get
 * copies them from the local array. All other bytes stay unchanged. */
void ws_serve_boxes_put(const struct ws_serve_boxes *b, uint64_t at, const uint8_t *bytes, size_t n,
                        uint8_t *local);
void ws_serve_boxes_get(const struct ws_serve_boxes *b, uint64_t at, uint8_t *bytes, size_t n,
                        const uint8_t *local);
/* Returns the offset in the whole tensor of byte k < b->bytes of the box. */
uint64_t ws_serve_boxes_whole(const struct ws_serve_boxes *b, uint64_t k);

/* ---- types ---- */

/* Converts elements like torch's copy_: to float64, float32, bfloat16, float16, float8_e4m3fn and
 * float8_e5m2, from any of these and from integers. Rounds to nearest, ties to even. Any type
 * converts to itself. */
bool ws_serve_converts(enum ws_dtype to, enum ws_dtype from);
void ws_serve_convert(enum ws_dtype to, void *dst, enum ws_dtype from, const void *src, size_t n);

#endif
