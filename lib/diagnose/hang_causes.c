/* SPDX-License-Identifier: Apache-2.0 */
/* hang_causes.c - finds the likely cause of a hang: the first row that matches its facts.
 *
 * Rows are ordered by certainty: observations (a process ended, a key of another group) precede
 * conclusions (no rank connected, so the address may be wrong). */
#include "hang_core.h"

#include "wsync/clock.h"

#define OF_HANG(name, ...) \
	static bool name(const struct ws_hang *h, size_t i) \
	{ \
		(void)i; \
		return __VA_ARGS__; \
	}

/* ---- endpoints ---- */

static unsigned count_ranks(const struct ws_hang *h, size_t endpoint, enum ws_hang_store store)
{
	unsigned n = 0;
	for (size_t i = 0; i < h->n_ranks; i++)
		n += h->ranks[i].endpoint == endpoint && h->ranks[i].store == store;
	return n;
}

/* Counts the ranks of endpoint i that are at the store. */
static unsigned present(const struct ws_hang *h, size_t i)
{
	return h->endpoints[i].unnamed + count_ranks(h, i, WS_HANG_JOINED) +
	       count_ranks(h, i, WS_HANG_ASKED);
}

OF_ENDPOINT(is_gone, e->front == WS_HANG_REFUSED)
OF_ENDPOINT(broke_off, e->request == WS_HANG_BROKEN)
OF_ENDPOINT(is_stopped, e->front == WS_HANG_SILENT && hang_is_awaited(h, i) &&
            e->request != WS_HANG_CONNECTING && h->phase != WS_PHASE_CONNECT)
OF_ENDPOINT(is_connecting, e->request == WS_HANG_CONNECTING)
OF_ENDPOINT(is_sending, e->request == WS_HANG_SENDING)
OF_ENDPOINT(has_accepted, e->n_ranks && e->request == WS_HANG_ANSWERED && e->status == 200)
OF_ENDPOINT(is_all_absent, e->n_ranks && !present(h, i) && !h->loose)
OF_ENDPOINT(is_partly_there, present(h, i) && present(h, i) < e->n_ranks)
/* Awaited; all its ranks may be at the store, and none is known to have only joined. */
OF_ENDPOINT(is_joining, hang_is_awaited(h, i) && e->n_ranks &&
            !count_ranks(h, i, WS_HANG_JOINED) && present(h, i) + h->loose >= e->n_ranks)

static bool is_fed_by_others(const struct ws_hang *h, size_t i)
{
	size_t fed = 0, linked = 0;
	for (size_t r = 0; r < h->n_ranks; r++) {
		fed += h->ranks[r].endpoint == i && h->ranks[r].due;
		linked += h->ranks[r].due > 0;
	}
	return hang_is_awaited(h, i) && linked && !fed;
}

/* ---- ranks, peers ---- */

OF_RANK(has_joined, r->store == WS_HANG_JOINED)
OF_RANK(has_asked, r->store == WS_HANG_ASKED)
OF_RANK(has_left, r->store == WS_HANG_LEFT)
/* If some peers joined without a rank number, the absent ranks cannot be named. */
OF_RANK(is_absent, r->store == WS_HANG_ABSENT && is_partly_there(h, r->endpoint) &&
        !h->endpoints[r->endpoint].unnamed)
OF_RANK(is_absent_sender, r->endpoint == h->n_endpoints && r->store == WS_HANG_ABSENT)
OF_RANK(is_apart, r->store == WS_HANG_ASKED && r->link == WS_HANG_APART)
OF_RANK(link_broke, r->link == WS_HANG_LINK_LOST)
OF_RANK(took_nothing, r->due && r->taken == 0)
OF_RANK(took_a_part, r->taken && r->taken < r->due)

OF_PEER(is_foreign, p->foreign)
OF_PEER(peer_asked, p->asked && p->connected && !p->foreign)
OF_PEER(peer_only_joined, p->joined && p->connected && !p->asked)

/* ---- the whole hang ---- */

OF_HANG(has_foreigner, hang_count(h, h->n_peers, is_foreign))
OF_HANG(somebody_came, h->joined > 0)
OF_HANG(nobody_came, h->joined == 0 && h->n_peers == 0)
OF_HANG(nobody_by_loopback, h->loopback && nobody_came(h, 0))
OF_HANG(some_are_missing, h->joined + 1 < h->world_size)
/* All ranks are at the store, but at least one has only joined. */
OF_HANG(one_stays_behind, !some_are_missing(h, 0) &&
        (hang_count(h, h->n_ranks, has_joined) || hang_count(h, h->n_peers, peer_only_joined)))
