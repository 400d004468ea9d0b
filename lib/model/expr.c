/* SPDX-License-Identifier: Apache-2.0 */
/* expr.c - a recursive descent over the text, a walk over the tree.
 *
 * Text and values are foreign: depth, length and steps are limited, arithmetic is checked. A tree is one
 * array of nodes that refer to each other by index; names are NUL-terminated copies behind it. */
#include "expr.h"

#include "wsync/str.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps: lets that use lets twice each grow exponentially. Depth: of brackets, and of the walk, which
 * goes through chains of operators and of lets. */
enum { MAX_TEXT = 1000, MAX_NAME = 63, MAX_BRACKETS = 32, MAX_DEPTH = 1500, MAX_STEPS = 100000 };

enum op { NUMBER, NAME, ELSE, OR, AND, NOT, LESS, AT_MOST, MORE, AT_LEAST, EQUAL, UNEQUAL, ADD,
	  SUBTRACT, MULTIPLY, DIVIDE, REMAINDER, CEIL, MAX, MIN, HAS };

struct node {
	enum op op;
	int a, b;      /* nodes; HAS: b */
	int64_t value; /* NUMBER; NAME, HAS: offset in names */
};

struct ws_expr {
	struct node *nodes;
	int n, root;
	char *text, *names;
};

/* ---- parsing ---- */

struct parser {
	struct ws_expr *e;
	const char *at;       /* the token */
	size_t len;           /* 0: the end */
	size_t names;         /* bytes in use */
	int depth;
	struct ws_err *err;
};

struct operator { const char *sign; enum op op; };
static const struct operator elses[] = { { "??", ELSE }, { NULL, 0 } };
static const struct operator ors[] = { { "or", OR }, { NULL, 0 } };
static const struct operator ands[] = { { "and", AND }, { NULL, 0 } };
static const struct operator compares[] = {
	{ "<", LESS }, { "<=", AT_MOST }, { ">", MORE }, { ">=", AT_LEAST }, { "==", EQUAL },
	{ "!=", UNEQUAL }, { NULL, 0 },
};
static const struct operator sums[] = { { "+", ADD }, { "-", SUBTRACT }, { NULL, 0 } };
static const struct operator products[] = {
	{ "*", MULTIPLY }, { "/", DIVIDE }, { "%", REMAINDER }, { NULL, 0 },
};
static const struct operator calls[] = {
	{ "ceil", CEIL }, { "max", MAX }, { "min", MIN }, { "has", HAS }, { NULL, 0 },
};

static bool begins_name(char c)
{
	return isalpha((unsigned char)c) || c == '_';
}

static bool goes_on(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static void next_token(struct parser *p)
{
	const char *s = p->at + p->len;
	while (*s == ' ' || *s == '\t')
		s++;
	p->at = s;
	p->len = *s != 0;
	if (begins_name(*s))
		while (goes_on(s[p->len]))
			p->len++;
	else if (isdigit((unsigned char)*s))
		while (isdigit((unsigned char)s[p->len]))
			p->len++;
	else if ((strchr("<>=!", *s) && *s && s[1] == '=') || (s[0] == '?' && s[1] == '?'))
		p->len = 2;
}

static bool is(const struct parser *p, const char *sign)
{
	return p->len == strlen(sign) && memcmp(p->at, sign, p->len) == 0;
}

static const struct operator *among(const struct parser *p, const struct operator *list)
{
	for (; list->sign; list++)
		if (is(p, list->sign))
			return list;
	return NULL;
}

static int fail(struct parser *p, const char *should)
{
	char text[121], token[41];
	ws_printable(text, sizeof text, p->e->text, strlen(p->e->text));
	if (p->len == 0)
		return ws_err_set(p->err, WS_EINPUT, "expression \"%s\" ends where %s should be", text,
		                  should);
	ws_printable(token, sizeof token, p->at, p->len);
	return ws_err_set(p->err, WS_EINPUT, "expression \"%s\" has '%s' where %s should be", text,
	                  token, should);
}

/* Indices of nodes are never negative: -1 is a failure. */
static int add(struct parser *p, enum op op, int a, int b, int64_t value)
{
	if (a < 0 || b < 0)
		return -1;
	p->e->nodes[p->e->n] = (struct node){ op, a, b, value };
	return p->e->n++;
}

static int parse_else(struct parser *p);

static int expect(struct parser *p, const char *sign, const char *should)
{
	if (!is(p, sign))
		return fail(p, should);
	next_token(p);
	return 0;
}

static int parse_number(struct parser *p)
{
	int64_t value = 0;
	for (size_t i = 0; i < p->len; i++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, p->at[i] - '0', &value))
			return fail(p, "a number of 64 bits");
	next_token(p);
	return add(p, NUMBER, 0, 0, value);
}

