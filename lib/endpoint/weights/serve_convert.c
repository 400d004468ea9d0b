/* SPDX-License-Identifier: Apache-2.0 */
/* serve_convert.c - converts elements (serve_boxes.h), in general through double, which represents
 * every value of these types exactly. The common conversions between float32 and bfloat16 have
 * their own functions. */
#include "serve_boxes.h"

#include "number.h"

#include <math.h>
#include <string.h>

/* A binary format: sign, exponent, mantissa. */
struct format {
	enum ws_dtype dtype;
	int exponent, mantissa; /* bits */
	bool finite;            /* no infinities, and one NaN: all bits set (e4m3fn) */
};

static const struct format formats[] = {
	{ WS_DTYPE_F16, 5, 10, false }, { WS_DTYPE_BF16, 8, 7, false },
	{ WS_DTYPE_F8_E4M3, 4, 3, true }, { WS_DTYPE_F8_E5M2, 5, 2, false },
};

static const struct format *find_format(enum ws_dtype dtype)
{
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
		if (formats[i].dtype == dtype)
			return &formats[i];
	return NULL;
}

static bool is_float(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_F32 || dtype == WS_DTYPE_F64 || find_format(dtype);
}

bool ws_serve_converts(enum ws_dtype to, enum ws_dtype from)
{
	return to == from || (is_float(to) && ws_number_readable(from));
}

static unsigned encode(const struct format *f, double x)
{
	const int bias = (1 << (f->exponent - 1)) - 1;
	const unsigned top = (1u << f->exponent) - 1, all = (1u << f->mantissa) - 1;
	const unsigned sign = signbit(x) ? 1u << (f->exponent + f->mantissa) : 0;
	const unsigned most =
		f->finite ? (top << f->mantissa | (all - 1)) : (top - 1) << f->mantissa | all;
	const unsigned nan =
		f->finite ? top << f->mantissa | all : top << f->mantissa | (all / 2 + 1);
	if (isnan(x))
		return sign | nan;
	if (isinf(x))
		return sign | (f->finite ? nan : top << f->mantissa);
	if (x == 0)
		return sign;
	int e = 0;
	frexp(x, &e); /* |x| in [2^(e-1), 2^e) */
	e = e - 1 < 1 - bias ? 1 - bias : e - 1;
	/* In units of the last place. A carry into the next exponent gives the correct code. */
	const double units = nearbyint(ldexp(fabs(x), f->mantissa - e));
	const double code = units + ldexp(e + bias - 1, f->mantissa);
	if (code > most)
		return sign | (f->finite ? nan : top << f->mantissa);
	return sign | (unsigned)code;
}

static void store(enum ws_dtype dtype, uint8_t *at, double x)
{
	const struct format *f = find_format(dtype);
	if (!f && dtype == WS_DTYPE_F32) {
		const float x32 = (float)x;
		memcpy(at, &x32, sizeof x32);
	} else if (!f) {
		memcpy(at, &x, sizeof x);
	} else if (ws_dtype_bits(dtype) == 8) {
		*at = (uint8_t)encode(f, x);
	} else {
		const uint16_t bits = (uint16_t)encode(f, x);
		memcpy(at, &bits, sizeof bits);
	}
}

static void widen_bf16(uint8_t *dst, const uint8_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t half;
		memcpy(&half, src + 2 * i, sizeof half);
		const uint32_t bits = (uint32_t)half << 16;
		memcpy(dst + 4 * i, &bits, sizeof bits);
	}
}

static void narrow_to_bf16(uint8_t *dst, const uint8_t *src, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, src + 4 * i, sizeof bits);
		const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
		const uint32_t round = 0x7fffu + (bits >> 16 & 1);
		const uint16_t half = (uint16_t)(nan ? bits >> 16 | 0x40u : (bits + round) >> 16);
		memcpy(dst + 2 * i, &half, sizeof half);
	}
}

void ws_serve_convert(enum ws_dtype to, void *dst, enum ws_dtype from, const void *src, size_t n)
{
	const size_t out = ws_dtype_bits(to) / 8, in = ws_dtype_bits(from) / 8;
	uint8_t *d = dst;
	const uint8_t *s = src;
	double numbers[256];
	if (to == from)
		memcpy(dst, src, n * in);
	else if (to == WS_DTYPE_F32 && from == WS_DTYPE_BF16)
		widen_bf16(dst, src, n);
	else if (to == WS_DTYPE_BF16 && from == WS_DTYPE_F32)
		narrow_to_bf16(dst, src, n);
	else
		for (size_t i = 0; i < n; i += 256) {
			const size_t some = n - i < 256 ? n - i : 256;
			ws_number_read(from, s + in * i, some, numbers);
			for (size_t k = 0; k < some; k++)
				store(to, d + out * (i + k), numbers[k]);
		}
}
