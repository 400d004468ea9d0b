/* SPDX-License-Identifier: Apache-2.0 */
/* product.c - rectangles of a weight, cut until they fit on a bench, and through the kernels. */
#include "product.h"

#include "floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GOOD_TILE = 2 << 20 }; /* bytes of a tile at most, where rows and blocks allow that */

struct rect {
	int64_t row, n, col, m;
};

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static struct ws_product *product_of(const struct ws_tiled *t)
{
	return ((const struct ws_product_part *)t)->product;
}

/* ---- kept scales --------------------------------------------------------------------------------- */

static uint64_t bytes_of_scales(const struct ws_product *p)
{
	return (uint64_t)p->n_bands * (uint64_t)p->n_blocks * sizeof(float);
}

/* NULL: they cannot be kept. */
static float *kept_scales(struct ws_product *p)
{
	pthread_mutex_lock(&p->lock);
	const uint64_t bytes = bytes_of_scales(p);
	if (!p->kept && !p->refused && ws_works_keep(p->weight.works, bytes)) {
		p->kept = malloc((size_t)bytes);
		for (size_t i = 0; p->kept && i < bytes / sizeof(float); i++)
			p->kept[i] = NAN;
		if (!p->kept)
			ws_works_unkeep(p->weight.works, bytes);
	}
	p->refused = !p->kept;
	float *kept = p->kept;
	pthread_mutex_unlock(&p->lock);
	return kept;
}

/* Those of band b, blocks [j, j+k), where all of them are known. Threads that make the same scale make
 * the same one, so it does not matter who writes it. */
static bool recall(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *out)
{
	const float *kept = kept_scales(p);
	for (int64_t i = 0; kept && i < k; i++) {
		__atomic_load(&kept[b * p->n_blocks + j + i], &out[i], __ATOMIC_RELAXED);
		if (isnan(out[i]))
			return false;
	}
	return kept;
}

static void remember(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *scales)
{
	float *kept = kept_scales(p);
	for (int64_t i = 0; kept && i < k; i++)
		__atomic_store(&kept[b * p->n_blocks + j + i], &scales[i], __ATOMIC_RELAXED);
}

static void enter(struct ws_product *p)
{
	pthread_mutex_lock(&p->lock);
	p->holders++;
	pthread_mutex_unlock(&p->lock);
}

static void forget_scales(struct ws_product *p)
{
	if (p->kept)
		ws_works_unkeep(p->weight.works, bytes_of_scales(p));
	free(p->kept);
	p->kept = NULL;
}

/* Once the scales themselves were read, others may need the memory more. */
static void leave(struct ws_product *p, bool read)
{
	pthread_mutex_lock(&p->lock);
	p->read = p->read || read;
	if (--p->holders == 0) {
		p->refused = false;
		if (p->read && ws_works_keep_is_scarce(p->weight.works))
			forget_scales(p);
		p->read = false;
	}
	pthread_mutex_unlock(&p->lock);
}

static void hold(const struct ws_tiled *t)
{
	enter(product_of(t));
}

static void drop(const struct ws_tiled *t)
{
	leave(product_of(t), t == &product_of(t)->scales.tiled);
}

/* ---- numbers on the bench ------------------------------------------------------------------------ */

/* Numbers as the kernels take them: bf16, or fp32. */
struct numbers {
	const uint16_t *bf16;
	const float *f32;
};

static size_t bytes_of_number(const struct ws_product *p)
{
	return ws_weight_size(&p->weight) + (p->weight.dtype == WS_DTYPE_F16 ? sizeof(float) : 0);
}

/* How many numbers find room, beside `extra` bytes. */
static int64_t numbers_at_once(const struct ws_product *p, const struct ws_bench *bench, size_t extra)
{
	return (int64_t)((ws_bench_left(bench) - ws_weight_room(&p->weight) - extra - 512) /
	                 bytes_of_number(p));
}

static int load(struct ws_product *p, const struct rect *r, struct ws_bench *bench, struct numbers *out,
                struct ws_err *err)
{
	const size_t n = (size_t)(r->n * r->m);
	void *x = ws_bench_take(bench, n * ws_weight_size(&p->weight));
	float *wide = p->weight.dtype == WS_DTYPE_F16 ? ws_bench_take(bench, n * sizeof *wide) : NULL;
	if (ws_weight_read(&p->weight, r->row, r->n, r->col, r->m, false, x, bench, err))
		return -1;
	if (wide)
		ws_floats_read(WS_DTYPE_F16, x, n, wide);
	*out = (struct numbers){ p->weight.dtype == WS_DTYPE_BF16 ? x : NULL, wide ? wide : x };
	return 0;
}

