/* SPDX-License-Identifier: Apache-2.0 */
/* namemap_like.c - copies the lines that a family inherits by `like` and from the generic family.
 *
 * Strings and expressions are shared: they live as long as the set. Two rules are equal if their
 * full names are equal, with group prefixes. The names of variables and the ranges of loops are not
 * compared. */
#include "namemap_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists ---- */

typedef bool same_fn(const void *a, const void *b);

static bool same_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b) == 0;
}

static bool same_rename(const void *a, const void *b)
{
	return strcmp(((const struct ws_rename *)a)->from, ((const struct ws_rename *)b)->from) ==
	       0;
}

static bool same_join(const void *a, const void *b)
{
	return strcmp(((const struct ws_join *)a)->name, ((const struct ws_join *)b)->name) == 0;
}

static bool among(const void *item, const void *list, size_t n, size_t size, same_fn *same)
{
	for (size_t i = 0; same && i < n; i++)
		if (same((const char *)list + i * size, item))
			return true;
	return false;
}

/* Concatenates first and the members of second that are not in first. */
static int concat(struct ws_map_line *l, const void *first, size_t n_first, const void *second,
                  size_t n_second, size_t size, same_fn *same, void *out, size_t *n)
{
	if (n_first + n_second > 4 * WS_MAP_MAX_LIST)
		return ws_map_bad(l, "the family inherits too many lines");
	char *items = ws_arena_alloc(&l->map->arena, (n_first + n_second) * size);
	if (!items)
		return ws_oom(l->err);
	size_t used = n_first;
	if (n_first)
		memcpy(items, first, n_first * size);
	for (size_t i = 0; i < n_second; i++) {
		const char *item = (const char *)second + i * size;
		if (!among(item, first, n_first, size, same))
			memcpy(items + used++ * size, item, size);
	}
	memcpy(out, &items, sizeof items);
	*n = used;
	return 0;
}

static int inherit_lists(struct ws_map_line *l, struct ws_family *f, const struct ws_family *base)
{
	/* The family's own renames come first: they make names that the inherited renames match. */
	return concat(l, f->strips, f->n_strips, base->strips, base->n_strips, sizeof *f->strips,
	              same_text, &f->strips, &f->n_strips) ||
	                       concat(l, f->renames, f->n_renames, base->renames, base->n_renames,
	                              sizeof *f->renames, same_rename, &f->renames,
	                              &f->n_renames) ||
	                       concat(l, f->joins, f->n_joins, base->joins, base->n_joins,
	                              sizeof *f->joins, same_join, &f->joins, &f->n_joins) ?
	               -1 :
	               0;
}

/* ---- rules ---- */

/* long enough for the names of all nested groups */
struct full_name {
	char text[(WS_MAP_MAX_GROUPS + 2) * (WS_MAP_MAX_NAME + 1)];
	size_t n;
};

/* Appends ".name" with each variable as {}; returns the length before. */
static size_t append(struct full_name *full, const char *name)
{
	const size_t before = full->n;
	if (before > 1)
		full->text[full->n++] = '.';
	for (const char *c = name; *c; c++) {
		full->text[full->n++] = *c;
		if (*c == '{')
			c += strcspn(c, "}") - 1;
	}
	full->text[full->n] = 0;
	return before;
}

static void cut(struct full_name *full, size_t n)
{
	full->n = n;
	full->text[n] = 0;
}

/* Aliases, skips and parameters do not replace each other. */
static char class_of(const struct ws_rule *r)
{
	return r->kind == WS_RULE_ALIAS ? 'a' : r->kind == WS_RULE_SKIP ? 's' : 'p';
}

