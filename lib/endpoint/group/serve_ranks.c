/* SPDX-License-Identifier: Apache-2.0 */
/* serve_ranks.c - joining and receiving by the tensor-parallel ranks of a group. Each is a real
 * rank of the gloo mesh or of the NCCL communicator, with its own store connection, like the
 * scheduler processes of a server.
 *
 * Bytes are stored in one pass. Rank 0 receives into the tensors' memory; with a model, every rank
 * receives into its share of the parameters. Ranks that hash do so piece by piece as the bytes
 * arrive. */
#include "serve_gpu.h"

#include "sock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- joining ---- */

static int connect_store(struct ws_serve_rank *r, struct ws_err *err)
{
	const struct ws_serve_group *g = r->group;
	const struct ws_store_client_opts opts = {
		.host = g->address, .port = g->port, .stop = &g->cancel,
		.epoch = g->serve->opts.torch == WS_TORCH_1_13 ? 'A' : 'C',
	};
	return ws_store_connect(&opts, r->until, &g->cancel, &r->client, err);
}

static int open_mesh(struct ws_serve_rank *r, struct ws_err *err)
{
	struct ws_serve_group *g = r->group;
	struct ws_serve *s = g->serve;
	char host[WS_HOST_MAX];
	if (ws_host_local_toward(g->address, r->until, &g->cancel, host, sizeof host, err))
		return -1;
	const bool old = s->opts.torch == WS_TORCH_1_13;
	const struct ws_gloo_kv kv = ws_gloo_kv_client(r->client);
	const struct ws_gloo_opts opts = {
		.rank = g->rank_offset + r->tp_rank,
		.size = g->world_size,
		.layout = old ? WS_GLOO_G1 : WS_GLOO_G2B,
		.prefix = r->prefix,
		.kv = &kv,
		.host = host,
		.log = s->opts.log,
	};
	struct ws_gloo *gloo = NULL;
	if (ws_gloo_open(&opts, r->until, &g->cancel, &gloo, err))
		return -1;
	pthread_mutex_lock(&s->lock);
	r->gloo = gloo;
	if (ws_cancelled(&g->cancel))
		ws_gloo_abort(gloo);
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* As the worker extension of vLLM does: a trainer that speaks gloo says so in the store. Without it
 * the worker goes on as a stock one, to a GPU that it does not have. */
static int find_prefix(struct ws_serve_rank *r, struct ws_err *err)
{
	static const char *const key = "/wsync/gloo"; /* with the slash of torch's TCPStore */
	struct ws_buf value;
	bool has = false;
	if (r->client && ws_store_client_check(r->client, &key, 1, r->until, &has, err))
		return -1;
	if (!has)
		return ws_err_set(err, WS_EINPUT,
		                  "Found no NVIDIA driver on your system. Please check that you "
		                  "have an NVIDIA GPU and installed a driver from "
		                  "http://www.nvidia.com/Download/index.aspx");
	ws_buf_init(&value, 1 << 16);
	int rc = ws_store_client_get(r->client, key, r->until, NULL, &value, err);
	if (rc == 0 && value.len + 8 > sizeof r->prefix)
		rc = ws_err_set(err, WS_EDATA, "the value of wsync/gloo is too long");
	if (rc == 0) /* a PrefixStore of that name, and the context 0 of ProcessGroupGloo */
		snprintf(r->prefix, sizeof r->prefix, "/%s/0/", ws_buf_str(&value));
	ws_buf_free(&value);
	return rc;
}

static int join(struct ws_serve_rank *r, struct ws_err *err)
{
	const struct ws_serve_group *g = r->group;
	const bool first = r->tp_rank == 0;
	snprintf(r->prefix, sizeof r->prefix,
	         g->serve->opts.torch == WS_TORCH_1_13 ? "/%s/%s/0/" : "/%s/%s//cpu//0/", g->name,
	         g->name);
	if (!g->has_id && ((first && ws_serve_spoil_store(r, err)) || connect_store(r, err)))
		return -1;
	if (g->nccl)
		return ws_serve_nccl_join(r, err);
	if (g->vllm && find_prefix(r, err))
		return -1;
	const enum ws_serve_fault_kind fault =
		first ? ws_serve_wire_fault(g->serve, WS_WIRE_CONNECT) : WS_FAULT_NONE;
	if (fault != WS_FAULT_NONE && fault != WS_FAULT_DROP &&
	    ws_serve_spoil_joining(r, fault, err))
		return -1;
	if (open_mesh(r, err))
		return -1;
	/* The fault drops the mesh after it is complete. */
	if (fault == WS_FAULT_DROP)
		return ws_err_set(err, WS_EDATA, "fault drop");
	return 0;
}

int ws_serve_group_join(struct ws_serve_group *g, ws_deadline until, struct ws_err *err)
{
	return ws_serve_run_ranks(g, join, until, err);
}

/* ---- receiving ---- */

/* Over NCCL the bytes cannot be spoiled: there these faults act like a drop. */
static bool spoils_bytes(enum ws_serve_fault_kind kind)
{
	return kind == WS_FAULT_GARBAGE || kind == WS_FAULT_WRONG_LENGTH;
}

static bool strikes_midway(const struct ws_serve_rank *r)
{
	const enum ws_serve_fault_kind kind = r->update->fault;
	return kind == WS_FAULT_DROP || kind == WS_FAULT_DIE || kind == WS_FAULT_HANG ||
	       kind == WS_FAULT_SLOW || (r->group->nccl && spoils_bytes(kind));
}

static bool fault_due(const struct ws_serve_rank *r)
{
	return r->tp_rank == 0 && !r->struck && r->received >= r->update->bytes / 2 &&
	       strikes_midway(r);
}

static int strike(struct ws_serve_rank *r, struct ws_err *err)
{
	r->struck = true;
	return ws_serve_strike(r, r->update->fault, err);
}

/* Finishes all complete slots, with empty ones. */
static void finish_slots(struct ws_serve_rank *r)
{
	const struct ws_serve_update *u = r->update;
	for (; r->slot < u->n && r->at == u->slots[r->slot].bytes; r->slot++, r->at = 0) {
		if (!r->hashes)
			continue;
		r->hashes[r->slot] = ws_hash_digest(r->hash);
		ws_hash_reset(r->hash);
	}
}

static void add_bytes(struct ws_serve_rank *r, const uint8_t *bytes, size_t n)
{
	const struct ws_serve_slot *slot = &r->update->slots[r->slot];
	if (r->copies)
		memcpy(slot->data + r->at, bytes, n);
	if (r->update->load)
		ws_serve_load_put(r->update->load, r->tp_rank, r->slot, r->at, bytes, n);
	if (r->hashes)
		ws_hash_add(r->hash, bytes, n);
}

static int take(void *ctx, const void *bytes, size_t n, struct ws_err *err)
{
	struct ws_serve_rank *r = ctx;
	const uint8_t *from = bytes;
	while (n && r->slot < r->update->n) {
		const uint64_t left = r->update->slots[r->slot].bytes - r->at;
		const size_t piece = left < n ? (size_t)left : n;
		add_bytes(r, from, piece);
		r->at += piece;
		r->received += piece;
		from += piece;
		n -= piece;
		finish_slots(r);
	}
	return fault_due(r) ? strike(r, err) : 0;
}

/* Whether the tensors are adjacent in memory, as in a bucket. */
static bool in_one_piece(const struct ws_serve_update *u)
{
	for (size_t i = 1; i < u->n; i++)
		if (u->slots[i].data != u->slots[i - 1].data + u->slots[i - 1].bytes)
			return false;
	return true;
}

static size_t fill_sinks(struct ws_serve_rank *r, struct ws_gloo_sink *sinks)
{
	const struct ws_serve_update *u = r->update;
	const bool several = u->flattened || u->cuts; /* tensors in one broadcast */
	const bool memory = r->tp_rank == 0 && u->n && u->slots[0].data;
	const bool whole = memory && several && in_one_piece(u);
	r->copies = memory && several && !whole;
	const bool looks =
		r->hashes || r->copies || u->load || (strikes_midway(r) && !r->group->nccl);
	const size_t n = u->flattened ? 1 : u->cuts ? u->n_cuts : u->n;
	for (size_t i = 0, k = 0; i < n; i++) {
		const size_t end = u->flattened ? u->n : u->cuts ? u->cuts[i] : i + 1;
		sinks[i] = (struct ws_gloo_sink){
			.dst = memory && !r->copies && k < u->n ? u->slots[k].data : NULL,
			.take = looks ? take : NULL, .ctx = r,
		};
		for (; k < end; k++)
			sinks[i].length += u->slots[k].bytes;
	}
	return n;
}

/* A broadcast cannot be cut, so the fault strikes before the one that has the middle byte. */
static size_t find_strike(struct ws_serve_rank *r, const struct ws_gloo_sink *sinks, size_t n)
{
	uint64_t before = 0;
	if (r->tp_rank || !strikes_midway(r))
		return SIZE_MAX;
	r->struck = true;
	for (size_t i = 0; i < n; i++) {
		before += sinks[i].length;
		if (before >= r->update->bytes / 2 + 1 || i + 1 == n)
			return i;
	}
	return SIZE_MAX;
}

static int receive_over_gloo(struct ws_serve_rank *r, struct ws_gloo_sink *sinks, size_t n,
                             struct ws_err *err)
{
	const struct ws_serve_update *u = r->update;
	const struct ws_serve_group *g = r->group;
	if (u->fault == WS_FAULT_WRONG_LENGTH && n && r->tp_rank == 0)
		sinks[n - 1].length++; /* detects a sender that ignores the length before its bytes
		                          are stored */
	if (u->fault == WS_FAULT_GARBAGE && r->tp_rank == 0)
		ws_gloo_spoil(r->gloo, ws_gloo_parent(g->world_size, 0, g->rank_offset));
	return ws_gloo_recv(r->gloo, 0, sinks, n, r->until, &g->cancel, err);
}

static int receive(struct ws_serve_rank *r, struct ws_err *err)
{
	const struct ws_serve_update *u = r->update;
	struct ws_gloo_sink *sinks = calloc(u->n + 1, sizeof *sinks);
	if (!sinks)
		return ws_oom(err);
	r->slot = 0;
	r->at = r->received = 0;
	if (r->hashes)
		ws_hash_reset(r->hash);
	r->struck = false;
	const size_t n = fill_sinks(r, sinks);
	finish_slots(r);
	int rc = r->group->nccl ?
	                 ws_serve_nccl_receive(r, sinks, n, find_strike(r, sinks, n), err) :
	                 receive_over_gloo(r, sinks, n, err);
	if (rc == 0 && fault_due(r))
		rc = strike(r, err); /* for an update without bytes take() is not called */
	free(sinks);
	return rc;
}

static int prepare(struct ws_serve_group *g, const struct ws_serve_update *u, bool hashes,
                   struct ws_err *err)
{
	for (unsigned i = 0; i < g->tp; i++) {
		struct ws_serve_rank *r = &g->ranks[i];
		r->update = u;
		if (!hashes)
			continue;
		r->hashes = calloc(u->n + 1, sizeof *r->hashes);
		if (!r->hash)
			r->hash = ws_hash_new();
		if (!r->hashes || !r->hash)
			return ws_oom(err);
	}
	return 0;
}

static void release(struct ws_serve_group *g)
{
	for (unsigned i = 0; i < g->tp; i++) {
		free(g->ranks[i].hashes);
		g->ranks[i].hashes = NULL;
		g->ranks[i].update = NULL;
	}
}

static int agree(const struct ws_serve_group *g, struct ws_serve_update *u, struct ws_err *err)
{
	const uint64_t *first = g->ranks[0].hashes;
	for (unsigned i = 1; i < g->tp; i++)
		for (size_t k = 0; k < u->n; k++)
			if (g->ranks[i].hashes[k] != first[k])
				return ws_err_set(err, WS_EDATA,
				                  "ranks %u and %u received different bytes for "
				                  "'%.200s'",
				                  g->rank_offset, g->rank_offset + i,
				                  u->slots[k].name);
	for (size_t k = 0; k < u->n; k++)
		u->slots[k].hash = first[k];
	return 0;
}

int ws_serve_group_receive(struct ws_serve_group *g, struct ws_serve_update *u, bool keep,
                           ws_deadline until, struct ws_err *err)
{
	const bool hashes = keep && (ws_serve_hashes(g->serve) || (u->staged && g->tp > 1));
	if (ws_serve_group_begin(g, err))
		return -1;
	const enum ws_serve_fault_kind wire = ws_serve_wire_fault(g->serve, WS_WIRE_PAYLOAD);
	if (u->fault == WS_FAULT_NONE)
		u->fault = wire;
	int rc = prepare(g, u, hashes, err);
	if (rc == 0)
		rc = ws_serve_run_ranks(g, receive, until, err);
	if (rc == 0 && hashes)
		rc = agree(g, u, err);
	release(g);
	ws_serve_group_end(g);
	return rc;
}
