/* SPDX-License-Identifier: Apache-2.0 */
/* transform_item.c - the operations of computed items: read, announce, describe. */
#include "transform_core.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct ws_transform_item *item_of(const struct ws_computed_item *m)
{
	return (const struct ws_transform_item *)m;
}

/* ---- unannounced ----------------------------------------------------------------------------- */

static void forget_last(struct ws_last_read *l)
{
	ws_pool_job_end(l->job);
	l->job = NULL;
	l->of = NULL;
}

void ws_transform_drop_reader(struct ws_transform *t)
{
	pthread_mutex_lock(&t->last.lock);
	forget_last(&t->last);
	pthread_mutex_unlock(&t->last.lock);
}

/* Adds the tensor to errors of memory and of reads, which name only bytes and files. */
static int name_tensor(const struct ws_fused_part *part, struct ws_err *err)
{
	return err && err->code == WS_ESYSTEM ?
	               ws_err_wrap(err, "making tensor '%s'", part->fused->weight.name) :
	               -1;
}

static int read_on(struct ws_last_read *l, const struct ws_transform_item *m, uint64_t at,
                   void *dst, size_t n, struct ws_err *err)
{
	const struct ws_tiled *const item = &m->part->tiled;
	if (l->of != m) {
		forget_last(l);
		if (ws_pool_job_begin(m->owner->pool, &item, 1, false, &l->job, err))
			return -1;
		l->of = m;
	} else if (at == l->at && at) {
		ws_pool_job_set_eager(l->job); /* reads are sequential: make tiles ahead */
	}
	if (ws_pool_job_read(l->job, 0, at, dst, n, err)) {
		forget_last(l); /* so that a second try starts again */
		return name_tensor(m->part, err);
	}
	l->at = at + n;
	if (l->at == item->bytes)
		forget_last(l);
	return 0;
}

static int read_once(const struct ws_computed_item *item, uint64_t at, void *dst, size_t n,
                     struct ws_err *err)
{
	const struct ws_transform_item *m = item_of(item);
	struct ws_last_read *l = &m->owner->last;
	pthread_mutex_lock(&l->lock);
	const int rc = read_on(l, m, at, dst, n, err);
	pthread_mutex_unlock(&l->lock);
	return rc;
}

/* ---- announced ------------------------------------------------------------------------------- */

static int begin(const struct ws_computed_item *const *items_in, size_t n,
                 struct ws_computed_read **out, struct ws_err *err)
{
	struct ws_pool_job *job = NULL;
	const struct ws_tiled **items = calloc(n + 1, sizeof *items);
	if (!items)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		assert(item_of(items_in[i])->owner == item_of(items_in[0])->owner);
		items[i] = &item_of(items_in[i])->part->tiled;
	}
	const int rc =
		ws_pool_job_begin(item_of(items_in[0])->owner->pool, items, n, true, &job, err);
	free(items);
	*out = (struct ws_computed_read *)job;
	return rc;
}

static int next(struct ws_computed_read *g, size_t item, uint64_t at, void *dst, size_t n,
                struct ws_err *err)
{
	struct ws_pool_job *job = (struct ws_pool_job *)g;
	return ws_pool_job_read(job, item, at, dst, n, err) == 0 ?
	               0 :
	               name_tensor((const struct ws_fused_part *)ws_pool_job_item(job, item), err);
}

static void end(struct ws_computed_read *g)
{
	ws_pool_job_end((struct ws_pool_job *)g);
}

/* ---- described ------------------------------------------------------------------------------- */

static void describe_factor(struct ws_buf *out, const struct ws_item *item, uint64_t at,
                            int64_t row, int64_t col)
{
	ws_buf_printf(out, " %zu %s %llu %lld %lld", strlen(item->name), item->name,
	              (unsigned long long)at, (long long)row, (long long)col);
}

/* Describes everything that the output depends on, except the bytes of the inputs. */
static void describe(const struct ws_computed_item *item, struct ws_buf *out)
{
	const struct ws_fused_part *part = item_of(item)->part;
	const struct ws_fused_weight *p = part->fused;
	const struct ws_weight_reader *w = &p->weight;
	const struct ws_item *base = w->packed.weight;
	const char *what = part != &p->scales ? "numbers" :
	                   p->packed_scales   ? "packed scales" :
	                                        "scales";
	ws_buf_printf(out, "%s %s %s of %zu %s %s", what,
	              ws_packing_name(w->packed.packing), ws_dtype_torch(w->dtype),
	              strlen(base->name), base->name, base->derivation ? base->derivation : "");
	if (p->quantized)
		ws_buf_printf(out, " fp8 %lld %lld rule %d %d", (long long)p->rule.bn,
		              (long long)p->rule.bk, p->rule.rule, p->rule.ue8m0);
	for (size_t i = 0; i < w->n_deltas; i++) {
		const struct ws_delta *d = w->deltas[i];
		ws_buf_printf(out, " delta %lld %lld %lld %lld %a %d", (long long)d->row,
		              (long long)d->rows, (long long)d->cols, (long long)d->rank,
		              (double)d->scale, w->two_step);
		describe_factor(out, d->a, d->a_at, d->a_row, d->a_col);
		describe_factor(out, d->b, d->b_at, d->b_row, d->b_col);
	}
}

static int recipe(const struct ws_computed_item *item, const struct ws_recipe_output **out,
                  struct ws_err *err)
{
	const struct ws_fused_part *part = item_of(item)->part;
	struct ws_transformed *c = (struct ws_transformed *)part->fused;
	*out = NULL;
	if (part == &c->fused.scales && c->fused.packed_scales)
		return 0;
	if (!c->has_recipe && ws_recipe_make(&c->fused, &c->recipe, err))
		return -1;
	c->has_recipe = true;
	*out = c->recipe ? &c->recipe->out[part == &c->fused.scales] : NULL;
	return 0;
}

void ws_transform_item_init(struct ws_transform_item *m, struct ws_transform *t,
                            const struct ws_fused_part *part, const char *name)
{
	static const struct ws_computed_item_ops ops = { .read = read_once,
		                                         .describe = describe,
		                                         .recipe = recipe,
		                                         .begin = begin,
		                                         .next = next,
		                                         .end = end };
	*m = (struct ws_transform_item){ { &ops }, t, part, name };
}
