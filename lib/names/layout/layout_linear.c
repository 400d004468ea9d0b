/* SPDX-License-Identifier: Apache-2.0 */
/* layout_linear.c - a linear layer: ".weight", ".bias", and for FP8 ".weight_scale_inv" (one scale
 * a block) or ".weight_scale" (one a tensor). Each may be stacked from several checkpoint tensors.
 *
 * If a division has a remainder, the parameter's `trouble` reports it with numbers. The conditions
 * are those that SGLang's layers assert. Note: the parts of a stacked layer must be whole FP8
 * blocks even if nothing is divided. */
#include "layout_build.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *last_segment(const char *module)
{
	const char *dot = strrchr(module, '.');
	return dot ? dot + 1 : module;
}

bool ws_build_quantized(const struct ws_build *b, const char *module)
{
	return b->quant && !b->rule->unquantized && !ws_quant_skips(b->quant, module);
}

unsigned ws_build_tp(const struct ws_build *b)
{
	return b->rule->attention ? b->l->opts.attention_tp : b->l->opts.tp;
}

const char *ws_build_tp_word(const struct ws_build *b)
{
	return ws_build_tp(b) != b->l->opts.tp ? "attention tp" : "tp";
}

/* Returns NULL or the error sentence. `shareable`: several ranks may have the same heads (keys and
 * values). */
static const char *divide(struct ws_build *b, const char *module, const char *what, int64_t n,
                          int64_t heads, bool shareable)
{
	const int64_t tp = ws_build_tp(b);
	const char *name = last_segment(module), *word = ws_build_tp_word(b);
	if (!heads && n % tp)
		return ws_build_keepf(b, "%s: %" PRId64 " %s do not divide by %s %" PRId64, name, n,
		                      what, word, tp);
	if (!heads || heads % tp == 0 || (shareable && tp % heads == 0))
		return NULL;
	if (shareable && heads > 1)
		return ws_build_keepf(b, "%s: %" PRId64 " heads and %s %" PRId64
		                      ": neither number divides the other", name, heads, word, tp);
	return ws_build_keepf(b, "%s: %" PRId64 " heads do not divide by %s %" PRId64, name, heads,
	                      word, tp);
}

static int64_t local_rows(const struct ws_linear_part *p, int64_t tp)
{
	return p->out / (p->heads && p->heads < tp ? p->heads : tp);
}

static const char *align_blocks(struct ws_build *b, const char *module, const char *what, int64_t n,
                                int64_t local, int64_t block)
{
	if (block == 0 || local % block == 0) /* 0: one scale for the whole tensor */
		return NULL;
	if (local == n)
		return ws_build_keepf(b, "%s: %" PRId64 " %s are no multiple of the FP8 block's %"
		                      PRId64, last_segment(module), n, what, block);
	return ws_build_keepf(b, "%s: %" PRId64 " %s of %" PRId64 " at each rank are no multiple "
	                      "of %s %" PRId64, last_segment(module), local, what, n,
	                      b->l->opts.packed_scales && block == ws_build_scale_columns(b) ?
	                              "4 packed scales'" : "the FP8 block's", block);
}

int64_t ws_build_scale_columns(const struct ws_build *b)
{
	return b->quant->block[1] * (b->l->opts.packed_scales ? 4 : 1);
}

static const char *find_column_trouble(struct ws_build *b, const struct ws_linear *l, bool fp8)
{
	const int64_t tp = ws_build_tp(b);
	int64_t most = 0;
	for (size_t i = 0; i < l->n_parts; i++)
		if (l->parts[i].heads > most)
			most = l->parts[i].heads;
	const char *trouble = NULL;
	for (size_t i = 0; i < l->n_parts && !trouble; i++) {
		const struct ws_linear_part *p = &l->parts[i];
		trouble = divide(b, p->module, "rows", p->out, p->heads, p->heads < most);
	}
	for (size_t i = 0; i < l->n_parts && !trouble && fp8 && (tp > 1 || l->n_parts > 1); i++) {
		const struct ws_linear_part *p = &l->parts[i];
		trouble = align_blocks(b, p->module, "rows", p->out, local_rows(p, tp),
		                       b->quant->block[0]);
	}
	return trouble;
}

static const char *find_row_trouble(struct ws_build *b, const struct ws_linear *l, bool fp8)
{
	const int64_t tp = ws_build_tp(b);
	const char *trouble = divide(b, l->name, "columns", l->in, l->heads, false);
	if (trouble || !fp8 || tp == 1)
		return trouble;
	return align_blocks(b, l->name, "columns", l->in, l->in / tp, ws_build_scale_columns(b));
}

