/* SPDX-License-Identifier: Apache-2.0 */
/* expr_eval.c - evaluates an expression and the lets that it uses. */
#include "expr.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

/* MAX_DEPTH limits operator chains (a text has at most 500) and nested lets. MAX_STEPS is needed
 * too, because lets that use lets twice each grow exponentially. */
enum { MAX_DEPTH = 1500, MAX_STEPS = 100000 };

enum { KNOWN = 0, UNKNOWN = 1, FAILED = -1 };

struct active { const struct ws_let *let; const struct active *outer; };

struct run {
	const struct ws_scope *scope;
	const struct active *active;  /* lets being evaluated */
	const char *missing, *file;   /* the last unknown name, and the file that lacks it */
	const struct ws_expr *needed_by;
	int depth, steps;
	struct ws_err *err;
};

static int walk(struct run *r, const struct ws_expr *e, int i, int64_t *out);

static int wrong(struct run *r, const struct ws_expr *e, const char *what)
{
	char text[121];
	ws_printable(text, sizeof text, e->text, strlen(e->text));
	return ws_err_set(r->err, WS_EINPUT, "expression \"%s\" %s", text, what);
}

static const struct ws_let *find_let(const struct run *r, const struct ws_scope *s,
                                     const char *name)
{
	for (size_t i = s->n_lets; i-- > 0;) {
		const struct active *a = r->active;
		if (strcmp(s->lets[i].name, name) != 0)
			continue;
		while (a && a->let != &s->lets[i])
			a = a->outer;
		if (!a)
			return &s->lets[i];
	}
	return NULL;
}

static int eval_let(struct run *r, const struct ws_let *let, int64_t *out)
{
	const struct active here = { let, r->active };
	r->active = &here;
	const int rc = walk(r, let->expr, let->expr->root, out);
	r->active = here.outer;
	return rc;
}

static int eval_name(struct run *r, const struct ws_expr *e, const char *name, int64_t *out)
{
	const char *file = NULL;
	for (const struct ws_scope *s = r->scope; s; s = s->outer) {
		if (s->name && strcmp(s->name, name) == 0) {
			*out = s->value;
			return KNOWN;
		}
		const struct ws_let *let = find_let(r, s, name);
		if (let)
			return eval_let(r, let, out);
		if (!s->config)
			continue;
		if (ws_config_int(s->config, name, out))
			return KNOWN;
		file = ws_config_path(s->config);
		if (ws_config_knows(s->config, name))
			return ws_err_set(r->err, WS_EINPUT, "%s: \"%s\" is no integer", file,
			                  name);
	}
	r->missing = name;
	r->needed_by = e;
	r->file = file ? file : "config.json";
	return UNKNOWN;
}

static bool holds(const struct run *r, const char *key, int64_t value)
{
	for (const struct ws_scope *s = r->scope; s; s = s->outer)
		if (s->config && ws_config_has(s->config, key, value))
			return true;
	return false;
}

static int divide(struct run *r, const struct ws_expr *e, enum ws_op op, int64_t a, int64_t b,
                  int64_t *out)
{
	if (b == 0)
		return wrong(r, e, "divides by zero");
	if (a == INT64_MIN && b == -1)
		return wrong(r, e, "comes to more than 64 bits");
	if (op == OP_DIVIDE && a % b) {
		char what[96];
		snprintf(what, sizeof what, "divides %lld by %lld, which leaves %lld", (long long)a,
		         (long long)b, (long long)(a % b));
		return wrong(r, e, what);
	}
	*out = op == OP_REMAINDER ? a % b : a / b;
	if (op == OP_CEIL && a % b && (a < 0) == (b < 0))
		++*out;
	return KNOWN;
}

static int calculate(struct run *r, const struct ws_expr *e, enum ws_op op, int64_t a, int64_t b,
                     int64_t *out)
{
	bool over = false;
	switch (op) {
	case OP_LESS:     *out = a < b; break;
	case OP_AT_MOST:  *out = a <= b; break;
	case OP_MORE:     *out = a > b; break;
	case OP_AT_LEAST: *out = a >= b; break;
	case OP_EQUAL:    *out = a == b; break;
	case OP_UNEQUAL:  *out = a != b; break;
	case OP_ADD:      over = __builtin_add_overflow(a, b, out); break;
	case OP_SUBTRACT: over = __builtin_sub_overflow(a, b, out); break;
	case OP_MULTIPLY: over = __builtin_mul_overflow(a, b, out); break;
	case OP_MAX:      *out = a > b ? a : b; break;
	case OP_MIN:      *out = a < b ? a : b; break;
	default:       return divide(r, e, op, a, b, out);
	}
	return over ? wrong(r, e, "comes to more than 64 bits") : KNOWN;
}

static int walk_node(struct run *r, const struct ws_expr *e, const struct ws_node *n, int64_t *out)
{
	int64_t a = 0, b = 0;
	int rc;
	if (n->op == OP_NUMBER) {
		*out = n->value;
		return KNOWN;
	}
	if (n->op == OP_NAME)
		return eval_name(r, e, e->names + n->value, out);
	if (n->op == OP_HAS) {
		rc = walk(r, e, n->b, &b);
		*out = rc == KNOWN && holds(r, e->names + n->value, b);
		return rc;
	}
	rc = walk(r, e, n->a, &a);
	if (n->op == OP_ELSE) {
		*out = a;
		return rc == UNKNOWN ? walk(r, e, n->b, out) : rc;
	}
	if (rc == KNOWN &&
	    (n->op == OP_NOT || (n->op == OP_OR && a) || (n->op == OP_AND && !a))) {
		*out = n->op == OP_NOT ? !a : n->op == OP_OR;
		return KNOWN;
	}
	if (rc == KNOWN)
		rc = walk(r, e, n->b, &b);
	if (rc != KNOWN)
		return rc;
	if (n->op != OP_OR && n->op != OP_AND)
		return calculate(r, e, n->op, a, b, out);
	*out = b != 0;
	return KNOWN;
}

static int walk(struct run *r, const struct ws_expr *e, int i, int64_t *out)
{
	if (r->depth == MAX_DEPTH || r->steps == MAX_STEPS)
		return wrong(r, e, "needs too many steps or levels");
	r->steps++;
	r->depth++;
	const int rc = walk_node(r, e, &e->nodes[i], out);
	r->depth--;
	return rc;
}

static int unknown(const struct run *r)
{
	const char *needed_by = r->needed_by->text;
	char text[121];
	if (strcmp(needed_by, r->missing) == 0)
		return ws_err_set(r->err, WS_EINPUT, "%s has no \"%s\"", r->file, r->missing);
	ws_printable(text, sizeof text, needed_by, strlen(needed_by));
	return ws_err_set(r->err, WS_EINPUT, "%s has no \"%s\", which \"%s\" needs", r->file,
	                  r->missing, text);
}

int ws_expr_eval(const struct ws_expr *e, const struct ws_scope *scope, int64_t *out,
                 struct ws_err *err)
{
	struct run r = { .scope = scope, .err = err };
	int64_t value;
	const int rc = walk(&r, e, e->root, &value);
	if (rc == UNKNOWN)
		return unknown(&r);
	if (rc == KNOWN)
		*out = value;
	return rc;
}
