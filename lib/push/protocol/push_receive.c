/* SPDX-License-Identifier: Apache-2.0 */
/* push_receive.c - /receive_weights: one request announces every tensor, and stays in flight while
 * bucket after bucket is broadcast. The server answers when all have come and are loaded.
 *
 *   {"num_buckets","buckets":[{"names","dtypes","shapes"},..],"group_name","flush_cache",
 *    "free_kv_cache_before_recv","recapture_cuda_graph"}
 *
 * A server needs memory for all tensors beside its weights, and changes all of them or none. */
#include "push_protocol.h"

#include <stdlib.h>

static bool is_known(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_F32 || dtype == WS_DTYPE_F16 || dtype == WS_DTYPE_BF16 ||
	       dtype == WS_DTYPE_I8 || dtype == WS_DTYPE_I32 || dtype == WS_DTYPE_I64;
}

static int legal(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->from.plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &p->from.plan->tensors[i];
		if (is_known(t->dtype))
			continue;
		ws_err_set(err, WS_EREFUSED,
		           "tensor %s is %s: /receive_weights takes float32, float16, bfloat16, "
		           "int8, int32 and int64",
		           t->name, ws_dtype_torch(t->dtype));
		return ws_err_hint(err, "use {protocol} update");
	}
	return 0;
}

static void write_body(const struct ws_push *p, struct ws_jw *w)
{
	push_write_buckets(w, p->from.plan);
	ws_jw_str(w, "group_name", ws_group_name(p->link.group));
	ws_jw_bool(w, "flush_cache", push_flush_when(p) != WS_FLUSH_NEVER);
	ws_jw_bool(w, "free_kv_cache_before_recv", false);
	ws_jw_bool(w, "recapture_cuda_graph", true);
}

/* The deadline of all buckets together. */
static ws_deadline until_all(const struct ws_push *p)
{
	const int64_t n = (int64_t)p->from.plan->n_buckets;
	const bool endless = p->opts.bucket_ns > INT64_MAX / 4 / n;
	return ws_deadline_min(p->run.until,
	                       endless ? WS_FOREVER : ws_deadline_in(p->opts.bucket_ns * n));
}

static int begin_receive(struct ws_push *p, struct ws_err *err)
{
	struct push_request *r = push_own(p, sizeof *r, err);
	if (!r || push_request_open(p, r, "/receive_weights", err))
		return -1;
	write_body(p, &r->w);
	return push_request_start(p, r, until_all(p), err);
}

static void finish(struct ws_push *p)
{
	if (p->own)
		push_request_close(p, p->own);
	free(p->own);
	p->own = NULL;
}

/* Before the last byte no weight has changed. Afterwards the weights of an endpoint that did not
 * agree are unknown. */
static void report_answers(struct ws_push *p, bool last, const struct push_moved *m)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		const enum ws_code code = p->to.errs[i].code;
		if (last && code == WS_OK && push_moved_source(m))
			push_target_event(&e->weights, PUSH_ACKED_LAST);
		else if (last && e->weights.state == WS_UNTOUCHED &&
		         !(m->wire != WS_OK && ws_endpoint_said_no(&p->to.errs[i])))
			push_target_event(&e->weights, PUSH_BYTES_LEFT);
	}
	push_request_note(p, p->own);
}

static int move_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	struct push_moved m;
	const int rc = push_move(p, p->own, k, !k->last, &m, err);
	if (m.over && (rc || k->last))
		report_answers(p, k->last, &m);
	if (rc == 0)
		push_moved_emit(p, k, &m);
	if (rc == 0 && k->last)
		finish(p);
	return rc;
}

static bool takes(const struct ws_capabilities *can)
{
	return can->receive;
}

const struct push_protocol push_receive = {
	.name = "receive",
	.routes = "/receive_weights",
	.takes = takes,
	.tensors_only = true,
	.needs_pause = true,
	.legal = legal,
	.begin = begin_receive,
	.bucket = move_bucket,
	.undo = finish,
};
