/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c - makes and owns a layout: checks its options, builds its indices, finds names. */
#include "layout_build.h"

#include "wsync/tool/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_NAME = 1200 }; /* longest name that is looked up with other words */

/* ---- texts of rules -------------------------------------------------------------------------- */

static const char *kind_word(enum ws_rule_kind kind)
{
	static const char *const words[] = {
		[WS_RULE_GROUP] = "group", [WS_RULE_VOCAB] = "vocab", [WS_RULE_COLUMN] = "column",
		[WS_RULE_ROW] = "row", [WS_RULE_REPLICATED] = "replicated",
		[WS_RULE_WHOLE] = "whole", [WS_RULE_SPLIT] = "split", [WS_RULE_STACK] = "stack",
		[WS_RULE_EXPERTS] = "experts", [WS_RULE_SHARED] = "shared",
		[WS_RULE_ALIAS] = "alias", [WS_RULE_SKIP] = "skip"
	};
	return words[kind];
}

static void describe_rule(const struct ws_rule *r, struct ws_buf *text)
{
	ws_buf_reset(text);
	ws_buf_printf(text, "%s %s", kind_word(r->kind), r->name);
	if (r->kind == WS_RULE_STACK)
		ws_buf_printf(text, " <- %s", r->of);
	else if (r->kind == WS_RULE_ALIAS)
		ws_buf_printf(text, " of %s", r->of);
	else if (r->kind == WS_RULE_EXPERTS)
		ws_buf_puts(text, r->nongated ? " <- up_proj down_proj" :
		                                " <- gate_proj up_proj down_proj");
	for (size_t i = 0; i < r->n_parts; i++)
		ws_buf_printf(text, "%s %s", i ? "" : " <-", r->parts[i].name);
}

static int describe_rules(struct ws_build *b, const struct ws_rule *rules, size_t n, size_t *cap,
                          struct ws_buf *text)
{
	struct ws_layout *l = b->l;
	for (size_t i = 0; i < n; i++) {
		describe_rule(&rules[i], text);
		if (ws_buf_check(text, "rules of a layout", b->err) < 0 ||
		    ws_build_grow(b, &l->rules, l->n_rules, cap, sizeof *l->rules) < 0)
			return -1;
		l->rules[l->n_rules] = ws_build_keep(b, ws_buf_str(text), "");
		if (!l->rules[l->n_rules++] ||
		    describe_rules(b, rules[i].inner, rules[i].n_inner, cap, text) < 0)
			return -1;
	}
	return 0;
}

/* ---- making ----------------------------------------------------------------------------------*/

static int check_options(struct ws_layout_opts *o, struct ws_err *err)
{
	o->tp = o->tp ? o->tp : 1;
	o->ep = o->ep ? o->ep : 1;
	o->attention_tp = o->attention_tp ? o->attention_tp : o->tp;
	if (o->tp > 1 << 16)
		return ws_err_set(err, WS_EUSAGE, "tp %u: more than 65536 ranks", o->tp);
	if (o->tp % o->ep)
		return ws_err_set(err, WS_EUSAGE, "ep %u does not divide tp %u", o->ep, o->tp);
	if (o->tp % o->attention_tp)
		return ws_err_set(err, WS_EUSAGE, "attention tp %u does not divide tp %u",
		                  o->attention_tp, o->tp);
	if (o->rank >= o->tp)
		return ws_err_set(err, WS_EUSAGE, "rank %u of tp %u", o->rank, o->tp);
	return 0;
}

/* Reads FP8, in blocks or by tensor. The family's rules handle MXFP4. */
static int read_quantization(struct ws_build *b)
{
	const struct ws_quant *q = ws_config_quant(b->config);
	if (b->l->opts.unquantized || !*q->method || strcmp(q->method, "mxfp4") == 0)
		return 0;
	const bool fp8 = strcmp(q->method, "fp8") == 0;
	if (!fp8) {
		const bool unpacks =
			!strcmp(q->method, "bitsandbytes") || !strncmp(q->method, "modelopt", 8);
		ws_err_set(b->err, WS_EINPUT,
		           "%s: weights quantized as \"%s\" are stored in "
		           "shapes that are not known here%s",
		           ws_config_path(b->config), ws_quote(q->method).text,
		           unpacks ? " ({unpack} sends them in 16 bits)" : "");
		return ws_err_hint(b->err, "supported: unquantized weights, fp8 and mxfp4");
	}
	b->quant = q;
	return 0;
}

