/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_table.h - the codes of all bf16 numbers under one scale, in 32 bytes.
 *
 * If codes are normal numbers, the codes of two inputs with the same mantissa differ by 8 for each
 * power of two between them. So the codes of the 128 mantissas suffice. Among 8 neighbors the code
 * changes at most once, because a code is wider than their span. So the table has, for each 8, the
 * first code and where the next begins. A byte shuffle looks up one byte of 16. */
#ifndef WS_TRANSFORM_FP8_TABLE_H
#define WS_TRANSFORM_FP8_TABLE_H

#include "fp8_rows.h"

enum { WS_FP8_TABLE_WORTH = 2048 }; /* least elements of a block */

/* For a magnitude w with mantissa m and first <= w <= first + span:
 * code = t.code[m / 8] + (m % 8 > t.before[m / 8]) + 8 * (w >> 7), modulo 256. */
struct ws_fp8_table {
	uint8_t code[16], before[16];
	uint16_t first, span;
};

/* codes: computes codes one by one. False: the block is too small for a table to pay off, or its
 * scale is too large or too small for one. Few weights are out of the range of a table: at most
 * those below 1/14336 of the largest. */
bool ws_fp8_make_table(const struct ws_fp8_block *b, void (*codes)(const struct ws_fp8_block *),
                       struct ws_fp8_table *t);

#endif
