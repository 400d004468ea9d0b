/* SPDX-License-Identifier: Apache-2.0 */
/* hang_text.c - writes the facts of a hang: as sentences, as one line during the wait, as names. */
#include "hang_core.h"

#include "wsync/clock.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>

enum { NUM = 32, ENDPOINTS = 6, PEERS = 4, FED = 8, TEXT = 8192 };

const char *const ws_hang_request_names[] = { NULL,        "connecting", "sending", "sent",
	                                      "answering", "answered",   "broken" };
const char *const ws_hang_probe_names[] = { NULL, "refused", "unreached", "silent", "answers" };
const char *const ws_hang_store_names[] = { "absent", "joined", "asked", "left" };
const char *const ws_hang_link_names[] = { NULL, "apart", "linked", "lost" };

/* ---- lists ---- */

/* Returns the last of the consecutive passing ranks from rank i on; i - 1 if rank i fails. */
static size_t end_of_run(const struct ws_hang *h, hang_test test, size_t endpoint, size_t i)
{
	while (i < h->n_ranks && h->ranks[i].endpoint == endpoint && test(h, i))
		i++;
	return i - 1;
}

/* Writes the ranks that pass, as "ranks 3 to 5, 8 of http://a". False: no rank passes. */
static bool put_ranks_of(const struct ws_hang *h, hang_test test, size_t endpoint,
                         const char *between, struct ws_buf *out)
{
	struct ws_buf list;
	size_t n = 0;
	ws_buf_init(&list, TEXT);
	for (size_t i = 0; i < h->n_ranks; i++) {
		const size_t last = end_of_run(h, test, endpoint, i);
		if (last + 1 == i)
			continue;
		ws_buf_printf(&list, "%s%zu", n ? ", " : "", i + 1);
		if (last > i)
			ws_buf_printf(&list, "%s%zu", last > i + 1 ? " to " : ", ", last + 1);
		n += last - i + 1;
		i = last;
	}
	if (n)
		ws_buf_printf(out, "%srank%s %s of %s", between, n == 1 ? "" : "s",
		              ws_buf_str(&list), h->endpoints[endpoint].url);
	ws_buf_free(&list);
	return n;
}

/* Likewise for all endpoints: "ranks 3 to 5 of http://a; rank 9 of http://b". */
static bool put_ranks(const struct ws_hang *h, hang_test test, struct ws_buf *out)
{
	struct ws_buf rest;
	size_t named = 0;
	ws_buf_init(&rest, TEXT);
	/* index n_endpoints stands for the other senders */
	for (size_t e = 0; e <= h->n_endpoints && h->n_ranks; e++)
		named += put_ranks_of(h, test, e, named ? "; " : "",
		                      named < ENDPOINTS ? out : &rest);
	ws_buf_free(&rest);
	if (named > ENDPOINTS)
		ws_buf_printf(out, "; and of %zu more endpoint%s", named - ENDPOINTS,
		              named - ENDPOINTS == 1 ? "" : "s");
	return named;
}

/* "http://a, http://b and 3 more". */
static void put_urls(const struct ws_hang *h, hang_test test, struct ws_buf *out)
{
	size_t n = 0;
	for (size_t i = 0; i < h->n_endpoints; i++)
		if (test(h, i) && n++ < ENDPOINTS)
			ws_buf_printf(out, "%s%s", n > 1 ? ", " : "", h->endpoints[i].url);
	if (n > ENDPOINTS)
		ws_buf_printf(out, " and %zu more", n - ENDPOINTS);
}

/* ---- a cause ---- */

static void put_who(const struct ws_hang *h, hang_test endpoint, hang_test rank,
                    struct ws_buf *out)
{
	if (rank && put_ranks(h, rank, out))
		return;
	ws_buf_puts(out, rank ? "some ranks of " : "");
	if (endpoint)
		put_urls(h, endpoint, out);
}

