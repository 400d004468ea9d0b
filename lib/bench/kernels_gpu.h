/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_gpu.h - a GPU's kernels with their inputs: kernels_gpu.c times them,
 * kernels_gpu_check.c holds their bytes against the CPU's. */
#ifndef WS_BENCH_KERNELS_GPU_H
#define WS_BENCH_KERNELS_GPU_H

#include "compute.h"
#include "gpu.h"
#include "matrix.h"

enum { GPU_RANK = 64, GPU_SPANS = 64, GPU_NVFP4 = 16 };

enum gpu_recipe {
	GPU_FP8,
	GPU_FP8_WHOLE,
	GPU_MERGE,
	GPU_CHAIN,
	GPU_UNPACK,
	GPU_HALVES,
	GPU_TURN,
	GPU_FLATTEN,
	GPU_LARGEST
};

struct gpu_kernel {
	const char *name;
	enum gpu_recipe recipe;
	enum ws_scale_rule rule;
	bool ue8m0, two_step;
	int64_t rank;
	enum ws_unpack_kind kind;
	double moves; /* bytes for each number */
};

struct gpu_kernels {
	struct bench_gpu g;
	struct ws_compute *compute;
	const struct gpu_kernel *at;  /* the one at hand */
	/* here */
	struct bench_matrix m;
	/* a byte for each number: E4M3, or two of 4 bits; none is NaN */
	uint8_t *codes;
	float *a, *b, *scales;        /* scales: one for each BENCH_NIBBLES numbers */
	/* there */
	/* small: one byte for each GPU_NVFP4 numbers */
	ws_devptr x, on_codes, on_a, on_b, on_scales, small;
	ws_devptr out, made, record;  /* made: scales that a kernel finds */
	ws_devptr scratch, spans;
	uint64_t scratch_bytes, chunks;
};

extern const float bench_nf4_levels[16];
static const float BENCH_TENSOR_SCALE = 0.75f;
/* Span i of the bucket of spans: so many numbers from its beginning in x, and its
 * place is the other end's. */
void bench_gpu_span(const struct gpu_kernels *k, unsigned i, size_t *from, size_t *to,
                    size_t *count);

/* After one more run: bytes of its result that differ from the CPU's. A bench_timed's check. */
int bench_gpu_check(void *ctx, int64_t *errors, struct ws_err *err);
/* Asks the stream for the kernel at hand, once. */
int bench_gpu_start(void *ctx, struct ws_err *err);

#endif
