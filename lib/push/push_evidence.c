/* SPDX-License-Identifier: Apache-2.0 */
/* push_evidence.c - fills the record of what a push has established of each server: it alone, and
 * once, when the states of the endpoints are final. */
#include "push_protocol.h"

#include <stdio.h>
#include <string.h>

static enum ws_names_by names_by(const struct ws_name_check_run *r)
{
	return r->checked    ? (r->by_list      ? WS_NAMES_BY_LIST :
	                        r->by_reference ? WS_NAMES_BY_REFERENCE :
	                                          WS_NAMES_BY_RULES) :
	       r->own_config ? WS_NAMES_BY_OWN_CONFIG :
	                       WS_NAMES_BY_NOTHING;
}

struct ws_evidence push_evidence(const struct ws_push *p, size_t i)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	const struct ws_endpoint_info *info = &p->to.infos[i];
	const struct ws_name_check_run *names = &p->checks.names;
	struct ws_evidence out = {
		.identity = info->identity,
		.end = e->end == WS_END_SAME && e->start_unknown ? WS_END_UNTOLD : e->end,
		.family = ws_lineage_family(info->lineage),
		.group_alive = p->link.group && ws_group_alive(p->link.group),
		.label_set = e->label_moved && !e->start_unknown, .label_read = e->label_read,
		.names = names_by(names),
		.names_ok = names->checked && !names->found.errors,
		.values_read = p->checks.values_read,
		.whole = e->weights.state == WS_COMMITTED, .closed = !e->weights.scope_open,
		.proven = e->proof.proven_bytes,
		.not_sent = e->proof.not_sent_bytes, .different = e->proof.different,
		.format = { e->format.keeps, e->format.sends, e->format.verdict, e->format.by },
		.caches = e->caches, .draft = e->draft, .adapters = e->adapters,
		.asleep = push_is_asleep(e), .staged = p->opts.stage && e->staged,
	};
	snprintf(out.against, sizeof out.against, "%.95s", names->against);
	if (e->proof.bytes > e->proof.proven_bytes + out.not_sent)
		out.opaque = e->proof.bytes - e->proof.proven_bytes - out.not_sent;
	out.proven_by_readback = e->coverage >= 0 && !e->proof.bytes;
	return out;
}

static bool caches_are_clear(const struct push_endpoint *e)
{
	for (int k = 0; k < WS_N_CACHES; k++)
		if (e->caches.of[k].fact == WS_CACHE_OLD || e->caches.of[k].fact == WS_CACHE_UNTOLD)
			return false;
	return !e->unflushed;
}

unsigned push_established(const struct ws_push *p, size_t i)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	const bool right = e->format.verdict && strcmp(e->format.verdict, "right") == 0;
	const bool bytes = p->opts.verify == WS_VERIFY_HASH && e->coverage >= 0 && !e->not_covered;
	return (p->checks.names.checked ? WS_REQUIRE_NAMES : 0) |
	       (right ? WS_REQUIRE_FORMAT : 0) | (bytes ? WS_REQUIRE_BYTES : 0) |
	       (caches_are_clear(e) ? WS_REQUIRE_CACHES : 0) |
	       (p->checks.values_read ? WS_REQUIRE_VALUES : 0);
}
