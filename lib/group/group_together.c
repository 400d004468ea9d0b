/* SPDX-License-Identifier: Apache-2.0 */
/* group_together.c - waits for HTTP answers and the data plane at once.
 *
 * The reported cause is, in this order: a server that refused before the data plane broke; the data
 * plane's error; a lost connection. Answers that come after the data plane broke are a consequence.
 * But a server's message explains more than a socket error: we wait a moment for such answers and
 * quote one, unless the cause has a hint of its own. */
#include "group.h"

#include "group_state.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* Limit for answers after the data plane broke, which servers notice by their closed sockets. */
static const int64_t BROKEN_GRACE_NS = 20 * WS_NS_PER_S;
/* Limit for the other answers after a refusal, which aborts the broadcast. */
static const int64_t REFUSED_GRACE_NS = WS_NS_PER_S;
/* A rank that finds our store closed retries for torch's timeout of 30 minutes, and its server
 * answers no requests meanwhile. So a failed join waits this long for ranks that are still coming.
 * Closing the store then makes all of them fail at once. */
static const int64_t LATECOMER_GRACE_NS = 10 * WS_NS_PER_S;
/* The same after a cancel (Ctrl-C), when the user waits. */
static const int64_t CANCELLED_GRACE_NS = 3 * WS_NS_PER_S;
/* If an endpoint vanishes, the broadcast to the others is aborted when no bytes move for this long.
 * It is aborted at once if the endpoint had not joined: no group forms without it. */
static const int64_t STALL_NS = 5 * WS_NS_PER_S;

enum { SAYING_MS = 100, TICK_MS = 100 };

struct joint_wait {
	struct ws_together *w;
	struct ws_transport *t;
	size_t pending;       /* requests without an answer */
	bool moving;          /* the data plane is working */
	bool told;            /* ops->agreed was called */
	bool lost;            /* an endpoint vanished */
	bool gave_up;         /* we aborted the broadcast because an endpoint vanished */
	bool refused;         /* an endpoint refused before the data plane broke */
	struct ws_err cause;  /* the refusal, or the error that broke the data plane */
	bool broken;
	bool known;           /* the store or `watch` reported the cause */
	/* the deadline passed; cause is then the data plane's error, if any */
	bool late;
	ws_deadline until;
	int64_t failed_ns;    /* when the join failed; 0: it has not failed */
	uint64_t bytes;       /* progress of the data plane at moved_ns */
	int64_t moved_ns;
};

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	return fd >= 0 && poll(&p, 1, 0) > 0;
}

static void tell_moved(const struct ws_group *g)
{
	if (g->opts.watch)
		g->opts.watch->moved(g->opts.watch_ctx);
}

static void tell_alive(const struct ws_group *g)
{
	if (g->opts.watch)
		g->opts.watch->alive(g->opts.watch_ctx, ws_now_ns());
}

static void tell_failed(const struct ws_group *g, enum ws_hang_end end)
{
	if (g->opts.watch)
		g->opts.watch->failed(g->opts.watch_ctx, end);
}

/* Limits the wait for answers after a failure: to LATECOMER_GRACE_NS in a join, else grace_ns. */
static void wind_up(struct joint_wait *d, int64_t grace_ns)
{
	if (d->w->joining && !d->failed_ns)
		d->failed_ns = ws_now_ns();
	d->until = ws_deadline_min(d->until,
	                           ws_deadline_in(d->w->joining ? LATECOMER_GRACE_NS : grace_ns));
}

/* Answered means http.user != NULL: collect_one sets it when it reads the answer or error. */
static bool answered(const struct ws_endpoint_call *call)
{
	return call->http.user != NULL;
}

