/* SPDX-License-Identifier: Apache-2.0 */
/* push_request.c - one POST to every endpoint, with a broadcast while it is in flight. */
#include "push_protocol.h"

#include <stdio.h>
#include <stdlib.h>

enum { REQUEST_MAX = 256 << 20 };

int push_request_open(struct ws_push *p, struct push_request *r, const char *path, struct ws_err *err)
{
	*r = (struct push_request){ .path = path };
	ws_buf_init(&r->body, REQUEST_MAX);
	ws_jw_init(&r->w, &r->body);
	ws_jw_object(&r->w, NULL);
	r->calls = calloc(p->opts.n_endpoints, sizeof *r->calls);
	r->messages = calloc(p->opts.n_endpoints, sizeof *r->messages);
	return r->calls && r->messages ? 0 : ws_err_set(err, WS_ESYSTEM, "out of memory");
}

void push_request_close(struct ws_push *p, struct push_request *r)
{
	for (size_t i = 0; r->calls && i < p->opts.n_endpoints; i++) {
		ws_http_drop(p->http, &r->calls[i].http);
		ws_endpoint_call_free(&r->calls[i]);
	}
	ws_buf_free(&r->body);
	free(r->calls);
	free(r->messages);
	*r = (struct push_request){ 0 };
}

/* ---- the body ----------------------------------------------------------------------------------- */

static void write_shapes(struct ws_jw *w, const struct ws_plan_tensor *t, size_t n)
{
	ws_jw_array(w, "shapes");
	for (size_t i = 0; i < n; i++) {
		ws_jw_array(w, NULL);
		for (unsigned d = 0; d < t[i].n_dims; d++)
			ws_jw_int(w, NULL, t[i].dims[d]);
		ws_jw_end_array(w);
	}
	ws_jw_end_array(w);
}

void push_write_tensors(struct ws_jw *w, const struct ws_plan *plan, size_t b)
{
	const struct ws_plan_bucket *bucket = &plan->buckets[b];
	const struct ws_plan_tensor *t = &plan->tensors[bucket->first];
	ws_jw_array(w, "names");
	for (size_t i = 0; i < bucket->n; i++)
		ws_jw_str(w, NULL, t[i].name);
	ws_jw_end_array(w);
	ws_jw_array(w, "dtypes");
	for (size_t i = 0; i < bucket->n; i++)
		ws_jw_str(w, NULL, ws_dtype_torch(t[i].dtype));
	ws_jw_end_array(w);
	write_shapes(w, t, bucket->n);
}

/* ---- sending ------------------------------------------------------------------------------------ */

static int start_all(struct ws_push *p, struct push_request *r, ws_deadline until, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (ws_endpoint_start(p->http, &r->calls[i], p->endpoints[i].url, "POST", r->path, &r->body,
		                      until, err))
			return -1;
		if (r->changes && p->endpoints[i].state == WS_UNTOUCHED)
			p->endpoints[i].state = WS_PARTIAL;
	}
	return 0;
}

static int end_body(struct push_request *r, struct ws_err *err)
{
	ws_jw_end_object(&r->w);
	return ws_buf_check(&r->body, "request", err);
}

static uint64_t taken(const struct ws_push *p)
{
	const struct ws_transport *t = ws_group_transport(p->group);
	return t->ops->progress(t) - p->progress_base;
}

static void tick(void *ctx)
{
	struct ws_push *p = ctx;
	const struct ws_event ev = {
		.type = WS_EV_PROGRESS,
		.progress = { .phase = WS_PHASE_TRANSFER, .done = taken(p), .total = p->plan->bytes,
		              .bucket = p->bucket, .buckets = p->plan->n_buckets,
		              .ns = ws_now_ns() - p->transfer_since },
	};
	push_emit(p, &ev);
}

static void emit_bucket(struct ws_push *p, const struct push_bucket *k, int64_t ns, int64_t wire_ns)
{
	const struct ws_plan_bucket *bucket = &p->plan->buckets[k->b];
	const struct ws_event ev = {
		.type = WS_EV_BUCKET,
		.bucket = { .index = k->b, .count = p->plan->n_buckets, .tensors = bucket->n,
		            .bytes = bucket->bytes, .flush = k->flush, .ns = ns, .wire_ns = wire_ns },
	};
	push_emit(p, &ev);
}

int push_move(struct ws_push *p, struct push_request *r, const struct push_bucket *k, enum ws_code *wire,
              struct ws_err *err)
{
	struct ws_transport *t = ws_group_transport(p->group);
	const ws_deadline until = ws_deadline_min(p->until, ws_deadline_in(p->opts.bucket_ns));
	char what[64];
	snprintf(what, sizeof what, "bucket %zu of %zu", k->b + 1, p->plan->n_buckets);
	if (end_body(r, err) || t->ops->send_bucket(t, k->payloads, k->n_payloads, until, err))
		return -1;
	if (start_all(p, r, until, err)) {
		t->ops->abort(t);
		t->ops->wait(t, NULL);
		return -1;
	}
	struct ws_together w = { .group = p->group, .calls = r->calls, .n = p->opts.n_endpoints,
		                 .errs = p->errs, .messages = r->messages, .until = until,
		                 .cancel = p->opts.cancel, .what = what, .tick = tick, .ctx = p };
	const int64_t start = ws_now_ns();
	const int rc = ws_group_together(&w, err);
	const int64_t ns = ws_now_ns() - start;
	/* From the last byte taken to the last answer the servers load what they got. */
	p->ns[WS_PHASE_APPLY] += ns - w.wire_ns;
	p->ns[WS_PHASE_TRANSFER] -= ns - w.wire_ns;
	*wire = w.wire;
	r->over = true;
	if (rc) /* a deadline's sentence has it already */
		return err && err->code == WS_ETIMEOUT ? -1 : ws_err_wrap(err, "%s", what);
	emit_bucket(p, k, ns, w.wire_ns);
	return 0;
}
