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
#include "push_export.h"
#include "push_from_tensor.h"

#include <stdlib.h>
#include <string.h>

static const int64_t SETTLE_NS = 10 * WS_NS_PER_S;

static int legal(struct ws_push *p, struct ws_err *err)
{
	return push_from_tensor_check_ranks(p, err);
}

static int write_pickle(const struct ws_push *p, const struct push_bucket *k,
                        const struct ws_pickle_cuda *where, struct ws_buf *out,
                        struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[k->b];
	struct ws_pickle_tensor *tensors = push_from_tensor_list(p, k->b, err);
	if (!tensors)
		return -1;
	ws_pickle_cuda(out, where, tensors, bucket->n, bucket->bytes);
	free(tensors);
	return ws_buf_check(out, "bucket", err);
}

static int post(struct ws_push *p, const struct push_bucket *k, const struct ws_pickle_cuda *where,
                int64_t since, struct ws_err *err)
{
	struct ws_buf pickle;
	ws_buf_init(&pickle, 0);
	const int rc = write_pickle(p, k, where, &pickle, err) ||
	                               push_from_tensor(p, k, &pickle, since, err) ?
	                       -1 :
	                       0;
	ws_buf_free(&pickle);
	return rc;
}

static int post_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	return push_export_bucket(p, k, post, err);
}

/* ---- afterwards ---- */

/* Waits until no server reads the memory, or until the deadline. */
static void settle_loans(struct ws_push *p, ws_deadline until)
{
	bool grace = false;
	if (!push_export_was_lent(p) || push_from_tensor_empty(p, until, NULL) == 0)
		return;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_err *said = &p->to.errs[i];
		if (said->code == WS_ETIMEOUT || said->code == WS_ECANCELLED)
			push_export_warn(p, i, said->msg);
		else if (said->code == WS_EREFUSED)
			grace = true;
	}
	if (grace)
		push_export_grace();
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

const struct push_protocol push_ipc = {
	.name = "ipc",
	.routes = "/update_weights_from_tensor for flattened buckets of bytes",
	.takes = push_from_tensor_takes,
	.groupless = true,
	.exports = true,
	.legal = legal,
	.prepare = push_export_prepare,
	.makes = push_export_makes,
	.begin = push_scope_begin,
	.stage = push_export_stage,
	.bucket = post_bucket,
	.end = end_export,
	.undo = undo,
	.forget = push_export_forget,
};
