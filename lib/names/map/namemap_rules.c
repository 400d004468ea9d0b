/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_rules.c - parses one rule line into a struct ws_rule.
 *
 * A table lists the words that may follow a rule's name: in any order, each once, some required. */
#include "namemap_read.h"

#include "name_index.h"

#include <stddef.h>
#include <string.h>

enum {
	IN = 1 << 0,
	OUT = 1 << 1,
	HEADS = 1 << 2,
	ROWS = 1 << 3,
	COLS = 1 << 4,
	COUNT = 1 << 5,
	MID = 1 << 6,
	BIAS = 1 << 7,
	GROUPS = 1 << 8,
	WHEN = 1 << 9,
	OPTIONAL = 1 << 10,
	UNQUANTIZED = 1 << 11,
	ATTENTION = 1 << 12,
	NONGATED = 1 << 13,
	INTO = 1 << 14,
	OF = 1 << 15,
	ORDER = 1 << 16,
	AXIS = 1 << 17,
	STEP = 1 << 18,
	TRANSPOSED = 1 << 19,
	EP = 1 << 20,
	PARAM = WHEN | OPTIONAL | UNQUANTIZED | ATTENTION,
};

enum value { EXPR, FLAG, NAME, PERMUTATION, INDEX };

static const struct word {
	const char *text;
	unsigned bit;
	enum value value;
	size_t slot; /* offset in struct ws_rule */
} words[] = {
	{ "in", IN, EXPR, offsetof(struct ws_rule, in) },
	{ "out", OUT, EXPR, offsetof(struct ws_rule, out) },
	{ "heads", HEADS, EXPR, offsetof(struct ws_rule, heads) },
	{ "rows", ROWS, EXPR, offsetof(struct ws_rule, dims[0]) },
	{ "cols", COLS, EXPR, offsetof(struct ws_rule, dims[1]) },
	{ "count", COUNT, EXPR, offsetof(struct ws_rule, count) },
	{ "mid", MID, EXPR, offsetof(struct ws_rule, mid) },
	{ "bias", BIAS, EXPR, offsetof(struct ws_rule, bias) },
	{ "groups", GROUPS, EXPR, offsetof(struct ws_rule, groups) },
	{ "when", WHEN, EXPR, offsetof(struct ws_rule, when) },
	{ "optional", OPTIONAL, FLAG, offsetof(struct ws_rule, optional) },
	{ "unquantized", UNQUANTIZED, FLAG, offsetof(struct ws_rule, unquantized) },
	{ "attention", ATTENTION, FLAG, offsetof(struct ws_rule, attention) },
	{ "nongated", NONGATED, FLAG, offsetof(struct ws_rule, nongated) },
	{ "into", INTO, NAME, offsetof(struct ws_rule, of) },
	{ "of", OF, NAME, offsetof(struct ws_rule, of) },
	{ "order", ORDER, PERMUTATION, offsetof(struct ws_rule, order) },
	{ "axis", AXIS, INDEX, offsetof(struct ws_rule, axis) },
	{ "step", STEP, EXPR, offsetof(struct ws_rule, step) },
	{ "transposed", TRANSPOSED, FLAG, offsetof(struct ws_rule, transposed) },
	{ "ep", EP, FLAG, offsetof(struct ws_rule, ep) },
};

enum head { PLAIN, SHAPE, STORED, PATTERN };

static const struct kind {
	const char *word;
	enum ws_rule_kind kind;
	enum head head;
	unsigned needs, takes;
	const char *usage;
} kinds[] = {
	{ "vocab", WS_RULE_VOCAB, PLAIN, ROWS | COLS, PARAM, "vocab NAME rows EXPR cols EXPR" },
	{ "column", WS_RULE_COLUMN, PLAIN, IN, OUT | HEADS | BIAS | PARAM,
	  "column NAME in EXPR [out EXPR [heads EXPR]]" },
	{ "row", WS_RULE_ROW, PLAIN, IN | OUT, HEADS | BIAS | PARAM,
	  "row NAME in EXPR out EXPR [heads EXPR]" },
	{ "replicated", WS_RULE_REPLICATED, PLAIN, IN, OUT | BIAS | PARAM,
	  "replicated NAME in EXPR [out EXPR]" },
	{ "whole", WS_RULE_WHOLE, SHAPE, 0, PARAM, "whole NAME [EXPR, ...] [DTYPE]" },
	{ "split", WS_RULE_SPLIT, SHAPE, HEADS, PARAM,
	  "split NAME [EXPR, ...] [DTYPE] heads EXPR" },
	{ "stack", WS_RULE_STACK, STORED, 0, AXIS | STEP | TRANSPOSED | EP | PARAM,
	  "stack NAME [EXPR, ...] DTYPE <- PART [EXPR, ...] DTYPE [axis N [step EXPR]]" },
	{ "experts", WS_RULE_EXPERTS, PLAIN, COUNT | IN | MID, NONGATED | PARAM,
	  "experts NAME count EXPR in EXPR mid EXPR [nongated]" },
	{ "shared", WS_RULE_SHARED, PLAIN, COUNT | IN | MID | INTO, PARAM,
	  "shared NAME count EXPR in EXPR mid EXPR into EXPERTS" },
	{ "alias", WS_RULE_ALIAS, PLAIN, OF, ORDER | GROUPS | WHEN,
	  "alias NAME of PARAM [order N...] [groups EXPR]" },
	{ "skip", WS_RULE_SKIP, PATTERN, 0, WHEN, "skip PATTERN \"why\" [when EXPR]" },
};

