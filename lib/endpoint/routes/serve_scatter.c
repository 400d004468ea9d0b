/* SPDX-License-Identifier: Apache-2.0 */
/* serve_scatter.c - receive_weights_ep_scatter of xorl-legacy: trainers send each rank its own
 * share, point to point, directly into the parameters.
 *
 * The request itself creates the group, in which the training ranks come first. Every rank receives
 * the same list of pieces. A piece is a range of a parameter's rows from one training rank. Names
 * are the server's own. An unknown name is skipped, and the sender is not informed. Received
 * bytes are not processed further. */
#include "serve_scatter.h"
#include "serve_call.h"
#include "serve_fetch.h"
#include "serve_rank.h"

#include "gloo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- receiving ---- */

/* Computes the place of a piece, like a Python slice, which is cut at the end of the rows. */
static void place(const struct ws_serve_scatter *x, unsigned rank, const struct ws_serve_piece *p,
                  struct ws_gloo_transfer *t)
{
	const struct ws_serve_model *m = x->model;
	const struct ws_param *param = ws_layout_param(m->layout, p->param);
	int64_t dims[WS_MAX_DIMS];
	ws_layout_dims(m->layout, param, rank, dims);
	const int64_t rows = param->n_dims ? dims[0] : 1;
	const uint64_t row = rows ? ws_serve_model_bytes(m, p->param, rank) / (uint64_t)rows : 0;
	const int64_t to = p->to < 0 || p->to > rows ? rows : p->to;
	const int64_t from = p->from < to ? p->from : to;
	*t = (struct ws_gloo_transfer){ .peer = p->source, .receive = true };
	t->sink.length = (uint64_t)(to - from) * row;
	t->sink.dst = ws_serve_model_at(m, p->param, rank) + (uint64_t)from * row;
}

static int receive(struct ws_serve_rank *r, struct ws_err *err)
{
	const struct ws_serve_scatter *x = r->group->job;
	const bool strikes = ws_serve_fault_ends(x->fault);
	struct ws_gloo_transfer *t = calloc(x->n + 1, sizeof *t);
	int rc = t ? 0 : ws_oom(err);
	size_t at = 0;
	for (size_t b = 0; rc == 0 && b < x->n_batches; b++) {
		const size_t first = at;
		if (strikes && r->tp_rank == 0 && b == x->n_batches / 2) {
			rc = ws_serve_strike(r, x->fault, err);
			break;
		}
		for (; at < x->ends[b]; at++)
			place(x, r->tp_rank, &x->pieces[at], &t[at - first]);
		rc = ws_gloo_exchange(r->gloo, t, at - first, r->until, &r->group->cancel, err);
	}
	free(t);
	return rc;
}

/* ---- the route ---- */

static struct ws_serve_group *join(struct ws_serve *s, const struct ws_serve_share_rq *rq,
                                   struct ws_err *err)
{
	struct ws_serve_group *g = ws_serve_find_group(s, rq->init.group);
	if (g)
		return g;
	if (!rq->init.address || !rq->init.port)
		ws_err_set(err, WS_EINPUT,
		           "group '%.100s' does not exist, and to create it master_address "
		           "and master_port are needed",
		           rq->init.group);
	else if (ws_serve_form_group(s, &rq->init, err) == 0)
		return ws_serve_find_group(s, rq->init.group);
	return NULL;
}

/* Marks the parameters as loaded. Returns their number, and their bytes at all ranks. */
static size_t mark_params(struct ws_serve *s, const struct ws_serve_scatter *x, uint64_t *bytes)
{
	struct ws_serve_model *m = s->model;
	const size_t n_params = ws_layout_param_count(m->layout);
	bool *seen = calloc(n_params + 1, sizeof *seen);
	size_t n = 0;
	*bytes = 0;
	for (size_t i = 0; i < x->n; i++) {
		const size_t param = x->pieces[i].param;
		const struct ws_param *p = ws_layout_param(m->layout, param);
		for (unsigned r = 0; r < m->tp; r++) {
			struct ws_gloo_transfer t;
			place(x, r, &x->pieces[i], &t);
			*bytes += t.sink.length;
		}
		n += seen && !seen[param];
		if (seen)
			seen[param] = true;
		ws_serve_mark_loaded(m, p->first, p->n_parts, m->dtypes[param]);
	}
	free(seen);
	return n;
}

