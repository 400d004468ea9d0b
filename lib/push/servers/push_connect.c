/* SPDX-License-Identifier: Apache-2.0 */
/* push_connect.c - detects the servers, and refuses what cannot work before anything at the servers
 * has changed. */
#include "push_protocol.h"

#include "lineage_probe.h"

#include <stdio.h>
#include <string.h>

/* The rank of a server process in the group is rank_offset + tp_rank. So pipeline stages would
 * collide, and data-parallel replicas that are not attention groups refuse the request. */
int push_check_ranks(const struct ws_endpoint_info *info, struct ws_err *err)
{
	if (ws_lineage_family(info->lineage) == WS_FAMILY_VLLM && info->world_size)
		return 0; /* it numbers the ranks of all its engines */
	if (ws_endpoint_check_tp(info, err))
		return -1;
	if (info->pp_size > 1) {
		ws_err_set(err, WS_EREFUSED,
		           "%s runs %u pipeline stages, which would take the same ranks "
		           "of a weight-update group",
		           info->url, info->pp_size);
		return ws_err_hint(err, "run the server with pp_size 1");
	}
	if (info->dp_size > 1 && !info->dp_attention) {
		ws_err_set(err, WS_EREFUSED,
		           "%s runs dp_size %u without dp-attention and refuses weight updates",
		           info->url, info->dp_size);
		return ws_err_hint(err, "give each replica its own URL, or start the server with "
		                        "--enable-dp-attention");
	}
	if (info->tp_size > 1024)
		return ws_err_set(err, WS_EREFUSED, "%s claims tp_size %u", info->url,
		                  info->tp_size);
	return 0;
}

/* NCCL from 2.23 on refuses ranks of different versions when they join. Before that, they hang or
 * get garbage. */
static int check_nccl(const struct ws_push *p, const struct ws_endpoint_info *info,
                      struct ws_err *err)
{
	if (!p->link.nccl_version[0] || !info->nccl_version[0] ||
	    strcmp(p->link.nccl_version, info->nccl_version) == 0)
		return 0;
	ws_err_set(err, WS_EDATA, "%s has NCCL %s, and %s was loaded here", info->url,
	           info->nccl_version, p->link.nccl_version);
	return ws_err_hint(err, "all ranks must have one version: load the servers' own by "
	                        "{nccl_library} or {nccl_from}");
}

/* An update crashes such a server (SGLang since 0.5.17). */
static int check_sharing(const struct ws_endpoint_info *info, struct ws_err *err)
{
	if (!info->shares_weights)
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s shares its weights with other engines, and an update "
	           "crashes it", info->url);
	return ws_err_hint(err, "start the server with weight_cache_mode off");
}

/* What makes a vLLM unfit before anything is asked of it. */
static int check_vllm(const struct ws_endpoint_info *info, struct ws_err *err)
{
	if (!info->control_off)
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s: this vLLM has no routes to change weights", info->url);
	return ws_err_hint(err, "start it with VLLM_SERVER_DEV_MODE=1 in its environment");
}

/* A vLLM may understand requests of another form, and do something else. */
static int assume(struct ws_endpoint_info *info, enum ws_lineage asked, struct ws_err *err)
{
	const struct ws_endpoint_info found = *info;
	ws_endpoint_assume(info, asked);
	const bool vllm = ws_lineage_family(found.lineage) == WS_FAMILY_VLLM ||
	                  ws_lineage_family(info->lineage) == WS_FAMILY_VLLM;
	const bool same = ws_lineage_family(found.lineage) == ws_lineage_family(info->lineage) &&
	                  found.can.packed_at_init == info->can.packed_at_init &&
	                  found.can.transfer_session == info->can.transfer_session;
	if (!vllm || same || !ws_lineage_vllm_reads(found.version))
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s: it is %s%s, whose requests differ from those of "
	           "{lineage} %s", info->url,
	           ws_lineage_family(found.lineage) == WS_FAMILY_VLLM ? "vLLM " : "",
	           *found.version ? found.version : "another server", ws_lineage_name(asked));
	return ws_err_hint(err, "leave {lineage} out");
}

