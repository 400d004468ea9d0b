/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_read.h - shared by the files that read the text form of rules.h. */
#ifndef WS_NAMES_NAMEMAP_READ_H
#define WS_NAMES_NAMEMAP_READ_H

#include "arena.h"
#include "rules.h"

/* Limits. RULES: all families of a set, with rules copied by `like`. LIST: words, parts, lets,
 * renames or joins of one family as written; merged lists may have four times as many. */
enum { WS_MAP_MAX_BYTES = 1 << 20, WS_MAP_MAX_RULES = 10000, WS_MAP_MAX_FAMILIES = 256,
       WS_MAP_MAX_LIST = 250, WS_MAP_MAX_GROUPS = 8, WS_MAP_MAX_NAME = 400, WS_MAP_MAX_CAPTURES = 8,
       WS_MAP_MAX_VARIABLE = sizeof((struct ws_capture *)0)->var - 1 };

struct ws_namemap {
	struct ws_arena arena;
	struct ws_list families; /* struct ws_family *: the file's, then built-in ones */
	struct ws_list exprs;    /* struct ws_expr * */
	size_t n_rules;
};

/* ---- one line (namemap_line.c) ---- */

struct ws_map_line {
	struct ws_namemap *map;
	const char *file;
	unsigned number;
	const char *text;        /* the line without indentation and comment */
	const char *at;          /* the unread rest */
	struct ws_err *err;
};

/* Sets WS_EINPUT "FILE:LINE: ..."; returns -1. */
int ws_map_bad(const struct ws_map_line *l, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Reads the next word; *out is NULL at the end of the line. */
int ws_map_word(struct ws_map_line *l, const char **out);
/* Skips this sign or word if it is next, and returns whether it was. */
bool ws_map_take(struct ws_map_line *l, const char *sign);
int ws_map_end(struct ws_map_line *l);
int ws_map_quoted(struct ws_map_line *l, const char **out);
/* Reads an expression up to the next keyword; `after` names the word before it in messages. */
int ws_map_expr(struct ws_map_line *l, const char *after, const struct ws_expr **out);
/* "[a, b]" */
int ws_map_dims(struct ws_map_line *l, const struct ws_expr **dims, unsigned *n);
/* True for words that end an expression and cannot be part of one. */
bool ws_map_reserved(const char *word, size_t n);
/* ": did you mean 'x'?" for the nearest word of a NULL-terminated list, else "". */
struct ws_map_near { char text[96]; };
struct ws_map_near ws_map_nearest(const char *word, const char *const *list);

/* ---- names and patterns (namemap_line.c) ---- */

/* Reads a dotted name. {x} may be a segment if vars has room for it; without room x must be in
 * vars already. "**" may begin and end the name if `stars`. */
struct ws_map_vars {
	const char *names[WS_MAP_MAX_CAPTURES + WS_MAP_MAX_GROUPS];
	unsigned n, room;
	unsigned stars;          /* number of "**" so far */
};
int ws_map_name(struct ws_map_line *l, const char *what, bool stars, struct ws_map_vars *vars,
                const char **out);
/* Reads a word of letters, digits and "_.-" ("qwen3_moe"). */
int ws_map_label(struct ws_map_line *l, const char *what, const char **out);
/* Reads a name that expressions can use. */
int ws_map_variable(struct ws_map_line *l, const char *what, size_t longest, const char **out);

/* ---- rules (namemap_rules.c) ---- */

bool ws_map_is_rule(const char *word);
const char *const *ws_map_rule_words(void); /* NULL-terminated */
/* Reads the rest of a line after this word. vars: the variables of the open groups. */
int ws_map_rule(struct ws_map_line *l, const char *word, const struct ws_map_vars *vars,
                bool nested, struct ws_rule *out);
/* Reads a "+" line after a rule. */
int ws_map_part(struct ws_map_line *l, struct ws_rule_part *out);

/* Counts one more rule of the set; -1: too many. */
int ws_map_count_rule(const struct ws_map_line *l);

/* ---- families (namemap_family.c, namemap_like.c) ---- */

/* Appends the families of this text to the set, without the generic family's rules. No name,
 * architecture or type may occur twice among the families from `first` on. */
int ws_map_read(struct ws_namemap *map, const char *file, const char *text, size_t n,
                size_t first, struct ws_err *err);

/* Adds to f the lines of `base` that f does not have. */
int ws_map_inherit(struct ws_map_line *l, struct ws_family *f, const struct ws_family *base);
/* The same for the strips, renames, joins and skips of the generic family. */
int ws_map_inherit_generic(struct ws_map_line *l, struct ws_family *f,
                           const struct ws_family *generic);

#endif
