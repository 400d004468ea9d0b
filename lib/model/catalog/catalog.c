/* SPDX-License-Identifier: Apache-2.0 */
/* catalog.c - the list of items, and look-ups in it.
 *
 * Without rules, every item is a tensor of the source under its own name. Look-ups then use the
 * source's index, and the catalog builds no index of its own. */
#include "wsync/tool/catalog.h"

#include "catalog_build.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_catalog_text(struct ws_catalog *c, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ws_arena_text(&c->arena, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

/* ---- adding ---------------------------------------------------------------------------------- */

int ws_catalog_add_item(struct ws_catalog *c, const struct ws_item *item, struct ws_err *err)
{
	if (c->n_items == c->cap) {
		const size_t cap = c->cap ? c->cap * 2 : 256;
		struct ws_item *items = reallocarray(c->items, cap, sizeof *items);
		if (!items)
			return ws_oom(err);
		c->items = items;
		c->cap = cap;
	}
	c->items[c->n_items++] = *item;
	return 0;
}

static struct ws_item whole(const struct ws_source *s, const struct ws_tensor *t)
{
	struct ws_item item = {
		.name = t->name, .dtype = t->dtype, .n_dims = t->n_dims, .bytes = t->bytes,
		.source = s, .from = t,
	};
	memcpy(item.dims, t->dims, sizeof item.dims);
	return item;
}

int ws_catalog_add(struct ws_catalog *c, const struct ws_source *s, const struct ws_tensor *t,
                   const char *name, const char *made, struct ws_err *err)
{
	struct ws_item item = whole(s, t);
	item.name = name;
	item.derivation = made;
	return ws_catalog_add_item(c, &item, err);
}

static bool is_whole(const struct ws_item *item, const struct ws_pieces *pieces)
{
	const struct ws_piece *p = &pieces->v[0];
	int64_t stride = 1;
	if (pieces->n != 1 || p->at != 0 || item->n_dims != p->from->n_dims)
		return false;
	for (unsigned d = item->n_dims; d-- > 0; stride *= p->dims[d])
		if (p->dims[d] != p->from->dims[d] || (p->dims[d] != 1 && p->strides[d] != stride))
			return false;
	return true;
}

int ws_catalog_view(struct ws_catalog *c, struct ws_item *item, unsigned axis,
                    const struct ws_pieces *pieces, struct ws_err *err)
{
	item->source = pieces->v[0].source;
	item->from = pieces->v[0].from;
	if (!ws_dtype_bytes(item->dtype, item->n_dims, item->dims, &item->bytes))
		return ws_err_set(err, WS_EINPUT, "tensor '%s' would be too large",
		                  ws_quote(item->name).text);
	if (is_whole(item, pieces))
		return 0;
	struct ws_view *view = ws_arena_alloc(&c->arena, sizeof *view);
	struct ws_piece *copy = ws_arena_alloc(&c->arena, pieces->n * sizeof *copy);
	if (!c->reader)
		c->reader = ws_reader_new();
	if (!view || !copy || !c->reader)
		return ws_oom(err);
	memcpy(copy, pieces->v, pieces->n * sizeof *copy);
	*view = (struct ws_view){ .axis = axis, .pieces = copy, .n_pieces = pieces->n,
		                  .n_dims = pieces->n_dims ? pieces->n_dims : item->n_dims,
		                  .reader = c->reader };
	memcpy(view->dims, pieces->n_dims ? pieces->dims : item->dims, sizeof view->dims);
	item->view = view;
	return 0;
}

int ws_catalog_add_view(struct ws_catalog *c, struct ws_item item, unsigned axis,
                        const struct ws_pieces *pieces, struct ws_err *err)
{
	if (ws_catalog_view(c, &item, axis, pieces, err))
		return -1;
	return ws_catalog_add_item(c, &item, err);
}

/* ---- making ---------------------------------------------------------------------------------- */

static int add_whole_source(struct ws_catalog *c, struct ws_err *err)
{
	const struct ws_source *s = c->sources[0];
	c->plain = true;
	c->cap = ws_source_count(s);
	c->items = malloc((c->cap + 1) * sizeof *c->items);
	if (!c->items)
		return ws_oom(err);
	for (; c->n_items < c->cap; c->n_items++)
		c->items[c->n_items] = whole(s, ws_source_tensor(s, c->n_items));
	return 0;
}

