/* SPDX-License-Identifier: Apache-2.0 */
/* push_choose.c - chooses a protocol that all endpoints support, and the load format. */
#include "push_protocol.h"

#include <stdio.h>
#include <string.h>

/* The order in which auto tries them: the most widely supported protocol first. */
static const struct {
	enum ws_protocol asked;
	const struct push_protocol *how;
} protocols[] = {
	{ WS_PROTOCOL_UPDATE, &push_update },
	{ WS_PROTOCOL_SESSION, &push_session },
	{ WS_PROTOCOL_TWO_PHASE, &push_two_phase },
	{ WS_PROTOCOL_RECEIVE, &push_receive },
	{ WS_PROTOCOL_VLLM, &push_vllm },
	{ WS_PROTOCOL_EP_SCATTER, &push_ep_scatter },
};
enum { N_PROTOCOLS = sizeof protocols / sizeof *protocols };

const struct push_protocol *push_protocol_asked(enum ws_protocol asked)
{
	for (size_t i = 0; i < N_PROTOCOLS; i++)
		if (protocols[i].asked == asked)
			return protocols[i].how;
	return &push_update;
}

const struct ws_capabilities *push_can(const struct ws_push *p, size_t i)
{
	return &p->to.infos[i].can;
}

/* The protocols that this endpoint supports: "update, two-phase". */
static void list_taken(const struct ws_push *p, size_t i, char *dst, size_t n)
{
	size_t used = 0;
	dst[0] = 0;
	for (size_t k = 0; k < N_PROTOCOLS && used < n; k++)
		if (protocols[k].how->takes(push_can(p, i)) &&
		    (protocols[k].how != &push_session || push_can(p, i)->session))
			used += (size_t)snprintf(dst + used, n - used, "%s%s", used ? ", " : "",
			                         protocols[k].how->name);
	if (!used)
		snprintf(dst, n, "none that this program speaks");
}

/* The first endpoint that does not support `how`; n_endpoints: all do. */
static size_t find_odd(const struct ws_push *p, const struct push_protocol *how)
{
	size_t i = 0;
	while (i < p->opts.n_endpoints && how->takes(push_can(p, i)))
		i++;
	return i;
}

static int refuse_asked(const struct ws_push *p, size_t odd, struct ws_err *err)
{
	char taken[256];
	list_taken(p, odd, taken, sizeof taken);
	ws_err_set(err, WS_EREFUSED, "%s takes no protocol %s: it has no %s",
	           p->to.endpoints[odd].url, p->protocol->name, p->protocol->routes);
	if (p->opts.stage && !p->protocol->groupless)
		ws_err_hint(err, "use {backend} disk, or push without {stage}");
	else if (p->protocol->groupless)
		ws_err_hint(err, "it takes %s; leave {backend} %s out", taken,
		            p->link.transport->name);
	else
		ws_err_hint(err, "it takes %s; {protocol} auto chooses what all endpoints take",
		            taken);
	return ws_err_where(err, NULL, p->to.endpoints[odd].url);
}

static int refuse_mixture(const struct ws_push *p, struct ws_err *err)
{
	char first[256], other[256];
	size_t odd = 0;
	for (size_t k = 0; k < N_PROTOCOLS && odd == 0; k++)
		odd = find_odd(p, protocols[k].how);
	list_taken(p, 0, first, sizeof first);
	list_taken(p, odd, other, sizeof other);
	if (odd == 0)
		ws_err_set(err, WS_EREFUSED, "%s takes no protocol that this program speaks",
		           p->to.endpoints[0].url);
	else
		ws_err_set(err, WS_EREFUSED,
		           "no protocol suits all endpoints: %s takes %s, but %s takes %s",
		           p->to.endpoints[0].url, first, p->to.endpoints[odd].url, other);
	if (odd)
		ws_err_hint(err, "push to servers of one kind at a time");
	else if (push_can(p, 0)->from_disk) /* sglang before 0.4.9, for one */
		ws_err_hint(err, "it loads from disk: use {backend} disk");
	return ws_err_where(err, NULL, p->to.endpoints[odd].url);
}

int push_choose(struct ws_push *p, struct ws_err *err)
{
	/* Memory that servers open is named by the requests of their family. */
	if (p->protocol == &push_ipc && push_can(p, 0)->transfer)
		p->protocol = &push_vllm_ipc;
	if (p->opts.protocol != WS_PROTOCOL_AUTO || p->protocol->groupless) {
		const size_t odd = find_odd(p, p->protocol);
		return odd < p->opts.n_endpoints ? refuse_asked(p, odd, err) : 0;
	}
	for (size_t k = 0; k < N_PROTOCOLS; k++) {
		if (find_odd(p, protocols[k].how) < p->opts.n_endpoints)
			continue;
		p->protocol = protocols[k].how;
		return 0;
	}
	return refuse_mixture(p, err);
}

/* ---- load formats and versions --------------------------------------------------------------- */

