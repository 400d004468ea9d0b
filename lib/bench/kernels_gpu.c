/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_gpu.c - what a push does to numbers on a GPU, against that GPU's
 * own copy of as many bytes.
 *
 * Everything is in its memory before the first sample, and nothing is waited for within one:
 * launches in a row, timed by marks in their stream. Bytes are those that must move, each that
 * is read or written, once, as in kernels.c. */
#include "kernels_gpu.h"

#include "kernels/args.h"

#include <stdlib.h>
#include <string.h>

enum { TIMES = 4, NESTED = 0 };
static const uint64_t SCRATCH = 64 << 20;
static const int64_t WAKE_NS = WS_NS_PER_S / 4;

const float bench_nf4_levels[16] = { -1.0f, -0.7f, -0.53f, -0.4f, -0.28f, -0.18f, -0.09f, 0.0f,
	                             0.08f, 0.16f, 0.25f,  0.34f, 0.44f,  0.56f,  0.72f,  1.0f };

static const struct gpu_kernel table[] = {
	{ .name = "fp8 128x128 xorl", .recipe = GPU_FP8, .rule = WS_SCALE_XORL, .moves = 3 },
	{ .name = "fp8 128x128 slime", .recipe = GPU_FP8, .rule = WS_SCALE_SLIME, .moves = 3 },
	{ .name = "fp8 128x128 ue8m0",
	  .recipe = GPU_FP8,
	  .rule = WS_SCALE_XORL,
	  .ue8m0 = true,
	  .moves = 3 },
	{ .name = "fp8 per tensor", .recipe = GPU_FP8_WHOLE, .rule = WS_SCALE_XORL, .moves = 3 },
	{ .name = "lora rank 16 fold", .recipe = GPU_MERGE, .rank = 16, .moves = 4 },
	{ .name = "lora rank 16 two-step",
	  .recipe = GPU_MERGE,
	  .rank = 16,
	  .two_step = true,
	  .moves = 4 },
	{ .name = "lora rank 64 fold", .recipe = GPU_MERGE, .rank = 64, .moves = 4 },
	{ .name = "lora rank 16 to fp8", .recipe = GPU_CHAIN, .rank = 16, .moves = 3 },
	{ .name = "unpack fp8", .recipe = GPU_UNPACK, .kind = WS_UNPACK_FP8, .moves = 3 },
	{ .name = "unpack nvfp4",
	  .recipe = GPU_UNPACK,
	  .kind = WS_UNPACK_NVFP4,
	  .moves = 2.5 + 1.0 / 16 },
	{ .name = "unpack nf4",
	  .recipe = GPU_UNPACK,
	  .kind = WS_UNPACK_NF4,
	  .moves = 2.5 + 4.0 / 64 },
	{ .name = "gather half of each row", .recipe = GPU_HALVES, .moves = 2 },
	{ .name = "transpose", .recipe = GPU_TURN, .moves = 4 },
	{ .name = "flatten", .recipe = GPU_FLATTEN, .moves = 4 },
	{ .name = "look for NaN", .recipe = GPU_LARGEST, .moves = 2 },
};

/* ---- each of them ---- */

static struct ws_matrix matrix_of(const struct gpu_kernels *k)
{
	return (struct ws_matrix){ k->x, WS_DTYPE_BF16, k->m.rows, BENCH_COLS, BENCH_COLS };
}

static struct ws_fp8_job fp8_job(const struct gpu_kernels *k, bool whole)
{
	return (struct ws_fp8_job){
		.x = matrix_of(k), .rule = k->at->rule, .ue8m0 = k->at->ue8m0,
		.block = { whole ? k->m.rows : BENCH_BLOCK, whole ? BENCH_COLS : BENCH_BLOCK },
		.codes = k->out, .codes_stride = BENCH_COLS, .scales = k->made, .record = k->record,
	};
}

static struct ws_merge_job merge_job(const struct gpu_kernels *k)
{
	return (struct ws_merge_job){
		.w = matrix_of(k),
		.pairs = { { k->on_a, k->on_b, k->at->rank, 2.0f } },
		.n_pairs = 1,
		.two_step = k->at->two_step,
		.out = k->out,
		.out_stride = BENCH_COLS,
		.record = k->record,
	};
}

static int start_chain(struct gpu_kernels *k, struct ws_err *err)
{
	const struct ws_chain_job job = { .merge = merge_job(k),
		                          .fp8 = fp8_job(k, false),
		                          .scratch = k->scratch,
		                          .scratch_bytes = k->scratch_bytes };
	return ws_compute_chain(k->compute, &job, k->g.stream, err);
}

