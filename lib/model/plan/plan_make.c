/* SPDX-License-Identifier: Apache-2.0 */
/* plan_make.c - chooses tensors, draws partners together, and orders each bucket.
 *
 * Partners have the same key: the name without the parts that may differ between them. The first
 * partner in the catalog's order determines the place of all partners. */
#include "wsync/tool/plan.h"

#include "hash.h"
#include "computed_item.h"
#include "name_index.h"
#include "plan_cut.h"
#include "safetensors.h"
#include "wsync/tool/str.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t default_bucket_size = UINT64_C(512) << 20;

struct choice {
	const struct ws_item *item;
	uint64_t key;  /* equal for partners */
	size_t rank;   /* place of the first partner in the catalog */
	size_t order;  /* own place in the catalog */
};

const char *ws_plan_unused(const struct ws_catalog *c, const char *const *patterns, size_t n,
                           size_t *next)
{
	while (*next < n) {
		const char *pattern = patterns[(*next)++];
		size_t i = 0;
		while (i < ws_catalog_count(c) &&
		       !ws_glob_match(pattern, ws_catalog_item(c, i)->name))
			i++;
		if (i == ws_catalog_count(c))
			return pattern;
	}
	return NULL;
}

static int check_include(const struct ws_catalog *c, const struct ws_plan_opts *opts,
                         struct ws_err *err)
{
	size_t next = 0;
	const char *unused = ws_plan_unused(c, opts->include, opts->n_include, &next);
	return !unused ? 0 :
	                 ws_err_set(err, WS_EUSAGE, "include '%s' matches none of the %zu tensors",
	                            unused, ws_catalog_count(c));
}

/* Hashes the name of the tensor to which the scales belong. Both halves of DeepSeek's fused first
 * projection get the same name. Unrelated tensors whose keys collide only share a bucket. */
static uint64_t partner_key(const char *name)
{
	static const char half[] = ".kv_a_proj_with_mqa.", whole[] = ".q_a_proj.";
	static const char *const scaled[][2] = { { ".weight_scale_inv", ".weight" },
		                                 { ".weight_scale", ".weight" },
		                                 { "_proj_scales", "_proj_blocks" } };
	char key[WS_MAX_NAME + 1];
	const size_t len = strlen(name);
	if (len > WS_MAX_NAME)
		return ws_hash64(name, len);
	memcpy(key, name, len + 1);
	for (size_t i = 0; i < sizeof scaled / sizeof scaled[0]; i++) {
		const size_t n = strlen(scaled[i][0]);
		if (len > n && strcmp(key + len - n, scaled[i][0]) == 0) {
			memcpy(key + len - n, scaled[i][1], strlen(scaled[i][1]) + 1);
			break;
		}
	}
	char *p = strstr(key, half);
	if (p) {
		const char *rest = p + sizeof half - 1;
		memmove(p + sizeof whole - 1, rest, strlen(rest) + 1);
		memcpy(p, whole, sizeof whole - 1);
	}
	return ws_hash64(key, strlen(key));
}

/* The hash of "model.layers.7."; of a tensor outside of layers its partner_key. */
static uint64_t layer_key(const char *name)
{
	for (const char *p = name; (p = strchr(p, '.'));) {
		const size_t digits = strspn(++p, "0123456789");
		if (digits && p[digits] == '.')
			return ws_hash64(name, (size_t)(p - name) + digits);
	}
	return partner_key(name);
}

static int choose(const struct ws_catalog *c, const struct ws_plan_opts *opts,
                  struct choice *choices, size_t *n_chosen, struct ws_err *err)
{
	size_t n = 0;
	for (size_t i = 0; i < ws_catalog_count(c); i++) {
		const struct ws_item *t = ws_catalog_item(c, i);
		if (t->bytes == 0 || !ws_glob_choose(opts->include, opts->n_include, opts->exclude,
		                                     opts->n_exclude, t->name))
			continue;
		if (!*ws_dtype_torch(t->dtype)) {
			ws_err_set(err, WS_EINPUT, "tensor '%s': no server can receive %s: torch "
			           "has no such type", ws_quote(t->name).text,
			           ws_dtype_safetensors(t->dtype));
			return ws_err_hint(err, "leave it out with an exclude pattern");
		}
		choices[n] = (struct choice){ t, opts->whole_layers ? layer_key(t->name) :
			                                              partner_key(t->name),
			                      n, n };
		n++;
	}
	*n_chosen = n;
	if (n == 0)
		return ws_err_set(err, WS_EUSAGE, "no tensor is left to send: all %zu are excluded "
		                  "or empty", ws_catalog_count(c));
	return 0;
}

