/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of 16 bits, all of them, against a formula that knows nothing of bits; and what is
 * read by way of them: factors however they lie, and pairs of corrections. */
#include "packed_file.h"

#include "factor.h"
#include "floats.h"
#include "lowrank.h"
#include "transform_make.h"

#include <math.h>

enum { MANY = 65536 };

/* Sign, exponent, fraction; IEEE: all ones are infinities and NaN. */
static double value_of(unsigned bits, int n_exponent, int n_fraction)
{
	const int bias = (1 << (n_exponent - 1)) - 1,
		  e = (int)(bits >> n_fraction) & ((1 << n_exponent) - 1);
	const double f = (double)(bits & ((1u << n_fraction) - 1)) / (1 << n_fraction);
	const double sign = bits >> (n_exponent + n_fraction) & 1 ? -1 : 1;
	if (e == (1 << n_exponent) - 1)
		return f > 0 ? (double)NAN : sign * HUGE_VAL;
	return sign * (e ? (1 + f) * pow(2, e - bias) : f * pow(2, 1 - bias));
}

static double value(enum ws_dtype dtype, uint16_t bits)
{
	return dtype == WS_DTYPE_BF16 ? value_of(bits, 8, 7) : value_of(bits, 5, 10);
}

static const enum ws_dtype halves[] = { WS_DTYPE_BF16, WS_DTYPE_F16 };

static float *all_of(enum ws_dtype dtype)
{
	uint16_t *raw = malloc(MANY * sizeof *raw);
	float *x = malloc(MANY * sizeof *x);
	for (unsigned i = 0; i < MANY; i++)
		raw[i] = (uint16_t)i;
	ws_floats_read(dtype, raw, MANY, x);
	free(raw);
	return x;
}

static uint16_t rounded(enum ws_dtype dtype, float x)
{
	uint16_t out;
	ws_floats_write(dtype, &x, 1, &out);
	return out;
}

TEST(every_pattern_is_the_number_that_it_stands_for)
{
	for (int k = 0; k < 2; k++) {
		float *x = all_of(halves[k]);
		for (unsigned i = 0; i < MANY; i++) {
			const double want = value(halves[k], (uint16_t)i);
			if (isnan(want) ?
			            !isnan(x[i]) :
			            (double)x[i] != want || (signbit(x[i]) != 0) != (i >> 15 != 0))
				fail_msg("%04x is %g, not %g", i, (double)x[i], want);
			const uint16_t back = rounded(halves[k], x[i]);
			if (isnan(want) ? !isnan(value(halves[k], back)) : back != i)
				fail_msg("%04x comes back as %04x", i, back);
		}
		free(x);
	}
}

/* Between each two neighbours: the one that is nearer, and of a tie the even one. The largest
 * number's upper neighbour would be a power of two, from half way to which on it is infinity. */
TEST(what_lies_between_goes_to_the_nearest_and_ties_to_even)
{
	for (int k = 0; k < 2; k++) {
		const unsigned infinity = halves[k] == WS_DTYPE_BF16 ? 0x7f80 : 0x7c00;
		for (unsigned i = 0; i < infinity; i++) {
			const double below = value(halves[k], (uint16_t)i);
			const double above = i + 1 < infinity ?
			                             value(halves[k], (uint16_t)(i + 1)) :
			                             pow(2, halves[k] == WS_DTYPE_BF16 ? 128 : 16);
			const float middle = (float)((below + above) / 2);
			/* one bit more, which fp32 has */
			assert_true((double)middle == (below + above) / 2);
			const unsigned even = i % 2 ? i + 1 : i;
			const struct { float x; unsigned want;
			} points[] = {
				{ middle, even },
				{ nextafterf(middle, 0), i },
				{ nextafterf(middle, INFINITY), i + 1 },
			};
			for (int p = 0; p < 3; p++) {
				if (rounded(halves[k], points[p].x) != points[p].want ||
				    rounded(halves[k], -points[p].x) != (points[p].want | 0x8000))
					fail_msg("%d, %a: %04x, not %04x", k, (double)points[p].x,
					         rounded(halves[k], points[p].x), points[p].want);
			}
		}
	}
}

