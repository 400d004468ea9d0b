/* SPDX-License-Identifier: Apache-2.0 */
/* push_trace.c - the rows of a push in a trace: sources, phases, buckets, loads of servers. The
 * rows of reading, computing and sending are written elsewhere. */
#include "push_protocol.h"

#include <stdio.h>

void push_trace_run(struct ws_push *p)
{
	const struct ws_trace_what run = { .row = WS_TRACE_PUSH,
		                           .about = p->from.name,
		                           .since = p->run.since };
	ws_trace_bucket(p->opts.trace, 0);
	p->run.span = ws_trace_begin(p->opts.trace, &run);
	p->run.phase_span = 0;
	push_trace_phase(p);
}

void push_trace_phase(struct ws_push *p)
{
	const struct ws_trace_what phase = { .row = WS_TRACE_PHASES,
		                             .name = ws_phase_name(p->run.phase),
		                             .since = p->run.phase_since };
	ws_trace_end(p->opts.trace, p->run.phase_span,
	             &(struct ws_trace_end){ .at = p->run.phase_since, .why = p->run.phase_why });
	p->run.phase_why = NULL;
	p->run.phase_span = ws_trace_begin(p->opts.trace, &phase);
}

void push_trace_over(struct ws_push *p, const struct ws_ev_end *r)
{
	ws_trace_bucket(p->opts.trace, 0);
	ws_trace_end(p->opts.trace, p->run.phase_span, NULL);
	ws_trace_end(p->opts.trace, p->run.span,
	             &(struct ws_trace_end){ .bytes = r->wire_bytes,
	                                     .why = r->err ? r->err->msg : NULL,
	                                     .unfinished =
	                                             r->err && r->err->code == WS_ECANCELLED });
	p->run.span = p->run.phase_span = 0;
}

void push_trace_leave(struct ws_push *p)
{
	const struct ws_trace_what whole = { .row = WS_TRACE_PUSH,
		                             .name = ws_phase_name(WS_PHASE_DESTROY) };
	const struct ws_trace_what phase = { .row = WS_TRACE_PHASES,
		                             .name = ws_phase_name(WS_PHASE_DESTROY) };
	p->run.span = ws_trace_begin(p->opts.trace, &whole);
	p->run.phase_span = ws_trace_begin(p->opts.trace, &phase);
}

void push_trace_left(struct ws_push *p)
{
	ws_trace_end(p->opts.trace, p->run.phase_span, NULL);
	ws_trace_end(p->opts.trace, p->run.span, NULL);
	p->run.span = p->run.phase_span = 0;
}

uint64_t push_trace_bucket(struct ws_push *p, size_t b, size_t n)
{
	char name[64];
	if (!p->opts.trace)
		return 0;
	snprintf(name, sizeof name, "bucket %zu of %zu", b + 1, n);
	ws_trace_bucket(p->opts.trace, b + 1);
	return ws_trace_begin(p->opts.trace, &(struct ws_trace_what){ .row = WS_TRACE_BUCKETS,
	                                                              .name = name,
	                                                              .bucket = b + 1 });
}

void push_trace_bucket_end(struct ws_push *p, uint64_t span, uint64_t bytes, int rc,
                           const struct ws_err *err)
{
	ws_trace_end(p->opts.trace, span,
	             &(struct ws_trace_end){ .bytes = bytes,
	                                     .unfinished = rc != 0,
	                                     .why = rc && err ? err->msg : NULL });
	ws_trace_bucket(p->opts.trace, 0);
}

void push_trace_apply(struct ws_push *p, size_t b, int64_t since)
{
	const struct ws_trace_what apply = { .row = WS_TRACE_APPLY,
		                             .bucket = b + 1,
		                             .since = since };
	ws_trace_end(p->opts.trace, ws_trace_begin(p->opts.trace, &apply), NULL);
}

void push_trace_posted(struct ws_push *p, const char *of, size_t b, int64_t since, uint64_t bytes)
{
	const struct ws_trace_what wire = {
		.row = WS_TRACE_WIRE, .of = of, .bucket = b + 1, .since = since
	};
	ws_trace_end(p->opts.trace, ws_trace_begin(p->opts.trace, &wire),
	             &(struct ws_trace_end){ .bytes = bytes });
}
