/* SPDX-License-Identifier: Apache-2.0 */
/* push_from_tensor.c - a POST to /update_weights_from_tensor:
 *
 *   {"serialized_named_tensors":[the same base64 of a pickle for each rank],
 *    "load_format":"flattened_bucket","flush_cache","abort_all_requests"}
 *
 * The ranks of a server meet when each has loaded the bucket, and one of them answers. */
#include "push_from_tensor.h"

#include "base64.h"

#include <stdlib.h>

unsigned push_from_tensor_ranks(const struct ws_push *p)
{
	return p->to.infos[0].tp_size ? p->to.infos[0].tp_size : 1;
}

int push_from_tensor_check_ranks(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 1; i < p->opts.n_endpoints; i++) {
		if (p->to.infos[i].tp_size == p->to.infos[0].tp_size)
			continue;
		ws_err_set(err, WS_EREFUSED,
		           "%s has %u ranks and %s has %u: a request has an element for each rank",
		           p->to.endpoints[0].url, p->to.infos[0].tp_size, p->to.endpoints[i].url,
		           p->to.infos[i].tp_size);
		return ws_err_hint(err, "push to servers of one size at a time");
	}
	return 0;
}

struct ws_pickle_tensor *push_from_tensor_list(const struct ws_push *p, size_t b,
                                               struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[b];
	const struct ws_plan_tensor *t = &p->from.plan->tensors[bucket->first];
	struct ws_pickle_tensor *tensors = calloc(bucket->n, sizeof *tensors);
	if (!tensors) {
		ws_oom(err);
		return NULL;
	}
	for (size_t i = 0; i < bucket->n; i++) {
		tensors[i] = (struct ws_pickle_tensor){ .name = t[i].name,
			                                .dtype = t[i].dtype,
			                                .n_dims = t[i].n_dims,
			                                .bytes = t[i].bytes };
		for (unsigned d = 0; d < t[i].n_dims; d++)
			tensors[i].dims[d] = t[i].dims[d];
	}
	return tensors;
}

/* ---- a request ---- */

static int write_body(const struct ws_push *p, struct ws_jw *w, const struct ws_buf *pickle,
                      bool flush, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, 0);
	ws_base64_encode(&text, pickle->data, pickle->len);
	const int rc = ws_buf_check(&text, "bucket", err);
	ws_jw_array(w, "serialized_named_tensors");
	for (unsigned r = 0; rc == 0 && r < push_from_tensor_ranks(p); r++)
		ws_jw_strn(w, NULL, text.data, text.len);
	ws_jw_end_array(w);
	ws_jw_str(w, "load_format", "flattened_bucket");
	ws_jw_bool(w, "flush_cache", flush);
	ws_jw_bool(w, "abort_all_requests", false);
	push_write_selector(p, w);
	ws_buf_free(&text);
	return rc;
}

static int begin_bucket(struct ws_push *p, struct push_request *r, const struct ws_buf *pickle,
                        bool flush, struct ws_err *err)
{
	return push_request_open(p, r, "/update_weights_from_tensor", err) ||
	       write_body(p, &r->w, pickle, flush, err) ? -1 : 0;
}

/* The request had the bytes, so a server that refused it may have loaded some of them, unless it
 * says that it loads none. */
static void report_answers(struct ws_push *p, const struct push_bucket *k,
                           const struct push_request *r)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_weights *w = &p->to.endpoints[i].weights;
		if (p->to.errs[i].code == WS_OK && k->last)
			push_target_event(w, PUSH_ACKED_LAST);
		else if (k->b == 0 && push_request_unloaded(p, r, i))
			push_target_event(w, PUSH_REFUSED_UNSENT);
	}
}

int push_from_tensor(struct ws_push *p, const struct push_bucket *k, const struct ws_buf *pickle,
                     int64_t since, struct ws_err *err)
{
	const ws_deadline until = push_bucket_until(p, since);
	struct push_request r;
	int rc = begin_bucket(p, &r, pickle, k->flush, err);
	if (rc == 0) {
		r.changes = true;
		rc = push_request_ask(p, &r, NULL, until, p->opts.cancel, err);
		report_answers(p, k, &r);
		push_request_note(p, &r);
	}
	if (rc == 0) {
		const struct push_moved m = { .over = true, .ns = ws_now_ns() - since };
		p->run.posted += p->from.plan->buckets[k->b].bytes * p->opts.n_endpoints *
		                 push_from_tensor_ranks(p);
		push_moved_emit(p, k, &m);
	}
	push_request_close(p, &r);
	return rc;
}

int push_from_tensor_empty(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	struct push_request r;
	struct ws_buf pickle;
	ws_buf_init(&pickle, 0);
	ws_pickle_begin(&pickle, 0);
	ws_pickle_end(&pickle, NULL, 0, 0);
	int rc = begin_bucket(p, &r, &pickle, false, err);
	if (rc == 0)
		rc = push_request_ask(p, &r, NULL, until, NULL, err);
	push_request_close(p, &r);
	ws_buf_free(&pickle);
	return rc;
}

/* Older servers support only buckets of one dtype, whose offsets count elements. */
bool push_from_tensor_takes(const struct ws_capabilities *can)
{
	return can->from_tensor && can->load_format && can->mixed_bucket;
}
