/* SPDX-License-Identifier: Apache-2.0 */
/* lora.c - an adapter's directory: opened, its tensors sorted into modules, its factors read. */
#include "lora_priv.h"

#include "file.h"
#include "names.h"
#include "number.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_BYTES = 64 << 20, CHUNK = 32768 /* elements */ };

static int no_memory(struct ws_err *err, const char *dir)
{
	return ws_err_set(err, WS_ESYSTEM, "%s: out of memory", dir);
}

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
			return ws_err_hint(err, "adapter_model.bin is a PyTorch pickle: save it as safetensors");
		return -1;
	}
	const struct ws_catalog_opts as_it_is = { .family = NULL };
	if (ws_source_open(paths, 1, &a->source, err))
		return -1;
	return ws_catalog_make((const struct ws_source *const *)&a->source, 1, &as_it_is, &a->catalog, err);
}

static int open_config(struct ws_adapter *a, struct ws_err *err)
{
	struct ws_buf text;
	char path[4096];
	ws_buf_init(&text, CONFIG_BYTES);
	if ((size_t)snprintf(path, sizeof path, "%s/adapter_config.json", a->dir) >= sizeof path)
		return ws_err_set(err, WS_EINPUT, "%s: the path is too long", a->dir);
	int rc = ws_file_read(path, &text, err);
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
		return no_memory(err, a->dir);
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
		return no_memory(err, dir);
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

void ws_adapter_rename(struct ws_adapter *a, const struct ws_family *family)
{
	a->family = family;
}

/* ---- modules ---- */

static int by_module(const void *x, const void *y)
{
	const struct ws_lora_module *a = x, *b = y;
	const int order = strcmp(a->name, b->name);
	return order ? order : (a->depth > b->depth) - (a->depth < b->depth);
}

static int take_one(struct ws_adapter *a, const struct ws_item *item, struct ws_list *modules,
                    struct ws_list *tensors, struct ws_err *err)
{
	struct ws_lora_key key;
	if (ws_lora_key_parse(item->name, &key, err))
		return -1;
	if (key.kind == WS_LORA_IGNORED)
		return 0;
	const char *name = ws_arena_text(&a->arena, key.name, strlen(key.name));
	const char *other = *key.other ? ws_arena_text(&a->arena, key.other, strlen(key.other)) : NULL;
	if (key.kind == WS_LORA_TENSOR) {
		struct ws_lora_tensor *t = ws_list_add(&a->arena, tensors, sizeof *t);
		if (!t || !name || (*key.other && !other))
			return ws_err_set(err, WS_ESYSTEM, "reading an adapter: out of memory");
		*t = (struct ws_lora_tensor){ name, other, key.headless, item };
		return 0;
	}
	struct ws_lora_module *m = ws_list_add(&a->arena, modules, sizeof *m);
	if (!m || !name)
		return ws_err_set(err, WS_ESYSTEM, "reading an adapter: out of memory");
	*m = (struct ws_lora_module){ .name = name, .headless = key.headless,
		                      .embedding = key.embedding, .depth = key.depth };
	*(key.kind == WS_LORA_A ? &m->a : &m->b) = item;
	return 0;
}

/* Each factor made a module of its own; those of one name and depth become one. */
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
			return ws_err_set(err, WS_EINPUT, "adapter tensors '%s' and '%s' are the same half of one "
			                  "module", ws_quote((*half)->name).text, ws_quote(item->name).text);
		*half = item;
		last->embedding |= m->embedding;
	}
	a->n_modules = n;
	return 0;
}

