/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks to E4M3 on a GPU against lib/transform/fp8/fp8.h, bit for bit. */
#include "on_gpu.h"
#include "hard.h"

#include "fp8.h"
#include "test.h"

static struct on_gpu gpu;

struct shape {
	int64_t rows, cols, stride;
};

struct made {
	uint8_t *codes;
	float *scales;
	size_t n_codes, n_scales;
};

static size_t grid(const struct ws_fp8_rule *r, const struct shape *s)
{
	return (size_t)((s->rows + r->bn - 1) / r->bn * ((s->cols + r->bk - 1) / r->bk));
}

static struct made new_made(const struct ws_fp8_rule *r, const struct shape *s)
{
	struct made m = { .n_codes = (size_t)(s->rows * s->cols), .n_scales = grid(r, s) };
	m.codes = test_malloc(m.n_codes);
	m.scales = test_malloc(m.n_scales * sizeof *m.scales);
	return m;
}

static void free_made(struct made *m)
{
	test_free(m->codes);
	test_free(m->scales);
}

static void on_cpu(const struct ws_fp8_rule *r, const void *x, bool is_f32, const struct shape *s,
                   struct made *out)
{
	const int64_t across = (s->cols + r->bk - 1) / r->bk;
	const size_t stride = (size_t)s->stride, cols = (size_t)s->cols;
	struct ws_fp8_bad bad;
	for (int64_t row = 0; row < s->rows; row += r->bn) {
		const int64_t n = s->rows - row < r->bn ? s->rows - row : r->bn;
		float *scales = out->scales + row / r->bn * across;
		uint8_t *codes = out->codes + (size_t)row * cols;
		const struct ws_fp8_band band = {
			(const char *)x + (size_t)row * stride * (is_f32 ? 4 : 2), is_f32, stride,
			n, s->cols
		};
		assert_true(ws_fp8_scales(r, &band, scales, &bad));
		ws_fp8_codes(r, &band, scales, codes, cols);
	}
}

static struct ws_record start(const struct ws_fp8_rule *r, const void *x, bool is_f32,
                              const struct shape *s, ws_devptr codes, ws_devptr scales)
{
	const size_t size = is_f32 ? 4 : 2;
	const struct ws_fp8_args args = {
		.x = on_gpu_put(&gpu, x, (size_t)(s->rows * s->stride) * size),
		.rows = s->rows,
		.cols = s->cols,
		.stride = s->stride,
		.slime = r->rule == WS_SCALE_SLIME,
		.ue8m0 = r->ue8m0,
		.bn = r->bn,
		.bk = r->bk,
		.codes = codes,
		.codes_stride = s->cols,
		.scales = scales,
		.found = on_gpu_record(&gpu),
	};
	ON_GPU(ws_compute_fp8(gpu.compute, is_f32, &args, gpu.stream, &err));
	return on_gpu_read_record(&gpu, args.found, s->cols);
}

static void compare(const struct ws_fp8_rule *r, const void *x, bool is_f32, const struct shape *s)
{
	struct made want = new_made(r, s), got = new_made(r, s);
	const ws_devptr codes = on_gpu_new(&gpu, got.n_codes),
			scales = on_gpu_new(&gpu, got.n_scales * 4);
	on_cpu(r, x, is_f32, s, &want);
	assert_false(start(r, x, is_f32, s, codes, scales).bad);
	on_gpu_get(&gpu, got.codes, codes, got.n_codes);
	on_gpu_get(&gpu, got.scales, scales, got.n_scales * 4);
	assert_memory_equal(got.scales, want.scales, got.n_scales * 4);
	for (size_t i = 0; i < got.n_codes; i++)
		if (got.codes[i] != want.codes[i])
			fail_msg("%lld x %lld, block %lld x %lld: code %zu is %02x, not %02x",
			         (long long)s->rows, (long long)s->cols, (long long)r->bn,
			         (long long)r->bk, i, got.codes[i], want.codes[i]);
	free_made(&want);
	free_made(&got);
	on_gpu_release(&gpu);
}

/* Both rules, scales as they are and powers of two. */
static void compare_all(int64_t bn, int64_t bk, const void *x, bool is_f32, const struct shape *s)
{
	for (int i = 0; i < 4; i++) {
		const struct ws_fp8_rule r = { i & 1 ? WS_SCALE_SLIME : WS_SCALE_XORL, i & 2, bn,
			                       bk };
		compare(&r, x, is_f32, s);
	}
}

/* ---- tests ---- */

