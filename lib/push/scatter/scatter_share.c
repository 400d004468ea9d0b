/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_share.c - assigns the parameters to several senders: each to a sender that has all of it,
 * and about as many bytes to each sender.
 *
 * Experts are divided in order, the first ones to the first sender, if it has them. So one sender
 * alone reads the weights of an expert. A server gets the same ranges for all of its ranks, so one
 * sender sends a row of experts to every rank. */
#include "scatter_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct shares {
	struct ws_scatter *s;
	uint64_t load[WS_SENDERS_MAX];
	struct ws_senders *rows; /* for each row of a parameter: senders that have all of it */
	bool *glued;             /* the row cannot be split from the row before */
	size_t cap;              /* of ranges */
};

bool ws_senders_has(const struct ws_senders *set, unsigned sender)
{
	return set->bits[sender / 64] >> (sender % 64) & 1;
}

void ws_senders_add(struct ws_senders *set, unsigned sender)
{
	set->bits[sender / 64] |= UINT64_C(1) << (sender % 64);
}

static void keep_common(struct ws_senders *set, const struct ws_senders *other)
{
	for (size_t i = 0; i < sizeof set->bits / sizeof set->bits[0]; i++)
		set->bits[i] &= other->bits[i];
}

static const struct ws_senders *owners_of(const struct ws_scatter *s, const struct ws_part *part)
{
	const struct ws_plan_tensor *t = ws_scatter_tensor(s, part);
	return t && s->opts.have ? &s->opts.have[t - s->opts.plan->tensors] : NULL;
}

/* Returns `rather` if it is in the set, else the first sender with the least load; -1: none. */
static int choose(const struct shares *x, const struct ws_senders *among, unsigned rather)
{
	int best = -1;
	if (rather < x->s->opts.senders && ws_senders_has(among, rather))
		return (int)rather;
	for (unsigned i = 0; i < x->s->opts.senders; i++)
		if (ws_senders_has(among, i) && (best < 0 || x->load[i] < x->load[best]))
			best = (int)i;
	return best;
}

static int add_range(struct shares *x, struct ws_scatter_entry *e, int64_t from, int64_t to,
                     unsigned sender, struct ws_err *err)
{
	struct ws_scatter *s = x->s;
	struct ws_scatter_range *last = e->n_ranges ? &s->ranges[s->n_ranges - 1] : NULL;
	if (last && last->sender == sender) {
		last->to = to;
		return 0;
	}
	if (s->n_ranges == x->cap) {
		const size_t cap = x->cap ? x->cap * 2 : 256;
		struct ws_scatter_range *more = reallocarray(s->ranges, cap, sizeof *more);
		if (!more)
			return ws_oom(err);
		s->ranges = more;
		x->cap = cap;
	}
	if (!e->n_ranges)
		e->first_range = s->n_ranges;
	s->ranges[s->n_ranges++] = (struct ws_scatter_range){ from, to, sender };
	e->n_ranges++;
	return 0;
}

/* ---- the rest: one sender for each ---- */

static int share_whole(struct shares *x, struct ws_scatter_entry *e, uint64_t bytes,
                       struct ws_err *err)
{
	const struct ws_scatter *s = x->s;
	struct ws_senders among;
	memset(&among, 0xff, sizeof among);
	for (size_t i = 0; i < e->param->n_parts; i++) {
		const struct ws_senders *have =
			owners_of(s, ws_layout_part(s->opts.layout, e->param->first + i));
		if (have)
			keep_common(&among, have);
	}
	const int sender = choose(x, &among, UINT32_MAX);
	if (sender < 0)
		return ws_err_set(err, WS_EREFUSED,
		                  "parameter %s must be sent whole, but no sender has all of its "
		                  "tensors",
		                  e->param->name);
	x->load[sender] += bytes;
	return add_range(x, e, 0, -1, (unsigned)sender, err);
}

/* ---- experts: by rows ---- */

static void find_rows(struct shares *x, const struct ws_param *p)
{
	const struct ws_layout *l = x->s->opts.layout;
	memset(x->rows, 0xff, (size_t)p->dims[0] * sizeof *x->rows);
	memset(x->glued, 0, (size_t)p->dims[0] * sizeof *x->glued);
	for (size_t i = 0; i < p->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(l, p->first + i);
		const struct ws_senders *have = owners_of(x->s, part);
		for (unsigned r = 0; r < x->s->tp; r++) {
			struct ws_box from, to;
			ws_layout_place(l, part, r, &from, &to);
			if (!ws_stripe_elements(to.n_dims, to.size))
				continue;
			for (int64_t k = to.at[0]; k < to.at[0] + to.size[0] && k < p->dims[0];
			     k++) {
				if (have)
					keep_common(&x->rows[k], have);
				x->glued[k] = x->glued[k] || k > to.at[0];
			}
		}
	}
}

static int share_rows(struct shares *x, struct ws_scatter_entry *e, uint64_t bytes,
                      struct ws_err *err)
{
	const struct ws_param *p = e->param;
	const unsigned n = x->s->opts.senders;
	find_rows(x, p);
	for (int64_t from = 0, to; from < p->dims[0]; from = to) {
		struct ws_senders among = x->rows[from];
		for (to = from + 1; to < p->dims[0] && x->glued[to]; to++)
			keep_common(&among, &x->rows[to]);
		const int sender = choose(x, &among, (unsigned)(from * n / p->dims[0]));
		if (sender < 0)
			return ws_err_set(err, WS_EREFUSED,
			                  "parameter %s: no one sender has all of what the ranks "
			                  "keep of expert %" PRId64,
			                  p->name, from);
		x->load[sender] += bytes / (uint64_t)p->dims[0] * (uint64_t)(to - from);
		if (add_range(x, e, from, to, (unsigned)sender, err))
			return -1;
	}
	return 0;
}

int ws_scatter_share(struct ws_scatter *s, struct ws_err *err)
{
	struct shares *x = calloc(1, sizeof *x);
	int64_t rows = 1;
	for (size_t i = 0; i < s->n_entries && s->entries[i].layer >= 0; i++)
		rows = s->entries[i].param->dims[0] > rows ? s->entries[i].param->dims[0] : rows;
	int rc = 0;
	if (x) {
		x->s = s;
		x->rows = calloc((size_t)rows, sizeof *x->rows);
		x->glued = calloc((size_t)rows, sizeof *x->glued);
	}
	if (!x || !x->rows || !x->glued)
		rc = ws_oom(err);
	for (size_t i = 0; rc == 0 && i < s->n_entries; i++) {
		struct ws_scatter_entry *e = &s->entries[i];
		const uint64_t bytes = ws_scatter_entry_bytes(s, e);
		rc = e->layer >= 0 ? share_rows(x, e, bytes, err) : share_whole(x, e, bytes, err);
	}
	if (x) {
		free(x->rows);
		free(x->glued);
	}
	free(x);
	return rc;
}
