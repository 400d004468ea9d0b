/* SPDX-License-Identifier: Apache-2.0 */
/* name_list.h - true lists of tensors (tests/data/names) at a small depth,
 * to be spoilt and checked.
 *
 * A list becomes a safetensors file with a hole for its data, so that models of any size cost
 * nothing. Tests run in the root of the tree. */
#ifndef TESTS_NAME_LIST_H
#define TESTS_NAME_LIST_H

#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "wsync/tool/namecheck.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct entry {
	char name[256];
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[4];
};

struct list {
	struct entry *e;
	size_t n, cap;
};

static struct entry *list_add(struct list *l, const char *name, enum ws_dtype dtype,
                              unsigned n_dims, int64_t a, int64_t b)
{
	if (l->n == l->cap) {
		l->cap = l->cap ? 2 * l->cap : 1024;
		l->e = realloc(l->e, l->cap * sizeof *l->e);
		assert_non_null(l->e);
	}
	struct entry *e = &l->e[l->n++];
	*e = (struct entry){ .dtype = dtype, .n_dims = n_dims, .dims = { a, b } };
	snprintf(e->name, sizeof e->name, "%s", name);
	return e;
}

static void list_free(struct list *l)
{
	free(l->e);
	*l = (struct list){ 0 };
}

static struct entry *list_find(struct list *l, const char *name)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->e[i].name, name))
			return &l->e[i];
	return NULL;
}

static inline struct entry *list_at(struct list *l, const char *name)
{
	struct entry *e = list_find(l, name);
	if (!e)
		fail_msg("the list has no %s", name);
	return e;
}

/* Every name that holds that text. */
static inline size_t list_drop(struct list *l, const char *text)
{
	size_t kept = 0;
	for (size_t i = 0; i < l->n; i++)
		if (!strstr(l->e[i].name, text))
			l->e[kept++] = l->e[i];
	const size_t dropped = l->n - kept;
	l->n = kept;
	return dropped;
}

/* Replaces the first `from` in every name. */
static inline void list_replace(struct list *l, const char *from, const char *to)
{
	for (size_t i = 0; i < l->n; i++) {
		char old[sizeof l->e[i].name];
		char *at = strstr(l->e[i].name, from);
		if (!at)
			continue;
		memcpy(old, l->e[i].name, sizeof old);
		snprintf(l->e[i].name, sizeof l->e[i].name, "%.*s%s%s", (int)(at - l->e[i].name),
		         old, to, old + (at - l->e[i].name) + strlen(from));
	}
}

/* ---- reading tests/data/names ---- */

static char *read_whole(const char *path)
{
	FILE *f = fopen(path, "r");
	if (!f)
		fail_msg("%s: cannot be read; tests run in the root of the tree", path);
	fseek(f, 0, SEEK_END);
	const long n = ftell(f);
	rewind(f);
	char *text = calloc(1, (size_t)n + 1);
	assert_int_equal(fread(text, 1, (size_t)n, f), n);
	fclose(f);
	return text;
}

/* "{3..61}" in a name, all of them; layers end at depth, and what lies behind the config's
 * layers (a next-token layer) lies behind those. */
static void expand(struct list *l, const char *name, const struct entry *like, int layers,
                   int depth)
{
	const char *open = strchr(name, '{');
	int from = 0, to = 0, used = 0;
	char text[256];
	if (open && sscanf(open, "{%d..%d}%n", &from, &to, &used) < 2)
		fail_msg("%s: not a range", name);
	const bool layer = open && open - name > 7 && !strncmp(open - 7, "layers.", 7);
	if (!open) {
		int at, end = 0;
		snprintf(text, sizeof text, "%s", name);
		if (depth && sscanf(name, "model.layers.%d.%n", &at, &end) == 1 && end &&
		    at >= layers)
			snprintf(text, sizeof text, "model.layers.%d.%s", depth + at - layers,
			         name + end);
		struct entry *e = list_add(l, text, like->dtype, like->n_dims, 0, 0);
		memcpy(e->dims, like->dims, sizeof e->dims);
		return;
	}
	for (int i = from; i <= to; i++) {
		if (layer && depth && i >= depth && i < layers)
			continue;
		const int shown = layer && depth && i >= layers ? depth + i - layers : i;
		snprintf(text, sizeof text, "%.*s%d%s", (int)(open - name), name, shown,
		         open + used);
		struct entry next = *like;
		if (strchr(text, '{')) {
			/* Inner ranges are expanded with the layer in place already. */
			expand(l, text, &next, INT32_MAX, 0);
		} else {
			struct entry *e = list_add(l, text, like->dtype, like->n_dims, 0, 0);
			memcpy(e->dims, like->dims, sizeof e->dims);
		}
	}
}

static int config_number(const char *text, const char *key)
{
	char quoted[64];
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *at = strstr(text, quoted);
	return at ? atoi(at + strlen(quoted)) : 0;
}

