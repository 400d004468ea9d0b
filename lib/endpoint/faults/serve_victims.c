/* SPDX-License-Identifier: Apache-2.0 */
/* serve_victims.c - tensors as runs of bytes.
 *
 * A victim is looked at as a run of bytes in the type of its memory: of the whole tensor, or, at
 * one rank only, of that rank's share without the gaps. */
#include "serve_victims.h"

#include <stdlib.h>
#include <string.h>

/* ---- who they are ---- */

static int add(struct ws_serve_victims *v, const char *name, size_t part)
{
	struct ws_serve_victim *items = realloc(v->items, (v->n + 1) * sizeof *items);
	if (!items)
		return -1;
	v->items = items;
	items[v->n] = (struct ws_serve_victim){ .name = strdup(name), .part = part };
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

int ws_serve_victims_add(struct ws_serve_victims *v, const struct ws_serve *s, const char *name)
{
	return s->model ? add_parts(v, s->model->layout, name) : add(v, name, SIZE_MAX);
}

/* ---- runs of bytes ---- */

static uint8_t *read_weight(const struct ws_serve *s, struct ws_serve_victim *v)
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
static uint8_t *read_whole(const struct ws_serve_model *m, const struct ws_serve_victim *v,
                           int rank)
{
	const struct ws_part *part = ws_layout_part(m->layout, v->part);
	const uint64_t bytes = ws_serve_model_part_bytes(m, part);
	uint8_t *whole = calloc(1, (size_t)bytes + 1);
	for (unsigned r = 0; whole && r < m->tp; r++) {
		struct ws_serve_boxes boxes;
		if (rank >= 0 && r != (unsigned)rank)
			continue;
		ws_serve_model_boxes(m, part, r, &boxes);
		ws_serve_boxes_get(&boxes, 0, whole, (size_t)bytes,
		                   ws_serve_model_at(m, part->param, r));
	}
	return whole;
}

static uint8_t *read_run(const struct ws_serve *s, struct ws_serve_victim *v, int rank)
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

void ws_serve_victim_write(const struct ws_serve_victim *v, struct ws_serve *s, int rank)
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
			ws_serve_boxes_put(&boxes, ws_serve_boxes_whole(&boxes, k), v->now + k, 1,
			                   local);
		if (rank < 0)
			ws_serve_boxes_put(&boxes, 0, v->now, (size_t)v->n, local);
	}
}

int ws_serve_victims_read_old(struct ws_serve_victims *all, const struct ws_serve *s, int rank)
{
	for (size_t i = 0; i < all->n; i++)
		if (!(all->items[i].old = read_run(s, &all->items[i], rank)))
			return -1;
	return 0;
}

/* What was there before the load may have been shorter, or not there at all. */
int ws_serve_victims_read_came(struct ws_serve_victims *all, const struct ws_serve *s, int rank)
{
	for (size_t i = 0; all && i < all->n; i++) {
		struct ws_serve_victim *v = &all->items[i];
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

void ws_serve_victims_forget(struct ws_serve_victims *all)
{
	for (size_t i = 0; i < all->n; i++) {
		struct ws_serve_victim *v = &all->items[i];
		free(v->old);
		free(v->came);
		free(v->now);
		v->old = v->came = v->now = NULL;
	}
}
