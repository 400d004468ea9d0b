/* SPDX-License-Identifier: Apache-2.0 */
/* predict_fp8.c - block FP8, which SGLang's WeightChecker hashes after dequantization: bf16 of
 * fp32(code) * fp32(scale), in blocks of K / (columns of scales) in both directions. The last two
 * axes are rows and columns; any axis before them counts experts. */
#include "predict_core.h"

#include "floats.h"
#include "unpack_core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char suffix[] = "_scale_inv";

const struct ws_param *predict_scales_of(const struct ws_predict *p, const struct ws_param *param)
{
	char name[1024];
	if (snprintf(name, sizeof name, "%s%s", param->name, suffix) >= (int)sizeof name)
		return NULL;
	return ws_layout_find_param(p->opts.layout, name);
}

bool predict_is_scales(const struct ws_predict *p, const struct ws_param *param)
{
	char name[1024];
	const size_t n = strlen(param->name), tail = sizeof suffix - 1;
	if (n <= tail || n >= sizeof name || strcmp(param->name + n - tail, suffix) != 0)
		return false;
	memcpy(name, param->name, n - tail);
	name[n - tail] = '\0';
	return ws_layout_find_param(p->opts.layout, name) != NULL;
}

struct grid {
	int64_t matrices, rows, cols, block, scale_rows, scale_cols;
};

static int measure(const struct predict_param *codes, const struct predict_param *scales,
                   struct grid *g, struct ws_err *err)
{
	const unsigned n = codes->param->n_dims;
	*g = (struct grid){ .matrices = 1 };
	if (n < 2 || scales->param->n_dims != n || codes->dtype != WS_DTYPE_F8_E4M3 ||
	    scales->dtype != WS_DTYPE_F32 || scales->stored != WS_DTYPE_F32)
		return ws_err_set(err, WS_EREFUSED, "its scales are not fp32 of blocks of E4M3");
	for (unsigned d = 0; d + 2 < n; d++) {
		if (codes->dims[d] != scales->dims[d])
			return ws_err_set(err, WS_EREFUSED, "its scales have another shape");
		g->matrices *= codes->dims[d];
	}
	g->rows = codes->dims[n - 2];
	g->cols = codes->dims[n - 1];
	g->scale_rows = scales->dims[n - 2];
	g->scale_cols = scales->dims[n - 1];
	g->block = g->scale_cols > 0 ? g->cols / g->scale_cols : 0;
	if (g->block < 1 || g->cols % g->scale_cols ||
	    (g->rows + g->block - 1) / g->block != g->scale_rows)
		return ws_err_set(err, WS_EREFUSED, "its blocks are cut by the rank's border");
	return 0;
}

enum { ROWS = 128 }; /* to read at once */

struct strip { /* memory of so many rows of codes, and of one row */
	uint8_t *codes;
	float *scales, *numbers;
	uint16_t *rounded;
};

static int add_row(const struct grid *g, const uint8_t *codes, struct strip *s, struct ws_digest *d,
                   struct ws_err *err)
{
	ws_unpack_kernels()->e4m3(codes, g->cols, g->block, s->scales, s->numbers);
	for (int64_t i = 0; i < g->cols; i++)
		if (isnan(s->numbers[i]))
			return ws_err_set(err, WS_EREFUSED, "it has a NaN");
	ws_floats_write(WS_DTYPE_BF16, s->numbers, (size_t)g->cols, s->rounded);
	ws_digest_add(d, s->rounded, (size_t)g->cols * sizeof *s->rounded);
	return 0;
}

/* Band b of matrix m. */
static int add_band(struct predict_param *codes, struct predict_param *scales, const struct grid *g,
                    int64_t m, int64_t b, struct strip *s, struct ws_digest *d, struct ws_err *err)
{
	const int64_t first = b * g->block;
	const int64_t rows = g->rows - first < g->block ? g->rows - first : g->block;
	const size_t scale_bytes = (size_t)g->scale_cols * sizeof(float);
	if (predict_param_read(scales, (uint64_t)(m * g->scale_rows + b) * scale_bytes, s->scales,
	                       scale_bytes, err))
		return -1;
	for (int64_t r = 0; r < rows; r++) {
		const int64_t left = rows - r < ROWS ? rows - r : ROWS;
		const uint64_t at = (uint64_t)((m * g->rows + first + r) * g->cols);
		if ((r % ROWS == 0 &&
		     predict_param_read(codes, at, s->codes, (size_t)(left * g->cols), err)) ||
		    add_row(g, s->codes + r % ROWS * g->cols, s, d, err))
			return -1;
	}
	return 0;
}

static int add_bands(const struct ws_predict *p, struct predict_param *codes,
                     struct predict_param *scales, const struct grid *g, struct strip *s,
                     struct ws_digest *d, struct ws_err *err)
{
	for (int64_t m = 0; m < g->matrices; m++) {
		for (int64_t b = 0; b < g->scale_rows; b++) {
			if (ws_cancelled(p->opts.cancel))
				return ws_err_set(err, WS_ECANCELLED, "cancelled");
			if (add_band(codes, scales, g, m, b, s, d, err))
				return -1;
		}
	}
	return 0;
}

int predict_dequantized(const struct ws_predict *p, struct predict_param *codes,
                        struct predict_param *scales, struct ws_digest *d, struct ws_err *err)
{
	struct grid g;
	if (measure(codes, scales, &g, err))
		return -1;
	struct strip s = {
		.codes = malloc((size_t)(ROWS * g.cols)),
		.scales = malloc((size_t)g.scale_cols * sizeof *s.scales),
		.numbers = malloc((size_t)g.cols * sizeof *s.numbers),
		.rounded = malloc((size_t)g.cols * sizeof *s.rounded),
	};
	int rc = s.codes && s.scales && s.numbers && s.rounded ? 0 : ws_oom(err);
	ws_digest_begin(d, 2 * codes->bytes);
	if (rc == 0)
		rc = add_bands(p, codes, scales, &g, &s, d, err);
	free(s.codes);
	free(s.scales);
	free(s.numbers);
	free(s.rounded);
	return rc;
}
