/* SPDX-License-Identifier: Apache-2.0 */
/* strided_read.h - copies a strided box of a source tensor to a strided box of memory.
 *
 * The source is read in its own order, in few large calls: contiguous data at once, nearly
 * contiguous data with the gaps. Transposing happens in memory, block by block. */
#ifndef WS_MODEL_STRIDED_READ_H
#define WS_MODEL_STRIDED_READ_H

#include "wsync/tool/source.h"
#include "wsync/dtype.h"

struct ws_strided_read {
	const struct ws_source *source;
	const struct ws_tensor *from;
	uint64_t at;               /* first element of `from` */
	unsigned n_dims;
	unsigned size;             /* bytes of an element: 1, 2, 4 or 8 */
	int64_t dims[WS_MAX_DIMS]; /* all > 0 */
	int64_t read[WS_MAX_DIMS]; /* strides in `from`, in elements; > 0 for axes longer than 1 */
	int64_t write[WS_MAX_DIMS]; /* strides in dst, likewise */
	uint8_t *dst;
};

enum { WS_GATHER_BLOCK = 256 << 10 }; /* fits the second-level cache */

/* block: WS_GATHER_BLOCK bytes of scratch memory. */
int ws_strided_read(const struct ws_strided_read *g, uint8_t *block, struct ws_err *err);

/* Copies between strided boxes in memory. */
struct ws_spread_axis {
	int64_t n, from, to; /* strides in bytes; > 0 for axes longer than 1 */
};

struct ws_spread {
	unsigned size;       /* bytes of an element: 1, 2, 4 or 8 */
	unsigned n;          /* axes, in any order; 0: one element */
	struct ws_spread_axis axes[WS_MAX_DIMS];
};

/* The boxes must not overlap. */
void ws_spread(const struct ws_spread *s, const uint8_t *src, uint8_t *dst);

#endif