TEST(what_is_beyond_the_range_becomes_infinity_and_nan_stays_one)
{
	assert_int_equal(rounded(WS_DTYPE_F16, 65519.996f), 0x7bff);
	assert_int_equal(rounded(WS_DTYPE_F16, 65520), 0x7c00);
	assert_int_equal(rounded(WS_DTYPE_F16, -3e38f), 0xfc00);
	assert_int_equal(rounded(WS_DTYPE_BF16, 3.4e38f), 0x7f80);
	assert_int_equal(rounded(WS_DTYPE_BF16, -INFINITY), 0xff80);
	assert_int_equal(rounded(WS_DTYPE_F16, 0x1p-149f), 0);
	/* Payloads whose upper bits are all zero must not become infinities. */
	for (uint32_t low = 1; low < 0x800000; low = low * 5 + 3) {
		const uint32_t bits = 0xff800000 | low;
		float x;
		memcpy(&x, &bits, sizeof x);
		for (int k = 0; k < 2; k++) {
			const uint16_t h = rounded(halves[k], x);
			assert_true(isnan(value(halves[k], h)) && h >> 15);
		}
	}
}

TEST(fp32_is_copied_bit_by_bit)
{
	const uint32_t bits[] = {
		0, 0x80000000, 1, 0x7f800001, 0xffc00001, 0x7f7fffff, 0x00800000
	};
	float x[7];
	uint32_t back[7];
	ws_floats_read(WS_DTYPE_F32, bits, 7, x);
	ws_floats_write(WS_DTYPE_F32, x, 7, back);
	assert_memory_equal(back, bits, sizeof bits);
	assert_true(ws_floats_known(WS_DTYPE_F32) && ws_floats_known(WS_DTYPE_F16) &&
	            ws_floats_known(WS_DTYPE_BF16));
	assert_false(ws_floats_known(WS_DTYPE_F8_E4M3) || ws_floats_known(WS_DTYPE_F64) ||
	             ws_floats_known(WS_DTYPE_I8));
}

TEST(the_first_that_is_not_finite_is_found_wherever_it_is)
{
	static const size_t lengths[] = { 1, 255, 256, 257, 1000 };
	static const enum ws_dtype dtypes[] = { WS_DTYPE_BF16, WS_DTYPE_F16, WS_DTYPE_F32 };
	for (int k = 0; k < 3; k++) {
		const size_t size = dtypes[k] == WS_DTYPE_F32 ? 4 : 2;
		for (size_t l = 0; l < 5; l++) {
			const size_t n = lengths[l];
			float *x = malloc(n * sizeof *x);
			char *raw = malloc(n * size);
			for (size_t at = 0; at < n; at++) {
				for (size_t i = 0; i < n; i++)
					x[i] = i % 2 ? 60000 : -0.0f;
				x[at] = at % 3 ? INFINITY : NAN;
				/* a later one */
				x[n - 1] = at < n - 1 && at % 2 ? -INFINITY : x[n - 1];
				ws_floats_write(dtypes[k], x, n, raw);
				size_t found = 0;
				double is = 0;
				assert_false(ws_floats_finite(dtypes[k], raw, n, &found, &is));
				assert_int_equal(found, at);
				assert_true(at % 3 ? is == HUGE_VAL : isnan(is));
				x[at] = x[n - 1] = 0;
				ws_floats_write(dtypes[k], x, n, raw);
				assert_true(ws_floats_finite(dtypes[k], raw, n, &found, &is));
			}
			free(x);
			free(raw);
		}
	}
}

/* The definition, number by number, at every length. */
TEST(moderate_is_what_is_far_from_the_end_of_the_range)
{
	for (int k = 0; k < 2; k++)
		for (unsigned i = 0; i < MANY; i++) {
			const double x = fabs(value(halves[k], (uint16_t)i));
			const bool want = x < (halves[k] == WS_DTYPE_BF16 ? 0x1p126 : 0x1p15);
			uint16_t raw[300] = { 0 };
			raw[i % 300] = (uint16_t)i;
			assert_true(ws_floats_moderate(halves[k], raw, 300) == want);
			assert_true(ws_floats_moderate(halves[k], &raw[i % 300], 1) == want);
		}
	float x[600] = { 0 };
	x[5] = -0x1.fffffep125f;
	assert_true(ws_floats_moderate(WS_DTYPE_F32, x, 600));
	x[500] = 0x1p126f;
	assert_false(ws_floats_moderate(WS_DTYPE_F32, x, 600));
	x[500] = NAN;
	assert_false(ws_floats_moderate(WS_DTYPE_F32, x, 600));
	assert_true(ws_floats_moderate(WS_DTYPE_F32, x, 500));
}

