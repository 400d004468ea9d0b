/* SPDX-License-Identifier: Apache-2.0 */
/* push_vllm.c - vLLM's updates: a request for each bucket, which the server answers when all its
 * workers have received and loaded it.
 *
 *   POST /start_weight_update {}    since 0.21 (push_scope.c): layers lose their values. Before,
 *                                   each request is an update of its own, of whole layers
 *   POST /update_weights {"update_info":{"names","dtype_names","shapes", and up to 0.27
 *                         "packed","packed_buffer_size_bytes","packed_num_buffers"}}
 *   POST /finish_weight_update {"weight_version"}    "weight_version" since 0.27
 *
 * Packed, a bucket is one broadcast of its bytes: vLLM cuts pieces where they exceed a size, and
 * join.h sets that size so high that a request is one piece. Otherwise each tensor is a broadcast.
 *
 * Names are those of the checkpoint. A fused layer (q, k and v; gate and up; the experts) is loaded
 * when all its parts have come, within one session. Of a part alone, vLLM confirms everything, and
 * the rest of the layer has random values (vLLM 0.32): such a plan is refused before the pause.
 *
 * After a start, a server without the finish dies of the first prompt. So after a failure it gets
 * the finish, and stays paused if anything was sent, until a push has sent everything. With several
 * workers, a failed request leaves answers behind, which vLLM takes for those of later requests
 * (0.32): only a restart helps. */
#include "push_vllm.h"

#include "join.h"

#include <string.h>

static bool is_packed(const struct ws_push *p)
{
	return p->from.plan->format == WS_FORMAT_FLATTENED;
}

/* True if every server of the push says at the join how tensors are packed. */
static bool packs_at_init(const struct ws_push *p)
{
	return push_can(p, 0)->packed_at_init;
}

static void write_tensors(struct ws_jw *w, const struct ws_plan_tensor *t, size_t n)
{
	push_write_names(w, t, n);
	ws_jw_array(w, "dtype_names");
	for (size_t i = 0; i < n; i++)
		ws_jw_str(w, NULL, ws_dtype_torch(t[i].dtype));
	ws_jw_end_array(w);
	push_write_shapes(w, t, n);
}

void push_vllm_write_tensors(const struct ws_push *p, struct ws_jw *w, size_t b)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[b];
	write_tensors(w, &p->from.plan->tensors[bucket->first], bucket->n);
}

static void write_body(const struct ws_push *p, struct ws_jw *w, size_t b)
{
	ws_jw_object(w, "update_info");
	push_vllm_write_tensors(p, w, b);
	if (!packs_at_init(p) && is_packed(p)) {
		ws_jw_bool(w, "packed", true);
		ws_jw_uint(w, "packed_buffer_size_bytes", WS_VLLM_UNCUT);
		ws_jw_uint(w, "packed_num_buffers", 1);
	}
	ws_jw_end_object(w);
}

void push_vllm_hint(const struct ws_push *p, size_t i, struct ws_err *said)
{
	const struct ws_endpoint_info *info = &p->to.infos[i];
	if (said->code != WS_EREFUSED || said->native != 500)
		return;
	if (p->to.members[i].ranks > 1 && info->can.stale_answers)
		ws_err_hint(said, "restart the server: after a failed request, vLLM with several "
		            "workers may answer later requests with replies to earlier ones");
	else
		ws_err_hint(said, "push again: a whole update makes the weights complete");
}

/* The bytes of a bucket were loaded only where the server says so. */
void push_vllm_report(struct ws_push *p, const struct push_bucket *k, bool right)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct ws_err *said = &p->to.errs[i];
		if (said->code == WS_OK && k->last && right)
			push_target_event(&p->to.endpoints[i].weights, PUSH_ACKED_LAST);
		push_vllm_hint(p, i, said);
	}
}

void push_vllm_explain(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; err && i < p->opts.n_endpoints; i++)
		if (err->code == WS_EREFUSED && strcmp(err->endpoint, p->to.endpoints[i].url) == 0)
			push_vllm_hint(p, i, err);
}