OF_HANG(is_unpublished, !hang_is_nccl(h) && one_stays_behind(h, 0))
OF_HANG(id_is_unasked, hang_is_nccl(h) && one_stays_behind(h, 0))
OF_HANG(nccl_not_linked, hang_is_nccl(h) && h->n_ranks && h->ranks[0].link != WS_HANG_LINKED)
/* No communicator yet. Endpoints that answered create it with the first broadcast (lazy); endpoints
 * whose ranks asked for the id create it now (eager). Both kinds are present. */
OF_HANG(is_mixed, hang_count(h, h->n_endpoints, has_accepted) && nccl_not_linked(h, 0) &&
        (hang_count(h, h->n_ranks, has_asked) || hang_count(h, h->n_peers, peer_asked)))
OF_HANG(is_starved, h->starved_ns > 0 && h->starved_ns * 2 > h->waited_ns)
OF_HANG(stands_still, h->still_ns * 4 > h->waited_ns || h->still_ns > 5 * WS_NS_PER_S)
OF_HANG(flushes, h->phase == WS_PHASE_FLUSH || h->flush)
OF_HANG(connects, h->phase == WS_PHASE_CONNECT)
OF_HANG(verifies, h->phase == WS_PHASE_VERIFY)

/* ---- the table ---- */

enum {
	ANSWER = 1 << WS_HANG_ANSWER, FORMING = 1 << WS_HANG_FORMING, MOVING = 1 << WS_HANG_MOVING,
	OURSELVES = 1 << WS_HANG_OURSELVES, HTTP = ANSWER | FORMING | MOVING
};

/* A row matches if `whole` passes, and `endpoint` passes for any endpoint. A row without `endpoint`
 * needs a rank that passes `rank`. A test that is NULL passes. {who} is the ranks that pass, else
 * the endpoints. hang_fill (hang_text.c) replaces {who} and the other {facts}. */