/* Every pattern of a type as the weight, with a change that moves it: one rounding, or two. */
TEST(sums_are_rounded_once_or_twice_as_was_asked)
{
	for (int k = 0; k < 2; k++) {
		float *w = all_of(halves[k]), *d = malloc(MANY * sizeof *d);
		uint16_t *out = malloc(MANY * sizeof *out);
		for (unsigned i = 0; i < MANY; i++)
			d[i] = w[(i * 40503u + 12345u) % MANY] *
			       1.00390625f; /* between two of the type's numbers */
		for (int two_step = 0; two_step < 2; two_step++) {
			/* rows that end in the midst of a block, and one of many blocks */
			struct ws_sum_tile t = { .w = w, .w_stride = 300, .delta = d,
				                 .delta_stride = 300, .out = out,
				                 .out_stride = 300, .n = 3, .m = 300,
				                 .two_step = two_step };
			ws_floats_add(halves[k], &t);
			assert_true((double)t.max_w == value(halves[k], 899));
			t.w += 900, t.delta += 900, t.out = out + 900;
			t.n = 1, t.m = MANY - 900;
			ws_floats_add(halves[k], &t);
			assert_true(isnan(t.max_delta) && isnan(t.max_w)); /* there were some */
			for (unsigned i = 0; i < MANY; i++) {
				const double delta =
					two_step ? value(halves[k], rounded(halves[k], d[i])) :
						   (double)d[i];
				/* exact in double, or far apart */
				const float sum = (float)((double)w[i] + delta);
				const uint16_t want = rounded(halves[k], sum);
				if (isnan(sum) ? !isnan(value(halves[k], out[i])) : out[i] != want)
					fail_msg("%04x and %a: %04x, not %04x", i, (double)d[i],
					         out[i], want);
			}
		}
		free(w), free(d), free(out);
	}
}

/* ---- factors --------------------------------------------------------------------------------- */

/* Number i of the file is i % 2039, which all of the types have. */
static const struct ws_item *write_numbers(struct opened_file *f, enum ws_dtype dtype, size_t n)
{
	static const char *const names[] = {
		[WS_DTYPE_BF16] = "BF16", [WS_DTYPE_F16] = "F16", [WS_DTYPE_F32] = "F32"
	};
	const unsigned most = dtype == WS_DTYPE_BF16 ? 251 : 2039;
	float *x = malloc(n * sizeof *x);
	char *raw = malloc(n * sizeof *x), shape[32];
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(i % most);
	ws_floats_write(dtype, x, n, raw);
	snprintf(shape, sizeof shape, "[%zu,10]", n / 10);
	const struct part part = { "x.lora_A.weight", names[dtype], shape, raw,
		                   n * (dtype == WS_DTYPE_F32 ? 4 : 2) };
	write_packed(f, &part, 1);
	free(x);
	free(raw);
	return ws_catalog_item(f->catalog, 0);
}

static void check_factor(const struct ws_factor *f, enum ws_dtype dtype, int64_t i, int64_t n,
                         int64_t j, int64_t m)
{
	const uint64_t most = dtype == WS_DTYPE_BF16 ? 251 : 2039;
	float *out = malloc((size_t)(n * m) * sizeof *out);
	struct ws_buf buf;
	struct ws_err err = WS_ERR_INIT;
	ws_buf_init(&buf, 128 << 10);
	assert_ok(ws_factor_read(f, &(struct ws_rect){ i, n, j, m }, out, &buf, &err), &err);
	for (int64_t r = 0; r < n; r++)
		for (int64_t c = 0; c < m; c++) {
			const uint64_t at = f->at + (uint64_t)((i + r) * f->row + (j + c) * f->col);
			if (out[r * m + c] != (float)(at % most))
				fail_msg(
					"row step %lld, column step %lld: element %lld, %lld is %g",
					(long long)f->row, (long long)f->col, (long long)(i + r),
					(long long)(j + c), (double)out[r * m + c]);
		}
	assert_true(buf.cap <= (128 << 10) + 1);
	ws_buf_free(&buf);
	free(out);
}

