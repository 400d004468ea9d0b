/* SPDX-License-Identifier: Apache-2.0 */
/* push_finite.c - {require} values: no NaN and no infinity among the tensors that are sent as they
 * are. Those that a transform makes are checked with its inputs (push_values.c). No number may
 * become infinite in the type that a server keeps either: float16 ends at 65504. */
#include "floats.h"
#include "push_state.h"

#include "catalog_build.h"
#include "checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { CHUNK = 1 << 20 };

/* The codes of 8 bits that are no numbers, without their sign but for E8M0, which has none. */
static bool is_bad_code(enum ws_dtype dtype, uint8_t code)
{
	switch (dtype) {
	case WS_DTYPE_F8_E4M3:
		return (code & 0x7f) == 0x7f;
	case WS_DTYPE_F8_E5M2:
		return (code & 0x7f) >= 0x7c;
	case WS_DTYPE_F8_E8M0:
		return code == 0xff;
	case WS_DTYPE_F8_E4M3FNUZ:
	case WS_DTYPE_F8_E5M2FNUZ:
		return code == 0x80;
	default:
		return false; /* an integer, or packed codes of 4 or 6 bits, which are finite */
	}
}

static bool codes_are_finite(enum ws_dtype dtype, const uint8_t *codes, size_t n, size_t *at,
                             double *value)
{
	size_t i = 0;
	while (i < n && !is_bad_code(dtype, codes[i]))
		i++;
	*at = i;
	if (i < n && dtype == WS_DTYPE_F8_E5M2 && (codes[i] & 0x7f) == 0x7c)
		*value = INFINITY;
	return i == n;
}

static bool doubles_are_finite(const double *x, size_t n, size_t *at, double *value)
{
	size_t i = 0;
	while (i < n && isfinite(x[i]))
		i++;
	*at = i;
	*value = i < n ? x[i] : 0;
	return i == n;
}

static bool is_finite(enum ws_dtype dtype, const void *chunk, size_t bytes, size_t *at,
                      double *value)
{
	*value = NAN;
	if (ws_floats_known(dtype))
		return ws_floats_finite(dtype, chunk, bytes / (ws_dtype_bits(dtype) / 8), at,
		                        value);
	if (dtype == WS_DTYPE_F64 || dtype == WS_DTYPE_C64)
		return dtype == WS_DTYPE_F64 ?
		               doubles_are_finite(chunk, bytes / sizeof(double), at, value) :
		               ws_floats_finite(WS_DTYPE_F32, chunk, bytes / sizeof(float), at,
		                                value);
	return ws_dtype_bits(dtype) != 8 || codes_are_finite(dtype, chunk, bytes, at, value);
}

/* ---- the types of the servers ---- */

/* The least number that is rounded to infinity. */
static double limit_of(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_F16  ? 65520 :
	       dtype == WS_DTYPE_BF16 ? 0x1.ffp127 :
	       dtype == WS_DTYPE_F32  ? 0x1.ffffffp127 :
	                                INFINITY;
}

/* The endpoint of the smallest numbers, if they are smaller than those of the type; NULL: none. */
static const struct push_endpoint *narrowest(const struct ws_push *p, enum ws_dtype dtype)
{
	const struct push_endpoint *found = NULL;
	double least = limit_of(dtype);
	if (!ws_floats_known(dtype) && dtype != WS_DTYPE_F64)
		return NULL;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (e->has_type && limit_of(e->type) < least) {
			least = limit_of(e->type);
			found = e;
		}
	}
	return found;
}

static double number_at(enum ws_dtype dtype, const void *chunk, size_t i)
{
	float x;
	if (dtype == WS_DTYPE_F64)
		return ((const double *)chunk)[i];
	ws_floats_read(dtype, (const char *)chunk + i * (ws_dtype_bits(dtype) / 8), 1, &x);
	return x;
}

static bool fits(enum ws_dtype dtype, const void *chunk, size_t bytes, double limit, size_t *at,
                 double *value)
{
	const size_t n = bytes / (ws_dtype_bits(dtype) / 8);
	for (*at = 0; *at < n; ++*at) {
		*value = number_at(dtype, chunk, *at);
		if (fabs(*value) >= limit)
			return false;
	}
	return true;
}

static int blame_type(const struct ws_item *item, const struct push_endpoint *e, uint64_t element,
                      double value, struct ws_err *err)
{
	ws_err_set(err, WS_EINPUT,
	           "tensor '%s' has %g at element %" PRIu64 ", which is infinite in %s, the type "
	           "that %s keeps ({require} values)",
	           ws_quote(item->name).text, value, element, ws_dtype_torch(e->type), e->url);
	return ws_err_where(err, NULL, e->url);
}

/* ---- all tensors ---- */

static int blame(const struct ws_item *item, uint64_t element, double value, struct ws_err *err)
{
	const char *file =
		item->source ? ws_source_file_name(item->source, item->from->file) : NULL;
	return ws_err_set(err, WS_EINPUT,
	                  "tensor '%s' has %s at element %" PRIu64 " ({require} values)%s%s",
	                  ws_quote(item->name).text, isnan(value) ? "NaN" : "an infinity", element,
	                  file ? ": " : "", file ? file : "");
}

static int scan(void *ctx, size_t i, struct ws_err *err)
{
	struct ws_push *p = ctx;
	const struct ws_plan_tensor *t = &p->from.plan->tensors[i];
	const bool complex = t->dtype == WS_DTYPE_C64; /* of two floats */
	const unsigned bits = complex ? 32 : ws_dtype_bits(t->dtype);
	const struct push_endpoint *narrow = narrowest(p, t->dtype);
	if (t->op == WS_OP_MAKE && !narrow)
		return 0;
	void *chunk = malloc(CHUNK);
	int rc = chunk ? 0 : ws_oom(err);
	for (uint64_t at = 0; rc == 0 && at < t->bytes;) {
		const size_t n = t->bytes - at < CHUNK ? (size_t)(t->bytes - at) : CHUNK;
		size_t bad = 0;
		double value;
		if (ws_cancelled(&p->checks.stop_values))
			rc = ws_err_set(err, WS_ECANCELLED, "the scan of the values was cancelled");
		else if (ws_item_read(t->item, at, chunk, n, err))
			rc = -1;
		else if (!is_finite(t->dtype, chunk, n, &bad, &value))
			rc = blame(t->item, (at * 8 / bits + bad) / (complex ? 2 : 1), value, err);
		else if (narrow && !fits(t->dtype, chunk, n, limit_of(narrow->type), &bad, &value))
			rc = blame_type(t->item, narrow, at * 8 / bits + bad, value, err);
		at += n;
	}
	free(chunk);
	return rc;
}

int push_check_finite(struct ws_push *p, struct ws_err *err)
{
	struct ws_parallel work = { 0 };
	int rc = ws_parallel_begin(&work, p->from.plan->n_tensors, 0, scan, p, err);
	if (rc == 0)
		rc = ws_job_wait(&work.job, err);
	ws_parallel_end(&work);
	p->checks.values_read = rc == 0;
	return rc;
}