static void collect_one(struct joint_wait *d, size_t i)
{
	struct ws_together *w = d->w;
	struct ws_endpoint_call *call = &w->calls[i];
	call->http.user = call;
	d->pending--;
	w->group->opts.members[i].ns = call->http.ns;
	char words[256] = "";
	if (ws_endpoint_reply(call, NULL, words, sizeof words, &w->errs[i]) == 0)
		w->errs[i] = (struct ws_err)WS_ERR_INIT;
	else if (w->errs[i].code == WS_EREFUSED && !d->broken && !d->refused) {
		d->refused = true;
		d->cause = w->errs[i];
		wind_up(d, REFUSED_GRACE_NS);
		d->t->ops->abort(d->t);
	} else if (w->errs[i].code == WS_EREACH)
		d->lost = true;
	if (w->messages)
		snprintf(w->messages[i], sizeof w->messages[i], "%s", words);
}

static void collect(struct joint_wait *d)
{
	for (size_t i = 0; i < d->w->n; i++)
		if (!answered(&d->w->calls[i]) && d->w->calls[i].http.done)
			collect_one(d, i);
}

static const struct ws_err *lost_one(const struct joint_wait *d, const struct ws_err *otherwise)
{
	for (size_t i = 0; i < d->w->n; i++)
		if (d->w->errs[i].code == WS_EREACH)
			return &d->w->errs[i];
	return otherwise;
}

static void break_off(struct joint_wait *d, const struct ws_err *why)
{
	if (d->late && !d->cause.code)
		d->cause = *why;
	if (d->refused || d->broken || d->late)
		return;
	/* If we aborted the broadcast, the cause is the vanished endpoint and not the abort. */
	d->cause = d->gave_up ? *lost_one(d, why) : *why;
	/* The data plane has the same deadline and may notice it first. */
	if (why->code == WS_ETIMEOUT) {
		d->late = true;
		return;
	}
	d->broken = true;
	wind_up(d, BROKEN_GRACE_NS);
}

static void collect_wire(struct joint_wait *d, int64_t start)
{
	struct ws_err e = WS_ERR_INIT;
	const int rc = d->t->ops->wait(d->t, &e);
	d->moving = false;
	d->w->wire = e.code;
	d->w->wire_ns = ws_now_ns() - start;
	/* If our own source failed, an earlier refusal is only a consequence. */
	if (!d->w->joining && (e.code == WS_EINPUT || e.code == WS_ESYSTEM))
		d->refused = d->broken = d->late = false;
	if (rc)
		break_off(d, &e);
}

/* A peer has left: waits SAYING_MS for the data plane's error, which may explain why. */
static void await_reason(struct joint_wait *d, int64_t start)
{
	struct pollfd soon = { .fd = d->t->ops->fd(d->t), .events = POLLIN };
	if (d->moving && d->t->ops->has_error_detail && poll(&soon, 1, SAYING_MS) == 1)
		collect_wire(d, start);
}

/* A lazy server joins with the first bucket. If it vanishes before, no other rank can join. */
static bool lost_before_it_joined(const struct joint_wait *d)
{
	const struct ws_together *w = d->w;
	for (size_t i = 0; i < w->n; i++) {
		struct ws_rank_status status = { .link = WS_HANG_LINKED };
		int64_t starved_ns;
		if (w->errs[i].code == WS_EREACH && d->t->ops->look)
			d->t->ops->look(d->t, w->group->opts.members[i].rank_offset, &status,
			                &starved_ns);
		if (status.link == WS_HANG_APART)
			return true;
	}
	return false;
}