SCRATCH_TEST(factors_are_read_however_they_lie)
{
	static const enum ws_dtype dtypes[] = { WS_DTYPE_BF16, WS_DTYPE_F16, WS_DTYPE_F32 };
	static const struct { int64_t rows, cols, row, col; } ways[] = {
		{ 8, 5000, 5000, 1 },   { 5000, 8, 1, 5000 }, /* lying, standing */
		{ 5000, 8, 8, 1 },      { 8, 5000, 1, 8 },    /* narrow */
		{ 8, 50, 400, 8 },      { 50, 8, 8, 400 },    /* every eighth of a stack */
		{ 2, 2, 20000, 19999 }, { 2, 2, 19999, 20000 },
		{ 1, 40000, 1, 1 },     { 40000, 1, 1, 1 },   { 1, 1, 40000, 7 },
		{ 3, 3, 1, 17000 },     { 2, 20000, 20000, 1 },
	};
	for (int k = 0; k < 3; k++) {
		struct opened_file f;
		const struct ws_item *item = write_numbers(&f, dtypes[k], 60000);
		for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
			const struct ws_factor x = { item, 17, ways[w].row, ways[w].col };
			const int64_t i = ways[w].rows / 2, j = ways[w].cols / 3;
			check_factor(&x, dtypes[k], 0, ways[w].rows, 0, ways[w].cols);
			check_factor(&x, dtypes[k], i, ways[w].rows - i, j, ways[w].cols - j);
			check_factor(&x, dtypes[k], i, 1, j, 1);
		}
		close_file(&f);
	}
}

SCRATCH_TEST(a_number_that_is_none_is_named_only_where_it_is_read)
{
	float x[40] = { 0 }, out[40];
	struct opened_file f;
	struct ws_buf buf = { .max = 0 };
	struct ws_err err = WS_ERR_INIT;
	x[23] = -INFINITY;
	const struct part part = { "x.lora_B.weight", "F32", "[4,10]", x, sizeof x };
	write_packed(&f, &part, 1);
	const struct ws_item *item = ws_catalog_item(f.catalog, 0);
	const struct ws_factor whole = { item, 0, 10, 1 }, even = { item, 0, 10, 2 },
			       odd = { item, 1, 10, 2 };
	const struct ws_rect all = { 0, 4, 0, 10 }, left = { 0, 4, 0, 5 },
			     two_rows = { 0, 2, 0, 5 };
	assert_fails_with(ws_factor_read(&whole, &all, out, &buf, &err), &err, WS_EINPUT,
	                  "tensor 'x.lora_B.weight' has an infinity at row 2, column 3 "
	                  "(x.safetensors)");
	assert_int_equal(ws_factor_read(&even, &left, out, &buf, &err), 0);
	assert_int_equal(ws_factor_read(&odd, &left, out, &buf, &err), -1);
	assert_int_equal(ws_factor_read(&odd, &two_rows, out, &buf, &err), 0);
	ws_buf_free(&buf);
	close_file(&f);
}

/* ---- corrections ----------------------------------------------------------------------------- */

static int correct(const struct part *parts, size_t n, struct ws_err *err)
{
	static const uint16_t numbers[60];
	static const struct part base[] = { { "a.weight", "BF16", "[6,10]", numbers, 120 } };
	struct opened_file f;
	struct ws_transform *t = NULL;
	write_packed(&f, parts, n);
	close_file(&f);
	assert_int_equal(rename("x.safetensors", "c.safetensors"), 0);
	write_packed(&f, base, 1);
	const struct ws_transform_opts o = { .correction = "c.safetensors", .scratch = 16 << 20,
		                             .threads = 1 };
	*err = (struct ws_err)WS_ERR_INIT;
	const int rc = ws_transform_make(f.catalog, &o, &t, err);
	if (rc == 0) {
		uint16_t out[60];
		struct ws_transform_report report;
		assert_ok(ws_item_read(ws_catalog_item(ws_transform_catalog(t), 0), 0, out, 120,
		                       err), err);
		/* u is row by row 1, 2, ...; v likewise: their product */
		for (int i = 0; i < 60; i++)
			assert_int_equal(out[i], rounded(WS_DTYPE_BF16,
			                                 (float)((1 + i / 10) * (1 + i % 10))));
		ws_transform_report(t, &report);
		assert_int_equal(report.bound, 1);
		assert_string_equal(report.largest_name, ""); /* the base is zero: no share of it */
	}
	ws_transform_free(t);
	close_file(&f);
	return rc;
}

