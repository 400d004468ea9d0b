/* SPDX-License-Identifier: Apache-2.0 */
/* serve_state.c - the state machine: which request may run in which state.
 *
 * As in the servers, two mechanisms exclude requests. The scheduler runs one request at a time: an
 * init that waits for its group blocks a later flush, and a destroy waits for the update before
 * it. Outside a pause, an update takes the model-update lock and waits until no generation runs.
 * During a pause, updates run at once, and a continue waits for them. */
#include "serve_core.h"

#include <stdlib.h>
#include <string.h>

static void announce(struct ws_serve *s)
{
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

bool ws_serve_acquire(struct ws_serve *s, bool receiving)
{
	pthread_mutex_lock(&s->lock);
	while (s->occupied && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !s->stopping;
	if (ok) {
		s->occupied = true;
		s->receiving = receiving;
		s->dirty |= receiving;
	}
	pthread_mutex_unlock(&s->lock);
	return ok;
}

void ws_serve_release(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->occupied = s->receiving = false;
	announce(s);
}

void ws_serve_mark_dirty(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->dirty = true;
	pthread_mutex_unlock(&s->lock);
}

void ws_serve_abort_requests(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->running = s->waiting = 0;
	announce(s);
}

bool ws_serve_enter_update(struct ws_serve *s, bool abort_all, bool *writer)
{
	if (abort_all)
		ws_serve_abort_requests(s);
	pthread_mutex_lock(&s->lock);
	while (!s->stopping && !s->paused && (s->running || s->writer))
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !s->stopping;
	*writer = !s->paused;
	if (ok && *writer)
		s->writer = true;
	else if (ok)
		s->under_pause++;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

void ws_serve_leave_update(struct ws_serve *s, bool writer)
{
	pthread_mutex_lock(&s->lock);
	if (writer)
		s->writer = false;
	else
		s->under_pause--;
	announce(s);
}

const char *const ws_serve_pause_names[3] = { "abort", "retract", "in_place" };

const char *const *ws_serve_pause_names_of(const struct ws_serve *s)
{
	/* vLLM lets running requests end, or keeps them. */
	static const char *const vllm[3] = { "abort", "wait", "keep" };
	return s->vllm ? vllm : ws_serve_pause_names;
}

bool ws_serve_pause(struct ws_serve *s, enum ws_pause_mode mode)
{
	pthread_mutex_lock(&s->lock);
	s->paused = true;
	s->mode = mode;
	s->sync++;
	if (mode == WS_PAUSE_RETRACT) {
		s->waiting += s->running;
		s->running = 0;
	}
	/* Only abort waits for the model-update lock; the other modes answer at once. */
	while (mode == WS_PAUSE_ABORT && s->writer && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	if (mode == WS_PAUSE_ABORT)
		s->running = s->waiting = 0;
	const bool ok = !s->stopping;
	announce(s);
	return ok;
}

/* Restores the emulated load: retracted requests run again, and clients send new requests. */
bool ws_serve_continue(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->under_pause && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !s->stopping;
	s->paused = false;
	s->running = s->opts.busy;
	s->waiting = 0;
	announce(s);
	return ok;
}

void ws_serve_wait_changed(struct ws_serve *s, ws_deadline until)
{
	const struct timespec ts = { .tv_sec = (time_t)(until / WS_NS_PER_S),
		                     .tv_nsec = (long)(until % WS_NS_PER_S) };
	pthread_cond_timedwait(&s->changed, &s->lock, &ts);
}

bool ws_serve_flush(struct ws_serve *s, int64_t wait_ns)
{
	const ws_deadline until = ws_deadline_in(wait_ns);
	pthread_mutex_lock(&s->lock);
	while (!s->stopping && (s->running || s->waiting) && !ws_deadline_passed(until))
		ws_serve_wait_changed(s, until);
	const bool idle = !s->running && !s->waiting;
	if (idle) {
		s->journal.flushes++;
		ws_serve_prompts_forget(s);
	} else {
		s->journal.failed_flushes++;
	}
	pthread_mutex_unlock(&s->lock);
	return idle;
}

int ws_serve_set_text(struct ws_serve *s, char **at, const char *text, struct ws_err *err)
{
	char *copy = strdup(text);
	if (!copy)
		return ws_oom(err);
	pthread_mutex_lock(&s->lock);
	free(*at);
	*at = copy;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

void ws_serve_wait_stop(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	while (!s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
}
