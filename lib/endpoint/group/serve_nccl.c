/* SPDX-License-Identifier: Apache-2.0 */
/* serve_nccl.c - a rank of an NCCL group, like the torch process group of a server.
 *
 * Rank 0 stores the id of the communicator under a key of the store. Eager servers fetch the id and
 * join while they create their group. So do vLLM's workers, which get the id as a pickle or in the
 * request. Lazy servers join with the first broadcast: their group is created at once, and a sender
 * must announce a bucket before it waits for them.
 *
 * Each tensor, or each flattened bucket, is one broadcast into memory allocated before. All
 * broadcasts are started, then awaited; only then are the tensors copied out and loaded. SGLang
 * does the same, so a sender waits here whenever it would wait for servers. Loading during the
 * broadcasts would be faster, and not what servers do. (To measure a sender alone, use wsync-bench
 * transport.) The communicator is aborted as soon as anything fails, because
 * peers do not notice the failure otherwise. */
#include "serve_gpu.h"

#include "serve_lineage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };
static const int64_t LEAVE_NS = 2 * WS_NS_PER_S;

struct ws_serve_nccl {
	struct ws_gpu *gpu;
	struct ws_comm *comm;         /* NULL: not joined yet */
	struct ws_stream *stream;
	struct ws_gpu_event *done;
	struct ws_serve_outlet *outlet;
	ws_devptr at;                 /* grows; kept between requests */
	uint64_t capacity;
};

/* ---- memory and waiting ---- */

static uint64_t after(uint64_t place, const struct ws_gloo_sink *sink)
{
	return place + (sink->length + ALIGN - 1) / ALIGN * ALIGN;
}

static int make_room(struct ws_serve_nccl *n, const struct ws_gloo_sink *sinks, size_t count,
                     struct ws_err *err)
{
	uint64_t wants = 0;
	for (size_t i = 0; i < count; i++)
		wants = after(wants, &sinks[i]);
	if (wants <= n->capacity)
		return 0;
	ws_gpu_free(n->gpu, n->at);
	n->at = 0;
	n->capacity = 0;
	if (ws_gpu_alloc(n->gpu, wants, &n->at, err))
		return -1;
	n->capacity = wants;
	return 0;
}

/* Waits for all broadcasts that were started. */
static int await(struct ws_serve_rank *r, struct ws_err *err)
{
	struct ws_serve_nccl *n = r->nccl;
	const struct ws_comm_event done = { .gpu = n->gpu, .event = n->done };
	return ws_gpu_event_record(n->gpu, n->done, n->stream, err) ||
	                       ws_comm_wait_event(n->comm, &done, r->until, &r->group->cancel,
	                                          err) ?
	               -1 :
	               0;
}

/* ---- joining ---- */

/* vLLM's rank 0 puts a Python pickle of a ctypes struct into the store: 128 bytes (opcode C, 0x80)
 * between a prefix and the end. Other trainers write a shorter pickle of the same. */
static int read_pickle(const struct ws_buf *value, struct ws_nccl_id *id, struct ws_err *err)
{
	static const uint8_t ends[2][8] = { { 0x94, 0x86, 0x94, 0x86, 0x94, 0x52, 0x94, 0x2e },
		                            { 0x86, 0x86, 0x52, 0x2e } };
	static const char name[] = "ncclUniqueId";
	for (size_t i = 0; i < 2; i++) {
		const size_t end = i ? 4 : 8, n = end + 2 + sizeof id->bytes;
		if (value->len < n || !memmem(value->data, value->len - n, name, sizeof name - 1))
			continue;
		const uint8_t *at = (const uint8_t *)value->data + value->len - n;
		if (at[0] != 0x43 || at[1] != 0x80 || memcmp(at + n - end, ends[i], end) != 0)
			continue;
		memcpy(id->bytes, at + 2, sizeof id->bytes);
		return 0;
	}
	return ws_err_set(err, WS_EDATA, "invalid load key: %zu bytes that are no pickle of an "
	                                 "ncclUniqueId", value->len);
}