SCRATCH_TEST(a_correction_is_a_product_of_any_of_the_types)
{
	static const char *const types[] = { "BF16", "F16", "F32" };
	static const enum ws_dtype dtypes[] = { WS_DTYPE_BF16, WS_DTYPE_F16, WS_DTYPE_F32 };
	for (int k = 0; k < 9; k++) {
		float u[6], v[10];
		char raw_u[24], raw_v[40];
		const int a = k % 3, b = k / 3;
		for (int i = 0; i < 6; i++)
			u[i] = (float)(i + 1);
		for (int i = 0; i < 10; i++)
			v[i] = (float)(i + 1);
		ws_floats_write(dtypes[a], u, 6, raw_u);
		ws_floats_write(dtypes[b], v, 10, raw_v);
		const struct part parts[] = {
			{ "a.correction_U", types[a], "[6,1]", raw_u, a == 2 ? 24 : 12 },
			{ k % 2 ? "a.correction_V" : "a.correction_B", types[b], "[1,10]", raw_v,
			  b == 2 ? 40 : 20 },
		};
		struct ws_err err;
		assert_ok(correct(parts, 2, &err), &err);
	}
}

SCRATCH_TEST(corrections_that_fit_nothing_are_refused)
{
	/* clang-format off */
	static const struct { struct part parts[3]; size_t n; const char *says; } bad[] = {
		{ { { "a.correction_U", "F32", "[6,1]", NULL, 24 } }, 1,
		  "correction 'a.correction_U': there is no correction_V or correction_B with it" },
		{ { { "b.correction_U", "F32", "[6,1]", NULL, 24 },
		  { "b.correction_V", "F32", "[1,10]", NULL, 40 } }, 2,
		  "correction 'b.correction_U': the checkpoint has no such module" },
		{ { { "a.correction_U", "F32", "[5,1]", NULL, 20 },
		  { "a.correction_V", "F32", "[1,10]", NULL, 40 } }, 2,
		  "correction 'a.correction_U': its product would be [5, 10], the tensor is [6, "
		  "10]" },
		{ { { "a.correction_U", "F32", "[6,2]", NULL, 48 },
		  { "a.correction_V", "F32", "[1,10]", NULL, 40 } }, 2,
		  "correction 'a.correction_U': its product would be [6, 10], the tensor is [6, "
		  "10]" },
		{ { { "a.correction_U", "F32", "[6]", NULL, 24 },
		  { "a.correction_V", "F32", "[1,10]", NULL, 40 } }, 2,
		  "correction 'a.correction_U'" },
		{ { { "a.correction_U", "I8", "[6,1]", NULL, 6 },
		  { "a.correction_V", "F32", "[1,10]", NULL, 40 } }, 2,
		  "correction 'a.correction_U': factors are BF16, F16 or F32" },
		{ { { "a.correction_U", "F32", "[6,0]", NULL, 0 },
		  { "a.correction_V", "F32", "[0,10]", NULL, 0 } }, 2,
		  "correction 'a.correction_U'" },
		{ { { "a.correction_U", "F32", "[6,1]", NULL, 24 },
		  { "a.correction_V", "F32", "[1,10]", NULL, 40 },
		  { "a.correction_B", "F32", "[1,10]", NULL, 40 } }, 3,
		  "c.safetensors: 1 tensors are no pairs X.correction_U and X.correction_V" },
		{ { { "a.weight", "F32", "[6,10]", NULL, 240 } }, 1,
		  "c.safetensors: 1 tensors are no pairs" },
	};
	/* clang-format on */
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ws_err err;
		assert_fails(correct(bad[i].parts, bad[i].n, &err), &err, WS_EINPUT, bad[i].says);
	}
}

RUN_TESTS(NULL, NULL)
