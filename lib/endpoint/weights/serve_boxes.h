/* SPDX-License-Identifier: Apache-2.0 */
/* serve_boxes.h - copying between a tensor and the box of it that one rank holds.
 *
 * Both sides are dense row-major arrays; a box of the one lies in a box of the other, with the same
 * number of elements in the same order, or with the last two axes swapped. Everything here counts
 * bytes, the bytes of an element being one more axis, so that a stream may be cut anywhere. At the
 * end: conversion of elements (serve_convert.c). */
#ifndef WS_ENDPOINT_SERVE_BOXES_H
#define WS_ENDPOINT_SERVE_BOXES_H

#include "wsync/tool/layout.h"

enum { WS_SERVE_AXES = WS_MAX_DIMS + 1 };

struct ws_serve_side {
	unsigned n_dims;                /* at least 1 */
	uint64_t at[WS_SERVE_AXES], size[WS_SERVE_AXES]; /* the box */
	uint64_t stride[WS_SERVE_AXES];
	uint64_t run;                   /* bytes of the box that follow each other without a gap */
};

struct ws_serve_boxes {
	struct ws_serve_side whole, local;
	uint64_t total, bytes;          /* of the whole tensor; of the box, 0: nothing is here */
};

/* dims: those of the whole tensor and of the local array; size: bytes of one element;
 * transposed: the last two axes of the local array are those of the tensor, swapped. */
void ws_serve_boxes_make(struct ws_serve_boxes *b, unsigned n_whole, const int64_t *whole,
                         const struct ws_box *from, unsigned n_local, const int64_t *local,
                         const struct ws_box *to, unsigned size, bool transposed);

/* Bytes [at, at+n) of the whole tensor: those in the box go to their place in the local array, or
 * come from there. The rest is left alone. */
void ws_serve_boxes_put(const struct ws_serve_boxes *b, uint64_t at, const uint8_t *bytes, size_t n,
                        uint8_t *local);
void ws_serve_boxes_get(const struct ws_serve_boxes *b, uint64_t at, uint8_t *bytes, size_t n,
                        const uint8_t *local);
/* Where in the whole tensor byte k of the box lies; it has so many. */
uint64_t ws_serve_boxes_whole(const struct ws_serve_boxes *b, uint64_t k);

/* ---- types ---- */

/* Elements of one type as elements of another, as torch's copy_ makes them: to float64, float32,
 * bfloat16, float16, float8_e4m3fn and float8_e5m2, from any of them and from integers, rounded to
 * nearest, ties to even. Any type to itself. */
bool ws_serve_converts(enum ws_dtype to, enum ws_dtype from);
void ws_serve_convert(enum ws_dtype to, void *dst, enum ws_dtype from, const void *src, size_t n);

#endif
