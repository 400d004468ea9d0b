/* SPDX-License-Identifier: Apache-2.0 */
/* fused_weight.c - cuts tiles into rectangles that fit the scratch, and runs the kernels. */
#include "fused_weight_core.h"

#include <stdlib.h>
#include <string.h>

enum { GOOD_TILE = 1 << 20 }; /* bytes of a tile, if rows and blocks allow */

static void hold(const struct ws_tiled *t)
{
	ws_fused_enter(ws_fused_of(t));
}

static void drop(const struct ws_tiled *t)
{
	ws_fused_leave(ws_fused_of(t), t == &ws_fused_of(t)->scales.tiled);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef int rect_fn(struct ws_fused_weight *p, const struct ws_rect *r, void *dst,
                    struct ws_scratch *scratch, struct ws_err *err);

/* Splits numbers [at, at+n) of the tensor: the end of a row, whole rows, the beginning of a row. */
static int each_rect(struct ws_fused_weight *p, int64_t at, int64_t n, size_t size, void *dst,
                     rect_fn *fn, struct ws_scratch *scratch, struct ws_err *err)
{
	const int64_t cols = p->weight.cols;
	while (n) {
		struct ws_rect r = { at / cols, 1, at % cols, 0 };
		r.m = ws_least(cols - r.col, n);
		if (r.m == cols)
			r.n = n / cols;
		if (fn(p, &r, dst, scratch, err))
			return -1;
		at += r.n * r.m;
		n -= r.n * r.m;
		dst = (char *)dst + (size_t)(r.n * r.m) * size;
	}
	return 0;
}

/* A piece of whole blocks: one pass gives scales and codes. */
static bool is_whole(const struct ws_fused_weight *p, const struct ws_rect *r)
{
	const int64_t bn = p->rule.bn, bk = p->rule.bk, end = r->col + r->m;
	return r->row % bn == 0 && r->n == ws_least(bn, p->weight.rows - r->row) &&
	       r->col % bk == 0 && (end % bk == 0 || end == p->weight.cols);
}

static int make_piece(struct ws_fused_weight *p, const struct ws_rect *r, uint8_t *codes,
                      size_t stride, struct ws_scratch *scratch, struct ws_err *err)
{
	const int64_t b = r->row / p->rule.bn, j = r->col / p->rule.bk;
	const int64_t k = (r->col + r->m - 1) / p->rule.bk - j + 1;
	float *scales = ws_scratch_take(scratch, (size_t)k * sizeof *scales);
	const bool whole = is_whole(p, r);
	struct ws_fp8_band x;
	const bool known = ws_fused_recall(p, b, j, k, scales);
	if (!known && !whole && ws_fused_find_scales(p, b, j, k, scales, scratch, err))
		return -1;
	if (ws_fused_load(p, r, scratch, &x, err))
		return -1;
	if (!known && whole) {
		if (ws_fused_scales_of(p, r, &x, scales, err))
			return -1;
		ws_fused_remember(p, b, j, k, scales);
	}
	ws_fp8_codes(&p->rule, &x, scales, codes, stride);
	return 0;
}

/* Makes the codes of a rectangle within one band. */
static int make_band(struct ws_fused_weight *p, const struct ws_rect *band, uint8_t *codes,
                     size_t stride, struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_rect rest = *band;
	const size_t used = scratch->used;
	/* Scales of a piece, and two lists for ws_fused_find_scales. */
	const size_t extra =
		(size_t)(2 * p->n_blocks + ws_least(band->m, p->n_blocks) + 64) * sizeof(float);
	const int64_t most = ws_fused_numbers_at_once(p, scratch, extra);
	int64_t height = 0;
	while (rest.n) {
		for (rest.col = band->col; rest.col < band->col + band->m;) {
			rest.m = band->col + band->m - rest.col;
			struct ws_rect r = ws_fused_first_piece(p, &rest, most);
			if (rest.col == band->col)
				height = r.n;
			if (r.n != height)
				r = (struct ws_rect){ r.row, height, r.col,
					              ws_least(r.m, most / height) };
			if (make_piece(p, &r,
			               codes + (size_t)(r.row - band->row) * stride +
			                       (r.col - band->col),
			               stride, scratch, err))
				return -1;
			scratch->used = used;
			rest.col += r.m;
		}
		rest.row += height;
		rest.n -= height;
	}
	return 0;
}

static int make_codes_rect(struct ws_fused_weight *p, const struct ws_rect *r, void *dst,
                           struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_rect band = *r;
	for (int64_t row = r->row; row < r->row + r->n; row += band.n) {
		band.row = row;
		band.n = ws_least(p->rule.bn - row % p->rule.bn, r->row + r->n - row);
		if (make_band(p, &band, (uint8_t *)dst + (size_t)((row - r->row) * r->m),
		              (size_t)r->m, scratch, err))
			return -1;
	}
	return 0;
}

static int make_codes(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                      struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_fused_weight *p = ws_fused_of(t);
	ws_fused_enter(p); /* the job may drop the item while this tile is being made */
	const int rc = each_rect(p, (int64_t)at, (int64_t)n, 1, dst, make_codes_rect, scratch, err);
	ws_fused_leave(p, false);
	return rc;
}

static int make_dense_rect(struct ws_fused_weight *p, const struct ws_rect *r, void *dst,
                           struct ws_scratch *scratch, struct ws_err *err)
{
	return ws_weight_read(&p->weight, r, false, dst, scratch, err);
}

static int make_dense(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                      struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_fused_weight *p = ws_fused_of(t);
	const size_t size = ws_weight_size(&p->weight);
	return each_rect(p, (int64_t)(at / size), (int64_t)(n / size), size, dst, make_dense_rect,
	                 scratch, err);
}

static int make_scales(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                       struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_fused_weight *p = ws_fused_of(t);
	float *out = dst;
	int64_t first = (int64_t)(at / sizeof *out), left = (int64_t)(n / sizeof *out);
	int rc = 0;
	ws_fused_enter(p);
	while (left && rc == 0) {
		const int64_t b = first / p->n_blocks, j = first % p->n_blocks;
		const int64_t k = ws_least(p->n_blocks - j, left);
		rc = ws_fused_find_scales(p, b, j, k, out, scratch, err);
		out += k;
		first += k;
		left -= k;
	}
	ws_fused_leave(p, false);
	return rc;
}

/* The little-endian numbers of a row are its exponent bytes, one after the other. */
static uint64_t packed_row(const struct ws_fused_weight *p)
{
	return (uint64_t)(p->n_blocks + 3) / 4 * 4;
}

static int find_exponents(struct ws_fused_weight *p, int64_t b, uint8_t *out,
                          struct ws_scratch *scratch, struct ws_err *err)
{
	const size_t used = scratch->used;
	float *scales = ws_scratch_take(scratch, (size_t)p->n_blocks * sizeof *scales);
	const int rc = ws_fused_find_scales(p, b, 0, p->n_blocks, scales, scratch, err);
	for (int64_t j = 0; rc == 0 && j < p->n_blocks; j++) {
		uint32_t bits;
		memcpy(&bits, &scales[j], sizeof bits);
		out[j] = (uint8_t)(bits >> 23);
	}
	scratch->used = used;
	return rc;
}

static int make_packed_scales(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                              struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_fused_weight *p = ws_fused_of(t);
	const uint64_t row_bytes = packed_row(p);
	const size_t used = scratch->used;
	uint8_t *row = ws_scratch_take(scratch, row_bytes), *to = dst;
	int64_t known = -1; /* the band whose exponents are in `row` */
	int rc = 0;
	memset(row, 0, row_bytes);
	ws_fused_enter(p);
	while (n && rc == 0) {
		const int64_t b = (int64_t)(at / row_bytes) / p->rule.bn;
		const uint64_t from = at % row_bytes, rest = row_bytes - from;
		const size_t some = n < rest ? n : (size_t)rest;
		if (b != known)
			rc = find_exponents(p, b, row, scratch, err);
		known = b;
		memcpy(to, row + from, some);
		to += some;
		at += some;
		n -= some;
	}
	ws_fused_leave(p, false);
	scratch->used = used;
	return rc;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Bytes of a tile: whole bands, or whole rows, or as many numbers as fit. */
static uint64_t choose_tile(const struct ws_fused_weight *p, size_t size)
{
	const uint64_t most = ws_worker_pool_tile(p->weight.pool),
		       row = (uint64_t)p->weight.cols * size;
	const uint64_t band = (uint64_t)p->rule.bn;
	if (row > most)
		return most / size / 64 * 64 * size;
	const uint64_t good = most < GOOD_TILE ? most : GOOD_TILE;
	const uint64_t rows = row < good ? good / row : 1;
	if (rows > band)
		return rows / band * band * row;
	return (band * row <= most ? band : rows) * row;
}

static uint64_t units_of_check(const struct ws_fused_weight *p)
{
	const uint64_t band = (uint64_t)p->rule.bn * (uint64_t)p->weight.cols;
	return band < GOOD_TILE ? GOOD_TILE / band : 1;
}

static int check_blocks(const struct ws_fused_weight *p, struct ws_err *err)
{
	/* Three lists of a band's scales and one row of numbers must fit. */
	if ((uint64_t)p->n_blocks * 4 * sizeof(float) < ws_worker_pool_scratch(p->weight.pool) / 4)
		return 0;
	ws_err_set(err, WS_EINPUT,
	           "tensor '%s': %lld blocks beside each other do not fit into the scratch",
	           p->weight.name, (long long)p->n_blocks);
	return ws_err_hint(err, "allow more of it: {scratch}");
}

int ws_fused_init(struct ws_fused_weight *p, struct ws_err *err)
{
	struct ws_weight_reader *w = &p->weight;
	const size_t size = ws_weight_size(w);
	if (!p->quantized)
		p->rule = (struct ws_fp8_rule){ .bn = 32, .bk = w->cols };
	p->rule.bn = ws_least(p->rule.bn, w->rows);
	p->rule.bk = ws_least(p->rule.bk, w->cols);
	p->n_bands = (w->rows + p->rule.bn - 1) / p->rule.bn;
	p->n_blocks = (w->cols + p->rule.bk - 1) / p->rule.bk;
	w->looked_at = p->quantized;
	if (ws_weight_init(w, err) || check_blocks(p, err))
		return -1;
	const uint64_t numbers = (uint64_t)w->rows * (uint64_t)w->cols;
	p->out = (struct ws_fused_part){ { .bytes = numbers * (p->quantized ? 1 : size),
		                           .tile = choose_tile(p, p->quantized ? 1 : size),
		                           .hold = hold,
		                           .drop = drop,
		                           .make = p->quantized ? make_codes : make_dense },
		                         p };
	const uint64_t scales = ws_worker_pool_tile(w->pool) / 16 * 16;
	p->scales = (struct ws_fused_part){ { .bytes = p->packed_scales ?
		                                       (uint64_t)w->rows * packed_row(p) :
		                                       ws_fused_scale_bytes(p),
		                              .tile = scales < GOOD_TILE ? scales : GOOD_TILE,
		                              .hold = hold,
		                              .drop = drop,
		                              .make = p->packed_scales ? make_packed_scales :
		                                                         make_scales },
		                            p };
	p->check = (struct ws_fused_part){ { .bytes = (uint64_t)p->n_bands,
		                             .tile = units_of_check(p),
		                             .scan_only = true,
		                             .hold = hold,
		                             .drop = drop,
		                             .make = ws_fused_check },
		                           p };
	p->sums = (struct ws_fused_part){ { .bytes = (uint64_t)p->n_bands,
		                            .tile = units_of_check(p),
		                            .scan_only = true,
		                            .make = ws_fused_check_sums },
		                          p };
	p->out.tiled.name = p->scales.tiled.name = p->check.tiled.name = p->sums.tiled.name =
		w->name;
	pthread_mutex_init(&w->lock, NULL);
	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_init(&p->scan, NULL);
	return 0;
}

void ws_fused_fini(struct ws_fused_weight *p)
{
	pthread_mutex_destroy(&p->weight.lock);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->scan);
	free(p->kept);
}
