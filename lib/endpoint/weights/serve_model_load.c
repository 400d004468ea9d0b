/* SPDX-License-Identifier: Apache-2.0 */
/* serve_model_load.c - an update: from the bytes of a request to the memory of every rank.
 *
 * Before the bytes arrive, each tensor is accepted, ignored or refused. Then each rank copies its
 * share out of the stream that it receives, so nothing is stored twice. Servers receive all tensors
 * of a request and load them afterwards in order. The first tensor that the loader refuses ends
 * the request, and the tensors before it are loaded. The same holds here. */
#include "serve_model.h"

#include "dims.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- deciding ---- */

int ws_serve_refuse_shape(const struct ws_serve_slot *slot, unsigned n_dims, const int64_t *dims,
                          struct ws_err *err)
{
	char ours[160], theirs[160];
	return ws_err_set(
		err, WS_EINPUT,
		"Attempted to load weight (torch.Size(%s)) into parameter (torch.Size(%s))",
		ws_dims_text(theirs, sizeof theirs, slot->n_dims, slot->dims),
		ws_dims_text(ours, sizeof ours, n_dims, dims));
}

/* Returns the full shape under that name: of a part, or of all parts one after the other. */
static void shape_of(const struct ws_serve_model *m, const struct ws_serve_load_decision *v,
                     unsigned *n_dims, int64_t *dims)
{
	const struct ws_part *first = ws_layout_part(m->layout, v->first);
	*n_dims = first->n_dims;
	memcpy(dims, first->dims, sizeof first->dims);
	for (size_t i = 1; i < v->n; i++)
		dims[0] += ws_layout_part(m->layout, v->first + i)->dims[0];
}

/* Two shapes with one element each are equal. */
static bool same_shape(unsigned n, const int64_t *dims, const struct ws_serve_slot *slot)
{
	if (ws_dims_product(n, dims) == 1)
		return ws_dims_product(slot->n_dims, slot->dims) == 1;
	return n == slot->n_dims && memcmp(dims, slot->dims, n * sizeof *dims) == 0;
}

/* The default loader compares the whole tensor with the rank's parameter, and accepts any
 * tensor of the same shape. */
static int check_read_only(struct ws_serve_load *l, const struct ws_serve_slot *slot,
                       const struct ws_serve_load_decision *v)
{
	const size_t param = ws_layout_part(l->model->layout, v->first)->param;
	int64_t dims[WS_MAX_DIMS];
	const unsigned n_dims = ws_serve_read_only_dims(l->model, param, v->scale, 0, dims);
	return same_shape(n_dims, dims, slot) ?
	               0 : ws_serve_refuse_shape(slot, n_dims, dims, &l->why);
}

/* Can this tensor be copied into the parameter of its name? */
static int check_fit(struct ws_serve_load *l, const struct ws_serve_slot *slot,
                     const struct ws_serve_load_decision *v, enum ws_dtype to)
{
	int64_t dims[WS_MAX_DIMS];
	unsigned n_dims = 0;
	char ours[160], theirs[160];
	shape_of(l->model, v, &n_dims, dims);
	if (!same_shape(n_dims, dims, slot))
		return ws_err_set(
			&l->why, WS_EINPUT,
			"shape mismatch for '%.200s': the parameter is %s, the loaded weight is %s",
			slot->name, ws_dims_text(ours, sizeof ours, n_dims, dims),
			ws_dims_text(theirs, sizeof theirs, slot->n_dims, slot->dims));
	if (!ws_serve_converts(to, slot->dtype))
		return ws_err_set(&l->why, WS_EINPUT,
		                  "'%.200s' is %s and cannot be copied into a parameter of %s",
		                  slot->name, slot->dtype_name, ws_dtype_torch(to));
	return 0;
}

static void ignore(struct ws_serve_load *l, const char *name, const char *why,
                   const struct ws_log *log)
{
	if (l->ignored++ >= WS_SERVE_LOAD_NAMES)
		return;
	const size_t n = strnlen(name, 255);
	char *more = realloc(l->ignored_names, l->ignored_len + n + 1);
	if (more) {
		memcpy(more + l->ignored_len, name, n);
		more[l->ignored_len + n] = 0;
		l->ignored_names = more;
		l->ignored_len += n + 1;
	}
	if (*why)
		ws_log(log, 1, "%s", why);
}

