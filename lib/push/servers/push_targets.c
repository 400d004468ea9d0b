/* SPDX-License-Identifier: Apache-2.0 */
/* push_targets.c - the endpoints of a push: selects them for a call, and limits the wait for silent
 * ones in the clean-up. */
#include "push_state.h"

#include <stdlib.h>

int push_targets_open(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints + 1;
	struct push_targets *to = &p->to;
	to->endpoints = calloc(n, sizeof *to->endpoints);
	to->infos = calloc(n, sizeof *to->infos);
	to->members = calloc(n, sizeof *to->members);
	to->errs = calloc(n, sizeof *to->errs);
	to->results = calloc(n, sizeof *to->results);
	to->listed = calloc(n, sizeof *to->listed);
	to->call.urls = calloc(n, sizeof *to->call.urls);
	to->call.index = calloc(n, sizeof *to->call.index);
	to->call.answers = calloc(n, sizeof *to->call.answers);
	to->call.infos = calloc(n, sizeof *to->call.infos);
	return to->endpoints && to->infos && to->members && to->errs && to->results && to->listed &&
	                       to->call.urls && to->call.index && to->call.answers &&
	                       to->call.infos ?
	               0 :
	               ws_oom(err);
}

void push_targets_close(struct ws_push *p)
{
	struct push_targets *to = &p->to;
	push_names_forget(p);
	free(to->endpoints);
	free(to->infos);
	free(to->members);
	free(to->errs);
	free(to->results);
	free(to->listed);
	free(to->call.urls);
	free(to->call.index);
	free(to->call.answers);
	free(to->call.infos);
}

/* The clean-up has four steps: end the update, leave the group, pause again, resume; and flush
 * again where a server could not. Each waits for a silent endpoint for a tenth of --bucket-timeout,
 * and at least SILENT_NS. So a push with a short deadline ends within about two seconds of it. If
 * no endpoint is silent, the steps have longer deadlines: pausing and flushing again have 2 s. */
static const int64_t SILENT_NS = 400 * WS_NS_PER_MS;

void push_note_failure(struct ws_push *p, size_t i, const struct ws_err *said)
{
	p->to.endpoints[i].disconnected = said->code == WS_EREACH;
	p->to.endpoints[i].timed_out = said->code == WS_ETIMEOUT;
}

ws_deadline push_cleanup_deadline(const struct ws_push *p, int64_t most)
{
	int64_t little = p->opts.bucket_ns / 10;
	little = little < SILENT_NS ? SILENT_NS : little;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].timed_out && little < most)
			most = little;
	return ws_deadline_in(most);
}

struct push_call *push_call_new(struct ws_push *p)
{
	p->to.call.n = 0;
	return &p->to.call;
}

void push_call_add(struct ws_push *p, size_t i)
{
	struct push_call *call = &p->to.call;
	call->urls[call->n] = p->to.endpoints[i].url;
	call->infos[call->n] = &p->to.infos[i];
	call->index[call->n++] = i;
}

size_t push_select(struct ws_push *p, bool (*wanted)(const struct push_endpoint *))
{
	push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (!wanted || wanted(&p->to.endpoints[i]))
			push_call_add(p, i);
	return p->to.call.n;
}

struct ws_call push_call_made(const struct ws_push *p, ws_deadline until,
                              const struct ws_cancel *cancel)
{
	const struct push_call *call = &p->to.call;
	return (struct ws_call){ .http = p->http, .urls = call->urls, .n = call->n, .until = until,
		                 .cancel = cancel, .infos = p->to.known ? call->infos : NULL };
}
