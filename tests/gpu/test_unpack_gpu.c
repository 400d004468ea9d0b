/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized bases to numbers on a GPU against what lib/transform/unpack/unpack.h
 * decodes with, bit for bit. */
#include "on_gpu.h"
#include "hard.h"

#include "fp8.h"
#include "test.h"
#include "unpack_core.h"

static struct on_gpu gpu;

/* bf16 by the same rounding as a merge's, which lib/transform has in a form for rows. */
static uint16_t round_bf16(float x)
{
	const uint32_t bits = hard_bits_of(x);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void run_and_compare(enum ws_unpack_kind kind, struct ws_unpack_args job, const float *want)
{
	const size_t n = (size_t)(job.rows * job.cols);
	uint8_t *got = test_malloc(n * 4);
	for (int half = 0; half < 2; half++) {
		job.to_bf16 = (uint32_t)half;
		job.out = on_gpu_new(&gpu, n * 4);
		job.found = on_gpu_record(&gpu);
		ON_GPU(ws_compute_unpack(gpu.compute, kind, &job, gpu.stream, &err));
		assert_false(on_gpu_read_record(&gpu, job.found, job.cols).bad);
		on_gpu_get(&gpu, got, job.out, n * (half ? 2 : 4));
		for (size_t i = 0; i < n; i++) {
			uint32_t bits = 0;
			memcpy(&bits, got + i * (half ? 2 : 4), half ? 2 : 4);
			if (bits != (half ? round_bf16(want[i]) : hard_bits_of(want[i])))
				fail_msg("%lld x %lld: element %zu is %x, not %a",
				         (long long)job.rows, (long long)job.cols, i, bits,
				         (double)want[i]);
		}
	}
	test_free(got);
	on_gpu_release(&gpu);
}

/* As large and small as scales are. */
static float *some_scales(size_t n)
{
	float *x = test_malloc(n * sizeof *x);
	for (size_t i = 0; i < n; i++)
		x[i] = hard_float_of((hard_next() & 0x007fffff) | (100 + hard_next() % 40) << 23);
	return x;
}

static uint8_t *some_bytes(size_t n)
{
	uint8_t *x = test_malloc(n);
	for (size_t i = 0; i < n; i++)
		x[i] = (uint8_t)hard_next();
	return x;
}

/* ---- fp8 ---- */

struct stack {
	int64_t matrices, each, cols, bn, bk;
};

static uint8_t *some_e4m3(size_t n)
{
	uint8_t *x = some_bytes(n);
	for (size_t i = 0; i < n; i++)
		if ((x[i] & 0x7f) == 0x7f)
			x[i] ^= 1;
	return x;
}

static void compare_fp8(const struct stack *s)
{
	const int64_t rows = s->matrices * s->each, down = (s->each + s->bn - 1) / s->bn;
	const int64_t across = (s->cols + s->bk - 1) / s->bk;
	const size_t n = (size_t)(rows * s->cols), n_scales = (size_t)(s->matrices * down * across);
	uint8_t *codes = some_e4m3(n);
	float *scales = some_scales(n_scales), *want = test_malloc(n * sizeof *want);
	for (int64_t r = 0; r < rows; r++)
		ws_fp8_decode_row(codes + r * s->cols, 0, s->cols, s->bk,
		                  scales + (r / s->each * down + r % s->each / s->bn) * across,
		                  want + r * s->cols);
	run_and_compare(WS_UNPACK_FP8,
	                (struct ws_unpack_args){ .codes = on_gpu_put(&gpu, codes, n),
	                                         .scales = on_gpu_put(&gpu, scales, n_scales * 4),
	                                         .rows = rows, .cols = s->cols, .each = s->each,
	                                         .bn = s->bn, .bk = s->bk },
	                want);
	test_free(codes);
	test_free(scales);
	test_free(want);
}

TEST(fp8_of_all_shapes)
{
	static const struct stack stacks[] = { { 1, 1, 1, 128, 128 },     { 1, 256, 256, 128, 128 },
		                               { 1, 257, 385, 128, 128 }, { 3, 130, 264, 128, 128 },
		                               { 1, 20, 64, 7, 12 },      { 1, 64, 40, 1, 40 },
		                               { 1, 9, 100, 9, 100 },     { 4, 33, 17, 128, 128 } };
	for (size_t i = 0; i < sizeof stacks / sizeof stacks[0]; i++)
		compare_fp8(&stacks[i]);
}

/* ---- nvfp4 ---- */

TEST(nvfp4_of_all_shapes)
{
	static const float e2m1[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
		                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };
	static const int64_t shapes[][2] = { { 1, 16 }, { 64, 256 }, { 37, 48 },
		                             { 5, 2 },  { 7, 30 },   { 9, 40 } };
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		const int64_t rows = shapes[i][0], cols = shapes[i][1], across = (cols + 15) / 16;
		const size_t n = (size_t)(rows * cols), n_scales = (size_t)(rows * across);
		uint8_t *codes = some_bytes(n / 2), *scales = some_e4m3(n_scales);
		float *want = test_malloc(n * sizeof *want),
		      *wide = test_malloc(n_scales * sizeof *wide);
		const float all = hard_float_of(0x3a123457);
		for (size_t k = 0; k < n_scales; k++)
			wide[k] = ws_fp8_to_float(scales[k]) * all;
		for (int64_t r = 0; r < rows; r++) {
			const struct ws_nibbles row = { .codes = codes + r * (cols / 2),
				                        .levels = e2m1, .scales = wide + r * across,
				                        .block = 16 };
			ws_unpack_scalar.nibbles(&row, 0, cols, want + r * cols);
		}
		const struct ws_unpack_args job = { .codes = on_gpu_put(&gpu, codes, n / 2),
			                            .scales = on_gpu_put(&gpu, scales, n_scales),
			                            .rows = rows, .cols = cols, .offset = all };
		run_and_compare(WS_UNPACK_NVFP4, job, want);
		test_free(codes);
		test_free(scales);
		test_free(want);
		test_free(wide);
	}
}

