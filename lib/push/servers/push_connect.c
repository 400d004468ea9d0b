/* SPDX-License-Identifier: Apache-2.0 */
/* push_connect.c - who the endpoints are, what may be asked of them, and pausing and resuming them.
 *
 * What cannot work is refused here, before anything at the servers has changed. */
#include "push_protocol.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* How long the answer to a first request to continue may take; a second is
 * given twice that, and so on. */
static const int64_t PAUSE_AGAIN_NS = 2 * WS_NS_PER_S;
static const int64_t RESUME_NS = 2 * WS_NS_PER_S;
static const int64_t RESUME_AGAIN_NS = 300 * WS_NS_PER_MS;
/* All of them, of an endpoint that did not answer before: no longer than this. */
static const int64_t RESUME_SILENT_NS = 12 * WS_NS_PER_S;
enum { RESUME_TRIES = 3 };
/* How long requests in flight may take to end after an abort pause. */
static const int64_t IDLE_NS = 60 * WS_NS_PER_S;

static void emit_endpoint(struct ws_push *p, size_t i, enum ws_phase phase, const struct ws_err *e,
                          const char *message, int64_t ns)
{
	const struct ws_event ev = {
		.type = WS_EV_ENDPOINT,
		.endpoint = { .url = p->to.endpoints[i].url, .phase = phase, .ok = e->code == WS_OK,
		              .rank_offset = p->to.members[i].rank_offset,
		              .ranks = p->to.infos[i].tp_size ? p->to.members[i].ranks : 0,
		              .version = p->to.infos[i].version,
		              .weight_version = p->to.infos[i].weight_version,
		              .message = e->code == WS_OK ? message : e->msg, .ns = ns },
	};
	push_emit(p, &ev);
}

/* ---- connect --------------------------------------------------------------------------------- */

/* Ranks of an endpoint are rank_offset + tp_rank and nothing else enters: pipeline stages would
 * collide, and data-parallel replicas that are not attention groups refuse the request. */
int push_check_ranks(const struct ws_endpoint_info *info, struct ws_err *err)
{
	if (ws_endpoint_check_tp(info, err))
		return -1;
	if (info->pp_size > 1) {
		ws_err_set(err, WS_EREFUSED,
		           "%s runs %u pipeline stages, which would take the same ranks "
		           "of a weight-update group",
		           info->url, info->pp_size);
		return ws_err_hint(err, "run the server with pp_size 1");
	}
	if (info->dp_size > 1 && !info->dp_attention) {
		ws_err_set(err, WS_EREFUSED,
		           "%s runs dp_size %u without dp-attention and refuses weight "
		           "updates",
		           info->url, info->dp_size);
		return ws_err_hint(err, "give each replica its own URL, or start the server with "
		                        "--enable-dp-attention");
	}
	if (info->tp_size > 1024)
		return ws_err_set(err, WS_EREFUSED, "%s claims tp_size %u", info->url,
		                  info->tp_size);
	return 0;
}

/* From 2.23 on NCCL refuses ranks of different versions when they join; before that
 * they hang or get garbage. */
static int check_nccl(const struct ws_push *p, const struct ws_endpoint_info *info,
                      struct ws_err *err)
{
	if (!p->link.nccl_version[0] || !info->nccl_version[0] ||
	    strcmp(p->link.nccl_version, info->nccl_version) == 0)
		return 0;
	ws_err_set(err, WS_EDATA, "%s has NCCL %s, and %s was loaded here", info->url,
	           info->nccl_version, p->link.nccl_version);
	return ws_err_hint(err, "all ranks must have one version: load the servers' own by "
	                        "--nccl-lib or --nccl-from");
}

