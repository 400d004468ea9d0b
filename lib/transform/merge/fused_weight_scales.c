/* SPDX-License-Identifier: Apache-2.0 */
/* fused_weight_scales.c - the scales of a weight, computed and kept between tiles; and the checks
 * of all values before a push sends anything. */
#include "fused_weight_core.h"

#include "floats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- kept scales ----------------------------------------------------------------------------- */

uint64_t ws_fused_scale_bytes(const struct ws_fused_weight *p)
{
	return (uint64_t)p->n_bands * (uint64_t)p->n_blocks * sizeof(float);
}

/* The kept scales of all blocks, [n_bands][n_blocks]; the first call allocates them. NaN marks a
 * scale that is not known yet; a computed scale is never NaN. NULL: no memory to keep them. */
static float *kept_scales(struct ws_fused_weight *p)
{
	pthread_mutex_lock(&p->lock);
	const uint64_t bytes = ws_fused_scale_bytes(p);
	if (!p->kept && !p->refused && ws_worker_pool_reserve(p->weight.pool, bytes)) {
		p->kept = malloc((size_t)bytes);
		for (size_t i = 0; p->kept && i < bytes / sizeof(float); i++)
			p->kept[i] = NAN;
		if (!p->kept)
			ws_worker_pool_unreserve(p->weight.pool, bytes);
	}
	p->refused = !p->kept;
	float *kept = p->kept;
	pthread_mutex_unlock(&p->lock);
	return kept;
}

bool ws_fused_recall(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k, float *out)
{
	const float *kept = kept_scales(p);
	for (int64_t i = 0; kept && i < k; i++) {
		__atomic_load(&kept[b * p->n_blocks + j + i], &out[i], __ATOMIC_RELAXED);
		if (isnan(out[i]))
			return false;
	}
	return kept;
}

void ws_fused_remember(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k, float *scales)
{
	float *kept = kept_scales(p);
	for (int64_t i = 0; kept && i < k; i++)
		__atomic_store(&kept[b * p->n_blocks + j + i], &scales[i], __ATOMIC_RELAXED);
}

void ws_fused_enter(struct ws_fused_weight *p)
{
	pthread_mutex_lock(&p->lock);
	p->holders++;
	pthread_mutex_unlock(&p->lock);
}

static void forget_scales(struct ws_fused_weight *p)
{
	if (p->kept)
		ws_worker_pool_unreserve(p->weight.pool, ws_fused_scale_bytes(p));
	free(p->kept);
	p->kept = NULL;
}

/* If memory is scarce, frees scales that were read. */
void ws_fused_leave(struct ws_fused_weight *p, bool read)
{
	pthread_mutex_lock(&p->lock);
	p->read = p->read || read;
	if (--p->holders == 0) {
		p->refused = false;
		if (p->read && ws_worker_pool_reserve_is_scarce(p->weight.pool))
			forget_scales(p);
		p->read = false;
	}
	pthread_mutex_unlock(&p->lock);
}

/* ---- numbers in the scratch ------------------------------------------------------------------ */

static size_t bytes_of_number(const struct ws_fused_weight *p)
{
	return ws_weight_size(&p->weight) + (p->weight.dtype == WS_DTYPE_F16 ? sizeof(float) : 0);
}

int64_t ws_fused_numbers_at_once(const struct ws_fused_weight *p, const struct ws_scratch *scratch,
                                 size_t extra)
{
	return (int64_t)((ws_scratch_left(scratch) - ws_weight_room(&p->weight) - extra - 512) /
	                 bytes_of_number(p));
}

int ws_fused_load(struct ws_fused_weight *p, const struct ws_rect *r, struct ws_scratch *scratch,
                  struct ws_fp8_band *out, struct ws_err *err)
{
	const size_t n = (size_t)(r->n * r->m);
	void *x = ws_scratch_take(scratch, n * ws_weight_size(&p->weight));
	float *wide =
		p->weight.dtype == WS_DTYPE_F16 ? ws_scratch_take(scratch, n * sizeof *wide) : NULL;
	if (ws_weight_read(&p->weight, r, false, x, scratch, err))
		return -1;
	if (wide)
		ws_floats_read(WS_DTYPE_F16, x, n, wide);
	*out = (struct ws_fp8_band){ .x = wide ? wide : x,
		                     .is_f32 = p->weight.dtype != WS_DTYPE_BF16,
		                     .stride = (size_t)r->m,
		                     .rows = r->n,
		                     .cols = r->m };
	return 0;
}

