/* SPDX-License-Identifier: Apache-2.0 */
/* lora.c - opens the directory of an adapter and sorts its tensors into modules. */
#include "lora_priv.h"

#include "file.h"
#include "foreign.h"
#include "name_index.h"

#include "wsync/tool/config.h"
#include "wsync/tool/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_BYTES = 64 << 20 };

/* ---- opening ---- */

static bool is_there(const char *dir, const char *name, char *path, size_t n)
{
	return (size_t)snprintf(path, n, "%s/%s", dir, name) < n && access(path, F_OK) == 0;
}

static int open_tensors(struct ws_adapter *a, struct ws_err *err)
{
	char path[4096];
	const char *paths[] = { path };
	if (!is_there(a->dir, "adapter_model.safetensors", path, sizeof path) &&
	    !is_there(a->dir, "adapter_model.safetensors.index.json", path, sizeof path)) {
		ws_err_set(err, WS_EINPUT, "%s: no adapter_model.safetensors there", a->dir);
		if (is_there(a->dir, "adapter_model.bin", path, sizeof path))
			return ws_err_hint(
				err,
				"adapter_model.bin is a PyTorch pickle: save it as safetensors");
		return -1;
	}
	const struct ws_catalog_opts as_it_is = { .family = NULL };
	if (ws_source_open(paths, 1, &a->source, err))
		return -1;
	return ws_catalog_make((const struct ws_source *const *)&a->source, 1, &as_it_is,
	                       &a->catalog, err);
}

/* There is no adapter_config.json: the path is the file beside it, or a directory above. */
static void explain_missing(const struct ws_adapter *a, struct ws_err *err)
{
	struct stat st;
	const char *slash = strrchr(a->dir, '/');
	if (stat(a->dir, &st))
		return;
	if (!S_ISDIR(st.st_mode)) {
		char *dir = slash ? strndup(a->dir, (size_t)(slash - a->dir) + 1) : strdup(".");
		ws_err_set(err, WS_EINPUT, "%s: not the directory of an adapter", a->dir);
		if (dir)
			ws_err_hint(err, "name the directory: {adapters} %s",
			            ws_shell_word(dir).text);
		free(dir);
		return;
	}
	char *dir = ws_foreign_adapter(a->dir);
	ws_err_set(err, WS_EINPUT, "%s: no adapter_config.json there", a->dir);
	if (dir)
		ws_err_hint(err, "name the directory below: {adapters} %s",
		            ws_shell_word(dir).text);
	free(dir);
}

static int open_config(struct ws_adapter *a, struct ws_err *err)
{
	struct ws_buf text;
	char path[4096];
	ws_buf_init(&text, CONFIG_BYTES);
	if ((size_t)snprintf(path, sizeof path, "%s/adapter_config.json", a->dir) >= sizeof path)
		return ws_err_set(err, WS_EINPUT, "%s: the path is too long", a->dir);
	int rc = ws_file_read(path, &text, err);
	if (rc && err && (err->native == ENOENT || err->native == ENOTDIR))
		explain_missing(a, err);
	if (rc == 0)
		rc = ws_lora_config_parse(ws_buf_str(&text), text.len, path, &a->config, err);
	ws_buf_free(&text);
	return rc;
}

static int take_all(struct ws_adapter *a, struct ws_err *err)
{
	const size_t n = ws_catalog_count(a->catalog);
	const struct ws_item **items = calloc(n + 1, sizeof *items);
	if (!items)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++)
		items[i] = ws_catalog_item(a->catalog, i);
	const int rc = ws_adapter_take(a, items, n, err);
	free(items);
	return rc ? ws_err_wrap(err, "%s", a->dir) : 0;
}

int ws_adapter_open(const char *dir, struct ws_adapter **out, struct ws_err *err)
{
	struct ws_adapter *a = calloc(1, sizeof *a);
	if (!a || !(a->dir = strdup(dir))) {
		free(a);
		return ws_oom(err);
	}
	if (open_config(a, err) || open_tensors(a, err) || take_all(a, err)) {
		ws_adapter_close(a);
		return -1;
	}
	*out = a;
	return 0;
}

void ws_adapter_close(struct ws_adapter *a)
{
	if (!a)
		return;
	ws_catalog_free(a->catalog);
	ws_source_close(a->source);
	ws_lora_config_free(&a->config);
	ws_arena_free(&a->arena);
	free(a->dir);
	free(a);
}

const struct ws_source *ws_adapter_source(const struct ws_adapter *a)
{
	return a->source;
}

const char *ws_adapter_dir(const struct ws_adapter *a)
{
	return a->dir;
}

void ws_adapter_suit(struct ws_adapter *a, const struct ws_family *family,
                     const struct ws_config *config)
{
	const char *inner = config ? ws_config_text_model_type(config) : "";
	a->family = family;
	a->type = config ? *inner ? inner : ws_config_model_type(config) : NULL;
	a->tied = config && ws_config_tied(config);
	if (!config || !ws_config_int(config, "num_hidden_layers", &a->layers))
		a->layers = 0;
}

bool ws_adapter_ties(const struct ws_adapter *a)
{
	return a->config.tying;
}

