/* SPDX-License-Identifier: Apache-2.0 */
/* transform.c - builds the new catalog: decides for each tensor, from headers and small tables.
 *
 * An item stays as it is, is replaced by a tensor of an adapter, or is computed (fused_weight.h);
 * the scales of a quantized item follow it. The parts of a packed weight (scales, tables) are left
 * out if the weight is unpacked. */
#include "transform_core.h"

#include "catalog_build.h"
#include "floats.h"
#include "safetensors.h"
#include "unpack_core.h"
#include "value_scan.h"

#include "wsync/cancel.h"
#include "wsync/tool/plan.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_POLL_MS = 50 };

static const char scales_suffix[] = "_scale_inv";

bool ws_transform_wanted(const struct ws_transform_opts *o)
{
	return o->quantize != WS_QUANTIZE_NONE || o->n_adapters || o->correction || o->unpack;
}

/* ---- tensors that are sent ------------------------------------------------------------------- */

static bool is_chosen(const struct ws_transform *t, const char *name)
{
	const struct ws_transform_opts *o = &t->opts;
	return ws_glob_choose(o->include, o->n_include, o->exclude, o->n_exclude, name);
}

/* A weight is sent if it or its scales are: both are computed from it. */
static bool is_sent(const struct ws_transform *t, const struct ws_item *item)
{
	char scales[WS_MAX_NAME + 16];
	if (is_chosen(t, item->name))
		return true;
	snprintf(scales, sizeof scales, "%s%s", item->name, scales_suffix);
	return t->opts.quantize != WS_QUANTIZE_NONE && is_chosen(t, scales);
}

/* If a tensor cannot be transformed and is excluded, it stays as it is. So does a tensor of an
 * excluded weight, such as scales of an unknown packing. */
static bool is_forgiven(const struct ws_transform *t, const struct ws_item *item,
                        const struct ws_err *why)
{
	const struct ws_item *codes = ws_unpack_codes(t->base, item);
	return why->code == WS_EINPUT &&
	       (!is_chosen(t, item->name) || (codes && !is_chosen(t, codes->name)));
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static size_t index_of(const struct ws_transform *t, const struct ws_item *item)
{
	return (size_t)(item - ws_catalog_item(t->base, 0));
}

static int find_packed(struct ws_transform *t, struct ws_err *err)
{
	const size_t n = ws_catalog_count(t->base);
	struct ws_err why;
	t->found = calloc(n + 1, sizeof *t->found);
	if (!t->found)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct ws_item *item = ws_catalog_item(t->base, i);
		if (ws_packed_find(t->base, item, t->opts.base, &t->found[i], &why) == 0 ||
		    is_forgiven(t, item, &why))
			continue;
		if (err)
			*err = why;
		return -1;
	}
	return 0;
}

static void shape_of(void *ctx, const struct ws_item *item, int64_t *rows, int64_t *cols)
{
	const struct ws_transform *t = ctx;
	const struct ws_packed *p = &t->found[index_of(t, item)];
	*rows = p->weight ? p->rows : 0;
	*cols = p->weight ? p->cols : 0;
}

static int judge_left_over(struct ws_transform *t, const char *dir, const struct ws_bindings *b,
                           struct ws_err *err)
{
	if (!b->n_left_over)
		return 0;
	if (!t->report.left_over)
		snprintf(t->report.left_over_first, sizeof t->report.left_over_first, "%s",
		         b->left_over[0]->name);
	t->report.left_over += b->n_left_over;
	if (t->opts.adapter_partial)
		return 0;
	ws_err_set(err, WS_EINPUT,
	           "adapter %s: %zu of its tensors bind to nothing, the first is '%s'", dir,
	           b->n_left_over, ws_quote(b->left_over[0]->name).text);
	return ws_err_hint(err, "{adapter_partial} leaves them out");
}

static void note_lacking(struct ws_transform *t, const struct ws_bindings *b)
{
	if (b->n_lacking && !t->report.lacking)
		snprintf(t->report.lacking_first, sizeof t->report.lacking_first, "%s",
		         b->lacking_first);
	t->report.lacking += b->n_lacking;
}

