/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_read.h - what the files that read the text form of rules.h share. */
#ifndef WS_NAMES_NAMEMAP_READ_H
#define WS_NAMES_NAMEMAP_READ_H

#include "arena.h"
#include "rules.h"

/* Rules: of all families of a set, those that `like` copies included. Lists: words, parts, lets,
 * renames, joins of one family, as written; merged ones may have four times as many. */
enum { WS_MAP_MAX_BYTES = 1 << 20, WS_MAP_MAX_RULES = 10000, WS_MAP_MAX_FAMILIES = 256,
       WS_MAP_MAX_LIST = 250, WS_MAP_MAX_GROUPS = 8, WS_MAP_MAX_NAME = 400, WS_MAP_MAX_CAPTURES = 8,
       WS_MAP_MAX_VARIABLE = sizeof((struct ws_capture *)0)->var - 1 };

struct ws_namemap {
	struct ws_arena arena;
	struct ws_list families; /* struct ws_family *: of the file, then built-in ones */
	struct ws_list exprs;    /* struct ws_expr * */
	size_t n_rules;
};

/* ---- one line (namemap_line.c) ---- */

struct ws_map_line {
	struct ws_namemap *map;
	const char *file;
	unsigned number;
	const char *text;        /* all of it, without indentation and comment */
	const char *at;          /* what is not read yet */
	struct ws_err *err;
};

/* WS_EINPUT "FILE:LINE: ..."; returns -1. */
int ws_map_bad(const struct ws_map_line *l, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
int ws_map_no_memory(const struct ws_map_line *l);

/* Takes the next word; *out is NULL at the end of the line. */
int ws_map_word(struct ws_map_line *l, const char **out);
/* Takes this very sign or word when it is next. */
bool ws_map_take(struct ws_map_line *l, const char *sign);
int ws_map_end(struct ws_map_line *l);
int ws_map_quoted(struct ws_map_line *l, const char **out);
/* An expression, up to the next word of rules; `after` is what it must follow, for the message. */
int ws_map_expr(struct ws_map_line *l, const char *after, const struct ws_expr **out);
/* "[a, b]" */
int ws_map_dims(struct ws_map_line *l, const struct ws_expr **dims, unsigned *n);
/* Words that end an expression, and so cannot stand in one. */
bool ws_map_reserved(const char *word, size_t n);
/* " (did you mean 'x'?)" for the word of a NULL-terminated list that is nearest; else "". */
struct ws_map_near { char text[96]; };
struct ws_map_near ws_map_nearest(const char *word, const char *const *list);

/* ---- names and patterns (namemap_line.c) ---- */

/* A dotted name. {x} may be a segment where vars has room for it; it is an error where it does not
 * and x is not there already. "**" may begin and end it where `stars`. */
struct ws_map_vars {
	const char *names[WS_MAP_MAX_CAPTURES + WS_MAP_MAX_GROUPS];
	unsigned n, room;
	unsigned stars;          /* counted */
};
int ws_map_name(struct ws_map_line *l, const char *what, bool stars, struct ws_map_vars *vars,
                const char **out);
/* A plain word of letters, digits and "_.-" ("qwen3_moe"). */
int ws_map_label(struct ws_map_line *l, const char *what, const char **out);
/* A name that expressions can use. */
int ws_map_variable(struct ws_map_line *l, const char *what, size_t longest, const char **out);

/* ---- rules (namemap_rules.c) ---- */

bool ws_map_is_rule(const char *word);
const char *const *ws_map_rule_words(void); /* NULL-terminated */
/* The rest of a line that began with this word. vars: those of the groups around it. */
int ws_map_rule(struct ws_map_line *l, const char *word, const struct ws_map_vars *vars,
                bool nested, struct ws_rule *out);
/* A "+" line behind a rule. */
int ws_map_part(struct ws_map_line *l, struct ws_rule_part *out);

/* One rule more in the set. */
int ws_map_count_rule(const struct ws_map_line *l);

/* ---- families (namemap_family.c, namemap_like.c) ---- */

/* Appends the families of this text to the set, as read: without the generic family's rules. Those
 * from `first` on share its claims: no name, architecture or type is there twice among them. */
int ws_map_read(struct ws_namemap *map, const char *file, const char *text, size_t n,
                size_t first, struct ws_err *err);

/* Puts what `base` has and f has not into f. */
int ws_map_inherit(struct ws_map_line *l, struct ws_family *f, const struct ws_family *base);
/* Likewise the strips, renames, joins and skips of the generic family. */
int ws_map_inherit_generic(struct ws_map_line *l, struct ws_family *f,
                           const struct ws_family *generic);

#endif