int push_connect(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	p->to.probed = !p->to.known || !p->link.group;
	if (!p->to.probed)
		return 0;
	p->to.known = false;
	push_names_forget(p);
	push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	/* An endpoint that was restarted may have another address. One that is paused must be
	 * reached although its name cannot be looked up any more. */
	ws_http_keep_names(p->http, false);
	const int rc = ws_endpoint_probe_all(p->http, p->to.urls, n, until, p->opts.cancel,
	                                     p->to.infos, p->to.errs, err);
	ws_http_keep_names(p->http, true);
	unsigned offset = 1;
	for (size_t i = 0; i < n; i++) {
		const unsigned tp = p->to.infos[i].tp_size ? p->to.infos[i].tp_size : 1;
		p->to.members[i] = (struct ws_member){ .url = p->to.endpoints[i].url,
			                               .host = p->to.infos[i].host,
			                               .rank_offset = offset,
			                               .ranks = tp };
		offset += tp;
		emit_endpoint(p, i, WS_PHASE_CONNECT, &p->to.errs[i], "", p->to.infos[i].ns);
	}
	/* With several endpoints "some answered" is still not reached:
	 * nothing was changed anywhere. */
	for (size_t i = 0; rc && i < n; i++) {
		if (p->to.errs[i].code == WS_OK)
			continue;
		if (err)
			*err = p->to.errs[i];
		ws_err_where(err, NULL, p->to.endpoints[i].url);
		return -1;
	}
	if (rc)
		return -1;
	for (size_t i = 0; i < n; i++) {
		ws_endpoint_assume(&p->to.infos[i], p->opts.lineage);
		if ((!p->protocol->any_ranks && push_check_ranks(&p->to.infos[i], err)) ||
		    check_nccl(p, &p->to.infos[i], err))
			return ws_err_where(err, NULL, p->to.endpoints[i].url);
	}
	p->to.known = true;
	return 0;
}

/* To send what does not go tensor by tensor. */
static const char *how_else(const struct ws_push *p)
{
	if (p->protocol->tensors_only)
		return "use --protocol update, with flattened buckets it sends bytes";
	if (p->opts.format == WS_PUSH_FORMAT_NONE)
		return "use --load-format flattened_bucket, which sends bytes";
	return "it goes as bytes in flattened buckets, which an endpoint does not know: a later "
	       "release "
	       "of its server does";
}

int push_check_plan(struct ws_push *p, struct ws_err *err)
{
	const struct ws_plan *plan = p->from.plan;
	const struct ws_transport *t = p->link.group ? ws_group_transport(p->link.group) : NULL;
	const bool flattened = plan->format == WS_FORMAT_FLATTENED;
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const char *dtype = ws_dtype_torch(plan->tensors[i].dtype);
		const char *why = p->link.transport->refuses(t, dtype, flattened);
		if (!why)
			continue;
		ws_err_set(err, WS_EREFUSED, "tensor %s is %s: %s", plan->tensors[i].name, dtype,
		           why);
		return flattened ? -1 : ws_err_hint(err, "%s", how_else(p));
	}
	return 0;
}

/* ---- pause, flush, resume -------------------------------------------------------------------- */

int push_pause(struct ws_push *p, struct ws_err *err)
{
	if (p->opts.pause == WS_PAUSE_NONE)
		return 0;
	const size_t n = push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	const int rc = ws_endpoint_pause(p->http, p->to.urls, n, p->opts.pause, until,
	                                 p->opts.cancel, p->to.answers, err);
	for (size_t i = 0; i < n; i++) {
		const enum ws_code code = p->to.answers[i].err.code;
		/* A request that left and was not answered may have been obeyed. */
		push_note_silence(p, i, &p->to.answers[i].err);
		const bool obeyed =
			p->to.answers[i].sent && !ws_endpoint_said_no(&p->to.answers[i].err);
		p->to.endpoints[i].paused_now = obeyed;
		p->to.endpoints[i].paused |=
			obeyed; /* an earlier line of --stdin may have left it paused */
		if (code != WS_OK)
			snprintf(p->to.endpoints[i].message, sizeof p->to.endpoints[i].message,
			         "%.255s", p->to.answers[i].err.msg);
		emit_endpoint(p, i, WS_PHASE_PAUSE, &p->to.answers[i].err, p->to.answers[i].message,
		              p->to.answers[i].ns);
	}
	for (size_t i = 0; rc && i < n; i++) {
		if (p->to.answers[i].err.code == WS_OK)
			continue;
		if (err)
			*err = p->to.answers[i].err;
		break;
	}
	return rc;
}

/* A flush that finds requests fails after the weights have changed, or kills the server. So the
 * first flush is asked for by itself, while nothing is at stake: a server that grants it is
 * idle, and being paused it stays idle until the last bucket. */