enum { N_KINDS = sizeof kinds / sizeof kinds[0], N_WORDS = sizeof words / sizeof words[0] };

static const struct kind *find_kind(const char *word)
{
	for (size_t i = 0; i < N_KINDS; i++)
		if (strcmp(kinds[i].word, word) == 0)
			return &kinds[i];
	return NULL;
}

bool ws_map_is_rule(const char *word)
{
	return find_kind(word) != NULL;
}

const char *const *ws_map_rule_words(void)
{
	static const char *const list[] = {
		"family", "arch",  "type",    "like",   "let",    "tied", "strip",      "rename",
		"join",   "group", "end",     "vocab",  "column", "row",  "replicated", "whole",
		"split",  "stack", "experts", "shared", "alias",  "skip", NULL,
	};
	return list;
}

/* ---- before the words ---- */

static int read_dtype(struct ws_map_line *l, bool needed, bool *has, enum ws_dtype *out)
{
	const struct ws_map_line before = *l;
	const char *word;
	if (ws_map_word(l, &word))
		return -1;
	if (word && !ws_map_reserved(word, strlen(word)) && strcmp(word, "<-") != 0) {
		*has = ws_dtype_from_torch(word, out);
		return *has ? 0 : ws_map_bad(l, "'%s' is no dtype such as float32 or uint8",
		                             ws_quote(word).text);
	}
	*l = before;
	return needed ? ws_map_bad(l, "a dtype such as bfloat16 is missing") : 0;
}

static int read_stored(struct ws_map_line *l, struct ws_map_vars *vars, struct ws_rule *r)
{
	r->axis = -1;
	if (ws_map_dims(l, r->dims, &r->n_dims) || read_dtype(l, true, &r->has_dtype, &r->dtype))
		return -1;
	if (!ws_map_take(l, "<-"))
		return ws_map_bad(l, "'<-' and the checkpoint's name are missing");
	if (ws_map_name(l, "the checkpoint's name", false, vars, &r->of) ||
	    ws_map_dims(l, r->of_dims, &r->n_of_dims))
		return -1;
	return read_dtype(l, true, &r->has_of_dtype, &r->of_dtype);
}

static int read_pattern(struct ws_map_line *l, const struct ws_map_vars *around, bool nested,
                        struct ws_rule *r)
{
	struct ws_map_vars vars = *around;
	vars.room = WS_MAP_MAX_CAPTURES;
	if (ws_map_name(l, "a pattern of names", true, &vars, &r->name))
		return -1;
	if (nested && strncmp(r->name, "**.", 3) == 0)
		return ws_map_bad(l, "a pattern in a group cannot begin with **: put it outside");
	return ws_map_quoted(l, &r->of);
}

static int read_head(struct ws_map_line *l, const struct kind *k, const struct ws_map_vars *around,
                     bool nested, struct ws_rule *r)
{
	struct ws_map_vars vars = *around;
	if (k->head == PATTERN)
		return read_pattern(l, around, nested, r);
	if (ws_map_name(l, "a name", false, &vars, &r->name))
		return -1;
	if (k->head == STORED)
		return read_stored(l, &vars, r);
	if (k->head != SHAPE)
		return 0;
	if (ws_map_dims(l, r->dims, &r->n_dims))
		return -1;
	if (read_dtype(l, false, &r->has_dtype, &r->dtype))
		return -1;
	r->casts = r->has_dtype && ws_map_take(l, "cast");
	return 0;
}

/* ---- the words ---- */

static int read_index(struct ws_map_line *l, int below, int *out)
{
	const char *word;
	if (below == 0)
		return ws_map_bad(l, "a scalar has no axis");
	if (ws_map_word(l, &word))
		return -1;
	if (!word || word[0] < '0' || word[0] > '9' || word[1] || word[0] - '0' >= below)
		return ws_map_bad(l, "an axis from 0 to %d must stand here", below - 1);
	*out = word[0] - '0';
	return 0;
}