/* Is every part of the param of `part` among the tensors of the request? */
static bool all_present(const struct ws_serve_model *m, const struct ws_serve_update *u,
                        size_t part)
{
	const struct ws_param *p =
		ws_layout_param(m->layout, ws_layout_part(m->layout, part)->param);
	size_t found = 0;
	for (size_t i = 0; i < p->n_parts; i++) {
		const char *name = ws_layout_part(m->layout, p->first + i)->name;
		for (size_t k = 0; k < u->n; k++)
			if (strcmp(u->slots[k].name, name) == 0) {
				found++;
				break;
			}
	}
	return found == p->n_parts;
}

static int decide(struct ws_serve_load *l, const struct ws_serve_update *u, size_t i,
                  const struct ws_log *log)
{
	const struct ws_serve_model *m = l->model;
	const struct ws_serve_slot *slot = &u->slots[i];
	struct ws_serve_load_decision v;
	ws_serve_model_decide(m, slot->name, &v);
	if (v.action == WS_ACTION_LOAD && v.alone && !all_present(m, u, v.first)) {
		v.action = WS_ACTION_IGNORE;
		snprintf(v.why, sizeof v.why, "%.200s came without its partner: ignored",
		         slot->name);
	}
	if (v.action == WS_ACTION_REFUSE)
		return ws_err_set(&l->why, WS_EINPUT, "%s", v.why);
	if (v.action == WS_ACTION_IGNORE) {
		ignore(l, slot->name, v.why, log);
		return 0;
	}
	const enum ws_dtype to = m->dtypes[ws_layout_part(m->layout, v.first)->param];
	if (v.read_only ? check_read_only(l, slot, &v) : check_fit(l, slot, &v, to))
		return -1;
	if (v.scale) /* not kept: no route returns it */
		return 0;
	l->dest[i] = (struct ws_serve_tensor_dest){ .loads = true, .first = v.first, .n = v.n,
		                               .from = slot->dtype, .to = to };
	l->loaded++;
	return 0;
}

int ws_serve_load_begin(struct ws_serve_load *l, struct ws_serve_model *m,
                        const struct ws_serve_update *u, const struct ws_log *log,
                        struct ws_err *err)
{
	*l = (struct ws_serve_load){ .model = m, .n = u->n, .why = WS_ERR_INIT };
	for (unsigned r = 0; r < m->tp; r++)
		l->cursors[r].slot = SIZE_MAX;
	l->dest = calloc(u->n + 1, sizeof *l->dest);
	if (!l->dest)
		return ws_oom(err);
	while (l->refused < u->n && decide(l, u, l->refused, log) == 0)
		l->refused++;
	if (l->ignored > WS_SERVE_LOAD_NAMES)
		ws_log(log, 1, "... and %" PRIu64 " more names were ignored",
		       l->ignored - WS_SERVE_LOAD_NAMES);
	return 0;
}

void ws_serve_load_fini(struct ws_serve_load *l)
{
	free(l->dest);
	free(l->ignored_names);
	*l = (struct ws_serve_load){ 0 };
}

/* ---- placing ---- */

/* Every load writes zeros to the rows behind the vocabulary. */
static void clear_padding(struct ws_serve_load *l, unsigned rank, const struct ws_part *part,
                          const struct ws_serve_boxes *boxes)
{
	if (part->split == WS_SPLIT_VOCAB)
		memset(ws_serve_model_at(l->model, part->param, rank) + boxes->bytes, 0,
		       (size_t)(ws_serve_model_bytes(l->model, part->param, rank) - boxes->bytes));
}

static void enter_part(struct ws_serve_load *l, unsigned rank, size_t i)
{
	const struct ws_part *part = ws_layout_part(l->model->layout, i);
	struct ws_serve_cursor *c = &l->cursors[rank];
	c->part = i;
	ws_serve_model_boxes(l->model, part, rank, &c->boxes);
	clear_padding(l, rank, part, &c->boxes);
}

