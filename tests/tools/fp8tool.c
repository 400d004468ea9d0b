/* SPDX-License-Identifier: Apache-2.0 */
/* fp8tool.c - converts tensors to FP8 on the command line, for tests that compare with torch.
 *
 * Reads requests until stdin ends: each is a line, then the numbers,
 * little-endian, row by row:
 *   TYPE RULE LEVEL ROWS COLS BN BK      f32|bf16 xorl|slime[+ue8m0] scalar|avx2|-
 * and answers "ok\n", the codes, the scales [ceil(ROWS/BN), ceil(COLS/BK)] as fp32; or
 * "bad ROW COL\n"; or "no\n" if the machine lacks the level. */
#include "fp8.h"
#include "simd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
	char type[8], rule[16], level[16];
	long rows, cols, bn, bk;
};

static struct ws_fp8_rule rule;
static bool wide;
static const uint8_t *numbers;

static struct ws_fp8_band band_at(const struct request *q, long row)
{
	return (struct ws_fp8_band){ numbers + (size_t)(row * q->cols) * (wide ? 4 : 2), wide,
		                     (size_t)q->cols, q->rows - row < q->bn ? q->rows - row : q->bn,
		                     q->cols };
}

static bool quantize(const struct request *q, uint8_t *codes, float *scales, struct ws_fp8_bad *bad)
{
	const long across = (q->cols + q->bk - 1) / q->bk;
	for (long row = 0; row < q->rows; row += q->bn) {
		const struct ws_fp8_band band = band_at(q, row);
		float *const here = scales + row / q->bn * across;
		if (!ws_fp8_scales(&rule, &band, here, bad)) {
			bad->row += row;
			return false;
		}
		ws_fp8_codes(&rule, &band, here, codes + row * q->cols, (size_t)q->cols);
	}
	return true;
}

static void answer(const struct request *q)
{
	const size_t n = (size_t)(q->rows * q->cols);
	const size_t n_scales = (size_t)(((q->rows + q->bn - 1) / q->bn) *
	                                 ((q->cols + q->bk - 1) / q->bk));
	uint8_t *const in = malloc(n * 4), *const codes = malloc(n);
	float *const scales = malloc(n_scales * sizeof *scales);
	struct ws_fp8_bad bad;
	if (!in || !codes || !scales || fread(in, wide ? 4 : 2, n, stdin) != n)
		exit(3);
	numbers = in;
	if (strcmp(q->level, "-") != 0 && !ws_simd_set_level(q->level)) {
		puts("no");
	} else if (!quantize(q, codes, scales, &bad)) {
		printf("bad %lld %lld\n", (long long)bad.row, (long long)bad.col);
	} else {
		puts("ok");
		fwrite(codes, 1, n, stdout);
		fwrite(scales, sizeof *scales, n_scales, stdout);
	}
	free(in);
	free(codes);
	free(scales);
}

int main(void)
{
	struct request q;
	char line[128];
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "%7s %15s %15s %ld %ld %ld %ld", q.type, q.rule, q.level, &q.rows,
		           &q.cols, &q.bn, &q.bk) != 7 ||
		    q.rows < 1 || q.cols < 1 || q.rows > 1 << 20 || q.cols > 1 << 20 ||
		    q.bn < 1 || q.bk < 1)
			return 2;
		wide = strcmp(q.type, "f32") == 0;
		rule = (struct ws_fp8_rule){ .rule = strncmp(q.rule, "slime", 5) == 0 ?
			                                     WS_SCALE_SLIME :
			                                     WS_SCALE_XORL,
			                     .ue8m0 = strstr(q.rule, "+ue8m0") != NULL,
			                     .bn = q.bn,
			                     .bk = q.bk };
		answer(&q);
	}
	return fflush(stdout) ? 8 : 0;
}
