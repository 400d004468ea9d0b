/* SPDX-License-Identifier: Apache-2.0 */
/* namemap.c - the set of families: reads, sorts and searches it.
 *
 * The same reader reads built-in text and files, each time: this takes less than a millisecond, and
 * all errors in rules come from one place. */
#include "namemap_read.h"

#include "file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ws_family **families(const struct ws_namemap *m)
{
	return m->families.items;
}

static int read_builtin(struct ws_namemap *m, struct ws_err *err)
{
	for (const struct ws_builtin_map *b = ws_builtin_maps; b->name; b++) {
		char name[128];
		const int n = snprintf(name, sizeof name, "built-in %s", b->name);
		const char *file = ws_arena_text(&m->arena, name, (size_t)n);
		if (!file)
			return ws_oom(err);
		if (ws_map_read(m, file, b->text, strlen(b->text), 0, err))
			return -1;
	}
	return 0;
}

/* Moves the families from `first` on to the front; they replace families of the same names. */
static int put_in_front(struct ws_namemap *m, size_t first, struct ws_err *err)
{
	struct ws_list ordered = { 0 };
	for (size_t i = 0; i < m->families.n; i++) {
		const size_t k =
			i < m->families.n - first ? first + i : i - (m->families.n - first);
		struct ws_family *f = families(m)[k];
		bool replaced = false;
		for (size_t j = first; k < first && j < m->families.n; j++)
			replaced |= strcmp(families(m)[j]->name, f->name) == 0;
		if (replaced)
			continue;
		struct ws_family **slot = ws_list_add(&m->arena, &ordered, sizeof *slot);
		if (!slot)
			return ws_oom(err);
		*slot = f;
	}
	m->families = ordered;
	return 0;
}

static int inherit_generic(struct ws_namemap *m, struct ws_err *err)
{
	const struct ws_family *generic = ws_namemap_generic(m);
	for (size_t i = 0; generic && i < m->families.n; i++) {
		struct ws_map_line l = { .map = m, .file = families(m)[i]->file, .err = err };
		if (families(m)[i] != generic &&
		    ws_map_inherit_generic(&l, families(m)[i], generic))
			return -1;
	}
	return 0;
}

int ws_namemap_parse(const char *text, size_t n, const char *what, struct ws_namemap **out,
                     struct ws_err *err)
{
	struct ws_namemap *m = calloc(1, sizeof *m);
	if (!m)
		return ws_oom(err);
	if (read_builtin(m, err))
		goto fail;
	if (text) {
		const size_t first = m->families.n;
		const char *file = ws_arena_text(&m->arena, what, strlen(what));
		if (!file) {
			ws_oom(err);
			goto fail;
		}
		if (ws_map_read(m, file, text, n, first, err) || put_in_front(m, first, err))
			goto fail;
	}
	if (inherit_generic(m, err))
		goto fail;
	*out = m;
	return 0;
fail:
	ws_namemap_close(m);
	return -1;
}

int ws_namemap_open(const char *file, struct ws_namemap **out, struct ws_err *err)
{
	struct ws_buf text;
	if (!file)
		return ws_namemap_parse(NULL, 0, NULL, out, err);
	ws_buf_init(&text, WS_MAP_MAX_BYTES);
	int rc = ws_file_read(file, &text, err);
	if (rc == 0)
		rc = ws_namemap_parse(ws_buf_str(&text), text.len, file, out, err);
	ws_buf_free(&text);
	return rc;
}

void ws_namemap_close(struct ws_namemap *m)
{
	if (!m)
		return;
	for (size_t i = 0; i < m->exprs.n; i++)
		ws_expr_free(((struct ws_expr **)m->exprs.items)[i]);
	ws_arena_free(&m->arena);
	free(m);
}

static const struct ws_family *claiming(const struct ws_namemap *m, const char *name, bool arch)
{
	for (size_t i = 0; *name && i < m->families.n; i++) {
		const struct ws_family *f = families(m)[i];
		const char *const *list = arch ? f->archs : f->types;
		for (size_t j = 0; j < (arch ? f->n_archs : f->n_types); j++)
			if (strcmp(list[j], name) == 0)
				return f;
	}
	return NULL;
}

const struct ws_family *ws_namemap_find(const struct ws_namemap *m, const struct ws_config *c)
{
	const struct ws_family *f = claiming(m, ws_config_text_architecture(c), true);
	if (!f)
		f = claiming(m, ws_config_architecture(c), true);
	if (!f)
		f = claiming(m, ws_config_text_model_type(c), false);
	return f ? f : claiming(m, ws_config_model_type(c), false);
}

const struct ws_family *ws_namemap_claimed(const struct ws_namemap *m, const char *architecture,
                                           const char *model_type)
{
	const struct ws_family *f = claiming(m, architecture, true);
	return f ? f : claiming(m, model_type, false);
}

bool ws_namemap_covers(const struct ws_namemap *m, const char *architecture,
                       const char *model_type)
{
	const struct ws_family *f = claiming(m, model_type, false);
	return claiming(m, architecture, true) || (f && (!*architecture || !f->n_archs));
}

const struct ws_family *ws_namemap_named(const struct ws_namemap *m, const char *family)
{
	for (size_t i = 0; i < m->families.n; i++)
		if (strcmp(families(m)[i]->name, family) == 0)
			return families(m)[i];
	return NULL;
}

const struct ws_family *ws_namemap_generic(const struct ws_namemap *m)
{
	return ws_namemap_named(m, "generic");
}

const struct ws_family *ws_namemap_at(const struct ws_namemap *m, size_t i)
{
	return i < m->families.n ? families(m)[i] : NULL;
}

const char *ws_family_name(const struct ws_family *f)
{
	return f->name;
}

static bool any_param(const struct ws_rule *rules, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (rules[i].kind == WS_RULE_GROUP ? any_param(rules[i].inner, rules[i].n_inner) :
		    rules[i].kind != WS_RULE_ALIAS && rules[i].kind != WS_RULE_SKIP)
			return true;
	return false;
}

bool ws_family_has_params(const struct ws_family *f)
{
	return any_param(f->rules, f->n_rules);
}
