/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_fp8.c - E4M3 codes with multiplying scales: one for each block, for each row, or for all.
 *
 * A tensor of three or more axes is a stack of matrices, each with its own grid of scales: a block
 * never spans two experts. */
#include "unpack_core.h"

#include <inttypes.h>
#include <string.h>

static int64_t blocks(int64_t n, int64_t block)
{
	return n / block + (n % block != 0);
}

struct ws_fp8_grid ws_fp8_grid_of(const struct ws_packed *p)
{
	struct ws_fp8_grid g = { .rows = p->n_dims > 1 ? p->dims[p->n_dims - 2] : 1 };
	g.down = blocks(g.rows, p->bn);
	g.across = blocks(p->cols, p->bk);
	g.shared = ws_unpack_count(p->parts[0]) == 1;
	return g;
}

/* ---- find ---- */

/* Guesses the block size: 128 if it gives so many blocks, as in almost all checkpoints; else n for
 * one block; else a power of two. 0: no size fits. */
static int64_t guess(int64_t n, int64_t n_blocks)
{
	if (n_blocks <= 0 || n_blocks > n)
		return 0;
	if (blocks(n, 128) == n_blocks)
		return 128;
	if (n_blocks == 1)
		return n;
	for (int64_t b = 1; b < n; b *= 2)
		if (blocks(n, b) == n_blocks)
			return b;
	return 0;
}

static int disagree(const struct ws_packed *p, struct ws_err *err)
{
	char w[160], s[160];
	return ws_err_set(err, WS_EINPUT, "%s is %s and does not fit %s, which is %s",
	                  p->parts[0]->name, ws_unpack_describe(p->parts[0], s, sizeof s),
	                  p->weight->name, ws_unpack_describe(p->weight, w, sizeof w));
}

/* Sets block sizes from the config, or else from the shape of the scales; checks their fit. */
static int fit_blocks(struct ws_packed *p, const struct ws_quant *config, struct ws_err *err)
{
	const struct ws_item *w = p->weight, *s = p->parts[0];
	const unsigned n = w->n_dims;
	if (n < 2 || s->n_dims != n || memcmp(s->dims, w->dims, (n - 2) * sizeof *w->dims) != 0)
		return disagree(p, err);
	const bool configured = config && config->block[0] > 0 && config->block[1] > 0;
	p->bn = configured ? config->block[0] : guess(w->dims[n - 2], s->dims[n - 2]);
	p->bk = configured ? config->block[1] : guess(w->dims[n - 1], s->dims[n - 1]);
	if (p->bn > 0 && p->bk > 0 && blocks(w->dims[n - 2], p->bn) == s->dims[n - 2] &&
	    blocks(w->dims[n - 1], p->bk) == s->dims[n - 1])
		return 0;
	disagree(p, err);
	if (configured)
		return ws_err_hint(err, "the config's weight_block_size is %" PRId64 " x %" PRId64,
		                   p->bn, p->bk);
	return ws_err_hint(err,
	                   "a config.json with weight_block_size gives the block size");
}

/* One scale, one for each row of a matrix, or one for each block. weight_scale_inv has blocks if
 * its axes allow it, even if a small matrix has only one block. */
static int fit_scale(struct ws_packed *p, const struct ws_quant *config, bool inverse,
                     struct ws_err *err)
{
	const struct ws_item *s = p->parts[0];
	const int64_t rows = p->n_dims > 1 ? p->dims[p->n_dims - 2] : 1;
	if (inverse && p->n_dims > 1 && s->n_dims == p->n_dims)
		return fit_blocks(p, config, err);
	if (ws_unpack_count(s) == 1) {
		p->bn = rows > 0 ? rows : 1;
		p->bk = p->cols > 0 ? p->cols : 1;
		return 0;
	}
	if (p->n_dims == 2 && ws_unpack_count(s) == (uint64_t)rows && s->dims[0] == rows) {
		p->bn = 1;
		p->bk = p->cols > 0 ? p->cols : 1;
		return 0;
	}
	return fit_blocks(p, config, err);
}

