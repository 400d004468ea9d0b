/* SPDX-License-Identifier: Apache-2.0 */
/* Every instruction set gives the very bits of the definition, in every corner of a tile. */

#include "lowrank.h"
#include "lowrank_simd.h"
#include "simd.h"
#include "test.h"

#include <math.h>

static const char *const levels[] = { "scalar", "avx2" };
enum { LEVELS = 2, STRIDE = 80 };

static uint64_t seed = 88172645463325252u;

static uint32_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 32);
}

static float from_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

/* Of all sizes; products of these neither overflow nor vanish, but sums cancel. */
static float any_float(void)
{
	const uint32_t exponent = 127 - 12 + next() % 24;
	return from_bits((next() & 0x807fffff) | exponent << 23);
}

/* Also subnormals, infinities, NaN and zeros. */
static float hard_float(void)
{
	static const uint32_t hard[] = { 0,          0x80000000, 1,          0x807fffff,
		                         0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
		                         0xff800001, 0x00800000, 0x7f7f8000, 0x3f808000 };
	const uint32_t x = next();
	return from_bits(x % 4 ? x * 2654435761u : hard[x / 4 % (sizeof hard / sizeof *hard)]);
}

static float *some(size_t n, float (*make)(void))
{
	float *x = malloc((n ? n : 1) * sizeof *x);
	assert_non_null(x);
	for (size_t i = 0; i < n; i++)
		x[i] = make();
	return x;
}

static float element(const struct ws_lowrank *l, int64_t i, int64_t j)
{
	float sum = 0;
	for (int64_t r = 0; r < l->rank; r++)
		sum = fmaf(l->b[i * l->rank + r], l->a[r * l->cols + j], sum);
	return sum * l->scale;
}

static void check_tile(const struct ws_lowrank *l, int64_t row, int64_t n, int64_t col, int64_t m)
{
	for (size_t level = 0; level < LEVELS; level++) {
		if (!ws_simd_set_level(levels[level]))
			continue;
		float *out = calloc((size_t)(n + 1) * STRIDE, sizeof *out);
		assert_non_null(out);
		struct ws_lowrank from_row = *l;
		from_row.b += row * l->rank;
		ws_lowrank_tile(&from_row, n, col, m, out, STRIDE);
		for (int64_t i = 0; i <= n; i++)
			for (int64_t j = 0; j < STRIDE; j++) {
				const bool inside = i < n && j < m;
				const float expected = inside ? element(l, row + i, col + j) : 0;
				if (bits_of(out[i * STRIDE + j]) != bits_of(expected))
					fail_msg("%s, rank %d, %d x %d: [%d][%d] is %a, not %a",
					         levels[level], (int)l->rank, (int)n, (int)m,
					         (int)i, (int)j, (double)out[i * STRIDE + j],
					         (double)expected);
			}
		free(out);
	}
}

TEST(sums_have_the_defined_order_in_every_tile)
{
	static const int64_t ranks[] = { 1, 2, 3, 8, 16, 64, 127, 128, 129, 256, 300 };
	enum { ROWS = 40, COLS = 100 };
	for (size_t k = 0; k < sizeof ranks / sizeof *ranks; k++) {
		const int64_t rank = ranks[k];
		float *a = some((size_t)rank * COLS, any_float),
		      *b = some((size_t)rank * ROWS, any_float);
		const struct ws_lowrank l = { a, b, rank, COLS, 0.3f };
		for (int64_t m = 1; m <= 70; m += 1 + m / 18)
			check_tile(&l, 2, 1 + (m * 7 + rank) % 37, 30, m);
		check_tile(&l, 0, ROWS, 20, 64);
		check_tile(&l, 0, ROWS, 27, 73);
		free(a);
		free(b);
	}
}

TEST(sums_that_are_exact_are_exact)
{
	enum { N = 33, RANK = 200 };
	float a[RANK * N], b[N * RANK], out[N * STRIDE];
	for (int i = 0; i < RANK * N; i++) {
		a[i] = (float)(int)(next() % 17) - 8;
		b[i] = (float)(int)(next() % 17) - 8;
	}
	const struct ws_lowrank l = { a, b, RANK, N, 0.25f };
	for (size_t level = 0; level < LEVELS; level++) {
		if (!ws_simd_set_level(levels[level]))
			continue;
		ws_lowrank_tile(&l, N, 0, N, out, STRIDE);
		for (int i = 0; i < N; i++)
			for (int j = 0; j < N; j++) {
				int sum = 0;
				for (int r = 0; r < RANK; r++)
					sum += (int)b[i * RANK + r] * (int)a[r * N + j];
				assert_true(out[i * STRIDE + j] == (float)sum / 4);
			}
	}
}

