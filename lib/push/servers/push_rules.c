/* SPDX-License-Identifier: Apache-2.0 */
/* push_rules.c - which pauses and flushes can be combined at which servers.
 *
 * A flush needs a scheduler without running and waiting requests. Paused in mode retract or
 * in_place, a server still has its requests. A flush that comes with the weights then fails or
 * crashes the server, depending on the lineage, and the weights have already changed. vLLM empties
 * its caches with the pause. */
#include "push_protocol.h"

static const char *set_remedy(const char **remedy, const char *hint, const char *why)
{
	if (remedy)
		*remedy = hint;
	return why;
}

/* Why this pause is impossible with any flush; NULL: it is possible. */
static const char *refuse_pause(const struct ws_capabilities *can, enum ws_pause_mode pause,
                                const char **remedy)
{
	if (pause != WS_PAUSE_NONE && !can->pause)
		return set_remedy(
			remedy,
			"use {pause} none: an update waits by itself for the requests that run",
			"it cannot pause");
	if (pause == WS_PAUSE_RETRACT && can->pause_wait)
		return set_remedy(remedy, "use {pause} abort or wait",
		                  "it cannot send running requests back to its queue");
	if (pause == WS_PAUSE_WAIT && !can->pause_wait)
		return set_remedy(remedy, "use {pause} abort",
		                  "its pause does not wait for running requests: only vLLM's does");
	if ((pause == WS_PAUSE_RETRACT || pause == WS_PAUSE_IN_PLACE) && !can->pause_modes &&
	    !can->pause_wait)
		return set_remedy(remedy, "use {pause} abort, or {pause} none",
		                  "it knows one way to pause, which aborts its requests");
	if (pause == WS_PAUSE_NONE && (can->session || can->dies_of_prompt))
		return set_remedy(
			remedy, "use {pause} abort",
			"between the begin and the end of an update its weights are in no order to "
			"compute with, so it must not run requests then");
	return NULL;
}

static const char *refuse_busy(const struct ws_capabilities *can, const char **remedy)
{
	static const char remedies[] = "use {pause} abort, or {flush} never";
	if (can->dies_of_flush)
		return set_remedy(remedy, remedies,
		                  "it holds requests, and a flush after an update that finds "
		                  "any ends this server");
	if (can->late_refusal)
		return set_remedy(remedy, remedies,
		                  "it holds requests, and a flush that finds any is refused "
		                  "after the weights have changed");
	return set_remedy(remedy, remedies,
	                  "it holds requests, and a flush that finds any is refused");
}

const char *ws_push_refuses(const struct ws_capabilities *can, enum ws_pause_mode pause,
                            enum ws_push_flush flush, bool idle, bool no_cache,
                            const char **remedy)
{
	const char *why;
	if (pause == WS_PAUSE_IN_PLACE && flush != WS_FLUSH_NEVER)
		return set_remedy(
			remedy, "use {flush} never with it, or {pause} abort",
			"{pause} in_place keeps the requests and their cache, and a server that "
			"holds requests refuses a flush or dies of it");
	if (!can)
		return NULL;
	if ((why = refuse_pause(can, pause, remedy)))
		return why;
	const bool wanted = flush != WS_FLUSH_NEVER && !no_cache;
	if (wanted && !can->flush)
		return set_remedy(remedy, "use {flush} never", can->pause_wait ?
		                  "it has no /reset_prefix_cache" : "it has no /flush_cache");
	/* Without a pause, an update itself holds back requests until it has flushed. Do not rely
	 * on that if the server can pause. */
	if (idle || (pause == WS_PAUSE_NONE && !can->pause))
		return NULL;
	if (wanted)
		return refuse_busy(can, remedy);
	if (can->forces_flush)
		return set_remedy(remedy, "use {pause} abort",
		                  "it holds requests, flushes after every update "
		                  "whatever it is told, and dies of a flush that finds any");
	return NULL;
}

/* ---- at these endpoints ---- */

/* A cache is empty while its memory is released. */
static bool caches_are_released(const struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (!(p->to.endpoints[i].asleep & WS_MEMORY_KV_CACHE))
			return false;
	return p->opts.n_endpoints > 0;
}

enum ws_push_flush push_flush_when(const struct ws_push *p)
{
	if (caches_are_released(p) || p->opts.stage)
		return WS_FLUSH_NEVER;
	if (p->turn.not_last && !p->turn.flush_too && p->opts.flush == WS_FLUSH_LAST)
		return WS_FLUSH_NEVER; /* the last of several senders flushes */
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (!p->to.known || !p->to.infos[i].disable_radix_cache)
			return p->opts.flush;
	return p->opts.n_endpoints ? WS_FLUSH_NEVER : p->opts.flush;
}

bool push_flushes(const struct ws_push *p)
{
	bool forced = false;
	if (caches_are_released(p))
		return false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		forced |= push_can(p, i)->forces_flush;
	return forced || push_flush_when(p) != WS_FLUSH_NEVER;
}

int push_refuse_pause(const struct ws_push *p, size_t i, bool idle, struct ws_err *err)
{
	const char *remedy = NULL;
	const char *why = ws_push_refuses(push_can(p, i), p->opts.pause, push_flush_when(p), idle,
	                                  false, &remedy);
	if (!why && p->opts.pause == WS_PAUSE_NONE && p->protocol->needs_pause) {
		why = "this protocol needs a paused server: the server does not stop its requests "
		      "itself";
		remedy = "use {pause} abort, or {protocol} update";
	}
	if (!why)
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s: %s", p->to.endpoints[i].url, why);
	ws_err_hint(err, "%s", remedy ? remedy : "");
	return ws_err_where(err, NULL, p->to.endpoints[i].url);
}