static const char *made_of(const struct ws_item *item)
{
	return item->derivation ? item->derivation : "a tensor of that name";
}

static int build_names(struct ws_catalog *c, struct ws_err *err)
{
	size_t twice[2];
	const int rc = ws_names_init(&c->names, c->items, sizeof *c->items, c->n_items, twice, err);
	if (rc <= 0)
		return rc;
	const struct ws_item *a = &c->items[twice[0]], *b = &c->items[twice[1]];
	ws_err_set(err, WS_EINPUT, "tensor '%s' is there twice: %s, and %s", ws_quote(a->name).text,
	           made_of(a), made_of(b));
	return ws_err_hint(
		err, "a checkpoint has a tensor either fused or in parts, and under one name");
}

struct ws_catalog *ws_catalog_new(const struct ws_source *const *sources, size_t n_sources)
{
	struct ws_catalog *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	for (size_t i = 0; i < n_sources; i++)
		if (ws_catalog_use(c, sources[i], NULL)) {
			ws_catalog_free(c);
			return NULL;
		}
	return c;
}

int ws_catalog_use(struct ws_catalog *c, const struct ws_source *source, struct ws_err *err)
{
	const struct ws_source **sources =
		reallocarray(c->sources, c->n_sources + 1, sizeof *sources);
	if (!sources)
		return ws_oom(err);
	c->sources = sources;
	c->sources[c->n_sources++] = source;
	return 0;
}

int ws_catalog_close(struct ws_catalog *c, struct ws_err *err)
{
	return build_names(c, err);
}

int ws_catalog_make(const struct ws_source *const *sources, size_t n_sources,
                    const struct ws_catalog_opts *opts, struct ws_catalog **out,
                    struct ws_err *err)
{
	struct ws_catalog *c = ws_catalog_new(sources, n_sources);
	if (!c)
		return ws_oom(err);
	int rc;
	if (opts->sharded)
		rc = ws_catalog_merge_shards(c, opts, err);
	else if (opts->family || opts->layout || opts->names)
		rc = ws_catalog_split_fused(c, opts, err);
	else
		rc = add_whole_source(c, err);
	if (rc == 0 && !c->plain)
		rc = ws_catalog_close(c, err);
	if (rc)
		ws_catalog_free(c);
	else
		*out = c;
	return rc;
}

void ws_catalog_free(struct ws_catalog *c)
{
	if (!c)
		return;
	ws_names_fini(&c->names);
	ws_reader_free(c->reader);
	ws_arena_free(&c->arena);
	free(c->renamed);
	free(c->replicas);
	free(c->items);
	free(c->sources);
	free(c);
}

/* ---- look-ups -------------------------------------------------------------------------------- */

size_t ws_catalog_count(const struct ws_catalog *c)
{
	return c->n_items;
}

const struct ws_item *ws_catalog_item(const struct ws_catalog *c, size_t i)
{
	return i < c->n_items ? &c->items[i] : NULL;
}

const struct ws_item *ws_catalog_find(const struct ws_catalog *c, const char *name)
{
	if (!c->plain)
		return ws_names_find(&c->names, name);
	const struct ws_tensor *t = ws_source_find(c->sources[0], name);
	return t ? &c->items[t - ws_source_tensor(c->sources[0], 0)] : NULL;
}

const struct ws_item *ws_catalog_find_renamed(const struct ws_catalog *c, const char *name)
{
	const struct ws_tensor *t = c->renamed ? ws_source_find(c->sources[0], name) : NULL;
	const size_t item = t ? c->renamed[t - ws_source_tensor(c->sources[0], 0)] : 0;
	return item ? &c->items[item - 1] : NULL;
}

size_t ws_catalog_source(const struct ws_catalog *c, const struct ws_source *source)
{
	size_t i = 0;
	while (i + 1 < c->n_sources && c->sources[i] != source)
		i++;
	assert(c->sources[i] == source);
	return i;
}

const struct ws_source *ws_catalog_source_at(const struct ws_catalog *c, size_t i)
{
	return i < c->n_sources ? c->sources[i] : NULL;
}

int ws_catalog_check(const struct ws_catalog *c, struct ws_err *err)
{
	for (size_t i = 0; i < c->n_sources; i++)
		if (ws_source_check(c->sources[i], err))
			return -1;
	return 0;
}
