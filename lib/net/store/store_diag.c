/* SPDX-License-Identifier: Apache-2.0 */
/* store_diag.c - the state of a rendezvous, for programs (the report) and for people (a
 * paragraph).
 *
 * The paragraph is for an operator whose weights have not arrived: first who is there, then who
 * is missing, who waits for what, and what to check. */
#include "store_core.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED_AT_MOST = 8, LEFT_AT_MOST = 4096 };

/* True if the key belongs to no group of this name. */
static bool is_foreign(const char *key, const char *group)
{
	const size_t n = group ? strlen(group) : 0;
	const char *at = key;
	while (n && (at = strstr(at, group)) && !(at > key && at[-1] == '/' && at[n] == '/'))
		at++;
	return n && !at;
}

static void fill_peer(const struct ws_store_conn *c, int64_t now, struct ws_store_peer *p)
{
	*p = (struct ws_store_peer){ .connected = true, .joined = c->joined, .asked = c->asked,
	                             .rank = c->rank, .sender = c->sender,
	                             .epoch = ws_store_conn_epoch(c), .requests = c->requests };
	memcpy(p->address, c->address, sizeof p->address);
	const struct ws_store_entry *e = ws_store_keys_missing(&c->waiter);
	if (!e)
		return;
	ws_printable(p->waits_for, sizeof p->waits_for, e->key, e->n_key);
	p->waits_kind = ws_store_classify(e->key, e->n_key, c->core->group);
	p->waits_ns = now - c->waits_since;
	p->foreign = is_foreign(p->waits_for, c->core->group);
}

void ws_store_remember_left(const struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	if (core->n_left >= LEFT_AT_MOST)
		return;
	struct ws_store_peer *left = realloc(core->left, (core->n_left + 1) * sizeof *left);
	if (!left)
		return; /* limits the paragraph */
	core->left = left;
	fill_peer(c, core->now, &left[core->n_left]);
	left[core->n_left++].connected = false;
}

int ws_store_core_report(const struct ws_store_core *core, struct ws_store_report *out,
                         struct ws_err *err)
{
	const size_t n = core->n_left + core->n_conns;
	*out = (struct ws_store_report){ .joined = core->joined, .refused = core->refused };
	out->peers = calloc(n + 1, sizeof *out->peers);
	if (!out->peers)
		return ws_err_set(err, WS_ESYSTEM, "store: out of memory");
	const int64_t now = ws_now_ns();
	for (const struct ws_store_conn *c = core->first; c; c = c->next)
		fill_peer(c, now, &out->peers[out->n_peers++]);
	for (size_t i = 0; i < core->n_left; i++)
		out->peers[out->n_peers++] = core->left[i];
	return 0;
}

void ws_store_report_fini(struct ws_store_report *r)
{
	if (!r)
		return;
	free(r->peers);
	*r = (struct ws_store_report){ .peers = NULL };
}

static const char *torch_of(char epoch)
{
	return epoch == 'A' ? ", torch 2.0 or older" : epoch == 'B' ? ", torch 2.1" :
	       epoch == 'C' ? ", torch 2.2 or later" : "";
}

static const char *meaning_of(enum ws_store_key kind)
{
	switch (kind) {
	case WS_KEY_NCCL_ID:
		return " (the NCCL id)";
	case WS_KEY_GLOO_ADDRESS:
	case WS_KEY_GLOO_RANK:
		return " (the gloo address of a rank)";
	case WS_KEY_PG_WRAPPER:
		return " (of TORCH_DISTRIBUTED_DEBUG=DETAIL)";
	case WS_KEY_SCALABLE_ID:
		return " (of NCCL's start from several roots)";
	case WS_KEY_NCCL2:
		return " (of torch's nccl2 backend)";
	case WS_KEY_SEQ_NUM:
		return " (a sequence number)";
	case WS_KEY_BARRIER:
		return " (a barrier among all ranks)";
	case WS_KEY_PYNCCL:
		return " (vLLM's NCCL id)";
	case WS_KEY_INIT:
	case WS_KEY_OTHER:
		break;
	}
	return "";
}

static void put_peer(struct ws_buf *out, const struct ws_store_peer *p, bool in_full)
{
	const char *torch = in_full ? torch_of(p->epoch) : "";
	if (p->sender)
		ws_buf_printf(out, "sender %u (%s)", p->sender, p->address);
	else if (p->rank >= 0)
		ws_buf_printf(out, "rank %d (%s%s)", p->rank, p->address, torch);
	else
		ws_buf_printf(out, "%s%s", p->address, torch);
}

