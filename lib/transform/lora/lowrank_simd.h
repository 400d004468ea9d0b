/* SPDX-License-Identifier: Apache-2.0 */
/* lowrank_simd.h - the functions of one instruction set for lowrank.c. */
#ifndef WS_TRANSFORM_LOWRANK_SIMD_H
#define WS_TRANSFORM_LOWRANK_SIMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WS_MAX_WIDTH = 16 };

/* n rows of one strip of `width` columns. a is [rank][width], packed, so that its rows do not fall
 * into the same few cache sets. goes_on: the sums continue from the values in out. ends: the sums
 * are scaled at the end. */
struct ws_strip {
	const float *a, *b;
	size_t b_stride;
	int64_t rank, n;
	float *out;
	size_t stride;
	bool goes_on, ends;
	float scale;
};

/* m is any number of columns; max[0] and max[1] are raised, as bits, to the largest |delta| and
 * |w|. */
struct ws_merge_row {
	const float *w, *delta;
	uint16_t *out;
	int64_t m;
	bool two_step;
};

struct ws_lowrank_ops {
	int64_t width; /* of its strips */
	void (*strip)(const struct ws_strip *s);
	void (*merge)(const struct ws_merge_row *m, uint32_t max[2]);
};

extern const struct ws_lowrank_ops ws_lowrank_scalar;
extern const struct ws_lowrank_ops ws_lowrank_avx2; /* x86-64 only */
const struct ws_lowrank_ops *ws_lowrank_ops(void);

#endif
