/* SPDX-License-Identifier: Apache-2.0 */
/* push_ipc.c - servers of this machine read the weights from our GPU memory by CUDA IPC. Nothing is
 * sent; a request names the place of a bucket, the same for all ranks (push_from_tensor.c,
 * pickle.h).
 *
 * No answer reports that all ranks have read a bucket. A server answers when one of its ranks has
 * loaded the bucket and all ranks have met afterwards. torch waits for a rank's copies only when
 * the rank drops the tensor. So a bucket's memory is reused only after the server has answered the
 * request of the next bucket (ipc_export.h). After the last bucket an empty bucket is posted: a
 * server that loads it has dropped the last bucket. After a failure all servers get the empty
 * bucket too, and have a bounded time for it. Only then the memory is freed. */
#include "push_from_tensor.h"

#include "ipc_export.h"
#include "sock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int64_t SETTLE_NS = 10 * WS_NS_PER_S;
/* Wait for a server that refused the empty bucket: it still runs, and may still read. */
static const int64_t GRACE_NS = 500 * WS_NS_PER_MS;

/* The memory is kept from one run to the next. */
struct ipc {
	struct ws_ipc_export *export;
	bool lent; /* a server may be reading it */
};

static struct ws_ipc_export *export_of(const struct ws_push *p)
{
	return ((const struct ipc *)p->own)->export;
}

/* ---- before ---- */

int push_ipc_check_hosts(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; p->protocol->exports && i < p->opts.n_endpoints; i++) {
		char host[WS_HOST_MAX];
		uint16_t port;
		bool local = false;
		if (ws_endpoint_host_port(p->to.endpoints[i].url, host, &port, err) ||
		    ws_host_is_local(host, &local, err))
			return -1;
		if (local)
			continue;
		ws_err_set(err, WS_EREFUSED,
		           "%s is on another machine, and cannot read the memory of a GPU here",
		           p->to.endpoints[i].url);
		ws_err_hint(
			err,
			"{backend} ipc is for servers of this machine; nccl and gloo reach others");
		return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	return 0;
}

static int legal(struct ws_push *p, struct ws_err *err)
{
	return push_from_tensor_check_ranks(p, err);
}

/* Allocates the memory. No endpoint is paused yet, so a lack of GPU memory does no harm. */
static int prepare(struct ws_push *p, struct ws_err *err)
{
	uint64_t most = 0;
	for (size_t b = 0; b < p->from.plan->n_buckets; b++)
		most = p->from.plan->buckets[b].bytes > most ? p->from.plan->buckets[b].bytes :
		                                               most;
	const struct ws_ipc_export_opts opts = { .gpu = p->link.gpu,
		                                 .trace = p->opts.trace,
		                                 .log = p->opts.log };
	struct ipc *own = push_own(p, sizeof *own, err);
	if (!own || (!own->export && ws_ipc_export_open(&opts, &own->export, err)))
		return -1;
	return ws_ipc_export_reserve(own->export, p->from.plan->n_buckets, most, err);
}

/* ---- buckets ---- */

static bool makes(const struct ws_push *p, const struct ws_recipe_output *f)
{
	return ws_ipc_export_computes(export_of(p), f);
}

static void stage(struct ws_push *p, const struct ws_payload *payloads, size_t n)
{
	ws_ipc_export_next(export_of(p), payloads, n);
}

static int write_pickle(const struct ws_push *p, const struct push_bucket *k, uint64_t at,
                        struct ws_buf *out, struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[k->b];
	char uuid[WS_CUDA_UUID_TEXT];
	ws_cuda_uuid_text(ws_ipc_export_device(export_of(p)), uuid);
	const struct ws_pickle_cuda where = {
		.handle = ws_ipc_export_handle(export_of(p)),
		.at = at,
		.room = ws_ipc_export_part_bytes(export_of(p)),
		.ordinal = p->opts.ipc_ordinal,
		.uuid = p->opts.ipc_by_ordinal ? NULL : uuid + WS_CUDA_UUID_KIND,
	};
	struct ws_pickle_tensor *tensors = push_from_tensor_list(p, k->b, err);
	if (!tensors)
		return -1;
	ws_pickle_cuda(out, &where, tensors, bucket->n, bucket->bytes);
	free(tensors);
	return ws_buf_check(out, "bucket", err);
}