static void watch_wire(struct joint_wait *d, int64_t start)
{
	struct ws_err e = WS_ERR_INIT;
	/* Check the store even after we have joined: torch may wrap a complete group (see
	 * WS_KEY_PG_WRAPPER). The servers then answer only when the store is closed. */
	if (!d->broken && ((d->w->watch && d->w->watch(d->w->ctx, &e)) ||
	                   (d->w->joining && ws_store_trouble(d->w->group->store, &e)))) {
		await_reason(d, start);
		d->known = !d->broken;
		break_off(d, &e);
		if (d->moving)
			d->t->ops->abort(d->t);
	}
	/* The data plane has the same deadline and may end first. Collecting its result aborts it,
	 * which releases all ranks. So after the deadline only stop_all collects it, when the hang
	 * report has recorded what each rank waits for. */
	if (d->moving && !ws_deadline_passed(d->until) && readable(d->t->ops->fd(d->t)))
		collect_wire(d, start);
	if (!d->moving)
		return;
	const uint64_t bytes = d->t->ops->progress(d->t);
	if (bytes != d->bytes) {
		d->bytes = bytes;
		d->moved_ns = ws_now_ns();
		tell_moved(d->w->group);
	}
	if (d->lost &&
	    (d->w->joining || ws_now_ns() - d->moved_ns > STALL_NS || lost_before_it_joined(d))) {
		d->gave_up = true;
		d->t->ops->abort(d->t);
	}
}

static void tell_agreed(struct joint_wait *d)
{
	bool all = d->w->joining && d->moving && !d->pending && !d->told;
	for (size_t i = 0; i < d->w->n; i++)
		all = all && d->w->errs[i].code == WS_OK;
	if (all && d->t->ops->agreed)
		d->t->ops->agreed(d->t);
	d->told = d->told || all;
}

/* True if no more ranks are coming: all ranks of servers without an answer are at the store. */
static bool nobody_is_coming(const struct joint_wait *d)
{
	struct ws_store_report r = { 0 };
	size_t coming = 0, here = 0;
	for (size_t i = 0; i < d->w->n; i++)
		coming += answered(&d->w->calls[i]) ? 0 : d->w->group->opts.members[i].ranks;
	if (ws_store_report(d->w->group->store, &r, NULL))
		return true;
	for (size_t i = 0; i < r.n_peers; i++)
		here += r.peers[i].joined && r.peers[i].connected && !r.peers[i].sender;
	ws_store_report_fini(&r);
	return here >= coming;
}

static bool is_over(const struct joint_wait *d)
{
	return ws_deadline_passed(d->until) ||
	       (d->failed_ns && ws_now_ns() - d->failed_ns > REFUSED_GRACE_NS &&
	        nobody_is_coming(d));
}

static void wait_for_latecomers(struct joint_wait *d)
{
	const ws_deadline until = ws_deadline_in(CANCELLED_GRACE_NS);
	d->t->ops->abort(d->t); /* else we publish, and closing the store no longer fails ranks */
	while (d->pending && !ws_deadline_passed(until) && !nobody_is_coming(d)) {
		const ws_deadline tick = ws_deadline_min(until, ws_deadline_in(100 * WS_NS_PER_MS));
		if (ws_http_wait(d->w->group->opts.http, tick, NULL, -1, NULL) < 0)
			return;
		collect(d);
	}
}

/* After an abort the data plane's thread ends soon, unless it hangs in a file read. push_guard.c
 * detects a hang by missing calls of tell_alive. */
static void await_wire(const struct joint_wait *d)
{
	struct pollfd over = { .fd = d->t->ops->fd(d->t), .events = POLLIN };
	uint64_t sent = d->t->ops->sent(d->t, NULL);
	tell_alive(d->w->group);
	while (poll(&over, 1, TICK_MS) <= 0) {
		const uint64_t now = d->t->ops->sent(d->t, NULL);
		if (now != sent)
			tell_alive(d->w->group);
		sent = now;
	}
}

/* Ends the data plane's work and drops requests without an answer. Their errs become WS_ETIMEOUT,
 * on a cancel too, because these servers may still act. The caller's err has the cancel. */
