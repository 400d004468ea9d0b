/* SPDX-License-Identifier: Apache-2.0 */
/* rules.h - a family's rules as parsed, between namemap.c which reads them and layout.c which
 * expands them.
 *
 * The text form (wsync-map(5)); one rule a line, '#' begins a comment, words are separated
 * by spaces, expressions (expr.h) end where the next keyword of the rule, a comma or a
 * bracket begins. Keywords are therefore no names for expressions. What stands behind a
 * rule's name may come in any order.
 *
 *   family NAME
 *   arch ARCHITECTURE...               config.json's architectures
 *   type MODEL_TYPE...                 and its model_type
 *   like FAMILY                        all rules of that family, which comes earlier, first; rules
 * of a name (prefixes included, whatever their variables are called and their loops run over) that
 * this family has too are left out; lets, strips, renames and joins likewise, not arch and type;
 *                                      groups in the same words are one
 *   let NAME = EXPR                    NAME within EXPR is what it was before ("let I = I / 2")
 *   tied EXPR                          lm_head is the embedding when it is not 0
 *   strip SEGMENT...                   taken out of names wherever it stands, but as the last
 *   rename FROM -> TO                  patterns: segments, {x} for any one, a leading or trailing
 * **; each is tried once, in their order: a family's own, then those of the family it is like, then
 * the generic family's join NAME <- PART PART...          patterns: a checkpoint tensor that
 * trainers keep in parts, which follow each other along the first axis (strip, rename, join and
 * skip before the first family add to the generic one) skip PATTERN "why" [when EXPR]     names
 * that servers leave aside group PREFIX [for VAR < EXPR | for VAR in EXPR .. EXPR] [when EXPR] end
 * names between are relative to PREFIX, which may use {VAR}; groups nest; only the rules from here
 * on and skip stand in them
 *
 *   vocab NAME rows EXPR cols EXPR             NAME.weight, rows padded to 64 and divided
 *   column NAME in EXPR [out EXPR [heads EXPR]]  a linear layer whose outputs are divided
 *   row NAME in EXPR out EXPR [heads EXPR]       ... whose inputs are; its bias is whole
 *   replicated NAME in EXPR [out EXPR]           ... which every rank has whole
 *   + PART out EXPR [heads EXPR]       after column or replicated, instead of their out: the
 *                                      checkpoint's tensors that are stacked into it, in order
 * (PART replaces NAME's last segment) whole NAME [EXPR, ...] [DTYPE]     a tensor that is no linear
 * layer's: NAME is complete split NAME [EXPR, ...] [DTYPE] heads EXPR  ... divided along its first
 * axis stack NAME [EXPR, ...] DTYPE <- PART [EXPR, ...] DTYPE [axis N [step EXPR]] [transposed]
 * [ep]
 *                                      ... stored under another name and shape of as many elements,
 * and divided along that axis of PART: evenly, or in steps of EXPR of which every rank has
 * ceil(steps / tp), the last with zeros behind. transposed: the last two axes of PART are swapped
 * in NAME (whose shape is the swapped one). ep: PART holds experts, its first axis is divided by ep
 * and axis N by tp / ep experts NAME count EXPR in EXPR mid EXPR [nongated] NAME.{e}.gate_proj,
 * up_proj, down_proj into NAME.w13_weight and NAME.w2_weight shared NAME count EXPR in EXPR mid
 * EXPR into EXPERTS shared experts: gate_up_proj and down_proj of their own, or, where the server
 * fuses them, further experts of EXPERTS alias NAME of PARAM [order N...] [groups EXPR] a trainer's
 * name of a fused parameter (its tp 1 form), with the axis order of the trainer's tensor; a name
 * may have several, and one of a PARAM that is not there is left out
 *
 * and after any param: bias EXPR (linear layers: there is NAME.bias when it is not 0), optional,
 * unquantized, attention (divided by the attention's tp); when EXPR after params, aliases and
 * skips. A linear layer has a ".weight", and where the config says block FP8 and does not leave
 * it out, a ".weight_scale_inv".
 *
 * Besides the config's keys expressions know nextn (ws_layout_opts), fp8 (block FP8) and mxfp4 (the
 * config's quantization, as far as the layout heeds it), each 0 or 1. DTYPE is torch's name.
 *
 * What the family "generic" strips, renames, joins and skips holds for all
 * families, behind their own. */
#ifndef WS_NAMES_RULES_H
#define WS_NAMES_RULES_H

