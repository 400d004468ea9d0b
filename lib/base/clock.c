/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/clock.h"

#include <time.h>

int64_t ws_now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * WS_NS_PER_S + ts.tv_nsec;
}

ws_deadline ws_deadline_in(int64_t ns)
{
	const int64_t now = ws_now_ns();
	if (ns <= 0)
		return now;
	return ns >= INT64_MAX - now ? WS_FOREVER : now + ns;
}

int64_t ws_deadline_left(ws_deadline until)
{
	if (until == WS_FOREVER)
		return INT64_MAX;
	const int64_t now = ws_now_ns();
	return until > now ? until - now : 0;
}

ws_deadline ws_deadline_part(ws_deadline until, int n)
{
	return until == WS_FOREVER ? until : ws_deadline_in(ws_deadline_left(until) / n);
}

bool ws_deadline_passed(ws_deadline until)
{
	return ws_deadline_left(until) == 0;
}

int ws_deadline_poll_ms(ws_deadline until, int most_ms)
{
	const int64_t left = ws_deadline_left(until);
	if (left >= (int64_t)most_ms * WS_NS_PER_MS)
		return most_ms;
	return (int)((left + WS_NS_PER_MS - 1) / WS_NS_PER_MS);
}

void ws_sleep(int64_t ns)
{
	const struct timespec ts = { .tv_sec = ns / WS_NS_PER_S, .tv_nsec = ns % WS_NS_PER_S };
	nanosleep(&ts, NULL);
}
