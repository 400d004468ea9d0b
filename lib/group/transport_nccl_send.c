/* SPDX-License-Identifier: Apache-2.0 */
/* transport_nccl_send.c - sends a bucket and loads the next bucket meanwhile.
 *
 * A bucket's bytes go through pinned memory into one of two staging buffers ("boxes") on the GPU.
 * From there each payload is sent in a broadcast of its own, never grouped, as torch receives it.
 * While a bucket is sent, a second thread, the loader, fills the other buffer with the next
 * bucket. The two threads never load at once: the sender stops the loader first, and starts it
 * again when its own broadcasts are queued.
 *
 * NCCL does not report when a receiver has taken data, so completed broadcasts are counted. */
#include "transport_nccl_state.h"

#include <poll.h>

/* ---- loading ahead ---- */

/* An error here is not reported: nccl_send loads the rest again, and reports its own error. */
static int load_ahead(void *arg, struct ws_err *err)
{
	struct nccl *n = arg;
	struct ws_staging_buffer *box = n->ahead;
	if (ws_gpu_use(n->gpu, err))
		return -1;
	while (box->loaded < box->n_payloads)
		if (ws_gpu_stage_load(&n->stage, box, WS_FOREVER, &n->enough, err))
			return -1;
	return 0;
}

static int begin_loading_ahead(struct nccl *n, struct ws_err *err)
{
	if (!n->next.payloads)
		return 0;
	n->ahead = ws_gpu_stage_buffer(&n->stage, n->next.payloads, n->next.n);
	/* To free memory waits for all work of the GPU: forever if a peer died in a broadcast. */
	return n->ahead && !ws_gpu_stage_must_grow(n->ahead) ?
	               ws_job_start(&n->loader, load_ahead, n, err) :
	               0;
}

void nccl_end_loading_ahead(struct nccl *n)
{
	ws_cancel_set(&n->enough);
	ws_job_wait(&n->loader, NULL);
	n->enough = (struct ws_cancel)WS_CANCEL_INIT;
}

/* Waits for the loader until n->until, then stops it: the loader has no deadline of its own. */
static void await_loading_ahead(struct nccl *n)
{
	struct pollfd p = { .fd = n->loader.fd, .events = POLLIN };
	while (n->loader.running && !ws_cancelled(&n->stop) && !ws_deadline_passed(n->until))
		if (poll(&p, 1, ws_deadline_poll_ms(n->until, 50)) > 0)
			break;
	nccl_end_loading_ahead(n);
}

void nccl_drop_boxes_but(struct nccl *n, const struct ws_payload *payloads)
{
	for (int i = 0; i < WS_GPU_STAGE_BUFFERS; i++)
		if (n->stage.buffers[i].payloads != payloads)
			ws_gpu_stage_release(&n->stage.buffers[i]);
}

/* ---- sending ---- */

static void notice(void *ctx)
{
	ws_gpu_stage_poll_trace(ctx);
}

/* Waits for the end of broadcast i of this bucket, and counts its bytes as taken. */
static int collect(struct nccl *n, size_t i, struct ws_err *err)
{
	const struct ws_comm_event done = { n->gpu, n->done[i % IN_FLIGHT], notice, &n->stage };
	if (ws_comm_wait_event(n->comm, &done, n->until, &n->stop, err))
		return -1;
	atomic_fetch_add(&n->taken, n->now.payloads[i].length);
	return 0;
}

static int broadcast(struct nccl *n, ws_devptr at, size_t i, struct ws_err *err)
{
	const uint64_t bytes = n->now.payloads[i].length;
	int64_t none = 0;
	if (ws_gpu_event_record(n->gpu, n->fed, n->stage.stream, err) ||
	    ws_stream_wait_event(n->gpu, n->wire, n->fed, err))
		return -1;
	/* Count first: bytes may leave even if the broadcast then fails. */
	atomic_fetch_add(&n->sent, bytes);
	if (ws_comm_broadcast(n->comm, at, bytes, 0, n->wire, n->until, &n->stop, err))
		return -1;
	atomic_compare_exchange_strong(&n->first_ns, &none, ws_now_ns());
	return ws_gpu_event_record(n->gpu, n->done[i % IN_FLIGHT], n->wire, err);
}

static int send_box(struct nccl *n, struct ws_staging_buffer *box, struct ws_err *err)
{
	uint64_t place = 0;
	for (size_t i = 0; i < n->now.n; i++) {
		if (i >= IN_FLIGHT && collect(n, i - IN_FLIGHT, err))
			return -1;
		if (i >= box->loaded && ws_gpu_stage_load(&n->stage, box, n->until, &n->stop, err))
			return -1;
		if (broadcast(n, box->at + place, i, err))
			return -1;
		place = ws_gpu_stage_next_offset(place, &n->now.payloads[i]);
	}
	if (begin_loading_ahead(n, err))
		return -1;
	for (size_t i = n->now.n < IN_FLIGHT ? 0 : n->now.n - IN_FLIGHT; i < n->now.n; i++)
		if (collect(n, i, err))
			return -1;
	return 0;
}

static int join_at_last(struct nccl *n, struct ws_err *err)
{
	const int rc = ws_comm_wait(n->comm, n->until, &n->stop, err);
	atomic_store(&n->stands, rc == 0);
	return rc;
}

int nccl_send(void *arg, struct ws_err *err)
{
	struct nccl *n = arg;
	bool ready;
	if (ws_gpu_use(n->gpu, err))
		return -1;
	/* Join first: if a server refuses before it joins, no byte has been sent. */
	if (join_at_last(n, err))
		return -1;
	await_loading_ahead(n);
	nccl_drop_boxes_but(n, n->now.payloads);
	struct ws_staging_buffer *box = ws_gpu_stage_buffer(&n->stage, n->now.payloads, n->now.n);
	const uint64_t before = atomic_load(&n->sent);
	const uint64_t span =
		ws_trace_begin(n->opts.trace, &(struct ws_trace_what){ .row = WS_TRACE_WIRE,
	                                                               .of = "to all ranks" });
	const int rc = send_box(n, box, err);
	ws_trace_end(n->opts.trace, span,
	             &(struct ws_trace_end){ .bytes = atomic_load(&n->sent) - before,
	                                     .unfinished = rc != 0 });
	ws_gpu_stage_release(box);
	return rc ? -1 : ws_comm_ready(n->comm, &ready, err);
}
