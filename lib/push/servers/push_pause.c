/* SPDX-License-Identifier: Apache-2.0 */
/* push_pause.c - pauses and flushes servers before the transfer, and resumes them afterwards. */
#include "push_state.h"

#include <stdio.h>
#include <stdlib.h>

/* After an abort pause, requests in flight must end within this time. */
static const int64_t IDLE_NS = 60 * WS_NS_PER_S;
/* For a flush that the server owes, before it is resumed after a failure elsewhere. */
static const int64_t FLUSH_UNDO_NS = 2 * WS_NS_PER_S;
static const int64_t PAUSE_AGAIN_NS = 2 * WS_NS_PER_S;
/* Timeout of the first resume request; the second gets twice as long, and so on. */
static const int64_t RESUME_NS = 2 * WS_NS_PER_S;
static const int64_t RESUME_AGAIN_NS = 300 * WS_NS_PER_MS;
/* For all resume requests to an endpoint that did not answer before. */
static const int64_t RESUME_SILENT_NS = 12 * WS_NS_PER_S;
enum { RESUME_TRIES = 3 };

static void note_prefix(struct push_endpoint *e, const char *route)
{
	e->caches.of[WS_CACHE_PREFIX] = (struct ws_cache_state){ WS_CACHE_CLEARED, route };
}

int push_pause(struct ws_push *p, struct ws_err *err)
{
	if (p->opts.pause == WS_PAUSE_NONE)
		return 0;
	const size_t n = push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const struct ws_err *first = NULL;
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	const int64_t since = ws_now_ns();
	const bool clear = push_flush_when(p) != WS_FLUSH_NEVER;
	const int rc = ws_endpoint_pause(&to, p->opts.pause, clear, p->to.call.answers, err);
	for (size_t i = 0; i < n; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		const struct ws_endpoint_answer *a = &p->to.call.answers[i];
		push_note_failure(p, i, &a->err);
		/* A server may have executed a request that it did not answer. */
		e->paused_now = a->sent && !ws_endpoint_said_no(&a->err);
		e->paused |= e->paused_now; /* an earlier run may have left it paused */
		e->paused_since = e->paused_now ? since : 0;
		if (clear && a->err.code == WS_OK && push_to_vllm(p, i))
			note_prefix(e, "/pause");
		if (a->err.code != WS_OK)
			snprintf(e->message, sizeof e->message, "%.255s", a->err.msg);
		if (a->err.code != WS_OK && !first)
			first = &a->err;
		push_emit_endpoint(p, i, WS_PHASE_PAUSE, &a->err, a->message, a->ns);
	}
	if (rc && first && err)
		*err = *first;
	return rc;
}

/* A vLLM up to 0.25 does not say whether it dropped its cache; its pause has confirmed that. */
static bool has_cleared(const struct push_endpoint *e, const struct ws_err *said)
{
	return said->code == WS_OK || (ws_endpoint_is_silent_reset(said) &&
	                               e->caches.of[WS_CACHE_PREFIX].fact == WS_CACHE_CLEARED);
}

/* A flush that finds requests fails after the weights have changed, or crashes the server. So the
 * first flush is a request of its own, before anything changes. A server that confirms it is idle.
 * It is paused, so it stays idle until the last bucket. A vLLM is asked too, although its pause
 * clears: its "clear_cache" is deprecated, and a server ignores parameters that it does not
 * know. */
int push_flush(struct ws_push *p, struct ws_err *err)
{
	const size_t n = push_flushes(p) ? push_select(p, NULL) : 0;
	if (!n)
		return 0;
	const bool ends = p->opts.pause == WS_PAUSE_ABORT || p->opts.pause == WS_PAUSE_WAIT;
	const ws_deadline patience = ws_deadline_in(ends ? IDLE_NS : 0);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	(void)ws_endpoint_flush(&to, ws_deadline_min(patience, until), p->to.call.answers, err);
	for (size_t k = 0; k < n; k++)
		push_note_failure(p, p->to.call.index[k], &p->to.call.answers[k].err);
	for (size_t k = 0; k < n; k++) {
		const size_t i = p->to.call.index[k];
		const struct ws_err *said = &p->to.call.answers[k].err;
		if (has_cleared(&p->to.endpoints[i], said)) {
			if (said->code == WS_OK)
				note_prefix(&p->to.endpoints[i], push_to_vllm(p, i) ?
				            "/reset_prefix_cache" : "/flush_cache");
		} else if (ws_endpoint_is_busy(said)) {
			if (push_refuse_pause(p, i, false, err))
				return -1;
		} else {
			if (err)
				*err = *said;
			return -1;
		}
	}
	if (err)
		*err = (struct ws_err)WS_ERR_INIT; /* the busy servers flush by themselves */
	return 0;
}