#include "expr.h"
#include "wsync/dtype.h"
#include "wsync/tool/namemap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ws_rule_kind {
	WS_RULE_GROUP,
	WS_RULE_VOCAB,
	WS_RULE_COLUMN,
	WS_RULE_ROW,
	WS_RULE_REPLICATED,
	WS_RULE_WHOLE,
	WS_RULE_SPLIT,
	WS_RULE_STACK,
	WS_RULE_EXPERTS,
	WS_RULE_SHARED,
	WS_RULE_ALIAS,
	WS_RULE_SKIP
};

struct ws_rule_part {
	const char *name;            /* "q_proj" */
	const struct ws_expr *out, *heads; /* heads NULL: divided evenly */
};

struct ws_rule {
	enum ws_rule_kind kind;
	/* prefix, parameter, alias, or pattern to skip; with {var} */
	const char *name;
	const char *text;            /* the rule as written, without comment and indentation */
	unsigned line;
	const struct ws_expr *when;  /* NULL: always */
	/* GROUP */
	const char *var;             /* NULL: no loop */
	const struct ws_expr *from, *to; /* from NULL: 0; to exclusive */
	const struct ws_rule *inner;
	size_t n_inner;
	/* of params; 0 or NULL if the kind does not use it */
	const struct ws_expr *in, *out, *heads, *count, *mid, *bias, *groups;
	const struct ws_expr *step;  /* STACK; NULL: evenly */
	const struct ws_expr *dims[WS_MAX_DIMS]; /* WHOLE, SPLIT, STACK; VOCAB: rows, cols */
	unsigned n_dims;
	const struct ws_rule_part *parts;
	size_t n_parts;
	bool has_dtype;
	enum ws_dtype dtype;
	const char *of; /* STACK: the checkpoint's name; ALIAS: the param; SHARED: EXPERTS;
	                 * SKIP: the reason */
	const struct ws_expr *of_dims[WS_MAX_DIMS]; /* STACK */
	unsigned n_of_dims;
	bool has_of_dtype;
	enum ws_dtype of_dtype;
	int axis;                    /* STACK; -1: whole */
	int order[WS_MAX_DIMS];      /* ALIAS */
	unsigned n_order;            /* 0: as it is */
	bool optional, unquantized, attention, nongated;
	bool transposed, ep;         /* STACK */
};

struct ws_rename {
	const char *from, *to;
	uint64_t bits;               /* ws_pattern_bits(from) */
	unsigned line;
};

struct ws_join {
	const char *name;
	const char *const *parts;
	size_t n_parts;
	unsigned line;
};

struct ws_family {
	const char *name, *file;     /* of the map: "built-in qwen3.map" */
	const char *const *archs, *const *types;
	size_t n_archs, n_types;
	const struct ws_let *lets;
	size_t n_lets;
	const struct ws_expr *tied;  /* NULL: never */
	const char *const *strips;
	size_t n_strips;             /* with those of the generic family */
	const struct ws_rename *renames;
	size_t n_renames;            /* likewise */
	const struct ws_join *joins;
	size_t n_joins;
	const struct ws_rule *rules;
	size_t n_rules;
};

/* True if the pattern matches the name. Whole segments only: {x} is any one segment, and equal
 * names stand for equal segments; a leading or trailing "**" is any number of segments, also
 * none. If caps is not NULL, captures go there, and unused ones are empty (WS_MAX_CAPTURES is
 * always enough). */
enum { WS_MAX_CAPTURES = 16 };
struct ws_capture {
	char var[16];
	const char *at;
	size_t n;
};
bool ws_pattern_match(const char *pattern, const char *name, struct ws_capture *caps,
                      size_t n_caps);
/* A bit for each literal segment. A name that lacks a bit of the pattern cannot match it, which
 * spares most matches. A name's own bits are those of a pattern equal to it. */
uint64_t ws_pattern_bits(const char *pattern);
/* Replaces {x} and ** by their captures. NULL: too long for n bytes, or not captured. */
const char *ws_pattern_fill(const char *pattern, const struct ws_capture *caps, size_t n_caps,
                            char *dst, size_t n);

/* Like ws_namemap_open, from memory; text NULL: only the built-in families. */
int ws_namemap_parse(const char *text, size_t n, const char *what, struct ws_namemap **out,
                     struct ws_err *err);

/* The compiled-in maps: pairs of file name and text, ended by a NULL name. The Makefile
 * generates them from lib/names/families. */
struct ws_builtin_map {
	const char *name, *text;
};
extern const struct ws_builtin_map ws_builtin_maps[];

#endif
