/* SPDX-License-Identifier: Apache-2.0 */
/* serve_corrupt.c - fault "corrupt": weights arrive correctly, by any route, and are changed in
 * memory after the load, before the answer.
 *
 * A tensor is assembled from the memory of all ranks, changed, and written back. With rank=N only
 * the share of that rank is read, changed and written. */
#include "serve_model.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parsing ---- */

static int parse_key(const char *pair, struct ws_serve_corrupt *c, struct ws_err *err)
{
	uint64_t rank = 0;
	if (c->how == WS_CORRUPT_FLIP && strncmp(pair, "at=", 3) == 0)
		return ws_parse_uint(pair + 3, 0, UINT64_MAX, "at", &c->at, err);
	if (c->how == WS_CORRUPT_TRUNCATE && strncmp(pair, "bytes=", 6) == 0)
		return ws_parse_uint(pair + 6, 1, UINT64_MAX, "bytes", &c->bytes, err);
	if (strncmp(pair, "rank=", 5) != 0)
		return ws_err_set(err, WS_EUSAGE,
		                  "'%s' is not at=N (flip), bytes=N (truncate), rank=N or "
		                  "tensor=GLOB",
		                  pair);
	if (ws_parse_uint(pair + 5, 0, WS_SERVE_MAX_TP - 1, "rank", &rank, err))
		return -1;
	c->rank = (int)rank;
	return 0;
}

static int parse_keys(const char *at, struct ws_serve_fault *f, struct ws_err *err)
{
	for (; *at == ','; at += strcspn(at, ",")) {
		char pair[64];
		at++;
		if (strncmp(at, "tensor=", 7) == 0)
			return ws_serve_fault_set_tensor(f, at + 7, err);
		const size_t n = strcspn(at, ",");
		if (n >= sizeof pair)
			return ws_err_set(err, WS_EUSAGE, "no KEY=VALUE is so long");
		snprintf(pair, sizeof pair, "%.*s", (int)n, at);
		if (parse_key(pair, &f->corrupt, err))
			return -1;
	}
	return 0;
}

int ws_serve_corrupt_parse(const char *spec, struct ws_serve_fault *f, struct ws_err *err)
{
	static const char *const hows[] = { "flip", "truncate", "drop", "swap" };
	const size_t n = strcspn(spec, ",");
	for (size_t i = 0; i < sizeof hows / sizeof hows[0]; i++)
		if (strlen(hows[i]) == n && memcmp(hows[i], spec, n) == 0) {
			f->corrupt.how = (enum ws_serve_corruption)i;
			return parse_keys(spec + n, f, err);
		}
	return ws_err_set(err, WS_EUSAGE, "unknown corruption: use flip, truncate, drop or swap");
}

int ws_serve_corrupt_check(const struct ws_serve *s, const struct ws_serve_fault *f,
                           struct ws_err *err)
{
	if (f->kind != WS_FAULT_CORRUPT)
		return 0;
	if (s->opts.keep != WS_KEEP_MEMORY)
		return ws_err_set(err, WS_EUSAGE, "faults flip and corrupt need {keep} memory");
	if (f->corrupt.rank >= (int)s->opts.tp)
		return ws_err_set(err, WS_EUSAGE, "fault corrupt: rank %d of %u", f->corrupt.rank,
		                  s->opts.tp);
	if (!s->model && f->corrupt.rank > 0)
		return ws_err_set(err, WS_EUSAGE,
		                  "fault corrupt: without {model} all ranks share one copy");
	return 0;
}

/* ---- tensors in memory ---- */

struct candidate {
	const char *name;           /* borrowed */
	const struct ws_part *part; /* NULL: the endpoint has no model */
	uint8_t *old;               /* bytes before the load; NULL: not needed */
	uint64_t n_old;
};

/* The tensors of one request. */
struct ws_serve_corrupted {
	const struct ws_serve_fault *due;
	struct candidate *items;
	size_t n;
};

