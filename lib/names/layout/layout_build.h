/* SPDX-License-Identifier: Apache-2.0 */
/* layout_build.h - shared by the files that build a layout.
 *
 * layout_rules.c walks the family's rules, and layout_stack.c handles their stacks.
 * layout_linear.c and layout_experts.c expand one layer. layout_build.c appends parameters and
 * parts, layout_place.c computes shares, and layout.c owns the result. */
#ifndef WS_NAMES_LAYOUT_BUILD_H
#define WS_NAMES_LAYOUT_BUILD_H

#include "arena.h"
#include "name_index.h"
#include "rules.h"
#include "wsync/tool/layout.h"

enum {
	WS_NAME_MAX = 512,        /* bytes of a parameter's name with its NUL */
	WS_VOCAB_MULTIPLE = 64,   /* DEFAULT_VOCAB_PADDING_SIZE of the servers */
	WS_PART_MAX = 1 << 20,    /* tensors of a layout: eight times those of DeepSeek-V3 */
};

/* Arrangement of the parts in a parameter. */
enum ws_form {
	WS_FORM_ROWS,    /* stacked along the first axis */
	/* [expert, rows, columns], with the parts of an expert stacked; parts with one number each
	 * are [expert, part], or [expert] for a single part */
	WS_FORM_EXPERTS,
	WS_FORM_SHAPED   /* a single part, reshaped or transposed */
};

/* How a parameter is divided; tp and ep are 1 if it cannot be. Rank r has piece r % tp, and the
 * experts of group r / tp % ep. */
struct ws_division {
	enum ws_form form;
	unsigned tp, ep;
	int64_t routed;           /* EXPERTS: experts divided by ep; every rank has the rest */
	unsigned per_expert;      /* EXPERTS: parts of each expert */
	int axis;                 /* SHAPED: divided axis of the param; < 0: none */
};

struct ws_skipped {
	const char *pattern, *why;
};

struct ws_layout {
	struct ws_layout_opts opts;
	const char *family;
	bool tied, like;          /* like: made by ws_layout_like */
	enum ws_dtype dtype;
	struct ws_part *parts;
	size_t n_parts, cap_parts;
	struct ws_param *params;
	struct ws_division *divisions; /* of params */
	size_t n_params, cap_params;
	struct ws_alias *aliases;
	size_t n_aliases, cap_aliases;
	struct ws_skipped *skips;
	size_t n_skips, cap_skips;
	const char **rules;       /* texts of the rules */
	size_t n_rules;
	struct ws_names part_names, param_names, alias_names;
	struct ws_arena arena;    /* every string */
};

/* A layout under construction, and the current rule. */
struct ws_build {
	struct ws_layout *l;
	const struct ws_family *family;
	const struct ws_config *config;
	const struct ws_quant *quant;  /* FP8; NULL: unquantized */
	enum ws_dtype dtype;           /* default for tensors without a dtype */
	struct ws_err *err;
	const struct ws_rule *rule;
	uint32_t rule_id;
	const struct ws_scope *scope;
	const char *prefix;            /* prefix of the open groups, without the last dot, or "" */
	size_t steps;                  /* iterations of loops so far; bounded */
	struct ws_shared *shared;      /* shared experts that may be fused with routed ones */
	size_t n_shared, cap_shared;
	bool only_shared;              /* first walk: only collects `shared` */
	const char *embedding;         /* first vocabulary tensor; NULL: not built yet */
	struct ws_target *targets;     /* one for each alias of the layout */
	size_t cap_targets;
};

/* An alias; its parameter may come later. */
struct ws_target {
	const char *param;
	const struct ws_rule *rule;
};

/* The shared experts of one layer, if the server appends them to the routed ones. */
struct ws_shared {
	const char *name, *into;
	int64_t in, mid;
	bool used;
	const struct ws_rule *rule;
};

/* ---- layout_build.c --------------------------------------------------------------------------*/
/* Copies a + suffix into the layout. NULL: out of memory, err is set. */
const char *ws_build_keep(struct ws_build *b, const char *a, const char *suffix);
const char *ws_build_keepf(struct ws_build *b, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Doubles an array if it is full, so that one more element fits. */
int ws_build_grow(struct ws_build *b, void *array, size_t n, size_t *cap, size_t size);
/* Sets an error that names the current rule. */
int ws_build_fail(struct ws_build *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Evaluates a number of the current rule. ws_build_size also checks that it is 1 to 2^40. */
int ws_build_number(struct ws_build *b, const struct ws_expr *e, int64_t *out);
int ws_build_size(struct ws_build *b, const struct ws_expr *e, const char *what, int64_t *out);
int ws_build_dims(struct ws_build *b, const struct ws_expr *const *e, unsigned n, int64_t *dims);
/* dst (WS_NAME_MAX bytes) = prefix.name, with each {var} replaced. */
int ws_build_name(struct ws_build *b, const char *name, char *dst);
int ws_build_namef(struct ws_build *b, char *dst, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* ws_build_param begins a parameter, ws_build_part adds its parts in order, ws_build_end computes
 * its shape (with WS_FORM_SHAPED the caller sets dims). */
int ws_build_param(struct ws_build *b, const char *module, const char *suffix,
                   const struct ws_division *d, const char *trouble);
/* Completes the fields of `p` that the caller left out. */
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
unsigned ws_build_tp(const struct ws_build *b); /* tp of the current rule */
const char *ws_build_tp_word(const struct ws_build *b); /* "tp", "attention tp" */
int64_t ws_div_up(int64_t n, int64_t by);
/* Columns of a weight in FP8 whose scales cannot be divided: of a block, or of 4 packed ones. */
int64_t ws_build_scale_columns(const struct ws_build *b);
/* Makes a part that describes a weight in FP8 that of its block scales. */
void ws_build_blocks(const struct ws_build *b, struct ws_part *s);

/* ---- layout_experts.c ------------------------------------------------------------------------*/
int ws_build_experts_rule(struct ws_build *b);
int ws_build_shared_rule(struct ws_build *b);
/* Makes shared experts layers of their own if no routed experts were found for them. */
int ws_build_shared_rest(struct ws_build *b);

/* ---- layout_stack.c --------------------------------------------------------------------------*/
int ws_build_stack_rule(struct ws_build *b);

/* ---- layout_rules.c --------------------------------------------------------------------------*/
/* True if a rule with this dtype accepts no other dtype. */
bool ws_build_exact(enum ws_dtype dtype);
int ws_build_walk(struct ws_build *b);

/* ---- layout_place.c --------------------------------------------------------------------------*/
/* Length of one of tp pieces along the part's axis, with padding; 0 without an axis. */
int64_t ws_part_piece(const struct ws_part *p, unsigned tp);
/* Computes the range of the part that piece t contains. */
void ws_part_share(const struct ws_part *p, unsigned tp, unsigned t, int64_t *at, int64_t *size);

#endif
