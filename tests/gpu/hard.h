/* SPDX-License-Identifier: Apache-2.0 */
/* hard.h - numbers that are hard to get right: every exponent, every kind of
 * mantissa, always the same. */
#ifndef TESTS_GPU_HARD_H
#define TESTS_GPU_HARD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t hard_next(void)
{
	static uint64_t x = 0x9e3779b97f4a7c15;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return (uint32_t)(x >> 32);
}

static inline float hard_float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static inline uint32_t hard_bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

/* Finite. Most are of like size, as weights are; some are of any; some have
 * few bits, so that they tie. */
static inline uint32_t hard_bits(void)
{
	uint32_t bits = hard_next();
	const uint32_t kind = hard_next() % 8;
	if (kind > 1)
		bits = (bits & 0x807fffff) | (110 + hard_next() % 12) << 23;
	if (kind % 2)
		bits &= 0xfff80000;
	return (bits & 0x7f800000) == 0x7f800000 ? bits & 0x807fffff : bits;
}

static inline void hard_f32(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = hard_float_of(hard_bits());
}

static inline void hard_bf16(uint16_t *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = (uint16_t)(hard_bits() >> 16);
}

#endif