static int64_t take_name(struct parser *p)
{
	if (p->len == 0 || !begins_name(*p->at))
		return fail(p, "a name");
	if (p->len > MAX_NAME)
		return fail(p, "a shorter name");
	char *name = p->e->names + p->names;
	memcpy(name, p->at, p->len);
	name[p->len] = 0;
	p->names += p->len + 1;
	next_token(p);
	return name - p->e->names;
}

static int parse_call(struct parser *p, enum op op)
{
	int64_t key = 0;
	int a = 0;
	next_token(p);
	if (expect(p, "(", "'('"))
		return -1;
	if (op == HAS)
		key = take_name(p);
	else
		a = parse_else(p);
	if (key < 0 || a < 0 || expect(p, ",", "','"))
		return -1;
	const int b = parse_else(p);
	if (b < 0 || expect(p, ")", "')'"))
		return -1;
	return add(p, op, a, b, key);
}

static int parse_primary(struct parser *p)
{
	static const struct operator words[] = {
		{ "and", AND }, { "or", OR }, { "not", NOT }, { NULL, 0 },
	};
	const struct operator *call = among(p, calls);
	if (call)
		return parse_call(p, call->op);
	if (p->len && isdigit((unsigned char)*p->at))
		return parse_number(p);
	if (p->len && begins_name(*p->at) && !among(p, words)) {
		const int64_t name = take_name(p);
		return name < 0 ? -1 : add(p, NAME, 0, 0, name);
	}
	if (!is(p, "("))
		return fail(p, "a number or a name");
	next_token(p);
	const int inner = parse_else(p);
	return inner < 0 || expect(p, ")", "')'") ? -1 : inner;
}

/* left { operator right }, all of one level. */
static int parse_chain(struct parser *p, const struct operator *list, int (*next)(struct parser *))
{
	int left = next(p);
	const struct operator *o;
	while (left >= 0 && (o = among(p, list))) {
		next_token(p);
		left = add(p, o->op, left, next(p), 0);
	}
	return left;
}

static int parse_term(struct parser *p)
{
	return parse_chain(p, products, parse_primary);
}

static int parse_sum(struct parser *p)
{
	return parse_chain(p, sums, parse_term);
}

static int parse_compare(struct parser *p)
{
	const int left = parse_sum(p);
	const struct operator *o = among(p, compares);
	if (left < 0 || !o)
		return left;
	next_token(p);
	return add(p, o->op, left, parse_sum(p), 0);
}

static int parse_not(struct parser *p)
{
	int negations = 0;
	for (; is(p, "not"); negations++)
		next_token(p);
	int e = parse_compare(p);
	while (negations--)
		e = add(p, NOT, e, 0, 0);
	return e;
}

static int parse_both(struct parser *p)
{
	return parse_chain(p, ands, parse_not);
}

static int parse_either(struct parser *p)
{
	return parse_chain(p, ors, parse_both);
}

static int parse_else(struct parser *p)
{
	if (p->depth == MAX_BRACKETS)
		return ws_err_set(p->err, WS_EINPUT, "expression nests brackets deeper than %d",
		                  MAX_BRACKETS);
	p->depth++;
	const int e = parse_chain(p, elses, parse_either);
	p->depth--;
	return e;
}

int ws_expr_parse(const char *text, size_t n, struct ws_expr **out, struct ws_err *err)
{
	if (n > MAX_TEXT)
		return ws_err_set(err, WS_EINPUT, "expression of %zu characters, more than %d", n,
		                  MAX_TEXT);
	if (memchr(text, 0, n))
		return ws_err_set(err, WS_EINPUT, "expression with a NUL character");
	/* One block: every node takes a character at least, every name one more than it has. */
	struct ws_expr *e = calloc(1, sizeof *e + (n + 1) * sizeof *e->nodes + (n + 1) + (2 * n + 1));
	if (!e)
		return ws_err_set(err, WS_ESYSTEM, "expression: out of memory");
	e->nodes = (struct node *)(e + 1);
	e->text = (char *)(e->nodes + n + 1);
	e->names = e->text + n + 1;
	memcpy(e->text, text, n);
	struct parser p = { .e = e, .at = e->text, .err = err };
	next_token(&p);
	e->root = parse_else(&p);
	if (e->root >= 0 && p.len == 0) {
		*out = e;
		return 0;
	}
	if (e->root >= 0)
		fail(&p, "an operator or the end");
	ws_expr_free(e);
	return -1;
}

