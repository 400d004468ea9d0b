/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_family.c - the lines of a map, family by family. */
#include "family_builder.h"

#include "name_index.h"

#include <string.h>

static struct ws_family *family_at(const struct ws_namemap *map, size_t i)
{
	return ((struct ws_family **)map->families.items)[i];
}

void *ws_builder_add(struct ws_map_reader *rd, struct ws_list *l, size_t size)
{
	void *item = ws_list_add(&rd->line.map->arena, l, size);
	if (!item)
		ws_oom(rd->line.err);
	return item;
}

int ws_builder_full(struct ws_map_reader *rd, const struct ws_list *l, const char *what)
{
	return l->n < WS_MAP_MAX_LIST ? 0 :
	       ws_map_bad(&rd->line, "more than %d %s", WS_MAP_MAX_LIST, what);
}

static int close_family(struct ws_map_reader *rd)
{
	struct ws_family_builder *d = &rd->builder;
	struct ws_family *f = d->family;
	struct ws_map_line at = rd->line;
	if (!f)
		return 0;
	if (ws_builder_close_rule(rd))
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
	struct ws_family **slot =
		ws_builder_add(rd, &rd->line.map->families, sizeof(struct ws_family *));
	if (!slot)
		return -1;
	*slot = f;
	return 0;
}

/* ---- lines of the family itself ---- */

static const struct ws_family *find_family(const struct ws_map_reader *rd, const char *name,
                                           size_t from)
{
	/* Latest first: a file's family hides a built-in family of the same name. */
	for (size_t i = rd->line.map->families.n; i-- > from;)
		if (strcmp(family_at(rd->line.map, i)->name, name) == 0)
			return family_at(rd->line.map, i);
	return NULL;
}

static int begin_named(struct ws_map_reader *rd, const char *name)
{
	struct ws_map_line *l = &rd->line;
	if (find_family(rd, name, rd->first))
		return ws_map_bad(l, "family '%s' is there twice", ws_quote(name).text);
	if (l->map->families.n - rd->first >= WS_MAP_MAX_FAMILIES)
		return ws_map_bad(l, "more than %d families", WS_MAP_MAX_FAMILIES);
	struct ws_family *f = ws_arena_alloc(&l->map->arena, sizeof *f);
	if (!f)
		return ws_oom(l->err);
	*f = (struct ws_family){ .name = name, .file = l->file };
	rd->builder = (struct ws_family_builder){ .family = f, .line = l->number };
	return 0;
}

static int begin_family(struct ws_map_reader *rd)
{
	const char *name;
	if (close_family(rd) || ws_map_label(&rd->line, "family", &name) || ws_map_end(&rd->line))
		return -1;
	return begin_named(rd, name);
}

/* A one-line map is the usual emergency fix: renames, strips, joins and skips before any family
 * apply to all families. */
static int begin_for_all(struct ws_map_reader *rd, const char *word)
{
	static const char *const words[] = { "strip", "rename", "join", "skip" };
	const struct ws_family *generic = find_family(rd, "generic", 0);
	size_t i = 0;
	while (i < 4 && strcmp(word, words[i]) != 0)
		i++;
	if (i == 4 || !generic)
		return ws_map_bad(&rd->line, "'%s' comes before the first 'family'",
		                  ws_quote(word).text);
	if (begin_named(rd, generic->name))
		return -1;
	rd->builder.base = generic;
	return 0;
}

