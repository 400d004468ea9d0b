/* SPDX-License-Identifier: Apache-2.0 */
/* serve_corrupt.c - what a corruption does to the tensors of one request.
 *
 * A victim is looked at as a run of bytes in the type of its memory: of the whole tensor, or, at one
 * rank only, of that rank's share without the gaps. What was there is read before the load, what came
 * after it; every corruption is made on these runs, and those that changed are written back. */
#include "serve_corrupt.h"

#include "serve_convert.h"
#include "serve_model.h"

#include "wsync/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct victim {
	char *name;
	size_t part;            /* of the layout; without a model SIZE_MAX */
	enum ws_dtype dtype;
	uint64_t n;
	uint8_t *old, *came, *now; /* of n bytes each; NULL: not read yet */
	bool retyped;           /* to corrupt.as, not only in its numbers */
};

struct ws_serve_victims {
	const struct ws_serve_fault *due; /* NULL: they are only remembered */
	struct victim *items;
	size_t n;
};

void ws_serve_corrupt_free(struct ws_serve_victims *v)
{
	for (size_t i = 0; v && i < v->n; i++) {
		free(v->items[i].name);
		free(v->items[i].old);
		free(v->items[i].came);
		free(v->items[i].now);
	}
	if (v)
		free(v->items);
	free(v);
}

/* ---- runs of bytes ---- */

static uint8_t *read_weight(const struct ws_serve *s, struct victim *v)
{
	const struct ws_serve_weight *w = ws_serve_weights_find(&s->weights, v->name);
	v->n = w && w->data ? w->bytes : 0;
	v->dtype = w ? w->dtype : WS_DTYPE_U8;
	uint8_t *run = calloc(1, (size_t)v->n + 1);
	if (run && v->n)
		memcpy(run, w->data, (size_t)v->n);
	return run;
}

/* Of the whole tensor, and of it what that rank has where there is a rank. */
static uint8_t *read_whole(const struct ws_serve_model *m, const struct victim *v, int rank)
{
	const struct ws_part *part = ws_layout_part(m->layout, v->part);
	const uint64_t bytes = ws_serve_model_part_bytes(m, part);
	uint8_t *whole = calloc(1, (size_t)bytes + 1);
	for (unsigned r = 0; whole && r < m->tp; r++) {
		struct ws_serve_boxes boxes;
		if (rank >= 0 && r != (unsigned)rank)
			continue;
		ws_serve_model_boxes(m, part, r, &boxes);
		ws_serve_boxes_get(&boxes, 0, whole, (size_t)bytes, ws_serve_model_at(m, part->param, r));
	}
	return whole;
}

static uint8_t *read_run(const struct ws_serve *s, struct victim *v, int rank)
{
	const struct ws_serve_model *m = s->model;
	if (!m)
		return read_weight(s, v);
	const struct ws_part *part = ws_layout_part(m->layout, v->part);
	uint8_t *whole = read_whole(m, v, rank);
	struct ws_serve_boxes boxes;
	v->dtype = m->dtypes[part->param];
	v->n = ws_serve_model_part_bytes(m, part);
	if (rank < 0 || !whole)
		return whole;
	ws_serve_model_boxes(m, part, (unsigned)rank, &boxes);
	v->n = boxes.bytes;
	for (uint64_t k = 0; k < v->n; k++) /* never to the left: a box keeps its order */
		whole[k] = whole[ws_serve_boxes_whole(&boxes, k)];
	return whole;
}

static void write_run(struct ws_serve *s, const struct victim *v, int rank)
{
	struct ws_serve_model *m = s->model;
	if (!m) {
		struct ws_serve_weight *w = ws_serve_weights_find(&s->weights, v->name);
		memcpy(w->data, v->now, (size_t)v->n);
		return;
	}
	const struct ws_part *part = ws_layout_part(m->layout, v->part);
	for (unsigned r = 0; r < m->tp; r++) {
		struct ws_serve_boxes boxes;
		uint8_t *local = ws_serve_model_at(m, part->param, r);
		if (rank >= 0 && r != (unsigned)rank)
			continue;
		ws_serve_model_boxes(m, part, r, &boxes);
		for (uint64_t k = 0; rank >= 0 && k < v->n; k++)
			ws_serve_boxes_put(&boxes, ws_serve_boxes_whole(&boxes, k), v->now + k, 1, local);
		if (rank < 0)
			ws_serve_boxes_put(&boxes, 0, v->now, (size_t)v->n, local);
	}
}

