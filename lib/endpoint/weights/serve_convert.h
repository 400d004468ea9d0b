/* SPDX-License-Identifier: Apache-2.0 */
/* serve_convert.h - elements of one type as elements of another, as torch's copy_ makes them. */
#ifndef WS_ENDPOINT_SERVE_CONVERT_H
#define WS_ENDPOINT_SERVE_CONVERT_H

#include "wsync/dtype.h"

/* To float64, float32, bfloat16, float16, float8_e4m3fn and float8_e5m2, from any of them and from
 * integers: rounded to nearest, ties to even. Any type to itself. */
bool ws_serve_converts(enum ws_dtype to, enum ws_dtype from);
void ws_serve_convert(enum ws_dtype to, void *dst, enum ws_dtype from, const void *src, size_t n);

#endif
