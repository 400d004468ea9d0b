/* SPDX-License-Identifier: Apache-2.0 */
/* transform_recipe.c - the inputs of a weight as spans: ranges of files for bytes that are used as
 * they are, and functions for bytes that are widened or selected first (factors, scales of other
 * types). */
#include "transform_recipe.h"

#include "factor.h"
#include "fused_weight.h"
#include "spans.h"
#include "unpack_core.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TERMS = 4, READ_BUF = 256 << 10 };

/* The allocation behind a recipe. */
struct written {
	struct ws_transform_recipe recipe; /* first */
	struct ws_fused_weight *fused;
	struct ws_spans base, scales, nested;
	struct ws_lora_term *terms;
};

/* ---- numbers widened to fp32 ----------------------------------------------------------------- */

static int fill_floats(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	assert(at % sizeof(float) == 0 && n % sizeof(float) == 0);
	return ws_unpack_floats(ctx, at / sizeof(float), n / sizeof(float), dst, err);
}

static int add_floats(struct ws_spans *s, const struct ws_item *item, struct ws_err *err)
{
	const struct ws_span span = { .length = ws_unpack_count(item) * sizeof(float),
		                      .fd = -1,
		                      .fill = fill_floats,
		                      .ctx = (void *)(uintptr_t)item };
	if (item->dtype == WS_DTYPE_F32)
		return ws_spans_add_item(s, item, err);
	return ws_spans_add(s, &span, err);
}

/* Reads elements [first, first+n) of a factor of so many columns, in row order: the end of a row,
 * whole rows, the beginning of a row. */
static int read_factor(const struct ws_factor *f, int64_t cols, int64_t first, int64_t n,
                       float *out, struct ws_err *err)
{
	struct ws_buf buf;
	int rc = 0;
	ws_buf_init(&buf, READ_BUF);
	while (n && rc == 0) {
		struct ws_rect r = { first / cols, 1, first % cols, 0 };
		r.m = cols - r.col < n ? cols - r.col : n;
		if (r.m == cols)
			r.n = n / cols;
		rc = ws_factor_read(f, &r, out, &buf, err);
		out += r.n * r.m;
		first += r.n * r.m;
		n -= r.n * r.m;
	}
	ws_buf_free(&buf);
	return rc;
}

static int fill_a(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct ws_delta *d = ctx;
	const struct ws_factor f = ws_delta_a(d);
	return read_factor(&f, d->cols, (int64_t)(at / sizeof(float)), (int64_t)(n / sizeof(float)),
	                   dst, err);
}

static int fill_b(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct ws_delta *d = ctx;
	const struct ws_factor f = ws_delta_b(d);
	return read_factor(&f, d->rank, (int64_t)(at / sizeof(float)), (int64_t)(n / sizeof(float)),
	                   dst, err);
}

static struct ws_span span_of_factor(const struct ws_delta *d, int64_t n, ws_fill_fn *fill)
{
	return (struct ws_span){ .length = (uint64_t)n * sizeof(float),
		                 .fd = -1,
		                 .fill = fill,
		                 .ctx = (void *)(uintptr_t)d };
}

static int fill_map(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct ws_nf4 *nf4 = ctx;
	(void)err;
	memcpy(dst, (const char *)nf4->nested_map + at, n);
	return 0;
}

/* ---- the parts ------------------------------------------------------------------------------- */

static int write_fp8(struct written *w, const struct ws_packed *p, struct ws_err *err)
{
	struct ws_transform_recipe *f = &w->recipe;
	f->each = p->n_dims > 1 ? p->dims[p->n_dims - 2] : 1;
	f->n_scales = (int64_t)ws_unpack_count(p->parts[0]);
	return add_floats(&w->scales, p->parts[0], err);
}

static int write_nvfp4(struct written *w, const struct ws_packed *p, struct ws_err *err)
{
	return ws_unpack_floats(p->parts[1], 0, 1, &w->recipe.tensor_scale, err) ||
	                       ws_spans_add_item(&w->scales, p->parts[0], err) ?
	               -1 :
	               0;
}

static int write_nf4(struct written *w, const struct ws_packed *p, struct ws_err *err)
{
	struct ws_transform_recipe *f = &w->recipe;
	const struct ws_nf4 *nf4 = p->priv;
	f->levels = nf4->levels;
	f->map = (struct ws_span){
		.length = sizeof nf4->nested_map, .fd = -1, .fill = fill_map, .ctx = p->priv
	};
	/* A file may claim any size. */
	f->nested_block =
		nf4->nested_blocksize < nf4->n_blocks ? nf4->nested_blocksize : nf4->n_blocks;
	f->nested_offset = nf4->nested_offset;
	return ws_spans_add_item(&w->scales, p->parts[0], err) ||
	                       (f->nested_block &&
	                        ws_spans_add_item(&w->nested, p->parts[3], err)) ?
	               -1 :
	               0;
}

static int write_base(struct written *w, const struct ws_packed *p, struct ws_err *err)
{
	w->recipe.packing = p->packing;
	w->recipe.bn = p->bn;
	w->recipe.bk = p->bk;
	if (ws_spans_add_item(&w->base, p->weight, err))
		return -1;
	switch (p->packing) {
	case WS_PACK_NONE:
		return 0;
	case WS_PACK_FP8:
		return write_fp8(w, p, err);
	case WS_PACK_NVFP4:
		return write_nvfp4(w, p, err);
	case WS_PACK_NF4:
		return write_nf4(w, p, err);
	}
	return 0;
}

