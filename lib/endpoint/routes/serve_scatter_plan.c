/* SPDX-License-Identifier: Apache-2.0 */
/* serve_scatter_plan.c - decodes a scatter request, and plans its pieces and batches.
 *
 *   phase 1  experts: one batch per layer, in ascending order of layers, then in the plan's order
 *   phase 2  all other parameters, whole, in the plan's order, non_expert_batch_size in a batch
 *
 * Without plans, every expert parameter is cut by num_experts_per_rank, all in one batch. The other
 * parameters come from rank 0 in another batch. */
#include "serve_scatter.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PIECES = 1 << 22 };

/* ---- pieces ---- */

static int add_piece(struct ws_serve_scatter *x, const struct ws_serve_piece *p, struct ws_err *err)
{
	if (x->n == MOST_PIECES)
		return ws_err_set(err, WS_EUSAGE, "body: more than %d pieces", MOST_PIECES);
	if (x->n == x->cap) {
		const size_t cap = x->cap ? 2 * x->cap : 256;
		struct ws_serve_piece *more = realloc(x->pieces, cap * sizeof *more);
		if (!more)
			return ws_oom(err);
		x->pieces = more;
		x->cap = cap;
	}
	x->pieces[x->n] = *p;
	x->pieces[x->n].order = x->n;
	x->n++;
	return 0;
}

static bool find_param(const struct ws_serve_scatter *x, const char *name, size_t *out,
                       const struct ws_log *log)
{
	const struct ws_layout *l = x->model->layout;
	const struct ws_param *p = name ? ws_layout_find_param(l, name) : NULL;
	if (!p)
		ws_log(log, 1, "ep_scatter: unknown parameter %.200s is skipped",
		       name ? name : "?");
	else
		*out = (size_t)(p - ws_layout_param(l, 0));
	return p != NULL;
}

/* Returns the number in ".layers.<i>.", or -1. */
static int64_t layer_of(const char *name)
{
	static const char key[] = ".layers.";
	const char *at = strstr(name, key);
	char *end = NULL;
	if (!at)
		return -1;
	const long long value = strtoll(at + sizeof key - 1, &end, 10);
	return end != at + sizeof key - 1 && *end == '.' && value >= 0 ? value : -1;
}

static int end_batch(struct ws_serve_scatter *x, size_t end, struct ws_err *err)
{
	const size_t before = x->n_batches ? x->ends[x->n_batches - 1] : 0;
	if (end == before)
		return 0;
	size_t *more = realloc(x->ends, (x->n_batches + 1) * sizeof *more);
	if (!more)
		return ws_oom(err);
	x->ends = more;
	x->ends[x->n_batches++] = end;
	return 0;
}

static int field(const struct ws_json *entry, const char *key, int64_t lo, int64_t hi, int64_t *out,
                 struct ws_err *err)
{
	if (ws_serve_field_int(entry, key, out, err))
		return -1;
	if (*out < lo || *out > hi)
		return ws_err_set(err, WS_EUSAGE, "body.%s: %lld is not between %lld and %lld", key,
		                  (long long)*out, (long long)lo, (long long)hi);
	return 0;
}

static int add_ranges(struct ws_serve_scatter *x, const struct ws_serve_share_rq *rq,
                      const struct ws_json *entry, struct ws_serve_piece *p, struct ws_err *err)
{
	const struct ws_json *ranges = ws_json_get(entry, "expert_ranges");
	if (ws_json_type(ranges) != WS_JSON_OBJECT)
		return ws_err_set(err, WS_EUSAGE, "body.expert_ranges: Field required");
	for (const struct ws_json *r = ws_json_first(ranges); r; r = ws_json_next(r)) {
		int64_t source = 0;
		if (field(r, "start", 0, INT32_MAX, &p->from, err) ||
		    field(r, "end", 0, INT32_MAX, &p->to, err) ||
		    field(r, "source_nccl_rank", 0, rq->world - 1, &source, err))
			return -1;
		p->source = (unsigned)source;
		if (add_piece(x, p, err))
			return -1;
	}
	return 0;
}

