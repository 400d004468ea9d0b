/* SPDX-License-Identifier: Apache-2.0 */
/* comms.c - broadcasts and nothing else: a loop of ncclBroadcast over memory of the GPU, from either end. */
#include "transport_bench.h"

#include <string.h>
#include <time.h>

int bench_comms_open(struct bench_comms *c, const struct ws_bench_gpu *which, uint64_t bytes,
                     const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_nccl_opts library = { .library = which->nccl };
	*c = (struct bench_comms){ 0 };
	return bench_gpu_open(&c->g, which, cancel, err) || ws_nccl_open(&library, &c->nccl, err) ||
	       ws_mark_new(c->g.gpu, &c->done, err) || ws_gpu_alloc(c->g.gpu, bytes, &c->at, err) ? -1 : 0;
}

void bench_comms_close(struct bench_comms *c, ws_deadline until)
{
	if (c->g.gpu) {
		ws_comm_close(c->pushed, until);
		ws_comm_close(c->bare, until);
		ws_mark_free(c->g.gpu, c->done);
		ws_gpu_free(c->g.gpu, c->at);
	}
	ws_nccl_close(c->nccl);
	bench_gpu_close(&c->g);
	*c = (struct bench_comms){ 0 };
}

int bench_comms_join(struct bench_comms *c, struct ws_comm **out, const void *id, unsigned rank, unsigned world,
                     ws_deadline until, struct ws_err *err)
{
	struct ws_comm_opts opts = { .nccl = c->nccl, .rank = rank, .size = world };
	memcpy(opts.id.bytes, id, sizeof opts.id.bytes);
	return ws_comm_open(&opts, out, err) || ws_comm_wait(*out, until, c->g.cancel, err) ? -1 : 0;
}

/* A peer that dies shows in the communicator, and never in the stream. */
static int wait_done(struct bench_comms *c, struct ws_comm *comm, ws_deadline until, struct ws_err *err)
{
	static const struct timespec pause = { .tv_nsec = 20000 };
	for (;;) {
		bool reached = false, ready;
		if (ws_mark_reached(c->g.gpu, c->done, &reached, err))
			return -1;
		if (reached)
			return 0;
		if (ws_comm_ready(comm, &ready, err))
			return -1;
		if (ws_cancelled(c->g.cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (ws_deadline_passed(until))
			return ws_err_set(err, WS_ETIMEOUT, "the broadcast took too long");
		nanosleep(&pause, NULL);
	}
}

int bench_comms_broadcast(struct bench_comms *c, struct ws_comm *comm, uint64_t bytes, unsigned count,
                          ws_deadline until, struct ws_err *err)
{
	int rc = 0;
	for (unsigned i = 0; i < count && !rc; i++)
		rc = ws_comm_broadcast(comm, c->at, bytes, 0, c->g.stream, until, c->g.cancel, err);
	if (!rc)
		rc = ws_mark_set(c->g.gpu, c->done, c->g.stream, err) || wait_done(c, comm, until, err) ? -1 : 0;
	if (rc)
		ws_comm_abort(comm); /* or the stream would wait for ever */
	return rc;
}