static int open_adapters(struct ws_transform *t, struct ws_err *err)
{
	const struct ws_transform_opts *o = &t->opts;
	t->adapters = calloc(o->n_adapters + 1, sizeof *t->adapters);
	t->bindings = calloc(o->n_adapters + 1, sizeof *t->bindings);
	t->sends = calloc(o->n_adapters + 1, sizeof *t->sends);
	if (!t->adapters || !t->bindings || !t->sends)
		return ws_oom(err);
	for (size_t i = 0; i < o->n_adapters; i++) {
		if (ws_adapter_open(o->adapters[i], &t->adapters[i], err) ||
		    ws_catalog_use(t->catalog, ws_adapter_source(t->adapters[i]), err))
			return -1;
		ws_adapter_suit(t->adapters[i], o->family, o->config);
		if (ws_adapter_bind(t->adapters[i], t->base, o->layout, shape_of, t,
		                    &t->bindings[i], err) ||
		    judge_left_over(t, o->adapters[i], &t->bindings[i], err))
			return -1;
		note_lacking(t, &t->bindings[i]);
	}
	return 0;
}

/* ---- decisions ------------------------------------------------------------------------------- */

struct decision {
	const struct ws_item *item;
	const struct ws_packed *base;
	const struct ws_item *replaced;      /* by this tensor of an adapter; NULL */
	const struct ws_correction *correction;
	size_t n_deltas;
	bool quantize; /* becomes FP8 */
};

static void decide(struct ws_transform *t, size_t i, const struct ws_correction *corrections,
                   struct decision *d)
{
	const struct ws_packed *p = &t->found[i];
	*d = (struct decision){ .item = ws_catalog_item(t->base, i), .base = p,
		                .correction = corrections[i].bound ? &corrections[i] : NULL };
	d->n_deltas = d->correction != NULL;
	for (size_t k = 0; k < t->opts.n_adapters; k++) {
		const struct ws_binding *b = ws_bindings_find(&t->bindings[k], d->item->name);
		d->n_deltas += b ? b->n_deltas : 0;
		d->replaced = b && b->replaced ? b->replaced : d->replaced;
	}
	d->quantize = p->weight && d->item->bytes && ws_floats_known(p->dtype) &&
	              ws_select_fp8(&t->opts, d->item->name, p->n_dims);
}

static struct ws_fp8_rule rule_of(const struct ws_transform_opts *o)
{
	return (struct ws_fp8_rule){
		.rule = o->rule, .ue8m0 = o->ue8m0 || o->packed_scales,
		.bn = o->block[0] ? o->block[0] : 128,
		.bk = o->block[1] ? o->block[1] : 128,
	};
}

static bool same_blocks(const struct ws_fp8_rule *r, const struct ws_packed *p)
{
	return (r->bn == p->bn || (r->bn >= p->rows && p->bn >= p->rows)) &&
	       (r->bk == p->bk || (r->bk >= p->cols && p->bk >= p->cols));
}

/* Does the base have the wanted FP8 already: blocks, name of the scales, and their type? */
static bool is_already(const struct ws_transform *t, const struct decision *d)
{
	const struct ws_transform_opts *o = &t->opts;
	const struct ws_fp8_rule rule = rule_of(o);
	const struct ws_item *scales = d->base->parts[0];
	const char *suffix = scales->name + strlen(d->item->name);
	const bool powers = scales->dtype == WS_DTYPE_F8_E8M0 ||
	                    (o->base && strcmp(o->base->scale_fmt, "ue8m0") == 0);
	return same_blocks(&rule, d->base) && strcmp(suffix, scales_suffix) == 0 &&
	       (powers || !o->ue8m0) && !o->packed_scales;
}

static bool is_changed(const struct ws_transform *t, const struct decision *d)
{
	const bool unpacks = t->opts.n_adapters || t->opts.correction || t->opts.unpack;
	if (!d->item->bytes)
		return false;
	if (d->n_deltas || d->replaced)
		return true;
	switch (d->base->packing) {
	case WS_PACK_NONE:
		return d->quantize;
	case WS_PACK_FP8:
		return d->quantize ? !is_already(t, d)
		                   : t->opts.quantize == WS_QUANTIZE_NONE && unpacks;
	default:
		return true;
	}
}

