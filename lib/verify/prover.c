/* SPDX-License-Identifier: Apache-2.0 */
/* prover.c - see prover.h. Servers of one kind share a table of predictions, which are computed in
 * the background, parameter by parameter, in the order of the layout. */
#include "prover_core.h"

#include "hashes.h"
#include "verify_kind.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 1024 };

int ws_prover_open(const struct ws_prover_opts *opts, size_t n, struct ws_prover **out,
                   struct ws_err *err)
{
	struct ws_prover *p = calloc(1, sizeof *p);
	if (p) {
		p->opts = *opts;
		p->n = n;
		p->servers = calloc(n + 1, sizeof *p->servers);
		p->tables = calloc(n + 1, sizeof *p->tables);
	}
	*out = p;
	if (p && p->servers && p->tables)
		return 0;
	ws_prover_close(p);
	*out = NULL;
	return ws_oom(err);
}

static void free_table(struct prover_table *t)
{
	for (size_t i = 0; t->cells && i < t->n_params * t->tp; i++)
		free(t->cells[i].why);
	free(t->cells);
	free(t->unproven);
	free(t->scope);
	free(t->tied);
	free(t->kinds);
	free(t->of_kind);
	ws_predict_close(t->predict);
	ws_layout_free(t->layout);
	*t = (struct prover_table){ 0 };
}

void ws_prover_close(struct ws_prover *p)
{
	if (!p)
		return;
	ws_parallel_end(&p->work);
	for (size_t i = 0; p->tables && i < p->n_tables; i++)
		free_table(&p->tables[i]);
	for (size_t i = 0; p->servers && i < p->n; i++)
		ws_checksums_free(&p->servers[i].before);
	free(p->tables);
	free(p->servers);
	free(p);
}

/* ---- tables ---- */

bool prover_is_replicated(const struct ws_layout *l, const struct ws_param *param)
{
	for (size_t i = 0; i < param->n_parts; i++) {
		const struct ws_part *part = ws_layout_part(l, param->first + i);
		if (part->split != WS_SPLIT_NONE || part->ep)
			return false;
	}
	return true;
}

const struct prover_cell *prover_cell(const struct prover_table *t, size_t param, unsigned rank)
{
	const struct ws_param *of = ws_layout_param(t->layout, param);
	return &t->cells[param * t->tp + (prover_is_replicated(t->layout, of) ? 0 : rank)];
}

static const struct ws_config *config_of(const struct ws_prover *p,
                                         const struct ws_name_check_target *t)
{
	return t->config ? t->config : p->opts.input->config;
}

int prover_refuse(const struct ws_endpoint_info *info, const char *why, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s: nothing can be proven: %s", info->url, why);
	return ws_err_where(err, NULL, info->url);
}

int ws_prover_refuses(const struct ws_checksums *sums, const char *url, struct ws_err *err)
{
	if (!sums->algorithm[0])
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s: its checksums are %s, which cannot be compared", url,
	           sums->algorithm);
	return ws_err_where(err, NULL, url);
}

/* vLLM hashes the bytes of each parameter (0.32, 0.33). SGLang hashes on the device that has the
 * tensor: by a kernel with CUDA and ROCm, else by SHA-256 (managers/mm_utils.py). */
static int choose_fn(const struct ws_endpoint_info *info, enum ws_checksum_fn *fn,
                     struct ws_err *err)
{
	static const char *const others[] = { "cpu", "xpu", "npu" };
	if (ws_lineage_family(info->lineage) == WS_FAMILY_VLLM) {
		*fn = WS_CHECKSUM_SHA256;
		return 0;
	}
	*fn = WS_CHECKSUM_SGLANG_CUDA;
	if (strcmp(info->device, "cuda") == 0 && info->offloads)
		return prover_refuse(info, "it keeps some weights in CPU memory, whose checksums "
		                     "are others", err);
	if (strcmp(info->device, "cuda") == 0)
		return 0;
	*fn = WS_CHECKSUM_SGLANG_CPU;
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		if (strcmp(info->device, others[i]) == 0)
			return 0;
	return prover_refuse(info, info->device[0] ? "the checksums of its device are not known" :
	                                      "it does not report its device, so the function of "
	                                      "its checksums is unknown", err);
}

/* The plan's tensors that go to no parameter, though the server does not ignore them. */
static uint64_t count_strange(const struct ws_prover *p, const struct ws_layout *l)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < p->opts.plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &p->opts.plan->tensors[i];
		if (!ws_layout_find_part(l, t->name) && !ws_layout_skips(l, t->name))
			bytes += t->bytes;
	}
	return bytes;
}

