/* SPDX-License-Identifier: Apache-2.0 */
/* split_fused.c - turns tensors in a trainer's names and shapes into checkpoint tensors.
 *
 * Each tensor is renamed first. A tensor with the name and shape of a checkpoint tensor then stays
 * as it is, even if its name has another meaning too. Any other tensor may be a fused parameter,
 * under the server's or a trainer's name, and is split. Or it is a part of a checkpoint tensor, and
 * waits for the other parts. */
#include "catalog_build.h"

#include "rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 4096, MEANINGS = 8, MAX_PARTS = 16 };

/* The parts of one joined tensor that were found so far, in their order. */
struct waiting {
	const char *name;
	const struct ws_join *join;  /* the family's; NULL: */
	const struct ws_part *whole; /* a tensor of the reference */
	const struct ws_tensor **parts;
	const char **names;          /* as renamed */
	size_t n, n_parts;
};

struct fused_split {
	struct ws_catalog *c;
	const struct ws_source *source;
	const struct ws_family *family;
	const struct ws_layout *layout;
	const char *const *names; /* by tensor; NULL: as the family renames it */
	struct ws_list waiting;
	size_t *waits; /* by part of the layout: one of waiting, counted from 1; NULL: none */
	struct ws_pieces pieces; /* scratch */
	bool changed;            /* some item is not a tensor of the source under its own name */
	struct ws_err *err;
};

static const char *rename_of(struct fused_split *u, const struct ws_tensor *t)
{
	char name[MAX_NAME + 1];
	if (u->names)
		return u->names[t - ws_source_tensor(u->source, 0)];
	if (!u->family || !ws_family_rename(u->family, t->name, name, sizeof name) ||
	    strcmp(name, t->name) == 0)
		return t->name;
	return ws_arena_text(&u->c->arena, name, strlen(name));
}

/* ---- splitting ------------------------------------------------------------------------------- */

static int add_part(struct fused_split *u, const struct ws_layout_match *a,
                    const struct ws_part *part)
{
	struct ws_box from, to;
	char said[512];
	struct ws_item item = { .name = part->name,
		                .dtype = a->tensor->dtype,
		                .n_dims = part->n_dims };
	ws_layout_place(u->layout, part, 0, &from, &to);
	memcpy(item.dims, part->dims, sizeof item.dims);
	u->pieces.n = 0;
	const int rc = ws_match_pieces(a, part, &from, &to, &u->pieces);
	if (rc > 0)
		return ws_err_set(u->err, WS_EINPUT,
		                  "tensor '%s' of shape %s cannot be split: %s of "
		                  "shape %s is no box of it",
		                  ws_quote(a->tensor->name).text,
		                  ws_shape_text(a->tensor->n_dims, a->tensor->dims).text,
		                  part->name, ws_shape_text(part->n_dims, part->dims).text);
	ws_match_text(a, &to, said, sizeof said);
	item.derivation = ws_catalog_text(u->c, "%s", said);
	if (rc < 0 || !item.derivation)
		return ws_oom(u->err);
	return ws_catalog_add_view(u->c, item, 0, &u->pieces, u->err);
}

static int split_tensor(struct fused_split *u, const struct ws_layout_match *a)
{
	const struct ws_param *q = a->param;
	for (size_t i = q->first; i < q->first + q->n_parts; i++)
		if (add_part(u, a, ws_layout_part(u->layout, i)))
			return -1;
	return 0;
}

static bool has_shape(const struct ws_tensor *t, const struct ws_part *p)
{
	return t->n_dims == p->n_dims && memcmp(t->dims, p->dims, p->n_dims * sizeof *p->dims) == 0;
}

static bool is_swapped(const struct ws_layout_match *a)
{
	for (unsigned d = 1; d < a->param->n_dims; d++)
		if (a->order[d] < a->order[d - 1])
			return true;
	return false;
}

/* Experts in one tensor are all [expert, outputs, inputs], or all [expert, inputs, outputs]. Where
 * the two sizes are equal, another tensor of the same experts may tell: 1, 0; -1: none does. */
