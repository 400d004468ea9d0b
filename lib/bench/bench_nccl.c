/* SPDX-License-Identifier: Apache-2.0 */
/* bench_nccl.c - times broadcasts by the NCCL transport of pushes: from the page cache through
 * pinned memory to the GPU, and from there to the receivers. Reference: a bare loop of
 * ncclBroadcast from GPU memory to the same receivers, in a separate communicator. */
#include "bench_transport.h"

#include "transport.h"

#include <poll.h>
#include <stdlib.h>

enum { SLICE_MS = 200 };
static const int64_t LEAVE_NS = 2 * WS_NS_PER_S;

struct nccl_root {
	struct ws_transport *t;
	struct bench_comms c;
	struct ws_payload payloads[2]; /* used in turns, like the buckets of a push */
};

/* Waits for the transport. Aborts it when a receiver has failed, or the user cancels. */
static int await(struct bench_root *r, struct ws_transport *t, struct ws_err *err)
{
	struct pollfd p = { .fd = t->ops->fd(t), .events = POLLIN };
	struct ws_err why = WS_ERR_INIT;
	int rc = 0;
	while (poll(&p, 1, SLICE_MS) <= 0 && !rc)
		if (ws_cancelled(r->opts->cancel))
			rc = ws_err_set(&why, WS_ECANCELLED, "cancelled");
		else
			rc = bench_root_ask(r, &why);
	if (rc)
		t->ops->abort(t);
	if (t->ops->wait(t, err) == 0)
		return 0;
	if (rc && err)
		*err = why;
	return -1;
}

static int join_bare(struct bench_root *r, struct nccl_root *n, ws_deadline until,
                     struct ws_err *err)
{
	struct ws_nccl_id id;
	n->c.world = r->world;
	return ws_nccl_id_new(n->c.nccl, &id, err) ||
	       ws_store_set(r->store, BENCH_BARE, id.bytes, sizeof id.bytes, true, err) ||
	       bench_comms_join(&n->c, &n->c.bare, id.bytes, until, err) ? -1 : 0;
}

static uint64_t largest(const struct ws_bench_transport *t)
{
	uint64_t most = 0;
	for (size_t i = 0; i < t->n_sizes; i++)
		most = t->sizes[i] > most ? t->sizes[i] : most;
	return most;
}

static int open_nccl(struct bench_root *r, ws_deadline until, struct ws_err *err)
{
	const struct ws_bench_gpu *gpu = &r->what->gpu;
	const struct ws_transport_opts opts = {
		.world_size = r->world,
		.senders = 1,
		.host = r->what->host,
		.store = r->store,
		.group = BENCH_GROUP,
		.gpu = { .driver = gpu->driver, .nccl = gpu->nccl, .device = (int)gpu->device },
		.log = r->opts->log,
	};
	struct nccl_root *n = calloc(1, sizeof *n);
	if (!n)
		return ws_oom(err);
	r->of_plane = n;
	return bench_comms_open(&n->c, gpu, largest(r->what), r->opts->cancel, err) ||
	       ws_transport_nccl.open(&opts, until, &n->t, err) || await(r, n->t, err) ||
	       join_bare(r, n, until, err) ? -1 : 0;
}

static int send_nccl(struct bench_root *r, const struct ws_payload *p, unsigned count,
                     ws_deadline until, struct ws_err *err)
{
	struct nccl_root *n = r->of_plane;
	struct ws_transport *t = n->t;
	int rc = 0;
	n->payloads[0] = n->payloads[1] = *p;
	for (unsigned i = 0; i < count && rc == 0; i++) {
		if (i + 1 < count)
			t->ops->stage(t, &n->payloads[(i + 1) % 2], 1);
		rc = t->ops->send_bucket(t, &n->payloads[i % 2], 1, until, err) ||
		                     await(r, t, err) ?
		             -1 :
		             0;
	}
	if (rc)
		t->ops->stage(t, NULL,
		              0); /* unstages the payload: the caller frees its spans */
	return rc;
}

static int send_bare(struct bench_root *r, unsigned count, int64_t *ns, ws_deadline until,
                     struct ws_err *err)
{
	struct nccl_root *n = r->of_plane;
	(void)ns; /* time_plain times the whole round */
	return bench_comms_broadcast(&n->c, n->c.bare, r->size, count, until, err);
}

static void close_nccl(struct bench_root *r)
{
	struct nccl_root *n = r->of_plane;
	if (n->t)
		n->t->ops->close(n->t);
	bench_comms_close(&n->c, ws_deadline_in(LEAVE_NS));
	free(n);
}

const struct bench_plane bench_plane_nccl = {
	.name = "nccl",
	.against = "bare ncclBroadcast",
	.rounds = true,
	.open = open_nccl,
	.send = send_nccl,
	.plain = send_bare,
	.close = close_nccl,
};