static void read_dtype(struct ws_build *b)
{
	const char *name = ws_config_string(b->config, "torch_dtype");
	if (!name)
		name = ws_config_string(b->config, "dtype");
	if (!name || !ws_dtype_from_torch(name, &b->dtype))
		b->dtype = WS_DTYPE_BF16;
	b->l->dtype = b->dtype;
}

static int read_tied(struct ws_build *b)
{
	int64_t tied = 0;
	if (b->family->tied && ws_expr_eval(b->family->tied, b->scope, &tied, b->err) < 0)
		return -1;
	b->l->tied = tied != 0;
	return 0;
}

static bool is_order(const int *order, unsigned n)
{
	unsigned seen = 0;
	for (unsigned d = 0; d < n; d++)
		if (order[d] >= 0 && order[d] < (int)n)
			seen |= 1u << order[d];
	return seen == (1u << n) - 1;
}

static int resolve_aliases(struct ws_build *b)
{
	struct ws_layout *l = b->l;
	size_t kept = 0;
	for (size_t i = 0; i < l->n_aliases; i++) {
		struct ws_alias a = l->aliases[i];
		const struct ws_param *q = ws_layout_find_param(l, b->targets[i].param);
		if (!q)
			/* this config has no such parameter: FP8 scales of a bf16 model */
			continue;
		b->rule = b->targets[i].rule;
		if (a.n_dims && a.n_dims != q->n_dims)
			return ws_build_fail(b, "%s has %u axes", q->name, q->n_dims);
		for (unsigned d = 0; d < q->n_dims && !a.n_dims; d++)
			a.order[d] = (int)d;
		if (!is_order(a.order, q->n_dims))
			return ws_build_fail(b, "the order of %s must name each of %u axes once",
			                     a.name, q->n_dims);
		a.n_dims = q->n_dims;
		a.param = (size_t)(q - l->params);
		l->aliases[kept++] = a;
	}
	l->n_aliases = kept;
	return 0;
}

static int refuse_twice(struct ws_build *b, const char *name, uint32_t first, uint32_t second)
{
	return ws_err_set(b->err, WS_EINPUT, "family %s: \"%s\" has two rules, \"%s\" and \"%s\"",
	                  b->family->name, name, b->l->rules[first], b->l->rules[second]);
}

static int index_names(struct ws_build *b)
{
	struct ws_layout *l = b->l;
	size_t two[2];
	int rc = ws_names_init(&l->part_names, l->parts, sizeof *l->parts, l->n_parts, two, b->err);
	if (rc > 0)
		return refuse_twice(b, l->parts[two[0]].name, l->parts[two[0]].rule,
		                    l->parts[two[1]].rule);
	if (rc == 0)
		rc = ws_names_init(&l->param_names, l->params, sizeof *l->params, l->n_params, two,
		                   b->err);
	if (rc > 0)
		return refuse_twice(b, l->params[two[0]].name, l->params[two[0]].rule,
		                    l->params[two[1]].rule);
	if (rc < 0 || resolve_aliases(b) < 0)
		return -1;
	rc = ws_names_init(&l->alias_names, l->aliases, sizeof *l->aliases, l->n_aliases, two,
	                   b->err);
	return rc < 0 ? -1 : 0;
}

static int fill(struct ws_build *b)
{
	const bool mxfp4 = !b->l->opts.unquantized &&
	                   strcmp(ws_config_quant(b->config)->method, "mxfp4") == 0;
	if (read_quantization(b) < 0)
		return -1;
	read_dtype(b);
	const struct ws_scope base = { .config = b->config },
	    nextn = { .outer = &base, .name = "nextn", .value = b->l->opts.nextn },
	    fp8 = { .outer = &nextn, .name = "fp8", .value = b->quant != NULL },
	    top = { .outer = &fp8, .name = "mxfp4", .value = mxfp4, .lets = b->family->lets,
	            .n_lets = b->family->n_lets };
	b->scope = &top;
	struct ws_buf text;
	ws_buf_init(&text, 0);
	size_t cap = 0;
	b->l->family = ws_build_keep(b, b->family->name, "");
	int rc = b->l->family ? 0 : -1;
	if (rc == 0)
		rc = describe_rules(b, b->family->rules, b->family->n_rules, &cap, &text);
	ws_buf_free(&text);
	if (rc < 0 || read_tied(b) < 0 || ws_build_walk(b) < 0)
		return -1;
	return index_names(b);
}

