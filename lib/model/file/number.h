/* SPDX-License-Identifier: Apache-2.0 */
/* number.h - the elements of a tensor as numbers, and numbers as a type would keep them.
 *
 * Every floating type of up to 53 bits of precision fits into a double, so reading is exact, NaN,
 * infinities and signed zeros included; only 64-bit integers beyond 2^53 are rounded. */
#ifndef WS_MODEL_NUMBER_H
#define WS_MODEL_NUMBER_H

#include "wsync/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Not complex numbers, nor types of less than a byte. */
bool ws_number_readable(enum ws_dtype dtype);
/* n elements of a readable type as they stand in files: little-endian, at any address. */
void ws_number_read(enum ws_dtype dtype, const void *bytes, size_t n, double *out);

double ws_number_from_f16(uint16_t bits);
double ws_number_from_bf16(uint16_t bits);
/* E4M3 (one NaN, no infinity; OCP "FN"), E5M2, and E8M0, which are powers of two. */
double ws_number_from_e4m3(uint8_t bits);
double ws_number_from_e5m2(uint8_t bits);
double ws_number_from_e8m0(uint8_t bits);

/* x as a floating type of 16, 32 or 64 bits keeps it: the nearest, halves to even, too large ones
 * infinite. Other types leave x alone. */
double ws_number_round(enum ws_dtype dtype, double x);

#endif
