/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_receive.c - what the workers receive of an update, and in which broadcasts.
 *
 * A worker receives a broadcast, loads its tensors, and goes on to the next one. A tensor that it
 * cannot load raises an exception after its broadcast, and one whose type does not exist before. So
 * it receives no more, and the trainer's next broadcast never completes. All of that is known here
 * before the first byte, so that the tensors can be received at once. Nothing is sent for tensors
 * without bytes. */
#include "serve_vllm.h"

#include "serve_fetch.h"
#include "serve_model.h"

#include <inttypes.h>
#include <stdlib.h>

const char ws_serve_vllm_group[] = "weight_transfer";

size_t ws_serve_vllm_cut(const struct ws_serve_slot *slots, size_t first, size_t n, uint64_t limit)
{
	uint64_t size = 0;
	for (size_t i = first; i < n; i++) {
		size += slots[i].bytes;
		if (size > limit)
			return i + 1;
	}
	return n;
}

/* ---- tensors that fail ---- */

/* NCCL's type of vLLM's table; other types raise an exception. */
static bool nccl_has(enum ws_dtype dtype)
{
	switch (dtype) {
	case WS_DTYPE_I8: case WS_DTYPE_U8: case WS_DTYPE_I32: case WS_DTYPE_I64:
	case WS_DTYPE_F16: case WS_DTYPE_F32: case WS_DTYPE_F64: case WS_DTYPE_BF16:
	case WS_DTYPE_F8_E4M3:
		return true;
	default:
		return false;
	}
}

/* Before its broadcast: finds the type and the size. */
static int resolve(struct ws_serve_slot *slot, bool one_by_one, struct ws_err *err)
{
	if (!ws_dtype_from_torch(slot->dtype_name, &slot->dtype))
		return ws_err_set(err, WS_EINPUT, "module 'torch' has no attribute '%.100s'",
		                  slot->dtype_name);
	for (unsigned d = 0; d < slot->n_dims; d++)
		if (slot->dims[d] < 0)
			return ws_err_set(
				err, WS_EINPUT,
				"Trying to create tensor with negative dimension %" PRId64,
				slot->dims[d]);
	if (ws_dtype_bits(slot->dtype) % 8 ||
	    !ws_dtype_bytes(slot->dtype, slot->n_dims, slot->dims, &slot->bytes))
		return ws_err_set(err, WS_EINPUT,
		                  "Storage size calculation overflowed for '%.200s'", slot->name);
	if (one_by_one && !nccl_has(slot->dtype))
		return ws_err_set(err, WS_EINPUT, "Unsupported dtype torch.%s", slot->dtype_name);
	return 0;
}

static size_t resolve_all(struct ws_serve_update *u, bool one_by_one, struct ws_err *err)
{
	size_t i = 0;
	u->bytes = 0;
	while (i < u->n && resolve(&u->slots[i], one_by_one, err) == 0) {
		if (u->bytes + u->slots[i].bytes >= UINT64_C(1) << 62) {
			ws_err_set(err, WS_EINPUT, "Storage size calculation overflowed");
			return i;
		}
		u->bytes += u->slots[i++].bytes;
	}
	return i;
}

/* After its broadcast: returns the first tensor of the first n that the model's loader refuses, or
 * n. */
static size_t find_refused(struct ws_serve *s, struct ws_serve_update *u, size_t n)
{
	struct ws_serve_update some = *u;
	struct ws_serve_load load;
	struct ws_err err = WS_ERR_INIT;
	some.n = n;
	if (!s->model || ws_serve_load_begin(&load, s->model, &some, NULL, &err))
		return n;
	const size_t refused = load.refused;
	ws_serve_load_fini(&load);
	return refused;
}