/* The list of a model with so many layers; depth 0: all. */
static struct list list_read(const char *root, const char *model, int depth)
{
	char path[PATH_MAX + 256], name[256], dtype[32], shape[64];
	struct list l = { 0 };
	snprintf(path, sizeof path, "%s/tests/data/names/%s.json", root, model);
	char *config = read_whole(path);
	snprintf(path, sizeof path, "%s/tests/data/names/%s.hf", root, model);
	char *text = read_whole(path);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		struct entry e = { .n_dims = 0 };
		if (*line == '#' || !*line)
			continue;
		assert_int_equal(sscanf(line, "%255s %31s %63s", name, dtype, shape), 3);
		assert_true(ws_dtype_from_safetensors(dtype, &e.dtype));
		for (char *p = shape; *p && e.n_dims < 4; p += *p == 'x')
			e.dims[e.n_dims++] = strtoll(p, &p, 10);
		expand(&l, name, &e, config_number(config, "num_hidden_layers"), depth);
	}
	free(text);
	free(config);
	return l;
}

/* The model's config.json with values put in: pairs of key and JSON text, ended by NULL. */
static struct ws_config *config_read(const char *root, const char *model, int depth,
                                     const char *const *edits)
{
	char path[PATH_MAX + 256], number[16];
	struct ws_config *c = NULL;
	struct ws_err err;
	snprintf(path, sizeof path, "%s/tests/data/names/%s.json", root, model);
	char *text = read_whole(path);
	snprintf(number, sizeof number, "%d", depth);
	const bool deep = depth && !(edits && *edits && !strcmp(*edits, "num_hidden_layers"));
	const char *const depths[] = { "num_hidden_layers", number, NULL };
	const char *const *all[] = { deep ? depths : NULL, edits };
	for (size_t k = 0; k < 2; k++)
		for (const char *const *e = all[k]; e && *e; e += 2) {
			char key[96];
			char *more = calloc(1, strlen(text) + strlen(e[1]) + 128);
			snprintf(key, sizeof key, "\"%s\":", e[0]);
			char *at = strstr(text, key);
			if (at)
				memcpy(at, "\"was", 4); /* another key from now on */
			sprintf(more, "{ %s %s, %s", key, e[1], strchr(text, '{') + 1);
			free(text);
			text = more;
		}
	assert_ok(ws_config_parse(text, strlen(text), model, &c, &err), &err);
	free(text);
	return c;
}

/* ---- writing ---- */

static void list_write(const struct list *l, const char *path)
{
	struct tensor_file t = tensor_file_begin(path);
	for (size_t i = 0; i < l->n; i++)
		tensor_file_add(&t, l->e[i].name, l->e[i].dtype, l->e[i].n_dims, l->e[i].dims);
	tensor_file_end(&t);
}

/* ---- a check from end to end ---- */

struct checked {
	struct ws_config *config;
	struct ws_namemap *map;
	const struct ws_family *family;
	struct ws_layout *layout;
	struct ws_source *source;
	struct ws_catalog *items;
	struct ws_plan *plan;
	struct ws_findings f;
};

static void checked_free(struct checked *k)
{
	ws_findings_free(&k->f);
	ws_plan_free(k->plan);
	ws_catalog_free(k->items);
	ws_source_close(k->source);
	ws_layout_free(k->layout);
	ws_namemap_close(k->map);
	ws_config_free(k->config);
	*k = (struct checked){ 0 };
}

static void checked_open(struct checked *k, const struct list *l, struct ws_config *config,
                         const struct ws_layout_opts *opts)
{
	static const char *const paths[] = { "list.safetensors" };
	const struct ws_catalog_opts plain = { 0 };
	struct ws_err err = WS_ERR_INIT;
	*k = (struct checked){ .config = config };
	list_write(l, paths[0]);
	if (ws_namemap_open(NULL, &k->map, &err) || ws_source_open(paths, 1, &k->source, &err))
		fail_msg("%s", err.msg);
	const struct ws_source *const sources[] = { k->source };
	k->family = ws_namemap_find(k->map, config);
	if (!k->family)
		fail_msg("no family");
	if (opts && ws_layout_make(k->family, config, opts, &k->layout, &err))
		fail_msg("%s", err.msg);
	assert_ok(ws_catalog_make(sources, 1, &plain, &k->items, &err), &err);
}

static void checked_run(struct checked *k, struct ws_namecheck_opts *o)
{
	struct ws_err err = WS_ERR_INIT;
	o->items = k->items;
	o->layout = k->layout;
	o->config = k->config;
	o->family = k->family;
	assert_ok(ws_namecheck(o, &k->f, &err), &err);
}

static inline void print_findings(const struct ws_findings *f)
{
	for (size_t g = 0; g < f->n_groups; g++) {
		const struct ws_finding_group *p = &f->groups[g];
		print_message("%s %s %zu: %s%s%s\n", ws_severity_name(p->severity),
		              ws_verdict_name(p->verdict), p->n, p->reason, *p->remedy
		              ? "\n  remedy: " : "", p->remedy);
		for (size_t i = p->first; i < p->first + p->n && i < p->first + 2; i++)
			print_message("    %s [%s]%s%s: %s\n", f->items[i].name, f->items[i].param,
			              *f->items[i].near ? " near " : "", f->items[i].near,
			              f->items[i].reason);
	}
}

#endif
