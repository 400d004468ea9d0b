/* SPDX-License-Identifier: Apache-2.0 */
/* push_export.c - the memory of ipc_export.h in a push. */
#include "push_export.h"

#include "ipc_export.h"
#include "sock.h"

#include <stdlib.h>

static const int64_t GRACE_NS = 500 * WS_NS_PER_MS;

struct shown {
	struct ws_ipc_export *export;
	bool lent;
};

static struct ws_ipc_export *export_of(const struct ws_push *p)
{
	return ((const struct shown *)p->own)->export;
}

/* ---- before ---- */

int push_ipc_check_hosts(const struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(p->opts.connect_ns);
	for (size_t i = 0; p->protocol->exports && i < p->opts.n_endpoints; i++) {
		char host[WS_HOST_MAX];
		uint16_t port;
		bool local = false;
		if (ws_endpoint_host_port(p->to.endpoints[i].url, host, &port, err) ||
		    ws_host_is_local(host, until, p->opts.cancel, &local, err))
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

int push_export_prepare(struct ws_push *p, struct ws_err *err)
{
	uint64_t most = 0;
	for (size_t b = 0; b < p->from.plan->n_buckets; b++)
		most = p->from.plan->buckets[b].bytes > most ? p->from.plan->buckets[b].bytes :
		                                               most;
	const struct ws_ipc_export_opts opts = { .gpu = p->link.gpu,
		                                 .trace = p->opts.trace,
		                                 .log = p->opts.log };
	struct shown *own = push_own(p, sizeof *own, err);
	if (!own || (!own->export && ws_ipc_export_open(&opts, &own->export, err)))
		return -1;
	return ws_ipc_export_reserve(own->export, p->from.plan->n_buckets, most, err);
}

/* ---- buckets ---- */

bool push_export_makes(const struct ws_push *p, const struct ws_recipe_output *f)
{
	return ws_ipc_export_computes(export_of(p), f);
}

void push_export_stage(struct ws_push *p, const struct ws_payload *payloads, size_t n)
{
	ws_ipc_export_next(export_of(p), payloads, n);
}

/* A server that refuses the first bucket may be unable to open the memory. */
static void hint_at_opening(const struct push_bucket *k, struct ws_err *err)
{
	if (err && k->b == 0 && !err->hint[0] &&
	    (err->code == WS_EREFUSED || err->code == WS_EREACH))
		ws_err_hint(err, "a server must see this process and this GPU: the same user, "
		                 "containers with --ipc=host and --pid=host, its log says more");
}

int push_export_bucket(struct ws_push *p, const struct push_bucket *k, push_export_post *post,
                       struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const int64_t since = ws_now_ns();
	struct shown *own = p->own;
	uint64_t at;
	char uuid[WS_CUDA_UUID_TEXT];
	if (ws_ipc_export_take(own->export, k->payloads, k->n_payloads, until, p->opts.cancel, &at,
	                       err)) {
		ws_err_wrap(err, "bucket %zu of %zu", k->b + 1, p->from.plan->n_buckets);
		return -1;
	}
	ws_cuda_uuid_text(ws_ipc_export_device(own->export), uuid);
	const struct ws_pickle_cuda where = {
		.handle = ws_ipc_export_handle(own->export),
		.at = at,
		.room = ws_ipc_export_part_bytes(own->export),
		.ordinal = p->opts.ipc_ordinal,
		.uuid = p->opts.ipc_by_ordinal ? NULL : uuid + WS_CUDA_UUID_KIND,
	};
	const int64_t asked = ws_now_ns();
	own->lent = true;
	const int rc = post(p, k, &where, since, err);
	/* The bytes were ready before the request: in this time servers only load them. */
	push_applied(p, ws_now_ns() - asked);
	if (rc)
		hint_at_opening(k, err);
	else
		push_trace_apply(p, k->b, asked);
	return rc;
}

/* ---- afterwards ---- */

bool push_export_was_lent(struct ws_push *p)
{
	struct shown *own = p->own;
	const bool lent = own && own->lent;
	if (own)
		own->lent = false;
	return lent;
}

void push_export_warn(struct ws_push *p, size_t i, const char *why)
{
	push_warn(p, p->to.endpoints[i].url,
	          "may still read memory of the GPU that is given back: %s", why);
}

void push_export_grace(void)
{
	ws_sleep(GRACE_NS);
}

void push_export_forget(struct ws_push *p, bool ended)
{
	struct shown *own = p->own;
	if (!ended || !own)
		return;
	ws_ipc_export_close(own->export);
	free(own);
	p->own = NULL;
}

const struct ws_transport_ops push_ipc_transport = {
	.name = "ipc",
	.check = ws_ipc_export_check,
	.memory = ws_ipc_export_memory,
};
