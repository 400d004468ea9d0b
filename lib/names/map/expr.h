/* SPDX-License-Identifier: Apache-2.0 */
/* expr.h - integer expressions over the numbers of a config.
 *
 *   expr    := either { "??" either }             the first operand whose names are all known
 *   either  := both { "or" both }                 0 or 1
 *   both    := not { "and" not }
 *   not     := "not" not | compare
 *   compare := sum [ ("<" | "<=" | ">" | ">=" | "==" | "!=") sum ]
 *   sum     := term { ("+" | "-") term }
 *   term    := primary { ("*" | "/" | "%") primary }
 *   primary := NUMBER | NAME | "(" expr ")" | "ceil" "(" expr "," expr ")" | "max" "(" ... ")" |
 *              "min" "(" ... ")" | "has" "(" NAME "," expr ")"
 *
 * ceil(a, b) is a / b rounded up; max and min take two arguments. has(key, x) is 1 if the config's
 * array contains x, and 0 otherwise or without such a key. A name is a variable of a group, a
 * `let`, or a key of the config. "and" and "or" do not evaluate their right side if the left side
 * decides. Overflow, division by zero and division with a remainder are errors: a fractional head
 * size is a wrong config. */
#ifndef WS_NAMES_EXPR_H
#define WS_NAMES_EXPR_H

#include "wsync/tool/config.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_expr; /* opaque; immutable */

/* text needs no NUL. It has at most 1000 characters, and brackets nested at most 32 deep. */
int ws_expr_parse(const char *text, size_t n, struct ws_expr **out, struct ws_err *err);
void ws_expr_free(struct ws_expr *e); /* NULL is fine */

struct ws_scope {
	const struct ws_scope *outer;  /* NULL: none */
	const struct ws_config *config; /* may be NULL in inner scopes */
	const char *name;              /* one variable; NULL: none */
	int64_t value;
	const struct ws_let *lets;     /* evaluated when used; a later let hides earlier ones */
	size_t n_lets;
};

struct ws_let {
	const char *name;
	const struct ws_expr *expr;
};

/* Looks a name up in the innermost scope first; in each scope the variable, the lets, then the
 * config. A let is evaluated in the scope that uses it, so it may use a group's variable.
 * Within a let its own name has the outer meaning ("let num_experts = num_experts ??
 * n_routed_experts"). Unknown names: WS_EINPUT "ckpt/config.json has no
 * \"moe_intermediate_size\"". */
int ws_expr_eval(const struct ws_expr *e, const struct ws_scope *scope, int64_t *out,
                 struct ws_err *err);

/* The parsed expression, shared by expr_parse.c and expr_eval.c: one array of nodes that refer
 * to each other by index; names are NUL-terminated copies. */
enum ws_op { OP_NUMBER, OP_NAME, OP_ELSE, OP_OR, OP_AND, OP_NOT, OP_LESS, OP_AT_MOST, OP_MORE,
	     OP_AT_LEAST, OP_EQUAL, OP_UNEQUAL, OP_ADD, OP_SUBTRACT, OP_MULTIPLY, OP_DIVIDE,
	     OP_REMAINDER, OP_CEIL, OP_MAX, OP_MIN, OP_HAS };

struct ws_node {
	enum ws_op op;
	int a, b;      /* nodes; HAS uses only b */
	int64_t value; /* NUMBER; NAME, HAS: offset in names */
};

struct ws_expr {
	struct ws_node *nodes;
	int n, root;
	char *text, *names;
};

#endif