static int move_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	struct push_request r;
	struct push_moved m = { 0 };
	int rc = push_request_open(p, &r, "/update_weights", err);
	if (rc == 0) {
		r.changes = true;
		write_body(p, &r.w, k->b);
		rc = push_request_start(p, &r, until, err) || push_move(p, &r, k, false, &m, err) ?
		             -1 :
		             0;
	}
	if (m.over) {
		push_vllm_report(p, k, push_moved_source(&m));
		push_request_note(p, &r);
	}
	if (rc)
		push_vllm_explain(p, err);
	else
		push_moved_emit(p, k, &m);
	push_request_close(p, &r);
	return rc;
}

/* Before 0.21 each request is an update of its own: one of no tensors makes layers forget the parts
 * that a failed one left there (push_in_step.c). */
static bool holds_parts(const struct push_endpoint *e)
{
	return e->holds_parts && e->scope == PUSH_SCOPE_NONE;
}

int push_vllm_send_nothing(struct ws_push *p, struct push_request *r, push_vllm_more *more,
                           bool (*wanted)(const struct push_endpoint *), ws_deadline until,
                           const struct ws_cancel *cancel, struct ws_err *err)
{
	if (push_request_open(p, r, "/update_weights", err))
		return -1;
	ws_jw_object(&r->w, "update_info");
	write_tensors(&r->w, NULL, 0);
	if (more)
		more(p, &r->w);
	ws_jw_end_object(&r->w);
	return push_request_ask(p, r, wanted, until, cancel, err);
}

int push_vllm_begin(struct ws_push *p, push_vllm_more *more, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	struct push_request r;
	bool any = false;
	if (push_scope_begin(p, err))
		return -1;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (!holds_parts(&p->to.endpoints[i]))
			continue;
		any = true; /* the rest of its layers becomes random */
		push_target_event(&p->to.endpoints[i].weights, PUSH_VALUES_LOST);
	}
	if (!any)
		return 0;
	const int rc =
		push_vllm_send_nothing(p, &r, more, holds_parts, until, p->opts.cancel, err);
	if (r.calls && r.messages)
		push_request_note(p, &r);
	push_request_close(p, &r);
	return rc;
}

static int begin(struct ws_push *p, struct ws_err *err)
{
	return push_vllm_begin(p, NULL, err);
}

/* ---- checks ---------------------------------------------------------------------------------- */

int push_vllm_refuse(const struct ws_push *p, size_t i, const char *what, const char *remedy,
                     struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s: %s", p->to.endpoints[i].url, what);
	ws_err_hint(err, "%s", remedy);
	return ws_err_where(err, NULL, p->to.endpoints[i].url);
}

int push_vllm_check_engine(const struct ws_push *p, size_t i, const char *engine,
                           struct ws_err *err)
{
	const char *own = p->to.infos[i].engine;
	if (strcmp(own, engine) == 0)
		return 0;
	if (*own)
		ws_err_set(err, WS_EREFUSED, "%s: it takes weights by vLLM's engine %s, not %s",
		           p->to.endpoints[i].url, own, engine);
	else
		ws_err_set(err, WS_EREFUSED, "%s: it was started without a weight transfer engine",
		           p->to.endpoints[i].url);
	ws_err_hint(err, "start vLLM with --weight-transfer-config '{\"backend\":\"%s\"}', or use "
	            "{backend} %s", engine,
	            strcmp(own, "nccl") == 0 || strcmp(own, "ipc") == 0 ? own : "disk");
	return ws_err_where(err, NULL, p->to.endpoints[i].url);
}

static int check_engine(const struct ws_push *p, size_t i, struct ws_err *err)
{
	const bool gloo = p->link.transport == &ws_transport_gloo;
	if (push_vllm_check_engine(p, i, "nccl", err))
		return -1;
	if (!gloo || p->to.infos[i].gloo_worker)
		return 0;
	return push_vllm_refuse(p, i, "stock vLLM does not receive over gloo",
	                        "start vLLM with --worker-extension-cls "
	                        "wsync_vllm.WorkerExtension, and the folder of wsync_vllm.py on "
	                        "its PYTHONPATH; or use {backend} nccl, or disk", err);
}