static int scales_of(struct ws_product *p, const struct rect *r, const struct numbers *x, float *out,
                     struct ws_err *err)
{
	struct ws_fp8_bad bad;
	const bool ok = x->bf16 ? ws_fp8_scales_bf16(&p->rule, x->bf16, (size_t)r->m, r->n, r->m, out, &bad)
	                        : ws_fp8_scales_f32(&p->rule, x->f32, (size_t)r->m, r->n, r->m, out, &bad);
	return ok ? 0 : ws_weight_blame(&p->weight, r->row + bad.row, r->col + bad.col, bad.value, err);
}

static void codes_of(const struct ws_product *p, const struct rect *r, const struct numbers *x,
                     const float *scales, uint8_t *codes, size_t stride)
{
	if (x->bf16)
		ws_fp8_codes_bf16(&p->rule, x->bf16, (size_t)r->m, r->n, r->m, scales, codes, stride);
	else
		ws_fp8_codes_f32(&p->rule, x->f32, (size_t)r->m, r->n, r->m, scales, codes, stride);
}

/* The first piece of a rectangle within one band, of at most `most` numbers: whole rows of it where that
 * is so, else whole blocks beside each other, else a part of one block. The kernels count blocks from a
 * piece's first column, so one that begins within a block ends with it. */
static struct rect first_piece(const struct ws_product *p, const struct rect *r, int64_t most)
{
	const int64_t bk = p->rule.bk, rest = least(bk - r->col % bk, r->m); /* of this block */
	if (r->col % bk && r->m > rest)
		return first_piece(p, &(struct rect){ r->row, r->n, r->col, rest }, most);
	if (r->n * r->m <= most)
		return *r;
	if (!ws_weight_splits(&p->weight))
		return (struct rect){ r->row, least(most / r->m, r->n), r->col, r->m };
	const int64_t wide = most / r->n; /* columns that fit */
	if (wide >= rest)
		return (struct rect){ r->row, r->n, r->col, rest + (wide - rest) / bk * bk };
	if (most >= rest)
		return (struct rect){ r->row, most / rest, r->col, rest };
	return (struct rect){ r->row, 1, r->col, most };
}

/* ---- a second look ------------------------------------------------------------------------------- */

/* The scale of a block is the largest of those of its parts: all that happens on the way from the largest
 * magnitude to the scale keeps order. */
static int look(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *out, struct ws_bench *bench,
                struct ws_err *err)
{
	const int64_t bn = p->rule.bn, bk = p->rule.bk, end = least((j + k) * bk, p->weight.cols);
	const size_t used = bench->used;
	float *part = ws_bench_take(bench, (size_t)k * sizeof *part);
	const int64_t most = numbers_at_once(p, bench, 0);
	int64_t height = 0;
	int rc = 0;
	for (int64_t i = 0; i < k; i++)
		out[i] = 0;
	for (int64_t row = b * bn, last = least(row + bn, p->weight.rows); row < last && rc == 0; row += height) {
		for (int64_t col = j * bk; col < end && rc == 0;) {
			const size_t mark = bench->used;
			const struct rect rest = { row, last - row, col, end - col };
			struct rect r = first_piece(p, &rest, most);
			r.n = col == j * bk ? r.n : least(r.n, height);
			height = col == j * bk ? r.n : height;
			struct numbers x;
			/* A later column might allow fewer rows than the first: then it takes fewer columns. */
			if (r.n < height)
				r = (struct rect){ row, height, col, most / height };
			rc = load(p, &r, bench, &x, err) || scales_of(p, &r, &x, part, err) ? -1 : 0;
			const int64_t first = r.col / bk - j;
			for (int64_t i = 0; rc == 0 && i * bk < r.col % bk + r.m; i++)
				out[first + i] = part[i] > out[first + i] ? part[i] : out[first + i];
			bench->used = mark;
			col += r.m;
		}
	}
	bench->used = used;
	return rc;
}