static const struct row {
	const char *cause;
	unsigned waits;
	hang_test whole, endpoint, rank;
	const char *likely, *remedy;
} rows[] = {
	{ "server-gone", HTTP, NULL, is_gone, NULL,
	  "no connection is accepted at {who} any more: the server ended during the wait",
	  "read the end of its log, start it again, and push again" },
	{ "server-stopped", HTTP, NULL, is_stopped, NULL,
	  "{who} takes connections and answers nothing, not even /model_info, which needs no "
	  "scheduler: its process is stopped, is swapping, or is blocked in its HTTP code",
	  "check the process (ps, py-spy dump --pid PID), continue or restart it, and push again" },
	{ "no-route", HTTP, NULL, is_connecting, NULL,
	  "no connection to {who} was established: a firewall drops it, the machine is down, or "
	  "the address is wrong",
	  "try curl from here, and check URL and port{longer}" },
	{ "slow-request", HTTP, NULL, is_sending, NULL,
	  "{who} had not read all of the request: the network is slow, or the server does not read",
	  "use a {backend} that does not send weights in the request, or smaller buckets "
	  "({bucket_size}){longer}" },

	{ "rank-left", FORMING, NULL, NULL, has_left,
	  "connected to the store and left it again: {who}; such a process has crashed, run out "
	  "of memory, or given up",
	  "its last lines in the server's log say why; restart a server that has lost a rank" },
	{ "other-group", FORMING, has_foreigner, NULL, NULL,
	  "{peer} waits for \"{key}\", which is not of group '{group}': a process of an earlier "
	  "attempt, or of another group name",
	  "end processes of earlier attempts, and leave {group_name} out, so that each attempt has "
	  "its own name; servers must join only through their weight-update call" },
	{ "missing-sender", FORMING, NULL, NULL, is_absent_sender,
	  "not all senders have come: {who}; such a process was not started, has failed, or still "
	  "reads its part of the source",
	  "start all senders of a round together ({sender} I/N, the same {sender_lock}), and read "
	  "the output of the missing one{longer}" },
	{ "loopback", FORMING, nobody_by_loopback, NULL, NULL,
	  "the servers were told to connect to {address}, which is loopback: behind a tunnel, a "
	  "container's published port, or on another host they cannot reach this store; a server "
	  "on this machine has not started the request",
	  "give {master_address} an address of this machine that the servers can reach; if they "
	  "run on this machine, see in their log what keeps the scheduler busy{longer}" },
	{ "store-unreached", FORMING, nobody_came, NULL, NULL,
	  "no server process has reached {address} port {port}: a firewall blocks it, the servers "
	  "need another address of this machine (container bridge, VPN, second interface), or "
	  "their schedulers are busy and have not started the request",
	  "test from a server's machine whether it can connect to {address}; name another with "
	  "{master_address}, fix the port with {master_port} and open it{longer}" },
	{ "missing-ranks", FORMING, NULL, is_partly_there, is_absent,
	  "other ranks of the same server came, but not {who}: such a process has died or hangs, "
	  "runs on another machine that cannot reach {address}, or the server has fewer ranks "
	  "than it reports",
	  "look for that rank in the server's log; every machine of a server must reach {address} "
	  "port {port}; compare its tp_size (wsync-ctl info) with the processes that run{longer}" },
	{ "missing-endpoint", FORMING, somebody_came, is_all_absent, NULL,
	  "others have reached the store, but no process of {who} has: its machine cannot connect "
	  "to it, or its scheduler is busy and has not started the request",
	  "test from its machine whether it can connect to {address} port {port}, and see in its "
	  "log what it is doing{longer}" },
	{ "not-taken-up", FORMING, some_are_missing, hang_is_awaited, NULL,
	  "not all ranks came to the store, and {who} has not answered: a rank has died or hangs, "
	  "or its scheduler is busy and has not started the request",
	  "read the server's log, and compare its tp_size (wsync-ctl info) with the processes that "
	  "run{longer}" },
	{ "not-published", FORMING, is_unpublished, NULL, NULL,
	  "all ranks have joined the store, but not all have published a gloo address: a process "
	  "was stopped in between, or uses another backend",
	  "see in the server's log what it does after joining; it must use backend gloo and open a "
	  "port{longer}" },
	{ "mixed-joining", FORMING, is_mixed, is_joining, NULL,
	  "the communicator is created before answering (eager) by {who}, and with the first "
	  "broadcast (lazy) by others, which have answered: each kind waits for the other for ever",
	  "push to each kind separately ({endpoints}, {pool}), or make all servers alike: xorl's "
	  "servers are eager, and so is torch with a device_id for the default group" },
	{ "id-not-asked", FORMING, id_is_unasked, NULL, NULL,
	  "all ranks have joined the store, but not all have asked for the NCCL id: a server whose "
	  "default group is bound to its device splits that communicator instead, or a process was "
	  "stopped in between",
	  "start the server without device_id for its default group (torch's eager mode), or see "
	  "in its log what it does after joining{longer}" },
	{ "data-plane", FORMING, NULL, NULL, is_apart,
	  "all ranks met at the store, but no connection to {who} was established: a firewall "
	  "blocks the ephemeral ports, or an address is reachable only from its own machine",
	  "open the ports of /proc/sys/net/ipv4/ip_local_port_range both ways between all ranks, "
	  "and set GLOO_SOCKET_IFNAME at the server to the interface toward this machine{longer}" },
	{ "data-plane", FORMING, nccl_not_linked, NULL, NULL,
	  "all ranks have the NCCL id, but the communicator was not created: a firewall blocks the "
	  "ephemeral ports, an interface is not reachable, or NCCL libraries or settings differ",
	  "set NCCL_SOCKET_IFNAME on both sides, open the ephemeral ports between all ranks, use "
	  "the server's libnccl ({nccl_from}) and its NCCL_CUMEM_ENABLE; NCCL_DEBUG=INFO says "
	  "more{longer}" },
	{ "after-forming", FORMING, NULL, hang_is_awaited, NULL,
	  "the group is complete, but {who} has not answered: it does more after joining (a "
	  "warm-up, a barrier among its ranks), or hangs in that",
	  "see in its log what follows the joining of the group{longer}" },

	{ "source-slow", MOVING, is_starved, NULL, NULL,
	  "the ranks were ready, but the source had no bytes for them, for {starved} of {waited}: "
	  "its disk, its network file system, or the transforms are slower than the network",
	  "read from a local disk or warm the page cache, transform less ({quantize}, {adapters}, "
	  "{unpack}), or send smaller buckets ({bucket_size}){longer}" },
	{ "link-broke", MOVING, NULL, NULL, link_broke,
	  "the connection to {who} broke: such a process has died, or the network failed",
	  "read the server's log, restart a server that has lost a rank, and push again" },
	{ "link-broke", MOVING, NULL, broke_off, NULL,
	  "{who} broke the connection without an answer: that server has failed, and others may "
	  "wait for its ranks",
	  "read the end of its log, restart it, and push again" },
	{ "not-receiving", MOVING, NULL, NULL, took_nothing,
	  "no byte was taken by {who}: such a process has not begun to receive, because it still "
	  "loads earlier weights, because running requests keep its scheduler busy, or because it "
	  "hangs",
	  "pause the endpoints ({pause} abort is the default), and see in the server's log whether "
	  "it started the request{longer}" },
	{ "stalled", MOVING, stands_still, NULL, took_a_part,
	  "a part was taken by {who}, and then, for {still}, nothing more: such a process is "
	  "stopped or blocked, or the network between has failed",
	  "check that process and the network, then push again: the server has some old and some "
	  "new weights" },
	{ "slow-wire", MOVING, NULL, NULL, took_a_part,
	  "bytes were still moving to {who} at the deadline: the network or the receiver is slower "
	  "than the limit allows",
	  "check that traffic takes the fast interface ({ifname}), or send smaller buckets "
	  "({bucket_size}){longer}" },
	{ "downstream", MOVING, NULL, is_fed_by_others, NULL,
	  "all bytes were sent, but {who}, which gets them from ranks of other servers, has not "
	  "answered: it is loading, or the connection between those servers is stuck",
	  "read its log, and check the network between the servers{longer}" },
	{ "flushing", MOVING | ANSWER, flushes, hang_is_awaited, NULL,
	  "{who} has all it needs and has not answered: it flushes its caches, which waits or "
	  "fails while requests run, or it still loads",
	  "pause with {pause} abort, make sure that no request bypasses the pause, or do not "
	  "flush: {flush} never{longer}" },
	{ "loading", MOVING, NULL, hang_is_awaited, NULL,
	  "{who} has all of it and has not answered: it loads the weights more slowly than the "
	  "limit allows, or hangs in that",
	  "see in its log whether it still loads; send smaller buckets ({bucket_size}){longer}" },

	{ "starting", ANSWER, connects, hang_is_awaited, NULL,
	  "{who} takes connections and does not answer: it is starting and loads its model, or "
	  "another program listens there",
	  "wait until its log says that it is ready, and check URL and port{longer}" },
	{ "checksums", ANSWER, verifies, hang_is_awaited, NULL,
	  "{who} still computes checksums of its weights, which is slow, or hangs",
	  "verify less ({verify} names), or see in its log whether it still computes{longer}" },
	{ "busy", ANSWER, NULL, hang_is_awaited, NULL,
	  "the scheduler of {who} has not started the request: it is in a long step (a long "
	  "prefill, capturing graphs, loading), or hangs",
	  "see in its log what it is doing; restart a server that does nothing{longer}" },

	{ "own-work", OURSELVES, NULL, NULL, NULL,
	  "no endpoint was waited for: our own work takes longer than the limit",
	  "read the source from a faster disk, or transform less{longer}" },
	{ "unknown", HTTP, NULL, NULL, NULL, "nothing that was observed shows the cause",
	  "read the logs of the endpoints; -vv prints every request and message{longer}" },
};

static bool matches(const struct row *r, const struct ws_hang *h)
{
	return r->waits & 1u << h->wait && (!r->whole || r->whole(h, 0)) &&
	       (r->endpoint ? hang_count(h, h->n_endpoints, r->endpoint) :
	                      !r->rank || hang_count(h, h->n_ranks, r->rank));
}

void ws_hang_find_cause(struct ws_hang *h)
{
	const struct row *r = rows;
	while (!matches(r, h))
		r++; /* ends: own-work and unknown together match every kind of wait */
	h->cause = r->cause;
	hang_fill(h->likely, sizeof h->likely, h, r->endpoint, r->rank, r->likely);
	hang_fill(h->remedy, sizeof h->remedy, h, r->endpoint, r->rank, r->remedy);
}
