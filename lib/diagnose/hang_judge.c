/* SPDX-License-Identifier: Apache-2.0 */
/* hang_judge.c - from evidence to the likely cause: one row for each, the first that fits is it.
 *
 * Rows stand in the order of how sure they are: what was seen (a process that is gone, a key of
 * another group) before what is concluded (nobody came, so the address is wrong). Within {}
 * stand facts (hang_fill.c). */
#include "hang_list.h"

#include "wsync/clock.h"

/* ---- of an endpoint ---- */

static bool is_gone(const struct ws_hang *h, size_t i)
{
	return h->endpoints[i].front == WS_HANG_REFUSED;
}

static bool broke_off(const struct ws_hang *h, size_t i)
{
	return h->endpoints[i].request == WS_HANG_BROKEN;
}

static bool is_stopped(const struct ws_hang *h, size_t i)
{
	const struct ws_hang_endpoint *e = &h->endpoints[i];
	return e->front == WS_HANG_SILENT && hang_is_awaited(h, i) &&
	       e->request != WS_HANG_CONNECTING && h->phase != WS_PHASE_CONNECT;
}

static bool is_connecting(const struct ws_hang *h, size_t i)
{
	return h->endpoints[i].request == WS_HANG_CONNECTING;
}

static bool is_sending(const struct ws_hang *h, size_t i)
{
	return h->endpoints[i].request == WS_HANG_SENDING;
}

static bool is_all_absent(const struct ws_hang *h, size_t i)
{
	return h->endpoints[i].n_ranks && !hang_present(h, i) && !h->loose;
}

static bool is_partly_there(const struct ws_hang *h, size_t i)
{
	const unsigned n = hang_present(h, i);
	return n && n < h->endpoints[i].n_ranks;
}

/* It has not answered, and is not known to have ranks that wait for anything else than the
 * others. */
static bool is_joining(const struct ws_hang *h, size_t i)
{
	for (size_t r = 0; r < h->n_ranks; r++)
		if (h->ranks[r].endpoint == i && h->ranks[r].store == WS_HANG_JOINED)
			return false;
	return hang_is_awaited(h, i) && h->endpoints[i].n_ranks &&
	       hang_present(h, i) + h->loose >= h->endpoints[i].n_ranks;
}

static bool is_fed_by_others(const struct ws_hang *h, size_t i)
{
	size_t fed = 0, linked = 0;
	for (size_t r = 0; r < h->n_ranks; r++) {
		fed += h->ranks[r].endpoint == i && h->ranks[r].due;
		linked += h->ranks[r].due > 0;
	}
	return hang_is_awaited(h, i) && linked && !fed;
}

/* ---- of a rank ---- */

static bool has_left(const struct ws_hang *h, size_t i)
{
	return h->ranks[i].store == WS_HANG_LEFT;
}

static bool is_absent(const struct ws_hang *h, size_t i)
{
	const size_t e = h->ranks[i].endpoint;
	/* Where some that came have no name, nobody knows which are missing. */
	return h->ranks[i].store == WS_HANG_ABSENT && is_partly_there(h, e) &&
	       !h->endpoints[e].unnamed;
}

static bool is_absent_sender(const struct ws_hang *h, size_t i)
{
	return h->ranks[i].endpoint == h->n_endpoints && h->ranks[i].store == WS_HANG_ABSENT;
}

static bool is_apart(const struct ws_hang *h, size_t i)
{
	return h->ranks[i].store == WS_HANG_ASKED && h->ranks[i].link == WS_HANG_APART;
}

static bool link_broke(const struct ws_hang *h, size_t i)
{
	return h->ranks[i].link == WS_HANG_LINK_LOST;
}

static bool took_nothing(const struct ws_hang *h, size_t i)
{
	return h->ranks[i].due && h->ranks[i].taken == 0;
}

static bool took_a_part(const struct ws_hang *h, size_t i)
{
	return h->ranks[i].taken && h->ranks[i].taken < h->ranks[i].due;
}

/* ---- of the whole ---- */