/* ---- nf4 ---- */

struct nf4 {
	size_t n, block, nested_block; /* elements; 0: not nested */
	uint8_t *codes, *absmax;
	float *scales, *nested, *map;
	float levels[16], offset;
};

static void make_nf4(struct nf4 *f)
{
	const size_t n_blocks = (f->n + f->block - 1) / f->block;
	f->codes = some_bytes((f->n + 1) / 2);
	f->absmax = some_bytes(n_blocks);
	f->scales = some_scales(n_blocks);
	f->nested = some_scales(n_blocks);
	f->map = some_scales(256);
	f->offset = 0.0421f;
	for (int i = 0; i < 16; i++)
		f->levels[i] = hard_float_of(0x3f800000 + (hard_next() & 0x7fffff)) - 1.5f;
	for (size_t i = 0; f->nested_block && i < n_blocks; i++) {
		const float product = f->map[f->absmax[i]] * f->nested[i / f->nested_block];
		f->scales[i] = product + f->offset;
	}
}

static void compare_nf4(int64_t rows, int64_t cols, size_t block, size_t nested_block)
{
	struct nf4 f = { .n = (size_t)(rows * cols), .block = block, .nested_block = nested_block };
	const size_t n_blocks = (f.n + block - 1) / block;
	float *want = test_malloc(f.n * sizeof *want);
	make_nf4(&f);
	const struct ws_nibbles all = { .codes = f.codes, .high_first = true, .levels = f.levels,
		                        .scales = f.scales, .block = (int64_t)block };
	ws_unpack_scalar.nibbles(&all, 0, (int64_t)f.n, want);
	struct ws_unpack_args job = { .codes = on_gpu_put(&gpu, f.codes, (f.n + 1) / 2),
		                      .rows = rows, .cols = cols, .bn = 1, .bk = (int64_t)block,
		                      .nested_block = (uint32_t)nested_block,
		                      .offset = f.offset };
	memcpy(job.levels, f.levels, sizeof job.levels);
	job.scales = nested_block ? on_gpu_put(&gpu, f.absmax, n_blocks) :
	                            on_gpu_put(&gpu, f.scales, n_blocks * 4);
	job.nested = on_gpu_put(&gpu, f.nested, n_blocks * 4);
	job.map = on_gpu_put(&gpu, f.map, 256 * 4);
	run_and_compare(WS_UNPACK_NF4, job, want);
	test_free(f.codes);
	test_free(f.absmax);
	test_free(f.scales);
	test_free(f.nested);
	test_free(f.map);
	test_free(want);
}

TEST(nf4_of_all_shapes)
{
	static const int64_t shapes[][2] = {
		{ 64, 64 }, { 128, 100 }, { 3, 7 }, { 1, 1 }, { 37, 130 }
	};
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		compare_nf4(shapes[i][0], shapes[i][1], 64, 0);
		compare_nf4(shapes[i][0], shapes[i][1], 64, 256);
		compare_nf4(shapes[i][0], shapes[i][1], 128, 3);
	}
}

/* ---- what is no number ---- */

TEST(a_code_or_a_scale_that_is_no_number_is_found)
{
	for (int in_scale = 0; in_scale < 2; in_scale++) {
		uint8_t *codes = some_e4m3(64 * 64);
		float scales[4] = { 1, 1, 1, 1 };
		memset(codes, 0x38, 64 * 64);
		if (in_scale)
			scales[3] = hard_float_of(0x7f800000);
		else
			codes[50 * 64 + 13] = codes[40 * 64 + 61] = 0xff;
		const struct ws_unpack_args job = {
			.codes = on_gpu_put(&gpu, codes, 64 * 64),
			.scales = on_gpu_put(&gpu, scales, sizeof scales),
			.rows = 64,
			.cols = 64,
			.bn = 32,
			.bk = 32,
			.out = on_gpu_new(&gpu, 64 * 64 * 4),
			.found = on_gpu_record(&gpu),
		};
		ON_GPU(ws_compute_unpack(gpu.compute, WS_UNPACK_FP8, &job, gpu.stream, &err));
		const struct ws_record found = on_gpu_read_record(&gpu, job.found, 64);
		assert_true(found.bad);
		assert_int_equal(found.row, in_scale ? 32 : 40);
		assert_int_equal(found.col, in_scale ? 32 : 61);
		test_free(codes);
		on_gpu_release(&gpu);
	}
}

RUN_ON_GPU(gpu)
