/* SPDX-License-Identifier: Apache-2.0 */
/* payload.h - the bytes of one broadcast, independent of their origin.
 *
 * The model side describes bytes as spans; the data planes send them. A span is either a range
 * of an open file, which a socket transport passes to sendfile(2) so that no byte goes through
 * user space, or a function that makes the bytes (synthetic weights, quantizing, merging). Bytes
 * in GPU memory have such a function too, and their address for transports that send from there. */
#ifndef WS_BASE_PAYLOAD_H
#define WS_BASE_PAYLOAD_H

#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

/* Writes bytes [at, at+n) of the span to dst. Calls come from one thread at a time, for one span in
 * rising, gapless order per payload sent; the same payload may be sent again later. */
typedef int ws_fill_fn(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err);

struct ws_gpu_address {
	uint8_t gpu[16]; /* its UUID, as the driver has it */
	uint64_t at;     /* an address in this process */
};

/* The address of the first byte; the span is contiguous. It is valid as long as the span's source.
 * The thread's current context does not change. */
typedef int ws_gpu_address_fn(void *ctx, struct ws_gpu_address *out, struct ws_err *err);

/* A strided copy from GPU memory to a span. The bytes of element i (i[d] of dims[d] on each axis)
 * are at offset `at` + size * (sum of i[d] * read[d]) of the tensor, and go to offset `to` + size *
 * (sum of i[d] * write[d]) of the span. */
enum { WS_STRIDED_DIMS = 8 };
struct ws_strided {
	ws_gpu_address_fn *gpu_address; /* of the tensor's beginning */
	void *ctx;
	uint64_t at, to;    /* bytes */
	unsigned size;      /* bytes of an element: 1, 2, 4 or 8 */
	unsigned n_dims;
	int64_t dims[WS_STRIDED_DIMS]; /* > 0 */
	/* strides in elements; write: rows of the span, falling */
	int64_t read[WS_STRIDED_DIMS], write[WS_STRIDED_DIMS];
};

struct ws_recipe_output; /* lib/transform/merge/transform_recipe.h */

struct ws_span {
	uint64_t length; /* bytes; > 0 */
	int fd;          /* >= 0: bytes [offset, offset+length) of this file; borrowed */
	uint64_t offset;
	ws_fill_fn *fill; /* used when fd < 0 */
	void *ctx;
	ws_gpu_address_fn *gpu_address; /* with a fill: where its bytes are on a GPU; NULL: not */
	/* With a fill: strided copies that put the span together from GPU memory; then the fill
	 * may be called for any range. n_strided 0: not on GPUs, or not requested. */
	const struct ws_strided *strided;
	size_t n_strided;
	/* With a fill: how to compute its bytes, for a data plane that can; then the fill may be
	 * called for any range. NULL: only the fill makes them. */
	const struct ws_recipe_output *recipe;
};

struct ws_payload {
	uint64_t length;             /* sum of the spans; may be 0 */
	const struct ws_span *spans; /* borrowed */
	size_t n_spans;
};

#endif
