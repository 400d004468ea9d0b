/* SPDX-License-Identifier: Apache-2.0 */
/* serve_corrupt.c - what a corruption does to the tensors of one request.
 *
 * What was there is read before the load, what came after it; every corruption is made on these
 * runs of bytes (serve_victims.h), and those that changed are written back. */
#include "serve_corrupt.h"

#include "serve_convert.h"
#include "serve_victims.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- before the load ---- */

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
		ok = !ws_serve_victims_add(v, s, names[i]);
	if (!ok || (fault && ws_serve_victims_read_old(v, s, fault->corrupt.rank))) {
		ws_serve_corrupt_free(v);
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	}
	v->due = fault;
	*out = v;
	return 0;
}

/* ---- one tensor ---- */

static uint64_t size_of(const struct ws_serve_victim *v)
{
	return ws_dtype_bits(v->dtype) / 8;
}

static void flip(struct ws_serve_victim *v, const struct ws_serve_corrupt *c)
{
	const uint64_t at = c->spot == WS_AT_MIDDLE ? v->n / 2 :
	                    c->spot == WS_AT_LAST   ? v->n - 1 :
	                                              c->at;
	v->now[at % v->n] ^= (uint8_t)(1u << c->bit);
}

/* Zeros behind a vocabulary, which the loader wrote. */
static bool flip_padding(struct ws_serve *s, const struct ws_serve_victim *v,
                         const struct ws_serve_corrupt *c)
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

static void rotate(struct ws_serve_victim *v)
{
	const uint64_t size = size_of(v);
	if (v->n <= size)
		return;
	memmove(v->now + size, v->came, (size_t)(v->n - size));
	memcpy(v->now, v->came + v->n - size, (size_t)size);
}

static void truncate_run(struct ws_serve_victim *v, const struct ws_serve_corrupt *c)
{
	uint64_t n = c->bytes ? c->bytes : size_of(v);
	n = n < v->n ? n : v->n;
	memcpy(v->now + v->n - n, v->old + v->n - n, (size_t)n);
}

/* The numbers that the bytes would be; as many of them as there is place for. */
static void retype(const struct ws_serve *s, struct ws_serve_victim *v,
                   const struct ws_serve_corrupt *c)
{
	const uint64_t in = ws_dtype_bits(c->as) / 8, out = size_of(v);
	const uint64_t n = v->n / (in > out ? in : out);
	if (!s->model || (in == out && c->rank < 0))
		v->retyped = in && v->dtype != c->as && v->n % in == 0;
	if (s->model && in && ws_serve_converts(v->dtype, c->as))
		ws_serve_convert(v->dtype, v->now, c->as, v->came, (size_t)n);
}

/* A tensor keeps its bytes, and has another type: its last dimension is what changes. */
static void relabel(struct ws_serve *s, const struct ws_serve_victim *v,
                    const struct ws_serve_corrupt *c)
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

static bool same_shape(const struct ws_serve *s, const struct ws_serve_victim *a,
                       const struct ws_serve_victim *b)
{
	if (a == b || a->n != b->n || a->dtype != b->dtype ||
	    !memcmp(a->came, b->came, (size_t)a->n))
		return false;
	if (!s->model) {
		const struct ws_serve_weight *x = ws_serve_weights_find(&s->weights, a->name);
		const struct ws_serve_weight *y = ws_serve_weights_find(&s->weights, b->name);
		return x->n_dims == y->n_dims &&
		       !memcmp(x->dims, y->dims, x->n_dims * sizeof x->dims[0]);
	}
	const struct ws_part *x = ws_layout_part(s->model->layout, a->part);
	const struct ws_part *y = ws_layout_part(s->model->layout, b->part);
	return x->n_dims == y->n_dims && !memcmp(x->dims, y->dims, x->n_dims * sizeof x->dims[0]);
}

static bool exchange(const struct ws_serve *s, struct ws_serve_victims *all,
                     struct ws_serve_victim *v, bool both)
{
	for (size_t i = 0; i < all->n; i++) {
		struct ws_serve_victim *other = &all->items[i];
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
		struct ws_serve_victim *v = &all->items[i];
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

static bool corrupt_one(struct ws_serve *s, struct ws_serve_victims *all, struct ws_serve_victim *v,
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

static void corrupt(struct ws_serve *s, struct ws_serve_victims *all,
                    struct ws_serve_victims *before, struct ws_serve_note *note)
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
		struct ws_serve_victim *v = &all->items[i];
		if (v->n && ws_glob_match(all->due->tensor, v->name))
			done = corrupt_one(s, all, v, c, &padding);
		if (done && padding)
			snprintf(note->corrupted, sizeof note->corrupted, "%s", v->name);
	}
}

static void write_back(struct ws_serve *s, const struct ws_serve_victims *all,
                       const struct ws_serve_corrupt *c, struct ws_serve_note *note)
{
	for (size_t i = 0; all && i < all->n; i++) {
		const struct ws_serve_victim *v = &all->items[i];
		const bool changed = memcmp(v->now, v->came, (size_t)v->n) != 0;
		if (changed)
			ws_serve_victim_write(v, s, c->rank);
		if (v->retyped)
			relabel(s, v, c);
		if ((changed || v->retyped) && !note->corrupted[0])
			snprintf(note->corrupted, sizeof note->corrupted, "%s", v->name);
	}
}

void ws_serve_corrupt_end(struct ws_serve *s, struct ws_serve_victims *v,
                          struct ws_serve_note *note)
{
	if (!v)
		return;
	if (v->due) {
		const struct ws_serve_corrupt *c = &v->due->corrupt;
		struct ws_serve_victims *before = looks_back(v->due) ? s->bucket_before : NULL;
		if (ws_serve_victims_read_came(v, s, c->rank) == 0 &&
		    ws_serve_victims_read_came(before, s, c->rank) == 0) {
			corrupt(s, v, before, note);
			write_back(s, v, c, note);
			write_back(s, before, c, note);
		}
		if (!note->corrupted[0])
			ws_log(s->opts.log, 1, "fault corrupt: nothing to corrupt in this request");
	}
	ws_serve_victims_forget(v); /* only their names are asked for later */
	ws_serve_corrupt_free(s->bucket_before);
	s->bucket_before = v;
}
