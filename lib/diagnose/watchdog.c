/* SPDX-License-Identifier: Apache-2.0 */
#include "watchdog_state.h"

#include "wsync/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t REPORT_NS = 10 * WS_NS_PER_S;
static const int64_t SLOWEST_PACE_NS = 60 * WS_NS_PER_S;
/* A shorter wait that the user interrupts is not reported. */
static const int64_t WORTH_TELLING_NS = 2 * WS_NS_PER_S;

/* ---- observed requests ----------------------------------------------------------------------- */

static struct watchdog_seen *seen_of(struct ws_watchdog *x, const struct ws_http_call *call,
                                     size_t *n_url)
{
	for (size_t i = 0; i < x->opts.n; i++) {
		*n_url = strlen(x->opts.urls[i]);
		if (strncmp(call->url, x->opts.urls[i], *n_url) == 0 && call->url[*n_url] == '/')
			return &x->seen[i];
	}
	return NULL;
}

static enum ws_hang_request request_of(const struct ws_http_call *call)
{
	static const enum ws_hang_request stages[] = {
		[WS_HTTP_CONNECTING] = WS_HANG_CONNECTING, [WS_HTTP_SENDING] = WS_HANG_SENDING,
		[WS_HTTP_SENT] = WS_HANG_SENT, [WS_HTTP_ANSWERING] = WS_HANG_ANSWERING,
	};
	if (call->done && call->err.code == WS_OK)
		return WS_HANG_ANSWERED;
	if (call->done && call->err.code != WS_ETIMEOUT)
		return WS_HANG_BROKEN;
	return stages[call->stage];
}

static void see(void *ctx, const struct ws_http_call *call)
{
	struct ws_watchdog *x = ctx;
	size_t n_url;
	struct watchdog_seen *s = call->user == x ? NULL : seen_of(x, call, &n_url);
	if (!s)
		return;
	const char *path = call->url + n_url;
	s->request = request_of(call);
	s->ns = call->ns;
	s->status = call->status;
	snprintf(s->route, sizeof s->route, "%s %.*s", call->method, (int)strcspn(path, "?"), path);
	if (call->address[0])
		memcpy(s->address, call->address, sizeof s->address);
}

/* ---- events during a wait -------------------------------------------------------------------- */

static int64_t report_interval(const struct ws_watchdog *x)
{
	return x->opts.report_ns > 0 ? x->opts.report_ns : REPORT_NS;
}

void ws_watchdog_touch(struct ws_watchdog *x)
{
	if (!x)
		return;
	x->pace_ns = report_interval(x);
	x->tell_at = ws_now_ns() + x->pace_ns;
}

static void tell_waiting(struct ws_watchdog *x)
{
	struct ws_hang h = { .endpoints = NULL };
	struct ws_buf text;
	ws_buf_init(&text, 16384);
	ws_http_each(x->opts.http, see, x);
	if (watchdog_collect(x, WS_HANG_WAITING, &h) == 0) {
		ws_hang_tell_briefly(&h, &text);
		const struct ws_event ev = { .type = WS_EV_WAITING,
			                     .waiting = { .phase = x->phase, .ns = h.waited_ns,
			                                  .message = ws_buf_str(&text) } };
		x->opts.sink.event(x->opts.sink.ctx, &ev);
	}
	ws_buf_free(&text);
	ws_hang_fini(&h);
}

void ws_watchdog_alive(struct ws_watchdog *x, ws_deadline due)
{
	if (x && x->opts.alive)
		x->opts.alive(x->opts.ctx, due);
}

/* The pause between two events doubles, up to a minute. */
static void turn(void *ctx)
{
	struct ws_watchdog *x = ctx;
	const int64_t now = ws_now_ns();
	ws_watchdog_alive(x, 0);
	if (now < x->tell_at || x->has_snapshot || !x->opts.sink.event)
		return;
	x->tell_at = now + x->pace_ns;
	x->pace_ns = x->pace_ns < SLOWEST_PACE_NS / 2 ? 2 * x->pace_ns : SLOWEST_PACE_NS;
	tell_waiting(x);
}

static void forget(struct ws_watchdog *x)
{
	watchdog_probe_end(x, NULL);
	ws_hang_fini(&x->hang);
	x->has_snapshot = false;
}

/* ---- calls from the operation ---------------------------------------------------------------- */

int ws_watchdog_open(const struct ws_watchdog_opts *opts, struct ws_watchdog **out,
                     struct ws_err *err)
{
	struct ws_watchdog *x = calloc(1, sizeof *x);
	if (!x || !(x->seen = calloc(opts->n + 1, sizeof *x->seen))) {
		free(x);
		return ws_oom(err);
	}
	x->opts = *opts;
	x->phase_since = ws_now_ns();
	ws_watchdog_touch(x);
	ws_http_watch(opts->http, &(struct ws_http_watch){ turn, see, x });
	*out = x;
	return 0;
}