int push_check_partial(const struct ws_push *p, size_t i, struct ws_err *err)
{
	const struct ws_endpoint_info *info = &p->to.infos[i];
	if (!push_to_vllm(p, i))
		return 0;
	/* Only the answers of the first engine can be checked (vllm_workers.h). */
	if (info->dp_size > 1 && info->world_size > info->dp_size && push_may_hold_parts(p, i))
		return push_vllm_refuse(p, i, "it was found paused or with incomplete weights, and "
		                        "it cannot be known whether the workers of all its "
		                        "engines answer the last request", "restart the server, "
		                        "then wsync-ctl repair --forget and push again", err);
	/* Its layers forget parts, and have random values then until all of them are sent. Where a
	 * record tells what was sent, the endpoint stays partial until that is complete. */
	const struct push_endpoint *e = &p->to.endpoints[i];
	if (e->found_stopped && !e->slept && e->weights.state != WS_PARTIAL &&
	    (!p->from.all_names || p->opts.senders > 1))
		return push_vllm_refuse(p, i, "it was found paused, so some of its layers may need "
		                        "all their tensors",
		                        "push all tensors with one sender; or, if no update has "
		                        "failed there, run wsync-ctl resume first", err);
	if (p->opts.on_partial != WS_PARTIAL_RESUME)
		return 0;
	return push_vllm_refuse(p, i, "a vLLM with incomplete weights ends at the first prompt, so "
	                        "it is not resumed", "leave {on_partial} out", err);
}

/* The members of a group get one form of the requests. */
static int check_alike(const struct ws_push *p, size_t i, struct ws_err *err)
{
	if (push_can(p, i)->packed_at_init == push_can(p, 0)->packed_at_init)
		return 0;
	return push_vllm_refuse(p, i, "its requests differ from those of the first server: vLLM "
	                        "changed them in 0.28", "push to servers of one version at a time",
	                        err);
}

/* vLLM's NCCL has no type for other tensors. Packed, they are bytes. */
static int check_dtypes(const struct ws_push *p, struct ws_err *err)
{
	static const char *const known[] = { "int8", "uint8", "int32", "int64", "float16",
		                             "float32", "float64", "bfloat16", "float8_e4m3fn" };
	for (size_t i = 0; !is_packed(p) && i < p->from.plan->n_tensors; i++) {
		const char *dtype = ws_dtype_torch(p->from.plan->tensors[i].dtype);
		size_t k = 0;
		while (k < sizeof known / sizeof *known && strcmp(dtype, known[k]) != 0)
			k++;
		if (k < sizeof known / sizeof *known)
			continue;
		ws_err_set(err, WS_EREFUSED, "tensor %s is %s, which vLLM receives in packed "
		           "buckets only", p->from.plan->tensors[i].name, dtype);
		return ws_err_hint(err, "use {format} flattened_bucket");
	}
	return 0;
}

static int legal(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (check_engine(p, i, err) || check_alike(p, i, err) ||
		    push_check_partial(p, i, err))
			return -1;
	return check_dtypes(p, err);
}

static bool takes(const struct ws_capabilities *can)
{
	return can->transfer;
}

static bool one_by_one(const struct ws_push *p)
{
	(void)p;
	return true;
}

bool push_speaks_vllm(const struct ws_push *p)
{
	return p->protocol == &push_vllm || p->protocol == &push_vllm_ipc;
}

bool push_sends_whole_layers(const struct ws_push *p)
{
	for (size_t i = 0; push_speaks_vllm(p) && i < p->opts.n_endpoints; i++)
		if (!push_can(p, i)->transfer_session)
			return true;
	return false;
}

const struct push_protocol push_vllm = {
	.name = "vllm",
	.routes = "/init_weight_transfer_engine and /update_weights, which are vLLM's",
	.takes = takes,
	.one_by_one = one_by_one,
	.legal = legal,
	.begin = begin,
	.bucket = move_bucket,
	.end = push_scope_end,
	.undo = push_scope_undo,
};