/* ---- who they are ---- */

static int add(struct ws_serve_victims *v, const char *name, size_t part)
{
	struct victim *items = realloc(v->items, (v->n + 1) * sizeof *items);
	if (!items)
		return -1;
	v->items = items;
	items[v->n] = (struct victim){ .name = strdup(name), .part = part };
	return items[v->n].name ? (v->n++, 0) : -1;
}

/* Under a name of the checkpoint or of the server; others are ignored by the loader, too. */
static int add_parts(struct ws_serve_victims *v, const struct ws_layout *l, const char *name)
{
	const struct ws_part *part = ws_layout_find_part(l, name);
	const struct ws_param *param = part ? NULL : ws_layout_find_param(l, name);
	if (part)
		return add(v, part->name, (size_t)(part - ws_layout_part(l, 0)));
	for (size_t i = 0; param && i < param->n_parts; i++)
		if (add(v, ws_layout_part(l, param->first + i)->name, param->first + i))
			return -1;
	return 0;
}

static bool looks_back(const struct ws_serve_fault *f)
{
	return f->kind == WS_FAULT_CORRUPT && (f->corrupt.how == WS_CORRUPT_REPEAT_BUCKET ||
	                                       f->corrupt.how == WS_CORRUPT_SWAP_BUCKETS);
}

static bool wanted(const struct ws_serve *s, const struct ws_serve_fault *due)
{
	for (size_t i = 0; !due && i < s->n_faults; i++)
		if (looks_back(&s->faults[i]))
			return true;
	return due != NULL;
}

int ws_serve_corrupt_begin(struct ws_serve *s, const struct ws_serve_fault *fault,
                           const char *const *names, size_t n, struct ws_serve_victims **out,
                           struct ws_err *err)
{
	*out = NULL;
	if (!wanted(s, fault))
		return 0;
	struct ws_serve_victims *v = calloc(1, sizeof *v);
	bool ok = v != NULL;
	for (size_t i = 0; ok && i < n; i++)
		ok = !(s->model ? add_parts(v, s->model->layout, names[i]) : add(v, names[i], SIZE_MAX));
	for (size_t i = 0; ok && fault && i < v->n; i++)
		ok = (v->items[i].old = read_run(s, &v->items[i], fault->corrupt.rank));
	if (!ok) {
		ws_serve_corrupt_free(v);
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	}
	v->due = fault;
	*out = v;
	return 0;
}

/* ---- one tensor ---- */

static uint64_t size_of(const struct victim *v)
{
	return ws_dtype_bits(v->dtype) / 8;
}

static void flip(struct victim *v, const struct ws_serve_corrupt *c)
{
	const uint64_t at = c->spot == WS_AT_MIDDLE ? v->n / 2 : c->spot == WS_AT_LAST ? v->n - 1 : c->at;
	v->now[at % v->n] ^= (uint8_t)(1u << c->bit);
}

/* Zeros behind a vocabulary, which the loader wrote. */
static bool flip_padding(struct ws_serve *s, const struct victim *v, const struct ws_serve_corrupt *c)
{
	struct ws_serve_model *m = s->model;
	const struct ws_part *part = ws_layout_part(m->layout, v->part);
	for (unsigned r = 0; r < m->tp && part->split == WS_SPLIT_VOCAB; r++) {
		struct ws_serve_boxes boxes;
		ws_serve_model_boxes(m, part, r, &boxes);
		if (ws_serve_model_bytes(m, part->param, r) == boxes.bytes ||
		    (c->rank >= 0 && r != (unsigned)c->rank))
			continue;
		ws_serve_model_at(m, part->param, r)[boxes.bytes] ^= (uint8_t)(1u << c->bit);
		return true;
	}
	return false;
}

static void rotate(struct victim *v)
{
	const uint64_t size = size_of(v);
	if (v->n <= size)
		return;
	memmove(v->now + size, v->came, (size_t)(v->n - size));
	memcpy(v->now, v->came + v->n - size, (size_t)size);
}

static void truncate_run(struct victim *v, const struct ws_serve_corrupt *c)
{
	uint64_t n = c->bytes ? c->bytes : size_of(v);
	n = n < v->n ? n : v->n;
	memcpy(v->now + v->n - n, v->old + v->n - n, (size_t)n);
}

