/* SPDX-License-Identifier: Apache-2.0 */
/* expr_tree.h - an expression as expr_parse.c leaves it to expr_eval.c.
 *
 * One array of nodes that refer to each other by index; names are NUL-terminated copies. */
#ifndef WS_NAMES_EXPR_TREE_H
#define WS_NAMES_EXPR_TREE_H

#include "expr.h"

enum ws_op { OP_NUMBER, OP_NAME, OP_ELSE, OP_OR, OP_AND, OP_NOT, OP_LESS, OP_AT_MOST, OP_MORE,
	     OP_AT_LEAST, OP_EQUAL, OP_UNEQUAL, OP_ADD, OP_SUBTRACT, OP_MULTIPLY, OP_DIVIDE,
	     OP_REMAINDER, OP_CEIL, OP_MAX, OP_MIN, OP_HAS };

struct ws_node {
	enum ws_op op;
	int a, b;      /* nodes; HAS: b alone */
	int64_t value; /* NUMBER; NAME, HAS: offset in names */
};

struct ws_expr {
	struct ws_node *nodes;
	int n, root;
	char *text, *names;
};

#endif
