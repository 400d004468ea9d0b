/* SPDX-License-Identifier: Apache-2.0 */
#include "push_state.h"

#include "wsync/tool/history.h"

#include <stdlib.h>
#include <time.h>

static void describe(const struct ws_push *p, size_t i, struct ws_history_endpoint *out)
{
	const struct ws_ev_endpoint_result *r = &p->to.results[i];
	*out = (struct ws_history_endpoint){
		.url = r->url,
		.ok = r->ok,
		.state = r->state,
		.coverage = p->to.endpoints[i].coverage,
		.message = r->ok ? "" : r->message,
		.instance = p->to.infos[i].instance,
	};
}

void push_history(const struct ws_push *p, bool ok, const struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	if (!p->recovery.claimed || !p->opts.state_dir || p->opts.stage)
		return;
	struct ws_history_endpoint *those = calloc(n + 1, sizeof *those);
	for (size_t i = 0; those && i < n; i++)
		describe(p, i, &those[i]);
	const int64_t now = time(NULL);
	const struct ws_history_push push = {
		.began = now - (ws_now_ns() - p->run.since) / WS_NS_PER_S,
		.ended = now,
		.source = p->from.name,
		.weight_version = p->from.weight_version ? p->from.weight_version : "",
		.verify = push_verify_name(p),
		.code = ws_code_name(ok ? WS_OK : err->code),
		.message = ok ? "" : err->msg,
		.endpoints = those,
		.n_endpoints = n,
	};
	if (those)
		ws_history_add(p->opts.state_dir, &push);
	free(those);
}
