/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_line.c - parses the words of one line and checks each word by itself, as far as possible.
 *
 * Text from the file is untrusted: messages quote it cleaned and cut. */
#include "namemap_read.h"

#include "name_index.h"
#include "wsync/tool/str.h"
#include "suggest.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_map_bad(const struct ws_map_line *l, const char *fmt, ...)
{
	char why[600];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	if (l->number == 0) /* line 0: the generic family's rules exceed a limit */
		return ws_err_set(l->err, WS_EINPUT, "%s: %s", l->file, why);
	return ws_err_set(l->err, WS_EINPUT, "%s:%u: %s", l->file, l->number, why);
}

static bool blank(char c)
{
	return c == ' ' || c == '\t';
}

static void skip_blanks(struct ws_map_line *l)
{
	while (blank(*l->at))
		l->at++;
}

static size_t word_at(const char *s)
{
	return strchr("[],", *s) && *s ? 1 : strcspn(s, " \t[],");
}

int ws_map_word(struct ws_map_line *l, const char **out)
{
	skip_blanks(l);
	const size_t n = word_at(l->at);
	*out = n ? ws_arena_text(&l->map->arena, l->at, n) : NULL;
	if (n && !*out)
		return ws_oom(l->err);
	l->at += n;
	return 0;
}

bool ws_map_take(struct ws_map_line *l, const char *sign)
{
	skip_blanks(l);
	const size_t n = strlen(sign);
	if (word_at(l->at) != n || memcmp(l->at, sign, n) != 0)
		return false;
	l->at += n;
	return true;
}

int ws_map_end(struct ws_map_line *l)
{
	skip_blanks(l);
	return *l->at ? ws_map_bad(l, "'%s' means nothing here", ws_quote(l->at).text) : 0;
}

int ws_map_quoted(struct ws_map_line *l, const char **out)
{
	skip_blanks(l);
	const char *end = *l->at == '"' ? strchr(l->at + 1, '"') : NULL;
	if (!end || end == l->at + 1)
		return ws_map_bad(l, "a reason in double quotes is missing");
	const size_t n = (size_t)(end - l->at) - 1;
	char *text = ws_arena_text(&l->map->arena, l->at + 1, n);
	if (!text)
		return ws_oom(l->err);
	ws_printable(text, n + 1, l->at + 1, n);
	*out = text;
	l->at = end + 1;
	return 0;
}

/* ---- expressions ---- */

static const char *const reserved[] = {
	"in",       "out",         "heads",     "rows",     "cols", "count",      "mid", "into",
	"of",       "order",       "groups",    "axis",     "step", "transposed", "ep",  "bias",
	"optional", "unquantized", "attention", "nongated", "when", "for",        NULL,
};

bool ws_map_reserved(const char *word, size_t n)
{
	for (size_t i = 0; reserved[i]; i++)
		if (strlen(reserved[i]) == n && memcmp(reserved[i], word, n) == 0)
			return true;
	return false;
}

static size_t identifier(const char *s)
{
	size_t n = 0;
	if (isalpha((unsigned char)*s) || *s == '_')
		while (isalnum((unsigned char)s[n]) || s[n] == '_')
			n++;
	return n;
}

/* Returns the length of an expression: it ends at a sign or word of rules outside of brackets. */
static size_t expression_at(const char *s)
{
	size_t i = 0;
	int depth = 0;
	while (s[i]) {
		const size_t n = identifier(s + i);
		if (depth <= 0 &&
		    (strchr(",[]\"", s[i]) || strncmp(s + i, "<-", 2) == 0 ||
		     strncmp(s + i, "..", 2) == 0 || (n && ws_map_reserved(s + i, n))))
			break;
		depth += (s[i] == '(') - (s[i] == ')');
		i += n ? n : 1;
	}
	return i;
}

/* A mistyped keyword does not end an expression, so the hint suggests the nearest keyword. */
static int refuse_expression(const struct ws_map_line *l, const char *text, size_t n)
{
	ws_err_wrap(l->err, "%s:%u", l->file, l->number);
	for (size_t i = 0, len; i < n; i += len ? len : 1) {
		char word[16];
		len = identifier(text + i);
		if (len < 4 || len >= sizeof word)
			continue;
		memcpy(word, text + i, len);
		word[len] = 0;
		const struct ws_map_near near = ws_map_nearest(word, reserved);
		if (near.text[0])
			return ws_err_hint(l->err, "'%s' in it%s", word, near.text);
	}
	return -1;
}

int ws_map_expr(struct ws_map_line *l, const char *after, const struct ws_expr **out)
{
	skip_blanks(l);
	size_t n = expression_at(l->at);
	const char *text = l->at;
	l->at += n;
	while (n && blank(text[n - 1]))
		n--;
	if (n == 0)
		return ws_map_bad(l, "a number or an expression must follow '%s'", after);
	struct ws_expr **e = ws_list_add(&l->map->arena, &l->map->exprs, sizeof(struct ws_expr *));
	if (!e)
		return ws_oom(l->err);
	if (ws_expr_parse(text, n, e, l->err))
		return refuse_expression(l, text, n);
	*out = *e;
	return 0;
}