/* Do the globs choose a tensor of it, whether it is sent or not? */
static bool is_chosen(const struct ws_prover_opts *o, const struct ws_layout *l,
                      const struct ws_param *param)
{
	bool chosen = !param->n_parts;
	for (size_t i = 0; i < param->n_parts && !chosen; i++)
		chosen = ws_glob_choose(o->include, o->n_include, o->exclude, o->n_exclude,
		                        ws_layout_part(l, param->first + i)->name);
	return chosen;
}

static void measure(const struct ws_prover *p, struct prover_table *t)
{
	t->strange = count_strange(p, t->layout);
	for (size_t i = 0; i < t->n_params; i++) {
		const struct ws_param *param = ws_layout_param(t->layout, i);
		t->scope[i] = ws_predict_tensors(t->predict, i) > 0 ||
		              (p->opts.whole && !param->tied_to &&
		               is_chosen(&p->opts, t->layout, param));
		if (t->scope[i] && param->tied_to)
			t->tied[t->n_tied++] = i;
	}
}

struct named_kind {
	char *kind;
	size_t param;
};

static int by_kind(const void *a, const void *b)
{
	return strcmp(((const struct named_kind *)a)->kind, ((const struct named_kind *)b)->kind);
}

const char *prover_kind(const struct prover_table *t, size_t param, char kind[PROVER_KIND_MAX])
{
	const struct ws_param *of = ws_layout_param(t->layout, param);
	const struct ws_part *part = of->n_parts ? ws_layout_part(t->layout, of->first) : NULL;
	char name[WS_KIND_MAX];
	snprintf(kind, PROVER_KIND_MAX, "%s %s", verify_kind(of->name, name),
	         part ? ws_dtype_torch(part->dtype) : "");
	return kind;
}

static int find_kinds(struct prover_table *t, struct ws_err *err)
{
	char kind[PROVER_KIND_MAX];
	struct named_kind *all = calloc(t->n_params + 1, sizeof *all);
	int rc = all ? 0 : ws_oom(err);
	for (size_t i = 0; rc == 0 && i < t->n_params; i++) {
		all[i].param = i;
		all[i].kind = strdup(prover_kind(t, i, kind));
		rc = all[i].kind ? 0 : ws_oom(err);
	}
	if (rc == 0)
		qsort(all, t->n_params, sizeof *all, by_kind);
	for (size_t i = 0; rc == 0 && i < t->n_params; i++) {
		if (i == 0 || by_kind(&all[i - 1], &all[i]))
			t->of_kind[t->n_kinds++] = (uint32_t)all[i].param;
		t->kinds[all[i].param] = (uint32_t)(t->n_kinds - 1);
	}
	for (size_t i = 0; all && i < t->n_params; i++)
		free(all[i].kind);
	free(all);
	return rc;
}

static int fill_table(const struct ws_prover *p, const struct ws_endpoint_info *info,
                      struct prover_table *t, struct ws_err *err)
{
	char why[512] = "its model is not known";
	t->tp = info->tp_size;
	t->dtype = ws_name_check_dtype(info, config_of(p, t->target));
	t->own_config = t->target->config || p->opts.input->named;
	if (choose_fn(info, &t->fn, err) ||
	    ws_name_check_layout(p->opts.input, t->target, &t->layout, why, sizeof why, err))
		return -1;
	if (!t->layout)
		return prover_refuse(info, why, err);
	t->n_params = ws_layout_param_count(t->layout);
	t->cells = calloc(t->n_params * t->tp + 1, sizeof *t->cells);
	t->scope = calloc(t->n_params + 1, sizeof *t->scope);
	t->tied = calloc(t->n_params + 1, sizeof *t->tied);
	t->kinds = calloc(t->n_params + 1, sizeof *t->kinds);
	t->of_kind = calloc(t->n_params + 1, sizeof *t->of_kind);
	if (!t->cells || !t->scope || !t->tied || !t->kinds || !t->of_kind)
		return ws_oom(err);
	const struct ws_predict_opts opts = {
		.layout = t->layout, .plan = p->opts.plan, .fn = t->fn, .cancel = &p->work.stop,
		.dtype = t->dtype == WS_DTYPE_COUNT ? NULL : &t->dtype,
	};
	if (ws_predict_open(&opts, &t->predict, err))
		return -1;
	measure(p, t);
	return find_kinds(t, err);
}