/* Rows of a packed weight are read whole, so all blocks of the band are made of them. */
static int look_at_band(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *out,
                        struct ws_bench *bench, struct ws_err *err)
{
	if (ws_weight_splits(&p->weight) || k == p->n_blocks)
		return look(p, b, j, k, out, bench, err);
	const size_t used = bench->used;
	float *all = ws_bench_take(bench, (size_t)p->n_blocks * sizeof *all);
	const int rc = look(p, b, 0, p->n_blocks, all, bench, err);
	if (rc == 0)
		memcpy(out, all + j, (size_t)k * sizeof *out);
	bench->used = used;
	return rc;
}

static int find_scales(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *out,
                       struct ws_bench *bench, struct ws_err *err)
{
	if (recall(p, b, j, k, out))
		return 0;
	if (!kept_scales(p))
		return look_at_band(p, b, j, k, out, bench, err);
	int rc = 0;
	pthread_mutex_lock(&p->scan);
	if (!recall(p, b, j, k, out)) {
		rc = look_at_band(p, b, j, k, out, bench, err);
		if (rc == 0)
			remember(p, b, j, k, out);
	}
	pthread_mutex_unlock(&p->scan);
	return rc;
}

/* ---- tiles --------------------------------------------------------------------------------------- */

typedef int rect_fn(struct ws_product *p, const struct rect *r, void *dst, struct ws_bench *bench,
                    struct ws_err *err);

/* Numbers [at, at+n) as they follow each other in the tensor: the end of a row, whole rows, the
 * beginning of one. */
static int each_rect(struct ws_product *p, int64_t at, int64_t n, size_t size, void *dst, rect_fn *fn,
                     struct ws_bench *bench, struct ws_err *err)
{
	const int64_t cols = p->weight.cols;
	while (n) {
		struct rect r = { at / cols, 1, at % cols, 0 };
		r.m = least(cols - r.col, n);
		if (r.m == cols)
			r.n = n / cols;
		if (fn(p, &r, dst, bench, err))
			return -1;
		at += r.n * r.m;
		n -= r.n * r.m;
		dst = (char *)dst + (size_t)(r.n * r.m) * size;
	}
	return 0;
}

/* Pieces that are whole blocks, all rows of them: one look gives scales and codes. */
static bool is_whole(const struct ws_product *p, const struct rect *r)
{
	const int64_t bn = p->rule.bn, bk = p->rule.bk, end = r->col + r->m;
	return r->row % bn == 0 && r->n == least(bn, p->weight.rows - r->row) && r->col % bk == 0 &&
	       (end % bk == 0 || end == p->weight.cols);
}

static int make_piece(struct ws_product *p, const struct rect *r, uint8_t *codes, size_t stride,
                      struct ws_bench *bench, struct ws_err *err)
{
	const int64_t b = r->row / p->rule.bn, j = r->col / p->rule.bk;
	const int64_t k = (r->col + r->m - 1) / p->rule.bk - j + 1;
	float *scales = ws_bench_take(bench, (size_t)k * sizeof *scales);
	const bool whole = is_whole(p, r);
	struct numbers x;
	const bool known = recall(p, b, j, k, scales);
	if (!known && !whole && find_scales(p, b, j, k, scales, bench, err))
		return -1;
	if (load(p, r, bench, &x, err))
		return -1;
	if (!known && whole) {
		if (scales_of(p, r, &x, scales, err))
			return -1;
		remember(p, b, j, k, scales);
	}
	codes_of(p, r, &x, scales, codes, stride);
	return 0;
}

/* A rectangle in one band. */
static int make_band(struct ws_product *p, const struct rect *band, uint8_t *codes, size_t stride,
                     struct ws_bench *bench, struct ws_err *err)
{
	struct rect rest = *band;
	const size_t used = bench->used;
	/* Its own scales, and those of a second look. */
	const size_t extra = (size_t)(2 * p->n_blocks + least(band->m, p->n_blocks) + 64) * sizeof(float);
	const int64_t most = numbers_at_once(p, bench, extra);
	int64_t height = 0;
	while (rest.n) {
		for (rest.col = band->col; rest.col < band->col + band->m;) {
			rest.m = band->col + band->m - rest.col;
			struct rect r = first_piece(p, &rest, most);
			if (rest.col == band->col)
				height = r.n;
			if (r.n != height)
				r = (struct rect){ r.row, height, r.col,
				                   least(r.m, most / height) };
			if (make_piece(p, &r, codes + (size_t)(r.row - band->row) * stride +
			               (r.col - band->col), stride, bench, err))
				return -1;
			bench->used = used;
			rest.col += r.m;
		}
		rest.row += height;
		rest.n -= height;
	}
	return 0;
}

