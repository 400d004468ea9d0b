/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of more elements than 32 bits count: rows that lie gigabytes apart, of which a few are
 * looked at. On the double, pages that nobody touches do not exist. */
#include "on_gpu.h"
#include "hard.h"

#include "fp8.h"
#include "lowrank.h"
#include "test.h"

static struct on_gpu gpu;

enum { ROWS = 3, COLS = 128 };
static const int64_t APART = (INT64_C(1) << 31) + 64; /* elements */

static uint16_t x[ROWS][COLS];

static ws_devptr put_far(void)
{
	const ws_devptr p = on_gpu_new(&gpu, 2 * (uint64_t)((ROWS - 1) * APART + COLS));
	hard_bf16(x[0], ROWS * COLS);
	for (uint64_t r = 0; r < ROWS; r++)
		ON_GPU(ws_gpu_copy_in(gpu.gpu, p + 2 * r * (uint64_t)APART, x[r], sizeof x[r],
		                      gpu.stream, &err));
	return p;
}

TEST(quantizing)
{
	static const struct ws_fp8_rule r = { WS_SCALE_XORL, false, 128, 128 };
	uint8_t want[COLS], got[COLS];
	float scale;
	struct ws_fp8_bad bad;
	const struct ws_fp8_args job = {
		.x = put_far(), .rows = ROWS, .cols = COLS, .stride = APART, .bn = 128, .bk = 128,
		.codes = on_gpu_new(&gpu, (uint64_t)((ROWS - 1) * APART + COLS)),
		.codes_stride = APART,
		.scales = on_gpu_new(&gpu, 4),
		.found = on_gpu_record(&gpu),
	};
	ON_GPU(ws_compute_fp8(gpu.compute, false, &job, gpu.stream, &err));
	const struct ws_fp8_band all = { x, false, COLS, ROWS, COLS };
	assert_true(ws_fp8_scales(&r, &all, &scale, &bad));
	for (uint64_t i = 0; i < ROWS; i++) {
		const struct ws_fp8_band row = { x[i], false, COLS, 1, COLS };
		ws_fp8_codes(&r, &row, &scale, want, COLS);
		on_gpu_get(&gpu, got, job.codes + i * (uint64_t)APART, COLS);
		assert_memory_equal(got, want, COLS);
	}
	on_gpu_release(&gpu);
}

TEST(merging)
{
	float a[COLS], b[ROWS] = { 1, 2, -3 }, delta[COLS], wide[COLS];
	uint16_t want[COLS], got[COLS];
	const ws_devptr w = put_far();
	for (int i = 0; i < COLS; i++)
		a[i] = 0.25f * (float)i;
	const struct ws_merge_args job = {
		.w = w, .rows = ROWS, .cols = COLS, .w_stride = APART,
		.n_terms = 1,
		.terms = { { on_gpu_put(&gpu, a, sizeof a), on_gpu_put(&gpu, b, sizeof b), 1, 1,
		             0 } },
		.out = w,
		.out_stride = APART,
		.found = on_gpu_record(&gpu),
	};
	ON_GPU(ws_compute_merge(gpu.compute, &job, gpu.stream, &err));
	for (uint64_t i = 0; i < ROWS; i++) {
		const struct ws_lowrank l = { a, b + i, 1, COLS, 1 };
		for (int k = 0; k < COLS; k++)
			wide[k] = hard_float_of((uint32_t)x[i][k] << 16);
		ws_lowrank_tile(&l, 1, 0, COLS, delta, COLS);
		struct ws_sum_tile t = { .w = wide, .delta = delta, .out = want, .n = 1,
			                 .m = COLS };
		ws_merge_bf16(&t);
		on_gpu_get(&gpu, got, w + 2 * i * (uint64_t)APART, sizeof got);
		assert_memory_equal(got, want, sizeof got);
	}
	on_gpu_release(&gpu);
}

/* Read far apart and written together, and the other way round; turned, too. */
TEST(gathering)
{
	uint16_t got[ROWS * COLS], turned[COLS * ROWS];
	const ws_devptr far = put_far(), near = on_gpu_new(&gpu, sizeof got);
	const struct ws_gather_job in = {
		far, near, 2, 2, { ROWS, COLS }, { APART, 1 }, { COLS, 1 }
	};
	const struct ws_gather_job out = { near,           far,         2,           2,
		                           { ROWS, COLS }, { COLS, 1 }, { APART, 1 } };
	const struct ws_gather_job turn = { far,          near,       2, 2, { COLS, ROWS },
		                            { 1, APART }, { ROWS, 1 } };
	ON_GPU(ws_compute_gather(gpu.compute, &in, gpu.stream, &err));
	on_gpu_get(&gpu, got, near, sizeof got);
	assert_memory_equal(got, x, sizeof x);
	ON_GPU(ws_compute_gather(gpu.compute, &turn, gpu.stream, &err));
	on_gpu_get(&gpu, turned, near, sizeof turned);
	for (int i = 0; i < ROWS * COLS; i++)
		assert_int_equal(turned[i], x[i % ROWS][i / ROWS]);
	ON_GPU(ws_gpu_copy_in(gpu.gpu, near, x, sizeof x, gpu.stream, &err));
	ON_GPU(ws_compute_gather(gpu.compute, &out, gpu.stream, &err));
	on_gpu_get(&gpu, got, out.dst + 4 * (uint64_t)APART, sizeof x[2]);
	assert_memory_equal(got, x[2], sizeof x[2]);
	on_gpu_release(&gpu);
}

static bool has_room(void)
{
	uint64_t left = 0, all;
	ON_GPU(ws_gpu_memory(gpu.gpu, &left, &all, &err));
	return left > UINT64_C(16) << 30;
}

int main(void)
{
	if (!on_gpu_open(&gpu))
		return 0;
	if (!has_room()) {
		printf("1..0 # SKIP the GPU has less than 16 GiB to give\n");
		on_gpu_close(&gpu);
		return 0;
	}
	const int rc = run_listed(NULL, NULL);
	on_gpu_close(&gpu);
	return rc;
}