static bool is_unflushed(const struct push_endpoint *e)
{
	return e->unflushed;
}

/* *n: the number of those that were asked. -1: cancelled, or a system error; they may be flushed
 * all the same. */
static int flush_unflushed(struct ws_push *p, ws_deadline until, const struct ws_cancel *cancel,
                           size_t *n, struct ws_err *err)
{
	*n = push_select(p, is_unflushed);
	const struct ws_call to = push_call_made(p, until, cancel);
	struct ws_err why = WS_ERR_INIT;
	if (*n)
		ws_endpoint_flush(&to, until, p->to.call.answers, &why);
	for (size_t k = 0; k < *n; k++) {
		struct push_endpoint *e = &p->to.endpoints[p->to.call.index[k]];
		const enum ws_code code = p->to.call.answers[k].err.code;
		e->unflushed = code != WS_OK;
		e->timed_out = e->timed_out || code == WS_ETIMEOUT;
		if (!e->unflushed && e->weights.state == WS_COMMITTED)
			e->message[0] = 0; /* that it was not flushed */
	}
	if (why.code != WS_ECANCELLED && why.code != WS_ESYSTEM)
		return 0;
	if (err)
		*err = why;
	return -1;
}

int push_flush_again(struct ws_push *p, struct ws_err *err)
{
	const int64_t most = p->opts.bucket_ns < IDLE_NS ? p->opts.bucket_ns : IDLE_NS;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(most));
	const struct ws_err *first = NULL;
	size_t n;
	const int rc = flush_unflushed(p, until, p->opts.cancel, &n, err);
	for (size_t k = 0; k < n; k++) {
		const size_t i = p->to.call.index[k];
		const struct ws_err *said = &p->to.call.answers[k].err;
		push_note_failure(p, i, said);
		push_note_gone(p, i, said);
		if (said->code != WS_OK && !first)
			first = said;
	}
	if (rc || !first)
		return rc;
	if (err)
		*err = *first;
	if (first->code != WS_EREFUSED && first->code != WS_ETIMEOUT)
		return -1;
	p->run.flush_failed = true;
	ws_err_wrap(err, "%s has the new weights, but still the cache of the old ones",
	            first->endpoint);
	return ws_err_hint(err, "new answers may continue from that cache: wsync-ctl flush empties "
	                        "it when the server runs no requests");
}

void push_flush_undo(struct ws_push *p)
{
	size_t n;
	if (!p->run.flush_failed)
		(void)flush_unflushed(p, push_cleanup_deadline(p, FLUSH_UNDO_NS), NULL, &n, NULL);
}

/* ---- the other caches ---- */

/* What the run did to the prefix cache, whose flush has its own errors. */
static void settle_prefix(const struct ws_push *p, size_t i, bool wanted)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	struct ws_cache_state *prefix = &e->caches.of[WS_CACHE_PREFIX];
	if (p->to.infos[i].disable_radix_cache)
		*prefix = (struct ws_cache_state){ WS_CACHE_NONE, NULL };
	else if (e->asleep & WS_MEMORY_KV_CACHE)
		note_prefix(e, push_to_vllm(p, i) ? "/sleep" : "/release_memory_occupation");
	else if (!wanted || e->unflushed)
		*prefix = (struct ws_cache_state){ WS_CACHE_OLD, NULL };
	else if (prefix->fact == WS_CACHE_UNTOLD && !push_to_vllm(p, i))
		note_prefix(e, "flush_cache"); /* busy before: the update has flushed it */
	/* The first scheduler answers for all of them. */
	if (prefix->fact == WS_CACHE_CLEARED && !push_to_vllm(p, i) &&
	    p->to.infos[i].dp_attention && p->to.infos[i].dp_size > 1)
		prefix->fact = WS_CACHE_UNTOLD;
}

