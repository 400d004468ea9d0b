/* SPDX-License-Identifier: Apache-2.0 */
/* layout_build.c - appends parameters and parts to a layout. Numbers come from an untrusted
 * config.json: sizes are bounded here, and products are checked. */
#include "layout_build.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_build_keep(struct ws_build *b, const char *s, const char *suffix)
{
	const size_t n = strlen(s), more = strlen(suffix);
	char *at = ws_arena_alloc(&b->l->arena, n + more + 1);
	if (!at) {
		ws_oom(b->err);
		return NULL;
	}
	memcpy(at, s, n);
	memcpy(at + n, suffix, more + 1);
	return at;
}

const char *ws_build_keepf(struct ws_build *b, const char *fmt, ...)
{
	char text[WS_NAME_MAX];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ws_build_keep(b, text, "");
}

int ws_build_grow(struct ws_build *b, void *array, size_t n, size_t *cap, size_t size)
{
	if (n < *cap)
		return 0;
	const size_t more = *cap ? *cap * 2 : 64;
	void *old;
	memcpy(&old, array, sizeof old);
	void *p = realloc(old, more * size);
	if (!p)
		return ws_oom(b->err);
	memcpy(array, &p, sizeof p);
	*cap = more;
	return 0;
}

int ws_build_fail(struct ws_build *b, const char *fmt, ...)
{
	char text[480];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return ws_err_set(b->err, WS_EINPUT, "%s:%u: %s", b->family->file, b->rule->line, text);
}

int ws_build_number(struct ws_build *b, const struct ws_expr *e, int64_t *out)
{
	if (ws_expr_eval(e, b->scope, out, b->err) == 0)
		return 0;
	return ws_err_wrap(b->err, "%s:%u", b->family->file, b->rule->line);
}

int ws_build_size(struct ws_build *b, const struct ws_expr *e, const char *what, int64_t *out)
{
	if (ws_build_number(b, e, out) < 0)
		return -1;
	if (*out >= 1 && *out <= (int64_t)1 << 40)
		return 0;
	return ws_build_fail(b, "%s of %s come to %" PRId64, what, b->rule->name, *out);
}

int ws_build_dims(struct ws_build *b, const struct ws_expr *const *e, unsigned n, int64_t *dims)
{
	for (unsigned d = 0; d < n; d++)
		if (ws_build_size(b, e[d], "dimensions", &dims[d]) < 0)
			return -1;
	return 0;
}

static const struct ws_scope *find_variable(const struct ws_scope *s, const char *name, size_t n)
{
	for (; s; s = s->outer)
		if (s->name && strlen(s->name) == n && memcmp(s->name, name, n) == 0)
			return s;
	return NULL;
}

static int refuse_name(struct ws_build *b)
{
	return ws_build_fail(b, "a name of more than %d characters", WS_NAME_MAX - 1);
}

int ws_build_namef(struct ws_build *b, char *dst, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(dst, WS_NAME_MAX, fmt, ap);
	va_end(ap);
	return n < WS_NAME_MAX ? 0 : refuse_name(b);
}

int ws_build_name(struct ws_build *b, const char *name, char *dst)
{
	size_t len = strlen(b->prefix);
	memcpy(dst, b->prefix, len);
	if (len && *name)
		dst[len++] = '.';
	while (*name) {
		char number[24] = { name[0] };
		size_t step = 1, n = 1;
		const char *end = *name == '{' ? strchr(name, '}') : NULL;
		if (end) {
			const size_t width = (size_t)(end - name - 1);
			const struct ws_scope *s = find_variable(b->scope, name + 1, width);
			if (s) {
				n = (size_t)snprintf(number, sizeof number, "%" PRId64, s->value);
				step = width + 2;
			}
		}
		if (len + n >= WS_NAME_MAX)
			return refuse_name(b);
		memcpy(dst + len, number, n);
		len += n;
		name += step;
	}
	dst[len] = '\0';
	return 0;
}

/* ---- parameters and parts --------------------------------------------------------------------*/

static bool countable(unsigned n_dims, const int64_t *dims)
{
	uint64_t bytes;
	return ws_dtype_bytes(WS_DTYPE_F64, n_dims, dims, &bytes);
}

