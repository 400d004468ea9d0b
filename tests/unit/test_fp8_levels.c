/* SPDX-License-Identifier: Apache-2.0 */
/* Every instruction set against plain C, bit for bit, in plain bulk and in hard places.
 *
 * WSYNC_TEST_NUMBERS=N draws about N random numbers instead of 10^8, each of which is compared
 * in two or three ways, and from 10^10 on every float there is. */
#include "fp8.h"
#include "fp8_rows.h"
#include "simd.h"
#include "test.h"

#include <math.h>

enum { ROWS = 16, COLS = 4096 + 37, N = ROWS * COLS };
static float x[N];
static uint16_t narrow[N];
static uint8_t codes[2][N];
static float scales[2][N];

static uint64_t rng;

static uint64_t draw(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng * 0x2545f4914f6cdd1du;
}

static float float_of(uint32_t bits)
{
	float v;
	memcpy(&v, &bits, sizeof v);
	return v;
}

static uint32_t bits_of(float v)
{
	uint32_t bits;
	memcpy(&bits, &v, sizeof bits);
	return bits;
}

/* ---- hard numbers: of any of these kinds, with the scales they belong to ---- */

static float any_bits(float scale)
{
	(void)scale;
	const uint32_t bits = (uint32_t)draw();
	return (bits & 0x7f800000) == 0x7f800000 ? float_of(bits & 0xbfffffff) : float_of(bits);
}

static float like_weights(float scale)
{
	float sum = -2;
	const uint64_t r = draw();
	for (int i = 0; i < 4; i++)
		sum += (float)(r >> 16 * i & 0xffff) / 65536;
	return sum * scale * 224;
}

/* A step or a tie of the code, times the scale, and a few units in the last place away. */
static float on_a_border(float scale)
{
	const uint64_t r = draw();
	const unsigned code = (unsigned)(r % 0x7e);
	const float here = ws_fp8_to_float((uint8_t)code),
		    next = ws_fp8_to_float((uint8_t)(code + 1));
	const float border = (r >> 8 & 1 ? here : (here + next) / 2) * scale;
	const uint32_t bits = bits_of(border), off = (uint32_t)(r >> 16 & 15);
	return float_of((bits > 8 ? bits + off - 7 : bits) | (uint32_t)(r >> 32 & 0x80000000));
}

/* The same for bf16, whose nearest numbers are further away. */
static float near_a_border(float scale)
{
	return float_of(bits_of(on_a_border(scale)) + (uint32_t)(draw() & 0x10000));
}

static float of_any_size(float scale)
{
	const uint64_t r = draw();
	const uint32_t exponent = 127 + 9 - (uint32_t)(r % 24);
	return float_of((uint32_t)(r >> 32 & 0x807fffff) | exponent << 23) * scale;
}

static float nothing_or_little(float scale)
{
	const uint64_t r = draw();
	(void)scale;
	return float_of((uint32_t)(r & 0x80000000) | (r & 3 ? 0 : (uint32_t)(r >> 40)));
}

static float (*const kinds[])(float) = { any_bits,      like_weights, on_a_border,
	                                 near_a_border, of_any_size,  nothing_or_little };
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static float any_scale(void)
{
	return float_of((uint32_t)(draw() >> 41) | (127 + 40 - (uint32_t)(draw() % 80)) << 23);
}

/* ---- comparing ---- */

struct run {
	struct ws_fp8_rule rule;
	int64_t rows, cols;
	bool wide;
};

static bool make(const struct run *r, const char *level, int to, bool scale_them,
                 struct ws_fp8_bad *bad)
{
	assert_true(ws_simd_set_level(level));
	const size_t stride = (size_t)r->cols;
	const struct ws_fp8_band band = { r->wide ? (const void *)x : narrow, r->wide, stride,
		                          r->rows, r->cols };
	if (scale_them && !ws_fp8_scales(&r->rule, &band, scales[to], bad))
		return false;
	ws_fp8_codes(&r->rule, &band, scales[to], codes[to], stride);
	return true;
}

/* scale_them false: codes by the scales that are there, which may clamp or push all to zero. */
static uint64_t compare(const struct run *r, bool scale_them)
{
	const size_t n = (size_t)(r->rows * r->cols);
	struct ws_fp8_bad bad;
	for (size_t i = 0; i < n; i++)
		narrow[i] = (uint16_t)(bits_of(x[i]) >> 16);
	assert_true(make(r, "scalar", 0, scale_them, &bad));
	if (!scale_them)
		memcpy(scales[1], scales[0], sizeof scales[0]);
	assert_true(make(r, "avx2", 1, scale_them, &bad));
	const size_t across = (size_t)((r->cols + r->rule.bk - 1) / r->rule.bk);
	assert_memory_equal(scales[0], scales[1], across * sizeof scales[0][0]);
	for (size_t i = 0; i < n && memcmp(codes[0], codes[1], n) != 0; i++)
		if (codes[0][i] != codes[1][i])
			fail_msg("%a by %a is %02x, in plain C %02x", (double)x[i],
			         (double)scales[0][i % (size_t)r->cols / (size_t)r->rule.bk],
			         codes[1][i], codes[0][i]);
	return n;
}

static uint64_t numbers_wanted(void)
{
	const char *const n = getenv("WSYNC_TEST_NUMBERS");
	return n ? strtoull(n, NULL, 10) : 100000000;
}

