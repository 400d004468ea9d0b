/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog_collect.c - collects the facts of this moment: requests, the store, the data plane. */
#include "watchdog_state.h"

#include "group_state.h"
#include "sock.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEERS = 64 };

/* ---- endpoints ------------------------------------------------------------------------------- */

static int add_endpoints(const struct ws_watchdog *x, struct ws_hang *h)
{
	h->endpoints = calloc(x->opts.n + 1, sizeof *h->endpoints);
	if (!h->endpoints)
		return -1;
	h->n_endpoints = x->opts.n;
	h->endpoints[x->opts.n].url = "the senders";
	for (size_t i = 0; i < x->opts.n; i++) {
		const struct watchdog_seen *s = &x->seen[i];
		struct ws_hang_endpoint *e = &h->endpoints[i];
		*e = (struct ws_hang_endpoint){ .url = x->opts.urls[i], .request = s->request,
			                        .request_ns = s->ns, .status = s->status,
			                        .buckets = x->n_arrived };
		ws_printable(e->route, sizeof e->route, s->route, strlen(s->route));
	}
	return 0;
}

/* Returns the age of the oldest pending request; -1 if no request is pending. */
static int64_t longest_request(const struct ws_hang *h)
{
	int64_t longest = -1;
	for (size_t i = 0; i < h->n_endpoints; i++) {
		const struct ws_hang_endpoint *e = &h->endpoints[i];
		if (e->request != WS_HANG_NO_REQUEST && e->request < WS_HANG_ANSWERED &&
		    e->request_ns > longest)
			longest = e->request_ns;
	}
	return longest;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int add_ranks(const struct ws_group *g, struct ws_hang *h)
{
	h->ranks = calloc(g->world_size, sizeof *h->ranks);
	if (!h->ranks)
		return -1;
	h->n_ranks = g->world_size - 1;
	for (size_t r = 0; r < h->n_ranks; r++)
		h->ranks[r].endpoint = h->n_endpoints;
	for (size_t i = 0; i < g->opts.n_members && i < h->n_endpoints; i++) {
		const struct ws_member *m = &g->opts.members[i];
		h->endpoints[i].rank_offset = m->rank_offset;
		h->endpoints[i].n_ranks = m->ranks;
		for (unsigned r = m->rank_offset; r < m->rank_offset + m->ranks; r++)
			h->ranks[r - 1].endpoint = i;
	}
	return 0;
}

static void look_at_transport(const struct ws_group *g, struct ws_hang *h)
{
	const struct ws_transport *t = g->transport;
	for (size_t i = 0; t && t->ops->look && i < h->n_ranks; i++) {
		struct ws_rank_status s = { .link = WS_HANG_LINK_UNKNOWN };
		t->ops->look(t, (unsigned)i + 1, &s, &h->starved_ns);
		h->ranks[i].link = s.link;
		h->ranks[i].due = s.due;
		h->ranks[i].taken = s.sent;
	}
}

/* ---- the store ------------------------------------------------------------------------------- */

/* Whether peer, "10.0.0.2:41234" or "[::1]:41234", has the address "10.0.0.2" or "::1". */
static bool is_from(const char *peer, const char *address)
{
	const size_t n = strlen(address);
	const bool bracket = peer[0] == '[';
	return n && strncmp(peer + bracket, address, n) == 0 &&
	       peer[bracket + n] == (bracket ? ']' : ':');
}

/* Counts a peer for the endpoint with its address, if only one endpoint has that address. */
static void attribute(const struct ws_watchdog *x, const struct ws_store_peer *p, struct ws_hang *h)
{
	size_t found = 0, whose = 0;
	for (size_t i = 0; i < h->n_endpoints; i++)
		if (is_from(p->address, x->seen[i].address)) {
			found++;
			whose = i;
		}
	if (found == 1)
		h->endpoints[whose].unnamed++;
	else
		h->loose++;
}

static void note_rank(const struct ws_store_peer *p, struct ws_hang_rank *r)
{
	if (!p->connected && r->store != WS_HANG_ABSENT)
		return; /* the rank's state comes from another connection */
	r->store = !p->connected ? WS_HANG_LEFT : p->asked ? WS_HANG_ASKED : WS_HANG_JOINED;
	memcpy(r->address, p->address, sizeof r->address);
	memcpy(r->waits_for, p->waits_for, sizeof r->waits_for);
}

static void note_peer(const struct ws_watchdog *x, const struct ws_store_peer *p, struct ws_hang *h)
{
	if (!p->joined && p->epoch == '?')
		return; /* the second connection of an old torch, or nothing was received yet */
	if (p->joined && p->connected && !p->foreign)
		attribute(x, p, h);
	if (h->n_peers == PEERS)
		return;
	struct ws_hang_peer *to = &h->peers[h->n_peers++];
	*to = (struct ws_hang_peer){ .joined = p->joined,
		                     .connected = p->connected,
		                     .asked = p->asked,
		                     .foreign = p->foreign };
	memcpy(to->address, p->address, sizeof to->address);
	memcpy(to->waits_for, p->waits_for, sizeof to->waits_for);
}

/* If an endpoint has as many unnamed peers as absent ranks, those peers are those ranks. */
static void name_the_rest(const struct ws_watchdog *x, size_t i, struct ws_hang *h)
{
	struct ws_hang_endpoint *e = &h->endpoints[i];
	unsigned absent = 0, asked = 0;
	for (size_t r = 0; r < h->n_ranks; r++)
		absent += h->ranks[r].endpoint == i && h->ranks[r].store == WS_HANG_ABSENT;
	for (size_t k = 0; k < h->n_peers; k++)
		asked += h->peers[k].asked && is_from(h->peers[k].address, x->seen[i].address);
	if (!absent || e->unnamed != absent || (asked && asked != absent))
		return;
	for (size_t r = 0; r < h->n_ranks; r++)
		if (h->ranks[r].endpoint == i && h->ranks[r].store == WS_HANG_ABSENT)
			h->ranks[r].store = asked ? WS_HANG_ASKED : WS_HANG_JOINED;
	e->unnamed = 0;
}

static int look_at_store(const struct ws_watchdog *x, const struct ws_group *g, struct ws_hang *h)
{
	struct ws_store_report r = { 0 };
	h->peers = calloc(PEERS, sizeof *h->peers);
	if (!h->peers || ws_store_report(g->store, &r, NULL))
		return -1;
	h->joined = r.joined;
	for (size_t i = 0; i < r.n_peers; i++) {
		const struct ws_store_peer *p = &r.peers[i];
		const size_t rank = p->sender ? p->sender - 1 : p->rank > 0 ? (size_t)p->rank : 0;
		if (rank && rank <= h->n_ranks)
			note_rank(p, &h->ranks[rank - 1]);
		else
			note_peer(x, p, h);
	}
	ws_store_report_fini(&r);
	for (size_t i = 0; i < h->n_endpoints; i++)
		name_the_rest(x, i, h);
	return 0;
}

static int look_at_group(const struct ws_watchdog *x, struct ws_hang *h)
{
	const struct ws_together *w = x->wait;
	const struct ws_group *g = w->group;
	const int64_t now = ws_now_ns();
	if (add_ranks(g, h) || look_at_store(x, g, h))
		return -1;
	look_at_transport(g, h);
	/* A lazy server joins with the first bucket. Until then the wait is for
	 * ranks, not for bytes. */
	const bool stands = h->n_ranks && h->ranks[0].link == WS_HANG_LINKED;
	h->wait = w->joining || (!stands && strcmp(g->opts.ops->name, "nccl") == 0) ?
	                  WS_HANG_FORMING :
	                  WS_HANG_MOVING;
	h->waited_ns = now - x->wait_since;
	h->still_ns = now - x->moved_at;
	snprintf(h->what, sizeof h->what, "%s", w->what);
	ws_printable(h->group, sizeof h->group, g->name, strlen(g->name));
	snprintf(h->backend, sizeof h->backend, "%s", g->opts.ops->name);
	snprintf(h->address, sizeof h->address, "%.63s", g->host);
	(void)ws_host_is_loopback(g->literal, 0, NULL, &h->loopback, NULL);
	h->port = ws_store_port(g->store);
	h->world_size = g->world_size;
	if (h->wait == WS_HANG_FORMING)
		return 0;
	h->bucket = x->bucket;
	h->buckets = x->buckets;
	h->bytes = x->bytes;
	h->flush = x->flush;
	return 0;
}

/* ---- limits, and all facts ------------------------------------------------------------------- */

static bool has_just_passed(const struct ws_watchdog_limit *l, int64_t waited_ns)
{
	const int64_t off = waited_ns > l->ns ? waited_ns - l->ns : l->ns - waited_ns;
	return l->until ? ws_deadline_passed(l->until) : off < l->ns / 20 + WS_NS_PER_S / 4;
}

/* Names the limit that ended the wait: the first one that has just passed, else the likeliest. */
static void name_limit(const struct ws_watchdog *x, struct ws_hang *h)
{
	const struct ws_watchdog_limit *best = x->n_limits ? &x->limits[0] : NULL;
	for (size_t i = x->n_limits; i > 0; i--)
		if (has_just_passed(&x->limits[i - 1], h->waited_ns))
			best = &x->limits[i - 1];
	if (best) {
		h->field = best->field;
		h->limit_ns = best->ns;
	}
}

int watchdog_collect(struct ws_watchdog *x, enum ws_hang_end end, struct ws_hang *h)
{
	*h = (struct ws_hang){ .end = end, .phase = x->phase };
	if (add_endpoints(x, h))
		goto fail;
	const int64_t asked = longest_request(h);
	if (x->wait) {
		if (look_at_group(x, h))
			goto fail;
	} else {
		h->wait = asked >= 0 ? WS_HANG_ANSWER : WS_HANG_OURSELVES;
		h->waited_ns = asked >= 0 ? asked : ws_now_ns() - x->phase_since;
	}
	name_limit(x, h);
	return 0;
fail:
	ws_hang_fini(h);
	return -1;
}