int ws_fused_scales_of(struct ws_fused_weight *p, const struct ws_rect *r,
                       const struct ws_fp8_band *x, float *out, struct ws_err *err)
{
	struct ws_fp8_bad bad;
	if (ws_fp8_scales(&p->rule, x, out, &bad))
		return 0;
	return ws_weight_blame(&p->weight, r->row + bad.row, r->col + bad.col, bad.value, err);
}

struct ws_rect ws_fused_first_piece(const struct ws_fused_weight *p, const struct ws_rect *r,
                                    int64_t most)
{
	const int64_t bk = p->rule.bk, rest = ws_least(bk - r->col % bk, r->m); /* of this block */
	if (r->col % bk && r->m > rest)
		return ws_fused_first_piece(p, &(struct ws_rect){ r->row, r->n, r->col, rest },
		                            most);
	if (r->n * r->m <= most)
		return *r;
	if (!ws_weight_splits(&p->weight))
		return (struct ws_rect){ r->row, ws_least(most / r->m, r->n), r->col, r->m };
	const int64_t wide = most / r->n; /* columns that fit */
	if (wide >= rest)
		return (struct ws_rect){ r->row, r->n, r->col, rest + (wide - rest) / bk * bk };
	if (most >= rest)
		return (struct ws_rect){ r->row, most / rest, r->col, rest };
	return (struct ws_rect){ r->row, 1, r->col, most };
}

/* ---- computing scales ------------------------------------------------------------------------ */

/* A block may be a whole tensor, and a cancelled push must not wait for that. */
static int stop_unwanted(const struct ws_scratch *scratch, struct ws_err *err)
{
	return ws_scratch_cancelled(scratch) ?
	               ws_err_set(err, WS_ECANCELLED, "the computation was cancelled") :
	               0;
}

/* The scale of a block is the largest scale of its parts, because every step from the largest
 * magnitude to the scale is monotonic.
 *
 * The band is read in strips, and each strip in pieces (r), from left to right. The first piece of
 * a strip sets its height. ws_fused_first_piece gives that piece one of these shapes:
 *   [all rows left, all columns] or [all rows left, whole blocks]
 *   [some rows, one block], or [some rows, all columns] of a packed weight
 *   [1 row, part of a block]
 * Every later piece must have height rows, too. If it has more, the last rows are cut off. If it
 * has fewer, it becomes [height, most / height]. */
static int compute_scales(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k, float *out,
                          struct ws_scratch *scratch, struct ws_err *err)
{
	const int64_t bn = p->rule.bn, bk = p->rule.bk,
		      end = ws_least((j + k) * bk, p->weight.cols);
	const size_t used = scratch->used;
	float *part = ws_scratch_take(scratch, (size_t)k * sizeof *part);
	const int64_t most = ws_fused_numbers_at_once(p, scratch, 0);
	int64_t height = 0;
	int rc = 0;
	for (int64_t i = 0; i < k; i++)
		out[i] = 0;
	const int64_t last = ws_least((b + 1) * bn, p->weight.rows);
	for (int64_t row = b * bn; row < last && rc == 0; row += height) {
		for (int64_t col = j * bk; col < end && rc == 0;) {
			const size_t mark = scratch->used;
			const struct ws_rect rest = { row, last - row, col, end - col };
			struct ws_rect r = ws_fused_first_piece(p, &rest, most);
			r.n = col == j * bk ? r.n : ws_least(r.n, height);
			height = col == j * bk ? r.n : height;
			struct ws_fp8_band x;
			if (r.n < height)
				r = (struct ws_rect){ row, height, col, most / height };
			rc = stop_unwanted(scratch, err) ||
			                     ws_fused_load(p, &r, scratch, &x, err) ||
			                     ws_fused_scales_of(p, &r, &x, part, err) ?
			             -1 :
			             0;
			const int64_t first = r.col / bk - j;
			for (int64_t i = 0; rc == 0 && i * bk < r.col % bk + r.m; i++)
				out[first + i] =
					part[i] > out[first + i] ? part[i] : out[first + i];
			scratch->used = mark;
			col += r.m;
		}
	}
	scratch->used = used;
	return rc;
}

