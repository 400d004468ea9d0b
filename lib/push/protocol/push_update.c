/* SPDX-License-Identifier: Apache-2.0 */
/* push_update.c - /update_weights_from_distributed: a request for each bucket, which the server
 * answers when it has received and loaded it. Some servers expect a scope around it (push_scope.c).
 *
 *   {"names":[..],"dtypes":[..],"shapes":[[..],..],"group_name","flush_cache","abort_all_requests",
 *    "load_format":"flattened_bucket" (or absent), "selector":"target" (push_scope.c)}
 *
 * flush_cache is written into every request, because servers flush when it is absent. The weight
 * version is not: servers would set it with the last bucket, whose bytes may still be wrong. */
#include "push_protocol.h"

static void write_body(const struct ws_push *p, struct ws_jw *w, const struct push_bucket *k)
{
	push_write_tensors(w, p->from.plan, k->b);
	ws_jw_str(w, "group_name", ws_group_name(p->link.group));
	ws_jw_bool(w, "flush_cache", k->flush);
	ws_jw_bool(w, "abort_all_requests", false);
	if (p->from.plan->format == WS_FORMAT_FLATTENED)
		ws_jw_str(w, "load_format", "flattened_bucket");
	push_write_selector(p, w);
}

/* After the last bucket an endpoint that agreed has everything. Before, an endpoint that was
 * sent a request may have some of it, unless it loaded nothing of the first bucket: the bucket
 * ended before a byte had left and the endpoint did not confirm it, or says so. */
static void report_answers(struct ws_push *p, const struct push_bucket *k,
                           const struct push_request *r, const struct push_moved *m)
{
	const struct ws_transport *t = ws_group_transport(p->link.group);
	const bool unsent = k->b == 0 && p->from.plan->buckets[0].bytes &&
	                    t->ops->sent(t, NULL) == p->run.sent_base;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		const enum ws_code code = p->to.errs[i].code;
		if (code != WS_OK && (unsent || (k->b == 0 && push_request_unloaded(p, r, i))))
			push_target_event(&e->weights, PUSH_REFUSED_UNSENT);
		if (code == WS_OK && k->last && push_moved_source(m))
			push_target_event(&e->weights, PUSH_ACKED_LAST);
	}
}

static int move_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	struct push_request r;
	struct push_moved m = { 0 };
	int rc = push_request_open(p, &r, "/update_weights_from_distributed", err);
	if (rc == 0) {
		r.changes = true;
		write_body(p, &r.w, k);
		rc = push_request_start(p, &r, until, err) || push_move(p, &r, k, false, &m, err) ?
		             -1 :
		             0;
	}
	if (m.over) {
		report_answers(p, k, &r, &m);
		push_request_note(p, &r);
	}
	if (rc == 0)
		push_moved_emit(p, k, &m);
	push_request_close(p, &r);
	return rc;
}

static bool takes_update(const struct ws_capabilities *can)
{
	return can->update && !can->session;
}

/* Not can->session: endpoints with and without sessions may share a push. Each has its own scope
 * (push_scope_of), and legal_session requires one endpoint with sessions. */
static bool takes_session(const struct ws_capabilities *can)
{
	return can->update;
}

static bool one_by_one(const struct ws_push *p)
{
	(void)p;
	return true;
}

const struct push_protocol push_update = {
	.name = "update",
	.routes = "/update_weights_from_distributed outside of a session",
	.takes = takes_update,
	.one_by_one = one_by_one,
	.begin = push_scope_begin,
	.bucket = move_bucket,
	.end = push_scope_end,
	.undo = push_scope_undo,
};

static int legal_session(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (push_can(p, i)->session)
			return 0;
	ws_err_set(err, WS_EREFUSED, "%s has no /begin_weight_update, and no other endpoint has",
	           p->to.endpoints[0].url);
	return ws_err_hint(err, "use {protocol} update");
}

const struct push_protocol push_session = {
	.name = "session",
	.routes = "/update_weights_from_distributed",
	.takes = takes_session,
	.one_by_one = one_by_one,
	.legal = legal_session,
	.begin = push_scope_begin,
	.bucket = move_bucket,
	.end = push_scope_end,
	.undo = push_scope_undo,
};