/* A server that refuses the first bucket may be unable to open the memory. */
static void hint_at_opening(const struct push_bucket *k, struct ws_err *err)
{
	if (err && k->b == 0 && !err->hint[0] &&
	    (err->code == WS_EREFUSED || err->code == WS_EREACH))
		ws_err_hint(err, "a server must see this process and this GPU: the same user, "
		                 "containers with --ipc=host and --pid=host, its log says more");
}

static int post_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const int64_t since = ws_now_ns();
	uint64_t at;
	struct ws_buf pickle;
	ws_buf_init(&pickle, 0);
	int rc = ws_ipc_export_take(export_of(p), k->payloads, k->n_payloads, until, p->opts.cancel,
	                            &at, err);
	if (rc)
		ws_err_wrap(err, "bucket %zu of %zu", k->b + 1, p->from.plan->n_buckets);
	if (rc == 0)
		rc = write_pickle(p, k, at, &pickle, err);
	if (rc == 0) {
		const int64_t asked = ws_now_ns();
		((struct ipc *)p->own)->lent = true;
		rc = push_from_tensor(p, k, &pickle, since, err);
		/* The bytes were ready before the request: in this time servers only load them. */
		push_applied(p, ws_now_ns() - asked);
		if (rc)
			hint_at_opening(k, err);
		else
			push_trace_apply(p, k->b, asked);
	}
	ws_buf_free(&pickle);
	return rc;
}

/* ---- afterwards ---- */

/* Waits until no server reads the memory, or until the deadline. */
static void settle_loans(struct ws_push *p, ws_deadline until)
{
	struct ipc *own = p->own;
	bool grace = false;
	if (!own || !own->lent)
		return;
	own->lent = false;
	if (push_from_tensor_empty(p, until, NULL) == 0)
		return;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_err *said = &p->to.errs[i];
		if (said->code == WS_ETIMEOUT || said->code == WS_ECANCELLED)
			push_warn(p, p->to.endpoints[i].url,
			          "may still read memory of the GPU that is given back: %s",
			          said->msg);
		else if (said->code == WS_EREFUSED)
			grace = true;
	}
	if (grace)
		ws_sleep(GRACE_NS);
}

/* The empty bucket comes before the end of the session: afterwards servers refuse every bucket. */
static int end_export(struct ws_push *p, struct ws_err *err)
{
	const int64_t since = ws_now_ns();
	settle_loans(p, ws_deadline_in(SETTLE_NS));
	push_applied(p, ws_now_ns() - since);
	return push_scope_end(p, err);
}

static void undo(struct ws_push *p)
{
	settle_loans(p, push_cleanup_deadline(p, SETTLE_NS));
	push_scope_undo(p);
}

static void forget(struct ws_push *p, bool ended)
{
	struct ipc *own = p->own;
	if (!ended || !own)
		return;
	ws_ipc_export_close(own->export);
	free(own);
	p->own = NULL;
}

const struct push_protocol push_ipc = {
	.name = "ipc",
	.routes = "/update_weights_from_tensor for flattened buckets of bytes",
	.takes = push_from_tensor_takes,
	.groupless = true,
	.exports = true,
	.legal = legal,
	.prepare = prepare,
	.makes = makes,
	.begin = push_scope_begin,
	.stage = stage,
	.bucket = post_bucket,
	.end = end_export,
	.undo = undo,
	.forget = forget,
};

const struct ws_transport_ops push_ipc_transport = {
	.name = "ipc",
	.check = ws_ipc_export_check,
	.memory = ws_ipc_export_memory,
};