/* The numbers that the bytes would be; as many of them as there is place for. */
static void retype(const struct ws_serve *s, struct victim *v, const struct ws_serve_corrupt *c)
{
	const uint64_t in = ws_dtype_bits(c->as) / 8, out = size_of(v);
	const uint64_t n = v->n / (in > out ? in : out);
	if (!s->model || (in == out && c->rank < 0))
		v->retyped = in && v->dtype != c->as && v->n % in == 0;
	if (s->model && in && ws_serve_converts(v->dtype, c->as))
		ws_serve_convert(v->dtype, v->now, c->as, v->came, (size_t)n);
}

/* A tensor keeps its bytes, and has another type: its last dimension is what changes. */
static void relabel(struct ws_serve *s, const struct victim *v, const struct ws_serve_corrupt *c)
{
	if (s->model) {
		s->model->parts[v->part].came_as = c->as;
		return;
	}
	struct ws_serve_weight *w = ws_serve_weights_find(&s->weights, v->name);
	const int64_t size = (int64_t)size_of(v), as = (int64_t)ws_dtype_bits(c->as) / 8;
	if (w->n_dims)
		w->dims[w->n_dims - 1] = w->dims[w->n_dims - 1] * size / as;
	w->dtype = c->as;
}

/* ---- two of them ---- */

static bool same_shape(const struct ws_serve *s, const struct victim *a, const struct victim *b)
{
	if (a == b || a->n != b->n || a->dtype != b->dtype || !memcmp(a->came, b->came, (size_t)a->n))
		return false;
	if (!s->model) {
		const struct ws_serve_weight *x = ws_serve_weights_find(&s->weights, a->name);
		const struct ws_serve_weight *y = ws_serve_weights_find(&s->weights, b->name);
		return x->n_dims == y->n_dims && !memcmp(x->dims, y->dims, x->n_dims * sizeof x->dims[0]);
	}
	const struct ws_part *x = ws_layout_part(s->model->layout, a->part);
	const struct ws_part *y = ws_layout_part(s->model->layout, b->part);
	return x->n_dims == y->n_dims && !memcmp(x->dims, y->dims, x->n_dims * sizeof x->dims[0]);
}

static bool exchange(const struct ws_serve *s, struct ws_serve_victims *all, struct victim *v, bool both)
{
	for (size_t i = 0; i < all->n; i++) {
		struct victim *other = &all->items[i];
		if (!same_shape(s, v, other))
			continue;
		memcpy(v->now, other->came, (size_t)v->n);
		if (both)
			memcpy(other->now, v->came, (size_t)v->n);
		return true;
	}
	return false;
}

/* ---- all of them ---- */

/* Bytes [from, to) of all runs, one after the other. */
static void keep_old(struct ws_serve_victims *all, uint64_t from, uint64_t to)
{
	uint64_t at = 0;
	for (size_t i = 0; i < all->n; at += all->items[i++].n) {
		struct victim *v = &all->items[i];
		const uint64_t lo = from > at ? from - at : 0;
		const uint64_t hi = to < at + v->n ? (to > at ? to - at : 0) : v->n;
		if (lo < hi)
			memcpy(v->now + lo, v->old + lo, (size_t)(hi - lo));
	}
}

static uint64_t total(const struct ws_serve_victims *all)
{
	uint64_t n = 0;
	for (size_t i = 0; i < all->n; i++)
		n += all->items[i].n;
	return n;
}

static uint8_t *byte_at(struct ws_serve_victims *all, uint64_t at, bool now)
{
	size_t i = 0;
	while (at >= all->items[i].n)
		at -= all->items[i++].n;
	return (now ? all->items[i].now : all->items[i].came) + at;
}

/* As far as both go. */
static void cross(struct ws_serve_victims *all, struct ws_serve_victims *before, bool both)
{
	const uint64_t a = total(all), b = total(before);
	for (uint64_t i = 0; i < (a < b ? a : b); i++) {
		*byte_at(all, i, true) = *byte_at(before, i, false);
		if (both)
			*byte_at(before, i, true) = *byte_at(all, i, false);
	}
}

/* ---- doing it ---- */

