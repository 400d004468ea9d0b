/* SPDX-License-Identifier: Apache-2.0 */
/* push_vllm_ipc.c - a vLLM of this machine, with its engine "ipc", reads the weights from our GPU
 * memory.
 *
 *   POST /init_weight_transfer_engine {"init_info":{}}, since 0.27 {"init_info":{"packed":true}}
 *   POST /start_weight_update          as in push_vllm.c
 *   POST /update_weights {"update_info":{"names","dtype_names","shapes",
 *                         "ipc_handles_pickled": base64 of a pickle (pickle.h),
 *                         since 0.22 "tensor_sizes": bytes of each; up to 0.26 "packed":true}}
 *   POST /finish_weight_update
 *
 * vLLM unpickles only with VLLM_ALLOW_INSECURE_SERIALIZATION=1 in its environment, which no route
 * shows: without it the first bucket is refused. A worker takes the handle of its own GPU. Ours is
 * that of one GPU, so there may be only one worker.
 *
 * Packed, a worker copies the tensors out of the buffer, and answers when its GPU has copied them:
 * the memory is free then. Up to 0.20 an update is one request, at whose end the same is true. 0.21
 * keeps the tensors themselves from one request to the next, so it is refused.
 *
 * After a failure nothing may refer to the memory any more:
 *
 *   up to 0.20   layers with some of their parts keep these: an update of no tensors ends that
 *   since 0.22   the worker is asked something else: it answers when it has left the request
 *   since 0.32   it keeps the buffer open: /shutdown_weight_transfer_engine closes it
 *
 * If the worker did not even open the first bucket, its layers have no values since the start, but
 * a second start and its finish give them back (tried on 0.32). */
#include "push_export.h"
#include "push_vllm.h"

#include "base64.h"
#include "endpoint_words.h"
#include "push_from_tensor.h"
#include "vllm_workers.h"

#include <stdlib.h>
#include <string.h>

static const int64_t SETTLE_NS = 10 * WS_NS_PER_S;
static const int64_t CLOSE_NS = 3 * WS_NS_PER_S;

/* ---- before ---- */

static int check_version(const struct ws_push *p, size_t i, struct ws_err *err)
{
	const struct ws_capabilities *can = push_can(p, i), *first = push_can(p, 0);
	if (!can->ipc_packed && !can->ipc_tensors) {
		ws_err_set(err, WS_EREFUSED, "%s: vLLM %s cannot be given memory of a GPU",
		           p->to.endpoints[i].url, p->to.infos[i].version);
		ws_err_hint(err, "use vLLM 0.22 or later, or {backend} disk");
		return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	if (can->ipc_packed != first->ipc_packed || can->ipc_at_init != first->ipc_at_init)
		return push_vllm_refuse(p, i, "its requests differ from those of the first server: "
		                        "vLLM changed them in 0.22 and 0.27",
		                        "push to servers of one version at a time", err);
	return 0;
}

static int legal(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (push_vllm_check_engine(p, i, "ipc", err) || check_version(p, i, err) ||
		    push_check_partial(p, i, err))
			return -1;
		if (p->to.members[i].ranks > 1)
			return push_vllm_refuse(p, i, "it has several workers, each of which wants "
			                        "memory of its own GPU", "use {backend} nccl or "
			                        "disk", err);
		if (p->opts.ipc_by_ordinal)
			return push_vllm_refuse(p, i, "a vLLM finds its GPU by its UUID",
			                        "leave {ipc_by_ordinal} out", err);
	}
	return 0;
}

/* ---- requests ---- */

static int init(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.init_ns));
	struct push_request r;
	int rc = push_request_open(p, &r, "/init_weight_transfer_engine", err);
	if (rc == 0) {
		ws_jw_object(&r.w, "init_info");
		if (push_can(p, 0)->ipc_at_init)
			ws_jw_bool(&r.w, "packed", true);
		ws_jw_end_object(&r.w);
		rc = push_request_ask(p, &r, NULL, until, p->opts.cancel, err);
		push_request_note(p, &r);
	}
	push_request_close(p, &r);
	return rc;
}

static int write_handles(const struct ws_push *p, struct ws_jw *w, const struct ws_buf *pickle,
                         struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, 0);
	ws_base64_encode(&text, pickle->data, pickle->len);
	const int rc = ws_buf_check(&text, "handles", err);
	if (rc == 0)
		ws_jw_strn(w, "ipc_handles_pickled", text.data, text.len);
	if (push_can(p, 0)->ipc_packed && !push_can(p, 0)->ipc_at_init)
		ws_jw_bool(w, "packed", true);
	ws_buf_free(&text);
	return rc;
}

