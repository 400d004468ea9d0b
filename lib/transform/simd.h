/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h - which code is in use: "scalar", plain C, which defines the bits, or "avx2", which gives
 * the same bits and is used where the machine has it. */
#ifndef WS_TRANSFORM_SIMD_H
#define WS_TRANSFORM_SIMD_H

#include <stdbool.h>

bool ws_simd_avx2(void);
const char *ws_simd_level(void);
/* For tests and measurements. False: there is no such level, or this machine lacks it. */
bool ws_simd_set_level(const char *level);

#endif