/* Appends the peers that pass the test: "a; b; and 3 more". */
static size_t put_peers(struct ws_buf *out, const struct ws_store_report *r, bool in_full,
                        bool (*pass)(const struct ws_store_peer *p, const void *arg),
                        const void *arg)
{
	size_t n = 0;
	for (size_t i = 0; i < r->n_peers; i++) {
		if (!pass(&r->peers[i], arg) || n++ >= NAMED_AT_MOST)
			continue;
		ws_buf_puts(out, n > 1 ? "; " : "");
		put_peer(out, &r->peers[i], in_full);
	}
	if (n > NAMED_AT_MOST)
		ws_buf_printf(out, "; and %zu more", n - NAMED_AT_MOST);
	return n;
}

static bool is_present(const struct ws_store_peer *p, const void *arg)
{
	(void)arg;
	return p->joined && p->connected;
}

static bool is_gone(const struct ws_store_peer *p, const void *arg)
{
	(void)arg;
	return p->joined && !p->connected;
}

static bool waits_for(const struct ws_store_peer *p, const void *key)
{
	return p->connected && strcmp(p->waits_for, key) == 0;
}

static bool any(const struct ws_store_report *r,
                bool (*pass)(const struct ws_store_peer *p, const void *arg))
{
	for (size_t i = 0; i < r->n_peers; i++)
		if (pass(&r->peers[i], NULL))
			return true;
	return false;
}

static void put_who_is_there(const struct ws_store_core *core, const struct ws_store_report *r,
                             uint16_t port, struct ws_buf *out)
{
	if (core->world_size)
		ws_buf_printf(out, "%u of %u peers have joined the rendezvous on port %u",
		              r->joined, core->world_size - 1, port);
	else
		ws_buf_printf(out, "%u peer%s joined the rendezvous on port %u", r->joined,
		              r->joined == 1 ? " has" : "s have", port);
	if (any(r, is_present)) {
		ws_buf_puts(out, ": ");
		put_peers(out, r, true, is_present, NULL);
	}
	ws_buf_puts(out, ". ");
	if (any(r, is_gone)) {
		ws_buf_puts(out, "Gone again: ");
		put_peers(out, r, true, is_gone, NULL);
		ws_buf_puts(out, ". ");
	}
	if (r->refused)
		ws_buf_printf(out, "%u connection%s or join%s refused. ", r->refused,
		              r->refused == 1 ? "" : "s", r->refused == 1 ? " was" : "s were");
}

static bool is_rank(const struct ws_store_report *r, int rank)
{
	for (size_t i = 0; i < r->n_peers; i++)
		if (r->peers[i].rank == rank)
			return true;
	return false;
}

/* Ranks are only known from gloo keys, so a NCCL group gets no such sentence. */
static void put_missing_ranks(const struct ws_store_core *core, const struct ws_store_report *r,
                              struct ws_buf *out)
{
	unsigned n = 0;
	if (!core->gloo.prefix[0])
		return;
	for (unsigned rank = core->senders; rank < core->world_size; rank++)
		if (!is_rank(r, (int)rank) && n++ < NAMED_AT_MOST)
			ws_buf_printf(out, "%s%u",
			              n == 1 ? "No gloo address has come from rank " : ", ", rank);
	if (n > NAMED_AT_MOST)
		ws_buf_printf(out, " and %u more", n - NAMED_AT_MOST);
	if (n)
		ws_buf_puts(out, ". ");
}

/* Appends one sentence for each key that is waited for. */
static void put_waits(const struct ws_store_report *r, struct ws_buf *out)
{
	unsigned n = 0;
	for (size_t i = 0; i < r->n_peers; i++) {
		const struct ws_store_peer *p = &r->peers[i];
		bool said = !p->connected || !p->waits_for[0];
		int64_t longest = 0;
		for (size_t j = 0; j < r->n_peers && !said; j++) {
			if (!waits_for(&r->peers[j], p->waits_for))
				continue;
			said = j < i;
			longest = r->peers[j].waits_ns > longest ? r->peers[j].waits_ns : longest;
		}
		if (said || n++ >= NAMED_AT_MOST)
			continue;
		char t[32];
		ws_buf_printf(out, "Waiting for \"%s\"%s, up to %s already: ", p->waits_for,
		              meaning_of(p->waits_kind), ws_format_duration(t, sizeof t, longest));
		put_peers(out, r, false, waits_for, p->waits_for);
		ws_buf_puts(out, ". ");
	}
}

