/* SPDX-License-Identifier: Apache-2.0 */
/* push_in_step.c - before a vLLM is changed: do its workers answer the request that was sent
 * (vllm_workers.h), is an update open there, and may its layers hold parts of an earlier update?
 *
 * A layer keeps the parts that it was sent until it has all of them. If an update fails in between,
 * a new start keeps them too, and counts them a second time: of q, k and v, the server then loads
 * q, q and k, confirms every request, and has random values for v (layerwise.py, 0.24 to 0.33).
 * Only a finish makes layers forget. So a server that may be in that state gets one
 * (push_scope.c). */
#include "push_protocol.h"

#include "vllm_workers.h"

#include <stdlib.h>

bool push_to_vllm(const struct ws_push *p, size_t i)
{
	return ws_lineage_family(p->to.infos[i].lineage) == WS_FAMILY_VLLM;
}

static bool is_to_check(const struct ws_push *p, size_t i)
{
	const struct ws_capabilities *can = push_can(p, i);
	return push_to_vllm(p, i) && can->reload &&
	       (can->transfer_session || p->to.infos[i].world_size > 1);
}

/* An update that a dead push left open, of which we have the record, may be finished. Any other may
 * be that of a push at work. */
static int check_open(struct ws_push *p, size_t i, struct ws_err *err)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	if (!e->left_open || e->may_finish)
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s: it is inside an update that no push recorded here has "
	           "begun", e->url);
	ws_err_hint(err, "another push may be at work there: push again when it has ended; if none "
	            "is at work, end that update: curl -X POST %s/finish_weight_update", e->url);
	return ws_err_where(err, NULL, e->url);
}

static int check(struct ws_push *p, bool *inside, struct ws_err *errs, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	int rc = to.n ? ws_vllm_in_step(&to, inside, errs, err) : 0;
	for (size_t k = 0; rc == 0 && k < to.n; k++) {
		p->to.endpoints[p->to.call.index[k]].left_open = inside[k];
		rc = check_open(p, p->to.call.index[k], err);
	}
	return rc;
}

int push_in_step(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	if (p->opts.dry_run)
		return 0;
	bool *inside = calloc(n + 1, sizeof *inside);
	struct ws_err *errs = calloc(n + 1, sizeof *errs);
	push_call_new(p);
	for (size_t i = 0; i < n; i++) {
		p->to.endpoints[i].left_open = false;
		if (is_to_check(p, i))
			push_call_add(p, i);
	}
	const int rc = inside && errs ? check(p, inside, errs, err) : ws_oom(err);
	free(inside);
	free(errs);
	return rc;
}

bool push_may_hold_parts(const struct ws_push *p, size_t i)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	const bool stopped = e->found_paused || (e->found_stopped && !e->slept);
	return push_to_vllm(p, i) && (stopped || e->left_open || e->weights.state == WS_PARTIAL);
}

void push_note_parts(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].holds_parts =
			push_may_hold_parts(p, i) && !p->to.endpoints[i].left_open;
}

int push_finish_left_open(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	const struct push_call *c = push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (!e->left_open)
			continue;
		if (!p->from.all_names) {
			ws_err_set(err, WS_EREFUSED, "%s: an earlier push was cut off inside an "
			           "update, so its weights are incomplete", e->url);
			ws_err_hint(err, "push all tensors, without {include} and {exclude}");
			return ws_err_where(err, NULL, e->url);
		}
		push_target_event(&e->weights, PUSH_VALUES_LOST);
		push_call_add(p, i);
	}
	if (!c->n)
		return 0;
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	const int rc = ws_vllm_end_updates(&to, c->answers, err);
	for (size_t k = c->n; k-- > 0;)
		if (c->answers[k].err.code) {
			push_note_failure(p, c->index[k], &c->answers[k].err);
			*err = c->answers[k].err; /* not the sum: no endpoint has new weights */
		} else {
			p->to.endpoints[c->index[k]].left_open = false;
		}
	return rc;
}
