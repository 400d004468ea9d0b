/* SPDX-License-Identifier: Apache-2.0 */
/* push_request.c - one POST to every endpoint. */
#include "push_protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUEST_MAX = 256 << 20 };

ws_deadline push_bucket_until(const struct ws_push *p, int64_t since)
{
	const int64_t left = p->opts.bucket_ns - (ws_now_ns() - since);
	return ws_deadline_min(p->run.until, ws_deadline_in(left > 0 ? left : 0));
}

int push_request_open(struct ws_push *p, struct push_request *r, const char *path,
                      struct ws_err *err)
{
	*r = (struct push_request){ .path = path };
	ws_buf_init(&r->body, REQUEST_MAX);
	ws_jw_init(&r->w, &r->body);
	ws_jw_object(&r->w, NULL);
	r->calls = calloc(p->opts.n_endpoints, sizeof *r->calls);
	r->messages = calloc(p->opts.n_endpoints, sizeof *r->messages);
	return r->calls && r->messages ? 0 : ws_oom(err);
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

/* ---- the body -------------------------------------------------------------------------------- */

void push_write_names(struct ws_jw *w, const struct ws_plan_tensor *t, size_t n)
{
	ws_jw_array(w, "names");
	for (size_t i = 0; i < n; i++)
		ws_jw_str(w, NULL, t[i].name);
	ws_jw_end_array(w);
}

void push_write_shapes(struct ws_jw *w, const struct ws_plan_tensor *t, size_t n)
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
	push_write_names(w, t, bucket->n);
	ws_jw_array(w, "dtypes");
	for (size_t i = 0; i < bucket->n; i++)
		ws_jw_str(w, NULL, ws_dtype_torch(t[i].dtype));
	ws_jw_end_array(w);
	push_write_shapes(w, t, bucket->n);
}

void push_write_buckets(struct ws_jw *w, const struct ws_plan *plan)
{
	ws_jw_uint(w, "num_buckets", plan->n_buckets);
	ws_jw_array(w, "buckets");
	for (size_t b = 0; b < plan->n_buckets; b++) {
		ws_jw_object(w, NULL);
		push_write_tensors(w, plan, b);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
}

/* ---- sending --------------------------------------------------------------------------------- */

static int end_body(struct push_request *r, struct ws_err *err)
{
	ws_jw_end_object(&r->w);
	return ws_buf_check(&r->body, "request", err);
}

int push_request_start(struct ws_push *p, struct push_request *r, ws_deadline until,
                       struct ws_err *err)
{
	if (end_body(r, err))
		return -1;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		p->to.errs[i] = (struct ws_err)WS_ERR_INIT;
		if (ws_endpoint_start(p->http, &r->calls[i], p->to.endpoints[i].url, "POST",
		                      r->path, &r->body, until, err))
			return -1;
		if (r->changes)
			push_target_event(&p->to.endpoints[i].weights, PUSH_BYTES_LEFT);
	}
	return 0;
}

static void read_answer(struct ws_push *p, struct push_request *r, size_t i,
                        const struct ws_err *cut)
{
	struct ws_endpoint_call *call = &r->calls[i];
	struct push_endpoint *e = &p->to.endpoints[i];
	e->sent = call->http.sent;
	if (!call->http.done)
		p->to.errs[i] = *cut;
	else
		ws_endpoint_reply(call, NULL, r->messages[i], sizeof r->messages[i],
		                  &p->to.errs[i]);
	if (r->changes && e->sent)
		push_target_event(&e->weights, PUSH_BYTES_LEFT);
}

int push_request_ask(struct ws_push *p, struct push_request *r,
                     bool (*wanted)(const struct push_endpoint *), ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_err cut = WS_ERR_INIT;
	const struct ws_err *first = NULL;
	int rc = end_body(r, &cut);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		p->to.errs[i] = (struct ws_err)WS_ERR_INIT;
		e->asked = !wanted || wanted(e);
		e->sent = false;
		if (rc == 0 && e->asked)
			rc = ws_endpoint_prepare(&r->calls[i], p->to.endpoints[i].url, "POST",
			                         r->path, &r->body, until, &cut);
	}
	if (rc == 0) /* else no request is sent, and each fails with the error in `cut` */
		rc = ws_endpoint_run(p->http, r->calls, p->opts.n_endpoints, cancel, &cut);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (!p->to.endpoints[i].asked)
			continue;
		read_answer(p, r, i, &cut);
		if (!first && p->to.errs[i].code != WS_OK)
			first = &p->to.errs[i];
	}
	if (rc)
		first = &cut;
	if (first && err)
		*err = *first;
	return first ? -1 : 0;
}

bool push_request_unloaded(const struct ws_push *p, const struct push_request *r, size_t i)
{
	const bool drafts = p->to.infos[i].has_draft &&
	                    (p->protocol->files || !p->from.target_only);
	return r->calls[i].unloaded && !drafts;
}

void push_request_note(struct ws_push *p, const struct push_request *r)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_err *said = &p->to.errs[i];
		struct push_endpoint *e = &p->to.endpoints[i];
		e->unflushed |= r->calls[i].unflushed;
		push_note_failure(p, i, said);
		snprintf(e->message, sizeof e->message, "%.255s",
		         said->code == WS_OK ? r->messages[i] : said->msg);
	}
}
