/* SPDX-License-Identifier: Apache-2.0 */
/* push_wake.c - endpoints that sleep: their weights are woken before anything is sent, their caches when
 * all has arrived and was verified.
 *
 * No server tells that it sleeps, and one that is asked for memory that it did not give away dies, so the
 * user says what sleeps. Where the push fails in between, the caches stay where they are: weights that came
 * back empty, or half of them new, are no weights to answer with. */
#include "push_state.h"

#include <stdio.h>
#include <string.h>

static int wake(struct ws_push *p, unsigned memory, struct ws_err *err)
{
	const size_t n = push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->until, ws_deadline_in(p->opts.bucket_ns));
	const int rc = ws_endpoint_wake(p->http, p->infos, p->urls, n, memory, until, p->opts.cancel,
	                                p->answers, err);
	for (size_t i = 0; i < n; i++) {
		push_note_silence(p, i, &p->answers[i].err);
		push_note_gone(p, i, &p->answers[i].err);
	}
	for (size_t i = 0; i < n; i++)
		if (p->answers[i].err.code != WS_OK)
			snprintf(p->endpoints[i].message, sizeof p->endpoints[i].message, "%.255s",
			         p->answers[i].err.msg);
	if (rc == 0)
		p->asleep &= ~memory;
	/* Weights are the same everywhere, so it is the first failure and not "some and some not". */
	for (size_t i = 0; rc && err && i < n; i++) {
		if (p->answers[i].err.code == WS_OK)
			continue;
		*err = p->answers[i].err;
		err->phase[0] = 0; /* part of ours */
		break;
	}
	return rc;
}

int push_wake_weights(struct ws_push *p, struct ws_err *err)
{
	return p->asleep & WS_MEMORY_WEIGHTS ? wake(p, WS_MEMORY_WEIGHTS, err) : 0;
}

int push_wake_caches(struct ws_push *p, struct ws_err *err)
{
	const unsigned rest = p->asleep & ~(unsigned)WS_MEMORY_WEIGHTS;
	if (!rest || wake(p, rest, err) == 0)
		return 0;
	return ws_err_hint(err, "the weights have arrived; wake the caches: wsync-ctl wake --tags");
}

/* What servers say when they are told to write into memory that they have given away. */
static bool speaks_of_memory(const char *text)
{
	return strstr(text, "illegal memory access") || strstr(text, "released") || strstr(text, "asleep") ||
	       strstr(text, "sleeping");
}

void push_warn_asleep(struct ws_push *p, struct ws_err *err)
{
	if (!p->opts.asleep && err->code == WS_EREFUSED && !err->hint[0] && speaks_of_memory(err->msg))
		ws_err_hint(err, "if the endpoint sleeps, say what it has given away: --asleep "
		                 "weights,kv_cache");
	if (p->asleep && p->opts.n_endpoints && p->asleep != p->opts.asleep)
		push_warn(p, NULL, "the weights of the endpoints were woken and their caches were not: "
		          "push again, without \"weights\" in --asleep");
}
