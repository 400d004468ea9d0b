/* SPDX-License-Identifier: Apache-2.0 */
/* layout_build.h - between the files that make a layout.
 *
 * layout_rules.c walks the family's rules, whose stacks are layout_stack.c's; layout_linear.c and
 * layout_experts.c know what one layer comes to; layout_build.c appends parameters and parts;
 * layout_place.c does the arithmetic of shares, and layout.c owns the result. */
#ifndef WS_NAMES_LAYOUT_BUILD_H
#define WS_NAMES_LAYOUT_BUILD_H

#include "arena.h"
#include "name_index.h"
#include "rules.h"
#include "wsync/tool/layout.h"

enum {
	WS_NAME_MAX = 512,        /* of a parameter, NUL included */
	WS_VOCAB_MULTIPLE = 64,   /* DEFAULT_VOCAB_PADDING_SIZE of the servers */
	WS_PART_MAX = 1 << 20,    /* tensors of a layout: eight times those of a DeepSeek-V3 */
};

/* How the parts of a parameter lie in it. */
enum ws_form {
	WS_FORM_ROWS,    /* one below the other, along the first axis */
	WS_FORM_EXPERTS, /* [expert, rows, columns]: the parts of one expert one below the other; of
	                  * single numbers [expert, part], or [expert] where each has one */
	WS_FORM_SHAPED   /* the one part in other dimensions, or transposed */
};

/* How a parameter is divided, trouble considered (then among one). Rank r has piece r % tp, and of
 * the experts those of r / tp % ep. */
struct ws_division {
	enum ws_form form;
	unsigned tp, ep;
	int64_t routed;           /* EXPERTS: so many are divided by ep, the rest is everywhere */
	unsigned per_expert;      /* EXPERTS: parts of each */
	int axis;                 /* SHAPED: of the param, which is divided; < 0: none */
};

struct ws_skipped {
	const char *pattern, *why;
};

struct ws_layout {
	struct ws_layout_opts opts;
	const char *family;
	bool tied;
	struct ws_part *parts;
	size_t n_parts, cap_parts;
	struct ws_param *params;
	struct ws_division *divisions; /* of params */
	size_t n_params, cap_params;
	struct ws_alias *aliases;
	size_t n_aliases, cap_aliases;
	struct ws_skipped *skips;
	size_t n_skips, cap_skips;
	const char **rules;       /* as read by people */
	size_t n_rules;
	struct ws_names part_names, param_names, alias_names;
	struct ws_arena arena;    /* every string */
};

/* A layout in the making, and the rule it is at. */
struct ws_build {
	struct ws_layout *l;
	const struct ws_family *family;
	const struct ws_config *config;
	const struct ws_quant *quant;  /* FP8; NULL: unquantized */
	enum ws_dtype dtype;           /* of what nothing else is said about */
	struct ws_err *err;
	const struct ws_rule *rule;
	uint32_t rule_id;
	const struct ws_scope *scope;
	const char *prefix;            /* of the groups around, "" or without the last dot */
	size_t steps;                  /* of loops, to bound them */
	struct ws_shared *shared;      /* shared experts that may become further experts */
	size_t n_shared, cap_shared;
	bool only_shared;              /* first walk: look for those */
	const char *embedding;         /* the first vocabulary; NULL: none yet */
	struct ws_target *targets;     /* of the layout's aliases */
	size_t cap_targets;
};

/* The parameter that an alias stands for may come later. */
struct ws_target {
	const char *param;
	const struct ws_rule *rule;
};

/* Shared experts of one layer, where the server has them behind the routed ones. */
struct ws_shared {
	const char *name, *into;
	int64_t in, mid;
	bool used;
	const struct ws_rule *rule;
};

/* ---- layout_build.c --------------------------------------------------------------------------*/
/* A string that lives as long as the layout; NULL: out of memory, err is set. */
const char *ws_build_keep(struct ws_build *b, const char *a, const char *suffix);
const char *ws_build_keepf(struct ws_build *b, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Room for one more in an array that doubles. */
int ws_build_grow(struct ws_build *b, void *array, size_t n, size_t *cap, size_t size);
/* An error about the rule at hand. */
int ws_build_fail(struct ws_build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A number of the rule at hand: of any value; of at least 1 and at most 2^40. */
int ws_build_number(struct ws_build *b, const struct ws_expr *e, int64_t *out);
int ws_build_size(struct ws_build *b, const struct ws_expr *e, const char *what, int64_t *out);
int ws_build_dims(struct ws_build *b, const struct ws_expr *const *e, unsigned n, int64_t *dims);
/* dst (WS_NAME_MAX) = prefix.name, {var} replaced. */
int ws_build_name(struct ws_build *b, const char *name, char *dst);
int ws_build_namef(struct ws_build *b, char *dst, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* A parameter is begun, its parts follow in the order they lie in it, and then it is ended, which
 * computes its shape (of WS_FORM_SHAPED: dims are set by the caller). */
int ws_build_param(struct ws_build *b, const char *module, const char *suffix,
                   const struct ws_division *d, const char *trouble);
/* What the caller leaves out of `p` is filled in. */
int ws_build_part(struct ws_build *b, const char *module, const char *suffix, struct ws_part p);
int ws_build_end(struct ws_build *b);

/* ---- layout_linear.c -------------------------------------------------------------------------*/
struct ws_linear_part {
	char module[WS_NAME_MAX];
	int64_t out, heads;       /* heads 0: divided evenly */
};

struct ws_linear {
	enum ws_rule_kind kind;   /* COLUMN, ROW, REPLICATED */
	const char *name;
	int64_t in, heads;        /* heads of a row layer's inputs; 0: divided evenly */
	const struct ws_linear_part *parts;
	size_t n_parts;
	bool bias;
};

int ws_build_linear(struct ws_build *b, const struct ws_linear *l);
int ws_build_linear_rule(struct ws_build *b);
bool ws_build_quantized(const struct ws_build *b, const char *module);
unsigned ws_build_tp(const struct ws_build *b); /* that of the rule at hand */
const char *ws_build_tp_word(const struct ws_build *b); /* "tp", "attention tp" */
int64_t ws_div_up(int64_t n, int64_t by);

/* ---- layout_experts.c ------------------------------------------------------------------------*/
int ws_build_experts_rule(struct ws_build *b);
int ws_build_shared_rule(struct ws_build *b);
/* Shared experts that no experts were found for are layers of their own after all. */
int ws_build_shared_rest(struct ws_build *b);

/* ---- layout_stack.c --------------------------------------------------------------------------*/
int ws_build_stack_rule(struct ws_build *b);

/* ---- layout_rules.c --------------------------------------------------------------------------*/
/* Does a rule that names this type insist on it? */
bool ws_build_exact(enum ws_dtype dtype);
int ws_build_walk(struct ws_build *b);

/* ---- layout_place.c --------------------------------------------------------------------------*/
/* Length of one of tp pieces along the part's axis, padding included; without an axis 0. */
int64_t ws_part_piece(const struct ws_part *p, unsigned tp);
/* What of the part is in piece t. */
void ws_part_share(const struct ws_part *p, unsigned tp, unsigned t, int64_t *at, int64_t *size);

#endif