static bool has_foreigner(const struct ws_hang *h)
{
	for (size_t i = 0; i < h->n_peers; i++)
		if (h->peers[i].foreign)
			return true;
	return false;
}

static bool nobody_by_loopback(const struct ws_hang *h)
{
	return h->loopback && hang_nobody_came(h);
}

static bool somebody_came(const struct ws_hang *h)
{
	return h->joined > 0;
}

static bool some_are_missing(const struct ws_hang *h)
{
	return h->joined + 1 < h->world_size;
}

/* All are there, and one has joined and gone no further. */
static bool one_stays_behind(const struct ws_hang *h)
{
	if (some_are_missing(h))
		return false;
	for (size_t i = 0; i < h->n_ranks; i++)
		if (h->ranks[i].store == WS_HANG_JOINED)
			return true;
	for (size_t i = 0; i < h->n_peers; i++)
		if (h->peers[i].joined && h->peers[i].connected && !h->peers[i].asked)
			return true;
	return false;
}

static bool is_unpublished(const struct ws_hang *h)
{
	return !hang_is_nccl(h) && one_stays_behind(h);
}

static bool id_is_unasked(const struct ws_hang *h)
{
	return hang_is_nccl(h) && one_stays_behind(h);
}

static bool somebody_asked(const struct ws_hang *h)
{
	for (size_t i = 0; i < h->n_ranks; i++)
		if (h->ranks[i].store == WS_HANG_ASKED)
			return true;
	for (size_t i = 0; i < h->n_peers; i++)
		if (h->peers[i].asked && h->peers[i].connected && !h->peers[i].foreign)
			return true;
	return false;
}

/* Before there is a communicator, who has agreed makes it with the first broadcast, and who asks
 * for its id makes it now; there are both. */
static bool is_mixed(const struct ws_hang *h)
{
	bool lazy = false;
	for (size_t i = 0; i < h->n_endpoints; i++)
		lazy = lazy ||
		       (h->endpoints[i].n_ranks && h->endpoints[i].request == WS_HANG_ANSWERED &&
		        h->endpoints[i].status == 200);
	return lazy && hang_is_nccl(h) && h->n_ranks && h->ranks[0].link != WS_HANG_LINKED &&
	       somebody_asked(h);
}

static bool nccl_not_linked(const struct ws_hang *h)
{
	return hang_is_nccl(h) && h->n_ranks && h->ranks[0].link != WS_HANG_LINKED;
}

static bool is_starved(const struct ws_hang *h)
{
	return h->starved_ns > 0 && h->starved_ns * 2 > h->waited_ns;
}

static bool stands_still(const struct ws_hang *h)
{
	return h->still_ns * 4 > h->waited_ns || h->still_ns > 5 * WS_NS_PER_S;
}

static bool flushes(const struct ws_hang *h)
{
	return h->phase == WS_PHASE_FLUSH || h->flush;
}

static bool connects(const struct ws_hang *h)
{
	return h->phase == WS_PHASE_CONNECT;
}

static bool verifies(const struct ws_hang *h)
{
	return h->phase == WS_PHASE_VERIFY;
}

static bool always(const struct ws_hang *h)
{
	(void)h;
	return true;
}

/* ---- the table ---- */

enum {
	ANSWER = 1 << WS_HANG_ANSWER, FORMING = 1 << WS_HANG_FORMING, MOVING = 1 << WS_HANG_MOVING,
	OURSELVES = 1 << WS_HANG_OURSELVES, HTTP = ANSWER | FORMING | MOVING
};

/* Fits when all of its questions that are there are answered with yes: that of endpoints by
 * one of them at least, that of ranks likewise where there is none of endpoints. {who} is then
 * who did, ranks if possible. */
