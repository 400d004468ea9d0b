/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_nvfp4.c - E2M1 nibbles in blocks of sixteen, as ModelOpt writes them.
 *
 * Two scales: E4M3 for the block, fp32 for the tensor. ModelOpt and trainers on such bases multiply
 * the two scales first, then the code. The other order rounds differently, so this does the same.
 * One scale for each matrix of a stack is accepted, too. */
#include "unpack_core.h"

#include <inttypes.h>
#include <string.h>

enum { BLOCK = 16 };

static const float e2m1[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
	                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };

/* ---- find ---- */

static int disagree(const struct ws_packed *p, const struct ws_item *part, struct ws_err *err)
{
	char w[160], s[160];
	return ws_err_set(err, WS_EINPUT, "%s is %s and does not fit %s, which is %s (NVFP4)",
	                  part->name, ws_unpack_describe(part, s, sizeof s), p->weight->name,
	                  ws_unpack_describe(p->weight, w, sizeof w));
}

static bool scales_fit(const struct ws_packed *p)
{
	const struct ws_item *s = p->parts[0];
	const unsigned n = p->n_dims;
	return s->dtype == WS_DTYPE_F8_E4M3 && s->n_dims == n &&
	       memcmp(s->dims, p->dims, (n - 1) * sizeof *p->dims) == 0 &&
	       s->dims[n - 1] == p->cols / BLOCK + (p->cols % BLOCK != 0);
}

/* One number, or one for each matrix. */
static bool tensor_scale_fits(const struct ws_packed *p)
{
	const struct ws_item *s = p->parts[1];
	const uint64_t n = ws_unpack_count(s);
	return s->dtype == WS_DTYPE_F32 &&
	       (n == 1 || (p->n_dims == 3 && n == (uint64_t)p->dims[0]));
}

int ws_unpack_find_nvfp4(const struct ws_catalog *c, struct ws_packed *p, struct ws_err *err)
{
	const struct ws_item *w = p->weight;
	const unsigned n = w->n_dims;
	int64_t dims[WS_MAX_DIMS] = { 0 };
	memcpy(dims, w->dims, n * sizeof *dims);
	p->parts[0] = ws_unpack_part(c, w->name, "_scale");
	p->parts[1] = ws_unpack_part(c, w->name, "_scale_2");
	if (ws_unpack_ends(w->name, ".weight"))
		p->parts[2] = ws_unpack_beside(c, w->name, strlen(".weight"), ".input_scale");
	if (n < 2 || dims[n - 1] > INT64_MAX / 2)
		return disagree(p, p->parts[0], err);
	dims[n - 1] *= 2;
	ws_unpack_shape(p, n, dims);
	p->bn = 1;
	p->bk = BLOCK;
	if (!scales_fit(p))
		return disagree(p, p->parts[0], err);
	return tensor_scale_fits(p) ? 0 : disagree(p, p->parts[1], err);
}

/* ---- rows ---- */

/* The scales of n rows of one matrix: block scale * tensor scale. */
static int read_scales(const struct ws_packed *p, int64_t row, int64_t n, float *scales,
                       struct ws_err *err)
{
	const int64_t across = p->parts[0]->dims[p->n_dims - 1];
	const size_t count = (size_t)(n * across);
	const uint64_t matrix =
		ws_unpack_count(p->parts[1]) == 1 ? 0 : (uint64_t)(row / p->dims[1]);
	float all;
	if (ws_unpack_floats(p->parts[1], matrix, 1, &all, err) ||
	    ws_unpack_check(p->parts[1], "scale", &all, 1, (int64_t)matrix, 1, err) ||
	    ws_unpack_floats(p->parts[0], (uint64_t)(row * across), count, scales, err) ||
	    ws_unpack_check(p->parts[0], "scale", scales, count, row, across, err))
		return -1;
	for (size_t i = 0; i < count; i++)
		scales[i] *= all;
	return 0;
}

static int decode_rows(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                       struct ws_buf *scratch, struct ws_err *err)
{
	const struct ws_unpack_kernels *k = ws_unpack_kernels();
	const int64_t cols = p->cols, across = p->parts[0]->dims[p->n_dims - 1];
	const size_t n_scales = (size_t)(n * across), n_codes = (size_t)(n * (cols / 2));
	uint8_t *mem = ws_unpack_scratch(scratch, n_scales * sizeof(float) + n_codes, err);
	float *scales = (float *)(void *)mem;
	uint8_t *codes = mem + n_scales * sizeof(float);
	if (!mem || read_scales(p, row, n, scales, err) ||
	    ws_item_read(p->weight, (uint64_t)row * (uint64_t)(cols / 2), codes, n_codes, err))
		return -1;
	for (int64_t r = 0; r < n; r++) {
		const struct ws_nibbles s = { .codes = codes + r * (cols / 2), .levels = e2m1,
			                      .scales = scales + r * across, .block = BLOCK };
		k->nibbles(&s, 0, cols, out + r * cols);
	}
	return ws_unpack_check(p->weight, "element", out, (size_t)(n * cols), row, cols, err);
}

int ws_unpack_rows_nvfp4(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                         struct ws_buf *scratch, struct ws_err *err)
{
	const int64_t most = p->cols / 2 < WS_UNPACK_CHUNK ? WS_UNPACK_CHUNK / (p->cols / 2) : 1;
	const int64_t stack = p->n_dims == 3 ? p->dims[1] : p->rows;
	while (n > 0) {
		const int64_t left = stack - row % stack;
		int64_t m = n < left ? n : left;
		if (m > most)
			m = most;
		if (decode_rows(p, row, m, out, scratch, err))
			return -1;
		row += m;
		n -= m;
		out += m * p->cols;
	}
	return 0;
}