/* ---- weights -------------------------------------------------------------------------------- */

static int refuse_type(const struct decision *d, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT,
	                  "tensor '%s' is %s: deltas are added to BF16, F16 and F32", d->item->name,
	                  ws_dtype_safetensors(d->base->dtype));
}

static struct ws_packed packed_of(const struct ws_item *item, const struct ws_packed *as)
{
	struct ws_packed p = { .packing = WS_PACK_NONE, .weight = item, .n_dims = as->n_dims,
		               .rows = as->rows, .cols = as->cols, .dtype = item->dtype };
	memcpy(p.dims, as->dims, sizeof p.dims);
	return p;
}

static uint64_t count_numbers(const struct ws_item *item)
{
	uint64_t n = 1;
	for (unsigned i = 0; i < item->n_dims; i++)
		n *= (uint64_t)item->dims[i];
	return n;
}

static int replace(const struct decision *d, struct ws_packed *out, struct ws_err *err)
{
	if (!ws_floats_known(d->replaced->dtype) ||
	    count_numbers(d->replaced) != (uint64_t)d->base->rows * (uint64_t)d->base->cols)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter tensor '%s' cannot take the place of '%s': other "
		                  "type or shape",
		                  ws_quote(d->replaced->name).text, d->item->name);
	*out = packed_of(d->replaced, d->base);
	return 0;
}

/* Corrections belong to the base, so they come first; then the adapters in the given order. */
static int gather_deltas(struct ws_transform *t, const struct decision *d,
                         struct ws_weight_reader *w, struct ws_err *err)
{
	w->deltas = ws_arena_alloc(&t->catalog->arena, (d->n_deltas + 1) * sizeof *w->deltas);
	if (!w->deltas)
		return ws_oom(err);
	if (d->correction)
		w->deltas[w->n_deltas++] = &d->correction->delta;
	for (size_t k = 0; k < t->opts.n_adapters; k++) {
		const struct ws_binding *b = ws_bindings_find(&t->bindings[k], d->item->name);
		for (size_t i = 0; b && i < b->n_deltas; i++)
			w->deltas[w->n_deltas++] = &b->deltas[i];
	}
	return 0;
}

static int fill_weight(struct ws_transform *t, const struct decision *d, struct ws_weight_reader *w,
                       struct ws_err *err)
{
	if (!ws_floats_known(d->base->dtype))
		return refuse_type(d, err);
	w->pool = t->pool;
	w->name = d->item->name;
	w->dtype = d->base->dtype;
	w->rows = d->base->rows;
	w->cols = d->base->cols;
	w->two_step = t->opts.rounding == WS_LORA_TWO_STEP;
	w->packed = *d->base;
	w->packed.priv = d->base->priv; /* the base keeps ownership */
	return (d->replaced && replace(d, &w->packed, err)) || gather_deltas(t, d, w, err) ? -1 : 0;
}

static const char *say_made(struct ws_transform *t, const struct ws_fused_weight *p,
                            const struct decision *d)
{
	char merged[64] = "", packing[32] = "", blocks[64] = "";
	const struct ws_weight_reader *w = &p->weight;
	if (w->packed.packing != WS_PACK_NONE)
		snprintf(packing, sizeof packing, "%s unpacked",
		         ws_packing_name(w->packed.packing));
	if (w->n_deltas)
		snprintf(merged, sizeof merged, "%s%zu delta%s merged", *packing ? ", " : "",
		         w->n_deltas, w->n_deltas == 1 ? "" : "s");
	if (p->quantized)
		snprintf(blocks, sizeof blocks, "%sfp8 in blocks of %lldx%lld",
		         *packing || *merged ? ", " : "", (long long)p->rule.bn,
		         (long long)p->rule.bk);
	return ws_catalog_text(t->catalog, "%s%s%s%s%s", d->replaced ? "of the adapter" : "",
	                      d->replaced && (*packing || *merged || *blocks) ? ", " : "", packing,
	                      merged, blocks);
}