/* A part after an unaligned part does not begin at a scale block. */
static const char *find_replicated_trouble(struct ws_build *b, const struct ws_linear *l, bool fp8)
{
	const char *trouble = NULL;
	for (size_t i = 0; fp8 && i + 1 < l->n_parts && !trouble; i++)
		trouble = align_blocks(b, l->parts[i].module, "rows", l->parts[i].out,
		                       l->parts[i].out, b->quant->block[0]);
	return trouble;
}

/* Servers keep all parts of a stack in one precision: reports a mixture. */
static const char *find_mixture(struct ws_build *b, const struct ws_linear *l, bool fp8)
{
	const char *first = last_segment(l->parts[0].module);
	if (!ws_build_quantized(b, l->name))
		return NULL;
	for (size_t i = 1; i < l->n_parts; i++) {
		const char *other = last_segment(l->parts[i].module);
		if (ws_build_quantized(b, l->parts[i].module) != fp8)
			return ws_build_keepf(b, "%s is in FP8 and %s is not", fp8 ? first : other,
			                      fp8 ? other : first);
	}
	return NULL;
}

static const char *find_trouble(struct ws_build *b, const struct ws_linear *l, bool fp8)
{
	const char *mixture = find_mixture(b, l, fp8);
	if (mixture)
		return mixture;
	switch (l->kind) {
	case WS_RULE_COLUMN:
		return find_column_trouble(b, l, fp8);
	case WS_RULE_ROW:
		return find_row_trouble(b, l, fp8);
	default:
		return find_replicated_trouble(b, l, fp8);
	}
}

/* Describes one part's division, which its weight, scales and bias share. */
static struct ws_part describe(const struct ws_linear *l, const struct ws_linear_part *p)
{
	struct ws_part w = { .n_dims = 2, .dims = { p->out, l->in } };
	if (l->kind == WS_RULE_ROW) {
		w.split = l->heads ? WS_SPLIT_HEADS : WS_SPLIT_EVEN;
		w.axis = 1;
		w.units = l->heads;
	} else if (l->kind == WS_RULE_COLUMN) {
		w.split = p->heads ? WS_SPLIT_HEADS : WS_SPLIT_EVEN;
		w.units = p->heads;
	}
	return w;
}

static int build_weight(struct ws_build *b, const struct ws_linear *l, const struct ws_division *d,
                        bool fp8, const char *trouble)
{
	if (ws_build_param(b, l->name, ".weight", d, trouble) < 0)
		return -1;
	for (size_t i = 0; i < l->n_parts; i++) {
		struct ws_part w = describe(l, &l->parts[i]);
		w.dtype = fp8 ? WS_DTYPE_F8_E4M3 : b->dtype;
		w.exact = fp8;
		if (ws_build_part(b, l->parts[i].module, ".weight", w) < 0)
			return -1;
	}
	return ws_build_end(b);
}

/* Every rank has the scales of all parts. */
static int build_tensor_scales(struct ws_build *b, const struct ws_linear *l,
                               const struct ws_division *d, const char *trouble)
{
	const struct ws_part s = { .dtype = WS_DTYPE_F32, .n_dims = 1, .dims = { 1 } };
	if (ws_build_param(b, l->name, ".weight_scale", d, trouble) < 0)
		return -1;
	for (size_t i = 0; i < l->n_parts; i++)
		if (ws_build_part(b, l->parts[i].module, ".weight_scale", s) < 0)
			return -1;
	return ws_build_end(b);
}

/* The servers' dtype is fp32; Qwen's releases have bfloat16. */
void ws_build_blocks(const struct ws_build *b, struct ws_part *s)
{
	const bool packed = b->l->opts.packed_scales;
	s->dtype = packed ? WS_DTYPE_I32 : WS_DTYPE_F32;
	s->dims[0] = packed ? s->dims[0] : ws_div_up(s->dims[0], b->quant->block[0]);
	s->dims[1] = ws_div_up(s->dims[1], ws_build_scale_columns(b));
}

static int build_scales(struct ws_build *b, const struct ws_linear *l, const struct ws_division *d,
                        const char *trouble)
{
	if (!b->quant->block[0])
		return build_tensor_scales(b, l, d, trouble);
	const int64_t tp = trouble ? 1 : d->tp;
	if (ws_build_param(b, l->name, ".weight_scale_inv", d, trouble) < 0)
		return -1;
	for (size_t i = 0; i < l->n_parts; i++) {
		struct ws_part s = describe(l, &l->parts[i]);
		ws_build_blocks(b, &s);
		/* A block may contain several heads; a rank's share is whole blocks. */
		if (s.split == WS_SPLIT_HEADS && s.units % tp == 0 && !b->l->opts.packed_scales)
			s.units = tp;
		if (ws_build_part(b, l->parts[i].module, ".weight_scale_inv", s) < 0)
			return -1;
	}
	return ws_build_end(b);
}

