/* SPDX-License-Identifier: Apache-2.0 */
/* value_scan.c - which tensors of a base to scan, and what their largest magnitude implies.
 *
 * A code times a scale is at most the product of the largest of each. A bound below half of the
 * limit for sums (floats.h) clears the weight, whatever rounding happens on the way. */
#include "value_scan.h"

#include "fused_weight.h"
#include "spans.h"
#include "unpack_core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 3 };

/* The scans of one weight. */
struct base {
	struct ws_fused_weight *fused;
	struct ws_spans spans[PARTS];
	struct ws_value_scan *scans[PARTS];
	unsigned n;
};

struct all {
	struct base *bases;
	size_t n_bases;
	struct ws_value_scan *scans;
	size_t n_scans;
};

/* ---- tensors to scan ------------------------------------------------------------------------- */

static bool device_resident(const struct ws_spans *s)
{
	bool placed = s->n > 0;
	for (size_t i = 0; i < s->n && placed; i++)
		placed = s->list[i].gpu_address || s->list[i].n_strided;
	return placed;
}

static bool can_scan(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_BF16 || dtype == WS_DTYPE_F16 || dtype == WS_DTYPE_F32 ||
	       dtype == WS_DTYPE_F8_E4M3 || dtype == WS_DTYPE_F8_E8M0;
}

/* The items whose values can be bad. 4-bit codes are always finite. */
static unsigned list_items(const struct ws_weight_reader *w, const struct ws_item *items[PARTS])
{
	const struct ws_packed *p = &w->packed;
	switch (p->packing) {
	case WS_PACK_NONE:
		items[0] = p->weight;
		return p->weight->dtype == w->dtype; /* other types are converted, so read */
	case WS_PACK_FP8:
		items[0] = p->weight;
		items[1] = p->parts[0];
		return 2;
	case WS_PACK_NVFP4:
		items[0] = p->parts[0];
		items[1] = p->parts[1];
		return 2;
	case WS_PACK_NF4:
		items[0] = ((const struct ws_nf4 *)p->priv)->nested_blocksize ? p->parts[3] :
		                                                                p->parts[0];
		return 1;
	}
	return 0;
}

static void drop(struct base *b)
{
	for (unsigned i = 0; i < PARTS; i++)
		ws_spans_free(&b->spans[i]);
	b->n = 0;
}

/* Fills b. b->n 0: the weight must be read. */
static int describe(struct base *b, struct ws_err *err)
{
	const struct ws_item *items[PARTS];
	bool all = true;
	b->n = list_items(&b->fused->weight, items);
	for (unsigned i = 0; i < b->n && all; i++) {
		all = can_scan(items[i]->dtype) && items[i]->bytes && !items[i]->computed;
		if (all && ws_spans_add_item(&b->spans[i], items[i], err))
			return -1;
		all = all && device_resident(&b->spans[i]);
	}
	if (!all)
		drop(b);
	return 0;
}

static int describe_all(struct all *a, struct ws_fused_weight *const *weights, size_t n,
                        struct ws_err *err)
{
	a->bases = calloc(n + 1, sizeof *a->bases);
	a->scans = calloc(n * PARTS + 1, sizeof *a->scans);
	if (!a->bases || !a->scans)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct ws_item *items[PARTS];
		struct base *b = &a->bases[a->n_bases];
		b->fused = weights[i];
		a->n_bases++; /* so that drop() frees b in any case */
		if (describe(b, err))
			return -1;
		list_items(&b->fused->weight, items);
		for (unsigned k = 0; k < b->n; k++) {
			b->scans[k] = &a->scans[a->n_scans++];
			*b->scans[k] = (struct ws_value_scan){ ws_spans_payload(&b->spans[k]),
				                               items[k]->dtype, false, 0 };
		}
		a->n_bases -= b->n == 0;
	}
	return 0;
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static double float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return isfinite(x) ? (double)x : INFINITY;
}

/* INFINITY: the largest value is infinite or NaN. */
static double magnitude(const struct ws_value_scan *l)
{
	switch (l->dtype) {
	case WS_DTYPE_BF16:
		return float_of(l->largest << 16);
	case WS_DTYPE_F16:
		return l->largest < 0x7c00 ?
		               ldexp((double)(l->largest & 0x3ff) + (l->largest > 0x3ff ? 1024 : 0),
		                     (int)(l->largest > 0x3ff ? l->largest >> 10 : 1) - 25) :
		               INFINITY;
	case WS_DTYPE_F32:
		return float_of(l->largest);
	case WS_DTYPE_F8_E4M3:
		return l->largest < 0x7f ? 448 : INFINITY;
	case WS_DTYPE_F8_E8M0:
		return l->largest < 0xff ? ldexp(1, (int)l->largest - 127) : INFINITY;
	default:
		return INFINITY;
	}
}

static double largest_of(const float *x, size_t n)
{
	double most = 0;
	for (size_t i = 0; i < n; i++)
		most = !isfinite(x[i])           ? INFINITY :
		       fabs((double)x[i]) > most ? fabs((double)x[i]) :
		                                   most;
	return most;
}

static double bound_of(const struct base *b)
{
	const struct ws_packed *p = &b->fused->weight.packed;
	const struct ws_nf4 *nf4 = p->priv;
	const double first = magnitude(b->scans[0]), second = b->n > 1 ? magnitude(b->scans[1]) : 1;
	switch (p->packing) {
	case WS_PACK_FP8:
		return first * second;
	case WS_PACK_NVFP4:
		return 6 * first * second;
	case WS_PACK_NF4:
		return largest_of(nf4->levels, 16) *
		       (nf4->nested_blocksize ? largest_of(nf4->nested_map, 256) * first +
		                                        fabs((double)nf4->nested_offset) :
		                                first);
	default:
		return first;
	}
}

static bool is_fine(const struct base *b)
{
	const struct ws_weight_reader *w = &b->fused->weight;
	for (unsigned i = 0; i < b->n; i++)
		if (!b->scans[i]->seen)
			return false;
	const double bound = bound_of(b);
	if (w->packed.packing == WS_PACK_NONE && !w->n_deltas)
		return isfinite(bound);
	return bound < (w->dtype == WS_DTYPE_F16 ? 0x1p14 : 0x1p125);
}

/* ---- all weights ----------------------------------------------------------------------------- */

int ws_value_scan_weights(struct ws_fused_weight *const *weights, size_t n, ws_value_scan_fn *scan,
                          void *ctx, const struct ws_cancel *cancel, struct ws_err *err)
{
	struct all a = { 0 };
	const int rc = describe_all(&a, weights, n, err);
	if (rc == 0 && a.n_scans)
		scan(ctx, a.scans, a.n_scans, cancel);
	for (size_t i = 0; rc == 0 && i < a.n_bases; i++)
		a.bases[i].fused->fine = is_fine(&a.bases[i]);
	for (size_t i = 0; a.bases && i < a.n_bases; i++)
		drop(&a.bases[i]);
	free(a.scans);
	free(a.bases);
	return rc;
}
