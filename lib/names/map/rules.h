/* SPDX-License-Identifier: Apache-2.0 */
/* rules.h - the rules of a family as parsed. namemap.c reads them, layout.c expands them.
 *
 * The text form (wsync-map(5)) has one rule a line. '#' begins a comment, spaces separate words. An
 * expression (expr.h) ends where the next keyword of the rule, a comma or a bracket begins, so
 * expressions cannot use keywords as names. The words after a rule's name may be in any order.
 *
 *   family NAME
 *   arch ARCHITECTURE...      matches config.json's architectures
 *   type MODEL_TYPE...        matches config.json's model_type
 *   like FAMILY               inherits the rules of an earlier family, except those whose names
 *       this family has too. Names are compared with group prefixes, without the names of variables
 *       and the ranges of loops. Lets, strips, renames and joins are inherited likewise; arch and
 *       type are not. Groups in the same words are merged
 *   let NAME = EXPR           NAME within EXPR is the previous value ("let I = I / 2")
 *   tied EXPR                 not 0: lm_head is the embedding
 *   strip SEGMENT...          removes these segments from names, except in the last place
 *   rename FROM -> TO         patterns: {x} is any segment, a leading or trailing ** any number of
 *                             segments. Each rename is tried once, in order: the family's own,
 *                             those of the family that it is like, the generic family's
 *   join NAME <- PART PART... patterns: a checkpoint tensor that trainers keep in parts, which
 *                             follow each other along the first axis
 *   skip PATTERN "why" [when EXPR]               names that servers ignore
 *   group PREFIX [for VAR < EXPR | for VAR in EXPR .. EXPR] [when EXPR]
 *   end                       names between are relative to PREFIX, which may use {VAR}. A group
 *                             may contain groups, skip, and the following rules
 *
 *   vocab NAME rows EXPR cols EXPR               NAME.weight, rows padded to 64 and divided
 *   column NAME in EXPR [out EXPR [heads EXPR]]  a linear layer whose outputs are divided
 *   row NAME in EXPR out EXPR [heads EXPR]       ... whose inputs are divided; its bias is whole
 *   replicated NAME in EXPR [out EXPR]           ... that every rank has whole
 *   + PART out EXPR [heads EXPR]                 after column or replicated, instead of their out:
 *       checkpoint tensors that are stacked into it, in order. PART replaces NAME's last segment
 *   whole NAME [EXPR, ...] [DTYPE]               a tensor outside linear layers; NAME is complete
 *   split NAME [EXPR, ...] [DTYPE] heads EXPR    ... that is divided along its first axis
 *   stack NAME [EXPR, ...] DTYPE <- PART [EXPR, ...] DTYPE [axis N [step EXPR]] [transposed] [ep]
 *       ... that the checkpoint has as PART, in a shape with as many elements. It is divided along
 *       axis N of PART: evenly, or in steps of EXPR, of which every rank has ceil(steps / tp), the
 *       last with zeros at the end. transposed: NAME has the last two axes of PART swapped. ep:
 *       PART contains experts; its first axis is divided by ep, and axis N by tp / ep
 *   experts NAME count EXPR in EXPR mid EXPR [nongated]
 *       NAME.{e}.gate_proj, up_proj and down_proj become NAME.w13_weight and NAME.w2_weight
 *   shared NAME count EXPR in EXPR mid EXPR into EXPERTS
 *       shared experts: their own gate_up_proj and down_proj, or, if the server fuses them, further
 *       experts of EXPERTS
 *   alias NAME of PARAM [order N...] [groups EXPR]
 *       a trainer's name of a fused parameter (at tp 1), with the axis order of the trainer's
 *       tensor. A name may have several aliases; an alias whose PARAM does not exist is ignored
 *
 * After linear layers: bias EXPR (not 0: NAME.bias exists). After params: optional, unquantized,
 * attention (divided by the attention's tp), when EXPR; when also after aliases and skips. A linear
 * layer has ".weight", and in FP8 a scale (layout_linear.c) unless the config excludes the layer.
 *
 * Expressions also know nextn (ws_layout_opts), fp8 and mxfp4 (the config's quantization, as far as
 * the layout uses it), each 0 or 1. DTYPE is torch's name. The strips, renames, joins and skips of
 * "generic" apply to all families, after their own; so do such lines before the first family. */
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
	/* params; 0 or NULL if the kind does not use it */
	const struct ws_expr *in, *out, *heads, *count, *mid, *bias, *groups;
	const struct ws_expr *step;  /* STACK; NULL: divided evenly */
	const struct ws_expr *dims[WS_MAX_DIMS]; /* WHOLE, SPLIT, STACK; VOCAB: rows, cols */
	unsigned n_dims;
	const struct ws_rule_part *parts;
	size_t n_parts;
	bool has_dtype;
	bool casts; /* WHOLE, SPLIT: tensors of other floating types are cast to dtype */
	enum ws_dtype dtype;
	const char *of; /* STACK: the checkpoint's name; ALIAS: the param; SHARED: EXPERTS;
	                 * SKIP: the reason */
	const struct ws_expr *of_dims[WS_MAX_DIMS]; /* STACK */
	unsigned n_of_dims;
	bool has_of_dtype;
	enum ws_dtype of_dtype;
	int axis;                    /* STACK; -1: whole */
	int order[WS_MAX_DIMS];      /* ALIAS */
	unsigned n_order;            /* 0: the param's order */
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
	size_t n_strips;             /* includes those of the generic family */
	const struct ws_rename *renames;
	size_t n_renames;            /* includes those of the generic family */
	const struct ws_join *joins;
	size_t n_joins;
	const struct ws_rule *rules;
	size_t n_rules;
};

/* True if the pattern matches the name. Matches whole segments only: {x} is any segment, and equal
 * variables stand for equal segments. A leading or trailing "**" is any number of segments, also
 * none. If caps is not NULL, it receives the captures; unused elements are empty. WS_MAX_CAPTURES
 * elements are always enough. */
enum { WS_MAX_CAPTURES = 16 };
struct ws_capture {
	char var[16];
	const char *at;
	size_t n;
};
bool ws_pattern_match(const char *pattern, const char *name, struct ws_capture *caps,
                      size_t n_caps);
/* A bit for each literal segment. A name without one of the pattern's bits cannot match, which
 * avoids most matches. A name's own bits are those of a pattern equal to it. */
uint64_t ws_pattern_bits(const char *pattern);
/* Replaces {x} and ** by their captures. NULL: longer than n bytes, or a capture is missing. */
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
