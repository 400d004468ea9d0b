/* SPDX-License-Identifier: Apache-2.0 */
/* bench_comms.c - NCCL communicators on the measured GPU, and a bare loop of ncclBroadcast. The
 * sender and the receivers use both. */
#include "bench_transport.h"

#include <string.h>

int bench_comms_open(struct bench_comms *c, const struct ws_bench_gpu *which, uint64_t bytes,
                     const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_nccl_opts library = { .library = which->nccl };
	*c = (struct bench_comms){ 0 };
	return bench_gpu_open(&c->g, which, cancel, err) || ws_nccl_open(&library, &c->nccl, err) ||
	                       ws_gpu_event_new(c->g.gpu, &c->done, err) ||
	                       ws_gpu_alloc(c->g.gpu, bytes, &c->at, err) ?
	               -1 :
	               0;
}

void bench_comms_close(struct bench_comms *c, ws_deadline until)
{
	if (c->g.gpu) {
		ws_comm_close(c->pushed, until);
		ws_comm_close(c->bare, until);
		ws_gpu_event_free(c->g.gpu, c->done);
		ws_gpu_free(c->g.gpu, c->at);
	}
	ws_nccl_close(c->nccl);
	bench_gpu_close(&c->g);
	*c = (struct bench_comms){ 0 };
}

int bench_comms_join(struct bench_comms *c, struct ws_comm **out, const void *id,
                     ws_deadline until, struct ws_err *err)
{
	struct ws_comm_opts opts = { .nccl = c->nccl, .rank = c->rank, .size = c->world };
	memcpy(opts.id.bytes, id, sizeof opts.id.bytes);
	return ws_comm_open(&opts, out, err) || ws_comm_wait(*out, until, c->g.cancel, err) ? -1 :
	                                                                                      0;
}

int bench_comms_broadcast(struct bench_comms *c, struct ws_comm *comm, uint64_t bytes,
                          unsigned count, ws_deadline until, struct ws_err *err)
{
	const struct ws_comm_event done = { .gpu = c->g.gpu, .event = c->done };
	int rc = 0;
	for (unsigned i = 0; i < count && !rc; i++)
		rc = ws_comm_broadcast(comm, c->at, bytes, 0, c->g.stream, until, c->g.cancel, err);
	if (!rc)
		rc = ws_gpu_event_record(c->g.gpu, c->done, c->g.stream, err) ||
		                     ws_comm_wait_event(comm, &done, until, c->g.cancel, err) ?
		             -1 :
		             0;
	if (rc)
		ws_comm_abort(comm); /* otherwise the stream would wait forever */
	return rc;
}
