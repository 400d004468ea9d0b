/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_rows.h - the functions of an instruction set for fp8.c: runs of a row, and blocks that share
 * one scale.
 *
 * All results are exact or rounded once, so every level gives the same bits; only the speed
 * differs. */
#ifndef WS_TRANSFORM_FP8_ROWS_H
#define WS_TRANSFORM_FP8_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_fp8_block {
	const void *x;
	size_t stride, out_stride; /* from row to row, in bytes */
	size_t rows, cols;
	float by;
	bool multiply;             /* out = rne(clamp(x * by)); false: x / by */
	uint8_t *out;
};

struct ws_fp8_rows {
	/* The largest |x| as the bits of a float; an element that is not finite makes it 0x7f800000
	 * or more. */
	uint32_t (*amax)(const void *x, size_t n);
	void (*codes)(const struct ws_fp8_block *b);
};

struct ws_fp8_kernels {
	struct ws_fp8_rows f32, bf16;
};

extern const struct ws_fp8_kernels ws_fp8_scalar;
extern const struct ws_fp8_kernels ws_fp8_avx2; /* x86-64 only */
const struct ws_fp8_kernels *ws_fp8_kernels(void);

#endif