static int build_bias(struct ws_build *b, const struct ws_linear *l, const struct ws_division *d,
                      const char *trouble)
{
	if (ws_build_param(b, l->name, ".bias", d, l->kind == WS_RULE_ROW ? NULL : trouble) < 0)
		return -1;
	for (size_t i = 0; i < l->n_parts; i++) {
		struct ws_part w = describe(l, &l->parts[i]);
		w.dtype = b->dtype;
		w.n_dims = 1;
		w.dims[1] = 0;
		if (l->kind == WS_RULE_ROW)
			w.split = WS_SPLIT_NONE;
		if (ws_build_part(b, l->parts[i].module, ".bias", w) < 0)
			return -1;
	}
	return ws_build_end(b);
}

int ws_build_linear(struct ws_build *b, const struct ws_linear *l)
{
	/* Skip lists may also name the fused module of the server. */
	const bool fp8 =
		ws_build_quantized(b, l->parts[0].module) && ws_build_quantized(b, l->name);
	const char *trouble = find_trouble(b, l, fp8);
	const unsigned tp = l->kind == WS_RULE_REPLICATED ? 1 : ws_build_tp(b);
	const struct ws_division d = { .form = WS_FORM_ROWS, .tp = tp, .ep = 1 };
	if (build_weight(b, l, &d, fp8, trouble) < 0)
		return -1;
	if (fp8 && build_scales(b, l, &d, trouble) < 0)
		return -1;
	return l->bias ? build_bias(b, l, &d, trouble) : 0;
}

/* ---- from a rule -----------------------------------------------------------------------------*/

static int read_heads(struct ws_build *b, const struct ws_expr *e, int64_t n, int64_t *heads)
{
	*heads = 0;
	if (!e)
		return 0;
	if (ws_build_size(b, e, "heads", heads) < 0)
		return -1;
	if (n % *heads)
		return ws_build_fail(b, "%s: %" PRId64 " is no multiple of %" PRId64 " heads",
		                     b->rule->name, n, *heads);
	return 0;
}

static int name_part(struct ws_build *b, const char *module, const char *part, char *dst)
{
	const char *dot = strrchr(module, '.');
	const size_t front = dot ? (size_t)(dot + 1 - module) : 0;
	if (front + strlen(part) >= WS_NAME_MAX)
		return ws_build_fail(b, "a name of more than %d characters", WS_NAME_MAX - 1);
	memcpy(dst, module, front);
	strcpy(dst + front, part);
	return 0;
}

static int read_parts(struct ws_build *b, const char *name, struct ws_linear_part *parts)
{
	const struct ws_rule *r = b->rule;
	if (!r->n_parts) {
		strcpy(parts->module, name);
		return ws_build_size(b, r->out, "rows", &parts->out) < 0 ? -1 :
		       r->kind == WS_RULE_ROW ? 0 :
		       read_heads(b, r->heads, parts->out, &parts->heads);
	}
	for (size_t i = 0; i < r->n_parts; i++)
		if (name_part(b, name, r->parts[i].name, parts[i].module) < 0 ||
		    ws_build_size(b, r->parts[i].out, "rows", &parts[i].out) < 0 ||
		    read_heads(b, r->parts[i].heads, parts[i].out, &parts[i].heads) < 0)
			return -1;
	return 0;
}

int ws_build_linear_rule(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	char name[WS_NAME_MAX];
	int64_t bias = 0;
	struct ws_linear l = { .kind = r->kind, .name = name,
		               .n_parts = r->n_parts ? r->n_parts : 1 };
	if (!r->in || (!r->n_parts && !r->out))
		return ws_build_fail(b, "%s has no size", r->name);
	if (ws_build_name(b, r->name, name) < 0 || ws_build_size(b, r->in, "columns", &l.in) < 0)
		return -1;
	if (r->kind == WS_RULE_ROW && read_heads(b, r->heads, l.in, &l.heads) < 0)
		return -1;
	if (r->bias && ws_build_number(b, r->bias, &bias) < 0)
		return -1;
	l.bias = bias != 0;
	struct ws_linear_part *parts = calloc(l.n_parts, sizeof *parts);
	if (!parts)
		return ws_oom(b->err);
	l.parts = parts;
	int rc = read_parts(b, name, parts);
	if (rc == 0)
		rc = ws_build_linear(b, &l);
	free(parts);
	return rc;
}
