/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3 and its scales against the definition: the nearest of all codes, found
 * by looking at all of them. */
#include "fp8.h"
#include "number.h"
#include "test.h"

#include <math.h>

static uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static float float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static uint16_t bf16_of(float x)
{
	return (uint16_t)(bits_of(x) >> 16);
}

static const struct ws_fp8_rule xorl = { WS_SCALE_XORL, false, 128, 128 };
static const struct ws_fp8_rule slime = { WS_SCALE_SLIME, false, 128, 128 };

/* The nearest finite code, of two equally near ones the even one. Distances are exact in
 * doubles. */
static uint8_t by_definition(double x)
{
	static double values[0x7f];
	const double magnitude = fmin(fabs(x), 448);
	unsigned best = 0;
	for (unsigned code = 0; code < 0x7f && values[0x7e] == 0; code++)
		values[code] = ws_number_from_e4m3((uint8_t)code);
	for (unsigned code = 1; code < 0x7f; code++) {
		const double d = fabs(values[code] - magnitude),
			     least = fabs(values[best] - magnitude);
		if (d < least || (d == least && code % 2 == 0))
			best = code;
	}
	return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

/* ---- numbers ---- */

TEST(every_code_is_read_and_comes_back)
{
	for (unsigned code = 0; code < 256; code++) {
		const float x = ws_fp8_to_float((uint8_t)code);
		if ((code & 0x7f) == 0x7f) {
			assert_true(isnan(x));
			continue;
		}
		assert_true((double)x == ws_number_from_e4m3((uint8_t)code));
		assert_int_equal(signbit(x) != 0, code >> 7);
		assert_int_equal(ws_fp8_from_float(x), code);
	}
}

TEST(every_finite_bf16_rounds_to_the_nearest_code)
{
	for (unsigned bits = 0; bits <= 0xffff; bits++) {
		const float x = float_of(bits << 16);
		if (isfinite(x))
			assert_int_equal(ws_fp8_from_float(x), by_definition((double)x));
	}
}

TEST(floats_around_every_border_round_to_the_nearest_code)
{
	for (unsigned code = 0; code < 0x7f; code++) {
		const float here = ws_fp8_to_float((uint8_t)code);
		const float next = code < 0x7e ? ws_fp8_to_float((uint8_t)(code + 1)) : 480;
		const float borders[] = { here, (here + next) / 2, (3 * here + next) / 4, next };
		for (size_t b = 0; b < 4; b++)
			for (int32_t step = -600; step <= 600; step++) {
				const int64_t bits = (int64_t)bits_of(borders[b]) + step;
				if (bits < 0)
					continue;
				const float x = float_of((uint32_t)bits);
				const uint8_t want = by_definition((double)x);
				assert_int_equal(ws_fp8_from_float(x), want);
				assert_int_equal(ws_fp8_from_float(-x), want | 0x80);
			}
	}
}

TEST(zeros_keep_their_sign_and_the_rest_is_clamped)
{
	static const struct {
		float x;
		uint8_t code;
	} cases[] = { { 0, 0 },       { 0x1p-149f, 0 }, { 0x1p-10f, 0 },     { 0x1.000002p-10f, 1 },
		      { 0x1p-9f, 1 }, { 0x1.8p-9f, 2 }, { 0x1.dfffp-7f, 7 }, { 0x1.ep-7f, 8 },
		      { 0x1p-6f, 8 }, { 448, 0x7e },    { 463.9f, 0x7e },    { 464, 0x7e },
		      { 465, 0x7e },  { 1e30f, 0x7e },  { 3.4e38f, 0x7e } };
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		assert_int_equal(ws_fp8_from_float(cases[i].x), cases[i].code);
		assert_int_equal(ws_fp8_from_float(-cases[i].x), cases[i].code | 0x80);
	}
}

/* ---- scales ---- */

