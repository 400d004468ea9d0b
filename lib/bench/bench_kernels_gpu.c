/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels_gpu.c - times the GPU kernels of a push. Reference: a copy within the GPU's memory.
 * make check-gpu compares the results with the CPU's.
 *
 * All data is in GPU memory before the first sample. A sample waits for no other work: it is
 * several launches in a row, timed by events in their stream. Bytes are counted as in
 * bench_kernels.c. */
#include "compute.h"
#include "bench_gpu.h"

#include <stdlib.h>
#include <string.h>

enum { TIMES = 4, RANK = 64, NVFP4 = 16, B = BENCH_BLOCK };
static const int64_t WAKE_NS = WS_NS_PER_S / 4;

struct gpu_kernels {
	struct bench_gpu g;
	struct ws_compute *compute;
	const struct gpu_kernel *at; /* the kernel that is timed */
	int64_t rows;
	uint64_t count; /* weights in x */
	/* a: A and B of adapters; codes: an E4M3 code or two 4-bit codes in each byte; small: one
	 * E4M3 scale for every NVFP4 (16) weights; made: scales that a kernel computes */
	ws_devptr x, codes, a, scales, small, out, made, record;
};

struct gpu_kernel {
	const char *name;
	int (*start)(struct gpu_kernels *k, struct ws_err *err);
	double moves; /* bytes read and written for each weight */
	enum ws_scale_rule rule;
	bool ue8m0, two_step;
	int64_t rank;
	enum ws_unpack_kind kind;
};

/* ---- the kernels ----------------------------------------------------------------------------- */

static int start_fp8(struct gpu_kernels *k, struct ws_err *err)
{
	const struct ws_fp8_args args = {
		.x = k->x, .codes = k->out, .scales = k->made, .found = k->record,
		.rows = k->rows, .cols = BENCH_COLS, .stride = BENCH_COLS,
		.codes_stride = BENCH_COLS, .bn = B, .bk = B,
		.slime = k->at->rule == WS_SCALE_SLIME, .ue8m0 = k->at->ue8m0,
	};
	return ws_compute_fp8(k->compute, false, &args, k->g.stream, err);
}

static int start_merge(struct gpu_kernels *k, struct ws_err *err)
{
	const struct ws_merge_args args = {
		.w = k->x, .out = k->out, .found = k->record, .rows = k->rows, .cols = BENCH_COLS,
		.w_stride = BENCH_COLS, .out_stride = BENCH_COLS,
		.terms = { { k->a, k->a + (uint64_t)RANK * BENCH_COLS * 4, k->at->rank, 2.0f, 0 } },
		.n_terms = 1, .two_step = k->at->two_step,
	};
	return ws_compute_merge(k->compute, &args, k->g.stream, err);
}

static int start_unpack(struct gpu_kernels *k, struct ws_err *err)
{
	const enum ws_unpack_kind kind = k->at->kind;
	struct ws_unpack_args args = {
		.codes = k->codes, .scales = kind == WS_UNPACK_NVFP4 ? k->small : k->scales,
		.out = k->out, .found = k->record, .rows = k->rows, .cols = BENCH_COLS, .bn = B,
		.bk = kind == WS_UNPACK_NF4 ? BENCH_NIBBLES : B, .to_bf16 = 1,
		.offset = kind == WS_UNPACK_NVFP4 ? 0.75f : 0,
	};
	for (int i = 0; i < 16; i++)
		args.levels[i] = (float)(i - 8) / 8;
	return ws_compute_unpack(k->compute, kind, &args, k->g.stream, err);
}

static int start_halves(struct gpu_kernels *k, struct ws_err *err)
{
	enum { HALF = BENCH_COLS / 2 };
	const struct ws_gather_job job = { k->x, k->out, 2, 2, { k->rows, HALF },
		                           { BENCH_COLS, 1 }, { HALF, 1 } };
	return ws_compute_gather(k->compute, &job, k->g.stream, err);
}

static int start_transpose(struct gpu_kernels *k, struct ws_err *err)
{
	const struct ws_gather_job job = { k->x, k->out, 2, 2, { BENCH_COLS, k->rows },
		                           { 1, BENCH_COLS }, { k->rows, 1 } };
	return ws_compute_gather(k->compute, &job, k->g.stream, err);
}

static int start_scan(struct gpu_kernels *k, struct ws_err *err)
{
	const struct ws_largest_job job = { .src = k->x, .size = 2, .mask = 0x7fff, .n_dims = 1,
		                            .dims = { (int64_t)k->count }, .read = { 1 },
		                            .found = k->out };
	return ws_gpu_fill(k->g.gpu, k->out, 0, sizeof(uint32_t), k->g.stream, err) ||
	       ws_compute_largest(k->compute, &job, k->g.stream, err) ? -1 : 0;
}

static int start_copy(struct gpu_kernels *k, struct ws_err *err)
{
	return ws_gpu_copy(k->g.gpu, k->out, k->x, 2 * k->count, k->g.stream, err);
}

