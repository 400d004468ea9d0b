/* SPDX-License-Identifier: Apache-2.0 */
/* push_report.c - the events of a push, and the times of its phases. Every nanosecond of a run
 * belongs to exactly one phase, so the phases add up to the total. */
#include "push_state.h"

#include <stdarg.h>
#include <stdio.h>

/* The deadline of the current step. Before the first pause only the run's deadline counts. */
static ws_deadline step_limit(const struct ws_push *p)
{
	bool begun = p->run.phase == WS_PHASE_PAUSE || p->run.weights_dirty;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		begun = begun || p->to.endpoints[i].paused;
	if (p->run.phase == WS_PHASE_RESUME || p->run.phase == WS_PHASE_DESTROY)
		return ws_deadline_in(PUSH_CLEAN_UP_S * WS_NS_PER_S);
	return begun ? ws_deadline_in(p->opts.bucket_ns) : WS_FOREVER;
}

void push_enter(struct ws_push *p, enum ws_phase phase)
{
	const int64_t now = ws_now_ns();
	p->run.ns[p->run.phase] += now - p->run.phase_since;
	p->run.phase = phase;
	p->run.phase_since = now;
	push_trace_phase(p);
	push_watchdog_phase(p);
	push_alive_until(p, step_limit(p));
}

void push_applied(struct ws_push *p, int64_t ns)
{
	p->run.ns[WS_PHASE_APPLY] += ns;
	p->run.ns[WS_PHASE_TRANSFER] -= ns;
}

void push_emit(struct ws_push *p, const struct ws_event *ev)
{
	push_alive(p);
	if (ev->type != WS_EV_PROGRESS)
		ws_watchdog_touch(p->watch.watchdog);
	if (p->opts.sink.event)
		p->opts.sink.event(p->opts.sink.ctx, ev);
}

void push_warn(struct ws_push *p, const char *url, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	const struct ws_event ev = { .type = WS_EV_WARNING,
		                     .warning = { .url = url ? url : "", .message = text } };
	push_emit(p, &ev);
}

void push_emit_endpoint(struct ws_push *p, size_t i, enum ws_phase phase, const struct ws_err *e,
                        const char *message, int64_t ns)
{
	const struct ws_event ev = {
		.type = WS_EV_ENDPOINT,
		.endpoint = { .url = p->to.endpoints[i].url,
		              .phase = phase,
		              .ok = e->code == WS_OK,
		              .rank_offset = p->to.members[i].rank_offset,
		              .ranks = p->to.infos[i].tp_size ? p->to.members[i].ranks : 0,
		              .version = p->to.infos[i].version,
		              .weight_version = p->to.infos[i].weight_version,
		              .message = e->code == WS_OK ? message : e->msg,
		              .ns = ns },
	};
	push_emit(p, &ev);
}