/* Stores bytes of the tensor, in its parameter's type. They may span several parts. */
static void place(struct ws_serve_load *l, unsigned rank, const struct ws_serve_tensor_dest *dest,
                  uint64_t at, const uint8_t *bytes, size_t n)
{
	struct ws_serve_cursor *c = &l->cursors[rank];
	while (n) {
		while (at - c->part_at >= c->boxes.total && c->part + 1 < dest->first + dest->n) {
			c->part_at += c->boxes.total;
			enter_part(l, rank, c->part + 1);
		}
		const uint64_t left = c->part_at + c->boxes.total - at;
		const size_t some = left && left < n ? (size_t)left : n;
		const size_t param = ws_layout_part(l->model->layout, c->part)->param;
		ws_serve_boxes_put(&c->boxes, at - c->part_at, bytes, some,
		                   ws_serve_model_at(l->model, param, rank));
		at += some;
		bytes += some;
		n -= some;
	}
}

static void convert_and_place(struct ws_serve_load *l, unsigned rank,
                              const struct ws_serve_tensor_dest *dest, uint64_t i,
                              const uint8_t *bytes, size_t n)
{
	uint8_t made[8192];
	const size_t in = ws_dtype_bits(dest->from) / 8, out = ws_dtype_bits(dest->to) / 8;
	while (n) {
		const size_t some = n < sizeof made / out ? n : sizeof made / out;
		ws_serve_convert(dest->to, made, dest->from, bytes, some);
		place(l, rank, dest, i * out, made, some * out);
		i += some;
		bytes += some * in;
		n -= some;
	}
}

/* Stores bytes in the sent type. The stream may be cut inside an element. */
static void put_elements(struct ws_serve_load *l, unsigned rank,
                         const struct ws_serve_tensor_dest *dest, uint64_t at, const uint8_t *bytes,
                         size_t n)
{
	struct ws_serve_cursor *c = &l->cursors[rank];
	const size_t size = ws_dtype_bits(dest->from) / 8;
	while (n && c->n_carry) {
		c->carry[c->n_carry++] = *bytes++;
		at++;
		n--;
		if (c->n_carry < size)
			continue;
		convert_and_place(l, rank, dest, at / size - 1, c->carry, 1);
		c->n_carry = 0;
	}
	const size_t whole = n / size;
	convert_and_place(l, rank, dest, at / size, bytes, whole);
	for (size_t i = whole * size; i < n; i++)
		c->carry[c->n_carry++] = bytes[i];
}

void ws_serve_load_put(struct ws_serve_load *l, unsigned rank, size_t slot, uint64_t at,
                       const uint8_t *bytes, size_t n)
{
	struct ws_serve_cursor *c = &l->cursors[rank];
	const struct ws_serve_tensor_dest *dest = &l->dest[slot];
	if (!dest->loads || !n || !l->model->memory[rank])
		return;
	if (c->slot != slot) {
		c->slot = slot;
		c->part_at = 0;
		c->n_carry = 0;
		enter_part(l, rank, dest->first);
	}
	if (dest->from == dest->to)
		place(l, rank, dest, at, bytes, n);
	else
		put_elements(l, rank, dest, at, bytes, n);
}

/* ---- after all bytes ---- */

void ws_serve_mark_loaded(struct ws_serve_model *m, size_t first, size_t n, enum ws_dtype came_as)
{
	for (size_t k = first; k < first + n; k++) {
		m->n_loaded += !m->parts[k].loaded;
		m->parts[k].loaded = true;
		m->parts[k].came_as = came_as;
	}
}

void ws_serve_load_commit(struct ws_serve_load *l, uint64_t sync, uint64_t *duplicates)
{
	struct ws_serve_model *m = l->model;
	*duplicates = 0;
	for (size_t i = 0; i < l->n; i++) {
		const struct ws_serve_tensor_dest *dest = &l->dest[i];
		bool before = false;
		for (size_t k = dest->first; k < dest->first + dest->n; k++) {
			before |= m->parts[k].sync == sync;
			m->parts[k].sync = sync;
		}
		ws_serve_mark_loaded(m, dest->first, dest->n, dest->from);
		*duplicates += before;
	}
}