static const struct gpu_kernel kernels[] = {
	{ "fp8 128x128 xorl", start_fp8, 3, .rule = WS_SCALE_XORL },
	{ "fp8 128x128 slime", start_fp8, 3, .rule = WS_SCALE_SLIME },
	{ "fp8 128x128 ue8m0", start_fp8, 3, .rule = WS_SCALE_XORL, .ue8m0 = true },
	{ "lora rank 16 fold", start_merge, 4, .rank = 16 },
	{ "lora rank 16 two-step", start_merge, 4, .rank = 16, .two_step = true },
	{ "lora rank 64 fold", start_merge, 4, .rank = RANK },
	{ "unpack fp8", start_unpack, 3, .kind = WS_UNPACK_FP8 },
	{ "unpack nvfp4", start_unpack, 2.5 + 1.0 / NVFP4, .kind = WS_UNPACK_NVFP4 },
	{ "unpack nf4", start_unpack, 2.5 + 4.0 / BENCH_NIBBLES, .kind = WS_UNPACK_NF4 },
	{ "gather half of each row", start_halves, .moves = 2 },
	{ "transpose", start_transpose, .moves = 4 },
	{ "look for NaN", start_scan, .moves = 2 },
};
static const struct gpu_kernel copy = { "device copy", start_copy, .moves = 4 };

static int start_one(void *ctx, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	return k->at->start(k, err);
}

static int time_kernel(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	return bench_gpu_time(&k->g, &(struct bench_gpu_work){ start_one, k, TIMES }, ns, err);
}

static int time_copy(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	const struct gpu_kernel *at = k->at;
	k->at = &copy;
	const int rc = time_kernel(k, ns, err);
	k->at = at;
	return rc;
}

/* Keeps the GPU busy for WAKE_NS: an idle GPU raises its clocks slowly, and low clocks slow down
 * computation more than copies. Without warm-ups it does nothing. */
static int wake(const struct ws_bench_opts *opts, struct gpu_kernels *k, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(opts->warmups ? WAKE_NS : 0);
	int64_t ns;
	while (!ws_deadline_passed(until) && !ws_cancelled(opts->cancel))
		if (time_kernel(k, &ns, err) || time_copy(k, &ns, err))
			return -1;
	return 0;
}

/* ---- input of the kernels -------------------------------------------------------------------- */

static int put(struct gpu_kernels *k, ws_devptr *to, const void *from, uint64_t bytes,
               struct ws_err *err)
{
	return ws_gpu_alloc(k->g.gpu, bytes, to, err) ||
	       (from && ws_gpu_copy_in(k->g.gpu, *to, from, bytes, k->g.stream, err)) ? -1 : 0;
}

static int put_floats(struct gpu_kernels *k, ws_devptr *to, uint64_t n, struct ws_err *err)
{
	float *x = malloc(n * sizeof *x);
	if (!x)
		return ws_oom(err);
	bench_fill_floats(x, n);
	const int rc = put(k, to, x, n * sizeof *x, err) || bench_gpu_wait(&k->g, err) ? -1 : 0;
	free(x);
	return rc;
}

static int put_all(struct gpu_kernels *k, uint16_t *x, struct ws_err *err)
{
	const uint64_t n = k->count;
	uint8_t *const codes = (uint8_t *)x;
	if (put(k, &k->x, x, 2 * n, err) || bench_gpu_wait(&k->g, err))
		return -1;
	for (uint64_t i = 0; i < n; i++)
		codes[i] = (uint8_t)(codes[i] ^ ((codes[i] & 0x7f) == 0x7f)); /* no NaN of E4M3 */
	return put(k, &k->codes, codes, n, err) || put(k, &k->small, codes, n / NVFP4, err) ||
	       put_floats(k, &k->a, (uint64_t)RANK * (BENCH_COLS + (uint64_t)k->rows), err) ||
	       put_floats(k, &k->scales, n / BENCH_NIBBLES, err) ||
	       put(k, &k->out, NULL, 2 * n, err) || put(k, &k->made, NULL, n / B * 4, err) ||
	       put(k, &k->record, NULL, WS_RECORD_BYTES, err) ||
	       ws_record_clear(k->compute, k->record, k->g.stream, err) ||
	       bench_gpu_wait(&k->g, err) ? -1 : 0;
}

static void close_kernels(struct gpu_kernels *k)
{
	const ws_devptr arrays[] = { k->x,     k->codes, k->a,    k->scales,
		                     k->small, k->out,   k->made, k->record };
	for (size_t i = 0; k->g.gpu && i < sizeof arrays / sizeof *arrays; i++)
		ws_gpu_free(k->g.gpu, arrays[i]);
	ws_compute_close(k->compute);
	bench_gpu_close(&k->g);
}

static int open_kernels(struct gpu_kernels *k, const struct ws_bench_opts *opts,
                        const struct ws_bench_gpu *on, uint64_t size, struct ws_err *err)
{
	if (bench_gpu_open(&k->g, on, opts->cancel, err) ||
	    ws_compute_open(k->g.gpu, &k->compute, err))
		return -1;
	uint16_t *x = bench_weights(size, &k->rows, err);
	k->count = (uint64_t)k->rows * BENCH_COLS;
	const int rc = x ? put_all(k, x, err) : -1;
	free(x);
	return rc;
}

int ws_bench_kernels_gpu(const struct ws_bench_opts *opts, const struct ws_bench_gpu *on,
                         uint64_t size, struct ws_err *err)
{
	struct gpu_kernels k = { .at = NULL };
	int rc = open_kernels(&k, opts, on, size, err);
	const struct bench_timed timed = { .run = time_kernel, .ctx = &k };
	const struct bench_timed other = { .run = time_copy, .ctx = &k };
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels && !rc; i++) {
		k.at = &kernels[i];
		struct ws_bench_row row = { .stage = "kernels", .name = k.at->name,
			                    .detail = "gpu", .count = TIMES,
			                    .bytes = (uint64_t)((double)k.count * k.at->moves),
			                    .against = copy.name, .against_bytes = 4 * k.count };
		rc = wake(opts, &k, err) || bench_measure(opts, &row, &timed, &other, err) ? -1 : 0;
	}
	close_kernels(&k);
	return rc;
}