static int ask_siblings(struct fused_split *u, const struct ws_tensor *t)
{
	static const char *const leaves[] = { "gate_up_proj", "down_proj", "up_proj", "gate_proj" };
	const char *end = strstr(t->name, "experts.");
	char name[MAX_NAME + 1];
	for (size_t i = 0; end && i < sizeof leaves / sizeof *leaves; i++) {
		const struct ws_match_at at = { .layout = u->layout, .tp = 1 };
		struct ws_layout_match a[2];
		bool known;
		snprintf(name, sizeof name, "%.*s%s", (int)(end + 8 - t->name), t->name, leaves[i]);
		const struct ws_tensor *other = ws_source_find(u->source, name);
		const char *as = other && other != t ? rename_of(u, other) : NULL;
		if (as && ws_match_layouts(u->source, other, as, &at, a, 2, &known) == 1)
			return is_swapped(&a[0]);
	}
	return -1;
}

/* Leaves the match that the siblings of the tensor have, if they tell. */
static size_t choose_match(struct fused_split *u, const struct ws_tensor *t,
                           struct ws_layout_match *a, size_t n)
{
	const int swapped = ask_siblings(u, t);
	size_t kept = 0;
	for (size_t i = 0; swapped >= 0 && i < n; i++)
		if (is_swapped(&a[i]) == swapped)
			a[kept++] = a[i];
	return kept ? kept : n;
}

/* Returns 1 if the tensor was split. *why: why a known name cannot be split, or NULL. */
static int split_by_name(struct fused_split *u, const struct ws_tensor *t, const char *name,
                  const char **why)
{
	static const struct ws_match_at whole = { .tp = 1 };
	struct ws_layout_match a[MEANINGS];
	struct ws_match_at at = whole;
	bool known;
	at.layout = u->layout;
	const struct ws_part *part = ws_layout_find_part(u->layout, name);
	*why = NULL;
	if (part && has_shape(t, part) && (t->n_dims != 3 || ask_siblings(u, t) != 1))
		return 0;
	size_t n = ws_match_layouts(u->source, t, name, &at, a, MEANINGS, &known);
	if (n > 1)
		n = choose_match(u, t, a, n);
	if (n > 1)
		return ws_match_ambiguous(u->layout, "", a, u->err);
	if (n == 1)
		return split_tensor(u, &a[0]) ? -1 : 1;
	if (known && !part) {
		*why = ws_catalog_text(u->c, "left as it is: its shape is not a known shape of %s",
		                      name);
		return *why ? 0 : ws_oom(u->err);
	}
	return 0;
}

/* ---- joining --------------------------------------------------------------------------------- */

static struct waiting *find_waiting(struct fused_split *u, const char *name)
{
	struct waiting *w = u->waiting.items;
	for (size_t i = u->waiting.n; i-- > 0;) /* parts of a layer are close together */
		if (strcmp(w[i].name, name) == 0)
			return &w[i];
	return NULL;
}

static struct waiting *begin_waiting(struct fused_split *u, const char *name, size_t n_parts)
{
	struct waiting *w = ws_list_add(&u->c->arena, &u->waiting, sizeof *w);
	if (!w)
		return NULL;
	w->name = ws_arena_text(&u->c->arena, name, strlen(name));
	w->parts = ws_arena_alloc(&u->c->arena, n_parts * sizeof *w->parts);
	w->names = ws_arena_alloc(&u->c->arena, n_parts * sizeof *w->names);
	w->n_parts = n_parts;
	return w->name && w->parts && w->names ? w : NULL;
}

static int join_misfit(const struct fused_split *u, const struct waiting *w, size_t i)
{
	const struct ws_tensor *a = w->parts[0], *b = w->parts[i];
	return ws_err_set(u->err, WS_EINPUT,
	                  "tensor '%s' cannot be joined: '%s' is %s %s and '%s' is %s %s", w->name,
	                  ws_quote(a->name).text, ws_dtype_torch(a->dtype),
	                  ws_shape_text(a->n_dims, a->dims).text, ws_quote(b->name).text,
	                  ws_dtype_torch(b->dtype), ws_shape_text(b->n_dims, b->dims).text);
}

static bool joins_with(const struct ws_tensor *a, const struct ws_tensor *b)
{
	return a->dtype == b->dtype && a->n_dims == b->n_dims && a->n_dims > 0 &&
	       ws_dtype_bits(a->dtype) % 8 == 0 &&
	       memcmp(a->dims + 1, b->dims + 1, (a->n_dims - 1) * sizeof *a->dims) == 0;
}