int ws_adapter_take(struct ws_adapter *a, const struct ws_item *const *items, size_t n,
                    struct ws_err *err)
{
	struct ws_list modules = { 0 }, tensors = { 0 };
	for (size_t i = 0; i < n; i++)
		if (take_one(a, items[i], &modules, &tensors, err))
			return -1;
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

/* ---- factors ---- */

static float read_element(enum ws_dtype dtype, const uint8_t *bytes, size_t i)
{
	double x;
	if (dtype == WS_DTYPE_BF16) {
		const uint32_t bits = (uint32_t)bytes[2 * i] << 16 | (uint32_t)bytes[2 * i + 1] << 24;
		float y;
		memcpy(&y, &bits, sizeof y);
		return y;
	}
	ws_number_read(dtype, bytes + i * (ws_dtype_bits(dtype) / 8), 1, &x);
	return (float)x;
}

static int not_finite(const struct ws_item *item, uint64_t at, float x, struct ws_err *err)
{
	const int64_t cols = item->dims[item->n_dims - 1];
	return ws_err_set(err, WS_EINPUT, "adapter tensor '%s' has %s in row %llu, column %llu",
	                  ws_quote(item->name).text, isnan(x) ? "a NaN" : "an infinity",
	                  (unsigned long long)(at / (uint64_t)cols),
	                  (unsigned long long)(at % (uint64_t)cols));
}

/* A grid of elements: n of them `step` apart, put `to` apart. [0] is the axis of the larger step. */
struct axis {
	int64_t n, step, to;
};

struct factor {
	const struct ws_item *item;
	uint64_t at;
	struct axis axes[2];
	float *out;
	uint8_t *bytes;
};

/* o rows from `first` on, of columns [col, col + m), all in one stretch of the file. */
static int read_stretch(const struct factor *f, int64_t first, int64_t o, int64_t col, int64_t m,
                        struct ws_err *err)
{
	const struct axis *outer = &f->axes[0], *inner = &f->axes[1];
	const uint64_t size = ws_dtype_bits(f->item->dtype) / 8;
	const uint64_t from = f->at + (uint64_t)(first * outer->step + col * inner->step);
	const size_t n = (size_t)((o - 1) * outer->step + (m - 1) * inner->step + 1);
	if (ws_item_read(f->item, from * size, f->bytes, n * size, err))
		return -1;
	for (int64_t i = 0; i < o; i++)
		for (int64_t j = 0; j < m; j++) {
			const size_t k = (size_t)(i * outer->step + j * inner->step);
			const float x = read_element(f->item->dtype, f->bytes, k);
			if (!isfinite(x))
				return not_finite(f->item, from + k, x, err);
			f->out[(first + i) * outer->to + (col + j) * inner->to] = x;
		}
	return 0;
}

static int read_factor(const struct factor *f, struct ws_err *err)
{
	const struct axis *outer = &f->axes[0], *inner = &f->axes[1];
	const int64_t most = (CHUNK - 1) / inner->step + 1; /* of a row that fit into the chunk */
	const int64_t m = inner->n < most ? inner->n : most;
	const int64_t span = (m - 1) * inner->step + 1;
	int64_t o = 1;
	if (m == inner->n && outer->step <= 2 * span)
		o = (CHUNK - span) / outer->step + 1;
	for (int64_t i = 0; i < outer->n; i += o)
		for (int64_t j = 0; j < inner->n; j += m)
			if (read_stretch(f, i, outer->n - i < o ? outer->n - i : o, j,
			                 inner->n - j < m ? inner->n - j : m, err))
				return -1;
	return 0;
}

static int read_grid(const struct ws_item *item, uint64_t at, struct axis rows, struct axis cols,
                     float *out, uint8_t *bytes, struct ws_err *err)
{
	struct factor f = { .item = item, .at = at, .axes = { rows, cols }, .out = out, .bytes = bytes };
	if (rows.step < cols.step) {
		f.axes[0] = cols;
		f.axes[1] = rows;
	}
	return read_factor(&f, err);
}

int ws_delta_read(const struct ws_delta *d, float *a, float *b, struct ws_err *err)
{
	uint8_t *bytes = malloc(CHUNK * sizeof(double));
	if (!bytes)
		return ws_err_set(err, WS_ESYSTEM, "reading an adapter: out of memory");
	int rc = read_grid(d->a, d->a_at, (struct axis){ d->rank, d->a_row, d->cols },
	                   (struct axis){ d->cols, d->a_col, 1 }, a, bytes, err);
	if (rc == 0)
		rc = read_grid(d->b, d->b_at, (struct axis){ d->rows, d->b_row, d->rank },
		               (struct axis){ d->rank, d->b_col, 1 }, b, bytes, err);
	free(bytes);
	return rc;
}
