/* SPDX-License-Identifier: Apache-2.0 */
/* Low-rank changes merged on a GPU against lib/transform/lora/lowrank.h, bit for bit. */
#include "on_gpu.h"
#include "hard.h"

#include "lowrank.h"
#include "test.h"

#include <math.h>

static struct on_gpu gpu;

struct problem {
	int64_t rows, cols, rank, w_stride, out_stride;
	bool two_step;
	float scale;
	float *a, *b;
	uint16_t *w;
	float *w_wide; /* w as fp32 */
};

static float *some(size_t n)
{
	float *x = test_malloc((n + 1) * sizeof *x);
	hard_f32(x, n);
	/* factors of any size make sums that are infinite; a few are enough */
	for (size_t i = 0; i < n; i++)
		if (fabsf(x[i]) > 1e12f)
			x[i] = hard_float_of(hard_bits_of(x[i]) & 0xbfffffff);
	return x;
}

static void make_w(struct problem *p)
{
	const size_t n = (size_t)(p->rows * p->w_stride);
	p->w = test_malloc((n + 1) * sizeof *p->w);
	p->w_wide = some(n);
	for (size_t i = 0; i < n; i++) {
		p->w[i] = (uint16_t)(hard_bits_of(p->w_wide[i]) >> 16);
		p->w_wide[i] = hard_float_of((uint32_t)p->w[i] << 16);
	}
}

static void free_problem(struct problem *p)
{
	test_free(p->w);
	test_free(p->w_wide);
	test_free(p->a);
	test_free(p->b);
}

static uint16_t *on_cpu(const struct problem *p, float *max_delta, float *max_w)
{
	const struct ws_lowrank l = { p->a, p->b, p->rank, p->cols, p->scale };
	const size_t n = (size_t)(p->rows * p->cols);
	float *delta = test_malloc(n * sizeof *delta);
	uint16_t *out = test_calloc((size_t)(p->rows * p->out_stride), sizeof *out);
	ws_lowrank_tile(&l, p->rows, 0, p->cols, delta, (size_t)p->cols);
	struct ws_sum_tile t = { .w = p->w_wide, .w_stride = (size_t)p->w_stride, .delta = delta,
		                 .delta_stride = (size_t)p->cols, .out = out,
		                 .out_stride = (size_t)p->out_stride, .n = p->rows, .m = p->cols,
		                 .two_step = p->two_step };
	ws_merge_bf16(&t);
	*max_delta = t.max_delta;
	*max_w = t.max_w;
	test_free(delta);
	return out;
}

static uint16_t *on_gpu(const struct problem *p, struct ws_record *found)
{
	const size_t n = (size_t)(p->rows * p->w_stride), n_out = (size_t)(p->rows * p->out_stride);
	uint16_t *out = test_calloc(n_out, sizeof *out);
	const struct ws_merge_args job = {
		.w = on_gpu_put(&gpu, p->w, n * 2),
		.rows = p->rows,
		.cols = p->cols,
		.w_stride = p->w_stride,
		.terms = { { on_gpu_put(&gpu, p->a, (size_t)(p->rank * p->cols) * 4),
		             on_gpu_put(&gpu, p->b, (size_t)(p->rows * p->rank) * 4), p->rank,
		             p->scale, 0 } },
		.n_terms = 1,
		.two_step = p->two_step,
		.out = on_gpu_put(&gpu, out, n_out * 2),
		.out_stride = p->out_stride,
		.found = on_gpu_record(&gpu),
	};
	ON_GPU(ws_compute_merge(gpu.compute, &job, gpu.stream, &err));
	*found = on_gpu_read_record(&gpu, job.found, p->cols);
	on_gpu_get(&gpu, out, job.out, n_out * 2);
	return out;
}

static bool same_bits(float x, float y)
{
	return hard_bits_of(x) == hard_bits_of(y) || (isnan(x) && isnan(y));
}

/* Of two NaNs that are added, the sum's sign and payload are the machine's own. */
static bool same_bf16(uint16_t x, uint16_t y)
{
	return x == y || ((x & 0x7fff) > 0x7f80 && (y & 0x7fff) > 0x7f80);
}

static void compare(struct problem p)
{
	float max_delta, max_w;
	struct ws_record found;
	p.a = some((size_t)(p.rank * p.cols));
	p.b = some((size_t)(p.rows * p.rank));
	make_w(&p);
	uint16_t *want = on_cpu(&p, &max_delta, &max_w), *got = on_gpu(&p, &found);
	for (int64_t i = 0; i < p.rows * p.out_stride; i++)
		if (!same_bf16(got[i], want[i]))
			fail_msg("%lld x %lld of rank %lld: element %lld is %04x, not %04x",
			         (long long)p.rows, (long long)p.cols, (long long)p.rank,
			         (long long)i, got[i], want[i]);
	assert_true(same_bits(found.max_delta, max_delta));
	assert_true(same_bits(found.max_w, max_w));
	test_free(want);
	test_free(got);
	free_problem(&p);
	on_gpu_release(&gpu);
}

/* ---- tests ---- */

TEST(all_ranks)
{
	static const int64_t ranks[] = { 0, 1, 2, 8, 15, 16, 17, 32, 64, 130, 200 };
	for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
		for (int k = 0; k < 2; k++)
			compare((struct problem){ .rows = 70, .cols = 136, .rank = ranks[i],
			                          .w_stride = 136, .out_stride = 136,
			                          .two_step = k, .scale = k ? 2.0f : 0.3333f });
}

