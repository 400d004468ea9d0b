/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_table.c - builds the tables of fp8_table.h from codes that are computed one by one. */
#include "fp8_table.h"

#include <string.h>

enum { MANTISSAS = 128 };

/* The exponent field of numbers that scale to 2^-1 up to 2; wraps around if there is none. */
static unsigned middle(const struct ws_fp8_block *b)
{
	uint32_t scale;
	memcpy(&scale, &b->by, sizeof scale);
	return b->multiply ? 253 - (scale >> 23) : scale >> 23;
}

static unsigned count(const uint8_t codes[MANTISSAS], unsigned most)
{
	unsigned n = 0;
	for (unsigned m = 0; m < MANTISSAS; m++)
		n += codes[m] <= most;
	return n;
}

bool ws_fp8_make_table(const struct ws_fp8_block *b, void (*codes)(const struct ws_fp8_block *),
                       struct ws_fp8_table *t)
{
	uint16_t x[MANTISSAS];
	uint8_t sample[MANTISSAS]; /* codes 48 to 64 */
	const unsigned exponent = middle(b);
	if (b->rows * b->cols < WS_FP8_TABLE_WORTH || exponent < 8 || exponent > 240)
		return false;
	for (unsigned m = 0; m < MANTISSAS; m++)
		x[m] = (uint16_t)(exponent * MANTISSAS + m);
	codes(&(struct ws_fp8_block){ .x = x, .rows = 1, .cols = MANTISSAS, .by = b->by,
	                              .multiply = b->multiply, .out = sample });
	for (unsigned i = 0; i < 16; i++) {
		unsigned before = 0;
		for (unsigned k = 1; k < 8; k++)
			before += sample[8 * i + k] == sample[8 * i];
		t->code[i] = (uint8_t)(sample[8 * i] - 8 * exponent);
		t->before[i] = (uint8_t)before;
	}
	/* From numbers that scale to 2^-6, the least normal number, for any mantissa; to the last
	 * that rounds to 448. Its exponent is 8 or 9 above the middle. */
	t->first = (uint16_t)((exponent - 5) * MANTISSAS);
	t->span = (uint16_t)(13 * MANTISSAS + count(sample, 0x7e - 64) + count(sample, 0x7e - 72) -
	                     1);
	return true;
}