static void finish(struct ws_serve_call *c, const struct ws_serve_share_rq *rq,
                   const struct ws_serve_scatter *x, struct ws_serve_corrupted *corrupted)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_update u = { .group = rq->init.group,
		                     .flush = rq->flush && !rq->skip_flush };
	char text[96];
	u.n = mark_params(s, x, &u.bytes);
	ws_serve_corrupt_end(s, corrupted, &c->note);
	ws_serve_note_update(&c->note, &u);
	ws_serve_count_update(s, &u, &c->note);
	snprintf(text, sizeof text,
	         "Updated %zu params in-place from %lld EP ranks (2-phase batched)", u.n,
	         (long long)rq->world);
	ws_serve_finish_update(c, &u, text);
}

/* Lists each parameter once, even if it has several pieces. */
static int find_corrupted(struct ws_serve *s, const struct ws_serve_scatter *x,
                          const struct ws_serve_fault *due, struct ws_serve_corrupted **out,
                          struct ws_err *err)
{
	struct ws_serve_slot *slots = calloc(x->n + 1, sizeof *slots);
	size_t n = 0;
	if (!slots)
		return ws_oom(err);
	for (size_t i = 0; i < x->n; i++) {
		const char *name = ws_layout_param(s->model->layout, x->pieces[i].param)->name;
		size_t k = 0;
		while (k < n && slots[k].name != name)
			k++;
		if (k == n)
			slots[n++].name = name;
	}
	const int rc = ws_serve_corrupt_begin(s, due, slots, n, out, err);
	free(slots);
	return rc;
}

/* In the scheduler. */
static void scatter(struct ws_serve_call *c, const struct ws_serve_share_rq *rq)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_scatter x = { .model = s->model, .fault = c->fault };
	struct ws_err err = WS_ERR_INIT;
	struct ws_serve_group *g = NULL;
	struct ws_serve_corrupted *corrupted = NULL;
	if (!ws_serve_has_weights(c) || !ws_serve_may_free_kv(c, rq->free_kv))
		return;
	int rc = s->model && s->opts.keep == WS_KEEP_MEMORY ?
	                 0 :
	                 ws_err_set(&err, WS_EINPUT,
	                            "this endpoint has no parameters to receive into");
	if (rc == 0)
		rc = ws_serve_scatter_plan(&x, rq, s->opts.log, &err);
	if (rc == 0)
		rc = (g = join(s, rq, &err)) ? 0 : -1;
	if (rc == 0)
		rc = find_corrupted(s, &x, c->corrupt, &corrupted, &err);
	if (rc == 0)
		rc = ws_serve_group_work(g, receive, &x, ws_deadline_in(s->opts.receive_ns), &err);
	c->rp->drop = rc && g && ws_serve_fault_ends(c->fault);
	if (rc) {
		ws_serve_corrupt_free(corrupted);
		ws_serve_answer(c, false, "%s", err.msg);
	} else {
		finish(c, rq, &x, corrupted);
	}
	ws_serve_scatter_fini(&x);
}

void ws_serve_route_scatter(struct ws_serve_call *c)
{
	struct ws_serve_share_rq rq;
	if (ws_serve_scatter_decode(c->serve, c->body, &rq, &c->invalid))
		return;
	snprintf(c->note.group, sizeof c->note.group, "%s", rq.init.group);
	if (ws_serve_begin_update(c, false)) {
		scatter(c, &rq);
		ws_serve_end_update(c);
	}
}
