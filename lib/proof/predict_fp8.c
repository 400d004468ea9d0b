/* SPDX-License-Identifier: Apache-2.0 */
/* predict_fp8.c - block FP8, which SGLang's WeightChecker hashes after dequantization: bf16 of
 * fp32(code) * fp32(scale), in blocks of K / (columns of scales) in both directions. The last two
 * axes are rows and columns; any axis before them counts experts.
 *
 * For DeepGEMM on Blackwell, SGLang quantizes that bf16 matrix again when it loads, with scales
 * that are powers of two: requant_weight_ue8m0 in sglang/srt/layers/quantization/fp8_utils.py
 * (0.5.23). The hash is then of the second dequantization. */
#include "predict_core.h"

#include "floats.h"
#include "fp8.h"
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

enum { BLOCK = 128 }; /* the only size that is packed or rewritten, in both directions */

struct grid {
	int64_t matrices, rows, cols, block, scale_rows, scale_cols;
	int64_t packed; /* bytes of a row of packed scales; 0: scales are fp32 */
};

static int measure(const struct predict_param *codes, const struct predict_param *scales,
                   struct grid *g, struct ws_err *err)
{
	const unsigned n = codes->param->n_dims;
	const bool packed = scales->dtype == WS_DTYPE_I32;
	*g = (struct grid){ .matrices = 1 };
	if (n < 2 || scales->param->n_dims != n || codes->dtype != WS_DTYPE_F8_E4M3 ||
	    (!packed && scales->dtype != WS_DTYPE_F32) || scales->stored != scales->dtype)
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
	if (packed && (g->scale_rows != g->rows || (g->cols + 511) / 512 != g->scale_cols))
		return ws_err_set(err, WS_EREFUSED, "its packed scales have another shape");
	if (packed) {
		g->packed = 4 * g->scale_cols;
		g->scale_rows = (g->rows + BLOCK - 1) / BLOCK;
		g->scale_cols = (g->cols + BLOCK - 1) / BLOCK;
	}
	g->block = g->scale_cols > 0 ? g->cols / g->scale_cols : 0;
	if (g->block < 1 || g->cols % g->scale_cols ||
	    (g->rows + g->block - 1) / g->block != g->scale_rows)
		return ws_err_set(err, WS_EREFUSED, "its blocks are cut by the rank's border");
	return 0;
}

int predict_check_blocks(const struct predict_param *codes, const struct predict_param *scales,
                         struct ws_err *err)
{
	struct grid g;
	return measure(codes, scales, &g, err);
}

enum { ROWS = 128 }; /* to read at once */

struct strip { /* memory of so many rows of codes and of rounded numbers, and of one row */
	uint8_t *codes, *exponents;
	float *scales, *numbers;
	uint16_t *rounded;
	struct ws_digest *plain, *rewritten; /* rewritten NULL: no server rewrites this shape */
};

static int add_row(const struct grid *g, int64_t row, struct strip *s, struct ws_err *err)
{
	uint16_t *rounded = s->rounded + row * g->cols;
	ws_unpack_kernels()->e4m3(s->codes + row * g->cols, g->cols, g->block, s->scales,
	                          s->numbers);
	for (int64_t i = 0; i < g->cols; i++)
		if (isnan(s->numbers[i]))
			return ws_err_set(err, WS_EREFUSED, "it has a NaN");
	ws_floats_write(WS_DTYPE_BF16, s->numbers, (size_t)g->cols, rounded);
	ws_digest_add(s->plain, rounded, (size_t)g->cols * sizeof *rounded);
	return 0;
}

/* ---- written again with scales that are powers of two ---- */

/* Of a block whose numbers are at most 1e-4, the least that the server counts: 1e-4 / 448 rounded
 * up to a power of two. */
static const float LEAST_SCALE = 0x1p-22f;

static bool can_be_rewritten(const struct ws_predict *p, const struct grid *g)
{
	return ws_digest_is_gpu(p->opts.fn) && g->block == BLOCK && g->rows % BLOCK == 0 &&
	       g->cols % BLOCK == 0; /* of other rows, SGLang cannot compute a checksum */
}

/* With such scales, the second quantization loses nothing. */
static bool are_powers(const float *scales, int64_t n)
{
	int exponent;
	for (int64_t i = 0; i < n; i++)
		if (!(scales[i] >= LEAST_SCALE) || isinf(scales[i]) ||
		    frexpf(scales[i], &exponent) != 0.5f)
			return false;
	return true;
}