static int collect(struct ws_map_line *l, const struct ws_rule *rules, size_t n,
                   struct full_name *full, struct ws_list *out)
{
	for (size_t i = 0; i < n; i++) {
		const size_t before = append(full, rules[i].name);
		full->text[0] = class_of(&rules[i]);
		if (rules[i].kind == WS_RULE_GROUP) {
			if (collect(l, rules[i].inner, rules[i].n_inner, full, out))
				return -1;
		} else {
			const char **slot = ws_list_add(&l->map->arena, out, sizeof *slot);
			if (!slot || !(*slot = ws_arena_text(&l->map->arena, full->text, full->n)))
				return ws_oom(l->err);
		}
		cut(full, before);
	}
	return 0;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool replaced(const struct ws_list *own, const struct full_name *full)
{
	const char *key = full->text;
	return own->n && bsearch(&key, own->items, own->n, sizeof key, by_text);
}

/* Appends the rules that `own` does not replace. */
static int copy_rules(struct ws_map_line *l, const struct ws_rule *rules, size_t n,
                      const struct ws_list *own, struct full_name *full, struct ws_list *out)
{
	for (size_t i = 0; i < n; i++) {
		const size_t before = append(full, rules[i].name);
		struct ws_rule r = rules[i];
		struct ws_list inner = { 0 };
		full->text[0] = class_of(&r);
		if (r.kind == WS_RULE_GROUP) {
			if (copy_rules(l, r.inner, r.n_inner, own, full, &inner))
				return -1;
			r.inner = inner.items;
			r.n_inner = inner.n;
		}
		if (r.kind == WS_RULE_GROUP ? inner.n > 0 : !replaced(own, full)) {
			if (ws_map_count_rule(l))
				return -1;
			struct ws_rule *slot = ws_list_add(&l->map->arena, out, sizeof *slot);
			if (!slot)
				return ws_oom(l->err);
			*slot = r;
		}
		cut(full, before);
	}
	return 0;
}

static int append_rules(struct ws_map_line *l, const struct ws_rule *rules, size_t n,
                        struct ws_list *out)
{
	for (size_t i = 0; i < n; i++) {
		struct ws_rule *slot = ws_list_add(&l->map->arena, out, sizeof *slot);
		if (!slot)
			return ws_oom(l->err);
		*slot = rules[i];
	}
	return 0;
}

static struct ws_rule *find_group(const struct ws_list *rules, const struct ws_rule *like)
{
	struct ws_rule *r = rules->items;
	for (size_t i = 0; like->kind == WS_RULE_GROUP && i < rules->n; i++)
		if (r[i].kind == WS_RULE_GROUP && strcmp(r[i].text, like->text) == 0)
			return &r[i];
	return NULL;
}

/* Groups with equal text are merged, so that a layer's rules stay together. */
static int add_own(struct ws_map_line *l, const struct ws_rule *rules, size_t n,
                   struct ws_list *out)
{
	for (size_t i = 0; i < n; i++) {
		struct ws_rule *group = find_group(out, &rules[i]);
		struct ws_list inner = { 0 };
		if (!group) {
			if (append_rules(l, &rules[i], 1, out))
				return -1;
			continue;
		}
		if (append_rules(l, group->inner, group->n_inner, &inner) ||
		    append_rules(l, rules[i].inner, rules[i].n_inner, &inner))
			return -1;
		group->inner = inner.items;
		group->n_inner = inner.n;
	}
	return 0;
}

static int own_names(struct ws_map_line *l, const struct ws_family *f, struct full_name *full,
                     struct ws_list *own)
{
	full->n = 1; /* text[0] is the class of the rule */
	if (collect(l, f->rules, f->n_rules, full, own))
		return -1;
	if (own->n)
		qsort(own->items, own->n, sizeof(const char *), by_text);
	return 0;
}

int ws_map_inherit(struct ws_map_line *l, struct ws_family *f, const struct ws_family *base)
{
	struct full_name full;
	struct ws_list own = { 0 }, rules = { 0 };
	if (inherit_lists(l, f, base))
		return -1;
	/* The family's own lets come last: a later let hides earlier ones. */
	if (concat(l, base->lets, base->n_lets, f->lets, f->n_lets, sizeof *f->lets, NULL, &f->lets,
	           &f->n_lets))
		return -1;
	if (!f->tied)
		f->tied = base->tied;
	if (own_names(l, f, &full, &own) ||
	    copy_rules(l, base->rules, base->n_rules, &own, &full, &rules) ||
	    add_own(l, f->rules, f->n_rules, &rules))
		return -1;
	f->rules = rules.items;
	f->n_rules = rules.n;
	return 0;
}

int ws_map_inherit_generic(struct ws_map_line *l, struct ws_family *f,
                           const struct ws_family *generic)
{
	struct full_name full;
	struct ws_list own = { 0 }, rules = { 0 };
	if (inherit_lists(l, f, generic) || own_names(l, f, &full, &own) ||
	    append_rules(l, f->rules, f->n_rules, &rules))
		return -1;
	for (size_t i = 0; i < generic->n_rules; i++)
		if (generic->rules[i].kind == WS_RULE_SKIP &&
		    copy_rules(l, &generic->rules[i], 1, &own, &full, &rules))
			return -1;
	f->rules = rules.items;
	f->n_rules = rules.n;
	return 0;
}
