/* SPDX-License-Identifier: Apache-2.0 */
/* tied_head.c - the head of a tied model whose checkpoint has none: it is the embedding.
 *
 * In training the two are one weight, and an adapter may change one of them, or both in different
 * ways. So the head becomes a tensor of its own beside the embedding, for adapters to bind to. It
 * is sent if an adapter changes one of the two. The check of names (lib/check) compares them then,
 * as those of a checkpoint that has both, and refuses what a server that ties them would lose. */
#include "transform_core.h"

#include "catalog_build.h"
#include "floats.h"
#include "safetensors.h"
#include "tied.h"

#include "wsync/tool/config.h"

#include <string.h>

/* The index of an embedding that has no head beside it; n: there is none. */
static size_t find_body(const struct ws_catalog *c, char *head, size_t size)
{
	const size_t n = ws_catalog_count(c);
	for (size_t i = 0; i < n; i++) {
		const struct ws_item *item = ws_catalog_item(c, i);
		if (item->n_dims == 2 && ws_floats_known(item->dtype) &&
		    ws_head_of(item->name, head, size) && !ws_catalog_find(c, head))
			return i;
	}
	return n;
}

int ws_tied_head_add(struct ws_transform *t, struct ws_err *err)
{
	char head[WS_MAX_NAME + 64];
	const struct ws_transform_opts *o = &t->opts;
	const size_t n = ws_catalog_count(t->base);
	if (!o->n_adapters || !o->config || !ws_config_tied(o->config))
		return 0;
	t->tied.body = find_body(t->base, head, sizeof head);
	if (t->tied.body == n)
		return 0;
	struct ws_catalog *c = t->tied.catalog =
		ws_catalog_new(t->base->sources, t->base->n_sources);
	if (!c)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++)
		if (ws_catalog_add_item(c, ws_catalog_item(t->base, i), err))
			return -1;
	struct ws_item item = *ws_catalog_item(t->base, t->tied.body);
	const char *body = item.name;
	item.name = ws_catalog_text(c, "%s", head);
	item.derivation = ws_catalog_text(c, "%s, to which config.json ties it", body);
	if (!item.name || !item.derivation)
		return ws_oom(err);
	if (ws_catalog_add_item(c, &item, err) || ws_catalog_close(c, err))
		return -1;
	t->tied.head = n;
	t->base = c;
	return 0;
}

/* With ensure_weight_tying the head follows the embedding that an adapter changes. */
bool ws_tied_head_idle(const struct ws_transform *t, size_t i)
{
	if (!t->tied.catalog || i != t->tied.head)
		return false;
	const char *head = ws_catalog_item(t->base, i)->name,
		   *body = ws_catalog_item(t->base, t->tied.body)->name;
	for (size_t k = 0; k < t->opts.n_adapters; k++) {
		const struct ws_bindings *b = &t->bindings[k];
		if (ws_bindings_find(b, head) ||
		    (ws_bindings_find(b, body) && !ws_adapter_ties(t->adapters[k])))
			return false;
	}
	return true;
}
