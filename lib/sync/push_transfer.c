/* SPDX-License-Identifier: Apache-2.0 */
/* push_transfer.c - buckets: a request to every endpoint and a broadcast, both at once, one bucket after
 * the other.
 *
 * flush_cache is written into every request, because servers flush when it is absent. */
#include "push_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUEST_MAX = 256 << 20 };

struct bucket {
	size_t b;
	struct ws_payload *payloads;
	size_t n_payloads;
	struct ws_buf body;
	struct ws_endpoint_call *calls;
	char (*messages)[256];
	bool flush, last;
};

/* ---- the request -------------------------------------------------------------------------------- */

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

static void write_request(const struct ws_push *p, struct bucket *k)
{
	const struct ws_plan_bucket *bucket = &p->plan->buckets[k->b];
	const struct ws_plan_tensor *t = &p->plan->tensors[bucket->first];
	struct ws_jw w;
	ws_jw_init(&w, &k->body);
	ws_jw_object(&w, NULL);
	ws_jw_array(&w, "names");
	for (size_t i = 0; i < bucket->n; i++)
		ws_jw_str(&w, NULL, t[i].name);
	ws_jw_end_array(&w);
	ws_jw_array(&w, "dtypes");
	for (size_t i = 0; i < bucket->n; i++)
		ws_jw_str(&w, NULL, ws_dtype_torch(t[i].dtype));
	ws_jw_end_array(&w);
	write_shapes(&w, t, bucket->n);
	ws_jw_str(&w, "group_name", ws_group_name(p->group));
	ws_jw_bool(&w, "flush_cache", k->flush);
	ws_jw_bool(&w, "abort_all_requests", false);
	/* A version that is to be believed comes after the verification (push_set_version). */
	if (k->last && p->weight_version && p->opts.verify != WS_VERIFY_HASH)
		ws_jw_str(&w, "weight_version", p->weight_version);
	if (p->plan->format == WS_FORMAT_FLATTENED)
		ws_jw_str(&w, "load_format", "flattened_bucket");
	ws_jw_end_object(&w);
}

static int start_requests(struct ws_push *p, struct bucket *k, ws_deadline until, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (ws_endpoint_start(p->http, &k->calls[i], p->endpoints[i].url, "POST",
		                      "/update_weights_from_distributed", &k->body, until, err))
			return -1;
		if (p->endpoints[i].state == WS_UNTOUCHED)
			p->endpoints[i].state = WS_PARTIAL;
	}
	return 0;
}

/* ---- progress ----------------------------------------------------------------------------------- */

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

/* ---- one bucket --------------------------------------------------------------------------------- */

/* After the last bucket an endpoint that agreed has everything; before, whoever was sent something has a
 * mixture, unless it refused the very first request before a byte had left. Where our own bytes could not
 * be had, what was begun was filled up with others, and nobody who agrees knows. */
static void judge(struct ws_push *p, const struct bucket *k, enum ws_code wire)
{
	const bool genuine = wire != WS_EINPUT && wire != WS_ESYSTEM;
	const struct ws_transport *t = ws_group_transport(p->group);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->endpoints[i];
		const struct ws_err *said = &p->errs[i];
		if (said->code == WS_OK) {
			if (k->last && genuine)
				e->state = WS_COMMITTED;
		} else if (k->b == 0 && said->code == WS_EREFUSED && t->ops->sent(t, NULL) == p->sent_base) {
			e->state = e->before;
		}
		e->lost = said->code == WS_EREACH;
		snprintf(e->message, sizeof e->message, "%.255s",
		         said->code == WS_OK ? k->messages[i] : said->msg);
	}
}

static int move(struct ws_push *p, struct bucket *k, struct ws_err *err)
{
	struct ws_transport *t = ws_group_transport(p->group);
	const size_t n = p->opts.n_endpoints;
	const ws_deadline until = ws_deadline_min(p->until, ws_deadline_in(p->opts.bucket_ns));
	char what[64];
	snprintf(what, sizeof what, "bucket %zu of %zu", k->b + 1, p->plan->n_buckets);
	if (t->ops->send_bucket(t, k->payloads, k->n_payloads, until, err))
		return -1;
	if (start_requests(p, k, until, err)) {
		t->ops->abort(t);
		t->ops->wait(t, NULL);
		return -1;
	}
	struct ws_together w = { .group = p->group, .calls = k->calls, .n = n, .errs = p->errs,
		                 .messages = k->messages, .until = until, .cancel = p->opts.cancel,
		                 .what = what, .tick = tick, .ctx = p };
	const int64_t start = ws_now_ns();
	const int rc = ws_group_together(&w, err);
	const int64_t ns = ws_now_ns() - start;
	/* From the last byte taken to the last answer the servers load what they got. */
	p->ns[WS_PHASE_APPLY] += ns - w.wire_ns;
	p->ns[WS_PHASE_TRANSFER] -= ns - w.wire_ns;
	judge(p, k, w.wire);
	if (rc) /* a deadline's sentence has it already */
		return err && err->code == WS_ETIMEOUT ? -1 : ws_err_wrap(err, "%s", what);
	const struct ws_event ev = {
		.type = WS_EV_BUCKET,
		.bucket = { .index = k->b, .count = p->plan->n_buckets,
		            .tensors = p->plan->buckets[k->b].n, .bytes = p->plan->buckets[k->b].bytes,
		            .flush = k->flush, .ns = ns, .wire_ns = w.wire_ns },
	};
	push_emit(p, &ev);
	return 0;
}

static int open_bucket(struct ws_push *p, size_t b, struct bucket *k, struct ws_err *err)
{
	*k = (struct bucket){ .b = b, .last = b + 1 == p->plan->n_buckets };
	k->flush = p->opts.flush == WS_FLUSH_EVERY || (p->opts.flush == WS_FLUSH_LAST && k->last);
	ws_buf_init(&k->body, REQUEST_MAX);
	k->calls = calloc(p->opts.n_endpoints, sizeof *k->calls);
	k->messages = calloc(p->opts.n_endpoints, sizeof *k->messages);
	if (!k->calls || !k->messages)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	write_request(p, k);
	return ws_buf_check(&k->body, "request", err) ||
	       ws_plan_payloads(p->plan, b, &k->payloads, &k->n_payloads, err) ? -1 : 0;
}

static void close_bucket(struct ws_push *p, struct bucket *k)
{
	for (size_t i = 0; k->calls && i < p->opts.n_endpoints; i++) {
		ws_http_drop(p->http, &k->calls[i].http);
		ws_endpoint_call_free(&k->calls[i]);
	}
	ws_plan_payloads_free(k->payloads, k->n_payloads);
	ws_buf_free(&k->body);
	free(k->calls);
	free(k->messages);
	*k = (struct bucket){ 0 };
}

int push_transfer(struct ws_push *p, struct ws_err *err)
{
	struct ws_transport *t = ws_group_transport(p->group);
	struct bucket now = { 0 }, next = { 0 };
	int rc = open_bucket(p, 0, &next, err);
	p->transfer_since = ws_now_ns();
	p->progress_base = t->ops->progress(t);
	for (size_t b = 0; rc == 0 && b < p->plan->n_buckets; b++) {
		p->bucket = b;
		now = next;
		next = (struct bucket){ 0 };
		if (b + 1 < p->plan->n_buckets)
			rc = open_bucket(p, b + 1, &next, err);
		if (rc == 0 && next.payloads && t->ops->stage)
			t->ops->stage(t, next.payloads, next.n_payloads);
		if (rc == 0)
			rc = move(p, &now, err);
		close_bucket(p, &now);
	}
	close_bucket(p, &next);
	return rc;
}