static struct ws_item item_of(const struct decision *d, const struct ws_transform_item *m,
                              const char *made)
{
	struct ws_item item = { .name = m->name,
		                .bytes = m->part->tiled.bytes,
		                .source = d->item->source,
		                .from = d->item->from,
		                .computed = &m->computed,
		                .derivation = made };
	return item;
}

static int add_scales(struct ws_transform *t, const struct decision *d, struct ws_transformed *c,
                      struct ws_err *err)
{
	const struct ws_fused_weight *p = &c->fused;
	const char *name = ws_catalog_text(t->catalog, "%s%s", d->item->name, scales_suffix);
	const char *made = ws_catalog_text(t->catalog, "scales of %s", d->item->name);
	if (!name || !made)
		return ws_oom(err);
	ws_transform_item_init(&c->scales, t, &p->scales, name);
	struct ws_item item = item_of(d, &c->scales, made);
	item.n_dims = 2;
	item.dtype = p->packed_scales ? WS_DTYPE_I32 : WS_DTYPE_F32;
	item.dims[0] = p->packed_scales ? p->weight.rows : p->n_bands;
	item.dims[1] = p->packed_scales ? (p->n_blocks + 3) / 4 : p->n_blocks;
	return ws_catalog_add_item(t->catalog, &item, err);
}

static void count(struct ws_transform *t, const struct decision *d, const struct ws_fused_weight *p)
{
	const bool unpacked = p->weight.packed.packing != WS_PACK_NONE;
	t->unpacks = t->unpacks || unpacked;
	if (!is_sent(t, d->item))
		return;
	t->report.quantized += p->quantized;
	t->report.unpacked += unpacked;
	t->report.bound += d->n_deltas > 0;
	t->report.replaced += d->replaced != NULL;
	for (size_t k = 0; k < t->opts.n_adapters; k++)
		t->sends[k] = t->sends[k] || ws_bindings_find(&t->bindings[k], d->item->name);
}

static int add_fused(struct ws_transform *t, const struct decision *d, struct ws_err *err)
{
	struct ws_transformed *c = ws_arena_alloc(&t->catalog->arena, sizeof *c);
	if (!c)
		return ws_oom(err);
	struct ws_fused_weight *p = &c->fused;
	if (fill_weight(t, d, &p->weight, err))
		return -1;
	p->quantized = d->quantize;
	p->packed_scales = d->quantize && t->opts.packed_scales;
	if (d->quantize)
		p->rule = rule_of(&t->opts);
	if (ws_fused_init(p, err))
		return -1;
	*t->end = c;
	t->end = &c->next;
	const char *made = say_made(t, p, d);
	if (!made)
		return ws_oom(err);
	ws_transform_item_init(&c->out, t, &p->out, d->item->name);
	struct ws_item item = item_of(d, &c->out, made);
	item.dtype = d->quantize ? WS_DTYPE_F8_E4M3 : p->weight.dtype;
	item.n_dims = d->base->n_dims;
	memcpy(item.dims, d->base->dims, sizeof item.dims);
	item.trained = d->n_deltas || d->replaced;
	count(t, d, p);
	return ws_catalog_add_item(t->catalog, &item, err) ||
	                       (d->quantize && add_scales(t, d, c, err)) ?
	               -1 :
	               0;
}

/* ---- the whole transform --------------------------------------------------------------------- */

/* Adds the item, computed or unchanged. */
static int add(struct ws_transform *t, const struct decision *d, struct ws_err *err)
{
	struct ws_err why;
	if (d->base->weight && is_changed(t, d)) {
		if (add_fused(t, d, &why) == 0)
			return 0;
		if (!is_forgiven(t, d->item, &why)) {
			if (err)
				*err = why;
			return -1;
		}
	}
	t->report.already +=
		d->base->packing == WS_PACK_FP8 && d->base->weight && is_sent(t, d->item);
	return ws_catalog_add_item(t->catalog, d->item, err);
}

