/* SPDX-License-Identifier: Apache-2.0 */
/* packed.c - finds the tensors that make up one weight.
 *
 * The codes of a weight are recognized by their type and by the tensors beside them. A tensor is a
 * part of a weight if its name without the suffix is the name of such codes. There is no list: a
 * few names decide for each tensor alone. */
#include "unpack_core.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char nf4_state[] = ".quant_state.bitsandbytes__nf4";

const char *ws_packing_name(enum ws_packing p)
{
	static const char *const names[] = { "none", "fp8", "nvfp4", "nf4" };
	return names[p];
}

bool ws_unpack_ends(const char *name, const char *suffix)
{
	const size_t n = strlen(name), m = strlen(suffix);
	return n > m && memcmp(name + n - m, suffix, m) == 0;
}

const struct ws_item *ws_unpack_beside(const struct ws_catalog *c, const char *name, size_t cut,
                                       const char *suffix)
{
	char other[4096 + 64];
	const size_t n = strlen(name) - cut;
	if (n + strlen(suffix) >= sizeof other)
		return NULL;
	snprintf(other, sizeof other, "%.*s%s", (int)n, name, suffix);
	return ws_catalog_find(c, other);
}

const struct ws_item *ws_unpack_part(const struct ws_catalog *c, const char *name,
                                     const char *suffix)
{
	return ws_unpack_beside(c, name, 0, suffix);
}

void ws_unpack_shape(struct ws_packed *p, unsigned n_dims, const int64_t *dims)
{
	p->n_dims = n_dims;
	p->rows = 1;
	for (unsigned d = 0; d < n_dims; d++) {
		p->dims[d] = dims[d];
		if (d + 1 < n_dims && __builtin_mul_overflow(p->rows, dims[d], &p->rows))
			p->rows = 0; /* it is empty: another axis has no length */
	}
	p->cols = n_dims ? dims[n_dims - 1] : 1;
}

/* How an item is packed, by its type and by the names of the tensors beside it. */
static enum ws_packing packing_of(const struct ws_catalog *c, const struct ws_item *item)
{
	if (ws_unpack_part(c, item->name, nf4_state))
		return WS_PACK_NF4;
	if (item->dtype == WS_DTYPE_F8_E4M3 && (ws_unpack_part(c, item->name, "_scale_inv") ||
	                                        ws_unpack_part(c, item->name, "_scale")))
		return WS_PACK_FP8;
	if (item->dtype == WS_DTYPE_U8 && ws_unpack_part(c, item->name, "_scale") &&
	    ws_unpack_part(c, item->name, "_scale_2"))
		return WS_PACK_NVFP4;
	return WS_PACK_NONE;
}

/* ---- parts of other tensors ---- */

static const struct suffix {
	const char *suffix, *codes; /* X + suffix goes with X + codes */
	unsigned packings;          /* bits of enum ws_packing */
	/* an error without its codes: such a name is no accident */
	bool orphan;
} suffixes[] = {
	{ ".input_scale", ".weight", 1u << WS_PACK_FP8 | 1u << WS_PACK_NVFP4, false },
	{ "_scale_inv", "", 1u << WS_PACK_FP8, true },
	{ "_scale", "", 1u << WS_PACK_FP8 | 1u << WS_PACK_NVFP4, false },
	{ "_scale_2", "", 1u << WS_PACK_NVFP4, true },
	{ ".absmax", "", 1u << WS_PACK_NF4, true },
	{ ".quant_map", "", 1u << WS_PACK_NF4, true },
	{ ".nested_absmax", "", 1u << WS_PACK_NF4, true },
	{ ".nested_quant_map", "", 1u << WS_PACK_NF4, true },
	{ nf4_state, "", 1u << WS_PACK_NF4, true },
};

static const struct suffix *suffix_of(const char *name)
{
	for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
		if (ws_unpack_ends(name, suffixes[i].suffix))
			return &suffixes[i];
	return NULL;
}

const struct ws_item *ws_unpack_codes(const struct ws_catalog *c, const struct ws_item *item)
{
	const struct suffix *s = suffix_of(item->name);
	return s ? ws_unpack_beside(c, item->name, strlen(s->suffix), s->codes) : NULL;
}

