/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy_math.c - powers of two and their logarithms in integers: the same everywhere, which
 * libm's are not. Off by less than a ten-millionth. */
#include "serve_toy.h"

enum { FRACTION = 30, TOP = 42 };

static const uint64_t one = UINT64_C(1) << FRACTION;
static const uint64_t ln2 = 744261118; /* in 1/2^30 */

/* e^(x ln 2) by its series, from the far end; x < 1. */
static uint64_t power_of_fraction(uint64_t x)
{
	static const uint64_t part[] = {
		/* 1/n */
		0,         1073741824, 536870912, 357913941, 268435456, 214748365,
		178956971, 153391689,  134217728, 119304647, 107374182, 97612893,
	};
	const uint64_t t = x * ln2 >> FRACTION;
	uint64_t p = one;
	for (size_t n = sizeof part / sizeof part[0] - 1; n > 0; n--)
		p = one + ((t * p >> FRACTION) * part[n] >> FRACTION);
	return p;
}

uint64_t ws_toy_power(int64_t below)
{
	const uint64_t down = (uint64_t)below;
	const uint64_t whole = (down + one - 1) >> FRACTION;
	if (whole > TOP)
		return 0;
	return power_of_fraction(whole * one - down) << (TOP - FRACTION) >> whole;
}

int64_t ws_toy_log2(uint64_t x)
{
	int64_t exponent = 63;
	while (!(x >> exponent))
		exponent--;
	uint64_t m = exponent > FRACTION ? x >> (exponent - FRACTION) : x << (FRACTION - exponent);
	int64_t fraction = 0;
	for (int i = 0; i < FRACTION; i++) {
		m = m * m >> FRACTION;
		fraction *= 2;
		if (m >= 2 * one) {
			m /= 2;
			fraction++;
		}
	}
	return (exponent - TOP) * WS_TOY_ONE + fraction;
}