static bool is_mixed(const struct ws_plan *plan)
{
	for (size_t b = 0; b < plan->n_buckets; b++) {
		const struct ws_plan_tensor *t = &plan->tensors[plan->buckets[b].first];
		for (size_t i = 1; i < plan->buckets[b].n; i++)
			if (t[i].dtype != t[0].dtype)
				return true;
	}
	return false;
}

/* The first endpoint that does not support flattened buckets like the plan's; n_endpoints: all do.
 * A server without the field ignores it and waits for one broadcast per tensor. */
static size_t find_plain(const struct ws_push *p)
{
	const bool mixed = p->from.plan && is_mixed(p->from.plan);
	size_t i = 0;
	while (i < p->opts.n_endpoints && push_can(p, i)->load_format &&
	       (!mixed || push_can(p, i)->mixed_bucket))
		i++;
	return i;
}

bool push_takes_any_buckets(const struct ws_push *p)
{
	const struct ws_plan *plan = p->from.plan;
	bool alike = true, mixed = true;
	for (size_t i = 1; i < plan->n_tensors; i++)
		alike = alike && plan->tensors[i].dtype == plan->tensors[0].dtype;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		mixed = mixed && push_can(p, i)->mixed_bucket;
	return plan->format != WS_FORMAT_FLATTENED || (!plan->reordered && (alike || mixed));
}

/* torch's gloo supports few dtypes of single tensors. Every server that supports flattened buckets
 * receives them as uint8. This is also one broadcast instead of hundreds. */
enum ws_load_format push_choose_format(const struct ws_push *p)
{
	/* The first sender decides for the others. */
	if (p->protocol->tensors_only || push_is_worker(p) || p->opts.format == WS_PUSH_FORMAT_NONE)
		return WS_FORMAT_TENSORS;
	if (p->opts.format == WS_PUSH_FORMAT_FLATTENED || p->protocol->files || !p->to.known)
		return WS_FORMAT_FLATTENED;
	return find_plain(p) < p->opts.n_endpoints ? WS_FORMAT_TENSORS : WS_FORMAT_FLATTENED;
}

static int check_format(const struct ws_push *p, struct ws_err *err)
{
	if (p->opts.format != WS_PUSH_FORMAT_FLATTENED)
		return 0;
	if (p->protocol->tensors_only) {
		ws_err_set(err, WS_EREFUSED, "protocol %s knows no load format", p->protocol->name);
		return ws_err_hint(err, "leave {format} out");
	}
	const size_t plain = find_plain(p);
	if (plain == p->opts.n_endpoints)
		return 0;
	const char *url = p->to.endpoints[plain].url;
	if (push_can(p, plain)->load_format)
		ws_err_set(err, WS_EREFUSED, "%s takes flattened buckets of one dtype only", url);
	else
		ws_err_set(err, WS_EREFUSED,
		           "%s does not support flattened buckets: it would wait for broadcasts "
		           "that never come",
		           url);
	ws_err_hint(err, "use {format} none");
	return ws_err_where(err, NULL, url);
}

static int check_version(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; p->from.weight_version && i < p->opts.n_endpoints; i++) {
		if (push_can(p, i)->set_version)
			continue;
		ws_err_set(err, WS_EREFUSED, "%s has no place for a weight version",
		           p->to.endpoints[i].url);
		ws_err_hint(err, "leave {weight_version} out");
		return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	return 0;
}

/* A trainer that counts from 1 again after a restart, or a second one, would replace newer weights,
 * and everybody who compares versions would be wrong from then on. */
static int check_older(const struct ws_push *p, struct ws_err *err)
{
	const char *version = p->turn.has_turn ? p->turn.version : p->from.weight_version;
	for (size_t i = 0; version && !p->opts.allow_older && i < p->opts.n_endpoints; i++) {
		const char *has = p->to.infos[i].weight_version;
		if (!ws_endpoint_is_older(version, has))
			continue;
		ws_err_set(err, WS_EREFUSED, "%s has weight version %s, and %s is older",
		           p->to.endpoints[i].url, has, version);
		ws_err_hint(err, "to go back to it: {allow_older}");
		return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	return 0;
}

/* Refuse now: after the transfer nothing could show whether the weights are right. */
static int check_verify(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; p->opts.verify == WS_VERIFY_HASH && i < p->opts.n_endpoints; i++) {
		if (push_can(p, i)->checksums)
			continue;
		ws_err_set(err, WS_EREFUSED, "%s reports no checksums", p->to.endpoints[i].url);
		ws_err_hint(err, push_to_vllm(p, i) ?
		            "leave {verify} hash out, and compare with wsync-verify logprobs; vLLM "
		            "reports checksums since 0.32" :
		            "leave {verify} hash out, and run wsync-verify weights afterwards, "
		            "which compares samples");
		return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	return 0;
}

int push_legal(struct ws_push *p, struct ws_err *err)
{
	if (!p->to.known)
		return 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (push_refuse_pause(p, i, true, err))
			return -1;
	if (check_format(p, err) || check_version(p, err) || check_older(p, err) ||
	    check_verify(p, err))
		return -1;
	return p->protocol->legal ? p->protocol->legal(p, err) : 0;
}