static bool is_stranger(const struct ws_store_peer *p, const void *arg)
{
	(void)arg;
	return p->connected && !p->joined && p->epoch != '?';
}

static void put_cause_of_absence(const struct ws_store_report *r, uint16_t port,
                                 struct ws_buf *out)
{
	if (r->joined == 0 && !any(r, is_stranger))
		ws_buf_printf(
			out,
			"Nobody has reached us: either no server has acted on the init request "
			"yet (it may be busy generating), or the servers cannot reach the address "
			"they were given. A loopback or container address is good for this machine "
			"only; a firewall must let port %u in.",
			port);
	else if (r->joined == 0)
		ws_buf_puts(
			out,
			"Something connected but did not join, as torch always does at once: see "
			"what else uses this port.");
	else
		ws_buf_puts(
			out,
			"Whoever is missing was not asked, is still busy, or does not exist: the "
			"world size is 1 for us and 1 for each tensor-parallel rank of every "
		        "endpoint. "
			"Look at the log of the endpoints whose addresses are not in the list.");
}

/* The wait that explains most: for keys of other groups first, then unknown keys, then any. */
static const struct ws_store_peer *most_telling_wait(const struct ws_store_report *r)
{
	const struct ws_store_peer *best = NULL;
	int best_worth = 0;
	for (size_t i = 0; i < r->n_peers; i++) {
		const struct ws_store_peer *p = &r->peers[i];
		if (!p->connected || !p->waits_for[0])
			continue;
		const int worth = p->foreign ? 3 : p->waits_kind == WS_KEY_OTHER ? 2 : 1;
		if (worth > best_worth)
			best = p;
		best_worth = worth > best_worth ? worth : best_worth;
	}
	return best;
}

static void put_cause_of_wait(const struct ws_store_core *core, const struct ws_store_peer *p,
                              struct ws_buf *out)
{
	struct ws_store_gloo_key g;
	const struct ws_bytes key = { p->waits_for, strlen(p->waits_for) };

	if (p->foreign)
		ws_buf_printf(
			out,
			"\"%s\" does not belong to group '%s': who asks for it is a process of an "
			"earlier attempt, or was given another group name.",
			p->waits_for, core->group);
	else if (ws_store_gloo_key(key, core->group, &g))
		ws_buf_printf(
			out,
			g.rank ? "All wait for rank %d to publish its gloo address: that process "
				 "has not come so far, or has died." :
				 "They wait for our own gloo address (rank %d): we have not "
		                 "published it.",
			g.rank);
	else if (p->waits_kind == WS_KEY_NCCL_ID)
		ws_buf_puts(
			out,
			"The NCCL id is set by us, and we have not set it: NCCL was not loaded or "
			"failed on this side.");
	else
		ws_buf_printf(
			out,
			"We know nothing of \"%s\": the server runs a backend or an option that is "
			"not supported.",
			p->waits_for);
}

static void put_cause(const struct ws_store_core *core, const struct ws_store_report *r,
                      uint16_t port, struct ws_buf *out)
{
	const struct ws_store_peer *wait = most_telling_wait(r);
	if (core->trouble.code != WS_OK) {
		ws_buf_printf(out, "The cause: %s.", core->trouble.msg);
		if (core->trouble.hint[0])
			ws_buf_printf(out, " Remedy: %s.", core->trouble.hint);
	} else if (r->joined == 0 || (core->world_size && r->joined + 1 < core->world_size)) {
		put_cause_of_absence(r, port, out);
	} else if (wait) {
		put_cause_of_wait(core, wait, out);
	} else {
		ws_buf_puts(
			out,
			"All are here and none waits for anything of this store, so the delay is "
			"elsewhere: a firewall between the ranks (they connect to each other on "
			"any port), an interface that others cannot reach (NCCL_SOCKET_IFNAME, "
			"GLOO_SOCKET_IFNAME), or a server whose default group is bound to its "
			"device and which splits that communicator instead of asking for our NCCL "
			"id.");
	}
}

void ws_store_core_explain(const struct ws_store_core *core, uint16_t port, struct ws_buf *out)
{
	struct ws_store_report r;
	if (ws_store_core_report(core, &r, NULL)) {
		ws_buf_printf(out, "%u peers have joined the rendezvous on port %u.", core->joined,
		              port);
		return;
	}
	put_who_is_there(core, &r, port, out);
	put_missing_ranks(core, &r, out);
	put_waits(&r, out);
	put_cause(core, &r, port, out);
	ws_store_report_fini(&r);
}