/* A tensor is a view of its packed broadcast: its offset must be a multiple of its elements. */
static void check_alignment(const struct ws_serve_update *u, size_t first, size_t end,
                            struct ws_err *err)
{
	uint64_t at = 0;
	for (size_t i = first; i < end && !err->code; at += u->slots[i++].bytes) {
		const unsigned size = ws_dtype_bits(u->slots[i].dtype) / 8;
		if (at % size)
			ws_err_set(err, WS_EINPUT,
			           "self.storage_offset() must be divisible by %u to view Byte as "
			           "%s (different element sizes), but got %" PRIu64,
			           size, u->slots[i].dtype_name, at);
	}
}

static uint64_t count_bytes(const struct ws_serve_update *u, size_t first, size_t end)
{
	uint64_t bytes = 0;
	for (size_t i = first; i < end; i++)
		bytes += u->slots[i].bytes;
	return bytes;
}

void ws_serve_vllm_resolve(struct ws_serve *s, struct ws_serve_update *u, bool packed,
                           struct ws_err *failure)
{
	const size_t all = u->n, n = resolve_all(u, false, failure);
	const size_t refused = find_refused(s, u, n);
	/* All views are made before the first is loaded. */
	if (packed && n == all)
		check_alignment(u, 0, n, failure);
	u->n = packed && failure->code ? 0 : refused < n ? refused + 1 : n;
	u->bytes = count_bytes(u, 0, u->n);
}

/* ---- broadcasts ---- */

/* Cuts u into broadcasts up to the one in which a tensor fails, and forgets the tensors after it.
 * cuts has room for all. failure: the exception that follows, or nothing. */
static void plan(struct ws_serve *s, struct ws_serve_update *u, size_t *cuts, bool packed,
                 uint64_t limit, struct ws_err *failure)
{
	struct ws_err unknown = WS_ERR_INIT;
	const size_t n = resolve_all(u, u->nccl && !packed, &unknown);
	const size_t refused = find_refused(s, u, n);
	const size_t all = u->n;
	u->n_cuts = u->n = 0;
	u->bytes = 0;
	while (u->n < n && u->n <= refused && !failure->code) {
		const size_t first = u->n;
		const size_t end =
			packed ? ws_serve_vllm_cut(u->slots, first, n, limit) : first + 1;
		const uint64_t size = count_bytes(u, first, end);
		/* The worker still collects this broadcast when the exception comes. */
		if (packed && n < all && size <= limit)
			break;
		if (packed)
			check_alignment(u, first, end, failure);
		u->bytes += size;
		u->n = end;
		if (size)
			cuts[u->n_cuts++] = end;
	}
	if (u->n_cuts)
		cuts[u->n_cuts - 1] = u->n; /* with empty tensors after it */
	if (!failure->code && u->n <= refused && n < all)
		*failure = unknown;
	u->cuts = cuts;
}

static int receive(struct ws_serve *s, void *group, struct ws_serve_update *u, bool keep,
                   struct ws_err *err)
{
	return ws_serve_group_receive(group, u, keep, ws_deadline_in(s->opts.receive_ns), err);
}

int ws_serve_vllm_receive(struct ws_serve_call *c, struct ws_serve_update *u, bool packed,
                          uint64_t limit, struct ws_err *err)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_group *g = ws_serve_find_group(s, ws_serve_vllm_group);
	struct ws_err failure = WS_ERR_INIT;
	if (!g)
		return ws_err_set(err, WS_EINPUT,
		                  "NCCL weight transfer not initialized. Call "
		                  "init_transfer_engine() first.");
	size_t *cuts = calloc(u->n + 1, sizeof *cuts);
	if (!cuts)
		return ws_oom(err);
	u->nccl = g->nccl;
	plan(s, u, cuts, packed, limit, &failure);
	ws_serve_note_update(&c->note, u);
	int rc = ws_serve_fetch_all(c, &(struct ws_serve_fetch){ receive, g }, u, err);
	if (rc == 0 && failure.code) {
		*err = failure;
		rc = -1;
	}
	c->rp->drop |= rc && ws_serve_fault_ends(u->fault);
	u->cuts = NULL;
	free(cuts);
	return rc;
}
