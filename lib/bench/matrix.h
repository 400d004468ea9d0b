/* SPDX-License-Identifier: Apache-2.0 */
/* matrix.h - a large matrix of weights, and what a push does to it on the CPU: for kernels.c,
 * which times that, and for kernels_gpu.c, which holds a GPU's bytes against it. */
#ifndef WS_BENCH_MATRIX_H
#define WS_BENCH_MATRIX_H

#include "fp8.h"
#include "lowrank.h"

enum { BENCH_COLS = 4096, BENCH_BAND = 128, BENCH_BLOCK = 128, BENCH_NIBBLES = 64 };

struct bench_matrix {
	int64_t rows;  /* of BENCH_COLS bf16 numbers */
	size_t count;  /* numbers */
	uint16_t *x;   /* of normal distribution, as weights are */
	float *w, *delta; /* a band each */
};

/* size bytes, but no less than a band; each owned, and given back by close, also after a
 * failure. */
int bench_matrix_open(struct bench_matrix *m, uint64_t size, struct ws_err *err);
void bench_matrix_close(struct bench_matrix *m);
void bench_fill_floats(float *x, size_t n); /* small ones, about zero */

/* codes: a byte for each number. scales: of the blocks, or the one of all. */
int bench_fp8_blocks(const struct bench_matrix *m, const struct ws_fp8_rule *rule, uint8_t *codes,
                     float *scales, struct ws_err *err);
int bench_fp8_whole(const struct bench_matrix *m, const struct ws_fp8_rule *rule, uint8_t *codes,
                    float *scales, struct ws_err *err);
void bench_merge(struct bench_matrix *m, const struct ws_lowrank *l, bool two_step, uint16_t *out);

#endif