struct ws_member push_member_of(const char *url, const struct ws_endpoint_info *info)
{
	const bool vllm = ws_lineage_family(info->lineage) == WS_FAMILY_VLLM;
	const unsigned ranks = vllm ? info->world_size : info->tp_size;
	return (struct ws_member){ .url = url, .host = info->host, .info = vllm ? info : NULL,
		                   .ranks = ranks ? ranks : 1 };
}

int push_connect(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	p->to.probed = !p->to.known || !p->link.group;
	if (!p->to.probed)
		return 0;
	p->to.known = false;
	push_names_forget(p);
	push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	/* A restarted endpoint may have another address. A paused endpoint must stay reachable even
	 * if its name cannot be looked up any more. */
	ws_http_keep_names(p->http, false);
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	const ws_deadline slow = ws_endpoint_slow_until(p->opts.connect_ns, until, p->run.until);
	const int rc = ws_endpoint_probe_slow(&to, slow, p->to.infos, p->to.errs, err);
	ws_http_keep_names(p->http, true);
	unsigned offset = push_sending_ranks(p);
	for (size_t i = 0; i < n; i++) {
		p->to.members[i] = push_member_of(p->to.endpoints[i].url, &p->to.infos[i]);
		p->to.members[i].rank_offset = offset;
		offset += p->to.members[i].ranks;
		push_emit_endpoint(p, i, WS_PHASE_CONNECT, &p->to.errs[i], "", p->to.infos[i].ns);
	}
	/* If only some endpoints answered, the error is still that of an unreachable endpoint:
	 * nothing was changed anywhere. */
	for (size_t i = 0; rc && i < n; i++) {
		if (p->to.errs[i].code == WS_OK)
			continue;
		if (err)
			*err = p->to.errs[i];
		ws_err_where(err, NULL, p->to.endpoints[i].url);
		return -1;
	}
	if (rc)
		return -1;
	for (size_t i = 0; i < n; i++) {
		const struct ws_endpoint_info *info = &p->to.infos[i];
		if (assume(&p->to.infos[i], p->opts.lineage, err) ||
		    check_vllm(info, err) ||
		    (!p->protocol->any_ranks && push_check_ranks(info, err)) ||
		    check_nccl(p, info, err) || check_sharing(info, err))
			return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	p->to.known = true;
	return 0;
}

/* How to send tensors of a dtype that cannot be broadcast by themselves. */
static const char *how_else(const struct ws_push *p)
{
	if (p->protocol->tensors_only)
		return "use {protocol} update, with flattened buckets it sends bytes";
	if (p->opts.format == WS_PUSH_FORMAT_NONE)
		return "use {format} flattened_bucket, which sends bytes";
	return "flattened buckets send it as bytes, but an endpoint does not support them: use a "
	       "later release of its server";
}

int push_check_plan(struct ws_push *p, struct ws_err *err)
{
	const struct ws_plan *plan = p->from.plan;
	const struct ws_transport *t = p->link.group ? ws_group_transport(p->link.group) : NULL;
	const bool vllm = p->protocol == &push_vllm; /* its gloo is ours, which moves bytes */
	const bool flattened = plan->format == WS_FORMAT_FLATTENED || vllm;
	for (size_t i = 0; p->link.transport->refuses && i < plan->n_tensors; i++) {
		const char *dtype = ws_dtype_torch(plan->tensors[i].dtype);
		const char *why = p->link.transport->refuses(t, dtype, flattened);
		if (!why)
			continue;
		ws_err_set(err, WS_EREFUSED, "tensor %s is %s: %s", plan->tensors[i].name, dtype,
		           why);
		return flattened ? -1 : ws_err_hint(err, "%s", how_else(p));
	}
	return 0;
}