int ws_unpack_find_fp8(const struct ws_catalog *c, const struct ws_quant *config,
                       struct ws_packed *p, struct ws_err *err)
{
	const char *name = p->weight->name;
	const struct ws_item *inverse = ws_unpack_part(c, name, "_scale_inv");
	const struct ws_item *scale = ws_unpack_part(c, name, "_scale");
	ws_unpack_shape(p, p->weight->n_dims, p->weight->dims);
	if (inverse && scale)
		return ws_err_set(
			err, WS_EINPUT,
			"%s has both %s and %s, and which of them multiplies is not known", name,
			inverse->name, scale->name);
	p->parts[0] = inverse ? inverse : scale;
	if (ws_unpack_ends(name, ".weight"))
		p->parts[1] = ws_unpack_beside(c, name, strlen(".weight"), ".input_scale");
	if (!ws_unpack_is_float(p->parts[0]->dtype) || p->parts[0]->dtype == WS_DTYPE_F8_E4M3)
		return disagree(p, err);
	return fit_scale(p, config, inverse != NULL, err);
}

/* ---- rows ---- */

int ws_fp8_grid_scales(const struct ws_packed *p, const struct ws_fp8_grid *g, int64_t matrix,
                       int64_t first, int64_t n, float *out, struct ws_err *err)
{
	const int64_t at = g->shared ? 0 : (matrix * g->down + first) * g->across;
	const size_t count = g->shared ? 1 : (size_t)(n * g->across);
	return ws_unpack_floats(p->parts[0], (uint64_t)at, count, out, err);
}

/* Rows of one matrix, few enough to be read at once. */
static int decode_rows(const struct ws_packed *p, const struct ws_fp8_grid *g, int64_t row,
                       int64_t n, float *out, struct ws_buf *scratch, struct ws_err *err)
{
	const struct ws_unpack_kernels *k = ws_unpack_kernels();
	const int64_t cols = p->cols, in = row % g->rows, first = in / p->bn;
	const int64_t bands = (in + n - 1) / p->bn - first + 1;
	const size_t n_scales = (size_t)(bands * g->across), n_codes = (size_t)(n * cols);
	uint8_t *mem = ws_unpack_scratch(scratch, n_scales * sizeof(float) + n_codes, err);
	float *scales = (float *)(void *)mem;
	uint8_t *codes = mem + n_scales * sizeof(float);
	if (!mem || ws_fp8_grid_scales(p, g, row / g->rows, first, bands, scales, err) ||
	    ws_unpack_check(p->parts[0], "scale", scales, g->shared ? 1 : n_scales,
	                    row / g->rows * g->down + first, g->across, err) ||
	    ws_item_read(p->weight, (uint64_t)row * (uint64_t)cols, codes, n_codes, err))
		return -1;
	for (int64_t r = 0; r < n; r++)
		k->e4m3(codes + r * cols, cols, p->bk,
		        scales + ((in + r) / p->bn - first) * g->across, out + r * cols);
	return ws_unpack_check(p->weight, "element", out, n_codes, row, cols, err);
}

int ws_unpack_rows_fp8(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                       struct ws_buf *scratch, struct ws_err *err)
{
	const struct ws_fp8_grid g = ws_fp8_grid_of(p);
	/* With tiny blocks, scales have more bytes than codes. */
	const int64_t row_bytes = p->cols + g.across * (int64_t)sizeof(float);
	const int64_t most = row_bytes < WS_UNPACK_CHUNK ? WS_UNPACK_CHUNK / row_bytes : 1;
	while (n > 0) {
		const int64_t left = g.rows - row % g.rows;
		int64_t m = n < left ? n : left;
		if (m > most)
			m = most;
		if (decode_rows(p, &g, row, m, out, scratch, err))
			return -1;
		row += m;
		n -= m;
		out += m * p->cols;
	}
	return 0;
}
