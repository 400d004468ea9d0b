/* SPDX-License-Identifier: Apache-2.0 */
/* number.c - sign, exponent, fraction: one formula for all small floating types.
 *
 *   type        exponent  fraction  bias   all ones in the exponent
 *   bfloat16        8         7      127   infinities and NaN
 *   float16         5        10       15   infinities and NaN
 *   E5M2            5         2       15   infinities and NaN
 *   E4M3 FN         4         3        7   numbers; NaN only if the fraction is all ones too
 *   E4M3 FNUZ       4         3        8   numbers; the only NaN has the bits of minus zero
 *   E5M2 FNUZ       5         2       16   numbers; the only NaN has the bits of minus zero
 *   E8M0            8         0      127   NaN; this type has no sign and no zero */
#include "number.h"

#include <endian.h>
#include <math.h>
#include <string.h>

enum special { IEEE, FN, FNUZ };

static double small_float(unsigned bits, int n_exponent, int n_fraction, int bias,
                          enum special special)
{
	const unsigned sign = bits >> (n_exponent + n_fraction) & 1;
	const unsigned ones = (1u << n_exponent) - 1;
	const unsigned exponent = bits >> n_fraction & ones;
	const unsigned fraction = bits & ((1u << n_fraction) - 1);
	double value;
	if (special == FNUZ && sign && !exponent && !fraction)
		return NAN;
	if (special == FN && exponent == ones && fraction == (1u << n_fraction) - 1)
		value = NAN;
	else if (special == IEEE && exponent == ones)
		value = fraction ? NAN : INFINITY;
	else if (exponent)
		value = ldexp((double)((1u << n_fraction) + fraction),
		              (int)exponent - bias - n_fraction);
	else
		value = ldexp((double)fraction, 1 - bias - n_fraction);
	return sign ? -value : value;
}

double ws_number_from_f16(uint16_t bits)
{
	return small_float(bits, 5, 10, 15, IEEE);
}

double ws_number_from_bf16(uint16_t bits)
{
	const uint32_t wide = (uint32_t)bits << 16; /* the upper half of a float */
	float value;
	memcpy(&value, &wide, sizeof value);
	return (double)value;
}

double ws_number_from_e4m3(uint8_t bits)
{
	return small_float(bits, 4, 3, 7, FN);
}

double ws_number_from_e5m2(uint8_t bits)
{
	return small_float(bits, 5, 2, 15, IEEE);
}

double ws_number_from_e8m0(uint8_t bits)
{
	return bits == 0xff ? NAN : ldexp(1, (int)bits - 127);
}

bool ws_number_readable(enum ws_dtype dtype)
{
	return dtype != WS_DTYPE_C64 && ws_dtype_bits(dtype) >= 8;
}

static uint64_t load(const unsigned char *p, unsigned bytes)
{
	uint64_t word = 0;
	memcpy(&word, p, bytes);
	return le64toh(word);
}

static double load_float(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return (double)value;
}

static double load_double(uint64_t bits)
{
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static double number(enum ws_dtype dtype, uint64_t bits)
{
	switch (dtype) {
	case WS_DTYPE_BF16:
		return ws_number_from_bf16((uint16_t)bits);
	case WS_DTYPE_F16:
		return ws_number_from_f16((uint16_t)bits);
	case WS_DTYPE_F32:
		return load_float((uint32_t)bits);
	case WS_DTYPE_F64:
		return load_double(bits);
	case WS_DTYPE_F8_E4M3:
		return ws_number_from_e4m3((uint8_t)bits);
	case WS_DTYPE_F8_E5M2:
		return ws_number_from_e5m2((uint8_t)bits);
	case WS_DTYPE_F8_E8M0:
		return ws_number_from_e8m0((uint8_t)bits);
	case WS_DTYPE_F8_E4M3FNUZ:
		return small_float((uint8_t)bits, 4, 3, 8, FNUZ);
	case WS_DTYPE_F8_E5M2FNUZ:
		return small_float((uint8_t)bits, 5, 2, 16, FNUZ);
	case WS_DTYPE_I8:
		return (double)(int8_t)bits;
	case WS_DTYPE_I16:
		return (double)(int16_t)bits;
	case WS_DTYPE_I32:
		return (double)(int32_t)bits;
	case WS_DTYPE_I64:
		return (double)(int64_t)bits;
	default: /* unsigned integers and booleans */
		return (double)bits;
	}
}

void ws_number_read(enum ws_dtype dtype, const void *bytes, size_t n, double *out)
{
	const unsigned width = ws_dtype_bits(dtype) / 8;
	const unsigned char *p = bytes;
	for (size_t i = 0; i < n; i++, p += width)
		out[i] = number(dtype, load(p, width));
}

/* Rounds to a multiple of the type's smallest step at this magnitude. */
static double round_to(double x, int precision, int min_exponent, double max)
{
	int exponent;
	if (x == 0 || !isfinite(x))
		return x;
	frexp(x, &exponent); /* x is in [1/2, 1) * 2^exponent */
	const int step = exponent - precision > min_exponent ? exponent - precision : min_exponent;
	const double y = ldexp(nearbyint(ldexp(x, -step)), step);
	return fabs(y) > max ? copysign(INFINITY, x) : y;
}

double ws_number_round(enum ws_dtype dtype, double x)
{
	switch (dtype) {
	case WS_DTYPE_F32:
		return round_to(x, 24, -149, 0x1.fffffep127);
	case WS_DTYPE_BF16:
		return round_to(x, 8, -133, 0x1.fep127);
	case WS_DTYPE_F16:
		return round_to(x, 11, -24, 65504);
	default:
		return x;
	}
}