void ws_watchdog_close(struct ws_watchdog *x)
{
	if (!x)
		return;
	forget(x);
	ws_http_watch(x->opts.http, NULL);
	free(x->seen);
	free(x);
}

void ws_watchdog_phase(struct ws_watchdog *x, enum ws_phase phase,
                       const struct ws_watchdog_limit *limits, size_t n)
{
	if (!x)
		return;
	x->phase = phase;
	x->phase_since = ws_now_ns();
	x->n_limits = n < WATCHDOG_LIMITS ? n : WATCHDOG_LIMITS;
	memcpy(x->limits, limits, x->n_limits * sizeof *limits);
	ws_watchdog_touch(x);
}

void ws_watchdog_bucket(struct ws_watchdog *x, size_t b, size_t n, uint64_t bytes, bool flush)
{
	if (!x)
		return;
	if (b == 0)
		x->n_arrived = 0;
	x->bucket = b;
	x->buckets = n;
	x->bytes = bytes;
	x->flush = flush;
}

void ws_watchdog_arrived(struct ws_watchdog *x)
{
	if (x)
		x->n_arrived = x->bucket + 1;
}

static void wait_begins(void *ctx, const struct ws_together *w)
{
	struct ws_watchdog *x = ctx;
	if (!x)
		return;
	x->wait = w;
	x->wait_since = x->moved_at = ws_now_ns();
}

static void wait_moved(void *ctx)
{
	struct ws_watchdog *x = ctx;
	if (!x)
		return;
	x->moved_at = ws_now_ns();
	ws_watchdog_touch(x);
}

static void wait_alive(void *ctx, ws_deadline due)
{
	ws_watchdog_alive(ctx, due);
}

static void wait_failed(void *ctx, enum ws_hang_end end)
{
	ws_watchdog_snapshot(ctx, end);
}

static void tell_strangers(const struct ws_watchdog *x, struct ws_store *s)
{
	struct ws_store_stranger who;
	char text[256];
	while (s && x->opts.sink.event && ws_store_stranger(s, &who)) {
		snprintf(text, sizeof text,
		         "a connection from %s was closed, and had no effect: %s", who.address,
		         who.why);
		const struct ws_event ev = { .type = WS_EV_WARNING,
			                     .warning = { .url = "", .message = text } };
		x->opts.sink.event(x->opts.sink.ctx, &ev);
	}
}

static void wait_ends(void *ctx)
{
	struct ws_watchdog *x = ctx;
	if (!x)
		return;
	tell_strangers(x, ws_group_store(x->wait->group));
	x->wait = NULL;
}

const struct ws_group_watch ws_watchdog_group = {
	.begins = wait_begins,
	.moved = wait_moved,
	.alive = wait_alive,
	.failed = wait_failed,
	.ends = wait_ends,
};

/* ---- the end --------------------------------------------------------------------------------- */

void ws_watchdog_snapshot(struct ws_watchdog *x, enum ws_hang_end end)
{
	if (!x || x->has_snapshot)
		return;
	ws_http_each(x->opts.http, see, x);
	if (watchdog_collect(x, end, &x->hang))
		return;
	x->has_snapshot = true;
	/* An endpoint that has not answered its first request would not answer probes. */
	if (end == WS_HANG_DEADLINE && x->phase != WS_PHASE_CONNECT)
		watchdog_probe_begin(x, &x->hang);
}

void ws_watchdog_failed(struct ws_watchdog *x, const struct ws_err *err)
{
	if (!x)
		return;
	if (err->code == WS_ETIMEOUT)
		ws_watchdog_snapshot(x, WS_HANG_DEADLINE);
	else if (err->code == WS_ECANCELLED)
		ws_watchdog_snapshot(x, WS_HANG_CANCELLED);
	else
		forget(x);
}

/* A wait for a lock or a file is not reported: its own error explains it. */
static bool is_worth_it(const struct ws_hang *h)
{
	if (h->wait == WS_HANG_OURSELVES && h->phase != WS_PHASE_VERIFY)
		return false;
	return h->end == WS_HANG_DEADLINE || h->waited_ns > WORTH_TELLING_NS;
}

void ws_watchdog_finish(struct ws_watchdog *x, struct ws_err *err)
{
	if (!x || !x->has_snapshot)
		return;
	watchdog_probe_end(x, &x->hang);
	if (is_worth_it(&x->hang)) {
		const struct ws_event ev = { .type = WS_EV_HANG, .hang = &x->hang };
		ws_hang_find_cause(&x->hang);
		if (x->opts.sink.event)
			x->opts.sink.event(x->opts.sink.ctx, &ev);
		if (err && !err->hint[0] && x->hang.end == WS_HANG_DEADLINE)
			ws_err_hint(err, "%s", x->hang.remedy);
	}
	forget(x);
}