TEST(every_finite_bf16_in_one_tensor)
{
	uint16_t *x = test_malloc(65536 * sizeof *x);
	for (uint32_t i = 0; i < 65536; i++)
		x[i] = (i & 0x7f80) == 0x7f80 ? 0 : (uint16_t)i;
	const struct shape wide = { 256, 256, 256 }, flat = { 1, 65536, 65536 };
	compare_all(128, 128, x, false, &wide);
	/* by rising exponents: each block is full of its like */
	compare_all(1, 256, x, false, &flat);
	test_free(x);
}

TEST(ragged_shapes)
{
	static const struct shape shapes[] = { { 1, 1, 1 },       { 1, 129, 129 },
		                               { 129, 1, 1 },     { 127, 128, 128 },
		                               { 128, 136, 136 }, { 128, 130, 131 },
		                               { 128, 136, 137 }, { 257, 385, 400 } };
	static const struct ws_fp8_rule small = { WS_SCALE_SLIME, false, 17, 33 };
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		const size_t n = (size_t)(shapes[i].rows * shapes[i].stride);
		uint16_t *half = test_malloc(n * sizeof *half);
		float *whole = test_malloc(n * sizeof *whole);
		hard_bf16(half, n);
		hard_f32(whole, n);
		compare_all(128, 128, half, false, &shapes[i]);
		compare_all(128, 128, whole, true, &shapes[i]);
		compare(&small, half, false, &shapes[i]);
		test_free(half);
		test_free(whole);
	}
}

/* Quotients near the ties between two codes, where a quotient that is off in its last place
 * shows. */
TEST(floats_beside_every_tie)
{
	const struct shape s = { 128, 1024, 1024 };
	const size_t n = 128 * 1024;
	float *x = test_malloc(n * sizeof *x);
	for (size_t i = 0; i < n; i++) {
		const uint32_t code = hard_next() % 126;
		const float tie =
			(ws_fp8_to_float((uint8_t)code) + ws_fp8_to_float((uint8_t)(code + 1))) / 2;
		const float amax = hard_float_of(0x3f800000 + (uint32_t)(i % 1024 / 128) * 0x12345);
		const float y = tie * (amax / 448);
		x[i] = hard_float_of(hard_bits_of(y) + hard_next() % 7 - 3) *
		       (hard_next() & 1 ? -1.0f : 1.0f);
	}
	for (size_t b = 0; b < 8; b++)
		x[b * 128] = hard_float_of(0x3f800000 + (uint32_t)b * 0x12345);
	compare_all(128, 128, x, true, &s);
	test_free(x);
}

TEST(zeros_subnormals_and_the_largest)
{
	static const uint32_t values[] = { 0,          0x80000000, 1,          0x80000001,
		                           0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,
		                           0x7f7f0000, 0x00010000, 0x2b8cbccc, 0x2edbe6ff };
	const struct shape s = { 128, 256, 256 };
	float *x = test_calloc(128 * 256, sizeof *x);
	for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
		/* the second block stays all zeros, of both signs */
		for (size_t k = 0; k < 128; k++)
			for (size_t c = 0; c < 256; c++)
				x[k * 256 + c] = hard_float_of(c < 128 ? values[(k + c) % (i + 1)] :
				                                         (uint32_t)c << 31);
		compare_all(128, 128, x, true, &s);
	}
	test_free(x);
}

TEST(what_is_no_number_is_found_where_it_is_first)
{
	const struct shape s = { 200, 300, 304 };
	static const uint32_t bad[] = { 0x7f80, 0xff80, 0x7fc0, 0xff81 };
	uint16_t *x = test_malloc((size_t)(s.rows * s.stride) * sizeof *x);
	for (size_t i = 0; i < 4; i++)
		for (int whole = 0; whole < 2; whole++) {
			const struct ws_fp8_rule r = { WS_SCALE_XORL, false, whole ? 200 : 128,
				                       whole ? 300 : 128 };
			hard_bf16(x, (size_t)(s.rows * s.stride));
			x[150 * s.stride + 299] = x[130 * s.stride + 7] = x[130 * s.stride + 200] =
				(uint16_t)bad[i];
			const struct ws_record found =
				start(&r, x, false, &s, on_gpu_new(&gpu, 60000),
			              on_gpu_new(&gpu, 64));
			assert_true(found.bad);
			assert_int_equal(found.row, 130);
			assert_int_equal(found.col, 7);
			on_gpu_release(&gpu);
		}
	test_free(x);
}

TEST(one_block_for_a_tensor)
{
	const struct shape s = { 257, 385, 392 };
	const size_t n = (size_t)(s.rows * s.stride);
	uint16_t *half = test_malloc(n * sizeof *half);
	float *whole = test_malloc(n * sizeof *whole);
	hard_bf16(half, n);
	hard_f32(whole, n);
	compare_all(257, 385, half, false, &s);
	compare_all(300, 500, whole, true, &s);
	test_free(half);
	test_free(whole);
}

RUN_ON_GPU(gpu)