static int write_terms(struct written *w, const struct ws_weight_reader *weight, struct ws_err *err)
{
	w->terms = calloc(weight->n_deltas + 1, sizeof *w->terms);
	if (!w->terms)
		return ws_oom(err);
	for (size_t i = 0; i < weight->n_deltas; i++) {
		const struct ws_delta *d = weight->deltas[i];
		w->terms[i] = (struct ws_lora_term){
			.row = d->row,
			.rows = d->rows,
			.rank = d->rank,
			.scale = d->scale,
			.a = span_of_factor(d, d->rank * d->cols, fill_a),
			.b = span_of_factor(d, d->rows * d->rank, fill_b),
		};
	}
	w->recipe.terms = w->terms;
	w->recipe.n_terms = weight->n_deltas;
	w->recipe.two_step = weight->two_step;
	return 0;
}

/* ---- weights without a recipe ---------------------------------------------------------------- */

static size_t terms_at(const struct ws_weight_reader *w, int64_t row)
{
	size_t n = 0;
	for (size_t i = 0; i < w->n_deltas; i++)
		n += row >= w->deltas[i]->row && row < w->deltas[i]->row + w->deltas[i]->rows;
	return n;
}

/* Can one launch take the terms of every row? Their number changes only where a term begins or
 * ends. Rows of a plain base need a term, or no kernel would check their numbers. */
static bool terms_fit(const struct ws_fused_weight *p)
{
	const struct ws_weight_reader *w = &p->weight;
	const size_t least = p->quantized || w->packed.packing != WS_PACK_NONE ? 0 : 1;
	const size_t most = w->two_step ? SIZE_MAX : MOST_TERMS;
	bool fit = terms_at(w, 0) >= least;
	for (size_t i = 0; i < w->n_deltas && fit; i++) {
		const struct ws_delta *d = w->deltas[i];
		fit = terms_at(w, d->row) <= most &&
		      (d->row + d->rows == w->rows || terms_at(w, d->row + d->rows) >= least);
	}
	return fit;
}

static bool packing_fits(const struct ws_packed *p)
{
	switch (p->packing) {
	case WS_PACK_NONE:
	case WS_PACK_FP8:
		return true;
	case WS_PACK_NVFP4: /* a stack with a scale for each matrix: CPU */
		return ws_unpack_count(p->parts[1]) == 1;
	case WS_PACK_NF4:
		return ((const struct ws_nf4 *)p->priv)->n_blocks <= INT32_MAX;
	}
	return false;
}

static bool has_one(const struct ws_fused_weight *p)
{
	const struct ws_weight_reader *w = &p->weight;
	const struct ws_packed *packed = &w->packed;
	const bool plain = packed->packing == WS_PACK_NONE;
	if (w->dtype != WS_DTYPE_BF16 && !(w->dtype == WS_DTYPE_F32 && !w->n_deltas))
		return false;
	if (plain && (packed->weight->dtype != w->dtype || (!p->quantized && !w->n_deltas)))
		return false;
	return w->rows > 0 && w->cols > 0 && packing_fits(packed) && (!w->n_deltas || terms_fit(p));
}

/* ---- the whole recipe ------------------------------------------------------------------------ */

static int write_all(struct written *w, struct ws_fused_weight *p, struct ws_err *err)
{
	struct ws_transform_recipe *f = &w->recipe;
	if (write_base(w, &p->weight.packed, err) || write_terms(w, &p->weight, err))
		return -1;
	f->name = p->weight.name;
	f->rows = p->weight.rows;
	f->cols = p->weight.cols;
	f->dtype = p->weight.dtype;
	f->base = ws_spans_payload(&w->base);
	f->scales = ws_spans_payload(&w->scales);
	f->nested = ws_spans_payload(&w->nested);
	f->quantized = p->quantized;
	f->rule = p->rule;
	for (int i = 0; i < 2; i++)
		f->out[i] = (struct ws_recipe_output){ f, i == 1 };
	return 0;
}

int ws_recipe_make(struct ws_fused_weight *p, struct ws_transform_recipe **out, struct ws_err *err)
{
	*out = NULL;
	if (!has_one(p))
		return 0;
	struct written *w = calloc(1, sizeof *w);
	if (!w)
		return ws_oom(err);
	w->fused = p;
	if (write_all(w, p, err)) {
		ws_recipe_free(&w->recipe);
		return -1;
	}
	*out = &w->recipe;
	return 0;
}

void ws_recipe_free(struct ws_transform_recipe *f)
{
	struct written *w = (struct written *)f;
	if (!w)
		return;
	ws_spans_free(&w->base);
	ws_spans_free(&w->scales);
	ws_spans_free(&w->nested);
	free(w->terms);
	free(w);
}

void ws_recipe_note(const struct ws_transform_recipe *f, float max_delta, float max_w)
{
	struct ws_weight_reader *w = &((const struct written *)f)->fused->weight;
	pthread_mutex_lock(&w->lock);
	w->max_delta = max_delta > w->max_delta ? max_delta : w->max_delta;
	w->max_w = max_w > w->max_w ? max_w : w->max_w;
	pthread_mutex_unlock(&w->lock);
}
