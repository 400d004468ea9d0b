/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_family.c - the lines of a map, family by family.
 *
 * A family under construction is a draft: lists that grow, and a stack of open groups. It becomes a
 * struct ws_family when the next one begins or the text ends. */
#include "namemap_read.h"

#include "names.h"

#include <string.h>

struct block {
	struct ws_list rules;        /* struct ws_rule */
	struct ws_rule group;        /* what becomes of the block at its end; the family's own: unused */
	struct ws_list parts;        /* struct ws_rule_part, of the last rule */
	bool open;                   /* the last rule may get "+" lines */
};

struct draft {
	struct ws_family *family;    /* NULL: none begun */
	unsigned line;
	const struct ws_family *base;
	struct ws_list archs, types, lets, strips, renames, joins;
	struct block blocks[WS_MAP_MAX_GROUPS + 1];
	unsigned n_groups;
	struct ws_map_vars vars;     /* of the open groups */
};

struct reader {
	struct ws_map_line line;
	size_t first;                /* families of this reading begin there in the set */
	struct draft draft;
};

static struct ws_family *family_at(const struct ws_namemap *map, size_t i)
{
	return ((struct ws_family **)map->families.items)[i];
}

static void *add(struct reader *rd, struct ws_list *l, size_t size)
{
	void *item = ws_list_add(&rd->line.map->arena, l, size);
	if (!item)
		ws_map_no_memory(&rd->line);
	return item;
}

/* Lists are searched from end to end, so they are kept short. */
static int full(struct reader *rd, const struct ws_list *l, const char *what)
{
	return l->n < WS_MAP_MAX_LIST ? 0 :
	       ws_map_bad(&rd->line, "more than %d %s", WS_MAP_MAX_LIST, what);
}

/* ---- the end of rules, groups and families ---- */

/* A rule is whole when the next line is no "+" line. */
static int close_rule(struct reader *rd)
{
	struct block *b = &rd->draft.blocks[rd->draft.n_groups];
	struct ws_map_line at = rd->line;
	if (!b->open)
		return 0;
	struct ws_rule *r = &((struct ws_rule *)b->rules.items)[b->rules.n - 1];
	at.number = r->line;
	if (!r->out && !b->parts.n)
		return ws_map_bad(&at, "'%s' has neither 'out' nor lines of '+ PART out EXPR' below it",
		                  ws_quote(r->name).text);
	if (r->out && b->parts.n)
		return ws_map_bad(&at, "'%s' has 'out' and parts, which have theirs",
		                  ws_quote(r->name).text);
	r->parts = b->parts.items;
	r->n_parts = b->parts.n;
	b->parts = (struct ws_list){ 0 };
	b->open = false;
	return 0;
}

static int close_family(struct reader *rd)
{
	struct draft *d = &rd->draft;
	struct ws_family *f = d->family;
	struct ws_map_line at = rd->line;
	if (!f)
		return 0;
	if (close_rule(rd))
		return -1;
	if (d->n_groups) {
		at.number = d->blocks[d->n_groups].group.line;
		return ws_map_bad(&at, "this group has no 'end'");
	}
	f->archs = d->archs.items, f->n_archs = d->archs.n;
	f->types = d->types.items, f->n_types = d->types.n;
	f->lets = d->lets.items, f->n_lets = d->lets.n;
	f->strips = d->strips.items, f->n_strips = d->strips.n;
	f->renames = d->renames.items, f->n_renames = d->renames.n;
	f->joins = d->joins.items, f->n_joins = d->joins.n;
	f->rules = d->blocks[0].rules.items, f->n_rules = d->blocks[0].rules.n;
	at.number = d->line;
	if (d->base && ws_map_inherit(&at, f, d->base))
		return -1;
	d->family = NULL;
	struct ws_family **slot = add(rd, &rd->line.map->families, sizeof(struct ws_family *));
	if (!slot)
		return -1;
	*slot = f;
	return 0;
}

/* ---- lines of the family itself ---- */

static const struct ws_family *find_family(const struct reader *rd, const char *name, size_t from)
{
	/* The latest first: a file's family hides the built-in one of its name. */
	for (size_t i = rd->line.map->families.n; i-- > from;)
		if (strcmp(family_at(rd->line.map, i)->name, name) == 0)
			return family_at(rd->line.map, i);
	return NULL;
}