/* Of an update of no tensors, up to 0.20. */
static void write_no_handles(const struct ws_push *p, struct ws_jw *w)
{
	static const struct ws_pickle_cuda nowhere = { 0 };
	struct ws_buf pickle;
	ws_buf_init(&pickle, 0);
	ws_pickle_vllm_tensors(&pickle, &nowhere, NULL, 0);
	write_handles(p, w, &pickle, NULL);
	ws_buf_free(&pickle);
}

static int write_pickle(const struct ws_push *p, size_t b, const struct ws_pickle_cuda *where,
                        struct ws_buf *out, struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[b];
	struct ws_pickle_tensor *tensors = push_from_tensor_list(p, b, err);
	if (!tensors)
		return -1;
	if (push_can(p, 0)->ipc_packed)
		ws_pickle_vllm_packed(out, where, bucket->bytes);
	else
		ws_pickle_vllm_tensors(out, where, tensors, bucket->n);
	free(tensors);
	return ws_buf_check(out, "handles", err);
}

static int write_body(const struct ws_push *p, struct ws_jw *w, size_t b,
                      const struct ws_pickle_cuda *where, struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[b];
	struct ws_buf pickle;
	ws_buf_init(&pickle, 0);
	ws_jw_object(w, "update_info");
	push_vllm_write_tensors(p, w, b);
	const int rc = write_pickle(p, b, where, &pickle, err) ||
	                               write_handles(p, w, &pickle, err) ?
	                       -1 :
	                       0;
	if (push_can(p, 0)->ipc_packed) {
		ws_jw_array(w, "tensor_sizes");
		for (size_t i = 0; i < bucket->n; i++)
			ws_jw_uint(w, NULL, p->from.plan->tensors[bucket->first + i].bytes);
		ws_jw_end_array(w);
	}
	ws_jw_end_object(w);
	ws_buf_free(&pickle);
	return rc;
}

/* ---- refusals of the first bucket ---- */

enum refusal { OTHER, NOT_UNPICKLED, OTHER_GPU };

static enum refusal refusal_of(const struct ws_err *said)
{
	return said->code != WS_EREFUSED                                ? OTHER :
	       strstr(said->msg, "VLLM_ALLOW_INSECURE_SERIALIZATION")   ? NOT_UNPICKLED :
	       strstr(said->msg, "IPC handle not found for GPU UUID")   ? OTHER_GPU :
	                                                                  OTHER;
}

static void explain(const struct ws_push *p, bool first, struct ws_err *err)
{
	const enum refusal why = err ? refusal_of(err) : OTHER;
	if (why == NOT_UNPICKLED)
		ws_err_hint(err, "start vLLM with VLLM_ALLOW_INSECURE_SERIALIZATION=1 in its "
		                 "environment, then push again");
	else if (why == OTHER_GPU)
		ws_err_hint(err, "the server computes on another GPU than {gpu} names: it must be "
		                 "the same");
	else if (!first) /* push_export.c has a hint for the first */
		push_vllm_explain(p, err);
}

static void note_unopened(struct ws_push *p, const struct push_bucket *k)
{
	for (size_t i = 0; k->b == 0 && i < p->opts.n_endpoints; i++)
		if (refusal_of(&p->to.errs[i]) != OTHER)
			push_target_event(&p->to.endpoints[i].weights, PUSH_REFUSED_UNSENT);
}

/* ---- buckets ---- */

static int begin(struct ws_push *p, struct ws_err *err)
{
	const int rc = init(p, err) || push_vllm_begin(p, write_no_handles, err) ? -1 : 0;
	if (rc)
		explain(p, true, err);
	return rc;
}

static int post(struct ws_push *p, const struct push_bucket *k, const struct ws_pickle_cuda *where,
                int64_t since, struct ws_err *err)
{
	const ws_deadline until = push_bucket_until(p, since);
	struct push_request r;
	int rc = push_request_open(p, &r, "/update_weights", err);
	if (rc == 0)
		rc = write_body(p, &r.w, k->b, where, err);
	if (rc == 0) {
		r.changes = true;
		rc = push_request_ask(p, &r, NULL, until, p->opts.cancel, err);
		push_vllm_report(p, k, true);
		note_unopened(p, k);
		push_request_note(p, &r);
	}
	if (rc) {
		explain(p, k->b == 0, err);
	} else {
		const struct push_moved m = { .over = true, .ns = ws_now_ns() - since };
		p->run.posted += p->from.plan->buckets[k->b].bytes * p->opts.n_endpoints;
		push_moved_emit(p, k, &m);
	}
	push_request_close(p, &r);
	return rc;
}