/* Names the caches that may hold results of the old weights. */
static void warn_of_caches(struct ws_push *p, size_t i)
{
	const struct ws_endpoint_info *info = &p->to.infos[i];
	const struct ws_cache_state *of = p->to.endpoints[i].caches.of;
	if (*info->external && of[WS_CACHE_EXTERNAL].fact != WS_CACHE_CLEARED)
		push_warn(p, info->url,
		          "its external cache (%s) %s results of the old weights: this server has "
		          "no route that is known to clear it, or the route failed",
		          info->external,
		          of[WS_CACHE_EXTERNAL].fact == WS_CACHE_OLD ? "has" : "may have");
	if (of[WS_CACHE_ENCODER].fact == WS_CACHE_OLD)
		push_warn(p, info->url,
		          "its cache of encoder outputs was not cleared: answers to images seen "
		          "before may use the old weights%s",
		          push_to_vllm(p, i) ? "" : "; SGLANG_VLM_CACHE_SIZE_MB=0 turns it off");
	if (of[WS_CACHE_MULTIMODAL].fact == WS_CACHE_OLD)
		push_warn(p, info->url, "its cache of prepared images was not cleared");
}

int push_clear_caches(struct ws_push *p, struct ws_err *err)
{
	const bool wanted = p->opts.flush != WS_FLUSH_NEVER &&
	                    (!p->turn.not_last || p->turn.flush_too);
	const size_t n = push_select(p, NULL);
	struct ws_caches *caches = calloc(n + 1, sizeof *caches);
	if (!caches)
		return ws_oom(err);
	for (size_t k = 0; k < n; k++) {
		settle_prefix(p, p->to.call.index[k], wanted);
		caches[k] = p->to.endpoints[p->to.call.index[k]].caches;
	}
	const int64_t most = p->opts.bucket_ns < IDLE_NS ? p->opts.bucket_ns : IDLE_NS;
	const struct ws_call to = push_call_made(
		p, ws_deadline_min(p->run.until, ws_deadline_in(most)), p->opts.cancel);
	const int rc = ws_endpoint_clear_caches(&to, wanted, caches, err);
	for (size_t k = 0; k < n; k++) {
		const size_t i = p->to.call.index[k];
		p->to.endpoints[i].caches = caches[k];
		if (wanted)
			warn_of_caches(p, i);
	}
	free(caches);
	return rc;
}

static bool holds_mixture(const struct push_endpoint *e)
{
	return e->paused && e->weights.state == WS_PARTIAL;
}

/* A server that has released memory stays paused: the first prompt would crash it. */
static bool stays_paused(const struct ws_push *p, const struct push_endpoint *e)
{
	return e->paused &&
	       (push_lacks_memory(e) ||
	        (holds_mixture(e) && p->opts.on_partial == WS_PARTIAL_PAUSE));
}

/* Starts a call to the paused endpoints that are to be resumed. silent: those that did not answer
 * the last request; else the others. Returns how many. */
static size_t select_paused(struct ws_push *p, bool silent)
{
	push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (e->paused && e->timed_out == silent && !stays_paused(p, e))
			push_call_add(p, i);
	}
	return p->to.call.n;
}

void push_note_gone(struct ws_push *p, size_t i, const struct ws_err *why)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	if (why->code != WS_EREACH || !push_has_all(e))
		return;
	push_target_event(&e->weights, PUSH_WITHDRAWN);
	snprintf(e->message, sizeof e->message, "%.255s", why->msg);
}

