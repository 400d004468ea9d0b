/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - what each kernel is told: its one argument, a struct that compute.c fills and the kernel
 * takes by value. C11 and C++17 alike, and the same layout on the host and on the device.
 *
 * Addresses are numbers. Matrices are row-major; a stride is the distance of two rows, in
 * elements. */
#ifndef WS_GPU_KERNELS_ARGS_H
#define WS_GPU_KERNELS_ARGS_H

#include <stdint.h>

/* What kernels find beside their results. All of it only rises, so that zeros begin it and one
 * record serves any number of launches over one tensor. */
struct ws_found {
	/* ~(first element that is no finite number, row * cols + col); 0:
	 * none. The type is atomicMax's. */
	unsigned long long bad;
	uint32_t max_delta; /* bits of the largest |delta| and |w| of a merge */
	uint32_t max_w;
};

enum { WS_FP8_TILE = 128, WS_FP8_THREADS = 256 };
struct ws_fp8_args {
	uint64_t x, codes, scales, found;
	int64_t rows, cols, stride, codes_stride;
	int64_t bn, bk;
	int64_t first_row; /* of x in its tensor, for `found` */
	uint32_t slime, ue8m0;
};

enum { WS_MERGE_ROWS = 64, WS_MERGE_COLS = 128, WS_MERGE_THREADS = 256, WS_MERGE_PAIRS = 4 };
struct ws_merge_args {
	uint64_t w, out, found;
	int64_t rows, cols, w_stride, out_stride;
	struct {
		uint64_t a, b;
		int64_t rank;
		float scale;
		uint32_t unused;
	} pairs[WS_MERGE_PAIRS]; /* whose deltas are added up, in this order, before w is */
	uint32_t n_pairs, two_step;
};

enum { WS_UNPACK_THREADS = 256, WS_UNPACK_EACH = 8 }; /* elements of a thread */
struct ws_unpack_args {
	uint64_t codes, scales, out, found;
	int64_t rows, cols;     /* nf4: one row */
	int64_t bn, bk;         /* block; nf4: bk alone */
	/* fp8: rows of one matrix of a stack, which has a grid of scales for itself */
	int64_t each;
	uint32_t to_bf16;       /* or fp32 */
	uint32_t nested_block;  /* nf4: blocks under one nested scale; 0: scales are fp32 */
	/* nf4: nested scales; the 256 numbers that 8-bit scales stand for */
	uint64_t nested, map;
	float offset;           /* nf4: added to each scale; nvfp4: the tensor's scale */
	float levels[16];       /* nf4 */
};

enum { WS_GATHER_DIMS = 8, WS_GATHER_THREADS = 256, WS_TURN_TILE = 64 };
struct ws_gather_args {
	uint64_t src, dst;
	uint64_t count;               /* elements; turn: tiles */
	int64_t dims[WS_GATHER_DIMS]; /* all > 0; of the innermost axes first */
	int64_t read[WS_GATHER_DIMS], write[WS_GATHER_DIMS]; /* strides in elements */
	uint32_t n_dims;
	uint32_t unused;
};

enum { WS_VALUES_CHUNK = 32 << 10, WS_VALUES_THREADS = 256 }; /* bytes of a block of threads */
struct ws_values_args {
	uint64_t src, found;        /* found: 32 bits, which are raised to the largest */
	int64_t rows, cols, stride; /* elements */
	/* chunks of each row; 0: rows are short, and chunks run across them */
	uint32_t per_row;
	uint32_t mask;              /* of an element: all but its sign */
};

enum { WS_FLATTEN_CHUNK = 32 << 10, WS_FLATTEN_THREADS = 256 };
struct ws_flatten_span {
	uint64_t src, dst, bytes;
	uint64_t first; /* chunk: those of the spans before it */
};
struct ws_flatten_args {
	uint64_t spans, n_spans;
};

#endif