TEST(scales_follow_the_rule)
{
	static const float amax[] = { 0x1p-149f, 1e-13f, 1e-12f, 1.1e-12f, 9e-11f, 1e-10f, 2e-10f,
		                      0.037f, 1, 447, 448, 449, 65504, 3.4028234e38f };
	for (size_t i = 0; i < sizeof amax / sizeof amax[0]; i++) {
		assert_true(ws_fp8_scale(&xorl, amax[i]) == fmaxf(amax[i], 1e-12f) / 448);
		assert_true(ws_fp8_scale(&slime, amax[i]) == fmaxf(amax[i], 1e-10f) / 448);
	}
	assert_true(bits_of(ws_fp8_scale(&xorl, 0)) == 0x2720d7c5);
}

TEST(power_of_two_scales_are_rounded_up)
{
	const struct ws_fp8_rule r = { WS_SCALE_XORL, true, 128, 128 };
	for (int e = -20; e < 20; e++) {
		const float exact = ldexpf(448, e);
		assert_true(ws_fp8_scale(&r, exact) == ldexpf(1, e));
		assert_true(ws_fp8_scale(&r, nextafterf(exact, INFINITY)) >= ldexpf(1, e));
		assert_true(ws_fp8_scale(&r, exact * 1.01f) == ldexpf(1, e + 1));
		assert_true(ws_fp8_scale(&r, exact * 0.99f) == ldexpf(1, e));
	}
	assert_true(frexpf(ws_fp8_scale(&r, 0), &(int){ 0 }) == 0.5f);
	assert_true(isfinite(ws_fp8_scale(&r, 3.4028234e38f)));
}

/* ---- bands ---- */

/* Everything of one tensor by the plainest of loops. */
static void check_tensor(const struct ws_fp8_rule *r, const float *x, int64_t rows, int64_t cols)
{
	const int64_t across = (cols + r->bk - 1) / r->bk;
	const size_t n = (size_t)(rows * cols);
	uint16_t *const narrow = malloc(n * 2 + 1);
	uint8_t *const codes = malloc(n * 2 + 1);
	float *const scales = malloc((size_t)across * 2 * sizeof *scales);
	struct ws_fp8_bad bad;
	for (size_t i = 0; i < n; i++)
		narrow[i] = bf16_of(x[i]);
	for (int64_t row = 0; row < rows; row += r->bn) {
		const int64_t high = rows - row < r->bn ? rows - row : r->bn;
		const size_t at = (size_t)(row * cols), stride = (size_t)cols;
		const struct ws_fp8_band wide = { x + at, true, stride, high, cols };
		const struct ws_fp8_band half = { narrow + at, false, stride, high, cols };
		assert_true(ws_fp8_scales(r, &wide, scales, &bad));
		assert_true(ws_fp8_scales(r, &half, scales + across, &bad));
		ws_fp8_codes(r, &wide, scales, codes + at, stride);
		ws_fp8_codes(r, &half, scales + across, codes + n + at, stride);
		for (int64_t col = 0; col < cols; col++) {
			float amax = 0;
			for (int64_t k = 0; k < high; k++)
				for (int64_t c = col / r->bk * r->bk;
				     c < cols && c / r->bk == col / r->bk; c++)
					amax = fmaxf(amax, fabsf(x[(row + k) * cols + c]));
			const float s = scales[col / r->bk];
			assert_true(bits_of(s) == bits_of(ws_fp8_scale(r, amax)));
			assert_true(s == scales[across + col / r->bk]);
			for (int64_t k = 0; k < high; k++) {
				const size_t here = (size_t)((row + k) * cols + col);
				const float y =
					r->rule == WS_SCALE_SLIME ? x[here] * (1 / s) : x[here] / s;
				assert_int_equal(codes[here], by_definition((double)y));
				assert_int_equal(codes[n + here], codes[here]);
			}
		}
	}
	free(narrow);
	free(codes);
	free(scales);
}