static int start_unpack(struct gpu_kernels *k, struct ws_err *err)
{
	const bool nf4 = k->at->kind == WS_UNPACK_NF4;
	struct ws_unpack_job job = {
		.kind = k->at->kind,
		.codes = k->on_codes,
		.rows = k->m.rows,
		.cols = BENCH_COLS,
		.scales = k->at->kind == WS_UNPACK_NVFP4 ? k->small : k->on_scales,
		.block = { BENCH_BLOCK, nf4 ? BENCH_NIBBLES : BENCH_BLOCK },
		.tensor_scale = BENCH_TENSOR_SCALE,
		.nested_block = NESTED,
		.out = k->out,
		.dtype = WS_DTYPE_BF16,
		.record = k->record,
	};
	memcpy(job.levels, bench_nf4_levels, sizeof job.levels);
	return ws_compute_unpack(k->compute, &job, k->g.stream, err);
}

static int start_gather(struct gpu_kernels *k, struct ws_err *err)
{
	const int64_t rows = k->m.rows, cols = BENCH_COLS;
	const struct ws_gather_job halves = { k->x,        k->out,         2, 2, { rows, cols / 2 },
		                              { cols, 1 }, { cols / 2, 1 } };
	const struct ws_gather_job turned = { k->x,           k->out,      2,          2,
		                              { cols, rows }, { 1, cols }, { rows, 1 } };
	return ws_compute_gather(k->compute, k->at->recipe == GPU_TURN ? &turned : &halves,
	                         k->g.stream, err);
}

static int start_largest(struct gpu_kernels *k, struct ws_err *err)
{
	const struct ws_largest_job job = { .src = k->x,
		                            .size = 2,
		                            .mask = 0x7fff,
		                            .n_dims = 1,
		                            .dims = { (int64_t)k->m.count },
		                            .read = { 1 },
		                            .found = k->out };
	return ws_gpu_fill(k->g.gpu, k->out, 0, sizeof(uint32_t), k->g.stream, err) ||
	       ws_compute_largest(k->compute, &job, k->g.stream, err) ? -1 : 0;
}

int bench_gpu_start(void *ctx, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	const struct ws_fp8_job fp8 = fp8_job(k, k->at->recipe == GPU_FP8_WHOLE);
	const struct ws_merge_job merge = merge_job(k);
	switch (k->at->recipe) {
	case GPU_FP8:
	case GPU_FP8_WHOLE: return ws_compute_fp8(k->compute, &fp8, k->g.stream, err);
	case GPU_MERGE: return ws_compute_merge(k->compute, &merge, k->g.stream, err);
	case GPU_CHAIN: return start_chain(k, err);
	case GPU_UNPACK: return start_unpack(k, err);
	case GPU_HALVES:
	case GPU_TURN: return start_gather(k, err);
	case GPU_FLATTEN:
		return ws_compute_flatten(k->compute, k->spans, GPU_SPANS, k->chunks, k->g.stream,
		                          err);
	case GPU_LARGEST: return start_largest(k, err);
	}
	return 0;
}

static int start_copy(void *ctx, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	return ws_gpu_copy(k->g.gpu, k->out, k->x, 2 * k->m.count, k->g.stream, err);
}

static int time_kernel(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	return bench_gpu_time(&k->g, &(struct bench_gpu_work){ bench_gpu_start, k, TIMES }, ns,
	                      err);
}

static int time_copy(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	return bench_gpu_time(&k->g, &(struct bench_gpu_work){ start_copy, k, TIMES }, ns, err);
}

/* A GPU that has had nothing to do, as while the CPU checked, takes its time to
 * raise its clocks: slow ones hold up what computes more than what copies. Whoever
 * wants no warm-up has none. */
static int wake(const struct ws_bench_opts *opts, struct gpu_kernels *k, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(opts->warmups ? WAKE_NS : 0);
	int64_t ns;
	while (!ws_deadline_passed(until) && !ws_cancelled(opts->cancel))
		if (time_kernel(k, &ns, err) || time_copy(k, &ns, err))
			return -1;
	return 0;
}

/* ---- what they work on ---- */

void bench_gpu_span(const struct gpu_kernels *k, unsigned i, size_t *from, size_t *to,
                    size_t *count)
{
	/* One row more or less than the next, as tensors of a bucket are of several sizes. */
	const size_t each = k->m.count / GPU_SPANS, shift = i % 2 ? BENCH_COLS / 4 : 0;
	const size_t next = (i + 1) % 2 && i + 1 < GPU_SPANS ? BENCH_COLS / 4 : 0;
	*from = i * each + shift;
	*count = (i + 1) * each + next - *from;
	*to = k->m.count - *from - *count;
}

static bool fill_here(struct gpu_kernels *k)
{
	const size_t n = k->m.count, n_b = (size_t)k->m.rows * GPU_RANK,
		     n_a = (size_t)GPU_RANK * BENCH_COLS;
	k->codes = malloc(n);
	k->a = malloc(n_a * sizeof *k->a);
	k->b = malloc(n_b * sizeof *k->b);
	k->scales = malloc(n / BENCH_NIBBLES * sizeof *k->scales);
	if (!k->codes || !k->a || !k->b || !k->scales)
		return false;
	memcpy(k->codes, k->m.x, n);
	for (size_t i = 0; i < n; i++)
		k->codes[i] ^= (k->codes[i] & 0x7f) == 0x7f; /* NaN of E4M3 */
	bench_fill_floats(k->a, n_a);
	bench_fill_floats(k->b, n_b);
	bench_fill_floats(k->scales, n / BENCH_NIBBLES);
	return true;
}

