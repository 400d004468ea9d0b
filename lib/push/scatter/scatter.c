/* SPDX-License-Identifier: Apache-2.0 */
/* scatter.c - chooses and orders the parameters to send, and describes them in the request. Their
 * bytes: scatter_bytes.c. */
#include "scatter_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- order ----------------------------------------------------------------------------------- */

/* The number after ".layers.", as servers find it; -1: none. */
static int64_t layer_of(const char *name)
{
	static const char mark[] = ".layers.";
	const char *at = strstr(name, mark);
	int64_t layer = 0;
	if (!at)
		return -1;
	at += sizeof mark - 1;
	if (*at < '0' || *at > '9')
		return -1;
	for (; *at >= '0' && *at <= '9' && layer < INT32_MAX; at++)
		layer = layer * 10 + (*at - '0');
	return *at == '.' ? layer : -1;
}

static int64_t expert_layer(const struct ws_param *p)
{
	const bool expert = strstr(p->name, ".experts.") && p->n_dims == 3;
	return expert ? layer_of(p->name) : -1;
}

/* Experts by layer, then the rest; otherwise in the order of the layout. */
static int by_batch(const void *a, const void *b)
{
	const struct ws_scatter_entry *x = a, *y = b;
	if (x->layer != y->layer)
		return x->layer < 0 ? 1 : y->layer < 0 ? -1 : x->layer < y->layer ? -1 : 1;
	return x->param < y->param ? -1 : x->param > y->param;
}

uint64_t ws_scatter_entry_bytes(const struct ws_scatter *s, const struct ws_scatter_entry *e)
{
	const struct ws_part *part = ws_layout_part(s->opts.layout, e->param->first);
	uint64_t sum = 0, bytes = 0;
	for (unsigned r = 0; r < s->tp; r++) {
		int64_t dims[WS_MAX_DIMS];
		ws_layout_dims(s->opts.layout, e->param, r, dims);
		if (ws_dtype_bytes(part->exact ? part->dtype : s->opts.dtype, e->param->n_dims,
		                   dims, &bytes))
			sum += bytes;
	}
	return sum;
}

static void make_batches(struct ws_scatter *s)
{
	struct ws_scatter_batch *b = NULL;
	for (size_t i = 0; i < s->n_entries; i++) {
		const struct ws_scatter_entry *e = &s->entries[i];
		if (!b || e->layer != s->entries[b->first].layer ||
		    (e->layer < 0 && b->n == WS_SCATTER_CHUNK)) {
			b = &s->batches[s->n_batches++];
			b->first = i;
		}
		b->n++;
		b->bytes += ws_scatter_entry_bytes(s, e);
	}
}

/* ---- tensors and parameters ------------------------------------------------------------------ */

const struct ws_plan_tensor *ws_scatter_tensor(const struct ws_scatter *s,
                                               const struct ws_part *part)
{
	return ws_plan_find(s->opts.plan, s->sorted, part->name);
}

static int check_tensor(const struct ws_scatter *s, const struct ws_part *part,
                        const struct ws_plan_tensor *t, struct ws_err *err)
{
	const enum ws_dtype dtype = part->exact ? part->dtype : s->opts.dtype;
	if (t->dtype != dtype)
		return ws_err_set(err, WS_EREFUSED,
		                  "tensor %s is %s, but the server keeps it as %s: single "
		                  "parameters must have the server's dtype",
		                  t->name, ws_dtype_torch(t->dtype), ws_dtype_torch(dtype));
	if (t->n_dims != part->n_dims || memcmp(t->dims, part->dims, t->n_dims * sizeof *t->dims))
		return ws_err_set(err, WS_EREFUSED,
		                  "tensor %s has another shape than the server's config says",
		                  t->name);
	return 0;
}

static const struct ws_weight *find_listed(const struct ws_weight_list *list, const char *name)
{
	for (size_t i = 0; i < list->n; i++)
		if (strcmp(list->items[i].name, name) == 0)
			return &list->items[i];
	return NULL;
}

static int check_listed(const struct ws_scatter *s, const struct ws_param *p, struct ws_err *err)
{
	const struct ws_weight *w = find_listed(s->opts.listing, p->name);
	int64_t dims[WS_MAX_DIMS];
	ws_layout_dims(s->opts.layout, p, 0, dims);
	if (!w)
		return ws_err_set(err, WS_EREFUSED,
		                  "the server has no parameter %s, and might wait for it forever",
		                  p->name);
	if (w->n_dims != p->n_dims || memcmp(w->dims, dims, p->n_dims * sizeof *dims))
		return ws_err_set(err, WS_EREFUSED,
		                  "the server's parameter %s has another shape than its config "
		                  "says",
		                  p->name);
	return 0;
}

/* 1: the parameter is sent; 0: it is tied, or no tensor of it is in the plan. */
static int want(const struct ws_scatter *s, const struct ws_param *p, struct ws_err *err)
{
	const struct ws_part *missing = NULL;
	size_t found = 0;
	for (size_t i = 0; i < p->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(s->opts.layout, p->first + i);
		const struct ws_plan_tensor *t = ws_scatter_tensor(s, part);
		if (t && check_tensor(s, part, t, err))
			return -1;
		found += t != NULL;
		if (!t)
			missing = part;
	}
	if (!found && s->opts.complete && !p->tied_to && find_listed(s->opts.listing, p->name))
		return ws_err_set(err, WS_EREFUSED,
		                  "no sender has %s, which parameter %s is made of",
		                  missing ? missing->name : "anything", p->name);
	if (!found || p->tied_to)
		return 0;
	if (missing)
		return ws_err_set(err, WS_EREFUSED,
		                  "parameter %s must be sent whole, but %s is not sent",
		                  p->name, missing->name);
	if (p->trouble)
		return ws_err_set(err, WS_EREFUSED, "parameter %s: %s", p->name, p->trouble);
	return check_listed(s, p, err) ? -1 : 1;
}