static uint8_t *read_tensor(const struct ws_serve *s, const struct candidate *v, int rank,
                            uint64_t *n)
{
	const struct ws_serve_model *m = s->model;
	const struct ws_serve_weight *w = m ? NULL : ws_serve_weights_find(&s->weights, v->name);
	*n = m ? ws_serve_model_part_bytes(m, v->part) : w && w->data ? w->bytes : 0;
	uint8_t *whole = calloc(1, (size_t)*n + 1);
	if (whole && w && *n)
		memcpy(whole, w->data, (size_t)*n);
	for (unsigned r = 0; whole && m && r < m->tp; r++) {
		struct ws_serve_boxes boxes;
		if (rank >= 0 && r != (unsigned)rank)
			continue;
		ws_serve_model_boxes(m, v->part, r, &boxes);
		ws_serve_boxes_get(&boxes, 0, whole, (size_t)*n,
		                   ws_serve_model_at(m, v->part->param, r));
	}
	return whole;
}

static void write_tensor(struct ws_serve *s, const struct candidate *v, int rank,
                         const uint8_t *bytes, uint64_t n)
{
	struct ws_serve_model *m = s->model;
	if (!m)
		memcpy(ws_serve_weights_find(&s->weights, v->name)->data, bytes, (size_t)n);
	for (unsigned r = 0; m && r < m->tp; r++) {
		struct ws_serve_boxes boxes;
		if (rank >= 0 && r != (unsigned)rank)
			continue;
		ws_serve_model_boxes(m, v->part, r, &boxes);
		ws_serve_boxes_put(&boxes, 0, bytes, (size_t)n,
		                   ws_serve_model_at(m, v->part->param, r));
	}
}

/* ---- before the load ---- */

void ws_serve_corrupt_free(struct ws_serve_corrupted *v)
{
	for (size_t i = 0; v && i < v->n; i++)
		free(v->items[i].old);
	if (v)
		free(v->items);
	free(v);
}

static int add(struct ws_serve_corrupted *v, const struct ws_serve *s, const char *name,
               const struct ws_part *part)
{
	const enum ws_serve_corruption how = v->due->corrupt.how;
	struct candidate *items = realloc(v->items, (v->n + 1) * sizeof *items);
	if (!items)
		return -1;
	v->items = items;
	struct candidate *new = &items[v->n++];
	*new = (struct candidate){ .name = name, .part = part };
	if ((how != WS_CORRUPT_DROP && how != WS_CORRUPT_TRUNCATE) ||
	    !ws_glob_match(v->due->tensor, name))
		return 0;
	new->old = read_tensor(s, new, v->due->corrupt.rank, &new->n_old);
	return new->old ? 0 : -1;
}

/* Adds the part of the model with this name, or all parts of the server's parameter with this name.
 * Ignores other names, as the loader does. */
static int add_parts(struct ws_serve_corrupted *v, const struct ws_serve *s, const char *name)
{
	const struct ws_layout *l = s->model->layout;
	const struct ws_part *part = ws_layout_find_part(l, name);
	const struct ws_param *param = part ? NULL : ws_layout_find_param(l, name);
	if (part)
		return add(v, s, part->name, part);
	for (size_t i = 0; param && i < param->n_parts; i++) {
		part = ws_layout_part(l, param->first + i);
		if (add(v, s, part->name, part))
			return -1;
	}
	return 0;
}

int ws_serve_corrupt_begin(struct ws_serve *s, const struct ws_serve_fault *fault,
                           const struct ws_serve_slot *slots, size_t n,
                           struct ws_serve_corrupted **out, struct ws_err *err)
{
	*out = NULL;
	if (!fault)
		return 0;
	struct ws_serve_corrupted *v = calloc(1, sizeof *v);
	int rc = v ? 0 : -1;
	if (v)
		v->due = fault;
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = s->model ? add_parts(v, s, slots[i].name) : add(v, s, slots[i].name, NULL);
	if (rc) {
		ws_serve_corrupt_free(v);
		return ws_oom(err);
	}
	*out = v;
	return 0;
}

/* ---- after the load ---- */

/* The tensor that is being changed: the whole, or the share of one rank, which `boxes` locates. */
struct run {
	const struct candidate *v;
	enum ws_dtype dtype;
	unsigned n_dims;
	const int64_t *dims;
	uint8_t *came, *now; /* as received; as changed */
	uint64_t n;     /* bytes of the whole tensor */
	uint64_t share; /* bytes that can be changed */
	struct ws_serve_boxes boxes;
};