static int make_codes_rect(struct ws_product *p, const struct rect *r, void *dst, struct ws_bench *bench,
                           struct ws_err *err)
{
	struct rect band = *r;
	for (int64_t row = r->row; row < r->row + r->n; row += band.n) {
		band.row = row;
		band.n = least(p->rule.bn - row % p->rule.bn, r->row + r->n - row);
		if (make_band(p, &band, (uint8_t *)dst + (size_t)((row - r->row) * r->m), (size_t)r->m, bench,
		              err))
			return -1;
	}
	return 0;
}

static int make_codes(const struct ws_tiled *t, uint64_t at, void *dst, size_t n, struct ws_bench *bench,
                      struct ws_err *err)
{
	struct ws_product *p = product_of(t);
	enter(p); /* a run may have let go of it while this tile was under way */
	const int rc = each_rect(p, (int64_t)at, (int64_t)n, 1, dst, make_codes_rect, bench, err);
	leave(p, false);
	return rc;
}

static int make_dense_rect(struct ws_product *p, const struct rect *r, void *dst, struct ws_bench *bench,
                           struct ws_err *err)
{
	return ws_weight_read(&p->weight, r->row, r->n, r->col, r->m, false, dst, bench, err);
}

static int make_dense(const struct ws_tiled *t, uint64_t at, void *dst, size_t n, struct ws_bench *bench,
                      struct ws_err *err)
{
	struct ws_product *p = product_of(t);
	const size_t size = ws_weight_size(&p->weight);
	return each_rect(p, (int64_t)(at / size), (int64_t)(n / size), size, dst, make_dense_rect, bench, err);
}

static int make_scales(const struct ws_tiled *t, uint64_t at, void *dst, size_t n, struct ws_bench *bench,
                       struct ws_err *err)
{
	struct ws_product *p = product_of(t);
	float *out = dst;
	int64_t first = (int64_t)(at / sizeof *out), left = (int64_t)(n / sizeof *out);
	int rc = 0;
	enter(p);
	while (left && rc == 0) {
		const int64_t b = first / p->n_blocks, j = first % p->n_blocks, k = least(p->n_blocks - j, left);
		rc = find_scales(p, b, j, k, out, bench, err);
		out += k;
		first += k;
		left -= k;
	}
	leave(p, false);
	return rc;
}

/* ---- looking ahead ------------------------------------------------------------------------------- */

/* plain: of the base alone. */
static int check_rows(struct ws_product *p, int64_t row, int64_t n, bool plain, struct ws_bench *bench,
                      struct ws_err *err)
{
	const size_t used = bench->used;
	const int64_t most = numbers_at_once(p, bench, 0), cols = p->weight.cols;
	const int64_t wide = cols < most ? cols : most, tall = most / wide;
	void *x = ws_bench_take(bench, (size_t)(least(tall, n) * wide) * ws_weight_size(&p->weight));
	int rc = 0;
	for (int64_t i = 0; i < n && rc == 0; i += tall)
		for (int64_t j = 0; j < cols && rc == 0; j += wide)
			rc = ws_weight_read(&p->weight, row + i, least(tall, n - i), j, least(wide, cols - j),
			                    plain, x, bench, err);
	bench->used = used;
	return rc;
}

static int check_band(struct ws_product *p, int64_t b, struct ws_bench *bench, struct ws_err *err)
{
	const int64_t bn = p->rule.bn, row = b * bn, n = least(bn, p->weight.rows - row);
	if (!p->quantized || p->weight.n_deltas || !kept_scales(p))
		return check_rows(p, row, n, true, bench, err);
	const size_t used = bench->used;
	float *scales = ws_bench_take(bench, (size_t)p->n_blocks * sizeof *scales);
	const int rc = recall(p, b, 0, p->n_blocks, scales) ? 0 :
	               look(p, b, 0, p->n_blocks, scales, bench, err);
	if (rc == 0)
		remember(p, b, 0, p->n_blocks, scales);
	bench->used = used;
	return rc;
}