static bool corrupt_one(struct ws_serve *s, struct ws_serve_victims *all, struct victim *v,
                        const struct ws_serve_corrupt *c, bool *padding)
{
	switch (c->how) {
	case WS_CORRUPT_FLIP:
		*padding = c->spot == WS_AT_PADDING;
		if (*padding)
			return flip_padding(s, v, c);
		flip(v, c);
		return true;
	case WS_CORRUPT_TRUNCATE:
		truncate_run(v, c);
		return true;
	case WS_CORRUPT_PERMUTE:
		rotate(v);
		return true;
	case WS_CORRUPT_DROP:
		memcpy(v->now, v->old, (size_t)v->n);
		return true;
	case WS_CORRUPT_RETYPE:
		retype(s, v, c);
		return true;
	default:
		return exchange(s, all, v, c->how == WS_CORRUPT_SWAP);
	}
}

static void corrupt(struct ws_serve *s, struct ws_serve_victims *all, struct ws_serve_victims *before,
                    struct ws_serve_note *note)
{
	const struct ws_serve_corrupt *c = &all->due->corrupt;
	const uint64_t n = total(all);
	bool done = false, padding = false;
	switch (c->how) {
	case WS_CORRUPT_DROP_BUCKET:
		keep_old(all, 0, n);
		return;
	case WS_CORRUPT_STALE_BUCKET:
		keep_old(all, n / 3, n - n / 3);
		return;
	case WS_CORRUPT_REPEAT_BUCKET:
	case WS_CORRUPT_SWAP_BUCKETS:
		if (before)
			cross(all, before, c->how == WS_CORRUPT_SWAP_BUCKETS);
		return;
	default:
		break;
	}
	for (size_t i = all->n; i-- > 0 && !done; ) {
		struct victim *v = &all->items[i];
		if (v->n && ws_glob_match(all->due->tensor, v->name))
			done = corrupt_one(s, all, v, c, &padding);
		if (done && padding)
			snprintf(note->corrupted, sizeof note->corrupted, "%s", v->name);
	}
}

/* What was there before the load may have been shorter, or not there at all. */
static int read_came(const struct ws_serve *s, struct ws_serve_victims *all, int rank)
{
	for (size_t i = 0; all && i < all->n; i++) {
		struct victim *v = &all->items[i];
		const uint64_t had = v->old ? v->n : 0;
		free(v->came);
		free(v->now);
		v->now = NULL;
		v->came = read_run(s, v, rank);
		if (!v->came || !(v->now = malloc((size_t)v->n + 1)))
			return -1;
		memcpy(v->now, v->came, (size_t)v->n);
		uint8_t *old = realloc(v->old, (size_t)v->n + 1);
		if (!old)
			return -1;
		v->old = old;
		if (v->n > had)
			memset(old + had, 0, (size_t)(v->n - had));
	}
	return 0;
}

static void write_back(struct ws_serve *s, const struct ws_serve_victims *all,
                       const struct ws_serve_corrupt *c, struct ws_serve_note *note)
{
	for (size_t i = 0; all && i < all->n; i++) {
		const struct victim *v = &all->items[i];
		const bool changed = memcmp(v->now, v->came, (size_t)v->n) != 0;
		if (changed)
			write_run(s, v, c->rank);
		if (v->retyped)
			relabel(s, v, c);
		if ((changed || v->retyped) && !note->corrupted[0])
			snprintf(note->corrupted, sizeof note->corrupted, "%s", v->name);
	}
}

/* Only their names are asked for later. */
static void forget_bytes(struct ws_serve_victims *all)
{
	for (size_t i = 0; i < all->n; i++) {
		struct victim *v = &all->items[i];
		free(v->old);
		free(v->came);
		free(v->now);
		v->old = v->came = v->now = NULL;
	}
}

void ws_serve_corrupt_end(struct ws_serve *s, struct ws_serve_victims *v, struct ws_serve_note *note)
{
	if (!v)
		return;
	if (v->due) {
		const struct ws_serve_corrupt *c = &v->due->corrupt;
		struct ws_serve_victims *before = looks_back(v->due) ? s->bucket_before : NULL;
		if (read_came(s, v, c->rank) == 0 && read_came(s, before, c->rank) == 0) {
			corrupt(s, v, before, note);
			write_back(s, v, c, note);
			write_back(s, before, c, note);
		}
		if (!note->corrupted[0])
			ws_log(s->opts.log, 1, "fault corrupt: nothing to corrupt in this request");
	}
	forget_bytes(v);
	ws_serve_corrupt_free(s->bucket_before);
	s->bucket_before = v;
}