void ws_expr_free(struct ws_expr *e)
{
	free(e);
}

/* ---- evaluation ---- */

enum { KNOWN = 0, UNKNOWN = 1, FAILED = -1 };

struct active { const struct ws_let *let; const struct active *outer; };

struct run {
	const struct ws_scope *scope;
	const struct active *active;  /* lets under evaluation */
	const char *missing, *file;   /* the last UNKNOWN */
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

static const struct ws_let *find_let(const struct run *r, const struct ws_scope *s, const char *name)
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

static int ask_let(struct run *r, const struct ws_let *let, int64_t *out)
{
	const struct active here = { let, r->active };
	r->active = &here;
	const int rc = walk(r, let->expr, let->expr->root, out);
	r->active = here.outer;
	return rc;
}

static int ask(struct run *r, const struct ws_expr *e, const char *name, int64_t *out)
{
	const char *file = NULL;
	for (const struct ws_scope *s = r->scope; s; s = s->outer) {
		if (s->name && strcmp(s->name, name) == 0) {
			*out = s->value;
			return KNOWN;
		}
		const struct ws_let *let = find_let(r, s, name);
		if (let)
			return ask_let(r, let, out);
		if (!s->config)
			continue;
		if (ws_config_int(s->config, name, out))
			return KNOWN;
		file = ws_config_path(s->config);
		if (ws_config_knows(s->config, name))
			return ws_err_set(r->err, WS_EINPUT, "%s: \"%s\" is no integer", file, name);
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

static int divide(struct run *r, const struct ws_expr *e, enum op op, int64_t a, int64_t b,
                  int64_t *out)
{
	if (b == 0)
		return wrong(r, e, "divides by zero");
	if (a == INT64_MIN && b == -1)
		return wrong(r, e, "comes to more than 64 bits");
	if (op == DIVIDE && a % b) {
		char what[96];
		snprintf(what, sizeof what, "divides %lld by %lld, which leaves %lld", (long long)a,
		         (long long)b, (long long)(a % b));
		return wrong(r, e, what);
	}
	*out = op == REMAINDER ? a % b : a / b;
	if (op == CEIL && a % b && (a < 0) == (b < 0))
		++*out;
	return KNOWN;
}

static int calculate(struct run *r, const struct ws_expr *e, enum op op, int64_t a, int64_t b,
                     int64_t *out)
{
	bool over = false;
	switch (op) {
	case LESS:     *out = a < b; break;
	case AT_MOST:  *out = a <= b; break;
	case MORE:     *out = a > b; break;
	case AT_LEAST: *out = a >= b; break;
	case EQUAL:    *out = a == b; break;
	case UNEQUAL:  *out = a != b; break;
	case ADD:      over = __builtin_add_overflow(a, b, out); break;
	case SUBTRACT: over = __builtin_sub_overflow(a, b, out); break;
	case MULTIPLY: over = __builtin_mul_overflow(a, b, out); break;
	case MAX:      *out = a > b ? a : b; break;
	case MIN:      *out = a < b ? a : b; break;
	default:       return divide(r, e, op, a, b, out);
	}
	return over ? wrong(r, e, "comes to more than 64 bits") : KNOWN;
}

static int walk_node(struct run *r, const struct ws_expr *e, const struct node *n, int64_t *out)
{
	int64_t a = 0, b = 0;
	int rc;
	if (n->op == NUMBER) {
		*out = n->value;
		return KNOWN;
	}
	if (n->op == NAME)
		return ask(r, e, e->names + n->value, out);
	if (n->op == HAS) {
		rc = walk(r, e, n->b, &b);
		*out = rc == KNOWN && holds(r, e->names + n->value, b);
		return rc;
	}
	rc = walk(r, e, n->a, &a);
	if (n->op == ELSE) {
		*out = a;
		return rc == UNKNOWN ? walk(r, e, n->b, out) : rc;
	}
	if (rc == KNOWN && (n->op == NOT || (n->op == OR && a) || (n->op == AND && !a))) {
		*out = n->op == NOT ? !a : n->op == OR;
		return KNOWN;
	}
	if (rc == KNOWN)
		rc = walk(r, e, n->b, &b);
	if (rc != KNOWN)
		return rc;
	if (n->op != OR && n->op != AND)
		return calculate(r, e, n->op, a, b, out);
	*out = b != 0;
	return KNOWN;
}

static int walk(struct run *r, const struct ws_expr *e, int i, int64_t *out)
{
	if (r->depth == MAX_DEPTH || r->steps == MAX_STEPS)
		return wrong(r, e, "and what it is made of are too much to work out");
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