/* 1: a part of the weight of another tensor; 0: not; -1: codes are missing or not unpacked. */
static int is_part(const struct ws_catalog *c, const struct ws_item *item, struct ws_err *err)
{
	const struct suffix *s = suffix_of(item->name);
	if (!s)
		return 0;
	const size_t cut = strlen(s->suffix);
	const struct ws_item *codes = ws_unpack_codes(c, item);
	if (codes && (s->packings & 1u << packing_of(c, codes)))
		return 1;
	if (codes && ws_unpack_refuse(c, codes, err))
		return -1;
	if (!s->orphan)
		return 0;
	char text[160];
	const int n = (int)(strlen(item->name) - cut);
	if (!codes)
		return ws_err_set(err, WS_EINPUT, "%s: there is no %.*s%s that it could belong to",
		                  item->name, n, item->name, s->codes);
	return ws_err_set(err, WS_EINPUT, "%s: %s is %s, which no %s goes with", item->name,
	                  codes->name, ws_unpack_describe(codes, text, sizeof text), s->suffix + 1);
}

/* ---- find ---- */

static int find_weight(const struct ws_catalog *c, const struct ws_quant *config,
                       struct ws_packed *p, struct ws_err *err)
{
	switch (p->packing) {
	case WS_PACK_FP8:
		return ws_unpack_find_fp8(c, config, p, err);
	case WS_PACK_NVFP4:
		return ws_unpack_find_nvfp4(c, p, err);
	case WS_PACK_NF4:
		return ws_unpack_find_nf4(c, p, err);
	default:
		ws_unpack_shape(p, p->weight->n_dims, p->weight->dims);
		p->dtype = p->weight->dtype;
		return ws_unpack_refuse(c, p->weight, err);
	}
}

int ws_packed_find(const struct ws_catalog *c, const struct ws_item *item,
                   const struct ws_quant *config, struct ws_packed *out, struct ws_err *err)
{
	struct ws_packed p = { .packing = packing_of(c, item),
		               .weight = item,
		               .dtype = WS_DTYPE_BF16 };
	const int part = p.packing == WS_PACK_NONE ? is_part(c, item, err) : 0;
	if (part < 0)
		return -1;
	if (part)
		p.weight = NULL;
	else if (find_weight(c, config, &p, err)) {
		ws_packed_free(&p);
		return -1;
	}
	*out = p;
	return 0;
}

void ws_packed_free(struct ws_packed *p)
{
	if (!p)
		return;
	free(p->priv);
	*p = (struct ws_packed){ .packing = WS_PACK_NONE };
}

/* ---- rows ---- */

static int plain_rows(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                      struct ws_err *err)
{
	const enum ws_dtype dtype = p->weight->dtype;
	const size_t count = (size_t)n * (size_t)p->cols;
	char text[160];
	if (dtype != WS_DTYPE_F32 && dtype != WS_DTYPE_BF16 && dtype != WS_DTYPE_F16)
		return ws_err_set(err, WS_EINPUT, "%s is %s, whose numbers are not known%s",
		                  p->weight->name, ws_unpack_describe(p->weight, text, sizeof text),
		                  ws_unpack_ends(p->weight->name, "_blocks") ?
		                          ": MXFP4 is sent as it is" :
		                          "");
	if (ws_unpack_floats(p->weight, (uint64_t)row * (uint64_t)p->cols, count, out, err))
		return -1;
	return ws_unpack_check(p->weight, "element", out, count, row, p->cols, err);
}

int ws_packed_rows(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                   struct ws_buf *scratch, struct ws_err *err)
{
	assert(p->weight && row >= 0 && n >= 0 && row <= p->rows && n <= p->rows - row);
	if (n == 0 || p->cols == 0)
		return 0;
	switch (p->packing) {
	case WS_PACK_FP8:
		return ws_unpack_rows_fp8(p, row, n, out, scratch, err);
	case WS_PACK_NVFP4:
		return ws_unpack_rows_nvfp4(p, row, n, out, scratch, err);
	case WS_PACK_NF4:
		return ws_unpack_rows_nf4(p, row, n, out, scratch, err);
	default:
		return plain_rows(p, row, n, out, err);
	}
}
