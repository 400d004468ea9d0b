/* SPDX-License-Identifier: Apache-2.0 */
/* Elements as numbers: every pattern of the small types against a second way to read it. */
#include "number.h"
#include "test.h"

#include <math.h>

/* The same number, or both NaN; zeros with their sign. */
static bool same(double a, double b)
{
	return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

/* By the definition, in powers of two added up; `special` is the exponent field
 * of inf and NaN, -1: none. */
static double by_definition(unsigned bits, int n_exponent, int n_fraction, int bias, int special)
{
	int exponent = (int)(bits >> n_fraction & ((1u << n_exponent) - 1));
	const double sign = bits >> (n_exponent + n_fraction) & 1 ? -1 : 1;
	const bool subnormal = exponent == 0;
	double significand = subnormal ? 0 : 1;
	for (int i = 1; i <= n_fraction; i++)
		if (bits >> (n_fraction - i) & 1)
			significand += pow(2, -i);
	if (exponent == special)
		return significand > 1 ? NAN : sign * INFINITY;
	return sign * significand * pow(2, (subnormal ? 1 : exponent) - bias);
}

TEST(every_bf16_pattern_is_read)
{
	for (unsigned bits = 0; bits <= 0xffff; bits++)
		assert_true(same(ws_number_from_bf16((uint16_t)bits),
		                 by_definition(bits, 8, 7, 127, 255)));
}

TEST(every_f16_pattern_is_read)
{
	for (unsigned bits = 0; bits <= 0xffff; bits++)
		assert_true(same(ws_number_from_f16((uint16_t)bits),
		                 by_definition(bits, 5, 10, 15, 31)));
}

TEST(every_f8_pattern_is_read)
{
	for (unsigned bits = 0; bits <= 0xff; bits++) {
		const uint8_t byte = (uint8_t)bits;
		double v;
		assert_true(same(ws_number_from_e5m2(byte), by_definition(bits, 5, 2, 15, 31)));
		if ((bits & 0x7f) == 0x7f)
			assert_true(isnan(ws_number_from_e4m3(byte)));
		else
			assert_true(
				same(ws_number_from_e4m3(byte), by_definition(bits, 4, 3, 7, -1)));
		assert_true(same(ws_number_from_e8m0(byte),
		                 bits == 0xff ? NAN : pow(2, (int)bits - 127)));
		ws_number_read(WS_DTYPE_F8_E4M3FNUZ, &byte, 1, &v);
		assert_true(same(v, bits == 0x80 ? NAN : by_definition(bits, 4, 3, 8, -1)));
		ws_number_read(WS_DTYPE_F8_E5M2FNUZ, &byte, 1, &v);
		assert_true(same(v, bits == 0x80 ? NAN : by_definition(bits, 5, 2, 16, -1)));
	}
	assert_true(ws_number_from_e4m3(0x7e) == 448);
	assert_true(ws_number_from_e5m2(0x7b) == 57344);
}

TEST(integers_floats_and_odd_addresses_are_read)
{
	const struct { enum ws_dtype dtype; const char *bytes; double first, second; } rows[] = {
		{ WS_DTYPE_BOOL, "\0\1", 0, 1 },
		{ WS_DTYPE_U8, "\0\377", 0, 255 },
		{ WS_DTYPE_I8, "\177\200", 127, -128 },
		{ WS_DTYPE_I16, "\0\200\377\377", -32768, -1 },
		{ WS_DTYPE_U16, "\0\200\377\377", 32768, 65535 },
		{ WS_DTYPE_I32, "\0\0\0\200\1\0\0\0", -2147483648.0, 1 },
		{ WS_DTYPE_U32, "\0\0\0\200\1\0\0\0", 2147483648.0, 1 },
		{ WS_DTYPE_I64, "\377\377\377\377\377\377\377\377\1\0\0\0\0\0\0\0", -1, 1 },
		{ WS_DTYPE_U64, "\377\377\377\377\377\377\377\377\1\0\0\0\0\0\0\0", 0x1p64, 1 },
		{ WS_DTYPE_F32, "\0\0\200\77\0\0\200\377", 1, -INFINITY },
		{ WS_DTYPE_F64, "\0\0\0\0\0\0\360\77\0\0\0\0\0\0\360\177", 1, INFINITY },
		{ WS_DTYPE_BF16, "\200\77\0\300", 1, -2 },
		{ WS_DTYPE_F16, "\0\74\0\300", 1, -2 },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		char odd[17];
		double v[2];
		memcpy(odd + 1, rows[i].bytes, 2 * ws_dtype_bits(rows[i].dtype) / 8);
		assert_true(ws_number_readable(rows[i].dtype));
		ws_number_read(rows[i].dtype, odd + 1, 2, v);
		assert_true(same(v[0], rows[i].first));
		assert_true(same(v[1], rows[i].second));
	}
	assert_false(ws_number_readable(WS_DTYPE_C64));
	assert_false(ws_number_readable(WS_DTYPE_F4));
	assert_false(ws_number_readable(WS_DTYPE_F6_E2M3));
}

/* Between every two neighbours: a little to each side of the middle, and the middle, which goes
 * to the one whose last bit is 0. */
TEST(rounding_goes_to_the_nearest_and_halves_to_even)
{
	static const struct {
		enum ws_dtype dtype;
		double (*read)(uint16_t);
		unsigned max; /* the largest finite pattern */
	} types[] = { { WS_DTYPE_BF16, ws_number_from_bf16, 0x7f7f },
		      { WS_DTYPE_F16, ws_number_from_f16, 0x7bff } };
	for (size_t t = 0; t < 2; t++)
		for (unsigned bits = 0; bits < types[t].max; bits++) {
			const double low = types[t].read((uint16_t)bits);
			const double high = types[t].read((uint16_t)(bits + 1));
			const double middle = low + (high - low) / 2;
			const enum ws_dtype d = types[t].dtype;
			assert_true(same(ws_number_round(d, low), low));
			assert_true(same(ws_number_round(d, middle), bits & 1 ? high : low));
			assert_true(same(ws_number_round(d, nextafter(middle, 0)), low));
			assert_true(same(ws_number_round(d, -nextafter(middle, INFINITY)), -high));
		}
	assert_true(same(ws_number_round(WS_DTYPE_F16, 65519.999), 65504));
	assert_true(same(ws_number_round(WS_DTYPE_F16, 65520), INFINITY));
	assert_true(same(ws_number_round(WS_DTYPE_BF16, -3.4e38), -INFINITY));
	assert_true(same(ws_number_round(WS_DTYPE_F32, 0.1), (double)0.1f));
	assert_true(same(ws_number_round(WS_DTYPE_F32, 1e300), INFINITY));
	for (double x = 1e-46; x < 1e38; x *= 1.01)
		assert_true(same(ws_number_round(WS_DTYPE_F32, -x), (double)(float)-x));
	assert_true(same(ws_number_round(WS_DTYPE_F64, 0.1), 0.1));
	assert_true(isnan(ws_number_round(WS_DTYPE_BF16, NAN)));
	assert_true(same(ws_number_round(WS_DTYPE_F16, -0.0), -0.0));
}

RUN_TESTS(NULL, NULL)
