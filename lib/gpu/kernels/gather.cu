/* SPDX-License-Identifier: Apache-2.0 */
/* gather.cu - strided copies and transposes.
 *
 *   gather_N     strided copy, N bytes an element; compute_gather.c merges axes and widens
 *                elements as far as possible, so that a slice of rows moves 16 bytes a thread
 *   transpose_N  axis 0 is contiguous in src, axis 1 in dst; goes through tiles of 64 x 64 in
 *                shared memory */
#include "numbers.h"

enum { THREADS = WS_GATHER_THREADS, TILE = WS_TRANSPOSE_TILE };

struct offsets {
	int64_t read, write;
};

/* Offsets of element i over the axes from `first` on. 32-bit division is several times cheaper,
 * and copies of 2^32 elements are rare. */
INLINE struct offsets offsets_of(const struct ws_gather_args a, uint64_t i, uint32_t first,
                                 uint32_t is_small)
{
	struct offsets o;
	o.read = o.write = 0;
	for (uint32_t d = first; d < a.n_dims; d++) {
		const uint64_t n = (uint64_t)a.dims[d];
		const uint64_t rest = is_small ? (uint32_t)i / (uint32_t)n : i / n;
		const int64_t at = (int64_t)(i - rest * n);
		o.read += at * a.read[d];
		o.write += at * a.write[d];
		i = rest;
	}
	return o;
}

#define GATHER_KERNEL(name, type) \
	KERNEL(WS_GATHER_THREADS) name(const struct ws_gather_args a) \
	{ \
		const uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; \
		if (i >= a.count) \
			return; \
		const struct offsets o = offsets_of(a, i, 0, a.count <= 0xffffffffu); \
		((type *)(uintptr_t)a.dst)[o.write] = ((const type *)(uintptr_t)a.src)[o.read]; \
	}
GATHER_KERNEL(gather_1, uint8_t)
GATHER_KERNEL(gather_2, uint16_t)
GATHER_KERNEL(gather_4, uint32_t)
GATHER_KERNEL(gather_8, uint2)
GATHER_KERNEL(gather_16, uint4)

/* Rows of the tile have one spare element, so that a column is spread over the banks. */
#define TRANSPOSE_KERNEL(name, type) \
	KERNEL(WS_GATHER_THREADS) name(const struct ws_gather_args a)                              \
	{                                                                                          \
		__shared__ type tile[TILE][TILE + 1];                                              \
		const uint64_t x_tiles = ((uint64_t)a.dims[0] + TILE - 1) / TILE;                  \
		const uint64_t y_tiles = ((uint64_t)a.dims[1] + TILE - 1) / TILE;                  \
		const uint64_t flat = blockIdx.x / x_tiles;                                        \
		const int64_t x = (int64_t)(blockIdx.x % x_tiles) * TILE,                          \
			      y = (int64_t)(flat % y_tiles) * TILE;                                \
		const struct offsets o = offsets_of(a, flat / y_tiles, 2, 1);                      \
		const type *src = (const type *)(uintptr_t)a.src + o.read;                         \
		type *dst = (type *)(uintptr_t)a.dst + o.write;                                    \
		const int64_t lane = threadIdx.x % TILE;                                           \
		for (int64_t r = threadIdx.x / TILE; r < TILE; r += THREADS / TILE)                \
			if (y + r < a.dims[1] && x + lane < a.dims[0])                             \
				tile[r][lane] = src[(y + r) * a.read[1] + x + lane];               \
		__syncthreads();                                                                   \
		for (int64_t r = threadIdx.x / TILE; r < TILE; r += THREADS / TILE)                \
			if (x + r < a.dims[0] && y + lane < a.dims[1])                             \
				dst[(x + r) * a.write[0] + y + lane] = tile[lane][r];              \
	}
TRANSPOSE_KERNEL(transpose_1, uint8_t)
TRANSPOSE_KERNEL(transpose_2, uint16_t)
TRANSPOSE_KERNEL(transpose_4, uint32_t)
TRANSPOSE_KERNEL(transpose_8, uint2)
