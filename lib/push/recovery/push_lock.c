/* SPDX-License-Identifier: Apache-2.0 */
/* push_lock.c - waits for an endpoint or a turn that another process has. Events name that process
 * after 10 s. The interval then doubles each time, up to 60 s (as in watchdog.c). */
#include "push_state.h"

#include "wsync/tool/str.h"

#include <stdio.h>

#define FIRST_PACE_NS   (10 * WS_NS_PER_S)
#define SLOWEST_PACE_NS (60 * WS_NS_PER_S)

void push_wait_begin(struct push_wait *w, int64_t most)
{
	w->since = w->told = ws_now_ns();
	w->most = most;
	w->until = ws_deadline_in(most);
	w->pace = FIRST_PACE_NS;
}

int64_t push_wait_piece(const struct push_wait *w)
{
	const int64_t left = ws_deadline_left(w->until), silent = ws_now_ns() - w->told;
	const int64_t piece = silent < w->pace ? w->pace - silent : 1;
	return left < 1 ? 1 : left < piece ? left : piece;
}

bool push_wait_on(struct ws_push *p, struct push_wait *w, struct ws_err *so)
{
	const int64_t now = ws_now_ns(), waited = now - w->since;
	char text[1024];
	if (ws_deadline_passed(w->until) || ws_deadline_left(p->run.until) <= 0) {
		const struct ws_err was = *so;
		ws_format_duration(text, sizeof text, w->most);
		ws_err_set(so, was.code, "%s after %s", was.msg, text);
		ws_err_where(so, NULL, was.endpoint);
		return false;
	}
	if (now - w->told < w->pace)
		return true;
	snprintf(text, sizeof text, "waiting %lld s: %s", (long long)(waited / WS_NS_PER_S),
	         so->msg);
	push_emit(p, &(struct ws_event){
			     .type = WS_EV_WAITING,
			     .waiting = { .phase = p->run.phase, .ns = waited, .message = text } });
	w->told = now;
	w->pace = w->pace < SLOWEST_PACE_NS / 2 ? 2 * w->pace : SLOWEST_PACE_NS;
	return true;
}
