/* SPDX-License-Identifier: Apache-2.0 */
/* recipe.c - made items as the model side sees them: read, described, announced. */
#include "transform_core.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const struct ws_made *made_of(const struct ws_computed_item *m)
{
	return (const struct ws_made *)m;
}

/* ---- without notice -------------------------------------------------------------------------- */

static void forget_last(struct ws_last_read *l)
{
	ws_pool_job_end(l->job);
	l->job = NULL;
	l->of = NULL;
}

void ws_recipe_forget(struct ws_transform *t)
{
	pthread_mutex_lock(&t->last.lock);
	forget_last(&t->last);
	pthread_mutex_unlock(&t->last.lock);
}

/* Whoever fails for want of memory, or to read, knows bytes and files only. */
static int name_tensor(const struct ws_product_part *part, struct ws_err *err)
{
	return err && err->code == WS_ESYSTEM ?
	               ws_err_wrap(err, "making tensor '%s'", part->product->weight.name) :
	               -1;
}

static int read_on(struct ws_last_read *l, const struct ws_made *m, uint64_t at, void *dst,
                   size_t n, struct ws_err *err)
{
	const struct ws_tiled *const item = &m->part->tiled;
	if (l->of != m) {
		forget_last(l);
		if (ws_pool_job_begin(m->owner->pool, &item, 1, false, &l->job, err))
			return -1;
		l->of = m;
	} else if (at == l->at && at) {
		ws_pool_job_set_eager(l->job); /* it goes on: more will be wanted */
	}
	if (ws_pool_job_read(l->job, 0, at, dst, n, err)) {
		forget_last(l); /* a second try is one */
		return name_tensor(m->part, err);
	}
	l->at = at + n;
	if (l->at == item->bytes)
		forget_last(l);
	return 0;
}

static int read_once(const struct ws_computed_item *computed, uint64_t at, void *dst, size_t n,
                     struct ws_err *err)
{
	const struct ws_made *m = made_of(computed);
	struct ws_last_read *l = &m->owner->last;
	pthread_mutex_lock(&l->lock);
	const int rc = read_on(l, m, at, dst, n, err);
	pthread_mutex_unlock(&l->lock);
	return rc;
}

/* ---- announced ------------------------------------------------------------------------------- */

static int begin(const struct ws_computed_item *const *m, size_t n, struct ws_making **out,
                 struct ws_err *err)
{
	struct ws_pool_job *job = NULL;
	const struct ws_tiled **items = calloc(n + 1, sizeof *items);
	if (!items)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++) {
		assert(made_of(m[i])->owner == made_of(m[0])->owner);
		items[i] = &made_of(m[i])->part->tiled;
	}
	const int rc = ws_pool_job_begin(made_of(m[0])->owner->pool, items, n, true, &job, err);
	free(items);
	*out = (struct ws_making *)job;
	return rc;
}

static int next(struct ws_making *g, size_t item, uint64_t at, void *dst, size_t n,
                struct ws_err *err)
{
	struct ws_pool_job *job = (struct ws_pool_job *)g;
	return ws_pool_job_read(job, item, at, dst, n, err) == 0 ?
	               0 :
	               name_tensor((const struct ws_product_part *)ws_pool_job_item(job, item),
	                           err);
}

static void end(struct ws_making *g)
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

/* Everything that the bytes depend on, but for the bytes that they are made of. */
static void describe(const struct ws_computed_item *computed, struct ws_buf *out)
{
	const struct ws_product_part *part = made_of(computed)->part;
	const struct ws_product *p = part->product;
	const struct ws_weight *w = &p->weight;
	const struct ws_item *base = w->packed.weight;
	ws_buf_printf(out, "%s %s %s of %zu %s %s", part == &p->scales ? "scales" : "numbers",
	              ws_packing_name(w->packed.packing), ws_dtype_torch(w->dtype),
	              strlen(base->name), base->name, base->made ? base->made : "");
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

static int formula(const struct ws_computed_item *computed, const struct ws_formula_out **out,
                   struct ws_err *err)
{
	const struct ws_product_part *part = made_of(computed)->part;
	struct ws_change *c = (struct ws_change *)part->product;
	if (!c->written && ws_formula_make(&c->product, &c->formula, err))
		return -1;
	c->written = true;
	*out = c->formula ? &c->formula->out[part == &c->product.scales] : NULL;
	return 0;
}

void ws_recipe_init(struct ws_made *m, struct ws_transform *t, const struct ws_product_part *part,
                    const char *name)
{
	static const struct ws_computed_item_ops ops = { .read = read_once,
		                                 .describe = describe,
		                                 .formula = formula,
		                                 .begin = begin,
		                                 .next = next,
		                                 .end = end };
	*m = (struct ws_made){ { &ops }, t, part, name };
}