void hang_fill(char *dst, size_t n, const struct ws_hang *h, hang_test endpoint, hang_test rank,
               const char *text)
{
	const struct ws_hang_peer *peer = h->peers;
	char port[NUM], still[NUM], starved[NUM], waited[NUM], longer[96] = "";
	struct ws_buf who, out;
	ws_buf_init(&who, TEXT);
	ws_buf_init(&out, TEXT);
	put_who(h, endpoint, rank, &who);
	while (peer && peer < h->peers + h->n_peers && !peer->foreign)
		peer++;
	const bool foreign = peer && peer < h->peers + h->n_peers;
	snprintf(port, sizeof port, "%u", (unsigned)h->port);
	if (h->field)
		snprintf(longer, sizeof longer, "; {%s} gives it longer", h->field);
	const struct { const char *name, *value; } facts[] = {
		{ "{who}", ws_buf_str(&who) },
		{ "{peer}", foreign ? peer->address : "a peer" },
		{ "{key}", foreign ? peer->waits_for : "" },
		{ "{address}", h->address },
		{ "{port}", port },
		{ "{group}", h->group },
		{ "{still}", ws_format_duration(still, NUM, h->still_ns) },
		{ "{starved}", ws_format_duration(starved, NUM, h->starved_ns) },
		{ "{waited}", ws_format_duration(waited, NUM, h->waited_ns) },
		{ "{ifname}", hang_is_nccl(h) ? "NCCL_SOCKET_IFNAME" : "GLOO_SOCKET_IFNAME" },
		{ "{longer}", longer },
	};
	while (*text) {
		const size_t plain = strcspn(text, "{");
		ws_buf_add(&out, text, plain);
		text += plain;
		const size_t length = *text ? strcspn(text, "}") + 1 : 0;
		size_t i = 0;
		while (i < sizeof facts / sizeof *facts &&
		       strncmp(text, facts[i].name, strlen(facts[i].name)) != 0)
			i++;
		if (i < sizeof facts / sizeof *facts)
			ws_buf_puts(&out, facts[i].value);
		else
			ws_buf_add(&out, text, length); /* a field of options, see err.h */
		text += length;
	}
	snprintf(dst, n, "%s", ws_buf_str(&out));
	ws_buf_free(&who);
	ws_buf_free(&out);
}

/* ---- forming ---- */

/* Absent, and no peer without a rank number can be this rank. */
OF_RANK(is_unseen, r->store == WS_HANG_ABSENT && !h->endpoints[r->endpoint].unnamed && !h->loose)
OF_RANK(is_joined, r->store == WS_HANG_JOINED)
OF_RANK(has_left, r->store == WS_HANG_LEFT)
OF_RANK(has_asked_unlinked, r->store == WS_HANG_ASKED && r->link != WS_HANG_LINKED)
OF_RANK(is_linked, r->link == WS_HANG_LINKED)

static const struct {
	hang_test test;
	const char *gloo, *nccl;
} standings[] = {
	{ is_unseen, "not at the store", "not at the store" },
	{ is_joined, "at the store, without an address of their own",
	  "at the store, not asking for the id" },
	{ has_left, "left the store again", "left the store again" },
	{ has_asked_unlinked, "published an address, not connected yet",
	  "asked for the NCCL id, not connected" },
	{ is_linked, "connected", "connected" },
};
enum { STANDINGS = sizeof standings / sizeof standings[0] };

static const char *standing_words(const struct ws_hang *h, size_t i)
{
	return hang_is_nccl(h) ? standings[i].nccl : standings[i].gloo;
}

static void put_standings(const struct ws_hang *h, struct ws_buf *out)
{
	for (size_t i = 0; i < STANDINGS; i++) {
		if (!hang_count(h, h->n_ranks, standings[i].test))
			continue;
		ws_buf_printf(out, "; %s: ", standing_words(h, i));
		put_ranks(h, standings[i].test, out);
	}
	for (size_t i = 0; i < h->n_endpoints; i++)
		if (h->endpoints[i].unnamed)
			ws_buf_printf(out,
			              "; at the store, not known which: %u of the %u ranks of %s",
			              h->endpoints[i].unnamed, h->endpoints[i].n_ranks,
			              h->endpoints[i].url);
}

static void put_peers(const struct ws_hang *h, struct ws_buf *out)
{
	size_t n = 0;
	for (size_t i = 0; i < h->n_peers; i++) {
		const struct ws_hang_peer *p = &h->peers[i];
		/* put_group has counted the members that joined. */
		if (p->joined && !p->foreign && !h->loose)
			continue;
		if (n++ >= PEERS)
			continue;
		ws_buf_printf(out, "%s%s (%s", n == 1 ? " Also at the store: " : ", ", p->address,
		              p->joined ? "joined" : p->connected ? "did not join" : "left");
		if (p->waits_for[0])
			ws_buf_printf(out, ", waits for \"%s\"%s", p->waits_for,
			              p->foreign ? " of another group" : "");
		ws_buf_puts(out, ")");
	}
	if (n > PEERS)
		ws_buf_printf(out, " and %zu more", n - PEERS);
	if (n)
		ws_buf_puts(out, ".");
}