static int fetch_pickled_id(struct ws_serve_rank *r, struct ws_nccl_id *id, struct ws_err *err)
{
	struct ws_buf value;
	ws_buf_init(&value, 1 << 16);
	int rc = ws_store_client_get(r->client, "/broadcast_from/0/0", r->until, NULL, &value, err);
	if (rc == 0)
		rc = read_pickle(&value, id, err);
	ws_buf_free(&value);
	return rc;
}

static int fetch_id(struct ws_serve_rank *r, struct ws_nccl_id *id, struct ws_err *err)
{
	const struct ws_serve_group *g = r->group;
	if (g->has_id) {
		memcpy(id->bytes, g->nccl_id, sizeof id->bytes);
		return 0;
	}
	if (g->vllm)
		return fetch_pickled_id(r, id, err);
	const bool old = g->serve->opts.torch == WS_TORCH_1_13;
	char key[512];
	struct ws_buf value;
	snprintf(key, sizeof key, old ? "/%s/%s/0" : "/%s/%s//cuda//0", g->name, g->name);
	ws_buf_init(&value, 1 << 16);
	int rc = ws_store_client_get(r->client, key, r->until, NULL, &value, err);
	if (rc)
		ws_err_wrap(err,
		            "[%u] is setting up NCCL communicator and retrieving ncclUniqueId from "
		            "[0] via c10d "
		            "key-value store by key '0', but store->get('0') got error",
		            g->rank_offset + r->tp_rank);
	else if (value.len != sizeof id->bytes)
		rc = ws_err_set(err, WS_EDATA, "Invalid size for ncclUniqueId: %zu bytes",
		                value.len);
	else
		memcpy(id->bytes, value.data, sizeof id->bytes);
	ws_buf_free(&value);
	return rc;
}

static int begin_joining(struct ws_serve_rank *r, struct ws_err *err)
{
	const struct ws_serve_group *g = r->group;
	struct ws_comm_opts opts = { .nccl = g->serve->gpus->nccl,
		                     .rank = g->rank_offset + r->tp_rank,
		                     .size = g->world_size };
	return fetch_id(r, &opts.id, err) || ws_comm_open(&opts, &r->nccl->comm, err) ? -1 : 0;
}

/* Waits for a key that is never set: ends when the store closes, or at the deadline. */
static void wait_for_store(struct ws_serve_rank *r)
{
	struct ws_buf value;
	ws_buf_init(&value, 1 << 16);
	ws_store_client_get(r->client, "never", r->until, NULL, &value, NULL);
	ws_buf_free(&value);
}

/* Fault on joining: the rank does not join, joins late, or joins and ends. */
static int spoil(struct ws_serve_rank *r, enum ws_serve_fault_kind kind, struct ws_err *err)
{
	if (kind == WS_FAULT_HANG) {
		wait_for_store(r);
		return ws_err_set(err, WS_EDATA, "fault hang");
	}
	const bool comes =
		kind == WS_FAULT_DROP || kind == WS_FAULT_GARBAGE || kind == WS_FAULT_WRONG_LENGTH;
	if (comes && begin_joining(r, err))
		return -1;
	return ws_serve_strike(r, kind, err);
}

/* vLLM's workers sum one float with the trainer, before anything else. */
static int warm_up(struct ws_serve_rank *r, struct ws_err *err)
{
	static const float zero;
	struct ws_serve_nccl *n = r->nccl;
	const struct ws_gloo_sink one = { .length = sizeof zero };
	return make_room(n, &one, 1, err) ||
	                       ws_gpu_copy_in(n->gpu, n->at, &zero, sizeof zero, n->stream, err) ||
	                       ws_comm_all_reduce_one(n->comm, n->at, n->stream, r->until,
	                                              &r->group->cancel, err) ||
	                       await(r, err) ?
	               -1 :
	               0;
}

static int join(struct ws_serve_rank *r, struct ws_err *err)
{
	const enum ws_serve_fault_kind fault =
		r->tp_rank == 0 ? ws_serve_wire_fault(r->group->serve, WS_WIRE_CONNECT) :
				  WS_FAULT_NONE;
	if (fault != WS_FAULT_NONE && spoil(r, fault, err))
		return -1;
	if (begin_joining(r, err) || ws_comm_wait(r->nccl->comm, r->until, &r->group->cancel, err))
		return -1;
	if (r->group->vllm && warm_up(r, err))
		return -1;
	ws_log(r->group->serve->opts.log, 1, "rank %u of %u is in the communicator",
	       r->group->rank_offset + r->tp_rank, r->group->world_size);
	return 0;
}

