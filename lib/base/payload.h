/* SPDX-License-Identifier: Apache-2.0 */
/* payload.h - what one broadcast carries, said without saying who made it.
 *
 * The model side describes bytes as spans; the data planes send them. A span is either a range
 * of an open file, which a socket transport hands to sendfile(2) so that no byte passes through
 * user space, or a function that makes the bytes (synthetic weights, quantizing, merging). Bytes
 * that are in a GPU's memory are made too, for whoever wants them elsewhere, and say where they
 * are, for whoever does not. */
#ifndef WS_BASE_PAYLOAD_H
#define WS_BASE_PAYLOAD_H

#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

/* Writes bytes [at, at+n) of the span to dst. Calls come from one thread at a time, for one span in
 * rising, gapless order per payload sent; the same payload may be sent again later. */
typedef int ws_fill_fn(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err);

struct ws_place {
	uint8_t gpu[16]; /* its UUID, as the driver has it */
	uint64_t at;     /* an address, for this process on that GPU */
};

/* Where the span begins; the rest lies behind it. The address is good as long as what the span
 * borrows from, and what context this thread has stays as it is. */
typedef int ws_place_fn(void *ctx, struct ws_place *out, struct ws_err *err);

/* A box of a tensor that is in a GPU's memory, and where in a span it goes: of element i, i[d] of
 * dims[d] on each axis, the bytes are those `at` + size * (sum of i[d] * read[d]) behind where the
 * tensor begins, and become those `to` + size * (sum of i[d] * write[d]) of the span. */
enum { WS_STRIDED_DIMS = 8 };
struct ws_strided {
	ws_place_fn *place; /* of the tensor's beginning */
	void *ctx;
	uint64_t at, to;    /* bytes */
	unsigned size;      /* bytes of an element: 1, 2, 4 or 8 */
	unsigned n_dims;
	int64_t dims[WS_STRIDED_DIMS]; /* > 0 */
	/* strides in elements; write: rows of the span, falling */
	int64_t read[WS_STRIDED_DIMS], write[WS_STRIDED_DIMS];
};

struct ws_formula_out; /* lib/transform/merge/formula.h */

struct ws_span {
	uint64_t length; /* bytes; > 0 */
	int fd;          /* >= 0: bytes [offset, offset+length) of this file; borrowed */
	uint64_t offset;
	ws_fill_fn *fill; /* used when fd < 0 */
	void *ctx;
	ws_place_fn *place; /* with a fill: its bytes are on a GPU already; NULL: they are not */
	/* With a fill: its bytes are on GPUs, but not as they lie in the span, which these
	 * boxes make up; then the fill may be asked for any of them. n_boxes 0: they are not,
	 * or nobody asked for boxes. */
	const struct ws_strided *boxes;
	size_t n_boxes;
	/* With a fill: how its bytes come about, for a data plane that said that it computes
	 * them; then the fill may be asked for any of them. NULL: only the fill makes them. */
	const struct ws_formula_out *formula;
};

struct ws_payload {
	uint64_t length;             /* sum of the spans; may be 0 */
	const struct ws_span *spans; /* borrowed */
	size_t n_spans;
};

#endif
