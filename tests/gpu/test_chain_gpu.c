/* SPDX-License-Identifier: Apache-2.0 */
/* Low-rank changes merged into FP8 on a GPU, band by band, against lib/transform, which merges
 * and then quantizes: bit for bit, whatever the scratch. */
#include "on_gpu.h"
#include "hard.h"

#include "fp8.h"
#include "lowrank.h"
#include "test.h"

#include <math.h>

static struct on_gpu gpu;

enum { ROWS = 170, COLS = 200, RANK = 5, PAIRS = 2 };

static uint16_t w[ROWS * COLS];
static float a[PAIRS][RANK * COLS], b[PAIRS][ROWS * RANK];

static void make_numbers(void)
{
	for (size_t i = 0; i < ROWS * COLS; i++)
		w[i] = (uint16_t)(0x3c00 | (hard_next() & 0x83ff)); /* 0.01 to 2, of both signs */
	for (int k = 0; k < PAIRS; k++) {
		for (size_t i = 0; i < RANK * COLS; i++)
			a[k][i] = (float)(int32_t)hard_next() * 0x1p-31f;
		for (size_t i = 0; i < ROWS * RANK; i++)
			b[k][i] = (float)(int32_t)hard_next() * 0x1p-31f;
	}
}

struct result {
	uint8_t codes[ROWS * COLS];
	float scales[ROWS * COLS];
};

static size_t count_scales(const struct ws_fp8_rule *r)
{
	return (size_t)((ROWS + r->bn - 1) / r->bn * ((COLS + r->bk - 1) / r->bk));
}

static void merge_on_cpu(unsigned n_terms, uint16_t *merged)
{
	static float sum[ROWS * COLS], more[ROWS * COLS], wide[ROWS * COLS];
	float max_delta, max_w;
	for (unsigned k = 0; k < n_terms; k++) {
		const struct ws_lowrank l = { a[k], b[k], RANK, COLS, 0.5f };
		ws_lowrank_tile(&l, 0, ROWS, 0, COLS, k ? more : sum, COLS);
		for (size_t i = 0; k && i < ROWS * COLS; i++)
			sum[i] += more[i];
	}
	for (size_t i = 0; i < ROWS * COLS; i++)
		wide[i] = hard_float_of((uint32_t)w[i] << 16);
	ws_merge_bf16(wide, COLS, sum, COLS, ROWS, COLS, false, merged, COLS, &max_delta, &max_w);
}

static void quantize_on_cpu(const struct ws_fp8_rule *r, const uint16_t *x, struct result *out)
{
	const int64_t across = (COLS + r->bk - 1) / r->bk;
	struct ws_fp8_bad bad;
	for (int64_t row = 0; row < ROWS; row += r->bn) {
		const int64_t n = ROWS - row < r->bn ? ROWS - row : r->bn;
		float *scales = out->scales + row / r->bn * across;
		assert_true(ws_fp8_scales_bf16(r, x + row * COLS, COLS, n, COLS, scales, &bad));
		ws_fp8_codes_bf16(r, x + row * COLS, COLS, n, COLS, scales, out->codes + row * COLS,
		                  COLS);
	}
}

static struct ws_chain_job job_of(const struct ws_fp8_rule *r, unsigned n_terms,
                                  uint64_t scratch_bytes)
{
	struct ws_chain_job job = {
		.merge = { .w = { on_gpu_put(&gpu, w, sizeof w), WS_DTYPE_BF16, ROWS, COLS, COLS },
		           .n_terms = n_terms,
		           .record = on_gpu_record(&gpu) },
		.fp8 = { .rule = r->rule,
		         .ue8m0 = r->ue8m0,
		         .block = { r->bn, r->bk },
		         .codes = on_gpu_new(&gpu, ROWS * COLS),
		         .codes_stride = COLS,
		         .scales = on_gpu_new(&gpu, count_scales(r) * sizeof(float)) },
		.scratch = on_gpu_new(&gpu, scratch_bytes),
		.scratch_bytes = scratch_bytes,
	};
	for (unsigned k = 0; k < n_terms; k++)
		job.merge.terms[k] =
			(struct ws_merge_term){ on_gpu_put(&gpu, a[k], sizeof a[k]),
			                        on_gpu_put(&gpu, b[k], sizeof b[k]), RANK, 0.5f };
	return job;
}

static void compare(const struct ws_fp8_rule *r, unsigned n_terms, uint64_t scratch_bytes)
{
	static struct result want, got;
	static uint16_t merged[ROWS * COLS];
	merge_on_cpu(n_terms, merged);
	quantize_on_cpu(r, merged, &want);
	const struct ws_chain_job job = job_of(r, n_terms, scratch_bytes);
	ON_GPU(ws_compute_chain(gpu.compute, &job, gpu.stream, &err));
	assert_false(on_gpu_read_record(&gpu, job.merge.record, COLS).bad);
	on_gpu_get(&gpu, got.codes, job.fp8.codes, sizeof got.codes);
	on_gpu_get(&gpu, got.scales, job.fp8.scales, count_scales(r) * sizeof(float));
	assert_memory_equal(got.scales, want.scales, count_scales(r) * sizeof(float));
	assert_memory_equal(got.codes, want.codes, sizeof got.codes);
	on_gpu_release(&gpu);
}

/* ---- tests ---- */

TEST(bands_of_any_height)
{
	static const struct ws_fp8_rule rules[] = { { WS_SCALE_XORL, false, 128, 128 },
		                                    { WS_SCALE_SLIME, true, 32, 48 },
		                                    { WS_SCALE_SLIME, false, 9, 200 },
		                                    { WS_SCALE_XORL, false, ROWS, 256 } };
	for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
		const uint64_t band = 2 * COLS * (uint64_t)rules[i].bn;
		compare(&rules[i], 1, band);
		compare(&rules[i], 2, 2 * band + 6);
		compare(&rules[i], PAIRS, 2 * ROWS * COLS);
	}
}

TEST(what_is_no_number_is_found_at_its_place_in_the_tensor)
{
	static const struct ws_fp8_rule r = { WS_SCALE_XORL, false, 64, 64 };
	const uint16_t kept = w[150 * COLS + 33];
	w[150 * COLS + 33] = 0x7fc0;
	const struct ws_chain_job job = job_of(&r, 1, 2 * COLS * 64);
	ON_GPU(ws_compute_chain(gpu.compute, &job, gpu.stream, &err));
	const struct ws_record found = on_gpu_read_record(&gpu, job.merge.record, COLS);
	assert_true(found.bad && isnan(found.max_w));
	assert_int_equal(found.row, 150);
	assert_int_equal(found.col, 33);
	w[150 * COLS + 33] = kept;
	on_gpu_release(&gpu);
}

TEST(a_scratch_that_is_too_small_is_refused)
{
	static const struct ws_fp8_rule r = { WS_SCALE_XORL, false, 128, 128 };
	struct ws_chain_job job = job_of(&r, 1, 2 * COLS * 128);
	struct ws_err told = WS_ERR_INIT;
	assert_true(ws_chain_least(&job) == 2 * COLS * 128);
	job.scratch_bytes--;
	assert_fails_with(ws_compute_chain(gpu.compute, &job, gpu.stream, &told), &told, WS_EINPUT,
	                  "merging into FP8: a row of blocks is 50.0 KiB, the scratch 50.0 KiB");
	job.merge.w.rows = 0;
	ON_GPU(ws_compute_chain(gpu.compute, &job, gpu.stream, &err));
	on_gpu_release(&gpu);
}

RUN_ON_GPU(gpu, make_numbers())