static void resume_once(struct ws_push *p, size_t n, int try, ws_deadline patience,
                        struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(patience, ws_deadline_in(try * RESUME_NS));
	const struct ws_call to = push_call_made(p, until, NULL);
	const int64_t since = ws_now_ns();
	ws_endpoint_resume(&to, p->to.call.answers, NULL);
	const bool last = try == RESUME_TRIES || ws_deadline_passed(patience);
	for (size_t k = 0; k < n; k++) {
		const size_t i = p->to.call.index[k];
		const struct ws_endpoint_answer *a = &p->to.call.answers[k];
		/* A server that refused connections may be replaced by another one. */
		const bool gone = a->err.code == WS_EREACH && (last || !a->sent);
		if (gone)
			push_note_gone(p, i, &a->err);
		if (gone && err)
			*err = a->err;
		if (a->err.code != WS_OK && !last)
			continue;
		p->to.endpoints[i].paused = a->err.code != WS_OK;
		if (!p->to.endpoints[i].paused && p->to.endpoints[i].paused_since)
			p->to.endpoints[i].paused_ns =
				since + a->ns - p->to.endpoints[i].paused_since;
		if (p->to.endpoints[i].paused) {
			push_warn(p, p->to.endpoints[i].url, "could not be resumed: %s",
			          a->err.msg);
			if (err)
				*err = a->err;
		} else if (p->to.endpoints[i].weights.state == WS_PARTIAL) {
			push_warn(p, p->to.endpoints[i].url,
			          "resumed %s weights: push again before its answers are used",
			          p->to.endpoints[i].weights.random ? "and may hold random" :
			                                              "with some old and some new");
		}
		push_emit_endpoint(p, i, WS_PHASE_RESUME, &a->err, a->message, a->ns);
	}
}

static void resume_those(struct ws_push *p, bool silent, struct ws_err *err)
{
	const ws_deadline patience =
		silent ? push_cleanup_deadline(p, RESUME_SILENT_NS) : WS_FOREVER;
	size_t n = 0;
	for (int try = 1; try <= RESUME_TRIES && (n = select_paused(p, silent)) > 0; try++) {
		if (try > 1 && ws_deadline_passed(patience))
			break;
		if (try > 1)
			ws_sleep(RESUME_AGAIN_NS);
		resume_once(p, n, try, patience, err);
	}
}

/* Another push, or a restart during this run, may have resumed endpoints that this run must leave
 * paused. Few servers report that. An endpoint that this run did not pause is left alone: it may
 * have restarted since its record was written, and may serve again. */
static void pause_again(struct ws_push *p)
{
	struct push_call *call = push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (e->paused_now && stays_paused(p, e) && !e->timed_out)
			push_call_add(p, i);
	}
	const struct ws_call to = push_call_made(p, push_cleanup_deadline(p, PAUSE_AGAIN_NS), NULL);
	if (call->n)
		ws_endpoint_pause(&to, p->opts.pause, false, p->to.call.answers, NULL);
}

static void say_left(struct ws_push *p, const struct push_endpoint *e)
{
	const char *why = e->weights.state != WS_PARTIAL ? "" :
	                  e->weights.random              ? "it may hold random weights" :
	                  e->slept ? "its weights were released and are not complete" :
	                             "it has some old and some new weights";
	if (e->paused && e->unsure)
		push_warn(p, e->url, "left paused: %s%sit is not known whether this is released: "
		          "%s", why, *why ? "; " : "", ws_memory_text(e->unsure));
	else if (e->paused && e->asleep)
		push_warn(p, e->url, "left paused: %s%sstill released: %s", why, *why ? "; " : "",
		          ws_memory_text(e->asleep));
	else if (holds_mixture(e) && p->opts.on_partial == WS_PARTIAL_PAUSE)
		push_warn(p, e->url, "left paused: %s", why);
	else if (e->weights.random && !e->paused)
		push_warn(p, e->url,
		          "it may hold random weights: push again before its answers are used");
}

int push_resume(struct ws_push *p, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	pause_again(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		say_left(p, &p->to.endpoints[i]);
	resume_those(p, false, &why);
	resume_those(p, true, &why);
	if (why.code == WS_OK)
		return 0;
	bool stays = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		stays = stays || (p->to.endpoints[i].paused &&
		                  !push_lacks_memory(&p->to.endpoints[i]));
	ws_err_wrap(&why, stays ? "an endpoint stays paused" :
	                          "an endpoint went away before it was resumed");
	if (stays)
		ws_err_hint(&why, "to resume it: wsync-ctl resume");
	if (err)
		*err = why;
	return -1;
}