static int by_key(const void *a, const void *b)
{
	const struct choice *x = a, *y = b;
	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return (x->order > y->order) - (x->order < y->order);
}

static int by_rank(const void *a, const void *b)
{
	const struct choice *x = a, *y = b;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return (x->order > y->order) - (x->order < y->order);
}

/* Sorts by falling element size, so that each tensor begins at a multiple of its element size. */
static int by_element(const void *a, const void *b)
{
	const struct choice *x = a, *y = b;
	const unsigned p = ws_dtype_bits(x->item->dtype), q = ws_dtype_bits(y->item->dtype);
	if (p != q)
		return p > q ? -1 : 1;
	return (x->order > y->order) - (x->order < y->order);
}

static void draw_partners_together(struct choice *c, size_t n)
{
	qsort(c, n, sizeof *c, by_key);
	for (size_t i = 1; i < n; i++)
		if (c[i].key == c[i - 1].key)
			c[i].rank = c[i - 1].rank;
	qsort(c, n, sizeof *c, by_rank);
}

static void fill(struct ws_plan_tensor *out, const struct choice *c, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct ws_item *t = c[i].item;
		out[i] = (struct ws_plan_tensor){
			.name = t->name,
			.dtype = t->dtype,
			.n_dims = t->n_dims,
			.bytes = t->bytes,
			.op = t->computed ? WS_OP_MAKE :
			      t->view     ? WS_OP_VIEW :
			                    WS_OP_COPY,
			.group = c[i].rank,
			.item = t,
		};
		memcpy(out[i].dims, t->dims, sizeof out[i].dims);
	}
}

static void add_number(struct ws_hash *h, uint64_t value)
{
	value = htole64(value);
	ws_hash_add(h, &value, sizeof value);
}

/* Hashes the pieces of a view; a source is represented by its index. */
static void add_view(struct ws_hash *h, const struct ws_catalog *c, const struct ws_item *item)
{
	add_number(h, item->view->axis);
	add_number(h, item->view->n_pieces);
	for (size_t i = 0; i < item->view->n_pieces; i++) {
		const struct ws_piece *piece = &item->view->pieces[i];
		add_number(h, ws_catalog_source(c, piece->source));
		add_number(h, strlen(piece->from->name));
		ws_hash_add(h, piece->from->name, strlen(piece->from->name));
		add_number(h, piece->at);
		for (unsigned d = 0; d < item->view->n_dims; d++) {
			add_number(h, (uint64_t)piece->dims[d]);
			add_number(h, (uint64_t)piece->strides[d]);
		}
	}
}

static int add_computed(struct ws_hash *h, const struct ws_computed_item *computed)
{
	struct ws_buf text;
	ws_buf_init(&text, 0);
	computed->ops->describe(computed, &text);
	const int rc = text.failed ? -1 : 0;
	if (rc == 0) {
		add_number(h, text.len);
		ws_hash_add(h, text.data, text.len);
	}
	ws_buf_free(&text);
	return rc;
}

static int add_recipe(struct ws_hash *h, const struct ws_catalog *c, const struct ws_plan_tensor *t)
{
	if (t->op == WS_OP_VIEW)
		add_view(h, c, t->item);
	return t->op == WS_OP_MAKE ? add_computed(h, t->item->computed) : 0;
}

/* Lengths precede their data, so that no two plans hash the same text. Format and borders of
 * buckets are not hashed: the same weights arrive. */
static int digest(struct ws_plan *p, const struct ws_catalog *c)
{
	struct ws_hash *h = ws_hash_new();
	int rc = 0;
	if (!h)
		return -1;
	for (size_t i = 0; rc == 0 && i < p->n_tensors; i++) {
		const struct ws_plan_tensor *t = &p->tensors[i];
		const char *dtype = ws_dtype_torch(t->dtype);
		add_number(h, strlen(t->name));
		ws_hash_add(h, t->name, strlen(t->name));
		ws_hash_add(h, dtype, strlen(dtype) + 1);
		add_number(h, t->op);
		add_number(h, t->n_dims);
		for (unsigned d = 0; d < t->n_dims; d++)
			add_number(h, (uint64_t)t->dims[d]);
		rc = add_recipe(h, c, t);
	}
	p->digest = ws_hash_digest(h);
	ws_hash_free(h);
	return rc;
}