static int read_like(struct ws_map_reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_family_builder *d = &rd->builder;
	const char *name;
	if (ws_map_label(l, "family", &name) || ws_map_end(l))
		return -1;
	if (d->base)
		return ws_map_bad(l, "a family has only one 'like': this family is like '%s'",
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

/* Returns the family of this text that already claims the architecture or model_type. */
static const char *claimed(const struct ws_map_reader *rd, const char *name, bool arch)
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

/* Reads one or more words into the list. */
static int read_labels(struct ws_map_reader *rd, const char *what, struct ws_list *list)
{
	do {
		const char *name, **slot;
		if (ws_map_label(&rd->line, what, &name))
			return -1;
		for (size_t i = 0; i < list->n; i++)
			if (strcmp(((const char **)list->items)[i], name) == 0)
				return ws_map_bad(&rd->line, "'%s' is there twice",
				                  ws_quote(name).text);
		if (ws_builder_full(rd, list, "words") ||
		    !(slot = ws_builder_add(rd, list, sizeof(const char *))))
			return -1;
		*slot = name;
		rd->line.at += strspn(rd->line.at, " \t");
	} while (*rd->line.at);
	return 0;
}

static int read_claims(struct ws_map_reader *rd, bool arch)
{
	struct ws_list *list = arch ? &rd->builder.archs : &rd->builder.types;
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

static int read_strips(struct ws_map_reader *rd)
{
	struct ws_list *list = &rd->builder.strips;
	size_t i = list->n;
	if (read_labels(rd, "segment", list))
		return -1;
	for (; i < list->n; i++)
		if (strchr(((const char **)list->items)[i], '.'))
			return ws_map_bad(&rd->line,
			                  "'%s' has a dot: 'strip' takes single segments",
			                  ws_quote(((const char **)list->items)[i]).text);
	return 0;
}

static int read_let(struct ws_map_reader *rd)
{
	struct ws_map_line *l = &rd->line;
	struct ws_list *lets = &rd->builder.lets;
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
	if (ws_builder_full(rd, lets, "lets"))
		return -1;
	struct ws_let *let = ws_builder_add(rd, lets, sizeof *let);
	if (!let)
		return -1;
	*let = (struct ws_let){ name, value };
	return 0;
}

static int read_tied(struct ws_map_reader *rd)
{
	if (rd->builder.family->tied)
		return ws_map_bad(&rd->line, "'tied' is there twice");
	return ws_map_expr(&rd->line, "tied", &rd->builder.family->tied) ? -1 :
	                                                                   ws_map_end(&rd->line);
}

/* ---- lines ---- */

static int read_head_line(struct ws_map_reader *rd, const char *word, bool *mine)
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
		return ws_builder_rename(rd);
	if (strcmp(word, "join") == 0)
		return ws_builder_join(rd);
	*mine = false;
	return 0;
}

static int read_words(struct ws_map_reader *rd, const char *word)
{
	struct ws_map_line *l = &rd->line;
	bool done;
	if (strcmp(word, "family") == 0)
		return begin_family(rd);
	if (!rd->builder.family && begin_for_all(rd, word))
		return -1;
	if (strcmp(word, "+") == 0)
		return ws_builder_part(rd);
	if (ws_builder_close_rule(rd))
		return -1;
	if (strcmp(word, "group") == 0)
		return ws_builder_group(rd);
	if (strcmp(word, "end") == 0)
		return ws_builder_end(rd);
	if (ws_map_is_rule(word))
		return ws_builder_rule(rd, word);
	if (read_head_line(rd, word, &done))
		return -1;
	if (!done)
		return ws_map_bad(l, "unknown rule '%s'%s", ws_quote(word).text,
		                  ws_map_nearest(word, ws_map_rule_words()).text);
	return rd->builder.n_groups == 0 ? 0 :
	       ws_map_bad(l, "'%s' cannot stand in a group: 'end' is missing above it", word);
}

/* Returns the length without the comment, which begins at a '#' outside of quotes. */
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

static int read_line(struct ws_map_reader *rd, const char *s, size_t n)
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
		return ws_oom(l->err);
	return ws_map_word(l, &word) ? -1 : read_words(rd, word);
}

int ws_map_read(struct ws_namemap *map, const char *file, const char *text, size_t n,
                size_t first, struct ws_err *err)
{
	struct ws_map_reader rd = { .line = { .map = map, .file = file, .err = err },
		                    .first = first };
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