static int begin_family(struct reader *rd)
{
	struct ws_map_line *l = &rd->line;
	const char *name;
	if (close_family(rd) || ws_map_label(l, "family", &name) || ws_map_end(l))
		return -1;
	if (find_family(rd, name, rd->first))
		return ws_map_bad(l, "family '%s' is there twice", ws_quote(name).text);
	if (l->map->families.n - rd->first >= WS_MAP_MAX_FAMILIES)
		return ws_map_bad(l, "more than %d families", WS_MAP_MAX_FAMILIES);
	struct ws_family *f = ws_arena_alloc(&l->map->arena, sizeof *f);
	if (!f)
		return ws_map_no_memory(l);
	*f = (struct ws_family){ .name = name, .file = l->file };
	rd->draft = (struct draft){ .family = f, .line = l->number };
	return 0;
}

static int read_like(struct reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct draft *d = &rd->draft;
	const char *name;
	if (ws_map_label(l, "family", &name) || ws_map_end(l))
		return -1;
	if (d->base)
		return ws_map_bad(l, "a family is like one other, and this one is like '%s'",
		                  d->base->name);
	d->base = find_family(rd, name, 0);
	if (d->base)
		return 0;
	const char *known[WS_MAP_MAX_FAMILIES + 1];
	size_t n = 0;
	for (size_t i = 0; i < l->map->families.n && n < WS_MAP_MAX_FAMILIES; i++)
		known[n++] = family_at(l->map, i)->name;
	known[n] = NULL;
	return ws_map_bad(l, "no family '%s' comes before this one%s", ws_quote(name).text,
	                  ws_map_nearest(name, known).text);
}

/* Who of this text claims that architecture or model_type already? */
static const char *claimed(const struct reader *rd, const char *name, bool arch)
{
	for (size_t i = rd->first; i < rd->line.map->families.n; i++) {
		const struct ws_family *f = family_at(rd->line.map, i);
		const char *const *list = arch ? f->archs : f->types;
		for (size_t j = 0; j < (arch ? f->n_archs : f->n_types); j++)
			if (strcmp(list[j], name) == 0)
				return f->name;
	}
	return NULL;
}

/* One or more words, each into the list. */
static int read_labels(struct reader *rd, const char *what, struct ws_list *list)
{
	do {
		const char *name, **slot;
		if (ws_map_label(&rd->line, what, &name))
			return -1;
		for (size_t i = 0; i < list->n; i++)
			if (strcmp(((const char **)list->items)[i], name) == 0)
				return ws_map_bad(&rd->line, "'%s' is there twice", ws_quote(name).text);
		if (full(rd, list, "words") || !(slot = add(rd, list, sizeof(const char *))))
			return -1;
		*slot = name;
		rd->line.at += strspn(rd->line.at, " \t");
	} while (*rd->line.at);
	return 0;
}

static int read_claims(struct reader *rd, bool arch)
{
	struct ws_list *list = arch ? &rd->draft.archs : &rd->draft.types;
	size_t i = list->n;
	if (read_labels(rd, arch ? "architecture" : "model_type", list))
		return -1;
	for (; i < list->n; i++) {
		const char *name = ((const char **)list->items)[i];
		const char *owner = claimed(rd, name, arch);
		if (owner)
			return ws_map_bad(&rd->line, "'%s' is of family '%s' already",
			                  ws_quote(name).text, owner);
	}
	return 0;
}

static int read_strips(struct reader *rd)
{
	struct ws_list *list = &rd->draft.strips;
	size_t i = list->n;
	if (read_labels(rd, "segment", list))
		return -1;
	for (; i < list->n; i++)
		if (strchr(((const char **)list->items)[i], '.'))
			return ws_map_bad(&rd->line, "'%s' has a dot: 'strip' takes single segments",
			                  ws_quote(((const char **)list->items)[i]).text);
	return 0;
}