/* False: there is nothing to change. */
static bool open_run(const struct ws_serve *s, const struct candidate *v, int rank, struct run *out)
{
	const struct ws_serve_weight *w =
		s->model ? NULL : ws_serve_weights_find(&s->weights, v->name);
	*out = (struct run){ .v = v };
	if (!v->part && !w)
		return false;
	out->dtype = w ? w->dtype : s->model->dtypes[v->part->param];
	out->n_dims = w ? w->n_dims : v->part->n_dims;
	out->dims = w ? w->dims : v->part->dims;
	out->came = read_tensor(s, v, rank, &out->n);
	out->now = read_tensor(s, v, rank, &out->n);
	out->share = out->n;
	if (v->part && rank >= 0) {
		ws_serve_model_boxes(s->model, v->part, (unsigned)rank, &out->boxes);
		out->share = out->boxes.bytes;
	}
	return out->came && out->now && out->share;
}

static void close_run(struct run *r)
{
	free(r->came);
	free(r->now);
}

static bool write_back(struct ws_serve *s, const struct run *r, int rank)
{
	if (memcmp(r->now, r->came, (size_t)r->n) == 0)
		return false;
	write_tensor(s, r->v, rank, r->now, r->n);
	return true;
}

/* Swaps r's tensor with the first tensor of the request of equal type and shape but other bytes. */
static void swap(struct ws_serve *s, const struct ws_serve_corrupted *all, struct run *r, int rank)
{
	bool found = false;
	for (size_t i = 0; i < all->n && !found; i++) {
		struct run o;
		found = &all->items[i] != r->v && open_run(s, &all->items[i], rank, &o) &&
		        o.share == r->share && o.n == r->n && o.dtype == r->dtype &&
		        o.n_dims == r->n_dims &&
		        memcmp(o.dims, r->dims, r->n_dims * sizeof *r->dims) == 0 &&
		        memcmp(o.came, r->came, (size_t)r->n) != 0;
		if (found) {
			memcpy(r->now, o.came, (size_t)r->n);
			memcpy(o.now, r->came, (size_t)r->n);
			write_back(s, &o, rank);
		}
		if (&all->items[i] != r->v)
			close_run(&o);
	}
}

/* Returns the offset in the whole tensor of byte k of the changeable share. */
static uint64_t place(const struct run *r, uint64_t k)
{
	return r->share == r->n ? k : ws_serve_boxes_whole(&r->boxes, k);
}

static void change(struct ws_serve *s, const struct ws_serve_corrupted *all, struct run *r)
{
	const struct ws_serve_corrupt *c = &all->due->corrupt;
	const uint64_t end = c->bytes ? c->bytes : (ws_dtype_bits(r->dtype) + 7) / 8;
	uint64_t k = c->how == WS_CORRUPT_DROP || end > r->share ? 0 : r->share - end;
	if (c->how == WS_CORRUPT_SWAP) {
		swap(s, all, r, c->rank);
	} else if (c->how == WS_CORRUPT_FLIP) {
		r->now[place(r, c->at % r->share)] ^= 1;
	} else {
		for (; k < r->share; k++) {
			const uint64_t at = place(r, k);
			r->now[at] = at < r->v->n_old ? r->v->old[at] : 0;
		}
	}
}

/* Corrupts the last tensor that matches and can be changed. */
void ws_serve_corrupt_end(struct ws_serve *s, struct ws_serve_corrupted *v,
                          struct ws_serve_note *note)
{
	for (size_t i = v ? v->n : 0; i-- > 0 && !note->corrupted[0]; ) {
		struct run r;
		if (!ws_glob_match(v->due->tensor, v->items[i].name))
			continue;
		if (open_run(s, &v->items[i], v->due->corrupt.rank, &r)) {
			change(s, v, &r);
			if (write_back(s, &r, v->due->corrupt.rank))
				snprintf(note->corrupted, sizeof note->corrupted, "%s",
				         v->items[i].name);
		}
		close_run(&r);
	}
	if (v && !note->corrupted[0])
		ws_log(s->opts.log, 1, "fault corrupt: nothing to corrupt in this request");
	ws_serve_corrupt_free(v);
}
