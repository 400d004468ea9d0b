/* SPDX-License-Identifier: Apache-2.0 */
/* layout_rules.c - walks the rules of a family: loops, conditions, and the rules for tensors
 * that are neither linear layers nor experts. */
#include "layout_build.h"

#include <inttypes.h>
#include <string.h>

enum { MOST_STEPS = 1 << 16, MOST_DEPTH = 8 };

static struct ws_division divide_rows(unsigned tp)
{
	return (struct ws_division){ .form = WS_FORM_ROWS, .tp = tp, .ep = 1 };
}

/* For a 16-bit float any floating type is accepted. */
bool ws_build_exact(enum ws_dtype dtype)
{
	return dtype != WS_DTYPE_BF16 && dtype != WS_DTYPE_F16;
}

static int build_single(struct ws_build *b, const char *name, const char *suffix,
                        const struct ws_division *d, const char *trouble, struct ws_part p)
{
	if (ws_build_param(b, name, suffix, d, trouble) < 0 ||
	    ws_build_part(b, name, suffix, p) < 0)
		return -1;
	return ws_build_end(b);
}

static int build_vocab(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	const struct ws_division d = divide_rows(ws_build_tp(b));
	struct ws_part p = { .dtype = b->dtype, .n_dims = 2, .split = WS_SPLIT_VOCAB };
	char name[WS_NAME_MAX];
	int64_t bias = 0;
	if (ws_build_name(b, r->name, name) < 0 || ws_build_dims(b, r->dims, 2, p.dims) < 0)
		return -1;
	if (r->bias && ws_build_number(b, r->bias, &bias) < 0)
		return -1;
	/* A head tied to the embedding may be missing from the checkpoint. */
	struct ws_layout *l = b->l;
	const char *tied_to = l->tied && b->embedding ? b->embedding : NULL;
	p.optional = tied_to != NULL;
	if (build_single(b, name, ".weight", &d, NULL, p) < 0)
		return -1;
	l->params[l->n_params - 1].tied_to = tied_to;
	if (!b->embedding)
		b->embedding = l->params[l->n_params - 1].name;
	p.n_dims = 1;
	p.dims[1] = 0;
	return bias ? build_single(b, name, ".bias", &d, NULL, p) : 0;
}

static int build_whole(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	const struct ws_division d = divide_rows(1);
	struct ws_part p = { .dtype = r->has_dtype ? r->dtype : b->dtype, .n_dims = r->n_dims,
		             .exact = r->has_dtype && !r->casts && ws_build_exact(r->dtype) };
	char name[WS_NAME_MAX];
	if (ws_build_name(b, r->name, name) < 0 ||
	    ws_build_dims(b, r->dims, r->n_dims, p.dims) < 0)
		return -1;
	return build_single(b, name, "", &d, NULL, p);
}

static int build_split(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	const unsigned tp = ws_build_tp(b);
	const struct ws_division d = divide_rows(tp);
	struct ws_part p = { .dtype = b->dtype, .n_dims = r->n_dims, .split = WS_SPLIT_HEADS };
	char name[WS_NAME_MAX];
	if (!r->n_dims)
		return ws_build_fail(b, "%s has no axis to split", r->name);
	if (ws_build_name(b, r->name, name) < 0 ||
	    ws_build_dims(b, r->dims, r->n_dims, p.dims) < 0 ||
	    ws_build_size(b, r->heads, "heads", &p.units) < 0)
		return -1;
	if (p.dims[0] % p.units)
		return ws_build_fail(b, "%s: %" PRId64 " is no multiple of %" PRId64 " heads",
		                     r->name, p.dims[0], p.units);
	const char *trouble = NULL, *word = ws_build_tp_word(b);
	if (p.units % tp && tp % p.units)
		trouble = ws_build_keepf(b, "%" PRId64 " heads and %s %u: neither number "
		                         "divides the other", p.units, word, tp);
	return build_single(b, name, "", &d, trouble, p);
}

/* ---- aliases and skips ----------------------------------------------------------------------- */

static int build_alias(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	struct ws_layout *l = b->l;
	char name[WS_NAME_MAX], of[WS_NAME_MAX];
	struct ws_alias a = { .n_dims = r->n_order, .rule = b->rule_id };
	if (ws_build_name(b, r->name, name) < 0 || ws_build_name(b, r->of, of) < 0)
		return -1;
	if (r->groups && ws_build_size(b, r->groups, "groups", &a.groups) < 0)
		return -1;
	memcpy(a.order, r->order, sizeof a.order);
	if (ws_build_grow(b, &l->aliases, l->n_aliases, &l->cap_aliases, sizeof *l->aliases) < 0 ||
	    ws_build_grow(b, &b->targets, l->n_aliases, &b->cap_targets, sizeof *b->targets) < 0)
		return -1;
	a.name = ws_build_keep(b, name, "");
	b->targets[l->n_aliases] = (struct ws_target){ ws_build_keep(b, of, ""), r };
	if (!a.name || !b->targets[l->n_aliases].param)
		return -1;
	l->aliases[l->n_aliases++] = a;
	return 0;
}

