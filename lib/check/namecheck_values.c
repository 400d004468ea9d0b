/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_values.c - reads every tensor and reports NaN, Inf and tensors that are all zero.
 *
 * A weight of zeros usually never arrived in the checkpoint; a bias may be zero. */
#include "namecheck_core.h"

#include "wsync/cancel.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; /* a multiple of every element size */

struct tally {
	bool nonzero;
	uint64_t nan, inf, first; /* first: index of the first NaN or Inf */
};

static void note_special(struct tally *t, uint64_t element, bool is_nan)
{
	if (!t->nan && !t->inf)
		t->first = element;
	if (is_nan)
		t->nan++;
	else
		t->inf++;
}

/* NaN and Inf have all ones in the exponent; Inf has zeros in the fraction. Compilers vectorize
 * the first loop, which is usually the only one that runs. */
#define SCAN(bits) \
	static void scan##bits(struct tally *t, const unsigned char *p, size_t n, uint64_t at, \
	                       uint##bits##_t exponent) \
	{ \
		const size_t size = bits / 8; \
		uint##bits##_t v; \
		bool special = false; \
		for (size_t i = 0; i < n; i += size) { \
			memcpy(&v, p + i, size); \
			special |= (le##bits##toh(v) & exponent) == exponent; \
		} \
		for (size_t i = 0; special && i < n; i += size) { \
			memcpy(&v, p + i, size); \
			v = le##bits##toh(v) & (uint##bits##_t)(UINT##bits##_MAX >> 1); \
			if ((v & exponent) == exponent) \
				note_special(t, at + i / size, v != exponent); \
		} \
	}
SCAN(16)
SCAN(32)
SCAN(64)

/* NaN is one code of each sign in E4M3, one code in E8M0, and minus zero in the FNUZ types; E5M2
 * has Inf and NaN like float16. */
static void scan8(struct tally *t, const unsigned char *p, size_t n, uint64_t at,
                  enum ws_dtype dtype)
{
	for (size_t i = 0; i < n; i++) {
		const unsigned char v = p[i], rest = v & 0x7f;
		if (dtype == WS_DTYPE_F8_E4M3 ? rest == 0x7f : dtype == WS_DTYPE_F8_E8M0 ? v == 0xff
		    : dtype == WS_DTYPE_F8_E5M2 ? rest >= 0x7c : v == 0x80)
			note_special(t, at + i, dtype != WS_DTYPE_F8_E5M2 || rest != 0x7c);
	}
}

static void scan_chunk(struct tally *t, enum ws_dtype dtype, const unsigned char *p, size_t n,
                       uint64_t at)
{
	for (size_t i = 0; !t->nonzero && i < n; i++)
		t->nonzero = p[i] != 0;
	switch (dtype) {
	case WS_DTYPE_BF16:
		scan16(t, p, n, at / 2, 0x7f80);
		break;
	case WS_DTYPE_F16:
		scan16(t, p, n, at / 2, 0x7c00);
		break;
	case WS_DTYPE_F32:
	case WS_DTYPE_C64:
		scan32(t, p, n, at / 4, 0x7f800000);
		break;
	case WS_DTYPE_F64:
		scan64(t, p, n, at / 8, UINT64_C(0x7ff0000000000000));
		break;
	case WS_DTYPE_F8_E4M3:
	case WS_DTYPE_F8_E5M2:
	case WS_DTYPE_F8_E8M0:
	case WS_DTYPE_F8_E4M3FNUZ:
	case WS_DTYPE_F8_E5M2FNUZ:
		scan8(t, p, n, at, dtype);
		break;
	default: /* integers and the small types have no NaN */
		break;
	}
}

static void report_values(struct ws_check *c, const struct ws_item *item, const struct tally *t)
{
	struct ws_new_finding finding = {
		.verdict = WS_NAME_VALUES, .severity = WS_ERROR, .name = item->name,
		.remedy = "check the step that wrote the checkpoint",
	};
	if (t->nan || t->inf) {
		finding.shared = t->nan ? "tensors hold NaN" : "tensors hold infinities";
		ws_report_add(c->report, &finding, "%" PRIu64 " NaN and %" PRIu64 " infinite in "
		              "%.200s, the first at element %" PRIu64, t->nan, t->inf,
		              ws_text_shape(item->n_dims, item->dims).s, t->first);
		return;
	}
	/* A tensor of -0.0 is zero as well, but does not occur. */
	if (t->nonzero)
		return;
	const bool bias = ws_ends_with(item->name, "bias");
	finding.severity = item->n_dims >= 2 ? WS_ERROR : bias ? WS_NOTE : WS_WARN;
	finding.shared = bias ? "biases are all zero" : "tensors are all zero";
	if (finding.severity == WS_NOTE)
		finding.remedy = NULL;
	ws_report_add(c->report, &finding, "all of its %.200s is zero",
	              ws_text_shape(item->n_dims, item->dims).s);
}

static int scan(struct ws_check *c, const struct ws_item *item, unsigned char *chunk)
{
	struct tally t = { 0 };
	for (uint64_t at = 0; at < item->bytes;) {
		const uint64_t left = item->bytes - at;
		const size_t n = left < CHUNK ? (size_t)left : CHUNK;
		if (ws_cancelled(c->opts->cancel))
			return ws_err_set(c->err, WS_ECANCELLED, "interrupted");
		if (ws_item_read(item, at, chunk, n, c->err))
			return -1;
		scan_chunk(&t, item->dtype, chunk, n, at);
		at += n;
	}
	if (item->bytes)
		report_values(c, item, &t);
	return 0;
}

int ws_check_values(struct ws_check *c)
{
	if (!c->opts->scan)
		return 0;
	unsigned char *chunk = malloc(CHUNK);
	int rc = chunk ? 0 : ws_oom(c->err);
	for (size_t i = 0; !rc && i < c->n_sent; i++)
		rc = scan(c, c->sent[i], chunk);
	free(chunk);
	return rc;
}