static int make_items(struct ws_transform *t, struct ws_err *err)
{
	const size_t n = ws_catalog_count(t->base);
	struct ws_correction *corrections;
	bool *gone = calloc(n + 1, sizeof *gone); /* parts of weights that are unpacked */
	int rc = !gone ? ws_oom(err) :
	         ws_corrections_open(t, t->opts.correction, &corrections, err);
	struct decision d;
	for (size_t i = 0; i < n && rc == 0; i++) {
		if (!t->found[i].weight)
			continue;
		decide(t, i, corrections, &d);
		for (size_t k = 0; is_changed(t, &d) && k < WS_PACK_PARTS; k++)
			if (d.base->parts[k])
				gone[index_of(t, d.base->parts[k])] = true;
	}
	for (size_t i = 0; i < n && rc == 0; i++) {
		if (gone[i] || ws_tied_head_idle(t, i))
			continue;
		decide(t, i, corrections, &d);
		rc = add(t, &d, err);
	}
	free(gone);
	return rc ? -1 : ws_catalog_close(t->catalog, err);
}

static int check_opts(const struct ws_transform_opts *o, struct ws_err *err)
{
	const struct ws_fp8_rule rule = rule_of(o);
	if (o->packed_scales && (rule.bn != 128 || rule.bk != 128))
		return ws_err_set(err, WS_EUSAGE,
		                  "{packed_scales} packs the scales of blocks of 128x128 only");
	if (o->quantize == WS_QUANTIZE_FP8 && (o->block[0] || o->block[1]) &&
	    (o->block[0] < 1 || o->block[1] < 1))
		return ws_err_set(err, WS_EUSAGE,
		                  "blocks of %lld x %lld: rows and columns are 1 or more",
		                  (long long)o->block[0], (long long)o->block[1]);
	return 0;
}

int ws_transform_make(const struct ws_catalog *in, const struct ws_transform_opts *opts,
                      struct ws_transform **out, struct ws_err *err)
{
	if (check_opts(opts, err))
		return -1;
	struct ws_transform *t = calloc(1, sizeof *t);
	if (!t)
		return ws_oom(err);
	t->opts = *opts;
	t->base = in;
	t->end = &t->changes;
	pthread_mutex_init(&t->last.lock, NULL);
	t->catalog = ws_catalog_new(in->sources, in->n_sources);
	if (!t->catalog)
		ws_oom(err);
	if (!t->catalog || ws_worker_pool_new(opts->threads, opts->scratch, &t->pool, err) ||
	    ws_tied_head_add(t, err) || find_packed(t, err) || open_adapters(t, err) ||
	    make_items(t, err)) {
		ws_transform_free(t);
		return -1;
	}
	ws_worker_pool_trace(t->pool, opts->trace);
	*out = t;
	return 0;
}

void ws_transform_free(struct ws_transform *t)
{
	if (!t)
		return;
	ws_transform_drop_reader(t);
	ws_worker_pool_free(t->pool); /* now no thread makes a tile */
	for (struct ws_transformed *c = t->changes; c; c = c->next) {
		ws_recipe_free(c->recipe);
		ws_fused_fini(&c->fused);
	}
	for (size_t i = 0; t->found && i < ws_catalog_count(t->base); i++)
		ws_packed_free(&t->found[i]);
	free(t->found);
	for (size_t i = 0; t->adapters && t->bindings && i < t->opts.n_adapters; i++) {
		ws_bindings_free(&t->bindings[i]);
		ws_adapter_close(t->adapters[i]);
	}
	free(t->adapters);
	free(t->bindings);
	free(t->sends);
	ws_catalog_free(t->catalog);
	ws_catalog_free(t->tied.catalog);
	ws_catalog_free(t->correction);
	ws_source_close(t->correction_source);
	pthread_mutex_destroy(&t->last.lock);
	free(t);
}

const struct ws_catalog *ws_transform_catalog(const struct ws_transform *t)
{
	return t->catalog;
}

