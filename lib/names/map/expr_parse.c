/* SPDX-License-Identifier: Apache-2.0 */
/* expr_parse.c - recursive descent parser for expressions from untrusted maps. */
#include "expr.h"

#include "wsync/tool/str.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1000, MAX_NAME = 63, MAX_BRACKETS = 32 };

struct parser {
	struct ws_expr *e;
	const char *at;       /* current token */
	size_t len;           /* 0: end of text */
	size_t names;         /* bytes in use */
	int depth;
	struct ws_err *err;
};

struct operator { const char *sign; enum ws_op op; };
static const struct operator elses[] = { { "??", OP_ELSE }, { NULL, 0 } };
static const struct operator ors[] = { { "or", OP_OR }, { NULL, 0 } };
static const struct operator ands[] = { { "and", OP_AND }, { NULL, 0 } };
static const struct operator compares[] = {
	{ "<", OP_LESS }, { "<=", OP_AT_MOST }, { ">", OP_MORE }, { ">=", OP_AT_LEAST },
	{ "==", OP_EQUAL }, { "!=", OP_UNEQUAL }, { NULL, 0 },
};
static const struct operator sums[] = { { "+", OP_ADD }, { "-", OP_SUBTRACT }, { NULL, 0 } };
static const struct operator products[] = {
	{ "*", OP_MULTIPLY }, { "/", OP_DIVIDE }, { "%", OP_REMAINDER }, { NULL, 0 },
};
static const struct operator calls[] = {
	{ "ceil", OP_CEIL }, { "max", OP_MAX }, { "min", OP_MIN }, { "has", OP_HAS },
	{ NULL, 0 },
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
		return ws_err_set(p->err, WS_EINPUT, "expression \"%s\" ends where %s should be",
		                  text, should);
	ws_printable(token, sizeof token, p->at, p->len);
	return ws_err_set(p->err, WS_EINPUT, "expression \"%s\" has '%s' where %s should be", text,
	                  token, should);
}

/* Parsers return a node's index, or -1 on failure. */
static int add(struct parser *p, enum ws_op op, int a, int b, int64_t value)
{
	if (a < 0 || b < 0)
		return -1;
	p->e->nodes[p->e->n] = (struct ws_node){ op, a, b, value };
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
	return add(p, OP_NUMBER, 0, 0, value);
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

static int parse_call(struct parser *p, enum ws_op op)
{
	int64_t key = 0;
	int a = 0;
	next_token(p);
	if (expect(p, "(", "'('"))
		return -1;
	if (op == OP_HAS)
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
		{ "and", OP_AND }, { "or", OP_OR }, { "not", OP_NOT }, { NULL, 0 },
	};
	const struct operator *call = among(p, calls);
	if (call)
		return parse_call(p, call->op);
	if (p->len && isdigit((unsigned char)*p->at))
		return parse_number(p);
	if (p->len && begins_name(*p->at) && !among(p, words)) {
		const int64_t name = take_name(p);
		return name < 0 ? -1 : add(p, OP_NAME, 0, 0, name);
	}
	if (!is(p, "("))
		return fail(p, "a number or a name");
	next_token(p);
	const int inner = parse_else(p);
	return inner < 0 || expect(p, ")", "')'") ? -1 : inner;
}

/* Parses left { operator right }, for the operators of one level. */
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
		e = add(p, OP_NOT, e, 0, 0);
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
	/* One allocation: each node takes at least one character, each name one byte more than its
	 * length. */
	struct ws_expr *e =
		calloc(1, sizeof *e + (n + 1) * sizeof *e->nodes + (n + 1) + (2 * n + 1));
	if (!e)
		return ws_oom(err);
	e->nodes = (struct ws_node *)(e + 1);
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