/* By arithmetic instead of bits: the neighbours of x in bf16, and which of them is nearer. */
static uint16_t round_slowly(float x)
{
	const uint32_t bits = bits_of(x);
	if (isnan(x))
		return (uint16_t)(bits >> 16 | 0x40);
	if (isinf(x))
		return (uint16_t)(bits >> 16);
	const uint16_t low = (uint16_t)(bits >> 16);
	const double below = fabs((double)from_bits((uint32_t)low << 16));
	const uint32_t above_bits = (uint32_t)(low + 1) << 16;
	const double above = (above_bits & 0x7f800000) == 0x7f800000 ?
	                             ldexp(1, 128) :
	                             fabs((double)from_bits(above_bits));
	const double there = fabs((double)x), middle = (below + above) / 2;
	return (uint16_t)(there > middle || (there == middle && low % 2) ? low + 1 : low);
}

static void check_merge(const float *w, const float *d, int64_t n, int64_t m, size_t stride,
                        int two_step)
{
	uint16_t out[8 * STRIDE];
	uint32_t largest_d = 0, largest_w = 0;
	for (size_t level = 0; level < LEVELS; level++) {
		if (!ws_simd_set_level(levels[level]))
			continue;
		struct ws_sum_tile t = { .w = w, .w_stride = stride, .delta = d,
			                 .delta_stride = stride, .out = out, .out_stride = stride,
			                 .n = n, .m = m, .two_step = two_step };
		memset(out, 0xee, sizeof out);
		ws_merge_bf16(&t);
		largest_d = largest_w = 0;
		for (int64_t i = 0; i < n; i++)
			for (size_t j = 0; j < stride; j++) {
				const size_t at = (size_t)i * stride + j;
				if ((int64_t)j >= m) {
					assert_int_equal(out[at], 0xeeee);
					continue;
				}
				const float delta =
					two_step ? from_bits((uint32_t)round_slowly(d[at]) << 16) :
						   d[at];
				const float sum = w[at] + delta;
				if (isnan(sum))
					assert_true((out[at] & 0x7fff) > 0x7f80 &&
					            (out[at] & 0x40));
				else
					assert_int_equal(out[at], round_slowly(sum));
				const uint32_t size_d = bits_of(delta) & 0x7fffffff,
				               size_w = bits_of(w[at]) & 0x7fffffff;
				largest_d = size_d > largest_d ? size_d : largest_d;
				largest_w = size_w > largest_w ? size_w : largest_w;
			}
		assert_int_equal(bits_of(t.max_delta), largest_d);
		assert_int_equal(bits_of(t.max_w), largest_w);
	}
}

TEST(merging_rounds_once_or_twice)
{
	for (int round = 0; round < 400; round++) {
		float (*make)(void) = round % 2 ? hard_float : any_float;
		float *w = some(8 * STRIDE, make), *d = some(8 * STRIDE, make);
		check_merge(w, d, 1 + round % 8, 1 + round % STRIDE, STRIDE, round / 2 % 2);
		free(w);
		free(d);
	}
}

TEST(halves_go_to_even)
{
	const float w[] = { 1, 1, -1, 256, 1 }, d[] = { 0x1p-8f, 0x1.8p-7f, 0x1p-8f, 1, -0x1p-9f };
	uint16_t out[5];
	for (size_t level = 0; level < LEVELS; level++) {
		if (!ws_simd_set_level(levels[level]))
			continue;
		struct ws_sum_tile t = { .w = w, .delta = d, .out = out, .n = 1, .m = 5 };
		ws_merge_bf16(&t);
		assert_int_equal(out[0], 0x3f80); /* 1 + 2^-8 lies between 1 and 1 + 2^-7 */
		assert_int_equal(out[1], 0x3f82);
		assert_int_equal(out[2], 0xbf7f);
		assert_int_equal(out[3], 0x4380);
		assert_int_equal(out[4], 0x3f80);
		assert_true(t.max_delta == 1 && t.max_w == 256);
	}
}

TEST(the_level_chooses_the_functions)
{
	assert_true(ws_simd_set_level("scalar"));
	assert_ptr_equal(ws_lowrank_ops(), &ws_lowrank_scalar);
	if (ws_simd_set_level("avx2"))
		assert_ptr_not_equal(ws_lowrank_ops(), &ws_lowrank_scalar);
}

RUN_TESTS(NULL, NULL)