void ws_transform_report(const struct ws_transform *t, struct ws_transform_report *out)
{
	*out = t->report;
	out->peak = ws_worker_pool_peak(t->pool);
	for (struct ws_transformed *c = t->changes; c; c = c->next) {
		struct ws_weight_reader *w = &c->fused.weight;
		pthread_mutex_lock(&w->lock);
		const double change = w->max_w > 0 ? (double)w->max_delta / w->max_w : 0;
		pthread_mutex_unlock(&w->lock);
		if (change <= out->largest_change)
			continue;
		out->largest_change = change;
		snprintf(out->largest_name, sizeof out->largest_name, "%s", w->name);
	}
}

int ws_transform_sends(const struct ws_transform *t, struct ws_err *err)
{
	for (size_t k = 0; k < t->opts.n_adapters; k++) {
		if (t->sends[k])
			continue;
		ws_err_set(err, WS_EINPUT,
		           "adapter %s: none of the tensors that it changes is sent",
		           ws_adapter_dir(t->adapters[k]));
		return ws_err_hint(
			err,
			"choose one of them with {include} and {exclude}, or leave {adapters} out");
	}
	return 0;
}

/* ---- checking ahead ------------------------------------------------------------------------- */

static int wait_for_check(struct ws_pool_job *job, const struct ws_cancel *cancel,
                          struct ws_err *err)
{
	int rc = 0;
	while (rc == 0 && !ws_cancelled(cancel))
		rc = ws_pool_job_wait(job, CHECK_POLL_MS, err);
	if (rc == 0)
		return ws_err_set(err, WS_ECANCELLED, "the check of the values was cancelled");
	return rc < 0 ? -1 : 0;
}

static size_t list_weights(const struct ws_transform *t, const struct ws_plan *plan,
                           struct ws_fused_weight **out)
{
	size_t n = 0;
	for (size_t i = 0; plan && i < plan->n_tensors; i++) {
		const struct ws_transform_item *m =
			(const struct ws_transform_item *)plan->tensors[i].item->computed;
		if (m && m->part != &m->part->fused->scales)
			out[n++] = m->part->fused;
	}
	for (struct ws_transformed *c = t->changes; !plan && c; c = c->next)
		out[n++] = &c->fused;
	return n;
}

static int run_checks(const struct ws_transform *t, const struct ws_tiled *const *items, size_t n,
                      const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_pool_job *job;
	if (n == 0)
		return 0;
	if (ws_pool_job_begin(t->pool, items, n, true, &job, err))
		return -1;
	const int rc = wait_for_check(job, cancel, err);
	ws_pool_job_end(job);
	return rc;
}

/* Checks the inputs first; then the outputs of weights whose sums might overflow. */
int ws_transform_check_with(const struct ws_transform *t, const struct ws_plan *plan,
                            ws_value_scan_fn *scan, void *ctx, const struct ws_cancel *cancel,
                            struct ws_err *err)
{
	const size_t most = ws_catalog_count(t->catalog) + 1;
	struct ws_fused_weight **weights = calloc(most, sizeof *weights);
	const struct ws_tiled **items = calloc(most, sizeof *items);
	int rc = weights && items ? 0 : ws_oom(err);
	const size_t n = rc ? 0 : list_weights(t, plan, weights);
	for (size_t i = 0; i < n; i++)
		items[i] = &weights[i]->check.tiled;
	for (size_t i = 0; i < n; i++)
		weights[i]->fine = false;
	if (rc == 0 && scan)
		rc = ws_value_scan_weights(weights, n, scan, ctx, cancel, err);
	if (rc == 0)
		rc = run_checks(t, items, n, cancel, err);
	size_t steep = 0;
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (ws_weight_is_steep(&weights[i]->weight))
			items[steep++] = &weights[i]->sums.tiled;
	if (rc == 0)
		rc = run_checks(t, items, steep, cancel, err);
	free(weights);
	free(items);
	return rc;
}

int ws_transform_check(const struct ws_transform *t, const struct ws_plan *plan,
                       const struct ws_cancel *cancel, struct ws_err *err)
{
	return ws_transform_check_with(t, plan, NULL, NULL, cancel, err);
}