static void stop_all(struct joint_wait *d, int64_t start)
{
	struct ws_together *w = d->w;
	if (d->moving) {
		/* It has the same deadline, and reports soon for which rank it waited. */
		struct pollfd soon = { .fd = d->t->ops->fd(d->t), .events = POLLIN };
		if (!d->late || poll(&soon, 1, SAYING_MS) != 1)
			d->t->ops->abort(d->t);
		await_wire(d);
		collect_wire(d, start);
	}
	for (size_t i = 0; i < w->n; i++) {
		if (answered(&w->calls[i]))
			continue;
		ws_http_drop(w->group->opts.http, &w->calls[i].http);
		ws_err_set(&w->errs[i], WS_ETIMEOUT, "POST %s: no answer", w->calls[i].path);
		ws_err_where(&w->errs[i], NULL, w->group->opts.members[i].url);
	}
}

static bool has_rank(const struct ws_store_report *r, unsigned rank)
{
	for (size_t i = 0; i < r->n_peers; i++)
		if (r->peers[i].rank == (int)rank)
			return true;
	return false;
}

static bool is_complete(const struct ws_store_report *r, const struct ws_member *m)
{
	for (unsigned k = 0; k < m->ranks; k++)
		if (!has_rank(r, m->rank_offset + k))
			return false;
	return true;
}

/* Returns the URL of the endpoint that has this rank; NULL: no endpoint has it. */
static const char *find_owner(const struct joint_wait *d, unsigned rank)
{
	for (size_t i = 0; rank && i < d->w->group->opts.n_members; i++) {
		const struct ws_member *m = &d->w->group->opts.members[i];
		if (rank >= m->rank_offset && rank - m->rank_offset < m->ranks)
			return m->url;
	}
	return NULL;
}

/* Returns the endpoint to report as late, or NULL. While a group forms, no server answers until
 * all ranks have joined: prefer an endpoint with a rank that has not come to the store. Later,
 * prefer the endpoint for which the data plane waited. Else the first without an answer. */
static const char *find_silent(const struct joint_wait *d)
{
	const struct ws_together *w = d->w;
	const char *silent = NULL, *absent = w->joining ? NULL : find_owner(d, d->cause.rank);
	struct ws_store_report r = { 0 };
	const bool known = w->joining && ws_store_report(w->group->store, &r, NULL) == 0;
	for (size_t i = 0; i < w->n; i++) {
		const struct ws_member *m = &w->group->opts.members[i];
		if (w->errs[i].code != WS_ETIMEOUT)
			continue;
		silent = silent ? silent : m->url;
		if (known && !absent && !is_complete(&r, m))
			absent = m->url;
	}
	ws_store_report_fini(&r);
	return absent ? absent : silent;
}

/* Returns " and 2 more" if other endpoints have not answered either, else "". */
static const char *others(const struct ws_together *w, const char *silent, char *dst, size_t n)
{
	size_t more = 0;
	for (size_t i = 0; i < w->n; i++)
		more += w->errs[i].code == WS_ETIMEOUT && w->group->opts.members[i].url != silent;
	if (!silent || !more)
		return "";
	snprintf(dst, n, " and %zu more", more);
	return dst;
}

static int say_late(const struct joint_wait *d, struct ws_err *err)
{
	const struct ws_together *w = d->w;
	const char *silent = find_silent(d);
	char more[32];
	ws_err_set(err, WS_ETIMEOUT, "%s: the deadline passed%s%s%s%s%s", w->what,
	           silent ? " without an answer from " : "", silent ? silent : "",
	           others(w, silent, more, sizeof more), d->cause.msg[0] ? "; " : "", d->cause.msg);
	return ws_err_where(err, NULL, silent);
}

/* The data plane sees a closed connection; the server's answer says why it was closed. */
static void quote_answer(const struct ws_err *answer, struct ws_err *err)
{
	char hint[sizeof err->hint];
	snprintf(hint, sizeof hint, "%s", err->hint);
	ws_err_hint(err, "%s: %s%s%s", answer->endpoint, answer->msg, hint[0] ? "; " : "", hint);
}

