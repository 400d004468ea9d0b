/* SPDX-License-Identifier: Apache-2.0 */
/* layout_stack.c - the rule `stack`: a parameter that the checkpoint has in another shape with as
 * many elements, or with its last two axes swapped. gpt-oss stores the experts of a layer like
 * this. Note: if the parameter is divided in steps (MXFP4 blocks), the last ranks have less than
 * the others. */
#include "layout_build.h"

#include "dims.h"

#include <inttypes.h>
#include <string.h>

/* Returns the param's axis that begins at the same element as the part's axis; -1: no such axis. */
static int find_axis(const struct ws_part *p, unsigned n_dims, const int64_t *dims)
{
	const int64_t front = ws_dims_product((unsigned)p->axis, p->dims);
	int found = -1;
	for (unsigned d = 0; d < n_dims; d++) {
		if (ws_dims_product(d, dims) != front)
			continue;
		found = (int)d;
		if (dims[d] > 1)
			break;
	}
	return found;
}

/* Converts `some` of the part's n elements along its axis into the param's, of `whole`. False: not
 * a whole number. */
static bool scale(int64_t some, int64_t n, int64_t whole, int64_t *out)
{
	if (whole % n == 0)
		*out = some * (whole / n);
	else if (n % whole == 0 && some % (n / whole) == 0)
		*out = some / (n / whole);
	else
		return false;
	return true;
}

/* Returns the part with its axes in the param's order. */
static struct ws_part turn(const struct ws_part *p)
{
	struct ws_part turned = *p;
	if (p->transposed) {
		const int last = (int)p->n_dims - 1;
		turned.dims[last] = p->dims[last - 1];
		turned.dims[last - 1] = p->dims[last];
		if (p->axis >= last - 1)
			turned.axis = 2 * last - 1 - p->axis;
	}
	return turned;
}

static int read_axis(struct ws_build *b, struct ws_part *p)
{
	const struct ws_rule *r = b->rule;
	if (r->axis >= (int)p->n_dims || (r->ep && (!p->n_dims || r->axis == 0)) ||
	    (r->transposed && p->n_dims < 2))
		return ws_build_fail(b, "%s has no such axis", r->of);
	if (r->axis < 0)
		return 0;
	p->split = r->step ? WS_SPLIT_STEPS : WS_SPLIT_EVEN;
	p->axis = r->axis;
	if (r->step && ws_build_size(b, r->step, "steps", &p->units) < 0)
		return -1;
	if (p->units > p->dims[p->axis])
		return ws_build_fail(b, "%s: a step is longer than the axis", r->of);
	return 0;
}

/* Reads both shapes, and finds the axis of the param that matches the part's. */
static int read_stack(struct ws_build *b, struct ws_part *p, struct ws_param *shape,
                      struct ws_division *d)
{
	const struct ws_rule *r = b->rule;
	if (ws_build_dims(b, r->dims, r->n_dims, shape->dims) < 0 ||
	    ws_build_dims(b, r->of_dims, r->n_of_dims, p->dims) < 0 || read_axis(b, p) < 0)
		return -1;
	const struct ws_part turned = turn(p);
	if (ws_dims_product(p->n_dims, p->dims) != ws_dims_product(shape->n_dims, shape->dims) ||
	    (r->transposed && memcmp(turned.dims, shape->dims, sizeof shape->dims) != 0) ||
	    (r->ep && (!shape->n_dims || shape->dims[0] != p->dims[0])))
		return ws_build_fail(b, "%s has another shape than %s", r->of, r->name);
	d->axis = r->axis < 0 ? -1 : find_axis(&turned, shape->n_dims, shape->dims);
	if (r->axis >= 0 && d->axis < 0)
		return ws_build_fail(b, "%s: no axis matches the axis of %s", r->name, r->of);
	return 0;
}

static const char *find_trouble(struct ws_build *b, const struct ws_part *p,
                                      struct ws_param *shape, const struct ws_division *d)
{
	if (p->ep && p->dims[0] % d->ep)
		return ws_build_keepf(b, "%" PRId64 " experts do not divide by ep %u", p->dims[0],
		                      d->ep);
	const int64_t n = p->split == WS_SPLIT_NONE ? 0 : p->dims[p->axis];
	if (n && ((p->split == WS_SPLIT_EVEN && n % d->tp) ||
	          !scale(ws_part_piece(p, d->tp), n, shape->dims[d->axis], &shape->dims[d->axis])))
		return ws_build_keepf(b, "%" PRId64 " along axis %d do not divide by %s %u", n,
		                      p->axis, p->ep && d->ep > 1 ? "tp / ep" : ws_build_tp_word(b),
		                      d->tp);
	if (p->ep)
		shape->dims[0] /= d->ep;
	return NULL;
}

int ws_build_stack_rule(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	const struct ws_layout_opts *o = &b->l->opts;
	char name[WS_NAME_MAX], from[WS_NAME_MAX];
	struct ws_param shape = { .n_dims = r->n_dims };
	struct ws_part p = { .dtype = r->has_of_dtype ? r->of_dtype : b->dtype,
		             .n_dims = r->n_of_dims, .ep = r->ep, .transposed = r->transposed };
	p.exact = r->has_of_dtype && ws_build_exact(p.dtype);
	struct ws_division d = { .form = WS_FORM_SHAPED, .ep = r->ep ? o->ep : 1,
		                 .tp = r->ep ? o->tp / o->ep : ws_build_tp(b) };
	if (ws_build_name(b, r->name, name) < 0 || ws_build_name(b, r->of, from) < 0 ||
	    read_stack(b, &p, &shape, &d) < 0)
		return -1;
	const struct ws_param whole = shape;
	const char *trouble = find_trouble(b, &p, &shape, &d);
	if (ws_build_param(b, name, "", &d, trouble) < 0 || ws_build_part(b, from, "", p) < 0)
		return -1;
	struct ws_param *q = &b->l->params[b->l->n_params - 1];
	q->n_dims = shape.n_dims;
	memcpy(q->dims, trouble ? whole.dims : shape.dims, sizeof q->dims);
	return ws_build_end(b);
}
