/* SPDX-License-Identifier: Apache-2.0 */
/* push_names.c - checks, before anything changes, that each endpoint has a parameter for every
 * tensor, and that every parameter gets a tensor.
 *
 * An endpoint's list is requested once, and kept until the endpoint may be another server. Its
 * checksums are not requested: a server reads all of its weights to compute them. */
#include "push_state.h"

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

/* A server whose weights are released crashes if they are read. */
static int measure(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	bool asleep = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		asleep = asleep || p->to.endpoints[i].asleep & WS_MEMORY_WEIGHTS;
	if (!p->opts.n_endpoints || !p->from.all_names || asleep)
		return 0;
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

int push_names(struct ws_push *p, struct ws_err *err)
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
		.part = p->opts.senders > 1,
	};
	if (p->opts.verify == WS_VERIFY_NONE)
		return check_parts(p, err);
	return push_find_targets(p, err) || measure(p, err) ||
	                       ws_name_check_run_all(&opts, p->to.listed, p->to.n_listed,
	                                             &p->opts.sink, &p->checks.names, err) ||
	                       check_parts(p, err) ?
	               -1 :
	               0;
}