static int say_cause(const struct joint_wait *d, struct ws_err *err)
{
	const struct ws_together *w = d->w;
	const struct ws_err *other = NULL; /* first error of a server, preferably not a timeout */
	for (size_t i = 0; i < w->n; i++)
		if (w->errs[i].code != WS_OK && (!other || other->code == WS_ETIMEOUT))
			other = &w->errs[i];
	if (!d->refused && !d->broken && !other)
		return 0;
	if (!err)
		return -1;
	*err = d->refused || d->broken ? d->cause : *other;
	if (!w->joining && err->code == WS_EREACH) {
		/* The endpoint was there when the transfer began: report a failed transfer. */
		ws_err_wrap(err, "the endpoint vanished");
		err->code = WS_EDATA;
		err->hint[0] = 0;
	}
	if (d->broken && !d->gave_up)
		ws_err_where(err, NULL, find_owner(d, err->rank));
	if (d->broken && !d->gave_up && other && other->code != WS_ETIMEOUT) {
		/* A known cause has its own hint; the answer is only its consequence. */
		const bool is_socket = err->code == WS_EDATA || err->code == WS_EREACH;
		if (!err->hint[0] || (is_socket && !d->known))
			quote_answer(other, err);
		ws_err_where(err, NULL, other->endpoint);
	}
	return -1;
}

static bool is_well(const struct joint_wait *d)
{
	return !d->refused && !d->broken && !d->late && !d->lost;
}

static bool is_on(const struct joint_wait *d)
{
	return !d->late && (d->moving || (d->pending && !(d->w->later && is_well(d))));
}

/* The requests have the same deadline, so a request's timeout counts too. */
static bool ran_late(const struct joint_wait *d)
{
	bool late = d->late;
	for (size_t i = 0; i < d->w->n; i++)
		late = late || d->w->errs[i].code == WS_ETIMEOUT;
	return late;
}

static int run_together(struct ws_together *w, struct ws_err *err)
{
	struct ws_transport *t = w->group->transport;
	const int64_t start = ws_now_ns();
	struct joint_wait d = { .w = w, .t = t, .moving = true, .until = w->until,
		                .bytes = t->ops->progress(t), .moved_ns = start };
	int rc = 0;
	for (size_t i = 0; i < w->n; i++)
		d.pending += !answered(&w->calls[i]);
	while (is_on(&d)) {
		const ws_deadline tick = ws_deadline_in(100 * WS_NS_PER_MS);
		rc = ws_http_wait(w->group->opts.http, ws_deadline_min(d.until, tick), w->cancel,
		                  d.moving ? t->ops->fd(t) : -1, err);
		if (rc < 0)
			break;
		collect(&d);
		tell_agreed(&d);
		watch_wire(&d, start);
		if (w->tick)
			w->tick(w->ctx);
		d.late = d.late || is_over(&d);
	}
	if (rc < 0)
		tell_failed(w->group, WS_HANG_CANCELLED);
	if (rc < 0 && w->joining)
		wait_for_latecomers(&d);
	w->group->rest_since = ws_now_ns();
	if (rc >= 0 && w->later && is_well(&d))
		return 0;
	if (rc >= 0 && ran_late(&d))
		tell_failed(w->group, WS_HANG_DEADLINE); /* before stop_all changes the state */
	stop_all(&d, start);
	if (rc < 0)
		return -1;
	/* A lost endpoint is the cause: late endpoints may only wait for its ranks. */
	if (ran_late(&d) && !d.refused && !d.broken && !(d.lost && !w->joining))
		return say_late(&d, err);
	return say_cause(&d, err);
}

int ws_group_together(struct ws_together *w, struct ws_err *err)
{
	const struct ws_group_opts *o = &w->group->opts;
	struct ws_transport *t = w->group->transport;
	if (o->watch)
		o->watch->begins(o->watch_ctx, w);
	const int rc = run_together(w, err);
	if (o->watch)
		o->watch->ends(o->watch_ctx);
	if (rc) /* the group is unusable, and an orderly close could wait for a rank that hangs */
		t->ops->abort(t);
	return rc;
}