TEST(ragged_blocks_are_scaled_by_what_there_is)
{
	static const int64_t shapes[][4] = { { 1, 1, 128, 128 }, { 1, 7, 128, 128 },
		                             { 7, 1, 128, 128 }, { 3, 130, 2, 128 },
		                             { 5, 33, 128, 16 }, { 9, 47, 4, 5 },
		                             { 2, 100, 1, 1 },   { 16, 20, 100, 100 },
		                             { 3, 65, 1, 32 } };
	float x[16 * 130];
	srand(1);
	for (size_t i = 0; i < sizeof x / sizeof x[0]; i++)
		x[i] = float_of((uint32_t)bf16_of(((float)rand() / (float)RAND_MAX - 0.5f) *
		                                  ldexpf(1, rand() % 8))
		                << 16);
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
		for (int rule = 0; rule < 4; rule++) {
			const struct ws_fp8_rule r = { rule % 2 ? WS_SCALE_SLIME : WS_SCALE_XORL,
				                       rule > 1, shapes[i][2], shapes[i][3] };
			check_tensor(&r, x, shapes[i][0], shapes[i][1]);
		}
}

TEST(blocks_of_zeros_and_of_tiny_numbers_have_the_least_scale)
{
	float x[256] = { 0 };
	check_tensor(&xorl, x, 1, 256);
	for (size_t i = 0; i < 256; i++)
		x[i] = i % 2 ? -0.0f : 0x1p-130f;
	check_tensor(&xorl, x, 2, 128);
	check_tensor(&slime, x, 1, 256);
	x[3] = 3.38953139e38f; /* the largest bf16 */
	check_tensor(&xorl, x, 2, 128);
	check_tensor(&slime, x, 1, 256);
}

TEST(what_is_no_number_is_found_with_its_place)
{
	enum { COLS = 300, ROWS = 5 };
	static float x[ROWS * COLS];
	static uint16_t narrow[ROWS * COLS];
	static const float evil[] = { NAN, -INFINITY, INFINITY };
	const struct ws_fp8_band wide = { x, true, COLS, ROWS, COLS };
	const struct ws_fp8_band half = { narrow, false, COLS, ROWS, COLS };
	float scales[3];
	struct ws_fp8_bad bad;
	for (size_t i = 0; i < ROWS * COLS; i += 7) {
		const float v = evil[i % 3];
		x[i] = v;
		narrow[i] = (uint16_t)(bf16_of(v) | (isnan(v) ? 1 : 0));
		for (int way = 0; way < 2; way++) {
			bad = (struct ws_fp8_bad){ -1, -1, 0 };
			assert_false(ws_fp8_scales(way ? &slime : &xorl, way ? &half : &wide,
			                           scales, &bad));
			assert_int_equal(bad.row, i / COLS);
			assert_int_equal(bad.col, i % COLS);
			assert_true(isnan(v) ? isnan(bad.value) : bad.value == v);
		}
		x[i] = 1;
		narrow[i] = bf16_of(1);
	}
	assert_true(ws_fp8_scales(&xorl, &wide, scales, &bad));
}

TEST(rows_between_are_left_alone)
{
	float x[4][16];
	uint8_t codes[4][8];
	float scales[2];
	struct ws_fp8_bad bad;
	const struct ws_fp8_rule r = { WS_SCALE_XORL, false, 4, 3 };
	memset(codes, 0xcc, sizeof codes);
	for (int i = 0; i < 64; i++)
		x[i / 16][i % 16] = i % 16 < 5 ? (float)i : NAN;
	const struct ws_fp8_band band = { x, true, 16, 4, 5 };
	assert_true(ws_fp8_scales(&r, &band, scales, &bad));
	ws_fp8_codes(&r, &band, scales, codes[0], 8);
	for (int i = 0; i < 32; i++)
		assert_int_equal(codes[i / 8][i % 8] == 0xcc, i % 8 >= 5);
}

TEST(codes_become_numbers_by_the_scale_of_their_block)
{
	uint8_t codes[256];
	float out[256], scales[41];
	for (int i = 0; i < 256; i++)
		codes[i] = (uint8_t)i;
	for (int i = 0; i < 41; i++)
		scales[i] = 0.37f * (float)(i + 1);
	for (int64_t col = 0; col < 30; col += 3) {
		ws_fp8_decode_row(codes, col, 256, 7, scales, out);
		for (int i = 0; i < 256; i++) {
			const float want = ws_fp8_to_float((uint8_t)i) * scales[(col + i) / 7];
			assert_true(isnan(want) ? isnan(out[i]) : bits_of(out[i]) == bits_of(want));
		}
	}
}

RUN_TESTS(NULL, NULL)