static int build(struct ws_plan *p, const struct ws_catalog *catalog, struct choice *c, size_t n)
{
	draw_partners_together(c, n);
	p->tensors = calloc(n, sizeof *p->tensors);
	if (!p->tensors)
		return -1;
	p->n_tensors = n;
	fill(p->tensors, c, n);
	for (size_t i = 0; i < n; i++)
		p->bytes += p->tensors[i].bytes;
	if (digest(p, catalog) || ws_plan_cut(p, 0, p->bucket_size))
		return -1;
	for (size_t b = 0; p->format == WS_FORMAT_FLATTENED && b < p->n_buckets; b++) {
		const struct ws_plan_bucket *k = &p->buckets[b];
		if (ws_plan_aligned(p->tensors + k->first, k->n))
			continue;
		qsort(c + k->first, k->n, sizeof *c, by_element);
		fill(p->tensors + k->first, c + k->first, k->n);
		p->reordered = true;
	}
	return 0;
}

int ws_plan_make(const struct ws_catalog *catalog, const struct ws_plan_opts *opts,
                 struct ws_plan **out, struct ws_err *err)
{
	const size_t n_all = ws_catalog_count(catalog);
	size_t n = 0;
	if (check_include(catalog, opts, err))
		return -1;
	struct choice *c = calloc(n_all + 1, sizeof *c);
	struct ws_plan *p = calloc(1, sizeof *p);
	int rc = c && p ? 0 : ws_oom(err);
	if (rc == 0) {
		p->format = opts->format;
		p->bucket_size = opts->bucket_size ? opts->bucket_size : default_bucket_size;
		p->large = opts->large;
		p->together = opts->together;
		rc = choose(catalog, opts, c, &n, err);
	}
	if (rc == 0) {
		p->n_skipped = n_all - n;
		rc = build(p, catalog, c, n) ? ws_oom(err) : 0;
	}
	free(c);
	if (rc)
		ws_plan_free(p);
	else
		*out = p;
	return rc;
}

const char *ws_transform_op_name(enum ws_transform_op op)
{
	return op == WS_OP_MAKE ? "make" : op == WS_OP_VIEW ? "view" : "copy";
}

int ws_plan_check_bucket(const struct ws_plan *p, size_t b, struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->buckets[b];
	const struct ws_source *source = NULL;
	uint32_t file = 0;
	for (size_t i = bucket->first; i < bucket->first + bucket->n; i++) {
		const struct ws_item *item = p->tensors[i].item;
		if (item->source == source && item->from->file == file)
			continue;
		source = item->source;
		file = item->from->file;
		if (ws_source_check_file(source, file, err))
			return -1;
	}
	return 0;
}

void ws_plan_free(struct ws_plan *p)
{
	if (!p)
		return;
	free(p->tensors);
	free(p->buckets);
	free(p);
}

/* ---- tensors by name ------------------------------------------------------------------------- */

static int by_tensor_name(const void *a, const void *b)
{
	const struct ws_plan_tensor *const *x = a, *const *y = b;
	return strcmp((*x)->name, (*y)->name);
}

static int match_name(const void *name, const void *b)
{
	const struct ws_plan_tensor *const *y = b;
	return strcmp(name, (*y)->name);
}

const struct ws_plan_tensor **ws_plan_index(const struct ws_plan *p)
{
	const struct ws_plan_tensor **index = calloc(p->n_tensors + 1, sizeof *index);
	for (size_t i = 0; index && i < p->n_tensors; i++)
		index[i] = &p->tensors[i];
	if (index)
		qsort(index, p->n_tensors, sizeof *index, by_tensor_name);
	return index;
}

const struct ws_plan_tensor *ws_plan_find(const struct ws_plan *p,
                                          const struct ws_plan_tensor **index, const char *name)
{
	const struct ws_plan_tensor **t =
		bsearch(name, index, p->n_tensors, sizeof *index, match_name);
	return t ? *t : NULL;
}
