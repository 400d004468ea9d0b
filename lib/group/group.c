/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - forms a process group and leaves it: binds the store, invites the members, joins.
 *
 * This order works with every server. The store listens before any member gets its address. All
 * members are invited at once, because eager ones answer only when all have joined. We join
 * meanwhile. */
#include "group.h"

#include "group_state.h"
#include "join.h"
#include "sock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const int64_t LOST_NS = WS_NS_PER_S;
static const int64_t OTHERS_NS = WS_NS_PER_S / 2;

/* ---- our address and the group's name -------------------------------------------------------- */

static int check_reachable(const struct ws_group *g, enum ws_code code, ws_deadline until,
                           struct ws_err *err)
{
	const struct ws_cancel *cancel = g->opts.cancel;
	bool ours = false;
	if (ws_host_is_loopback(g->host, until, cancel, &ours, err))
		return -1;
	for (size_t i = 0; ours && i < g->opts.n_members; i++) {
		bool theirs = false;
		if (ws_host_is_loopback(g->opts.members[i].host, until, cancel, &theirs, err))
			return -1;
		if (theirs)
			continue;
		ws_err_set(err, code,
		           "master address %s: %s is not on this machine and cannot reach it",
		           g->host, g->opts.members[i].url);
		return ws_err_hint(err, "give {master_address} an address of this machine that the "
		                        "endpoints can connect to");
	}
	return 0;
}

/* Servers accept a host name; our sockets and gloo's address blobs need an address literal. */
static int resolve(struct ws_group *g, ws_deadline until, struct ws_err *err)
{
	if (ws_host_local_toward(g->host, until, g->opts.cancel, g->literal, sizeof g->literal,
	                         err))
		return ws_err_wrap(err, "master address %s", g->host);
	return 0;
}

static int choose_address(struct ws_group *g, ws_deadline until, struct ws_err *err)
{
	const struct ws_cancel *cancel = g->opts.cancel;
	const char *given = g->opts.master_address;
	if (given && ws_host_is_wildcard(given)) {
		ws_err_set(err, WS_EUSAGE,
		           "master address '%s' is a wildcard: it means nothing to a "
		           "peer that must connect to it",
		           given);
		return ws_err_hint(
			err, "leave {master_address} out, or name one address of this machine");
	}
	if (given)
		snprintf(g->host, sizeof g->host, "%s", given);
	/* Use our address toward a remote endpoint: local ones can reach any of our addresses. */
	for (size_t i = 0; !given && i < g->opts.n_members; i++) {
		const char *host = g->opts.members[i].host;
		bool local = false;
		if (ws_host_is_loopback(host, until, cancel, &local, err))
			return -1;
		if ((i == 0 || !local) &&
		    ws_host_local_toward(host, until, cancel, g->host, sizeof g->host, err))
			return -1;
		if (!local)
			break;
	}
	return check_reachable(g, given ? WS_EUSAGE : WS_EREACH, until, err) ||
	                       resolve(g, until, err) ?
	               -1 :
	               0;
}

int ws_group_fresh_name(char *name, size_t n, struct ws_err *err)
{
	uint32_t id;
	if (getrandom(&id, sizeof id, 0) != sizeof id)
		return ws_err_errno(err, "getrandom");
	snprintf(name, n, "wsync-%08x", id);
	return 0;
}