static int read_let(struct reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_list *lets = &rd->draft.lets;
	const char *name;
	const struct ws_expr *value;
	if (ws_map_variable(l, "a name", 63, &name))
		return -1;
	for (size_t i = 0; i < lets->n; i++)
		if (strcmp(((struct ws_let *)lets->items)[i].name, name) == 0)
			return ws_map_bad(l, "'let %s' is there twice", name);
	if (!ws_map_take(l, "="))
		return ws_map_bad(l, "'=' is missing: let NAME = EXPR");
	if (ws_map_expr(l, "=", &value) || ws_map_end(l))
		return -1;
	if (full(rd, lets, "lets"))
		return -1;
	struct ws_let *let = add(rd, lets, sizeof *let);
	if (!let)
		return -1;
	*let = (struct ws_let){ name, value };
	return 0;
}

static int read_tied(struct reader *rd)
{
	if (rd->draft.family->tied)
		return ws_map_bad(&rd->line, "'tied' is there twice");
	return ws_map_expr(&rd->line, "tied", &rd->draft.family->tied) ? -1 : ws_map_end(&rd->line);
}

/* ---- patterns ---- */

static int read_rename(struct reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_list *list = &rd->draft.renames;
	struct ws_map_vars vars = { .room = WS_MAP_MAX_CAPTURES };
	struct ws_rename r = { .line = l->number };
	if (ws_map_name(l, "a pattern of names", true, &vars, &r.from))
		return -1;
	if (!ws_map_take(l, "->"))
		return ws_map_bad(l, "'->' is missing: rename FROM -> TO");
	const unsigned from_stars = vars.stars;
	vars.stars = vars.room = 0;
	if (ws_map_name(l, "the new name", true, &vars, &r.to) || ws_map_end(l))
		return -1;
	if (vars.stars != from_stars)
		return ws_map_bad(l, "both sides need as many **: what one stands for would be lost");
	for (size_t i = 0; i < list->n; i++)
		if (strcmp(((struct ws_rename *)list->items)[i].from, r.from) == 0)
			return ws_map_bad(l, "'%s' is renamed in line %u already", ws_quote(r.from).text,
			                  ((struct ws_rename *)list->items)[i].line);
	if (full(rd, list, "renames"))
		return -1;
	r.bits = ws_pattern_bits(r.from);
	struct ws_rename *slot = add(rd, list, sizeof *slot);
	if (!slot)
		return -1;
	*slot = r;
	return 0;
}

static int read_join(struct reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_map_vars vars = { .room = WS_MAP_MAX_CAPTURES };
	struct ws_join j = { .line = l->number };
	struct ws_list parts = { 0 };
	if (ws_map_name(l, "a name", true, &vars, &j.name))
		return -1;
	if (!ws_map_take(l, "<-"))
		return ws_map_bad(l, "'<-' is missing: join NAME <- PART PART...");
	for (l->at += strspn(l->at, " \t"); *l->at; l->at += strspn(l->at, " \t")) {
		/* A part must say all that the name says: partners find each other by it. */
		struct ws_map_vars mine = { .room = WS_MAP_MAX_CAPTURES };
		const char *part, **slot;
		if (ws_map_name(l, "a part", true, &mine, &part))
			return -1;
		bool same = mine.n == vars.n && mine.stars == vars.stars;
		for (unsigned i = 0; i < mine.n && same; i++)
			for (unsigned k = 0; (same = k < vars.n) && strcmp(mine.names[i], vars.names[k]); k++)
				;
		if (!same)
			return ws_map_bad(l, "'%s' must have the variables and ** of '%s'",
			                  ws_quote(part).text, ws_quote(j.name).text);
		if (full(rd, &parts, "parts") || !(slot = add(rd, &parts, sizeof(const char *))))
			return -1;
		*slot = part;
	}
	if (parts.n < 2)
		return ws_map_bad(l, "two parts or more are joined, one is a 'rename'");
	j.parts = parts.items;
	j.n_parts = parts.n;
	if (full(rd, &rd->draft.joins, "joins"))
		return -1;
	struct ws_join *slot = add(rd, &rd->draft.joins, sizeof *slot);
	if (!slot)
		return -1;
	*slot = j;
	return 0;
}

/* ---- groups and rules ---- */