static int by_layer(const void *a, const void *b)
{
	const struct ws_serve_piece *x = a, *y = b;
	if (x->layer != y->layer)
		return x->layer < y->layer ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

/* Experts whose names have no layer are never received. */
static int plan_experts(struct ws_serve_scatter *x, const struct ws_serve_share_rq *rq,
                        const struct ws_log *log, struct ws_err *err)
{
	for (const struct ws_json *e = ws_json_first(rq->experts); e; e = ws_json_next(e)) {
		const char *name = ws_json_get_string(e, "weight_name", NULL);
		struct ws_serve_piece p = { .layer = name ? layer_of(name) : -1 };
		if (!name)
			return ws_err_set(err, WS_EUSAGE, "body.weight_name: Field required");
		if (p.layer >= 0 && find_param(x, name, &p.param, log) &&
		    add_ranges(x, rq, e, &p, err))
			return -1;
	}
	if (x->n)
		qsort(x->pieces, x->n, sizeof *x->pieces, by_layer);
	for (size_t i = 1; i < x->n; i++)
		if (x->pieces[i].layer != x->pieces[i - 1].layer && end_batch(x, i, err))
			return -1;
	return end_batch(x, x->n, err);
}

static int plan_others(struct ws_serve_scatter *x, const struct ws_serve_share_rq *rq,
                       const struct ws_log *log, struct ws_err *err)
{
	int64_t in_batch = 0;
	for (const struct ws_json *e = ws_json_first(rq->others); e; e = ws_json_next(e)) {
		const char *name = ws_json_get_string(e, "weight_name", NULL);
		const int64_t source = ws_json_get_int(e, "source_nccl_rank", 0);
		struct ws_serve_piece p = { .to = -1, .source = (unsigned)source };
		if (!name || source < 0 || source >= rq->world)
			return ws_err_set(err, WS_EUSAGE, "body.non_expert_transfer_plan: %s",
			                  name ? "no such training rank" :
			                         "weight_name: Field required");
		if (find_param(x, name, &p.param, log) && add_piece(x, &p, err))
			return -1;
		if (++in_batch == rq->batch) {
			in_batch = 0;
			if (end_batch(x, x->n, err))
				return -1;
		}
	}
	return end_batch(x, x->n, err);
}

static bool is_expert(const char *name)
{
	return strstr(name, ".experts.") || strstr(name, "w13_weight") || strstr(name, "w2_weight");
}

static int plan_names(struct ws_serve_scatter *x, const struct ws_serve_share_rq *rq, bool experts,
                      const struct ws_log *log, struct ws_err *err)
{
	for (const struct ws_json *n = ws_json_first(rq->names); n; n = ws_json_next(n)) {
		const char *name = ws_json_string(n);
		struct ws_serve_piece p = { .to = -1 };
		if (is_expert(name) != experts || !find_param(x, name, &p.param, log))
			continue;
		const int64_t parts = experts ? rq->world : 1;
		for (int64_t r = 0; r < parts; r++) {
			p.source = (unsigned)r;
			p.from = experts ? r * rq->per_rank : 0;
			p.to = experts ? (r + 1) * rq->per_rank : -1;
			if (add_piece(x, &p, err))
				return -1;
		}
	}
	return end_batch(x, x->n, err);
}

int ws_serve_scatter_plan(struct ws_serve_scatter *x, const struct ws_serve_share_rq *rq,
                          const struct ws_log *log, struct ws_err *err)
{
	if (rq->experts || rq->others)
		return plan_experts(x, rq, log, err) || plan_others(x, rq, log, err) ? -1 : 0;
	return plan_names(x, rq, true, log, err) || plan_names(x, rq, false, log, err) ? -1 : 0;
}

/* ---- the request ---- */

static int decode_int(const struct ws_json *body, const char *key, int64_t lo, int64_t hi,
                      int64_t *out, struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, key);
	return node && ws_json_type(node) != WS_JSON_NULL ? field(body, key, lo, hi, out, err) : 0;
}

static int check_names(const struct ws_serve_share_rq *rq, struct ws_err *err)
{
	for (const struct ws_json *n = ws_json_first(rq->names); n; n = ws_json_next(n))
		if (!ws_json_string(n))
			return ws_err_set(err, WS_EUSAGE,
			                  "body.weight_names: Input should be a valid string");
	return 0;
}

static int decode_group(const struct ws_serve *s, const struct ws_json *body,
                        struct ws_serve_share_rq *rq, struct ws_err *err)
{
	int64_t port = 0, offset = rq->world, tp = s->opts.tp;
	if (ws_serve_field_str(body, "group_name", false, &rq->init.group, err) ||
	    ws_serve_field_str(body, "master_address", false, &rq->init.address, err) ||
	    decode_int(body, "master_port", 1, 65535, &port, err) ||
	    decode_int(body, "rank_offset", 1, WS_SERVE_MAX_WORLD, &offset, err) ||
	    decode_int(body, "total_inference_world_size", 1, WS_SERVE_MAX_WORLD, &tp, err))
		return -1;
	rq->init.backend = "gloo";
	rq->init.port = (uint16_t)port;
	rq->init.rank_offset = (unsigned)offset;
	rq->init.world_size = (unsigned)(rq->world + tp);
	return 0;
}

int ws_serve_scatter_decode(const struct ws_serve *s, const struct ws_json *body,
                            struct ws_serve_share_rq *rq, struct ws_err *err)
{
	bool recapture = false;
	int64_t unused; /* for fields that are only checked */
	*rq = (struct ws_serve_share_rq){ .init = { .group = "ep_scatter_group" },
		                          .world = 8,
		                          .per_rank = 16,
		                          .batch = 50,
		                          .flush = true };
	return ws_serve_field_list(body, "weight_names", true, &rq->names, err) ||
	       check_names(rq, err) ||
	       decode_int(body, "training_world_size", 1, WS_SERVE_MAX_WORLD, &rq->world, err) ||
	       decode_int(body, "num_experts_per_rank", 1, INT32_MAX, &rq->per_rank, err) ||
	       decode_int(body, "total_num_experts", 1, INT32_MAX, &unused, err) ||
	       decode_int(body, "inference_tp_size", 1, INT32_MAX, &unused, err) ||
	       decode_int(body, "non_expert_batch_size", 1, INT32_MAX, &rq->batch, err) ||
	       ws_serve_field_list(body, "expert_transfer_plan", false, &rq->experts, err) ||
	       ws_serve_field_list(body, "non_expert_transfer_plan", false, &rq->others, err) ||
	       ws_serve_field_bool(body, "flush_cache", &rq->flush, err) ||
	       ws_serve_field_bool(body, "skip_flush_cache", &rq->skip_flush, err) ||
	       ws_serve_field_bool(body, "free_kv_cache_before_recv", &rq->free_kv, err) ||
	       ws_serve_field_bool(body, "recapture_cuda_graph", &recapture, err) ||
	       decode_group(s, body, rq, err) ? -1 : 0;
}

void ws_serve_scatter_fini(struct ws_serve_scatter *x)
{
	free(x->pieces);
	free(x->ends);
	*x = (struct ws_serve_scatter){ 0 };
}
