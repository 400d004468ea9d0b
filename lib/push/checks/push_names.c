/* SPDX-License-Identifier: Apache-2.0 */
/* push_names.c - checks, before anything changes, that each endpoint has a parameter for every
 * tensor, and that every parameter gets a tensor.
 *
 * An endpoint's list is requested once, and kept until the endpoint may be another server. Its
 * checksums stand for a list at a vLLM of which nothing else is known: the server reads all of its
 * weights to compute them, so each start of it is asked once for each plan. Others show a few
 * parameters instead. */
#include "push_state.h"

#include "wsync/tool/history.h"

#include <stdlib.h>
#include <string.h>

void push_names_forget(struct ws_push *p)
{
	for (size_t i = 0; i < p->to.n_listed; i++)
		ws_name_check_target_free(&p->to.listed[i]);
	p->to.n_listed = 0;
}

int push_find_targets(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	if (p->to.n_listed)
		return 0;
	if (n == 0) /* a dry run: only the config, at tp 1 */
		p->to.listed[0] = (struct ws_name_check_target){ 0 };
	else if (ws_name_check_ask(p->http, p->to.infos, n, false, until, p->opts.cancel,
	                           p->to.listed, err))
		return -1;
	p->to.n_listed = n ? n : 1;
	return 0;
}

/* Has a push to this start of the server compared the names of this plan with its list? */
static bool has_compared(const struct ws_push *p, const struct ws_history *h, size_t i)
{
	const uint64_t instance = p->to.infos[i].instance, digest = p->from.plan->digest;
	for (size_t k = 0; instance && k < h->n; k++)
		for (size_t j = 0; h->items[k].digest == digest && j < h->items[k].n_endpoints; j++)
			if (h->items[k].endpoints[j].instance == instance &&
			    h->items[k].endpoints[j].established & WS_HISTORY_LISTED)
				return true;
	return false;
}

/* Answers what an earlier push has asked. */
static void remember(struct ws_push *p)
{
	struct ws_history h = { 0 };
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		any |= p->to.listed[i].summable;
	if (!any || !p->opts.state_dir || ws_history_read(p->opts.state_dir, &h, NULL))
		return;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct ws_name_check_target *t = &p->to.listed[i];
		t->listed_before = t->summable && has_compared(p, &h, i);
		t->summable &= !t->listed_before;
	}
	ws_history_free(&h);
}

/* A part that options chose fits if the rest is left out on purpose. The same plan of a source that
 * lacks the rest does not. */
bool push_names_listed(const struct ws_push *p, size_t i)
{
	const struct ws_name_check_run *names = &p->checks.names;
	const struct ws_name_check_target *t = &p->to.listed[i];
	return p->from.all_names && p->opts.senders < 2 && !p->turn.has_turn &&
	       i < p->to.n_listed && names->checked && !names->found.errors &&
	       (t->listed_before || (*t->listed && !t->listing.received));
}

/* A server whose weights are released crashes if they are read, and one that an update has left
 * may lack parameters. */
static int measure(struct ws_push *p, struct ws_err *err)
{
	const struct ws_call how = {
		.http = p->http, .cancel = p->opts.cancel,
		.until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns)),
	};
	if (!p->opts.n_endpoints)
		return 0;
	remember(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		p->to.listed[i].askable &= !(e->asleep & WS_MEMORY_WEIGHTS);
		p->to.listed[i].summable &= !(e->asleep & WS_MEMORY_WEIGHTS) &&
		                            e->weights.state != WS_PARTIAL;
	}
	if (ws_name_check_sums(&how, p->to.infos, p->to.listed, p->to.n_listed, err))
		return -1;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	return ws_name_check_measure(p->http, &p->from.input, p->to.listed, p->to.n_listed, until,
	                             p->opts.cancel, err);
}

/* vLLM confirms a part of a fused layer, and gives the rest random values. So it must be known
 * which tensors a layer needs. */
static int check_parts(const struct ws_push *p, struct ws_err *err)
{
	const bool part = !p->from.all_names || p->opts.senders > 1;
	bool vllm = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		vllm |= push_to_vllm(p, i);
	if (!vllm || !part || p->checks.names.layered)
		return 0;
	ws_err_set(err, WS_EREFUSED, "vLLM confirms a part of a fused layer and gives the rest "
	           "random values, and it was not checked that %s layers whole",
	           p->from.all_names ? "{sender} leaves" : "{include} and {exclude} leave");
	return ws_err_hint(err, p->opts.verify == WS_VERIFY_NONE ?
	                   "leave {verify} none out, or push all tensors with one sender" :
	                   "name the model's config.json by {config}, or push all tensors with one "
	                   "sender");
}

static int by_name(const void *name, const void *part)
{
	return strcmp(name, ((const struct ws_part_tensor *)part)->name);
}

struct elsewhere {
	const struct ws_push *p;
	const struct ws_plan *all;             /* of senders in one group; NULL: they take turns */
	const struct ws_plan_tensor **index;
};

/* Does another sender send it? Of senders that take turns only the last one knows. */
static bool sent_elsewhere(const void *ctx, const char *name)
{
	const struct elsewhere *x = ctx;
	const struct ws_push *p = x->p;
	const struct ws_parts *parts = &p->turn.parts;
	if (x->all)
		return ws_plan_find(x->all, x->index, name);
	if (!p->turn.has_turn || p->turn.not_last)
		return true;
	const struct ws_part_tensor *t = bsearch(name, parts->tensors, parts->n_tensors,
	                                         sizeof *parts->tensors, by_name);
	return t && t->sent;
}

static int check_names(struct ws_push *p, const struct elsewhere *others, struct ws_err *err)
{
	const struct ws_name_check_run_opts opts = {
		.input = &p->from.input,
		.plan = p->from.plan,
		.tied_later = true,
		.cancel = p->opts.cancel,
		.include = p->opts.include,
		.n_include = p->opts.n_include,
		.exclude = p->opts.exclude,
		.n_exclude = p->opts.n_exclude,
		.elsewhere = p->opts.senders > 1 ? sent_elsewhere : NULL,
		.elsewhere_ctx = others,
	};
	return ws_name_check_run_all(&opts, p->to.listed, p->to.n_listed, &p->opts.sink,
	                             &p->checks.names, err);
}

static int compare_names(struct ws_push *p, struct ws_err *err)
{
	const struct ws_senders *have;
	struct elsewhere others = { .p = p };
	if (push_is_leader(p)) {
		others.all = push_leader_plan(p, &have);
		others.index = ws_plan_index(others.all);
		if (!others.index)
			return ws_oom(err);
	}
	const int rc = check_names(p, &others, err);
	free(others.index);
	return rc;
}

int push_names(struct ws_push *p, struct ws_err *err)
{
	if (p->opts.verify == WS_VERIFY_NONE) {
		const struct ws_namecheck_opts all = {
			.items = p->from.input.catalog,
			.include = p->opts.include, .n_include = p->opts.n_include,
			.exclude = p->opts.exclude, .n_exclude = p->opts.n_exclude,
		};
		ws_namecheck_left_out(&all, &p->checks.names.found);
		return check_parts(p, err);
	}
	return push_find_targets(p, err) || measure(p, err) || compare_names(p, err) ||
	                       check_parts(p, err) ?
	               -1 :
	               0;
}