static int post_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	return push_export_bucket(p, k, post, err);
}

/* ---- afterwards ---- */

static bool has_no_session(const struct push_endpoint *e)
{
	return e->scope == PUSH_SCOPE_NONE;
}

/* Up to 0.20: an update of no tensors. */
static void end_parts(struct ws_push *p, ws_deadline until)
{
	struct push_request r;
	push_vllm_send_nothing(p, &r, write_no_handles, has_no_session, until, NULL, NULL);
	push_request_close(p, &r);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (!e->asked || p->to.errs[i].code == WS_OK)
			continue;
		if (refusal_of(&p->to.errs[i]) != NOT_UNPICKLED)
			push_target_event(&e->weights, PUSH_VALUES_LOST);
		if (!ws_endpoint_said_no(&p->to.errs[i]))
			push_export_warn(p, i, p->to.errs[i].msg);
	}
}

static void await_workers(struct ws_push *p, ws_deadline until)
{
	const size_t n = p->opts.n_endpoints;
	bool *inside = calloc(n + 1, sizeof *inside);
	struct ws_err *errs = calloc(n + 1, sizeof *errs);
	push_call_new(p);
	for (size_t i = 0; i < n; i++)
		if (!has_no_session(&p->to.endpoints[i]))
			push_call_add(p, i);
	const struct ws_call to = push_call_made(p, until, NULL);
	if (inside && errs && to.n)
		ws_vllm_in_step(&to, inside, errs, NULL);
	for (size_t k = 0; errs && k < to.n; k++)
		if (errs[k].code == WS_ETIMEOUT || errs[k].code == WS_ECANCELLED)
			push_export_warn(p, p->to.call.index[k], errs[k].msg);
	free(inside);
	free(errs);
}

/* Posts to the endpoints of the call that was begun. */
static void tell(struct ws_push *p, const char *path, ws_deadline until)
{
	const struct ws_words words = { "POST", path, "{}" };
	const struct ws_call to = push_call_made(p, until, NULL);
	if (to.n)
		ws_endpoint_tell_in_words(&to, path, words, words, p->to.call.answers, NULL);
}

/* Nothing was loaded: the finish that push_scope_undo sends gives the values back. */
static void start_again(struct ws_push *p, ws_deadline until)
{
	push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (!has_no_session(e) && e->weights.scope_open &&
		    e->weights.state == WS_UNTOUCHED)
			push_call_add(p, i);
	}
	tell(p, "/start_weight_update", until);
}

static void close_buffers(struct ws_push *p, ws_deadline until)
{
	push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (push_can(p, i)->shutdown)
			push_call_add(p, i);
	tell(p, "/shutdown_weight_transfer_engine", until);
}

static void undo(struct ws_push *p)
{
	const bool lent = push_export_was_lent(p);
	if (lent) {
		const ws_deadline until = push_cleanup_deadline(p, SETTLE_NS);
		end_parts(p, until);
		await_workers(p, until);
		start_again(p, until);
	}
	push_scope_undo(p);
	if (!lent)
		return;
	close_buffers(p, push_cleanup_deadline(p, CLOSE_NS));
	push_export_grace(); /* for copies that a GPU has begun */
}

static int end(struct ws_push *p, struct ws_err *err)
{
	const int rc = push_scope_end(p, err);
	if (rc == 0)
		push_export_was_lent(p);
	return rc;
}

static bool takes(const struct ws_capabilities *can)
{
	return can->transfer;
}

const struct push_protocol push_vllm_ipc = {
	.name = "ipc",
	.routes = "/init_weight_transfer_engine and /update_weights, which are vLLM's",
	.takes = takes,
	.groupless = true,
	.exports = true,
	.legal = legal,
	.prepare = push_export_prepare,
	.makes = push_export_makes,
	.begin = begin,
	.stage = push_export_stage,
	.bucket = post_bucket,
	.end = end,
	.undo = undo,
	.forget = push_export_forget,
};