/* ---- modules ---- */

static int by_module(const void *x, const void *y)
{
	const struct ws_lora_module *a = x, *b = y;
	const int order = strcmp(a->name, b->name);
	return order ? order : (a->depth > b->depth) - (a->depth < b->depth);
}

/* What the first key of a file has, and all others must have. */
struct first {
	const struct ws_item *any, *factor;
	bool prefixed;
	char adapter[sizeof((struct ws_lora_key *)0)->adapter];
};

/* A file with keys of two adapters, or of two forms, is no adapter that PEFT wrote: half of it
 * would be left out there. */
static int check_form(struct first *f, const struct ws_item *item, const struct ws_lora_key *key,
                      struct ws_err *err)
{
	const bool factor = key->kind == WS_LORA_A || key->kind == WS_LORA_B;
	if (!f->any) {
		f->any = item;
		f->prefixed = key->prefixed;
	}
	if (factor && !f->factor) {
		f->factor = item;
		memcpy(f->adapter, key->adapter, sizeof f->adapter);
	}
	const bool other = factor && strcmp(f->adapter, key->adapter) != 0;
	if (f->prefixed == key->prefixed && !other)
		return 0;
	return ws_err_set(err, WS_EINPUT, "adapter tensors '%s' and '%s' are of two adapters",
	                  ws_quote((other ? f->factor : f->any)->name).text,
	                  ws_quote(item->name).text);
}

static int take_one(struct ws_adapter *a, const struct ws_item *item, struct first *first,
                    struct ws_list *modules, struct ws_list *tensors, struct ws_err *err)
{
	struct ws_lora_key key;
	if (ws_lora_key_parse(item->name, &key, err))
		return -1;
	if (key.kind == WS_LORA_IGNORED)
		return 0;
	if (check_form(first, item, &key, err))
		return -1;
	const char *name = ws_arena_text(&a->arena, key.name, strlen(key.name));
	const char *other =
		*key.other ? ws_arena_text(&a->arena, key.other, strlen(key.other)) : NULL;
	if (key.kind == WS_LORA_TENSOR) {
		struct ws_lora_tensor *t = ws_list_add(&a->arena, tensors, sizeof *t);
		const char *adapter =
			other ? ws_arena_text(&a->arena, key.adapter, strlen(key.adapter)) : NULL;
		if (!t || !name || (*key.other && (!other || !adapter)))
			return ws_oom(err);
		*t = (struct ws_lora_tensor){ name, other, adapter, key.headless, item };
		return 0;
	}
	struct ws_lora_module *m = ws_list_add(&a->arena, modules, sizeof *m);
	if (!m || !name)
		return ws_oom(err);
	*m = (struct ws_lora_module){ .name = name, .headless = key.headless,
		                      .embedding = key.embedding, .depth = key.depth };
	*(key.kind == WS_LORA_A ? &m->a : &m->b) = item;
	return 0;
}

/* take_one adds a module for each factor. This joins modules of the same name and depth. */
static int join_halves(struct ws_adapter *a, struct ws_err *err)
{
	size_t n = 0;
	for (size_t i = 0; i < a->n_modules; i++) {
		struct ws_lora_module *last = n ? &a->modules[n - 1] : NULL;
		const struct ws_lora_module *m = &a->modules[i];
		if (!last || by_module(last, m) != 0) {
			a->modules[n++] = *m;
			continue;
		}
		const struct ws_item **half = m->a ? &last->a : &last->b;
		const struct ws_item *item = m->a ? m->a : m->b;
		if (*half)
			return ws_err_set(err, WS_EINPUT,
			                  "adapter tensors '%s' and '%s' are the same half of one "
			                  "module",
			                  ws_quote((*half)->name).text, ws_quote(item->name).text);
		if (last->embedding != m->embedding)
			return ws_err_set(err, WS_EINPUT,
			                  "adapter tensors '%s' and '%s': one of them is of an "
			                  "embedding, and the other is not",
			                  ws_quote((last->a ? last->a : last->b)->name).text,
			                  ws_quote(item->name).text);
		*half = item;
	}
	a->n_modules = n;
	return 0;
}

int ws_adapter_take(struct ws_adapter *a, const struct ws_item *const *items, size_t n,
                    struct ws_err *err)
{
	struct ws_list modules = { 0 }, tensors = { 0 };
	struct first first = { .any = NULL };
	for (size_t i = 0; i < n; i++)
		if (take_one(a, items[i], &first, &modules, &tensors, err))
			return -1;
	a->name = ws_arena_text(&a->arena, first.adapter, strlen(first.adapter));
	if (!a->name)
		return ws_oom(err);
	a->modules = modules.items;
	a->n_modules = modules.n;
	a->tensors = tensors.items;
	a->n_tensors = tensors.n;
	if (a->n_modules)
		qsort(a->modules, a->n_modules, sizeof *a->modules, by_module);
	return join_halves(a, err);
}

const struct ws_lora_module *ws_adapter_module(const struct ws_adapter *a, const char *name)
{
	const struct ws_lora_module key = { .name = name };
	return a->n_modules ? bsearch(&key, a->modules, a->n_modules, sizeof key, by_module) : NULL;
}