static int add_entries(struct ws_scatter *s, struct ws_err *err)
{
	const size_t n = ws_layout_param_count(s->opts.layout);
	for (size_t i = 0; i < n; i++) {
		const struct ws_param *p = ws_layout_param(s->opts.layout, i);
		const int wanted = want(s, p, err);
		if (wanted < 0)
			return -1;
		if (wanted)
			s->entries[s->n_entries++] =
				(struct ws_scatter_entry){ .param = p, .layer = expert_layer(p) };
	}
	if (!s->n_entries)
		return ws_err_set(err, WS_EREFUSED,
		                  "no tensor that is sent is a parameter of the server");
	qsort(s->entries, s->n_entries, sizeof *s->entries, by_batch);
	return 0;
}

int ws_scatter_make(const struct ws_scatter_opts *opts, struct ws_scatter **out, struct ws_err *err)
{
	const size_t n_params = ws_layout_param_count(opts->layout);
	struct ws_scatter *s = calloc(1, sizeof *s);
	if (!s || !(s->entries = calloc(n_params + 1, sizeof *s->entries)) ||
	    !(s->batches = calloc(n_params + 1, sizeof *s->batches)) ||
	    !(s->sorted = ws_plan_index(opts->plan))) {
		ws_scatter_free(s);
		return ws_oom(err);
	}
	s->opts = *opts;
	s->tp = ws_layout_options(opts->layout)->tp;
	s->tp = s->tp ? s->tp : 1;
	if (add_entries(s, err) || ws_scatter_share(s, err)) {
		ws_scatter_free(s);
		return -1;
	}
	make_batches(s);
	*out = s;
	return 0;
}

void ws_scatter_free(struct ws_scatter *s)
{
	if (!s)
		return;
	free(s->entries);
	free(s->ranges);
	free(s->batches);
	free(s->sorted);
	free(s);
}

/* ---- the request ----------------------------------------------------------------------------- */

static void write_shape(struct ws_jw *w, const struct ws_param *p, int64_t first)
{
	ws_jw_array(w, "per_transfer_shape");
	for (unsigned d = 0; d < p->n_dims; d++)
		ws_jw_int(w, NULL, d ? p->dims[d] : first);
	ws_jw_end_array(w);
}

static void write_expert(const struct ws_scatter *s, struct ws_jw *w,
                         const struct ws_scatter_entry *e)
{
	const struct ws_scatter_range *ranges = &s->ranges[e->first_range];
	ws_jw_object(w, NULL);
	ws_jw_str(w, "weight_name", e->param->name);
	ws_jw_bool(w, "is_expert_weight", true);
	ws_jw_uint(w, "transfers_per_weight", e->n_ranges);
	write_shape(w, e->param, ranges->to - ranges->from);
	ws_jw_object(w, "expert_ranges");
	for (size_t i = 0; i < e->n_ranges; i++) {
		char key[24];
		snprintf(key, sizeof key, "%zu", i);
		ws_jw_object(w, key);
		ws_jw_int(w, "start", ranges[i].from);
		ws_jw_int(w, "end", ranges[i].to);
		ws_jw_uint(w, "source_nccl_rank", ranges[i].sender);
		ws_jw_end_object(w);
	}
	ws_jw_end_object(w);
	ws_jw_end_object(w);
}

static void write_other(const struct ws_scatter *s, struct ws_jw *w,
                        const struct ws_scatter_entry *e)
{
	ws_jw_object(w, NULL);
	ws_jw_str(w, "weight_name", e->param->name);
	ws_jw_uint(w, "source_nccl_rank", s->ranges[e->first_range].sender);
	write_shape(w, e->param, e->param->dims[0]);
	ws_jw_end_object(w);
}

void ws_scatter_write(const struct ws_scatter *s, struct ws_jw *w)
{
	const struct ws_scatter_entry *first = &s->entries[0];
	const int64_t experts = first->layer >= 0 ? first->param->dims[0] : 0;
	const unsigned ep = ws_layout_options(s->opts.layout)->ep;
	ws_jw_array(w, "weight_names");
	for (size_t i = 0; i < s->n_entries; i++)
		ws_jw_str(w, NULL, s->entries[i].param->name);
	ws_jw_end_array(w);
	ws_jw_array(w, "expert_transfer_plan");
	for (size_t i = 0; i < s->n_entries; i++)
		if (s->entries[i].layer >= 0)
			write_expert(s, w, &s->entries[i]);
	ws_jw_end_array(w);
	ws_jw_array(w, "non_expert_transfer_plan");
	for (size_t i = 0; i < s->n_entries; i++)
		if (s->entries[i].layer < 0)
			write_other(s, w, &s->entries[i]);
	ws_jw_end_array(w);
	ws_jw_uint(w, "non_expert_batch_size", WS_SCATTER_CHUNK);
	ws_jw_uint(w, "training_world_size", s->opts.senders);
	if (experts) {
		ws_jw_int(w, "num_experts_per_rank",
		          (experts + s->opts.senders - 1) / s->opts.senders);
		ws_jw_int(w, "total_num_experts", experts * (ep ? ep : 1));
	}
	ws_jw_uint(w, "inference_tp_size", s->tp);
}