static void put_group(const struct ws_hang *h, struct ws_buf *out)
{
	ws_buf_printf(out, " %u of %u ranks have joined group %s (%s) at %s port %u", h->joined,
	              h->world_size - 1, h->group, h->backend, h->address, (unsigned)h->port);
	put_standings(h, out);
	ws_buf_puts(out, ".");
	put_peers(h, out);
}

/* ---- moving ---- */

static void put_taken(const struct ws_hang *h, size_t i, struct ws_buf *out)
{
	const struct ws_hang_rank *r = &h->ranks[i];
	char part[NUM];
	ws_buf_printf(out, "rank %zu of %s %s%s", i + 1, h->endpoints[r->endpoint].url,
	              r->link == WS_HANG_LINK_LOST ? "is lost, after " : "took ",
	              r->taken == 0         ? "nothing"
	              : r->taken < r->due ? ws_format_size(part, NUM, r->taken) : "all");
}

static void put_movement(const struct ws_hang *h, struct ws_buf *out)
{
	char size[NUM], time[NUM];
	size_t fed = 0, left = 0, lag = 0;
	for (size_t i = 0; i < h->n_ranks; i++) {
		left += h->ranks[i].due > 0;
		lag += h->ranks[i].taken < h->ranks[i].due;
	}
	ws_buf_printf(out, " Of %s, %s", h->what, ws_format_size(size, NUM, h->bytes));
	/* If a rank lags, the ranks that took everything are only counted, below. */
	for (size_t i = 0; i < h->n_ranks && fed < FED; i++) {
		if (!h->ranks[i].due || (lag && h->ranks[i].taken >= h->ranks[i].due))
			continue;
		ws_buf_puts(out, fed++ ? "; " : ", ");
		put_taken(h, i, out);
	}
	if (lag && lag < left)
		ws_buf_printf(out, "; the other%s that we feed took all",
		              left - lag == 1 ? "" : "s");
	if (lag && h->still_ns > 0)
		ws_buf_printf(out, "; nothing moved for %s",
		              ws_format_duration(time, NUM, h->still_ns));
	if (h->starved_ns > 0)
		ws_buf_printf(out, "; our source had no bytes ready for %s of that time",
		              ws_format_duration(time, NUM, h->starved_ns));
	ws_buf_puts(out, ".");
}

/* ---- endpoints ---- */

static void put_request(const struct ws_hang_endpoint *e, bool timed, struct ws_buf *out)
{
	static const char *const states[] = { "",     "not connected",  "being sent",
		                              "sent", "being answered", "",
		                              "" };
	char time[NUM];
	if (e->request == WS_HANG_NO_REQUEST)
		ws_buf_puts(out, "no request sent");
	else if (e->request == WS_HANG_ANSWERED)
		ws_buf_printf(out, "%s answered (HTTP %ld)", e->route, e->status);
	else if (e->request == WS_HANG_BROKEN)
		ws_buf_printf(out, "%s broken off", e->route);
	else
		ws_buf_printf(out, "%s %s, no answer%s%s", e->route, states[e->request],
		              timed ? " in " : "",
		              timed ? ws_format_duration(time, NUM, e->request_ns) : "");
}

static void put_probes(const struct ws_hang_endpoint *e, struct ws_buf *out)
{
	static const char *const says[] = { "", "is refused a connection", "finds no connection",
		                            "is not answered", "is answered" };
	if (e->front == WS_HANG_NOT_PROBED)
		return;
	ws_buf_printf(out, ", /model_info %s now", says[e->front]);
	if (e->health == WS_HANG_ANSWERS && e->health_status)
		ws_buf_printf(out, " and /health with HTTP %ld", e->health_status);
	else if (e->health != e->front && e->health != WS_HANG_NOT_PROBED)
		ws_buf_printf(out, " and /health %s", says[e->health]);
}

static void put_endpoint(const struct ws_hang *h, size_t i, struct ws_buf *out)
{
	const struct ws_hang_endpoint *e = &h->endpoints[i];
	ws_buf_printf(out, " %s: ", e->url);
	put_request(e, true, out);
	if (h->wait == WS_HANG_MOVING && h->buckets)
		ws_buf_printf(out, ", %zu of %zu answered before", e->buckets, h->buckets);
	put_probes(e, out);
	ws_buf_puts(out, ".");
}