/* The unit is a band. */
static int check(const struct ws_tiled *t, uint64_t at, void *dst, size_t n, struct ws_bench *bench,
                 struct ws_err *err)
{
	struct ws_product *p = product_of(t);
	(void)dst;
	enter(p);
	int rc = at == 0 ? ws_weight_check_factors(&p->weight, bench, err) : 0;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = check_band(p, (int64_t)(at + i), bench, err);
	leave(p, false);
	return rc;
}

static int check_sums(const struct ws_tiled *t, uint64_t at, void *dst, size_t n, struct ws_bench *bench,
                      struct ws_err *err)
{
	struct ws_product *p = product_of(t);
	const int64_t row = (int64_t)at * p->rule.bn;
	(void)dst;
	return check_rows(p, row, least((int64_t)n * p->rule.bn, p->weight.rows - row), false, bench, err);
}

/* ---- sizes --------------------------------------------------------------------------------------- */

/* Bytes of a tile: whole bands, or whole rows, or what fits. */
static uint64_t choose_tile(const struct ws_product *p, size_t size)
{
	const uint64_t most = ws_works_tile(p->weight.works), row = (uint64_t)p->weight.cols * size;
	const uint64_t band = (uint64_t)p->rule.bn;
	if (row > most)
		return most / size / 64 * 64 * size;
	const uint64_t good = most < GOOD_TILE ? most : GOOD_TILE;
	const uint64_t rows = row < good ? good / row : 1;
	if (rows > band)
		return rows / band * band * row;
	return (band * row <= most ? band : rows) * row;
}

static uint64_t units_of_check(const struct ws_product *p)
{
	const uint64_t band = (uint64_t)p->rule.bn * (uint64_t)p->weight.cols;
	return band < GOOD_TILE ? GOOD_TILE / band : 1;
}

static int check_blocks(const struct ws_product *p, struct ws_err *err)
{
	/* Three lists of a band's scales and one row of numbers must find room. */
	if ((uint64_t)p->n_blocks * 4 * sizeof(float) < ws_works_bench(p->weight.works) / 4)
		return 0;
	ws_err_set(err, WS_EINPUT, "tensor '%s': %lld blocks beside each other do not fit into the scratch",
	           p->weight.name, (long long)p->n_blocks);
	return ws_err_hint(err, "allow more of it: --scratch");
}

int ws_product_init(struct ws_product *p, struct ws_err *err)
{
	struct ws_weight *w = &p->weight;
	const size_t size = ws_weight_size(w);
	if (!p->quantized)
		p->rule = (struct ws_fp8_rule){ .bn = 32, .bk = w->cols };
	p->rule.bn = least(p->rule.bn, w->rows);
	p->rule.bk = least(p->rule.bk, w->cols);
	p->n_bands = (w->rows + p->rule.bn - 1) / p->rule.bn;
	p->n_blocks = (w->cols + p->rule.bk - 1) / p->rule.bk;
	w->looked_at = p->quantized;
	if (ws_weight_init(w, err) || check_blocks(p, err))
		return -1;
	const uint64_t numbers = (uint64_t)w->rows * (uint64_t)w->cols;
	p->out = (struct ws_product_part){ { .bytes = numbers * (p->quantized ? 1 : size),
		.tile = choose_tile(p, p->quantized ? 1 : size), .hold = hold, .drop = drop,
		.make = p->quantized ? make_codes : make_dense }, p };
	const uint64_t scales = ws_works_tile(w->works) / 16 * 16;
	p->scales = (struct ws_product_part){ { .bytes = bytes_of_scales(p),
		.tile = scales < GOOD_TILE ? scales : GOOD_TILE, .hold = hold, .drop = drop,
		.make = make_scales }, p };
	p->check = (struct ws_product_part){ { .bytes = (uint64_t)p->n_bands, .tile = units_of_check(p),
		.dry = true, .hold = hold, .drop = drop, .make = check }, p };
	p->sums = (struct ws_product_part){ { .bytes = (uint64_t)p->n_bands, .tile = units_of_check(p),
		.dry = true, .make = check_sums }, p };
	pthread_mutex_init(&w->lock, NULL);
	pthread_mutex_init(&p->lock, NULL);
	pthread_mutex_init(&p->scan, NULL);
	return 0;
}

void ws_product_fini(struct ws_product *p)
{
	pthread_mutex_destroy(&p->weight.lock);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->scan);
	free(p->kept);
}