static int choose_name(struct ws_group *g, struct ws_err *err)
{
	if (!g->opts.name)
		return ws_group_fresh_name(g->name, sizeof g->name, err);
	snprintf(g->name, sizeof g->name, "%s", g->opts.name);
	return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

static int start_inits(struct ws_group *g, struct ws_endpoint_call *calls, struct ws_buf *bodies,
                       ws_deadline until, struct ws_err *err)
{
	for (size_t i = 0; i < g->opts.n_members; i++) {
		const struct ws_member *m = &g->opts.members[i];
		ws_buf_init(&bodies[i], 4096);
		ws_join_write(g, m, &bodies[i]);
		ws_log(g->opts.log, 1, "%s: asked to join %s as ranks %u..%u of %u at %s:%u",
		       m->url, g->name, m->rank_offset, m->rank_offset + m->ranks - 1,
		       g->world_size, g->host, (unsigned)ws_store_port(g->store));
		if (ws_buf_check(&bodies[i], "request", err) ||
		    ws_endpoint_start(g->opts.http, &calls[i], m->url, "POST", ws_join_path(m),
		                      &bodies[i], until, err))
			return -1;
	}
	return 0;
}

const char *ws_group_master(const struct ws_group *g, uint16_t *port)
{
	*port = ws_store_port(g->store);
	return g->host;
}

static int open_transport(struct ws_group *g, ws_deadline until, struct ws_err *err)
{
	const struct ws_transport_opts opts = { .world_size = g->world_size,
		                                .senders = g->opts.senders,
		                                .vllm = g->opts.n_members &&
		                                        g->opts.members[0].info,
		                                .host = g->literal,
		                                .store = g->store,
		                                .group = g->name,
		                                .gpu = g->opts.gpu,
		                                .log = g->opts.log,
		                                .trace = g->opts.trace };
	return g->opts.ops->open(&opts, until, &g->transport, err);
}

/* False for a timeout or a refusal. After a proxy's error, an unreadable answer or a lost
 * connection the member may be in the group. */
static bool may_have_joined(const struct ws_err *said)
{
	return said->code == WS_OK || said->code == WS_EREACH ||
	       (said->code == WS_EREFUSED && !ws_endpoint_said_no(said));
}

int ws_group_join(struct ws_group *g, struct ws_endpoint_call *calls, struct ws_err *errs,
                  int (*watch)(void *ctx, struct ws_err *err), void *ctx, ws_deadline until,
                  struct ws_err *err)
{
	if (open_transport(g, until, err))
		return -1;
	struct ws_together w = { .watch = watch,
		                 .ctx = ctx,
		                 .group = g,
		                 .calls = calls,
		                 .n = g->opts.n_members,
		                 .later = true,
		                 .errs = errs,
		                 .until = until,
		                 .cancel = g->opts.cancel,
		                 .what = "joining the group",
		                 .joining = true };
	const int rc = ws_group_together(&w, err);
	/* If our join failed, a member that refuses may still be in the group: its transfer failed
	 * when another member disconnected. Members without an answer (http.user is NULL, see
	 * `answered` in group_together.c) wait for us until the store closes. */
	if (rc == 0)
		ws_store_agreed(g->store);
	for (size_t i = 0; i < g->opts.n_members; i++)
		g->joined[i] = rc == 0 || (calls[i].http.user && (errs[i].code == WS_EREFUSED ||
		                                                  may_have_joined(&errs[i])));
	return rc;
}

static int join_all(struct ws_group *g, ws_deadline until, struct ws_err *err)
{
	const size_t n = g->opts.n_members;
	struct ws_endpoint_call *calls = calloc(n, sizeof *calls);
	struct ws_buf *bodies = calloc(n, sizeof *bodies);
	struct ws_err *errs = calloc(n, sizeof *errs);
	int rc = -1;
	if (!calls || !bodies || !errs) {
		ws_oom(err);
		goto out;
	}
	if (open_transport(g, until, err))
		goto out;
	if (start_inits(g, calls, bodies, until, err))
		goto out;
	struct ws_together w = { .group = g,
		                 .calls = calls,
		                 .n = n,
		                 .errs = errs,
		                 .until = until,
		                 .cancel = g->opts.cancel,
		                 .what = "joining the group",
		                 .joining = true };
	rc = ws_group_together(&w, err);
	if (rc == 0)
		ws_store_agreed(g->store);
	for (size_t i = 0; i < n; i++) {
		g->joined[i] = calls[i].http.user && may_have_joined(&errs[i]);
		g->opts.members[i].late =
			calls[i].http.sent && (!calls[i].http.user || errs[i].code == WS_ETIMEOUT);
	}
out:
	for (size_t i = 0; i < n; i++) {
		if (calls) {
			ws_http_drop(g->opts.http, &calls[i].http);
			ws_endpoint_call_free(&calls[i]);
		}
		if (bodies)
			ws_buf_free(&bodies[i]);
	}
	free(calls);
	free(bodies);
	free(errs);
	return rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int open_store(struct ws_group *g, struct ws_err *err)
{
	const struct ws_store_opts opts = {
		.host = g->literal,
		.port = g->opts.master_port,
		.world_size = g->world_size,
		.senders = g->opts.senders,
		.group = g->name,
		.log = g->opts.log,
	};
	if (ws_store_open(&opts, &g->store, err))
		return -1;
	if (g->opts.place) {
		memcpy(g->opts.place->host, g->literal, sizeof g->opts.place->host);
		g->opts.place->port = ws_store_port(g->store);
	}
	return 0;
}

static unsigned count_joined(struct ws_store *s)
{
	struct ws_store_report r = { 0 };
	unsigned n = 0;
	if (ws_store_report(s, &r, NULL))
		return 0;
	for (size_t i = 0; i < r.n_peers; i++)
		n += r.peers[i].joined;
	ws_store_report_fini(&r);
	return n;
}

unsigned ws_group_release_late(const struct ws_group_place *place, const char *group,
                               ws_deadline until, const struct ws_cancel *cancel)
{
	const struct ws_store_opts opts = { .host = place->host,
		                            .port = place->port,
		                            .group = group };
	struct ws_store *s = NULL;
	unsigned come = 0;
	if (!place->port || ws_store_open(&opts, &s, NULL))
		return 0;
	while (!ws_deadline_passed(until) && !ws_cancelled(cancel)) {
		const unsigned now = count_joined(s);
		if (now > come) /* the other ranks of the same server follow soon */
			until = ws_deadline_min(until, ws_deadline_in(OTHERS_NS));
		come = now;
		poll(NULL, 0, 20);
	}
	ws_store_close(s);
	return come;
}

int ws_group_open(const struct ws_group_opts *opts, ws_deadline until, struct ws_group **out,
                  struct ws_err *err)
{
	struct ws_group *g = calloc(1, sizeof *g);
	if (!g || !(g->joined = calloc(opts->n_members, sizeof *g->joined))) {
		free(g);
		return ws_oom(err);
	}
	g->opts = *opts;
	g->opts.senders = opts->senders ? opts->senders : 1;
	g->world_size = g->opts.senders;
	for (size_t i = 0; i < opts->n_members; i++) {
		opts->members[i].rank_offset = g->world_size;
		g->world_size += opts->members[i].ranks;
	}
	if (choose_address(g, until, err) || choose_name(g, err) || open_store(g, err) ||
	    (opts->bound && opts->bound(opts->bound_ctx, err)) ||
	    (!opts->own_requests && join_all(g, until, err))) {
		/* Members that did join must leave, because the group was not formed. */
		ws_group_close(g, NULL, ws_deadline_in(2 * WS_NS_PER_S));
		return -1;
	}
	*out = g;
	return 0;
}

/* Waits until settle_ns have passed since the last answer. torch destroys a gloo group with
 * Python's lock held and waits for its threads. If one of them still needs that lock to release the
 * last tensor, the server hangs forever. Seen with torch 2.6 under load, when the request to
 * destroy came within milliseconds of the last answer. A thread gets the lock after 5 ms at most;
 * gloo's settle_ns is ten times that. */
static void wait_settled(const struct ws_group *g)
{
	const int64_t left = g->rest_since + g->opts.ops->settle_ns - ws_now_ns();
	if (g->rest_since && left > 0)
		poll(NULL, 0, (int)(left / WS_NS_PER_MS) + 1);
}

/* Waits until *until for the answer. A cancel (Ctrl-C) shortens *until to LOST_NS from then. */
static void await_answer(const struct ws_group *g, const struct ws_endpoint_call *call,
                         ws_deadline *until)
{
	bool hurried = false;
	while (!call->http.done && !ws_deadline_passed(*until)) {
		if (!hurried && ws_cancelled(g->opts.cancel))
			*until = ws_deadline_min(*until, ws_deadline_in(LOST_NS));
		hurried = ws_cancelled(g->opts.cancel);
		const ws_deadline tick = ws_deadline_in(100 * WS_NS_PER_MS);
		if (ws_http_wait(g->opts.http, ws_deadline_min(*until, tick), NULL, -1, NULL) < 0)
			return;
	}
}

/* True if the server refused to leave. A missing group or a missing route is no refusal. */
static bool would_not(const struct ws_err *said)
{
	return ws_endpoint_said_no(said) && said->native != 404 && said->native != 405 &&
	       !strstr(said->msg, "does not exist");
}

static void note_answer(void *ctx, const struct ws_http_call *call)
{
	(void)ctx;
	(void)call;
}

/* Waits until all requests are sent, for 200 ms at most: the network may be slow. */
static void send_off(const struct ws_group *g, const struct ws_endpoint_call *calls)
{
	const ws_deadline until = ws_deadline_in(200 * WS_NS_PER_MS);
	for (bool sent = false; !sent && !ws_deadline_passed(until);) {
		if (ws_http_wait(g->opts.http, ws_deadline_in(WS_NS_PER_MS), NULL, -1, NULL) < 0)
			return;
		ws_http_each(g->opts.http, note_answer, NULL); /* updates the calls' stages */
		sent = true;
		for (size_t i = 0; i < g->opts.n_members; i++)
			sent = sent && (!g->joined[i] || calls[i].http.done ||
			                calls[i].http.stage >= WS_HTTP_SENT);
	}
}

static void ask_to_leave(struct ws_group *g, struct ws_endpoint_call *calls, struct ws_buf *bodies,
                         const bool *lost, ws_deadline until)
{
	/* A lost server is usually gone, so its request gets 1 s. If it is alive it must leave, or
	 * it rejects the next group of this name. */
	const ws_deadline soon = ws_deadline_min(until, ws_deadline_in(LOST_NS));
	for (size_t i = 0; i < g->opts.n_members; i++) {
		const struct ws_member *m = &g->opts.members[i];
		const char *path = ws_leave_path(m);
		if (g->joined[i] && path)
			ws_leave_write(g, m, &bodies[i]);
		g->joined[i] = g->joined[i] && path &&
		               ws_endpoint_start(g->opts.http, &calls[i], m->url, "POST", path,
		                                 &bodies[i], lost && lost[i] ? soon : until,
		                                 NULL) == 0;
	}
	send_off(g, calls);
}

/* Waits for the answer to the request to leave. *lost: the member did not answer. */
static void hear_of_leaving(struct ws_group *g, struct ws_endpoint_call *call, struct ws_member *m,
                            bool *lost, ws_deadline *until)
{
	struct ws_err e = WS_ERR_INIT;
	await_answer(g, call, until);
	*lost = !call->http.done || call->http.err.code != WS_OK;
	if (!call->http.done) {
		ws_http_drop(g->opts.http, &call->http);
		ws_log(g->opts.log, 1, "%s: did not answer the request to leave %s", m->url,
		       g->name);
	} else if (ws_endpoint_reply(call, NULL, NULL, 0, &e)) {
		ws_log(g->opts.log, 1, "%s: %s", m->url, e.msg);
		m->stays = would_not(&e);
	}
	ws_endpoint_call_free(call);
}

/* The servers destroy the group while we close our transport. If one side waited for the other to
 * finish first, it could wait forever. */
static void leave(struct ws_group *g, bool *lost, ws_deadline until)
{
	const size_t n = g->opts.n_members;
	struct ws_endpoint_call *calls = calloc(n, sizeof *calls);
	struct ws_buf *bodies = calloc(n, sizeof *bodies);
	if (!calls || !bodies)
		goto out;
	for (size_t i = 0; i < n; i++)
		ws_buf_init(&bodies[i], 1024);
	wait_settled(g);
	ask_to_leave(g, calls, bodies, lost, until);
	if (g->transport)
		g->transport->ops->close(g->transport);
	g->transport = NULL;
	for (size_t i = 0; i < n; i++) {
		bool silent = false; /* also for a member that is not in the group */
		if (g->joined[i])
			hear_of_leaving(g, &calls[i], &g->opts.members[i], &silent, &until);
		if (lost)
			lost[i] = silent;
	}
	for (size_t i = 0; i < n; i++)
		ws_buf_free(&bodies[i]);
out:
	free(bodies);
	free(calls);
}

void ws_group_close(struct ws_group *g, bool *lost, ws_deadline until)
{
	if (!g)
		return;
	leave(g, lost, until);
	if (g->transport)
		g->transport->ops->close(g->transport);
	ws_store_close(g->store);
	free(g->joined);
	free(g);
}

void ws_group_forget_member(struct ws_group *g, size_t i)
{
	g->joined[i] = false;
}

void ws_group_forget(struct ws_group *g)
{
	for (size_t i = 0; i < g->opts.n_members; i++)
		ws_group_forget_member(g, i);
}

const char *ws_group_name(const struct ws_group *g)
{
	return g->name;
}

struct ws_store *ws_group_store(const struct ws_group *g)
{
	return g->store;
}

unsigned ws_group_world_size(const struct ws_group *g)
{
	return g->world_size;
}

struct ws_transport *ws_group_transport(const struct ws_group *g)
{
	return g->transport;
}

bool ws_group_alive(const struct ws_group *g)
{
	ws_store_settle(g->store);
	return ws_store_trouble(g->store, NULL) == 0;
}