/* Reads axes up to the next word: each of 0 .. n-1 once. */
static int read_order(struct ws_map_line *l, struct ws_rule *r)
{
	unsigned seen = 0;
	for (r->n_order = 0; r->n_order < WS_MAX_DIMS; r->n_order++) {
		while (*l->at == ' ' || *l->at == '\t')
			l->at++;
		if (*l->at < '0' || *l->at > '9')
			break;
		if (read_index(l, WS_MAX_DIMS, &r->order[r->n_order]))
			return -1;
		seen |= 1u << r->order[r->n_order];
	}
	if (r->n_order < 2 || seen != (1u << r->n_order) - 1)
		return ws_map_bad(l, "'order' takes each axis once, such as 0 2 1");
	return 0;
}

static int read_value(struct ws_map_line *l, const struct word *w, const struct ws_map_vars *around,
                      struct ws_rule *r)
{
	void *slot = (char *)r + w->slot;
	struct ws_map_vars vars = *around;
	switch (w->value) {
	case EXPR:        return ws_map_expr(l, w->text, slot);
	case NAME:        return ws_map_name(l, "a name", false, &vars, slot);
	case PERMUTATION: return read_order(l, r);
	case INDEX:       return read_index(l, (int)r->n_of_dims, slot);
	case FLAG:        break;
	}
	*(bool *)slot = true;
	return 0;
}

static const struct word *find_word(const char *text)
{
	for (size_t i = 0; i < N_WORDS; i++)
		if (strcmp(words[i].text, text) == 0)
			return &words[i];
	return NULL;
}

static int unknown_word(const struct ws_map_line *l, const struct kind *k, const char *text)
{
	const char *list[N_WORDS + 1];
	size_t n = 0;
	for (size_t i = 0; i < N_WORDS; i++)
		if ((k->needs | k->takes) & words[i].bit)
			list[n++] = words[i].text;
	list[n] = NULL;
	return ws_map_bad(l, "'%s' means nothing to '%s'%s", ws_quote(text).text, k->word,
	                  ws_map_nearest(text, list).text);
}

static int read_words(struct ws_map_line *l, const struct kind *k, const struct ws_map_vars *around,
                      struct ws_rule *r)
{
	unsigned seen = 0;
	for (;;) {
		const char *text;
		if (ws_map_word(l, &text))
			return -1;
		if (!text)
			break;
		const struct word *w = find_word(text);
		if (!w || !((k->needs | k->takes) & w->bit))
			return unknown_word(l, k, text);
		if (seen & w->bit)
			return ws_map_bad(l, "'%s' is there twice", w->text);
		seen |= w->bit;
		if (read_value(l, w, around, r))
			return -1;
	}
	for (size_t i = 0; i < N_WORDS; i++)
		if (k->needs & words[i].bit & ~seen)
			return ws_map_bad(l, "'%s' is missing: %s", words[i].text, k->usage);
	if ((seen & HEADS) && k->kind == WS_RULE_COLUMN && !(seen & OUT))
		return ws_map_bad(l, "'heads' needs 'out': %s", k->usage);
	if ((seen & STEP) && !(seen & AXIS))
		return ws_map_bad(l, "'step' needs 'axis': %s", k->usage);
	return 0;
}

int ws_map_rule(struct ws_map_line *l, const char *word, const struct ws_map_vars *vars,
                bool nested, struct ws_rule *out)
{
	const struct kind *k = find_kind(word);
	struct ws_rule r = { .kind = k->kind, .text = l->text, .line = l->number };
	if (read_head(l, k, vars, nested, &r) || read_words(l, k, vars, &r))
		return -1;
	if (r.kind == WS_RULE_VOCAB)
		r.n_dims = 2;
	if (r.kind == WS_RULE_SPLIT && r.n_dims == 0)
		return ws_map_bad(l, "a split tensor needs at least one axis");
	*out = r;
	return 0;
}

int ws_map_part(struct ws_map_line *l, struct ws_rule_part *out)
{
	static const struct ws_map_vars none;
	struct ws_map_vars vars = none;
	struct ws_rule_part p = { 0 };
	if (ws_map_name(l, "a part's name", false, &vars, &p.name))
		return -1;
	if (strchr(p.name, '.'))
		return ws_map_bad(
			l, "'%s' has a dot: a part stands for the last segment of the rule's name",
			ws_quote(p.name).text);
	if (!ws_map_take(l, "out"))
		return ws_map_bad(l, "'out' is missing: + PART out EXPR [heads EXPR]");
	if (ws_map_expr(l, "out", &p.out))
		return -1;
	if (ws_map_take(l, "heads") && ws_map_expr(l, "heads", &p.heads))
		return -1;
	*out = p;
	return ws_map_end(l);
}

int ws_map_count_rule(const struct ws_map_line *l)
{
	if (l->map->n_rules == WS_MAP_MAX_RULES)
		return ws_map_bad(l, "more than %d rules, inherited ones included",
		                  WS_MAP_MAX_RULES);
	l->map->n_rules++;
	return 0;
}
