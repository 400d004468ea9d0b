/* SPDX-License-Identifier: Apache-2.0 */
/* catalog.c - the list of items, and their bytes.
 *
 * Without rules every item is a tensor of the source under its own name, and the source's own index
 * finds it; nothing is allocated for it but its place in the list. */
#include "wsync/catalog.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct ws_catalog {
	const struct ws_source *const *sources;
	size_t n_sources;
	struct ws_item *items;
	size_t n_items;
	uint64_t bytes;
};

static struct ws_item whole(const struct ws_source *s, const struct ws_tensor *t)
{
	struct ws_item item = {
		.name = t->name, .dtype = t->dtype, .n_dims = t->n_dims, .bytes = t->bytes,
		.source = s, .from = t,
	};
	memcpy(item.dims, t->dims, sizeof item.dims);
	return item;
}

int ws_catalog_make(const struct ws_source *const *sources, size_t n_sources,
                    const struct ws_catalog_opts *opts, struct ws_catalog **out,
                    struct ws_err *err)
{
	(void)opts;
	const struct ws_source *s = sources[0];
	struct ws_catalog *c = calloc(1, sizeof *c + n_sources * sizeof *sources);
	if (!c)
		return ws_err_set(err, WS_ESYSTEM, "catalog: out of memory");
	c->sources = memcpy(c + 1, sources, n_sources * sizeof *sources);
	c->n_sources = n_sources;
	c->n_items = ws_source_count(s);
	c->items = malloc((c->n_items + 1) * sizeof *c->items);
	if (!c->items) {
		ws_catalog_free(c);
		return ws_err_set(err, WS_ESYSTEM, "catalog: out of memory");
	}
	for (size_t i = 0; i < c->n_items; i++)
		c->items[i] = whole(s, ws_source_tensor(s, i));
	c->bytes = ws_source_bytes(s);
	*out = c;
	return 0;
}

void ws_catalog_free(struct ws_catalog *c)
{
	if (!c)
		return;
	free(c->items);
	free(c);
}

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
	const struct ws_tensor *t = ws_source_find(c->sources[0], name);
	return t ? &c->items[t - ws_source_tensor(c->sources[0], 0)] : NULL;
}

uint64_t ws_catalog_bytes(const struct ws_catalog *c)
{
	return c->bytes;
}

size_t ws_catalog_source(const struct ws_catalog *c, const struct ws_source *source)
{
	size_t i = 0;
	while (c->sources[i] != source)
		i++;
	assert(i < c->n_sources);
	return i;
}

size_t ws_catalog_views(const struct ws_catalog *c, size_t *copied)
{
	(void)c;
	if (copied)
		*copied = 0;
	return 0;
}
