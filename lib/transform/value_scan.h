/* SPDX-License-Identifier: Apache-2.0 */
/* value_scan.h - lets a backend (the GPU) scan weights in place for NaN and infinities, so that
 * they need not be read.
 *
 * The backend returns only the largest magnitude. Weights that it cannot clear are read and
 * checked here, and the error names the element. So the findings do not depend on the backend. */
#ifndef WS_TRANSFORM_VALUE_SCAN_H
#define WS_TRANSFORM_VALUE_SCAN_H

#include "payload.h"

#include "wsync/cancel.h"
#include "wsync/dtype.h"
#include "transform_make.h"

struct ws_fused_weight;

struct ws_value_scan {
	/* spans with a GPU address or strided; they borrow from the transform's sources */
	struct ws_payload of;
	enum ws_dtype dtype; /* BF16, F16, F32, F8_E4M3 or F8_E8M0 */
	bool seen;           /* out: all elements were scanned */
	/* out: the largest magnitude: bits of an element without its sign; E8M0: all bits */
	uint32_t largest;
};

/* Sets seen and largest of as many scans as it can. */
typedef void ws_value_scan_fn(void *ctx, struct ws_value_scan *scans, size_t n,
                              const struct ws_cancel *cancel);

/* ws_transform_check, but calls scan first; scan NULL: no scan. */
int ws_transform_check_with(const struct ws_transform *t, const struct ws_plan *plan,
                            ws_value_scan_fn *scan, void *ctx, const struct ws_cancel *cancel,
                            struct ws_err *err);

/* Sets `fine` of these weights: the scan cleared the base, so it need not be read. */
int ws_value_scan_weights(struct ws_fused_weight *const *products, size_t n, ws_value_scan_fn *scan,
                          void *ctx, const struct ws_cancel *cancel, struct ws_err *err);

#endif
