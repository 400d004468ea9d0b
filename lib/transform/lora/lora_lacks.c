/* SPDX-License-Identifier: Apache-2.0 */
/* lora_lacks.c - what adapter_config.json names, the base has and the adapter's file lacks: the
 * tensors of a lost shard, or of a partial save.
 *
 * PEFT always writes the modules of modules_to_save, so that one without any tensor is an error.
 * Modules without factors are counted only: a checkpoint has next-token layers, a vision tower or
 * experts of their own names, which the trained model may have lacked. */
#include "lora_bind.h"

#include "name_index.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- modules_to_save ---- */

static bool has_saved(const struct ws_adapter *a, const char *entry)
{
	for (size_t i = 0; i < a->n_tensors; i++)
		if (ws_lora_is_saved_as(&a->config, entry, a->tensors[i].name))
			return true;
	return false;
}

/* A task's classes are named whether the model has them or not: "classifier", "score". */
static const struct ws_item *find_saved(const struct ws_binder *b, const char *entry)
{
	const struct ws_lora_config *c = &b->adapter->config;
	for (size_t i = 0; i < ws_catalog_count(b->base); i++)
		if (ws_lora_is_saved_as(c, entry, ws_catalog_item(b->base, i)->name))
			return ws_catalog_item(b->base, i);
	return NULL;
}

static bool ends_in(const char *name, const char *end)
{
	const size_t n = strlen(name), m = strlen(end);
	return n >= m && strcmp(name + n - m, end) == 0;
}

/* A head that is the embedding is not written twice. */
static bool is_tied_head(const struct ws_adapter *a, const char *name)
{
	return a->tied && (ends_in(name, "lm_head") ||
	                   (ends_in(name, "embed_tokens") && has_saved(a, "lm_head")));
}

int ws_lora_check_saved(const struct ws_binder *b, struct ws_err *err)
{
	const struct ws_lora_names *saved = &b->adapter->config.saved;
	for (size_t i = 0; i < saved->n; i++) {
		const char *entry = saved->list[i];
		const struct ws_item *item =
			is_tied_head(b->adapter, entry) || has_saved(b->adapter, entry) ?
				NULL :
				find_saved(b, entry);
		if (!item)
			continue;
		ws_err_set(err, WS_EINPUT,
		           "modules_to_save in adapter_config.json names '%s', and the adapter's "
		           "file has no tensor of it: the trained '%s' is missing",
		           ws_quote(entry).text, ws_quote(item->name).text);
		return ws_err_hint(err, "save the adapter again, with all of its shards");
	}
	return 0;
}

/* ---- factors ---- */

/* The length of the name up to its first number, "model.layers."; *n: that number. */
static size_t part_of(const char *name, int64_t *n)
{
	const char *p = name;
	*n = -1;
	for (; p; p = strchr(p, '.'), p = p ? p + 1 : NULL) {
		const size_t digits = strspn(p, "0123456789");
		if (digits && digits < 9 && p[digits] == '.')
			return *n = strtoll(p, NULL, 10), (size_t)(p - name);
	}
	return strlen(name);
}

struct lacks {
	const struct ws_binder *b;
	const struct ws_bindings *found;
	bool experts;             /* are factors of single experts there? */
	const char *part;         /* the last one that was looked for */
	size_t n_part;
	bool part_has;
};

static bool is_expert(const char *name)
{
	const char *p = strstr(name, ".experts.");
	return p && isdigit((unsigned char)p[sizeof ".experts." - 1]);
}

/* Has any module of the same part of the model factors? */
static bool has_part(struct lacks *l, const char *name, size_t n)
{
	if (l->part && n == l->n_part && memcmp(l->part, name, n) == 0)
		return l->part_has;
	l->part = name;
	l->n_part = n;
	l->part_has = false;
	for (size_t i = 0; i < l->found->n && !l->part_has; i++)
		l->part_has = l->found->items[i].n_deltas &&
		              strncmp(l->found->items[i].target, name, n) == 0;
	return l->part_has;
}

/* Does the config give this tensor of the base factors? */
static bool is_targeted(const struct ws_adapter *a, const struct ws_item *item)
{
	static const char leaf[] = ".weight";
	char module[WS_LORA_MAX_NAME];
	const size_t n = strlen(item->name), end = sizeof leaf - 1;
	if (ws_lora_config_has_param(&a->config, item->name))
		return true;
	if (!a->config.targets.given || item->n_dims < 2 || n <= end || n >= sizeof module ||
	    strcmp(item->name + n - end, leaf) != 0)
		return false;
	memcpy(module, item->name, n - end);
	module[n - end] = 0;
	return !is_tied_head(a, module) && !ws_lora_config_omits(&a->config, module, false);
}

static bool is_lacking(struct lacks *l, const struct ws_item *item)
{
	const struct ws_adapter *a = l->b->adapter;
	const struct ws_binding *bound = ws_bindings_find(l->found, item->name);
	int64_t layer;
	if ((bound && (bound->n_deltas || bound->replaced)) || !is_targeted(a, item))
		return false;
	const size_t n = part_of(item->name, &layer);
	if (layer < 0) /* named on purpose, as a head is */
		return !a->config.targets.pattern;
	return (a->layers <= 0 || layer < a->layers) && has_part(l, item->name, n) &&
	       (l->experts || !is_expert(item->name));
}

void ws_lora_count_lacking(const struct ws_binder *b, struct ws_bindings *out)
{
	struct lacks l = { .b = b, .found = out };
	if (!ws_lora_config_is_understood(&b->adapter->config))
		return;
	for (size_t i = 0; i < out->n; i++)
		l.experts |= out->items[i].n_deltas && is_expert(out->items[i].target);
	for (size_t i = 0; i < ws_catalog_count(b->base); i++) {
		const struct ws_item *item = ws_catalog_item(b->base, i);
		if (!is_lacking(&l, item))
			continue;
		if (!out->n_lacking++)
			out->lacking_first = item->name;
	}
}