/* Overwrites s->scales, codes and rounded. */
static int rewrite_band(const struct grid *g, int64_t rows, struct strip *s, struct ws_err *err)
{
	static const struct ws_fp8_rule rule = { WS_SCALE_SLIME, true, BLOCK, BLOCK };
	const struct ws_fp8_band band = { .x = s->rounded, .stride = (size_t)g->cols,
		                          .rows = rows, .cols = g->cols };
	struct ws_fp8_bad bad;
	if (!ws_fp8_scales(&rule, &band, s->scales, &bad))
		return ws_err_set(err, WS_EREFUSED, "it has an infinite number");
	for (int64_t i = 0; i < g->scale_cols; i++)
		if (s->scales[i] < LEAST_SCALE)
			s->scales[i] = LEAST_SCALE;
	ws_fp8_codes(&rule, &band, s->scales, s->codes, (size_t)g->cols);
	for (int64_t r = 0; r < rows; r++) {
		uint16_t *rounded = s->rounded + r * g->cols;
		ws_unpack_kernels()->e4m3(s->codes + r * g->cols, g->cols, g->block, s->scales,
		                          s->numbers);
		ws_floats_write(WS_DTYPE_BF16, s->numbers, (size_t)g->cols, rounded);
	}
	return 0;
}

static int add_rewritten(const struct grid *g, int64_t rows, struct strip *s, struct ws_err *err)
{
	if (!are_powers(s->scales, g->scale_cols) && rewrite_band(g, rows, s, err))
		return -1;
	ws_digest_add(s->rewritten, s->rounded, (size_t)(rows * g->cols) * sizeof *s->rounded);
	return 0;
}

/* ---- all rows ---- */

/* Packed scales have a row for each row of codes: the band's first one is read. */
static int read_scales(struct predict_param *scales, const struct grid *g, int64_t m, int64_t b,
                       struct strip *s, struct ws_err *err)
{
	const size_t bytes = (size_t)g->scale_cols * sizeof(float);
	if (!g->packed)
		return predict_param_read(scales, (uint64_t)(m * g->scale_rows + b) * bytes,
		                          s->scales, bytes, err);
	if (predict_param_read(scales, (uint64_t)((m * g->rows + b * BLOCK) * g->packed),
	                       s->exponents, (size_t)g->packed, err))
		return -1;
	for (int64_t i = 0; i < g->scale_cols; i++) {
		const uint32_t bits = (uint32_t)s->exponents[i] << 23;
		memcpy(&s->scales[i], &bits, sizeof bits);
	}
	return 0;
}

/* Band b of matrix m. */
static int add_band(struct predict_param *codes, struct predict_param *scales, const struct grid *g,
                    int64_t m, int64_t b, struct strip *s, struct ws_err *err)
{
	const int64_t first = b * g->block;
	const int64_t rows = g->rows - first < g->block ? g->rows - first : g->block;
	if (read_scales(scales, g, m, b, s, err))
		return -1;
	for (int64_t r = 0; r < rows; r++) {
		const int64_t left = rows - r < ROWS ? rows - r : ROWS;
		const uint64_t at = (uint64_t)((m * g->rows + first + r) * g->cols);
		if ((r % ROWS == 0 &&
		     predict_param_read(codes, at, s->codes, (size_t)(left * g->cols), err)) ||
		    add_row(g, r % ROWS, s, err))
			return -1;
	}
	return s->rewritten ? add_rewritten(g, rows, s, err) : 0;
}

static int add_bands(const struct ws_predict *p, struct predict_param *codes,
                     struct predict_param *scales, const struct grid *g, struct strip *s,
                     struct ws_err *err)
{
	for (int64_t m = 0; m < g->matrices; m++) {
		for (int64_t b = 0; b < g->scale_rows; b++) {
			if (ws_cancelled(p->opts.cancel))
				return ws_err_set(err, WS_ECANCELLED, "cancelled");
			if (add_band(codes, scales, g, m, b, s, err))
				return -1;
		}
	}
	return 0;
}

int predict_dequantized(const struct ws_predict *p, struct predict_param *codes,
                        struct predict_param *scales, struct ws_digest *d,
                        struct ws_digest *rewritten, bool *rewrites, struct ws_err *err)
{
	struct grid g;
	if (measure(codes, scales, &g, err))
		return -1;
	*rewrites = can_be_rewritten(p, &g);
	struct strip s = {
		.codes = malloc((size_t)(ROWS * g.cols)),
		.exponents = malloc((size_t)g.packed + 1),
		.scales = malloc((size_t)g.scale_cols * sizeof *s.scales),
		.numbers = malloc((size_t)g.cols * sizeof *s.numbers),
		.rounded = malloc((size_t)(ROWS * g.cols) * sizeof *s.rounded),
		.plain = d,
		.rewritten = *rewrites ? rewritten : NULL,
	};
	int rc = s.codes && s.exponents && s.scales && s.numbers && s.rounded ? 0 : ws_oom(err);
	ws_digest_begin(d, 2 * codes->bytes);
	ws_digest_begin(rewritten, 2 * codes->bytes);
	if (rc == 0)
		rc = add_bands(p, codes, scales, &g, &s, err);
	free(s.codes);
	free(s.exponents);
	free(s.scales);
	free(s.numbers);
	free(s.rounded);
	return rc;
}
