/* SPDX-License-Identifier: Apache-2.0 */
/* number.h - reads tensor elements as doubles, and rounds doubles to a dtype.
 *
 * A double holds every floating type of up to 53 bits of precision, so reading is exact, with NaN,
 * Inf and signed zeros. Only 64-bit integers beyond 2^53 are rounded. */
#ifndef WS_MODEL_NUMBER_H
#define WS_MODEL_NUMBER_H

#include "wsync/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False for complex numbers and types of less than a byte. */
bool ws_number_readable(enum ws_dtype dtype);
/* Reads n little-endian elements of a readable type at any address. */
void ws_number_read(enum ws_dtype dtype, const void *bytes, size_t n, double *out);

double ws_number_from_f16(uint16_t bits);
double ws_number_from_bf16(uint16_t bits);
/* E4M3 (OCP "FN": no infinity), E5M2, and E8M0, whose values are powers of two. */
double ws_number_from_e4m3(uint8_t bits);
double ws_number_from_e5m2(uint8_t bits);
double ws_number_from_e8m0(uint8_t bits);

/* Rounds x to a floating type of 16, 32 or 64 bits: to nearest, halves to even, overflow to
 * Inf. Other types return x. */
double ws_number_round(enum ws_dtype dtype, double x);

#endif