static int read_loop(struct ws_map_line *l, struct ws_map_vars *vars, struct ws_rule *group)
{
	if (ws_map_variable(l, "a variable", WS_MAP_MAX_VARIABLE, &group->var))
		return -1;
	for (unsigned i = 0; i < vars->n; i++)
		if (strcmp(vars->names[i], group->var) == 0)
			return ws_map_bad(l, "a group around this one has the variable %s", group->var);
	vars->names[vars->n++] = group->var;
	if (ws_map_take(l, "<"))
		return ws_map_expr(l, "<", &group->to);
	if (!ws_map_take(l, "in"))
		return ws_map_bad(l, "'for %s' goes on with '< EXPR' or 'in EXPR .. EXPR'", group->var);
	if (ws_map_expr(l, "in", &group->from))
		return -1;
	if (!ws_map_take(l, ".."))
		return ws_map_bad(l, "'..' is missing: for %s in EXPR .. EXPR", group->var);
	return ws_map_expr(l, "..", &group->to);
}

static int read_group(struct reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct draft *d = &rd->draft;
	struct ws_rule group = { .kind = WS_RULE_GROUP, .text = l->text, .line = l->number };
	if (d->n_groups == WS_MAP_MAX_GROUPS)
		return ws_map_bad(l, "groups nest deeper than %d", WS_MAP_MAX_GROUPS);
	/* The prefix comes before the words that say what its variable is. */
	struct ws_map_line prefix = *l;
	const char *skipped;
	if (ws_map_word(l, &skipped))
		return -1;
	if (ws_map_take(l, "for") && read_loop(l, &d->vars, &group))
		return -1;
	if (ws_map_name(&prefix, "the prefix of the group", false, &d->vars, &group.name))
		return -1;
	if (ws_map_take(l, "when") && ws_map_expr(l, "when", &group.when))
		return -1;
	if (ws_map_end(l))
		return -1;
	d->blocks[++d->n_groups] = (struct block){ .group = group };
	return 0;
}

static int add_rule(struct reader *rd, const struct ws_rule *r)
{
	struct block *b = &rd->draft.blocks[rd->draft.n_groups];
	if (ws_map_count_rule(&rd->line))
		return -1;
	struct ws_rule *slot = add(rd, &b->rules, sizeof *slot);
	if (!slot)
		return -1;
	*slot = *r;
	b->open = r->kind == WS_RULE_COLUMN || r->kind == WS_RULE_REPLICATED;
	return 0;
}

static int read_end(struct reader *rd)
{
	struct draft *d = &rd->draft;
	if (ws_map_end(&rd->line))
		return -1;
	if (d->n_groups == 0)
		return ws_map_bad(&rd->line, "'end' without a group that is open");
	const struct block *b = &d->blocks[d->n_groups--];
	struct ws_rule group = b->group;
	group.inner = b->rules.items;
	group.n_inner = b->rules.n;
	if (group.var)
		d->vars.n--;
	return add_rule(rd, &group);
}

static bool differ(const struct ws_rule *a, const struct ws_rule *b)
{
	return a->when || b->when || a->kind == WS_RULE_ALIAS || b->kind == WS_RULE_ALIAS ||
	       a->kind == WS_RULE_GROUP || b->kind == WS_RULE_GROUP ||
	       (a->kind == WS_RULE_SKIP) != (b->kind == WS_RULE_SKIP) || strcmp(a->name, b->name) != 0;
}

static int read_rule(struct reader *rd, const char *word)
{
	const struct draft *d = &rd->draft;
	const struct ws_list *rules = &d->blocks[d->n_groups].rules;
	struct ws_rule r;
	if (ws_map_rule(&rd->line, word, &d->vars, d->n_groups > 0, &r))
		return -1;
	for (size_t i = 0; i < rules->n; i++) {
		const struct ws_rule *before = &((struct ws_rule *)rules->items)[i];
		if (!differ(before, &r))
			return ws_map_bad(&rd->line, "'%s' is there already, in line %u",
			                  ws_quote(r.name).text, before->line);
	}
	return add_rule(rd, &r);
}