int push_flush(struct ws_push *p, struct ws_err *err)
{
	if (!push_flushes(p))
		return 0;
	const size_t n = push_select(p, NULL);
	const ws_deadline patience = ws_deadline_in(p->opts.pause == WS_PAUSE_ABORT ? IDLE_NS : 0);
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	if (ws_endpoint_flush(p->http, p->to.urls, n, ws_deadline_min(patience, until), until,
	                      p->opts.cancel, p->to.answers, err) == 0)
		return 0;
	for (size_t i = 0; i < n; i++)
		push_note_silence(p, i, &p->to.answers[i].err);
	for (size_t i = 0; i < n; i++) {
		const struct ws_err *said = &p->to.answers[i].err;
		if (said->code == WS_EREFUSED && said->native == 400) {
			if (push_refuse_pause(p, i, false, err))
				return -1;
		} else if (said->code != WS_OK) {
			if (err)
				*err = *said;
			return -1;
		}
	}
	if (err)
		*err = (struct ws_err)WS_ERR_INIT; /* the busy ones see to it by themselves */
	return 0;
}

static bool holds_mixture(const struct push_endpoint *e)
{
	return e->paused && e->weights.state == WS_PARTIAL;
}

static void sleep_ns(int64_t ns)
{
	const struct timespec ts = { .tv_sec = ns / WS_NS_PER_S, .tv_nsec = ns % WS_NS_PER_S };
	nanosleep(&ts, NULL);
}

/* A server that has released memory stays paused: it would die of the first prompt. */
static bool stays_paused(const struct ws_push *p, const struct push_endpoint *e)
{
	return e->paused &&
	       (e->asleep || (holds_mixture(e) && p->opts.on_partial == WS_PARTIAL_PAUSE));
}

/* Collects the endpoints to resume into urls/index: silent ones, which did not answer the last
 * request, or the others. Returns how many. */
static size_t select_paused(struct ws_push *p, bool silent)
{
	size_t n = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (!e->paused || e->silent != silent || stays_paused(p, e))
			continue;
		p->to.urls[n] = e->url;
		p->to.index[n++] = i;
	}
	return n;
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
	ws_endpoint_resume(p->http, p->to.urls, n, until, NULL, p->to.answers, NULL);
	const bool last = try == RESUME_TRIES || ws_deadline_passed(patience);
	for (size_t k = 0; k < n; k++) {
		const size_t i = p->to.index[k];
		const struct ws_endpoint_answer *a = &p->to.answers[k];
		/* Where nobody listened for a moment, something else does now. */
		const bool gone = a->err.code == WS_EREACH && (last || !a->sent);
		if (gone)
			push_note_gone(p, i, &a->err);
		if (gone && err)
			*err = a->err;
		if (a->err.code != WS_OK && !last)
			continue;
		p->to.endpoints[i].paused = a->err.code != WS_OK;
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
		emit_endpoint(p, i, WS_PHASE_RESUME, &a->err, a->message, a->ns);
	}
}

static void resume_those(struct ws_push *p, bool silent, struct ws_err *err)
{
	const ws_deadline patience = silent ? push_patience(p, RESUME_SILENT_NS) : WS_FOREVER;
	size_t n = 0;
	for (int try = 1; try <= RESUME_TRIES && (n = select_paused(p, silent)) > 0; try++) {
		if (try > 1 && ws_deadline_passed(patience))
			break;
		if (try > 1)
			sleep_ns(RESUME_AGAIN_NS);
		resume_once(p, n, try, patience, err);
	}
}

/* Another push, or a restart in the middle of this run, may have resumed endpoints that this run
 * must leave paused, and few servers report that. An endpoint that this run has not paused is
 * left alone: it may have been restarted since the record was written, and serve again. */
static void pause_again(struct ws_push *p)
{
	size_t n = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (e->paused_now && stays_paused(p, e) && !e->silent)
			p->to.urls[n++] = e->url;
	}
	if (n)
		ws_endpoint_pause(p->http, p->to.urls, n, p->opts.pause,
		                  push_patience(p, PAUSE_AGAIN_NS), NULL, p->to.answers, NULL);
}

static void say_left(struct ws_push *p, const struct push_endpoint *e)
{
	const char *why = e->weights.state != WS_PARTIAL ? "" :
	                  e->weights.random ? "it may hold random weights" :
	                  e->slept ? "its weights were released and are not complete" :
	                  "it has some old and some new weights";
	if (e->paused && e->asleep)
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
		stays = stays || (p->to.endpoints[i].paused && !p->to.endpoints[i].asleep);
	ws_err_wrap(&why, stays ? "an endpoint stays paused" :
	                          "an endpoint went away before it was resumed");
	if (stays)
		ws_err_hint(&why, "tell it to continue: wsync-ctl resume");
	if (err)
		*err = why;
	return -1;
}