static int put(struct gpu_kernels *k, ws_devptr *to, const void *from, uint64_t bytes,
               struct ws_err *err)
{
	return ws_gpu_alloc(k->g.gpu, bytes, to, err) ||
	       (from && ws_gpu_copy_in(k->g.gpu, *to, from, bytes, k->g.stream, err)) ? -1 : 0;
}

static int put_spans(struct gpu_kernels *k, struct ws_err *err)
{
	struct ws_flatten_span spans[GPU_SPANS] = { { 0 } };
	for (unsigned i = 0; i < GPU_SPANS; i++) {
		size_t from, to, count;
		bench_gpu_span(k, i, &from, &to, &count);
		spans[i] = (struct ws_flatten_span){ .src = k->x + 2 * from, .dst = k->out + 2 * to,
			                             .bytes = 2 * count };
	}
	k->chunks = ws_flatten_count(spans, GPU_SPANS);
	/* The spans are gone when this returns. */
	return put(k, &k->spans, spans, sizeof spans, err) || bench_gpu_wait(&k->g, err) ? -1 : 0;
}

static int put_all(struct gpu_kernels *k, struct ws_err *err)
{
	const uint64_t n = k->m.count;
	k->scratch_bytes = 2 * n < SCRATCH ? 2 * n : SCRATCH;
	return put(k, &k->x, k->m.x, 2 * n, err) || put(k, &k->on_codes, k->codes, n, err) ||
	                       put(k, &k->on_a, k->a, (uint64_t)GPU_RANK * BENCH_COLS * 4, err) ||
	                       put(k, &k->on_b, k->b, (uint64_t)k->m.rows * GPU_RANK * 4, err) ||
	                       put(k, &k->on_scales, k->scales, n / BENCH_NIBBLES * 4, err) ||
	                       put(k, &k->small, k->codes, n / GPU_NVFP4, err) ||
	                       put(k, &k->out, NULL, 2 * n, err) ||
	                       put(k, &k->made, NULL, n / BENCH_BLOCK * 4, err) ||
	                       put(k, &k->record, NULL, WS_RECORD_BYTES, err) ||
	                       put(k, &k->scratch, NULL, k->scratch_bytes, err) ||
	                       put_spans(k, err) ||
	                       ws_record_clear(k->compute, k->record, k->g.stream, err) ||
	                       bench_gpu_wait(&k->g, err) ?
	               -1 :
	               0;
}

static void close_kernels(struct gpu_kernels *k)
{
	const ws_devptr arrays[] = { k->x, k->on_codes, k->on_a, k->on_b, k->on_scales, k->small,
		                     k->out, k->made, k->record, k->scratch, k->spans };
	for (size_t i = 0; k->g.gpu && i < sizeof arrays / sizeof *arrays; i++)
		ws_gpu_free(k->g.gpu, arrays[i]);
	ws_compute_close(k->compute);
	bench_gpu_close(&k->g);
	bench_matrix_close(&k->m);
	free(k->codes);
	free(k->a);
	free(k->b);
	free(k->scales);
}

static int open_kernels(struct gpu_kernels *k, const struct ws_bench_opts *opts,
                        const struct ws_bench_gpu *on, uint64_t size, struct ws_err *err)
{
	if (bench_gpu_open(&k->g, on, opts->cancel, err) ||
	    ws_compute_open(k->g.gpu, &k->compute, err) || bench_matrix_open(&k->m, size, err))
		return -1;
	return fill_here(k) ? put_all(k, err) :
	                      ws_err_set(err, WS_ESYSTEM, "out of memory for kernels");
}

int ws_bench_kernels_gpu(const struct ws_bench_opts *opts, const struct ws_bench_gpu *on,
                         uint64_t size, struct ws_err *err)
{
	struct gpu_kernels k = { .at = NULL };
	int rc = open_kernels(&k, opts, on, size, err);
	const struct bench_timed copy = { .run = time_copy, .ctx = &k };
	for (size_t i = 0; i < sizeof table / sizeof *table && !rc; i++) {
		k.at = &table[i];
		struct ws_bench_row row = { .stage = "kernels",
			                    .name = k.at->name,
			                    .detail = "gpu",
			                    .count = TIMES,
			                    .bytes = (uint64_t)((double)k.m.count * k.at->moves),
			                    .against = "device copy",
			                    .against_bytes = 4 * k.m.count };
		rc = wake(opts, &k, err);
		rc = rc ? rc :
		          bench_measure(opts, &row,
		                        &(struct bench_timed){ time_kernel, bench_gpu_check, &k },
		                        &copy, err);
	}
	close_kernels(&k);
	return rc;
}
