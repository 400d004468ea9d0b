/* SPDX-License-Identifier: Apache-2.0 */
/* layout_place.c - maps boxes of a part to boxes of its parameter at a rank. */
#include "layout_build.h"

#include <string.h>

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t ws_div_up(int64_t n, int64_t by)
{
	return n / by + (n % by != 0);
}

/* Pads like servers: to a multiple of 64, or of 64 * tp if tp does not divide the first result. */
static int64_t pad_vocabulary(int64_t n, unsigned tp)
{
	const int64_t padded = ws_div_up(n, WS_VOCAB_MULTIPLE) * WS_VOCAB_MULTIPLE;
	const int64_t more = (int64_t)WS_VOCAB_MULTIPLE * tp;
	return padded % tp ? ws_div_up(n, more) * more : padded;
}

int64_t ws_part_piece(const struct ws_part *p, unsigned tp)
{
	if (!p->n_dims || p->axis < 0)
		return 0;
	const int64_t n = p->dims[p->axis];
	switch (p->split) {
	case WS_SPLIT_NONE:
		return n;
	case WS_SPLIT_HEADS:
		return n / (p->units < tp ? p->units : tp);
	case WS_SPLIT_VOCAB:
		return pad_vocabulary(n, tp) / tp;
	case WS_SPLIT_STEPS:
		return ws_div_up(ws_div_up(n, p->units), tp) * p->units;
	case WS_SPLIT_EVEN:
	case WS_SPLIT_EXPERT:
		break;
	}
	return n / tp;
}

void ws_part_share(const struct ws_part *p, unsigned tp, unsigned t, int64_t *at, int64_t *size)
{
	*at = *size = 0;
	const int64_t piece = ws_part_piece(p, tp);
	if (!piece)
		return;
	int64_t mine = p->split == WS_SPLIT_NONE ? 0 : t;
	if (p->split == WS_SPLIT_HEADS && p->units < tp)
		mine /= tp / p->units;
	const int64_t n = p->dims[p->axis];
	*at = smaller(mine * piece, n);
	*size = smaller(piece, n - *at);
}

static void leave_empty(struct ws_box *box, unsigned n_dims)
{
	*box = (struct ws_box){ .n_dims = n_dims };
}

static void fill_box(struct ws_box *box, unsigned n_dims, const int64_t *dims)
{
	*box = (struct ws_box){ .n_dims = n_dims };
	memcpy(box->size, dims, n_dims * sizeof *dims);
}

static void place_expert(const struct ws_layout *l, const struct ws_part *p, unsigned rank,
                         const struct ws_box *from, struct ws_box *to)
{
	const struct ws_param *q = &l->params[p->param];
	const struct ws_division *d = &l->divisions[p->param];
	const int64_t per = d->routed / d->ep, owner = rank / d->tp % d->ep;
	int64_t local = p->expert - owner * per;
	if (p->expert >= d->routed)
		local = per + p->expert - d->routed;
	else if (local < 0 || local >= per) {
		leave_empty(to, q->n_dims);
		return;
	}
	const int64_t slot = (int64_t)((size_t)(p - l->parts) - q->first) % d->per_expert;
	*to = (struct ws_box){ .n_dims = q->n_dims, .at = { local, slot * from->size[0], 0 },
		               .size = { 1, from->size[0], from->size[1] } };
}

/* Counts the rows of the parts before p at the same rank. */
static int64_t count_rows_before(const struct ws_layout *l, const struct ws_part *p, unsigned tp,
                                 unsigned t)
{
	int64_t rows = 0;
	for (const struct ws_part *o = &l->parts[l->params[p->param].first]; o < p; o++) {
		int64_t at, size;
		ws_part_share(o, tp, t, &at, &size);
		rows += o->axis == 0 ? size : o->dims[0];
	}
	return rows;
}

/* Places a part in the param's dimensions; its experts and its axis may be divided. */
static void place_shaped(const struct ws_layout *l, const struct ws_part *p, unsigned rank,
                         struct ws_box *from, struct ws_box *to)
{
	const struct ws_param *q = &l->params[p->param];
	const struct ws_division *d = &l->divisions[p->param];
	fill_box(to, q->n_dims, q->dims);
	if (d->axis >= 0) {
		const int64_t piece = ws_part_piece(p, d->tp), n = q->dims[d->axis];
		const int64_t mine = from->size[p->axis];
		to->size[d->axis] = n >= piece ? mine * (n / piece) : mine / (piece / n);
	}
	if (p->ep) {
		from->size[0] = q->dims[0];
		from->at[0] = rank / d->tp % d->ep * q->dims[0];
	}
}

void ws_layout_place(const struct ws_layout *l, const struct ws_part *p, unsigned rank,
                     struct ws_box *from, struct ws_box *to)
{
	const struct ws_division *d = &l->divisions[p->param];
	const unsigned t = rank % d->tp;
	fill_box(from, p->n_dims, p->dims);
	if (p->n_dims && p->axis >= 0)
		ws_part_share(p, d->tp, t, &from->at[p->axis], &from->size[p->axis]);
	switch (d->form) {
	case WS_FORM_ROWS:
		fill_box(to, p->n_dims, from->size);
		if (p->n_dims)
			to->at[0] = count_rows_before(l, p, d->tp, t);
		break;
	case WS_FORM_EXPERTS:
		place_expert(l, p, rank, from, to);
		if (!to->size[0])
			leave_empty(from, p->n_dims);
		break;
	case WS_FORM_SHAPED:
		place_shaped(l, p, rank, from, to);
		break;
	}
}

void ws_layout_dims(const struct ws_layout *l, const struct ws_param *p, unsigned rank,
                    int64_t dims[WS_MAX_DIMS])
{
	/* Padding makes the sizes equal at all ranks. */
	(void)l;
	(void)rank;
	memcpy(dims, p->dims, sizeof p->dims);
}
