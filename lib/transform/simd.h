/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h - which code is in use: "scalar" is plain C and defines the bits; "avx2" gives the same
 * bits and is used if the machine has AVX2. */
#ifndef WS_TRANSFORM_SIMD_H
#define WS_TRANSFORM_SIMD_H

#include <stdbool.h>

bool ws_simd_avx2(void);
const char *ws_simd_level(void);
/* For tests and measurements. False: there is no such level, or this machine lacks it. */
bool ws_simd_set_level(const char *level);

#endif
