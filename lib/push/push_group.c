/* SPDX-License-Identifier: Apache-2.0 */
/* push_group.c - names, forms and ends the group of a push. */
#include "push_protocol.h"

#include "lock.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t DESTROY_NS = 10 * WS_NS_PER_S;

/* Takes the group out of the push and the guard's copy, because it is about to be freed. */
static struct ws_group *take_group(struct ws_push *p)
{
	struct ws_group *group = p->link.group;
	p->link.group = NULL;
	push_alive(p);
	return group;
}

/* vLLM has one group, which has no name: a push that joins replaces that of every other. */
static bool is_replaced(const struct ws_push *p)
{
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		any = any || (push_to_vllm(p, i) && push_was_locked(p, i));
	return any;
}

void push_leave_dead_group(struct ws_push *p)
{
	if (!p->link.group || (ws_group_alive(p->link.group) && !is_replaced(p)))
		return;
	push_enter(p, WS_PHASE_DESTROY);
	push_warn(p, NULL, "a peer left group %s since the last push: making a new one",
	          ws_group_name(p->link.group));
	ws_group_close(take_group(p), NULL, ws_deadline_in(DESTROY_NS));
	p->run.sent_base = 0; /* the new group counts from 0 */
}

int push_name_group(struct ws_push *p, struct ws_err *err)
{
	if (p->link.group)
		return 0;
	if (!p->opts.group_name)
		return ws_group_fresh_name(p->link.name, sizeof p->link.name, err);
	/* Each of several senders is rank 0 of a group of its own. */
	if (p->opts.senders > 1 && !push_together(p))
		snprintf(p->link.name, sizeof p->link.name, "%s-%u", p->opts.group_name,
		         p->opts.sender);
	else
		snprintf(p->link.name, sizeof p->link.name, "%s", p->opts.group_name);
	return 0;
}

/* Warns about endpoints that did not answer. The endpoints that had joined were asked to leave. */
static void note_late(struct ws_push *p)
{
	bool any = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		e->grouped = p->to.members[i].late;
		any = any || e->grouped;
		if (e->grouped)
			push_warn(p, e->url,
			          "did not answer the request to join group %s; if it joins later, "
			          "it blocks: run wsync-ctl repair then, or push again",
			          p->link.name);
	}
	if (!any)
		p->link.place.port = 0;
}

/* If this process is killed, a server that has not connected yet retries for minutes. The record
 * has the address, so that repair can release the server. */
static int record_place(void *push, struct ws_err *err)
{
	struct ws_push *p = push;
	return push_is_leader(p) ? 0 : push_record(p, err); /* a leader records it with the pause */
}

int push_init_group(struct ws_push *p, struct ws_err *err)
{
	if (p->link.group || p->protocol->groupless)
		return 0;
	p->link.gpu.staging_bytes = push_largest_staging(p);
	ws_endpoint_nccl_settings(p->to.infos, p->opts.n_endpoints, &p->link.gpu.nccl_settings);
	const struct ws_group_opts opts = {
		.http = p->http,
		.members = p->to.members,
		.n_members = p->opts.n_endpoints,
		.senders = push_sending_ranks(p),
		.ops = p->link.transport,
		.gpu = p->link.gpu,
		.packed = p->from.plan->format == WS_FORMAT_FLATTENED,
		.master_address = p->opts.master_address,
		.master_port = p->opts.master_port,
		.name = p->link.name,
		.own_requests = p->protocol->transfer != NULL,
		.log = p->opts.log,
		.cancel = p->opts.cancel,
		.place = &p->link.place,
		.bound = record_place,
		.bound_ctx = p,
		.watch = &ws_watchdog_group, .watch_ctx = p->watch.watchdog,
		.trace = p->opts.trace,
	};
	if (ws_group_open(&opts, ws_deadline_min(p->run.until, ws_deadline_in(p->opts.init_ns)),
	                  &p->link.group, err)) {
		push_twins_suspect(p);
		note_late(p);
		return -1;
	}
	if (opts.own_requests)
		return 0; /* no endpoint has joined it yet */
	p->link.place.port = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		static const struct ws_err none = WS_ERR_INIT;
		push_emit_endpoint(p, i, WS_PHASE_INIT, &none, "", p->to.members[i].ns);
	}
	return 0;
}

/* Between two runs another push may have joined. Its group must not be left in its place, so only
 * our side is closed then. Returns the locks that keep others from joining meanwhile. */
static struct ws_locks **spare_others(struct ws_push *p)
{
	struct ws_locks **locks = calloc(p->opts.n_endpoints, sizeof *locks);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (push_to_vllm(p, i) && (!locks || !push_lock_again(p, i, &locks[i])))
			ws_group_forget_member(p->link.group, i);
	return locks;
}

void push_end_group(struct ws_push *p)
{
	struct ws_locks **locks = spare_others(p);
	push_drop_group(p);
	for (size_t i = 0; locks && i < p->opts.n_endpoints; i++)
		ws_locks_drop(locks[i]);
	free(locks);
}

void push_drop_group(struct ws_push *p)
{
	bool *lost = calloc(p->opts.n_endpoints, sizeof *lost);
	char name[128];
	snprintf(name, sizeof name, "%s", ws_group_name(p->link.group));
	for (size_t i = 0; lost && i < p->opts.n_endpoints; i++)
		lost[i] = p->to.endpoints[i].disconnected;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->to.members[i].inside = p->run.weights_dirty || p->to.endpoints[i].left_open ||
		                          p->to.endpoints[i].weights.state == WS_PARTIAL;
	/* Leaving may take no longer than joining. */
	ws_group_close(take_group(p), lost,
	               push_cleanup_deadline(p, p->opts.init_ns < DESTROY_NS ? p->opts.init_ns :
	                                                                       DESTROY_NS));
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].grouped = lost && lost[i];
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.members[i].stays)
			push_warn(p, p->to.endpoints[i].url,
			          "refused to leave group %s, and keeps its memory", name);
	for (size_t i = 0; lost && i < p->opts.n_endpoints; i++)
		if (lost[i] && !p->to.endpoints[i].disconnected)
			push_warn(p, p->to.endpoints[i].url,
			          "did not answer the request to leave group %s: it may be stuck",
			          name);
	free(lost);
}

uint64_t push_sent(const struct ws_push *p)
{
	const struct ws_transport *t = ws_group_transport(p->link.group);
	return t ? t->ops->sent(t, NULL) : 0;
}

int64_t push_first_byte(const struct ws_push *p)
{
	const struct ws_transport *t = ws_group_transport(p->link.group);
	int64_t at = 0;
	if (t)
		t->ops->sent(t, &at);
	return at > p->run.since ? at - p->run.since : 0;
}