static int read_part(struct reader *rd)
{
	struct block *b = &rd->draft.blocks[rd->draft.n_groups];
	struct ws_rule_part part;
	if (!b->open)
		return ws_map_bad(&rd->line, "'+' without a 'column' or 'replicated' line above it");
	if (ws_map_part(&rd->line, &part))
		return -1;
	for (size_t i = 0; i < b->parts.n; i++)
		if (strcmp(((struct ws_rule_part *)b->parts.items)[i].name, part.name) == 0)
			return ws_map_bad(&rd->line, "part '%s' is there twice", ws_quote(part.name).text);
	if (full(rd, &b->parts, "parts"))
		return -1;
	struct ws_rule_part *slot = add(rd, &b->parts, sizeof *slot);
	if (!slot)
		return -1;
	*slot = part;
	return 0;
}

/* ---- lines ---- */

static int read_head_line(struct reader *rd, const char *word, bool *mine)
{
	*mine = true;
	if (strcmp(word, "arch") == 0)
		return read_claims(rd, true);
	if (strcmp(word, "type") == 0)
		return read_claims(rd, false);
	if (strcmp(word, "like") == 0)
		return read_like(rd);
	if (strcmp(word, "let") == 0)
		return read_let(rd);
	if (strcmp(word, "tied") == 0)
		return read_tied(rd);
	if (strcmp(word, "strip") == 0)
		return read_strips(rd);
	if (strcmp(word, "rename") == 0)
		return read_rename(rd);
	if (strcmp(word, "join") == 0)
		return read_join(rd);
	*mine = false;
	return 0;
}

static int read_words(struct reader *rd, const char *word)
{
	struct ws_map_line *l = &rd->line;
	bool done;
	if (strcmp(word, "family") == 0)
		return begin_family(rd);
	if (!rd->draft.family)
		return ws_map_bad(l, "'%s' comes before the first 'family'", ws_quote(word).text);
	if (strcmp(word, "+") == 0)
		return read_part(rd);
	if (close_rule(rd))
		return -1;
	if (strcmp(word, "group") == 0)
		return read_group(rd);
	if (strcmp(word, "end") == 0)
		return read_end(rd);
	if (ws_map_is_rule(word))
		return read_rule(rd, word);
	if (read_head_line(rd, word, &done))
		return -1;
	if (!done)
		return ws_map_bad(l, "unknown rule '%s'%s", ws_quote(word).text,
		                  ws_map_nearest(word, ws_map_rule_words()).text);
	return rd->draft.n_groups == 0 ? 0 :
	       ws_map_bad(l, "'%s' cannot stand in a group: 'end' is missing above it", word);
}

/* Length without a comment: '#' outside of quotes. */
static size_t uncommented(const char *s, size_t n)
{
	bool quoted = false;
	for (size_t i = 0; i < n; i++) {
		quoted ^= s[i] == '"';
		if (s[i] == '#' && !quoted)
			return i;
	}
	return n;
}

static int read_line(struct reader *rd, const char *s, size_t n)
{
	struct ws_map_line *l = &rd->line;
	const char *word;
	if (memchr(s, 0, n))
		return ws_map_bad(l, "a NUL character: this is no text");
	n = uncommented(s, n);
	while (n && strchr(" \t\r", s[n - 1]))
		n--;
	while (n && (*s == ' ' || *s == '\t'))
		s++, n--;
	if (n == 0)
		return 0;
	l->text = l->at = ws_arena_text(&l->map->arena, s, n);
	if (!l->text)
		return ws_map_no_memory(l);
	return ws_map_word(l, &word) ? -1 : read_words(rd, word);
}

int ws_map_read(struct ws_namemap *map, const char *file, const char *text, size_t n,
                size_t first, struct ws_err *err)
{
	struct reader rd = { .line = { .map = map, .file = file, .err = err }, .first = first };
	const char *end = text + n;
	if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
		text += 3; /* a byte order mark, which some editors write */
	while (text < end) {
		const char *newline = memchr(text, '\n', (size_t)(end - text));
		const char *stop = newline ? newline : end;
		rd.line.number++;
		if (read_line(&rd, text, (size_t)(stop - text)))
			return -1;
		text = newline ? newline + 1 : end;
	}
	return close_family(&rd);
}