int ws_build_param(struct ws_build *b, const char *module, const char *suffix,
                   const struct ws_division *d, const char *trouble)
{
	struct ws_layout *l = b->l;
	const size_t cap = l->cap_params;
	if (ws_build_grow(b, &l->params, l->n_params, &l->cap_params, sizeof *l->params) < 0)
		return -1;
	if (l->cap_params != cap) {
		struct ws_division *more = realloc(l->divisions, l->cap_params * sizeof *more);
		if (!more)
			return ws_oom(b->err);
		l->divisions = more;
	}
	const char *name = ws_build_keep(b, module, suffix);
	if (!name)
		return -1;
	l->divisions[l->n_params] = *d;
	if (trouble)
		l->divisions[l->n_params].tp = l->divisions[l->n_params].ep = 1;
	l->params[l->n_params++] = (struct ws_param){
		.name = name, .first = l->n_parts, .trouble = trouble, .rule = b->rule_id
	};
	return 0;
}

int ws_build_part(struct ws_build *b, const char *module, const char *suffix, struct ws_part p)
{
	struct ws_layout *l = b->l;
	if (l->n_parts >= WS_PART_MAX)
		return ws_build_fail(b, "more than %d tensors", WS_PART_MAX);
	if (!countable(p.n_dims, p.dims))
		return ws_build_fail(b, "%s%s would have more than 2^59 elements", module, suffix);
	if (ws_build_grow(b, &l->parts, l->n_parts, &l->cap_parts, sizeof *l->parts) < 0)
		return -1;
	p.name = ws_build_keep(b, module, suffix);
	if (!p.name)
		return -1;
	p.param = l->n_params - 1;
	p.rule = b->rule_id;
	p.optional = p.optional || b->rule->optional;
	if (p.split != WS_SPLIT_EXPERT)
		p.expert = -1;
	if (p.split == WS_SPLIT_NONE)
		p.axis = 0;
	l->parts[l->n_parts++] = p;
	return 0;
}

/* Computes the shape of one part's share, which is equal at every rank that has the share. */
static void measure_share(const struct ws_part *p, unsigned tp, int64_t dims[WS_MAX_DIMS])
{
	memcpy(dims, p->dims, sizeof p->dims);
	if (p->n_dims && p->axis >= 0)
		dims[p->axis] = ws_part_piece(p, tp);
}

static void measure_experts(const struct ws_layout *l, const struct ws_division *d,
                            struct ws_param *q)
{
	int64_t rows = 0, dims[WS_MAX_DIMS] = { 0 };
	for (size_t i = 0; i < d->per_expert; i++) {
		measure_share(&l->parts[q->first + i], d->tp, dims);
		rows += dims[0];
	}
	const int64_t all = (int64_t)(q->n_parts / d->per_expert);
	q->n_dims = l->parts[q->first].n_dims == 1 ? (d->per_expert > 1 ? 2 : 1) : 3;
	q->dims[0] = d->routed / d->ep + (all - d->routed);
	q->dims[1] = q->n_dims > 1 ? rows : 0;
	q->dims[2] = dims[1];
}

static void measure_rows(const struct ws_layout *l, const struct ws_division *d, struct ws_param *q)
{
	int64_t rows = 0;
	for (size_t i = q->first; i < q->first + q->n_parts; i++) {
		measure_share(&l->parts[i], d->tp, q->dims);
		rows += q->dims[0];
	}
	q->n_dims = l->parts[q->first].n_dims;
	if (q->n_dims)
		q->dims[0] = rows;
}

int ws_build_end(struct ws_build *b)
{
	const struct ws_layout *l = b->l;
	struct ws_param *q = &b->l->params[l->n_params - 1];
	const struct ws_division *d = &l->divisions[l->n_params - 1];
	q->n_parts = l->n_parts - q->first;
	if (d->form == WS_FORM_EXPERTS)
		measure_experts(l, d, q);
	else if (d->form == WS_FORM_ROWS)
		measure_rows(l, d, q);
	if (!countable(q->n_dims, q->dims))
		return ws_build_fail(b, "%s would have more than 2^59 elements", q->name);
	return 0;
}