int ws_map_dims(struct ws_map_line *l, const struct ws_expr **dims, unsigned *n)
{
	if (!ws_map_take(l, "["))
		return ws_map_bad(l,
		                  "a shape in square brackets is missing, such as [hidden_size]");
	*n = 0;
	if (ws_map_take(l, "]"))
		return 0; /* a scalar */
	for (; *n < WS_MAX_DIMS; ++*n) {
		if (ws_map_expr(l, *n ? "," : "[", &dims[*n]))
			return -1;
		if (ws_map_take(l, ","))
			continue;
		++*n;
		return ws_map_take(l, "]") ? 0 : ws_map_bad(l, "']' is missing behind a shape");
	}
	return ws_map_bad(l, "a shape has at most %d dimensions", WS_MAX_DIMS);
}

/* ---- names ---- */

static bool in_vars(const struct ws_map_vars *vars, const char *name, size_t n)
{
	for (unsigned i = 0; vars && i < vars->n; i++)
		if (strlen(vars->names[i]) == n && memcmp(vars->names[i], name, n) == 0)
			return true;
	return false;
}

static int check_variable(struct ws_map_line *l, const char *at, size_t n, struct ws_map_vars *vars)
{
	if (n == 0 || n > WS_MAP_MAX_VARIABLE || identifier(at) != n)
		return ws_map_bad(l,
		                  "{%.*s} is no variable: it takes 1 to %d letters, digits and _",
		                  (int)(n < 40 ? n : 40), at, WS_MAP_MAX_VARIABLE);
	if (in_vars(vars, at, n))
		return 0;
	if (!vars || !vars->room)
		return ws_map_bad(l, "{%.*s} is not defined here", (int)n, at);
	vars->room--;
	vars->names[vars->n] = ws_arena_text(&l->map->arena, at, n);
	return vars->names[vars->n++] ? 0 : ws_oom(l->err);
}

static int check_segment(struct ws_map_line *l, const char *at, size_t n, struct ws_map_vars *vars)
{
	if (n == 0)
		return ws_map_bad(l, "a name with two dots in a row, or one at its end");
	if (at[0] == '{' && memchr(at, '}', n) == at + n - 1)
		return check_variable(l, at + 1, n - 2, vars);
	for (size_t i = 0; i < n; i++) {
		if (strchr("{}*", at[i]))
			return ws_map_bad(l,
			                  "'%.*s' in a name: {x} and ** stand for whole segments",
			                  (int)(n < 60 ? n : 60), at);
		if (!isgraph((unsigned char)at[i]) || strchr("\"'\\[],", at[i]))
			return ws_map_bad(l, "a name with a character that names do not have");
	}
	return 0;
}

int ws_map_name(struct ws_map_line *l, const char *what, bool stars, struct ws_map_vars *vars,
                const char **out)
{
	const char *name;
	if (ws_map_word(l, &name))
		return -1;
	if (!name || strchr("[],", name[0]))
		return ws_map_bad(l, "%s is missing", what);
	for (const char *at = name;;) {
		const size_t n = strcspn(at, ".");
		const bool any = n == 2 && memcmp(at, "**", 2) == 0;
		if (any && (!stars || (at != name && at[n])))
			return ws_map_bad(l, stars ? "'%s': ** is the first or the last segment" :
			                  "'%s': ** means nothing here", ws_quote(name).text);
		if (any && vars)
			vars->stars++;
		if (!any && check_segment(l, at, n, vars))
			return -1;
		if (!at[n])
			break;
		at += n + 1;
	}
	if (strcmp(name, "**.**") == 0 || strlen(name) > WS_MAP_MAX_NAME)
		return ws_map_bad(l, "'%s' matches any name, or is too long", ws_quote(name).text);
	*out = name;
	return 0;
}

int ws_map_label(struct ws_map_line *l, const char *what, const char **out)
{
	if (ws_map_word(l, out))
		return -1;
	if (!*out)
		return ws_map_bad(l, "%s is missing", what);
	for (const char *c = *out; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("_.-", *c))
			return ws_map_bad(l, "'%s' is no %s: letters, digits and _ . - only",
			                  ws_quote(*out).text, what);
	return strlen(*out) <= WS_MAP_MAX_NAME ? 0 : ws_map_bad(l, "%s is too long", what);
}

int ws_map_variable(struct ws_map_line *l, const char *what, size_t longest, const char **out)
{
	static const char *const words[] = { "and", "or", "not", "ceil", "max", "min", "has" };
	if (ws_map_word(l, out))
		return -1;
	if (!*out)
		return ws_map_bad(l, "%s is missing", what);
	const size_t n = strlen(*out);
	bool word = ws_map_reserved(*out, n);
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		word |= strcmp(*out, words[i]) == 0;
	if (word)
		return ws_map_bad(l, "'%s' cannot name a value: it is a word of rules", *out);
	if (identifier(*out) != n || n > longest)
		return ws_map_bad(
			l, "'%s' cannot name a value: it takes 1 to %zu letters, digits and _",
			ws_quote(*out).text, longest);
	return 0;
}

/* ---- suggestions ---- */

struct ws_map_near ws_map_nearest(const char *word, const char *const *list)
{
	struct ws_map_near near = { "" };
	const size_t n = strlen(word);
	unsigned best = n < 5 ? 2 : 3; /* most wrong letters: 1 in a short word, else 2 */
	for (; *list && n < 32; list++) {
		const unsigned edits = ws_edit_distance(word, n, *list, strlen(*list));
		if (strlen(*list) >= 32 || edits >= best)
			continue;
		best = edits;
		snprintf(near.text, sizeof near.text, ": did you mean '%s'?", *list);
	}
	return near;
}