/* ---- tests ---- */

TEST(hard_numbers_are_the_same_at_every_level)
{
	uint64_t compared = 0, drawn = 0;
	rng = 88172645463325252u;
	for (uint64_t round = 0; drawn < numbers_wanted(); round++, drawn += N) {
		struct run r = { { round % 2 ? WS_SCALE_SLIME : WS_SCALE_XORL, round / 8 % 8 == 0,
			           ROWS, 128 },
			         ROWS,
			         COLS,
			         round % 4 / 2 };
		const float scale = any_scale();
		float (*const kind)(float) = kinds[round / 4 % N_KINDS];
		for (size_t i = 0; i < N; i++)
			x[i] = kind(scale);
		/* What was drawn around this scale's borders is to be scaled
		 * by it, the rest by its own. */
		if (kind == on_a_border || kind == near_a_border || round % 3 == 0) {
			for (size_t i = 0; i < COLS; i++)
				scales[0][i] = scale;
			compared += compare(&r, false);
		} else {
			compared += compare(&r, true);
		}
		/* The same numbers are not too many for a few more ways. */
		r.wide = !r.wide;
		compared += compare(&r, true);
		r.rule.rule = r.rule.rule == WS_SCALE_XORL ? WS_SCALE_SLIME : WS_SCALE_XORL;
		compared += compare(&r, true);
	}
	print_message("# %llu numbers drawn, %llu comparisons\n", (unsigned long long)drawn,
	              (unsigned long long)compared);
}

TEST(runs_of_every_length_are_the_same)
{
	rng = 1;
	for (int64_t bk = 1; bk <= 140; bk++)
		for (int64_t cols = 1; cols <= 150; cols += 1 + cols / 20)
			for (int way = 0; way < 4; way++) {
				const struct run r = { { way % 2 ? WS_SCALE_SLIME : WS_SCALE_XORL,
					                 false, 3, bk },
					               3,
					               cols,
					               way / 2 };
				for (int64_t i = 0; i < 3 * cols; i++)
					x[i] = like_weights(1);
				codes[0][3 * cols] = codes[1][3 * cols] = 0xcc;
				compare(&r, true);
				assert_int_equal(codes[0][3 * cols], 0xcc);
				assert_int_equal(codes[1][3 * cols], 0xcc);
			}
}

TEST(every_bf16_is_the_same_under_many_scales)
{
	rng = 2;
	for (uint32_t round = 0; round < 4 * 249; round++) {
		const struct run r = { { round % 2 ? WS_SCALE_SLIME : WS_SCALE_XORL, false, 1,
			                 1 << 16 },
			               1,
			               0xff00,
			               round % 4 / 2 };
		/* All that are finite: 0 to 0x7f7f and 0x8000 to 0xff7f. */
		for (uint32_t i = 0; i < 0xff00; i++)
			x[i] = float_of((i < 0x7f80 ? i : i + 0x80) << 16);
		/* Of every size whose reciprocal is finite, an eighth of them powers of two. */
		scales[0][0] = float_of((2 + round / 4) << 23 |
		                        (draw() % 8 ? (uint32_t)(draw() >> 41) : 0));
		compare(&r, false);
	}
}

TEST(no_number_is_found_at_the_same_place)
{
	enum { WIDE = 150 };
	static const float evil[] = { NAN, INFINITY, -INFINITY };
	for (size_t i = 0; i < 3 * WIDE; i++)
		x[i] = 1;
	for (size_t i = 0; i < 3 * WIDE; i++) {
		struct ws_fp8_bad bad = { -1, -1, 0 };
		const struct run r = { { WS_SCALE_XORL, false, 3, 50 }, 3, WIDE, i % 2 };
		x[i] = evil[i % 3];
		for (size_t k = 0; k < 3 * WIDE; k++)
			narrow[k] = (uint16_t)(bits_of(x[k]) >> 16);
		assert_false(make(&r, "avx2", 1, true, &bad));
		assert_int_equal(bad.row * WIDE + bad.col, i);
		x[i] = 1;
	}
}

/* 2^32 of them, by one scale; minutes. */
TEST(every_float_is_the_same)
{
	const struct run r = { { WS_SCALE_XORL, false, 1, 1 << 16 }, 1, 1 << 16, true };
	for (uint32_t high = 0; numbers_wanted() >= 10000000000u && high <= 0xffff;
	     high++) {
		if ((high & 0x7f80) == 0x7f80)
			continue;
		for (uint32_t low = 0; low <= 0xffff; low++)
			x[low] = float_of(high << 16 | low);
		scales[0][0] = 1;
		compare(&r, false);
	}
}

TEST(the_level_chooses_the_functions)
{
	assert_true(ws_simd_set_level("scalar"));
	assert_ptr_equal(ws_fp8_kernels(), &ws_fp8_scalar);
	assert_true(ws_simd_set_level("avx2"));
	assert_ptr_not_equal(ws_fp8_kernels(), &ws_fp8_scalar);
}

TEST(unknown_levels_are_refused)
{
	assert_true(ws_simd_set_level("scalar"));
	assert_false(ws_simd_set_level("avx"));
	assert_string_equal(ws_simd_level(), "scalar");
}

int main(void)
{
	if (!ws_simd_set_level("avx2")) {
		print_message("1..0 # SKIP this processor has no AVX2\n");
		return 0;
	}
	return run_listed(NULL, NULL);
}
