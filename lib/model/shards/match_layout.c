/* SPDX-License-Identifier: Apache-2.0 */
#include "match_layout.h"

#include "name_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- matching -------------------------------------------------------------------------------- */

/* Returns the number of groups of one rank, at least one; 0: the groups do not divide. */
static int64_t share_groups(int64_t groups, unsigned tp)
{
	if (groups % tp == 0)
		return groups / tp;
	return tp % groups == 0 ? 1 : 0;
}

/* True if each part has the same number of rows in each group. */
static bool groups_fit(const struct ws_layout_match *a, const struct ws_match_at *at)
{
	const struct ws_param *q = a->param;
	if (a->groups <= 0 || q->n_dims == 0 || q->n_dims > 2 || a->dims[0] % a->groups)
		return false;
	for (size_t i = q->first; i < q->first + q->n_parts; i++) {
		struct ws_box from, to;
		ws_layout_place(at->layout, ws_layout_part(at->layout, i), at->rank, &from, &to);
		if (to.at[0] % a->groups || to.size[0] % a->groups)
			return false;
	}
	return true;
}

bool ws_match_layout(const struct ws_source *source, const struct ws_tensor *t,
                const struct ws_param *param, const struct ws_alias *alias,
                const struct ws_match_at *at, struct ws_layout_match *out)
{
	struct ws_layout_match a = {
		.source = source, .tensor = t, .param = param, .rule = param->rule
	};
	int64_t stride = 1;
	if (t->n_dims != param->n_dims || ws_dtype_bits(t->dtype) % 8)
		return false;
	ws_layout_dims(at->layout, param, at->rank, a.dims);
	for (unsigned d = t->n_dims; d-- > 0; stride *= t->dims[d]) {
		a.order[d] = alias && alias->n_dims ? (unsigned)alias->order[d] : d;
		if (t->dims[d] != a.dims[a.order[d]])
			return false;
		a.strides[a.order[d]] = stride;
	}
	if (alias) {
		a.rule = alias->rule;
		a.groups = alias->groups > 0 ? share_groups(alias->groups, at->tp) : 0;
		if (alias->groups > 0 && !groups_fit(&a, at))
			return false;
	}
	*out = a;
	return true;
}

static bool same_meaning(const struct ws_layout_match *a, const struct ws_layout_match *b)
{
	if (a->param != b->param || a->groups != b->groups)
		return false;
	for (unsigned d = 0; d < a->param->n_dims; d++)
		if (a->dims[d] > 1 && a->strides[d] != b->strides[d])
			return false;
	return true;
}

static void keep_new(const struct ws_layout_match *a, struct ws_layout_match *out, size_t n,
                     size_t *k)
{
	for (size_t i = 0; i < *k; i++)
		if (same_meaning(a, &out[i]))
			return;
	if (*k < n)
		out[(*k)++] = *a;
}

size_t ws_match_layouts(const struct ws_source *source, const struct ws_tensor *t, const char *name,
                      const struct ws_match_at *at, struct ws_layout_match *out, size_t n,
                      bool *known)
{
	const struct ws_param *own = ws_layout_find_param(at->layout, name);
	struct ws_layout_match a;
	size_t k = 0;
	*known = own != NULL;
	if (own && ws_match_layout(source, t, own, NULL, at, &a))
		keep_new(&a, out, n, &k);
	for (size_t i = 0;; i++) {
		const struct ws_alias *alias = ws_layout_find_alias(at->layout, name, i);
		if (!alias)
			return k;
		*known = true;
		if (ws_match_layout(source, t, ws_layout_param(at->layout, alias->param), alias, at,
		                    &a))
			keep_new(&a, out, n, &k);
	}
}

/* ---- pieces ---------------------------------------------------------------------------------- */

struct ws_piece *ws_pieces_add(struct ws_pieces *list)
{
	if (list->n == list->cap) {
		const size_t cap = list->cap ? list->cap * 2 : 16;
		struct ws_piece *v = reallocarray(list->v, cap, sizeof *v);
		if (!v)
			return NULL;
		list->v = v;
		list->cap = cap;
	}
	struct ws_piece *p = &list->v[list->n++];
	*p = (struct ws_piece){ 0 };
	return p;
}

int ws_pieces_add_whole(struct ws_pieces *list, const struct ws_source *source,
                     const struct ws_tensor *t)
{
	struct ws_piece *p = ws_pieces_add(list);
	if (!p)
		return -1;
	p->source = source;
	p->from = t;
	int64_t stride = 1;
	for (unsigned d = t->n_dims; d-- > 0; stride *= t->dims[d]) {
		p->dims[d] = t->dims[d];
		p->strides[d] = stride;
	}
	return 0;
}

/* A strided box; axes of length one are dropped. */
struct grid {
	unsigned n;
	int64_t sizes[WS_MAX_DIMS], strides[WS_MAX_DIMS];
};

/* Finds strides for other dims over the same elements in the same order. False: no strides fit.
 * Matches groups of axes by element count; the axes of a group must be dense. */
static bool reshape(const struct grid *g, unsigned n, const int64_t *dims, int64_t *strides)
{
	unsigned i = 0, k = 0;
	while (i < g->n && k < n) {
		unsigned i_end = i + 1, k_end = k + 1;
		int64_t here = g->sizes[i], there = dims[k];
		while (here != there) {
			if (here < there ? i_end == g->n : k_end == n)
				return false;
			if (here < there)
				here *= g->sizes[i_end++];
			else
				there *= dims[k_end++];
		}
		for (unsigned d = i; d + 1 < i_end; d++)
			if (g->strides[d] != g->strides[d + 1] * g->sizes[d + 1])
				return false;
		strides[k_end - 1] = g->strides[i_end - 1];
		for (unsigned d = k_end - 1; d > k; d--)
			strides[d - 1] = strides[d] * dims[d];
		i = i_end;
		k = k_end;
	}
	for (; k < n; k++) {
		if (dims[k] != 1)
			return false;
		strides[k] = 1;
	}
	return i == g->n;
}