static int build_skip(struct ws_build *b)
{
	struct ws_layout *l = b->l;
	char pattern[WS_NAME_MAX];
	if (ws_build_name(b, b->rule->name, pattern) < 0 ||
	    ws_build_grow(b, &l->skips, l->n_skips, &l->cap_skips, sizeof *l->skips) < 0)
		return -1;
	struct ws_skipped s = { ws_build_keep(b, pattern, ""), ws_build_keep(b, b->rule->of, "") };
	if (!s.pattern || !s.why)
		return -1;
	l->skips[l->n_skips++] = s;
	return 0;
}

/* ---- the walk --------------------------------------------------------------------------------*/

static int build_rule(struct ws_build *b)
{
	switch (b->rule->kind) {
	case WS_RULE_VOCAB:
		return build_vocab(b);
	case WS_RULE_COLUMN:
	case WS_RULE_ROW:
	case WS_RULE_REPLICATED:
		return ws_build_linear_rule(b);
	case WS_RULE_WHOLE:
		return build_whole(b);
	case WS_RULE_SPLIT:
		return build_split(b);
	case WS_RULE_STACK:
		return ws_build_stack_rule(b);
	case WS_RULE_EXPERTS:
		return ws_build_experts_rule(b);
	case WS_RULE_SHARED:
		return ws_build_shared_rule(b);
	case WS_RULE_ALIAS:
		return build_alias(b);
	case WS_RULE_SKIP:
		return build_skip(b);
	case WS_RULE_GROUP:
		break;
	}
	return 0;
}

static uint32_t count_rules(const struct ws_rule *rules, size_t n)
{
	uint32_t all = 0;
	for (size_t i = 0; i < n; i++)
		all += 1 + count_rules(rules[i].inner, rules[i].n_inner);
	return all;
}

static int walk_rules(struct ws_build *b, const struct ws_rule *rules, size_t n, uint32_t id,
                      int depth);

static int holds(struct ws_build *b, bool *yes)
{
	int64_t value = 1;
	if (b->rule->when && ws_build_number(b, b->rule->when, &value) < 0)
		return -1;
	*yes = value != 0;
	return 0;
}

static int enter_group(struct ws_build *b, const struct ws_rule *r, uint32_t id, int depth)
{
	const char *outer = b->prefix;
	char prefix[WS_NAME_MAX];
	bool yes;
	b->rule = r;
	if (holds(b, &yes) < 0 || (yes && ws_build_name(b, r->name, prefix) < 0))
		return -1;
	if (!yes)
		return 0;
	b->prefix = prefix;
	const int rc = walk_rules(b, r->inner, r->n_inner, id + 1, depth + 1);
	b->prefix = outer;
	return rc;
}

static int loop_group(struct ws_build *b, const struct ws_rule *r, uint32_t id, int depth)
{
	const struct ws_scope *outer = b->scope;
	int64_t from = 0, to;
	if ((r->from && ws_build_number(b, r->from, &from) < 0) ||
	    ws_build_number(b, r->to, &to) < 0)
		return -1;
	int rc = 0;
	for (int64_t i = from; i < to && rc == 0; i++) {
		b->rule = r;
		if (b->steps++ >= MOST_STEPS)
			return ws_build_fail(b, "more than %d iterations of loops", MOST_STEPS);
		const struct ws_scope inner = { .outer = outer, .name = r->var, .value = i };
		b->scope = &inner;
		rc = enter_group(b, r, id, depth);
		b->scope = outer;
	}
	return rc;
}

static int visit(struct ws_build *b, const struct ws_rule *r, uint32_t id, int depth)
{
	b->rule = r;
	b->rule_id = id;
	if (r->kind == WS_RULE_GROUP)
		return r->var ? loop_group(b, r, id, depth) : enter_group(b, r, id, depth);
	if (b->only_shared && r->kind != WS_RULE_SHARED)
		return 0;
	bool yes;
	if (holds(b, &yes) < 0)
		return -1;
	return yes ? build_rule(b) : 0;
}

static int walk_rules(struct ws_build *b, const struct ws_rule *rules, size_t n, uint32_t id,
                      int depth)
{
	for (size_t i = 0; i < n; i++) {
		b->rule = &rules[i];
		if (depth > MOST_DEPTH)
			return ws_build_fail(b, "groups nest deeper than %d", MOST_DEPTH);
		if (visit(b, &rules[i], id, depth) < 0)
			return -1;
		id += 1 + count_rules(rules[i].inner, rules[i].n_inner);
	}
	return 0;
}

int ws_build_walk(struct ws_build *b)
{
	const struct ws_family *f = b->family;
	if (b->l->opts.fuse_shared) {
		b->only_shared = true;
		if (walk_rules(b, f->rules, f->n_rules, 0, 0) < 0)
			return -1;
		b->only_shared = false;
	}
	if (walk_rules(b, f->rules, f->n_rules, 0, 0) < 0)
		return -1;
	return ws_build_shared_rest(b);
}