static void give_up(struct ws_serve_rank *r)
{
	if (r->nccl && r->nccl->comm)
		ws_comm_abort(r->nccl->comm);
}

static bool is_eager(const struct ws_serve *s)
{
	const enum ws_serve_lineage l = s->opts.lineage;
	return s->vllm || s->opts.nccl_init == WS_SERVE_NCCL_EAGER ||
	       (s->opts.nccl_init == WS_SERVE_NCCL_AUTO &&
	        (l == WS_SERVE_XORL || l == WS_SERVE_XORL_LEGACY));
}

int ws_serve_nccl_join(struct ws_serve_rank *r, struct ws_err *err)
{
	struct ws_serve *s = r->group->serve;
	struct ws_serve_nccl *n = r->nccl = calloc(1, sizeof *n);
	if (!n)
		return ws_oom(err);
	n->gpu = s->gpus->of_rank[r->tp_rank];
	if (ws_gpu_use(n->gpu, err) || ws_stream_new(n->gpu, &n->stream, err) ||
	    ws_gpu_event_new(n->gpu, &n->done, err) ||
	    ws_serve_outlet_open(n->gpu, &n->outlet, err))
		return -1;
	if (!is_eager(s) || join(r, err) == 0)
		return 0;
	give_up(r);
	return -1;
}

/* ---- receiving ---- */

static int receive(struct ws_serve_rank *r, const struct ws_gloo_sink *sinks, size_t n,
                   size_t struck, struct ws_err *err)
{
	struct ws_serve_nccl *c = r->nccl;
	const struct ws_cancel *cancel = &r->group->cancel;
	uint64_t place = 0;
	/* Allocate first, as torch does: a rank without memory does not join. */
	if (ws_gpu_use(c->gpu, err) || make_room(c, sinks, n, err) || (!c->comm && join(r, err)))
		return -1;
	for (size_t i = 0; i < n; place = after(place, &sinks[i]), i++) {
		if (i == struck && (await(r, err) || ws_serve_strike(r, r->update->fault, err)))
			return -1;
		if (ws_comm_broadcast(c->comm, c->at + place, sinks[i].length, 0, c->stream,
		                      r->until, cancel, err))
			return -1;
	}
	if (await(r, err))
		return -1;
	place = 0;
	for (size_t i = 0; i < n; place = after(place, &sinks[i]), i++)
		if (ws_serve_outlet_run(c->outlet, c->at + place, &sinks[i], r->until, cancel, err))
			return -1;
	return 0;
}

int ws_serve_nccl_receive(struct ws_serve_rank *r, const struct ws_gloo_sink *sinks, size_t n,
                          size_t struck, struct ws_err *err)
{
	const int rc = receive(r, sinks, n, struck, err);
	if (rc)
		give_up(r);
	return rc;
}

/* ---- leaving ---- */

static int leave(struct ws_serve_rank *r, struct ws_err *err)
{
	struct ws_serve_nccl *n = r->nccl;
	(void)err;
	if (!n)
		return 0;
	ws_gpu_use(n->gpu, NULL); /* the rest is freed even if this fails */
	ws_comm_close(n->comm, ws_deadline_in(ws_cancelled(&r->group->cancel) ? 0 : LEAVE_NS));
	ws_stream_free(n->gpu, n->stream);
	ws_gpu_event_free(n->gpu, n->done);
	ws_serve_outlet_close(n->outlet);
	ws_gpu_free(n->gpu, n->at);
	free(n);
	r->nccl = NULL;
	return 0;
}

/* All ranks leave at once, because ranks may wait for each other when they leave. */
void ws_serve_nccl_leave(struct ws_serve_group *g)
{
	ws_serve_run_ranks(g, leave, WS_FOREVER, NULL);
	for (unsigned i = 0; i < g->tp; i++)
		leave(&g->ranks[i], NULL); /* for ranks whose thread did not start */
}