bool ws_join_fits(const struct ws_part *whole, size_t n_parts, const struct ws_tensor *t)
{
	if (whole->n_dims != 3)
		return t->n_dims == whole->n_dims && t->dims[0] < whole->dims[0] &&
		       (t->n_dims < 2 || t->dims[1] == whole->dims[1]);
	const int64_t each = (int64_t)n_parts / whole->dims[0];
	return t->n_dims == 2 && t->dims[1] == whole->dims[2] && each &&
	       t->dims[0] == whole->dims[1] / each && whole->dims[1] % each == 0;
}

/* A stack has the parts one behind the other, and one axis more. */
static void shape_whole(struct fused_split *u, const struct waiting *w, struct ws_item *item)
{
	u->pieces.n_dims = 0;
	if (!w->whole || w->whole->n_dims != 3)
		return;
	u->pieces.n_dims = item->n_dims;
	memcpy(u->pieces.dims, item->dims, sizeof item->dims);
	item->n_dims = 3;
	memcpy(item->dims, w->whole->dims, sizeof item->dims);
}

static const char *say_joined(struct fused_split *u, const struct waiting *w)
{
	if (w->n_parts > 4)
		return ws_catalog_text(u->c, "joined of %zu tensors, the first is %s", w->n_parts,
		                       ws_quote(w->parts[0]->name).text);
	const char *said = "joined of";
	for (size_t i = 0; said && i < w->n_parts; i++)
		said = ws_catalog_text(u->c, "%s%s %s", said, i ? "," : "",
		                       ws_quote(w->parts[i]->name).text);
	return said;
}

static int join_parts(struct fused_split *u, const struct waiting *w)
{
	const struct ws_tensor *first = w->parts[0];
	struct ws_item item = { .name = w->name, .dtype = first->dtype, .n_dims = first->n_dims };
	memcpy(item.dims, first->dims, sizeof item.dims);
	item.dims[0] = 0;
	u->pieces.n = 0;
	for (size_t i = 0; i < w->n_parts; i++) {
		if (!joins_with(first, w->parts[i]))
			return join_misfit(u, w, i);
		if (ws_pieces_add_whole(&u->pieces, u->source, w->parts[i]))
			return ws_oom(u->err);
		item.dims[0] += w->parts[i]->dims[0];
	}
	item.derivation = say_joined(u, w);
	if (!item.derivation)
		return ws_oom(u->err);
	shape_whole(u, w, &item);
	const int rc = ws_catalog_add_view(u->c, item, 0, &u->pieces, u->err);
	u->pieces.n_dims = 0;
	return rc;
}

/* Returns 1: the part waits for the others, or it was the last part and all are joined. */
static int wait(struct fused_split *u, struct waiting *w, const struct ws_tensor *t,
                const char *name, size_t i)
{
	if (w->parts[i])
		return ws_err_set(u->err, WS_EINPUT,
		                  "tensor '%s': both '%s' and '%s' are its part %zu", w->name,
		                  ws_quote(w->parts[i]->name).text, ws_quote(t->name).text, i + 1);
	w->parts[i] = t;
	w->names[i] = name;
	return ++w->n == w->n_parts && join_parts(u, w) ? -1 : 1;
}

/* A part by the rules of the family. */
static int join_ruled(struct fused_split *u, const struct ws_tensor *t, const char *name)
{
	struct ws_capture caps[WS_MAX_CAPTURES];
	char whole[MAX_NAME + 1];
	for (size_t k = 0; u->family && k < u->family->n_joins; k++) {
		const struct ws_join *j = &u->family->joins[k];
		for (size_t i = 0; i < j->n_parts && j->n_parts <= MAX_PARTS; i++) {
			if (!ws_pattern_match(j->parts[i], name, caps, WS_MAX_CAPTURES) ||
			    !ws_pattern_fill(j->name, caps, WS_MAX_CAPTURES, whole, sizeof whole))
				continue;
			struct waiting *w = find_waiting(u, whole);
			w = w ? w : begin_waiting(u, whole, j->n_parts);
			if (!w)
				return ws_oom(u->err);
			w->join = j;
			return wait(u, w, t, name, i);
		}
	}
	return 0;
}