/* Rows of a packed weight are read whole, so this computes all scales of the band. */
static int compute_band_scales(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k,
                               float *out, struct ws_scratch *scratch, struct ws_err *err)
{
	if (ws_weight_splits(&p->weight) || k == p->n_blocks)
		return compute_scales(p, b, j, k, out, scratch, err);
	const size_t used = scratch->used;
	float *all = ws_scratch_take(scratch, (size_t)p->n_blocks * sizeof *all);
	const int rc = compute_scales(p, b, 0, p->n_blocks, all, scratch, err);
	if (rc == 0)
		memcpy(out, all + j, (size_t)k * sizeof *out);
	scratch->used = used;
	return rc;
}

int ws_fused_find_scales(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k, float *out,
                         struct ws_scratch *scratch, struct ws_err *err)
{
	if (ws_fused_recall(p, b, j, k, out))
		return 0;
	if (!kept_scales(p))
		return compute_band_scales(p, b, j, k, out, scratch, err);
	int rc = 0;
	pthread_mutex_lock(&p->scan);
	if (!ws_fused_recall(p, b, j, k, out)) {
		rc = compute_band_scales(p, b, j, k, out, scratch, err);
		if (rc == 0)
			ws_fused_remember(p, b, j, k, out);
	}
	pthread_mutex_unlock(&p->scan);
	return rc;
}

/* ---- checking ahead -------------------------------------------------------------------------- */

/* plain: checks only the base. */
static int check_rows(struct ws_fused_weight *p, int64_t row, int64_t n, bool plain,
                      struct ws_scratch *scratch, struct ws_err *err)
{
	const size_t used = scratch->used;
	const int64_t most = ws_fused_numbers_at_once(p, scratch, 0), cols = p->weight.cols;
	const int64_t wide = cols < most ? cols : most, tall = most / wide;
	void *x = ws_scratch_take(scratch,
	                          (size_t)(ws_least(tall, n) * wide) * ws_weight_size(&p->weight));
	int rc = 0;
	for (int64_t i = 0; i < n && rc == 0; i += tall)
		for (int64_t j = 0; j < cols && rc == 0; j += wide) {
			const struct ws_rect r = { row + i, ws_least(tall, n - i), j,
				                   ws_least(wide, cols - j) };
			rc = stop_unwanted(scratch, err);
			if (rc == 0)
				rc = ws_weight_read(&p->weight, &r, plain, x, scratch, err);
		}
	scratch->used = used;
	return rc;
}

static int check_band(struct ws_fused_weight *p, int64_t b, struct ws_scratch *scratch,
                      struct ws_err *err)
{
	const int64_t bn = p->rule.bn, row = b * bn, n = ws_least(bn, p->weight.rows - row);
	if (!p->quantized || p->weight.n_deltas || !kept_scales(p))
		return check_rows(p, row, n, true, scratch, err);
	const size_t used = scratch->used;
	float *scales = ws_scratch_take(scratch, (size_t)p->n_blocks * sizeof *scales);
	const int rc = ws_fused_recall(p, b, 0, p->n_blocks, scales) ?
	                       0 :
	                       compute_scales(p, b, 0, p->n_blocks, scales, scratch, err);
	if (rc == 0)
		ws_fused_remember(p, b, 0, p->n_blocks, scales);
	scratch->used = used;
	return rc;
}

int ws_fused_check(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                   struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_fused_weight *p = ws_fused_of(t);
	(void)dst;
	ws_fused_enter(p);
	int rc = at == 0 ? ws_weight_check_factors(&p->weight, scratch, err) : 0;
	for (size_t i = 0; i < n && rc == 0 && !p->fine; i++)
		rc = check_band(p, (int64_t)(at + i), scratch, err);
	ws_fused_leave(p, false);
	return rc;
}

int ws_fused_check_sums(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                        struct ws_scratch *scratch, struct ws_err *err)
{
	struct ws_fused_weight *p = ws_fused_of(t);
	const int64_t row = (int64_t)at * p->rule.bn;
	(void)dst;
	return check_rows(p, row, ws_least((int64_t)n * p->rule.bn, p->weight.rows - row), false,
	                  scratch, err);
}
