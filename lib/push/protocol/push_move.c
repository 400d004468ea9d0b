/* SPDX-License-Identifier: Apache-2.0 */
/* push_move.c - broadcasts one bucket, while a request may be in flight. */
#include "push_protocol.h"

#include <stdio.h>

static uint64_t taken(const struct ws_push *p)
{
	const struct ws_transport *t = ws_group_transport(p->link.group);
	return t->ops->progress(t) - p->run.progress_base;
}

void push_moved_tick(void *ctx)
{
	struct ws_push *p = ctx;
	const struct ws_event ev = {
		.type = WS_EV_PROGRESS,
		.progress = { .phase = WS_PHASE_TRANSFER,
		              .done = taken(p),
		              .total = p->from.plan->bytes,
		              .bucket = p->run.bucket,
		              .buckets = p->from.plan->n_buckets,
		              .bucket_bytes = p->protocol->transfer ?
		                                      0 :
		                                      p->from.plan->buckets[p->run.bucket].bytes,
		              .ns = ws_now_ns() - p->run.transfer_since },
	};
	push_emit(p, &ev);
}

int push_move(struct ws_push *p, struct push_request *r, const struct push_bucket *k, bool later,
              struct push_moved *m, struct ws_err *err)
{
	struct ws_transport *t = ws_group_transport(p->link.group);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	char what[64];
	snprintf(what, sizeof what, "bucket %zu of %zu", k->b + 1, p->from.plan->n_buckets);
	*m = (struct push_moved){ 0 };
	ws_watchdog_bucket(p->watch.watchdog, k->b, p->from.plan->n_buckets,
	                   p->from.plan->buckets[k->b].bytes, k->flush);
	push_alive(p); /* before the first byte leaves */
	if (t->ops->send_bucket(t, k->payloads, k->n_payloads, until, err))
		return -1;
	struct ws_together w = { .group = p->link.group,
		                 .calls = r ? r->calls : NULL,
		                 .n = r ? p->opts.n_endpoints : 0,
		                 .later = later,
		                 .errs = p->to.errs,
		                 .messages = r ? r->messages : NULL,
		                 .until = until,
		                 .cancel = p->opts.cancel,
		                 .what = what,
		                 .tick = push_moved_tick,
		                 .ctx = p };
	const int64_t start = ws_now_ns();
	const int rc = ws_group_together(&w, err);
	*m = (struct push_moved){ .over = true, .wire = w.wire, .ns = ws_now_ns() - start,
		                  .wire_ns = w.wire_ns };
	/* Between the last byte taken and the last answer the servers load the bucket. */
	push_trace_apply(p, k->b, start + m->wire_ns);
	push_applied(p, m->ns - m->wire_ns);
	if (rc) /* a timeout's message names the bucket already */
		return err && err->code == WS_ETIMEOUT ? -1 : ws_err_wrap(err, "%s", what);
	return 0;
}

bool push_moved_source(const struct push_moved *m)
{
	return m->wire != WS_EINPUT && m->wire != WS_ESYSTEM;
}

void push_moved_emit(struct ws_push *p, const struct push_bucket *k, const struct push_moved *m)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[k->b];
	const struct ws_event ev = {
		.type = WS_EV_BUCKET,
		.bucket = { .index = k->b,
		            .count = p->from.plan->n_buckets,
		            .tensors = bucket->n,
		            .bytes = bucket->bytes,
		            .bucket_size = push_bucket_limit(p, k->b),
		            .flush = k->flush,
		            .ns = m->ns,
		            .wire_ns = m->wire_ns },
	};
	ws_watchdog_arrived(p->watch.watchdog);
	push_emit(p, &ev);
}