static const struct row {
	enum ws_hang_cause cause;
	unsigned waits;
	bool (*whole)(const struct ws_hang *h);
	hang_of_endpoint endpoint;
	hang_of_rank rank;
	const char *likely, *remedy;
} rows[] = {
	{ WS_HANG_SERVER_GONE, HTTP, NULL, is_gone, NULL,
	  "nobody takes connections at {who} any more: the server has ended while it was waited "
	  "for",
	  "look at the end of its log, start it again, and push again" },
	{ WS_HANG_SERVER_STOPPED, HTTP, NULL, is_stopped, NULL,
	  "{who} takes connections and answers nothing, not even /model_info, which needs no "
	  "scheduler: its "
	  "process is stopped, swaps, or is blocked where it speaks HTTP",
	  "look at the process (ps, py-spy dump --pid PID), continue or restart it, and push "
	  "again" },
	{ WS_HANG_NO_ROUTE, HTTP, NULL, is_connecting, NULL,
	  "no connection to {who} came about: a firewall drops it, the machine is down, or the "
	  "address is "
	  "another's",
	  "see whether curl reaches it from here, and that URL and port are right{longer}" },
	{ WS_HANG_SLOW_REQUEST, HTTP, NULL, is_sending, NULL,
	  "{who} had not read all of the request: the network is slow, or the server does not read",
	  "use a data plane other than the request itself, or smaller buckets "
	  "(--bucket-size){longer}" },

	{ WS_HANG_RANK_LEFT, FORMING, NULL, NULL, has_left,
	  "gone again after coming to the store: {who}; such a process has crashed, run out of "
	  "memory, or given up",
	  "its last lines in the server's log say why; restart a server that has lost a rank" },
	{ WS_HANG_OTHER_GROUP, FORMING, has_foreigner, NULL, NULL,
	  "{peer} waits for \"{key}\", which is not of group '{group}': a process of an earlier "
	  "attempt, or one "
	  "that was given another group name",
	  "let servers join by their own weight-update call only; end what still runs of an "
	  "earlier attempt, and "
	  "leave --group-name out, so that each attempt has a name of its own" },
	{ WS_HANG_MISSING_SENDER, FORMING, NULL, NULL, is_absent_sender,
	  "not all that send have come: {who}; such a process was not started, has failed, or is "
	  "still busy with "
	  "its own part of the source",
	  "start all senders of a round together (--sender I/N, the same --lock), and see what "
	  "that one "
	  "says{longer}" },
	{ WS_HANG_LOOPBACK, FORMING, nobody_by_loopback, NULL, NULL,
	  "the servers were told to come to {address}, which is every machine's name for itself: "
	  "behind a "
	  "tunnel, a container's published port or another host nobody can reach this store with "
	  "it; a server "
	  "on this very machine has not taken up the request yet",
	  "give --master-address an address of this machine that the servers can connect to; where "
	  "they do run "
	  "here, see in their log what keeps the scheduler{longer}" },
	{ WS_HANG_STORE_UNREACHED, FORMING, hang_nobody_came, NULL, NULL,
	  "no server process has reached {address} port {port}: a firewall is in the way, or this "
	  "machine has "
	  "another address as they see it (container bridge, VPN, second interface); or their "
	  "schedulers are "
	  "busy and have not taken up the request",
	  "try from a server's machine whether it can connect to {address}; name a better one with "
	  "--master-address, fix the port with --master-port and let it in{longer}" },
	{ WS_HANG_MISSING_RANKS, FORMING, NULL, is_partly_there, is_absent,
	  "other ranks of the same server came, but not {who}: such a process has died or hangs, "
	  "runs on another "
	  "machine that cannot reach {address}, or the server has fewer ranks than it says",
	  "look for that rank in the server's log; every machine of a server must reach {address} "
	  "port {port}; "
	  "compare its tp_size (wsync-ctl info) with what runs{longer}" },
	{ WS_HANG_MISSING_ENDPOINT, FORMING, somebody_came, is_all_absent, NULL,
	  "others have reached the store, so it can be reached; no process of {who} has: it cannot "
	  "from where it "
	  "runs, or its scheduler is busy and has not taken up the request",
	  "try from its machine whether it can connect to {address} port {port}, and see in its "
	  "log what it is "
	  "doing{longer}" },
	{ WS_HANG_NOT_TAKEN_UP, FORMING, some_are_missing, hang_is_awaited, NULL,
	  "not all ranks came to the store, and {who} has not answered: a rank has died or hangs, "
	  "or its "
	  "scheduler is busy and has not taken up the request",
	  "look at the server's log, and compare its tp_size (wsync-ctl info) with what "
	  "runs{longer}" },
	{ WS_HANG_NOT_PUBLISHED, FORMING, is_unpublished, NULL, NULL,
	  "all have joined the store, and not all have published a gloo address: that process was "
	  "stopped in "
	  "between, or makes its group with another backend",
	  "see in the server's log what it does after joining; it must take backend gloo and open "
	  "a port{longer}" },
	{ WS_HANG_MIXED_JOINING, FORMING, is_mixed, is_joining, NULL,
	  "the communicator is made before answering (eager) by {who}, and with the first "
	  "broadcast (lazy) by "
	  "others, who have answered: each kind waits for the other, and no group of both ever "
	  "comes about",
	  "push to either kind by itself (--endpoint, --pool), or have all servers make it alike: "
	  "xorl's servers "
	  "are eager, and so is torch with a device_id for the default group" },
	{ WS_HANG_ID_NOT_ASKED, FORMING, id_is_unasked, NULL, NULL,
	  "all have joined the store, and not all have asked for the NCCL id: a server whose "
	  "default group is "
	  "bound to its device splits that communicator instead, or the process was stopped in "
	  "between",
	  "start the server without device_id for its default group (torch's eager mode), or see "
	  "in its log what "
	  "it does after joining{longer}" },
	{ WS_HANG_DATA_PLANE, FORMING, NULL, NULL, is_apart,
	  "all have met at the store, and with {who} no connection came about: a firewall between "
	  "the ephemeral "
	  "ports, or an address that only its own machine can reach",
	  "let the ports of /proc/sys/net/ipv4/ip_local_port_range pass both ways between all "
	  "ranks, and set "
	  "GLOO_SOCKET_IFNAME at the server to the interface toward this machine{longer}" },
	{ WS_HANG_DATA_PLANE, FORMING, nccl_not_linked, NULL, NULL,
	  "all have the NCCL id, and the communicator does not come about: a firewall between the "
	  "ephemeral "
	  "ports, an interface that others cannot reach, or NCCL libraries and settings that do "
	  "not agree",
	  "set NCCL_SOCKET_IFNAME on both sides, let ephemeral ports pass between all ranks, use "
	  "the server's "
	  "libnccl (--nccl-from) and its NCCL_CUMEM_ENABLE; NCCL_DEBUG=INFO says more{longer}" },
	{ WS_HANG_AFTER_FORMING, FORMING, NULL, hang_is_awaited, NULL,
	  "the group stands, and {who} has not said so: it does more after joining (a warm-up, a "
	  "barrier among "
	  "its ranks), or hangs in that",
	  "see in its log what follows the joining of the group{longer}" },

	{ WS_HANG_SOURCE_SLOW, MOVING, is_starved, NULL, NULL,
	  "the ranks were ready and our own source had no bytes for them, for {starved} of "
	  "{waited}: its disk, its "
	  "network file system, or the computing of tensors is slower than the wire",
	  "read from a local disk or warm the page cache, do less on the way (--quantize, --lora, "
	  "--unpack), or "
	  "send smaller buckets (--bucket-size){longer}" },
	{ WS_HANG_LINK_BROKE, MOVING, NULL, NULL, link_broke,
	  "the connection broke with {who}: such a process has died, or the network between",
	  "look at the server's log, restart a server that has lost a rank, and push again" },
	{ WS_HANG_LINK_BROKE, MOVING, NULL, broke_off, NULL,
	  "{who} broke the connection without an answer: that server has failed, and others may "
	  "wait for its ranks",
	  "look at the end of its log, restart it, and push again" },
	{ WS_HANG_NOT_RECEIVING, MOVING, NULL, NULL, took_nothing,
	  "not a byte was taken by {who}: such a process has not begun to receive this, because it "
	  "still loads "
	  "what came before, because running requests keep its scheduler, or because it hangs",
	  "pause the endpoints (--pause abort is the default), and see in the server's log whether "
	  "the request "
	  "was taken up{longer}" },
	{ WS_HANG_STALLED, MOVING, stands_still, NULL, took_a_part,
	  "a part was taken by {who}, and then, for {still}, nothing more: such a process is "
	  "stopped or blocked, "
	  "or the network between has broken",
	  "look at that process and at the network, then push again: what it holds is a mixture" },
	{ WS_HANG_SLOW_WIRE, MOVING, NULL, NULL, took_a_part,
	  "bytes still moved to {who} when the time was over: the network or the receiver is "
	  "slower than the "
	  "limit allows",
	  "see that traffic takes the fast interface ({ifname}), or send smaller buckets "
	  "(--bucket-size){longer}" },
	{ WS_HANG_DOWNSTREAM, MOVING, NULL, is_fed_by_others, NULL,
	  "all bytes have left us, and {who}, which gets them from ranks of other servers, has not "
	  "answered: it is "
	  "loading, or the connection between those servers stands still",
	  "look at its log and at the network between the servers{longer}" },
	{ WS_HANG_FLUSHING, MOVING | ANSWER, flushes, hang_is_awaited, NULL,
	  "{who} has what it needs and has not answered: it is to flush its caches, which waits or "
	  "fails while "
	  "requests run, or it still loads",
	  "pause with --pause abort, see that nothing bypasses the pause, or flush later: --flush "
	  "never{longer}" },
	{ WS_HANG_LOADING, MOVING, NULL, hang_is_awaited, NULL,
	  "{who} has all of it and has not answered: it loads the weights more slowly than the "
	  "limit allows, or "
	  "hangs in that",
	  "see in its log whether it still loads; send smaller buckets (--bucket-size){longer}" },

	{ WS_HANG_STARTING, ANSWER, connects, hang_is_awaited, NULL,
	  "{who} takes connections and says nothing: it is starting and loads its model, or "
	  "something else "
	  "listens there",
	  "wait until its log says that it is ready, and see that URL and port are right{longer}" },
	{ WS_HANG_CHECKSUMS, ANSWER, verifies, hang_is_awaited, NULL,
	  "{who} still computes checksums of its weights, which it does slowly, or hangs",
	  "verify less (--verify names), or see in its log whether it is at it{longer}" },
	{ WS_HANG_BUSY, ANSWER, NULL, hang_is_awaited, NULL,
	  "the scheduler of {who} has not taken up the request: it is in the middle of a long step "
	  "(a long "
	  "prefill, capturing graphs, loading), or hangs",
	  "see in its log what it is doing; a server that does nothing must be restarted{longer}" },

	{ WS_HANG_OWN_WORK, OURSELVES, NULL, NULL, NULL,
	  "no endpoint was waited for: our own work takes longer than that",
	  "read the source from a faster disk, or do less on the way{longer}" },
	{ WS_HANG_UNKNOWN, HTTP | OURSELVES, always, NULL, NULL, "nothing that was seen tells",
	  "the logs of the endpoints may; -vv shows every request and message of ours{longer}" },
};

static bool fits(const struct row *r, const struct ws_hang *h)
{
	if (!(r->waits & 1u << h->wait) || (r->whole && !r->whole(h)))
		return false;
	if (r->endpoint)
		return hang_list_endpoints(h, r->endpoint, NULL) > 0;
	return !r->rank || hang_any_rank(h, r->rank);
}

void ws_hang_judge(struct ws_hang *h)
{
	const struct row *r = rows;
	while (!fits(r, h))
		r++; /* the last one fits always */
	h->cause = r->cause;
	hang_fill(h->likely, sizeof h->likely, h, r->endpoint, r->rank, r->likely);
	hang_fill(h->remedy, sizeof h->remedy, h, r->endpoint, r->rank, r->remedy);
}
