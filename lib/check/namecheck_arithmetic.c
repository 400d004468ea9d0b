/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_arithmetic.c - where the local shape of a parameter comes from, in words. */
#include "namecheck_listing.h"

#include <inttypes.h>
#include <stdio.h>

static unsigned attention_tp(const struct ws_layout_opts *o)
{
	return o->attention_tp ? o->attention_tp : o->tp ? o->tp : 1;
}

static unsigned full_tp(const struct ws_layout_opts *o)
{
	return o->tp ? o->tp : 1;
}

static const char *axis_word(int axis)
{
	return axis == 0 ? "rows" : "columns";
}

/* "(16 q_proj + 2 k_proj + 2 v_proj) heads * 128 = 2560 rows" */
static struct ws_text heads(const struct ws_layout *l, const struct ws_param *p)
{
	const int64_t tp = attention_tp(ws_layout_options(l));
	struct ws_text t = { "" };
	const struct ws_part *first = ws_layout_part(l, p->first);
	const int64_t size = first->dims[first->axis] / first->units;
	int64_t total = 0;
	size_t used = 0;
	for (size_t i = 0; i < p->n_parts && used < sizeof t.s; i++) {
		const struct ws_part *part = ws_layout_part(l, p->first + i);
		const int64_t local = part->units < tp ? 1 : part->units / tp;
		total += local;
		if (p->n_parts > 1)
			used += (size_t)snprintf(t.s + used, sizeof t.s - used, "%s%" PRId64 " %s",
			                         i ? " + " : "(", local,
			                         ws_text_module(part->name).s);
	}
	if (p->n_parts == 1)
		return ws_textf("%" PRId64 " / %" PRId64 " heads * %" PRId64 " = %" PRId64 " %s",
		                first->units, tp, size, total * size, axis_word(first->axis));
	return ws_textf("%.400s) heads * %" PRId64 " = %" PRId64 " rows", t.s, size, total * size);
}

/* "(6144 gate_proj + 6144 up_proj) / 2 = 6144 rows" */
static struct ws_text even(const struct ws_layout *l, const struct ws_param *p)
{
	const int64_t tp = full_tp(ws_layout_options(l));
	const struct ws_part *first = ws_layout_part(l, p->first);
	const bool many = p->n_parts > 1;
	struct ws_text t = { "" };
	int64_t total = 0;
	size_t used = 0;
	for (size_t i = 0; i < p->n_parts && used < sizeof t.s; i++) {
		const struct ws_part *part = ws_layout_part(l, p->first + i);
		total += part->dims[part->axis];
		const struct ws_text module = ws_text_module(part->name);
		used += (size_t)snprintf(t.s + used, sizeof t.s - used, "%s%" PRId64 "%s%s",
		                         i ? " + " : "", part->dims[part->axis], many ? " " : "",
		                         many ? module.s : "");
	}
	if (tp == 1)
		return ws_textf("%.400s %s", t.s, axis_word(first->axis));
	return ws_textf("%s%.400s%s / %" PRId64 " = %" PRId64 " %s", many ? "(" : "", t.s,
	                many ? ")" : "", tp, total / tp, axis_word(first->axis));
}

static struct ws_text experts(const struct ws_layout *l, const struct ws_param *p)
{
	const struct ws_layout_opts *o = ws_layout_options(l);
	const struct ws_part *first = ws_layout_part(l, p->first);
	const int64_t ep = o->ep ? o->ep : 1, inner = full_tp(o) / ep;
	const int64_t mid = first->axis < 0 ? 0 : first->dims[first->axis];
	const bool two = p->n_parts > 1 && ws_layout_part(l, p->first + 1)->expert == first->expert;
	const struct ws_text count =
		ep > 1 ? ws_textf("the experts of 1 of %" PRId64 " ep ranks", ep)
		       : ws_textf("%" PRId64 " experts", p->dims[0]);
	if (first->axis < 0)
		return count;
	return ws_textf("%.100s, %s%" PRId64 " / %" PRId64 " = %" PRId64 " %s", count.s,
	                two ? "2 * " : "", mid, inner, (two ? 2 : 1) * mid / inner,
	                axis_word(first->axis));
}

struct ws_text ws_text_arithmetic(const struct ws_layout *l, const struct ws_param *p)
{
	if (!p->n_parts || p->trouble)
		return ws_textf("%s", p->trouble ? p->trouble : "");
	const struct ws_part *first = ws_layout_part(l, p->first);
	const int64_t tp = full_tp(ws_layout_options(l));
	switch (first->split) {
	case WS_SPLIT_HEADS:
		return first->units > 0 ? heads(l, p) : ws_textf("%s", "");
	case WS_SPLIT_EVEN:
		return even(l, p);
	case WS_SPLIT_VOCAB:
		return ws_textf("vocab_size %" PRId64 " padded to %" PRId64 ", / %" PRId64 " = %"
		                PRId64 " rows", first->dims[0], p->dims[0] * tp, tp, p->dims[0]);
	case WS_SPLIT_EXPERT:
		return experts(l, p);
	default:
		return ws_textf("every rank has all of it");
	}
}

struct ws_text ws_text_heads(const struct ws_layout *l, const struct ws_param *p,
                             const struct ws_weight *w)
{
	const struct ws_part *first = p->n_parts ? ws_layout_part(l, p->first) : NULL;
	if (!first || first->split != WS_SPLIT_HEADS || first->units < 1 ||
	    first->n_dims != w->n_dims)
		return ws_textf("%s", "");
	const int64_t size = first->dims[first->axis] / first->units, shown = w->dims[first->axis];
	if (size < 2 || shown % size)
		return ws_textf("%s", "");
	return ws_textf(" = %" PRId64 " heads * %" PRId64 " %s", shown / size, size,
	                axis_word(first->axis));
}
