/* SPDX-License-Identifier: Apache-2.0 */
/* push_watchdog.c - opens the watchdog of a push (watchdog.h), and gives it the limits of each
 * phase. */
#include "push_state.h"

static void alive(void *ctx, ws_deadline due)
{
	if (due)
		push_alive_until(ctx, due);
	else
		push_alive(ctx);
}

int push_watchdog_open(struct ws_push *p, struct ws_err *err)
{
	const struct ws_watchdog_opts o = { .http = p->http, .urls = p->opts.endpoints,
		                           .n = p->opts.n_endpoints, .sink = p->opts.sink,
		                           .alive = alive, .ctx = p };
	return ws_watchdog_open(&o, &p->watch.watchdog, err);
}

void push_watchdog_phase(struct ws_push *p)
{
	const struct ws_watchdog_limit connect = { "connect_ns", p->opts.connect_ns, 0 };
	const struct ws_watchdog_limit init = { "init_ns", p->opts.init_ns, 0 };
	const struct ws_watchdog_limit bucket = { "bucket_ns", p->opts.bucket_ns, 0 };
	struct ws_watchdog_limit limits[3] = { bucket, connect };
	size_t n = 2;
	if (p->run.phase == WS_PHASE_INIT)
		limits[0] = init;
	if (p->run.phase == WS_PHASE_CONNECT)
		limits[0] = connect;
	if (p->run.phase == WS_PHASE_RESUME || p->run.phase == WS_PHASE_DESTROY)
		n = 0; /* their limits are fixed, no option sets them */
	if (n && p->run.until != WS_FOREVER)
		limits[n++] = (struct ws_watchdog_limit){ "timeout_ns", p->opts.timeout_ns,
			                                  p->run.until };
	ws_watchdog_phase(p->watch.watchdog, p->run.phase, limits, n);
}
