/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_table.h - the codes of all bf16 numbers under one scale, in 32 bytes.
 *
 * Where codes are normal numbers, those of two inputs with the same mantissa differ by 8
 * for each power of two between them, so the 128 mantissas say all. Of 8 neighbours at most
 * one begins a new code (a code is wider than what lies between the first and the last of
 * them): for each 8 it is enough to know the first code and where the next begins. A byte
 * shuffle looks up one byte of 16. */
#ifndef WS_TRANSFORM_FP8_TABLE_H
#define WS_TRANSFORM_FP8_TABLE_H

#include "fp8_rows.h"

enum { WS_FP8_TABLE_WORTH = 2048 }; /* elements of a block, or more */

/* Of the magnitude w, whose mantissa is m, first <= w <= first + span:
 * code = t.code[m / 8] + (m % 8 > t.before[m / 8]) + 8 * (w >> 7), as far as a byte goes. */
struct ws_fp8_table {
	uint8_t code[16], before[16];
	uint16_t first, span;
};

/* codes makes them one by one. False: the block is too small to be worth a table, or its
 * scale too large or small for one. Few weights are out of a table's range: at most those
 * below 1/14336 of the largest. */
bool ws_fp8_make_table(const struct ws_fp8_block *b, void (*codes)(const struct ws_fp8_block *),
                       struct ws_fp8_table *t);

#endif