static struct prover_table *find_table(struct ws_prover *p, const struct ws_endpoint_info *info,
                                       const struct ws_name_check_target *target)
{
	enum ws_checksum_fn fn = WS_CHECKSUM_SGLANG_CPU;
	if (choose_fn(info, &fn, NULL))
		return NULL;
	for (size_t i = 0; i < p->n_tables; i++) {
		struct prover_table *t = &p->tables[i];
		if (ws_name_check_same(t->target, target) && t->fn == fn &&
		    t->tp == info->tp_size &&
		    t->dtype == ws_name_check_dtype(info, config_of(p, target)) &&
		    t->own_config == (target->config || p->opts.input->named))
			return t;
	}
	return NULL;
}

int ws_prover_add(struct ws_prover *p, size_t i, const struct ws_endpoint_info *info,
                  const struct ws_name_check_target *target, struct ws_err *err)
{
	if (ws_endpoint_check_tp(info, err))
		return -1;
	if (info->tp_size > MAX_RANKS || info->dp_size > MAX_RANKS)
		return prover_refuse(info, "it reports more than 1024 ranks or replicas", err);
	struct prover_table *t = find_table(p, info, target);
	if (!t) {
		t = &p->tables[p->n_tables];
		t->target = target;
		if (fill_table(p, info, t, err) || prover_check_any(t, info, err)) {
			free_table(t);
			return -1;
		}
		p->n_tables++;
	}
	p->servers[i] = (struct prover_server){ .table = t, .info = info, .target = target };
	return 0;
}

bool ws_prover_has(const struct ws_prover *p, size_t i)
{
	return p && p->servers[i].table;
}

void ws_prover_before(struct ws_prover *p, size_t i, struct ws_checksums *sums)
{
	struct prover_server *s = &p->servers[i];
	ws_checksums_free(&s->before);
	s->before = *sums;
	*sums = (struct ws_checksums){ 0 };
	for (size_t r = 0; r < s->before.n_ranks; r++)
		qsort(s->before.ranks[r].items, s->before.ranks[r].n,
		      sizeof *s->before.ranks[r].items, ws_checksum_by_name);
}

/* ---- predictions ---- */

static int keep(struct prover_cell *cell, const struct ws_prediction *is, struct ws_err *err)
{
	cell->state = is->state;
	cell->bytes = is->bytes;
	cell->constant = is->constant;
	memcpy(cell->checksum, is->checksum, sizeof cell->checksum);
	memcpy(cell->rewritten, is->rewritten, sizeof cell->rewritten);
	if (is->state != WS_PREDICT_OPAQUE)
		return 0;
	cell->why = strdup(is->why);
	return cell->why ? 0 : ws_oom(err);
}

static int predict_one(void *ctx, size_t item, struct ws_err *err)
{
	struct ws_prover *p = ctx;
	struct prover_table *t = p->tables;
	struct ws_prediction is;
	for (; item >= t->n_params * t->tp; t++)
		item -= t->n_params * t->tp;
	const size_t param = item / t->tp;
	const unsigned rank = (unsigned)(item % t->tp);
	const struct ws_param *of = ws_layout_param(t->layout, param);
	if (!t->scope[param] || prover_cell(t, param, rank) != &t->cells[item])
		return 0;
	const struct ws_trace_what hash = { .row = WS_TRACE_VERIFY,
		                            .name = "hash",
		                            .about = of->name };
	const uint64_t span = ws_trace_begin(p->opts.trace, &hash);
	const int rc = ws_predict(t->predict, param, rank, &is, err) ||
	               keep(&t->cells[item], &is, err) ? -1 : 0;
	ws_trace_end(p->opts.trace, span,
	             &(struct ws_trace_end){ .bytes = rc ? 0 : is.bytes, .unfinished = rc != 0 });
	if (rc == 0)
		__atomic_fetch_add(&p->bytes, is.bytes, __ATOMIC_RELAXED);
	return rc;
}

int ws_prover_begin(struct ws_prover *p, struct ws_err *err)
{
	size_t n = 0;
	if (p->work.begun)
		return 0;
	for (size_t i = 0; i < p->n_tables; i++) {
		n += p->tables[i].n_params * p->tables[i].tp;
		p->total += p->opts.plan->bytes;
	}
	return ws_parallel_begin(&p->work, n, p->opts.threads, predict_one, p, err);
}

int ws_prover_wait(struct ws_prover *p, struct ws_http *http, ws_deadline until,
                   const struct ws_sink *progress, struct ws_err *err)
{
	const struct ws_hashing_wait w = { http, until, p->opts.cancel, progress, &p->bytes,
		                           p->total };
	return ws_hashing_wait(&p->work, &w, err);
}