TEST(ragged_shapes_and_rows_apart)
{
	static const int64_t shapes[][4] = { { 1, 1, 1, 1 },         { 1, 128, 128, 128 },
		                             { 64, 128, 128, 128 },  { 65, 129, 129, 129 },
		                             { 3, 7, 8, 16 },        { 130, 264, 272, 264 },
		                             { 130, 264, 272, 268 }, { 130, 264, 266, 264 },
		                             { 257, 385, 392, 400 }, { 257, 385, 385, 385 } };
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		for (int k = 0; k < 2; k++)
			compare((struct problem){ .rows = shapes[i][0], .cols = shapes[i][1],
			                          .rank = 16, .w_stride = shapes[i][2],
			                          .out_stride = shapes[i][3], .two_step = k,
			                          .scale = 1.0f });
}

/* -0 + -0 is -0, but a rank that does not exist would make the sum +0. */
TEST(sums_that_vanish_keep_their_sign)
{
	static const uint16_t w = 0x8000;
	static const float a = 1e-30f, b = -1e-30f;
	uint16_t out = 0;
	const struct ws_merge_args job = {
		.w = on_gpu_put(&gpu, &w, 2), .rows = 1, .cols = 1, .w_stride = 1,
		.n_terms = 1,
		.terms = { { on_gpu_put(&gpu, &a, 4), on_gpu_put(&gpu, &b, 4), 1, 1, 0 } },
		.out = on_gpu_new(&gpu, 2),
		.out_stride = 1,
		.found = on_gpu_record(&gpu),
	};
	ON_GPU(ws_compute_merge(gpu.compute, &job, gpu.stream, &err));
	on_gpu_get(&gpu, &out, job.out, 2);
	assert_int_equal(out, 0x8000);
	on_gpu_release(&gpu);
}

TEST(the_result_may_take_the_place_of_the_weights)
{
	struct problem p = { .rows = 100, .cols = 200, .rank = 4, .w_stride = 200,
		             .out_stride = 200, .scale = 0.5f };
	float max_delta, max_w;
	p.a = some(800);
	p.b = some(400);
	make_w(&p);
	uint16_t *want = on_cpu(&p, &max_delta, &max_w), *got = test_malloc(40000);
	const ws_devptr w = on_gpu_put(&gpu, p.w, 40000);
	const struct ws_merge_args job = {
		.w = w, .rows = 100, .cols = 200, .w_stride = 200,
		.n_terms = 1,
		.terms = { { on_gpu_put(&gpu, p.a, 3200), on_gpu_put(&gpu, p.b, 1600), 4, 0.5f,
		             0 } },
		.out = w,
		.out_stride = 200,
		.found = on_gpu_record(&gpu),
	};
	ON_GPU(ws_compute_merge(gpu.compute, &job, gpu.stream, &err));
	on_gpu_get(&gpu, got, w, 40000);
	assert_memory_equal(got, want, 40000);
	test_free(want);
	test_free(got);
	free_problem(&p);
	on_gpu_release(&gpu);
}

enum { R = 70, C = 136 };

/* As the engine does it: deltas as fp32, added up in their order. */
static void add_up(const struct ws_lowrank *l, size_t n_terms, float *sum)
{
	float *more = test_malloc(R * C * sizeof *more);
	for (size_t k = 0; k < n_terms; k++) {
		ws_lowrank_tile(&l[k], R, 0, C, k ? more : sum, C);
		for (size_t i = 0; k && i < R * C; i++)
			sum[i] += more[i];
	}
	test_free(more);
}

TEST(deltas_of_several_pairs_are_added_up_first)
{
	struct problem p = { .rows = R, .cols = C, .rank = 33, .w_stride = C, .out_stride = C };
	struct ws_merge_args job = { .n_terms = WS_MERGE_TERMS, .rows = R, .cols = C,
		                     .w_stride = C, .out_stride = C };
	struct ws_lowrank l[WS_MERGE_TERMS];
	float sum[R * C];
	uint16_t want[R * C], got[R * C];
	make_w(&p);
	for (int k = 0; k < WS_MERGE_TERMS; k++) {
		l[k] = (struct ws_lowrank){ some(33 * C), some(R * 33), 3 + 10 * k, C,
			                    0.25f * (float)(k + 1) };
		job.terms[k] = (struct ws_merge_term){ on_gpu_put(&gpu, l[k].a, 33 * C * 4),
			                               on_gpu_put(&gpu, l[k].b, R * 33 * 4),
			                               l[k].rank, l[k].scale, 0 };
	}
	add_up(l, WS_MERGE_TERMS, sum);
	struct ws_sum_tile t = { .w = p.w_wide, .w_stride = C, .delta = sum, .delta_stride = C,
		                 .out = want, .out_stride = C, .n = R, .m = C };
	ws_merge_bf16(&t);
	job.w = on_gpu_put(&gpu, p.w, sizeof want);
	job.out = on_gpu_new(&gpu, sizeof got);
	job.found = on_gpu_record(&gpu);
	ON_GPU(ws_compute_merge(gpu.compute, &job, gpu.stream, &err));
	on_gpu_get(&gpu, got, job.out, sizeof got);
	for (size_t i = 0; i < R * C; i++)
		assert_true(same_bf16(got[i], want[i]));
	assert_true(same_bits(on_gpu_read_record(&gpu, job.found, C).max_delta, t.max_delta));
	for (int k = 0; k < WS_MERGE_TERMS; k++) {
		test_free((void *)(uintptr_t)l[k].a);
		test_free((void *)(uintptr_t)l[k].b);
	}
	free_problem(&p);
	on_gpu_release(&gpu);
}

RUN_ON_GPU(gpu)