/* A part of a tensor that the reference has. */
static int join_like(struct fused_split *u, const struct ws_tensor *t, const char *name)
{
	struct ws_like_join j;
	if (!u->layout || ws_layout_find_part(u->layout, name) ||
	    !ws_layout_find_join(u->layout, name, &j) || !ws_join_fits(j.whole, j.n_parts, t))
		return 0;
	const size_t at = (size_t)(j.whole - ws_layout_part(u->layout, 0));
	if (!u->waits)
		u->waits = calloc(ws_layout_part_count(u->layout), sizeof *u->waits);
	if (!u->waits)
		return ws_oom(u->err);
	struct waiting *w = u->waits[at] ? (struct waiting *)u->waiting.items + u->waits[at] - 1 :
	                                   begin_waiting(u, j.whole->name, j.n_parts);
	if (!w)
		return ws_oom(u->err);
	u->waits[at] = (size_t)(w - (struct waiting *)u->waiting.items) + 1;
	w->whole = j.whole;
	return wait(u, w, t, name, j.part);
}

static int join_part(struct fused_split *u, const struct ws_tensor *t, const char *name)
{
	const int rc = join_ruled(u, t, name);
	return rc ? rc : join_like(u, t, name);
}

static const char *say_alone(struct fused_split *u, const struct waiting *w, size_t missing)
{
	char part[MAX_NAME + 1];
	const char *of = w->join ? w->join->parts[missing] :
	                 ws_layout_join_part(w->whole, missing, part, sizeof part);
	return ws_catalog_text(u->c, "left as it is: without its part %zu, %s, there is no %s",
	                       missing + 1, of ? of : "", w->name);
}

/* Adds parts whose partners are missing as they are, with the reason as their derivation. */
static int flush_waiting(struct fused_split *u)
{
	const struct waiting *w = u->waiting.items;
	for (size_t k = 0; k < u->waiting.n; k++) {
		size_t missing = 0;
		if (w[k].n == w[k].n_parts)
			continue;
		while (w[k].parts[missing])
			missing++;
		const char *why = say_alone(u, &w[k], missing);
		if (!why)
			return ws_oom(u->err);
		for (size_t i = 0; i < w[k].n_parts; i++)
			if (w[k].parts[i] && ws_catalog_add(u->c, u->source, w[k].parts[i],
			                                    w[k].names[i], why, u->err))
				return -1;
	}
	return 0;
}

/* ---- the source ------------------------------------------------------------------------------ */

static int add_tensor(struct fused_split *u, const struct ws_tensor *t)
{
	const char *name = rename_of(u, t), *made = NULL;
	if (!name)
		return ws_oom(u->err);
	int rc = u->layout ? split_by_name(u, t, name, &made) : 0;
	if (rc == 0 && !made)
		rc = join_part(u, t, name);
	u->changed |= rc > 0 || name != t->name;
	if (rc)
		return rc < 0 ? -1 : 0;
	if (!made && name != t->name) {
		made = ws_catalog_text(u->c, "renamed from %s", ws_quote(t->name).text);
		if (!made)
			return ws_oom(u->err);
	}
	return ws_catalog_add(u->c, u->source, t, name, made, u->err);
}

static int index_renamed(struct fused_split *u)
{
	struct ws_catalog *c = u->c;
	c->renamed = calloc(ws_source_count(u->source) + 1, sizeof *c->renamed);
	if (!c->renamed)
		return ws_oom(u->err);
	for (size_t i = 0; i < c->n_items; i++)
		if (!c->items[i].view)
			c->renamed[c->items[i].from - ws_source_tensor(u->source, 0)] = i + 1;
	return 0;
}

int ws_catalog_split_fused(struct ws_catalog *c, const struct ws_catalog_opts *opts,
                           struct ws_err *err)
{
	struct fused_split u = { .c = c, .source = c->sources[0], .family = opts->family,
		              .layout = opts->layout, .names = opts->names, .err = err };
	int rc = 0;
	for (size_t i = 0; i < ws_source_count(u.source) && rc == 0; i++)
		rc = add_tensor(&u, ws_source_tensor(u.source, i));
	if (rc == 0)
		rc = flush_waiting(&u);
	if (rc == 0 && opts->names)
		rc = index_renamed(&u);
	c->plain = !u.changed;
	free(u.pieces.v);
	free(u.waits);
	return rc;
}