static void put_endpoints(const struct ws_hang *h, struct ws_buf *out)
{
	size_t n = 0;
	const size_t awaited = hang_count(h, h->n_endpoints, hang_is_awaited);
	for (size_t i = 0; i < h->n_endpoints && n < ENDPOINTS; i++) {
		if (awaited && !hang_is_awaited(h, i))
			continue;
		n++;
		put_endpoint(h, i, out);
	}
	if (awaited > n)
		ws_buf_printf(out, " %zu more endpoint%s not answered.", awaited - n,
		              awaited - n == 1 ? " has" : "s have");
	if (awaited && awaited < h->n_endpoints)
		ws_buf_printf(out, " %zu other endpoint%s not waited for.",
		              h->n_endpoints - awaited,
		              h->n_endpoints - awaited == 1 ? " was" : "s were");
}

void ws_hang_tell(const struct ws_hang *h, struct ws_buf *out)
{
	char time[NUM];
	ws_buf_printf(out, "waited %s", ws_format_duration(time, NUM, h->waited_ns));
	if (h->field && h->end == WS_HANG_DEADLINE)
		ws_buf_printf(out, " ({%s})", h->field);
	ws_buf_printf(out, " in phase %s.", ws_phase_name(h->phase));
	if (h->wait == WS_HANG_FORMING)
		put_group(h, out);
	if (h->wait == WS_HANG_MOVING && h->bytes)
		put_movement(h, out);
	put_endpoints(h, out);
}

/* ---- in one line ---- */

OF_RANK(lags, r->taken < r->due)

static bool brief_forming(const struct ws_hang *h, struct ws_buf *out)
{
	for (size_t i = 0; i + 1 < STANDINGS; i++) {
		if (!put_ranks(h, standings[i].test, out))
			continue;
		ws_buf_printf(out, ": %s", standing_words(h, i));
		return true;
	}
	if (h->joined + 1 >= h->world_size)
		return false;
	ws_buf_printf(out, "%u more ranks at %s port %u: %u of %u have come",
	              h->world_size - 1 - h->joined, h->address, (unsigned)h->port, h->joined,
	              h->world_size - 1);
	return true;
}

static bool brief_moving(const struct ws_hang *h, struct ws_buf *out)
{
	char done[NUM], all[NUM];
	uint64_t least = h->bytes;
	for (size_t i = 0; i < h->n_ranks; i++)
		if (lags(h, i) && h->ranks[i].taken < least)
			least = h->ranks[i].taken;
	if (!put_ranks(h, lags, out))
		return false;
	ws_buf_printf(out, ": took %s of %s, %s",
	              least ? ws_format_size(done, NUM, least) : "nothing",
	              ws_format_size(all, NUM, h->bytes), h->what);
	return true;
}

static bool brief_answer(const struct ws_hang *h, struct ws_buf *out)
{
	for (size_t i = 0; i < h->n_endpoints; i++) {
		if (!hang_is_awaited(h, i))
			continue;
		put_urls(h, hang_is_awaited, out);
		ws_buf_puts(out, ": ");
		put_request(&h->endpoints[i], false, out);
		return true;
	}
	return false;
}

void ws_hang_tell_briefly(const struct ws_hang *h, struct ws_buf *out)
{
	char time[NUM];
	const int64_t s = (h->waited_ns + WS_NS_PER_S / 2) / WS_NS_PER_S;
	/* Whole seconds are enough from 10 s on. The first event may come some ms early. */
	if (s >= 10)
		ws_buf_printf(out, "waiting %lld s for ", (long long)s);
	else
		ws_buf_printf(out, "waiting %s for ", ws_format_duration(time, NUM, h->waited_ns));
	if ((h->wait == WS_HANG_FORMING && brief_forming(h, out)) ||
	    (h->wait == WS_HANG_MOVING && brief_moving(h, out)) ||
	    (h->wait != WS_HANG_OURSELVES && brief_answer(h, out)))
		return;
	ws_buf_printf(out, "our own work in phase %s", ws_phase_name(h->phase));
}

void ws_hang_fini(struct ws_hang *h)
{
	if (!h)
		return;
	free(h->endpoints);
	free(h->ranks);
	free(h->peers);
	*h = (struct ws_hang){ .endpoints = NULL };
}