static struct grid grid_of(const struct ws_layout_match *a, const struct ws_part *part,
                           const struct ws_box *to)
{
	struct grid g = { 0 };
	for (unsigned d = 0; d < to->n_dims; d++) {
		unsigned axis = d;
		if (part->transposed && d + 2 >= to->n_dims)
			axis = 2 * to->n_dims - 3 - d;
		if (to->size[axis] == 1)
			continue;
		g.sizes[g.n] = to->size[axis];
		g.strides[g.n++] = a->strides[axis];
	}
	return g;
}

/* A part begins at row A of R. Its share of the g-th of G groups begins at g * R / G + A / G. */
static int add_groups(const struct ws_layout_match *a, const struct ws_box *to,
                      struct ws_pieces *list)
{
	const int64_t rows = to->size[0] / a->groups;
	for (int64_t g = 0; g < a->groups; g++) {
		struct ws_piece *p = ws_pieces_add(list);
		if (!p)
			return -1;
		p->source = a->source;
		p->from = a->tensor;
		p->at = (uint64_t)((g * (a->dims[0] / a->groups) + to->at[0] / a->groups) *
		                   a->strides[0]);
		memcpy(p->dims, to->size, sizeof p->dims);
		memcpy(p->strides, a->strides, sizeof p->strides);
		p->dims[0] = rows;
	}
	return 0;
}

int ws_match_pieces(const struct ws_layout_match *a, const struct ws_part *part,
                    const struct ws_box *from, const struct ws_box *to, struct ws_pieces *list)
{
	struct ws_piece piece = { .source = a->source, .from = a->tensor };
	if (a->groups)
		return to->n_dims == from->n_dims ? add_groups(a, to, list) : 1;
	const struct grid g = grid_of(a, part, to);
	memcpy(piece.dims, from->size, sizeof piece.dims);
	if (!reshape(&g, from->n_dims, piece.dims, piece.strides))
		return 1;
	for (unsigned d = 0; d < to->n_dims; d++)
		piece.at += (uint64_t)(to->at[d] * a->strides[d]);
	struct ws_piece *p = ws_pieces_add(list);
	if (!p)
		return -1;
	*p = piece;
	return 0;
}

/* ---- words ----------------------------------------------------------------------------------- */

struct ws_shape_text ws_shape_text(unsigned n_dims, const int64_t *dims)
{
	struct ws_shape_text s = { "[" };
	size_t used = 1;
	for (unsigned d = 0; d < n_dims; d++)
		used += (size_t)snprintf(s.text + used, sizeof s.text - used - 1, "%s%lld",
		                         d ? ", " : "", (long long)dims[d]);
	strcpy(s.text + used, "]");
	return s;
}

static bool is_transposed(const struct ws_layout_match *a)
{
	for (unsigned d = 1; d < a->param->n_dims; d++)
		if (a->order[d] < a->order[d - 1])
			return true;
	return false;
}

void ws_match_text(const struct ws_layout_match *a, const struct ws_box *to, char *dst, size_t n)
{
	const struct ws_quoted name = ws_quote(a->tensor->name);
	char box[200] = "";
	size_t used = 0;
	bool rows = true;
	for (unsigned d = 0; d < to->n_dims && used < sizeof box; d++) {
		const unsigned axis = a->order[d];
		const long long first = to->at[axis], last = first + to->size[axis] - 1;
		rows &= d == 0 || to->size[axis] == a->dims[axis];
		used += (size_t)snprintf(box + used, sizeof box - used,
		                         to->size[axis] == 1 ? "%s%lld" : "%s%lld..%lld",
		                         d ? ", " : "", first, last);
	}
	if (a->groups)
		snprintf(dst, n, "rows of %s, where they are interleaved in %lld groups", name.text,
		         (long long)a->groups);
	else if (rows && to->n_dims)
		snprintf(dst, n, "rows %lld..%lld of %s", (long long)to->at[a->order[0]],
		         (long long)(to->at[a->order[0]] + to->size[a->order[0]] - 1), name.text);
	else
		snprintf(dst, n, "[%s] of %s%s", box, name.text,
		         is_transposed(a) ? ", transposed" : "");
}

/* Names the rule, and the order of axes if the tensor is transposed. */
static void name_rule(const struct ws_layout *l, const struct ws_layout_match *a, char *dst,
                      size_t n)
{
	size_t used = (size_t)snprintf(dst, n, "\"%s\"", ws_layout_rule(l, a->rule));
	if (!is_transposed(a))
		return;
	for (unsigned d = 0; d < a->param->n_dims && used < n; d++)
		used += (size_t)snprintf(dst + used, n - used, "%s%u", d ? " " : " with axes ",
		                         a->order[d]);
}

int ws_match_ambiguous(const struct ws_layout *l, const char *prefix,
                         const struct ws_layout_match *a, struct ws_err *err)
{
	const struct ws_tensor *t = a[0].tensor;
	char one[240], other[240];
	name_rule(l, &a[0], one, sizeof one);
	name_rule(l, &a[1], other, sizeof other);
	ws_err_set(err, WS_EINPUT,
	           "%stensor '%s' of shape %s may be %s, or %s: the shape does not decide", prefix,
	           ws_quote(t->name).text, ws_shape_text(t->n_dims, t->dims).text, one, other);
	return ws_err_hint(
		err, "describe the family in a file of your own that has only the right one of "
		     "the two rules: {map} FILE");
}
