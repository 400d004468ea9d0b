/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - the argument structs of the kernels; each kernel takes one by value. They compile as C11
 * and C++17, with the same layout on the host and the device.
 *
 * Addresses are integers. Matrices are row-major; a stride is the distance between two rows, in
 * elements. */
#ifndef WS_GPU_KERNELS_ARGS_H
#define WS_GPU_KERNELS_ARGS_H

#include <stdint.h>

/* Findings beside the results. Values only rise from zero, so one record serves any number of
 * launches over one tensor. */
struct ws_found {
	/* ~(row * cols + col) of the first element of a launch's matrix that is not finite; 0: all
	 * are finite. The type is atomicMax's. */
	unsigned long long bad;
	uint32_t max_delta; /* bits of the largest |delta| and |w| of a merge */
	uint32_t max_w;
};

enum { WS_FP8_TILE = 128, WS_FP8_THREADS = 256 };
struct ws_fp8_args {
	uint64_t x, codes, scales, found; /* scales: fp32, one for each block */
	int64_t rows, cols, stride, codes_stride;
	int64_t bn, bk;
	uint32_t slime, ue8m0;
};

enum { WS_MERGE_ROWS = 64, WS_MERGE_COLS = 128, WS_MERGE_THREADS = 256, WS_MERGE_TERMS = 4 };
struct ws_merge_term {
	uint64_t a, b; /* fp32, dense: [rank, cols], [rows, rank] */
	int64_t rank;
	float scale;
	uint32_t unused;
};
struct ws_merge_args {
	uint64_t w, out, found; /* w and out: bf16; out may be w */
	int64_t rows, cols, w_stride, out_stride;
	struct ws_merge_term terms[WS_MERGE_TERMS]; /* their deltas are summed in this order, then
	                                             * added to w */
	uint32_t n_terms, two_step; /* two_step: one term, whose delta is rounded first */
};

enum { WS_UNPACK_THREADS = 256, WS_UNPACK_EACH = 8 }; /* elements of a thread */
struct ws_unpack_args {
	/* scales: fp8: fp32; nvfp4: E4M3; nf4: fp32, or bytes if they are nested */
	uint64_t codes, scales, out, found;
	int64_t rows, cols;     /* the kernel of nf4 gets one row of all elements */
	int64_t bn, bk;         /* block; nf4: bk alone */
	/* fp8: rows of each matrix in a stack; each matrix has its own grid of scales.
	 * ws_compute_unpack replaces 0 by the number of all rows. */
	int64_t each;
	uint32_t to_bf16;       /* 0: to fp32 */
	uint32_t nested_block;  /* nf4: blocks under one nested scale; 0: scales are fp32 */
	/* nf4: nested scales; the 256 values of 8-bit scales */
	uint64_t nested, map;
	float offset;           /* nf4: added to each scale; nvfp4: the tensor's scale */
	float levels[16];       /* nf4 */
};

enum { WS_GATHER_DIMS = 8, WS_GATHER_THREADS = 256, WS_TRANSPOSE_TILE = 64 };
struct ws_gather_args {
	uint64_t src, dst;
	uint64_t count;               /* elements; transpose: tiles */
	int64_t dims[WS_GATHER_DIMS]; /* all > 0; innermost axes first */
	int64_t read[WS_GATHER_DIMS], write[WS_GATHER_DIMS]; /* strides in elements */
	uint32_t n_dims;
	uint32_t unused;
};

enum { WS_VALUES_CHUNK = 32 << 10, WS_VALUES_THREADS = 256 }; /* bytes for a block of threads */
struct ws_values_args {
	uint64_t src, found;        /* found: 32 bits; raised to the largest magnitude found */
	int64_t rows, cols, stride; /* elements */
	/* chunks of each row; 0: rows are short, and chunks run across them */
	uint32_t per_row;
	uint32_t mask;              /* bits of an element without its sign */
};

#endif