int ws_layout_make(const struct ws_family *f, const struct ws_config *c,
                   const struct ws_layout_opts *opts, struct ws_layout **out, struct ws_err *err)
{
	struct ws_layout_opts o = *opts;
	if (check_options(&o, err) < 0)
		return -1;
	struct ws_layout *l = calloc(1, sizeof *l);
	if (!l)
		return ws_oom(err);
	l->opts = o;
	struct ws_build b = { .l = l, .family = f, .config = c, .err = err, .prefix = "" };
	const int rc = fill(&b);
	free(b.shared);
	free(b.targets);
	if (rc < 0)
		ws_layout_free(l);
	else
		*out = l;
	return rc;
}

void ws_layout_free(struct ws_layout *l)
{
	if (!l)
		return;
	ws_names_fini(&l->part_names);
	ws_names_fini(&l->param_names);
	ws_names_fini(&l->alias_names);
	ws_arena_free(&l->arena);
	free(l->parts);
	free(l->params);
	free(l->divisions);
	free(l->aliases);
	free(l->skips);
	free(l->rules);
	free(l);
}

/* ---- look-ups --------------------------------------------------------------------------------*/

const struct ws_layout_opts *ws_layout_options(const struct ws_layout *l)
{
	return &l->opts;
}

const char *ws_layout_family(const struct ws_layout *l)
{
	return l->family;
}

bool ws_layout_is_like(const struct ws_layout *l)
{
	return l->like;
}

enum ws_dtype ws_layout_dtype(const struct ws_layout *l)
{
	return l->dtype;
}

bool ws_layout_tied(const struct ws_layout *l)
{
	return l->tied;
}

size_t ws_layout_param_count(const struct ws_layout *l)
{
	return l->n_params;
}

const struct ws_param *ws_layout_param(const struct ws_layout *l, size_t i)
{
	return i < l->n_params ? &l->params[i] : NULL;
}

const struct ws_param *ws_layout_find_param(const struct ws_layout *l, const char *name)
{
	return ws_names_find(&l->param_names, name);
}

/* Replaces the first `from` in the name. False: it has none. */
static bool replace(char *name, size_t n, const char *from, const char *to)
{
	char rest[SHOWN_NAME];
	char *at = strstr(name, from);
	if (!at)
		return false;
	snprintf(rest, sizeof rest, "%s", at + strlen(from));
	snprintf(at, n - (size_t)(at - name), "%s%s", to, rest);
	return true;
}

const struct ws_param *ws_layout_find_shown(const struct ws_layout *l, const char *name)
{
	static const char *const words[][2] = {
		{ ".experts.routed_experts.", ".experts." },
		{ ".attn.", ".self_attn." },
		{ "model.embedding.", "model.embed_tokens." },
		{ ".experts.w13_bias", ".experts.w13_weight_bias" },
		{ ".experts.w2_bias", ".experts.w2_weight_bias" },
	};
	const struct ws_param *p = ws_layout_find_param(l, name);
	char other[SHOWN_NAME];
	bool changed = false;
	if (p || strlen(name) + 8 >= sizeof other)
		return p;
	snprintf(other, sizeof other, "%s", name);
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		changed |= replace(other, sizeof other, words[i][0], words[i][1]);
	return changed ? ws_layout_find_param(l, other) : NULL;
}

size_t ws_layout_part_count(const struct ws_layout *l)
{
	return l->n_parts;
}

const struct ws_part *ws_layout_part(const struct ws_layout *l, size_t i)
{
	return i < l->n_parts ? &l->parts[i] : NULL;
}

const struct ws_part *ws_layout_find_part(const struct ws_layout *l, const char *name)
{
	return ws_names_find(&l->part_names, name);
}

const struct ws_alias *ws_layout_find_alias(const struct ws_layout *l, const char *name, size_t i)
{
	return ws_names_nth(&l->alias_names, name, i);
}

bool ws_part_fits(const struct ws_part *p, unsigned n_dims, const int64_t *dims)
{
	const bool one = n_dims < 2 && p->n_dims < 2 && (!n_dims || dims[0] == 1) &&
	                 (!p->n_dims || p->dims[0] == 1);
	return one || (n_dims == p->n_dims && !memcmp(p->dims, dims, n_dims * sizeof *dims));
}

const char *ws_layout_rule(const struct ws_layout *l, uint32_t rule)
{
	return rule < l->n_rules ? l->rules[rule] : "";
}

const char *ws_layout_skips(const struct ws_layout *l, const char *name)
{
	for (size_t i = 0; i < l->n_skips; i++)
		if (ws_pattern_match(l->skips[i].pattern, name, NULL, 0))
			return l->skips[i].why;
	return NULL;
}
