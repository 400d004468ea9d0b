/* SPDX-License-Identifier: Apache-2.0 */
/* float_bits.h - floats as their bits, and bf16. */
#ifndef WS_TRANSFORM_FLOAT_BITS_H
#define WS_TRANSFORM_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ws_float_bits(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static inline float ws_float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* Rounds to the nearest, ties to even; NaN stays a quiet NaN. */
static inline uint16_t ws_to_bf16(float x)
{
	const uint32_t bits = ws_float_bits(x);
	if ((bits & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
