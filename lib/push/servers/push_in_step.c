/* SPDX-License-Identifier: Apache-2.0 */
/* push_in_step.c - do the workers of a vLLM answer the request that was sent, or an earlier one?
 *
 * vLLM reads one answer of each worker for each request. If a worker fails, it does not read those
 * of the workers after it (multiproc_executor.py, 0.32 and 0.33). From then on these are one answer
 * behind: a request that fails there is confirmed, and the next one gets its error. Only a restart
 * ends that. Two requests that change nothing show it, because their answers differ:
 *
 *   POST /collective_rpc {"method":"get_supported_tasks"}   {"results":[["generate"], ...]}
 *   POST /collective_rpc {"method":"check_health"}          {"results":[null, ...]}
 *
 * With our worker extension the first is "wsync_describe", {"results":[{"updating":bool}, ...]}:
 * it also tells that an earlier push was cut off inside an update. Without it only a start shows
 * that, which fails, and so brings several workers out of step. */
#include "push_protocol.h"

#include <stdlib.h>

static bool is_to_check(const struct ws_push *p, size_t i)
{
	const struct ws_capabilities *can = push_can(p, i);
	return can->stale_answers && can->reload &&
	       (p->to.infos[i].world_size > 1 || p->to.infos[i].gloo_worker);
}

/* Are all answers of the type that this request has? */
static bool are_all(const struct ws_json *reply, bool null)
{
	const struct ws_json *results = ws_json_get(reply, "results");
	const struct ws_json *r = ws_json_first(results);
	bool all = r != NULL;
	for (; r; r = ws_json_next(r))
		all = all && (ws_json_type(r) == WS_JSON_NULL) == null;
	return all;
}

static bool any_updates(const struct ws_json *reply)
{
	const struct ws_json *r = ws_json_first(ws_json_get(reply, "results"));
	for (; r; r = ws_json_next(r))
		if (ws_json_get_bool(r, "updating", false))
			return true;
	return false;
}

/* null: the request that is answered by null. */
static int ask(struct ws_push *p, struct ws_endpoint_call *calls, bool null, struct ws_err *err)
{
	static const char *const texts[] = { "{\"method\":\"get_supported_tasks\"}",
		                             "{\"method\":\"wsync_describe\"}",
		                             "{\"method\":\"check_health\"}" };
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	struct ws_buf bodies[3];
	int rc = 0;
	for (size_t k = 0; k < 3; k++) {
		ws_buf_init(&bodies[k], 256);
		ws_buf_puts(&bodies[k], texts[k]);
	}
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++)
		if (is_to_check(p, i))
			rc = ws_endpoint_prepare(&calls[i], p->to.endpoints[i].url, "POST",
			                         "/collective_rpc",
			                         &bodies[null ? 2 : p->to.infos[i].gloo_worker],
			                         until, err);
	if (rc == 0)
		rc = ws_endpoint_run(p->http, calls, p->opts.n_endpoints, p->opts.cancel, err);
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++) {
		const struct ws_json *reply;
		if (!is_to_check(p, i))
			continue;
		rc = ws_endpoint_reply(&calls[i], &reply, NULL, 0, err);
		p->to.endpoints[i].left_open |= rc == 0 && any_updates(reply);
		if (rc || are_all(reply, null))
			continue;
		ws_err_set(err, WS_EREFUSED, "%s: its workers answer earlier requests instead of "
		           "the last one, so their answers prove nothing",
		           p->to.endpoints[i].url);
		ws_err_hint(err, "restart the server: this vLLM never recovers from a request that "
		                 "failed at one of several workers");
		rc = ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	for (size_t k = 0; k < 3; k++)
		ws_buf_free(&bodies[k]);
	return rc;
}

int push_in_step(struct ws_push *p, struct ws_err *err)
{
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		any = any || is_to_check(p, i);
	if (!any || p->opts.dry_run)
		return 0;
	struct ws_endpoint_call *calls = calloc(p->opts.n_endpoints + 1, sizeof *calls);
	if (!calls)
		return ws_oom(err);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].left_open = false;
	const int rc = ask(p, calls, false, err) || ask(p, calls, true, err) ? -1 : 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		ws_endpoint_call_free(&calls[i]);
	free(calls);
	return rc;
}
