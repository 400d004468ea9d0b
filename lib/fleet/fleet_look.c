/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_look.c - is an endpoint ready, and if not, why?
 *
 * Nothing here changes a server. An endpoint counts as ready only for what it reported before the
 * records of pushes were read: a push records "paused" before it changes anything, so a push that
 * began meanwhile is found there. */
#include "wsync/tool/fleet.h"

#include "current.h"
#include "endpoint_seen.h"

#include "wsync/tool/deeds.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_ready_name(enum ws_ready ready)
{
	static const char *const names[WS_N_READY] = {
		[WS_READY] = "ready",               [WS_READY_UNREACHED] = "unreached",
		[WS_READY_PARTIAL] = "partial",     [WS_READY_HELD] = "held",
		[WS_READY_VERSION] = "version",     [WS_READY_STALE] = "stale",
		[WS_READY_BYTES] = "bytes",         [WS_READY_UNPROVEN] = "unproven",
		[WS_READY_PAUSED] = "paused",       [WS_READY_UNHEALTHY] = "unhealthy",
	};
	return (unsigned)ready < WS_N_READY ? names[ready] : "unknown";
}

bool ws_ready_lacks(enum ws_ready ready)
{
	return ready > WS_READY && ready < WS_READY_PAUSED;
}

/* What is filled for the endpoints that were reached; index[k] is that of the k-th. */
struct look {
	const struct ws_fleet_look_opts *opts;
	struct ws_fleet_view *views;
	size_t n, *index;
	const char **urls;
	struct ws_endpoint_info *infos;
	const struct ws_endpoint_info **known;
	struct ws_err *errs;
	struct ws_seen *seen;
	struct ws_endpoint_answer *answers;
	struct ws_verify_result *results;
};

static void __attribute__((format(printf, 3, 4)))
judge(struct ws_fleet_view *v, enum ws_ready ready, const char *fmt, ...)
{
	va_list args;
	if (v->ready && v->ready <= ready)
		return;
	v->ready = ready;
	va_start(args, fmt);
	vsnprintf(v->why, sizeof v->why, fmt, args);
	va_end(args);
}

static bool is_fatal(const struct ws_err *why, struct ws_err *err)
{
	if (why->code != WS_ECANCELLED && why->code != WS_ESYSTEM)
		return false;
	if (err)
		*err = *why;
	return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static ws_deadline step_until(const struct look *l)
{
	return ws_deadline_min(ws_deadline_part(l->opts->until, 2),
	                       ws_deadline_in(l->opts->step_ns));
}

static struct ws_call call_to(const struct look *l)
{
	return (struct ws_call){ .http = l->opts->http, .urls = l->urls, .n = l->n,
		                 .until = step_until(l), .cancel = l->opts->cancel,
		                 .infos = l->known };
}

static int probe(struct look *l, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const struct ws_fleet_look_opts *o = l->opts;
	const struct ws_call to = { o->http, o->endpoints, o->n_endpoints, step_until(l), o->cancel,
		                    NULL };
	if (ws_endpoint_probe_all(&to, l->infos, l->errs, &why) && is_fatal(&why, err))
		return -1;
	for (size_t i = 0; i < o->n_endpoints; i++) {
		struct ws_fleet_view *v = &l->views[i];
		if (l->errs[i].code) {
			v->err = l->errs[i];
			judge(v, WS_READY_UNREACHED, "%s", v->err.msg);
			continue;
		}
		v->info = l->infos[i];
		ws_endpoint_assume(&v->info, o->lineage);
		l->infos[l->n] = v->info;
		l->urls[l->n] = v->url;
		l->known[l->n] = &l->infos[l->n];
		l->index[l->n++] = i;
	}
	return 0;
}

static int see(struct look *l, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const struct ws_call to = call_to(l);
	const char *wanted = l->opts->weight_version;
	if (ws_endpoint_see(&to, l->infos, WS_SEE_VERSION | WS_SEE_PAUSE, l->seen, l->errs, &why) &&
	    is_fatal(&why, err))
		return -1;
	for (size_t k = 0; k < l->n; k++) {
		struct ws_fleet_view *v = &l->views[l->index[k]];
		const struct ws_seen *s = &l->seen[k];
		if (l->errs[k].code) {
			v->err = l->errs[k];
			judge(v, WS_READY_UNREACHED, "%s", v->err.msg);
			continue;
		}
		if (*s->version)
			memcpy(v->info.weight_version, s->version, sizeof v->info.weight_version);
		v->info.runs = s->pause == WS_SEEN_RUNS;
		v->paused = s->pause == WS_SEEN_PAUSED;
		if (!wanted || strcmp(v->info.weight_version, wanted) == 0)
			continue;
		if (*v->info.weight_version)
			judge(v, WS_READY_VERSION, "it has weight version %s, and not %s",
			      v->info.weight_version, wanted);
		else
			judge(v, WS_READY_VERSION, "it reports no weight version");
	}
	return 0;
}

static int ask_health(struct look *l, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const struct ws_call to = call_to(l);
	if (!l->opts->health || !l->n)
		return 0;
	if (ws_endpoint_health(&to, l->answers, &why) && is_fatal(&why, err))
		return -1;
	for (size_t k = 0; k < l->n; k++)
		if (l->answers[k].err.code)
			judge(&l->views[l->index[k]], WS_READY_UNHEALTHY, "%s",
			      l->answers[k].err.msg);
	return 0;
}

/* In percent; 100 only if nothing of the server was left out. */
static double checksums_cover(const struct ws_verify_result *r)
{
	const double n = (double)r->equal, all = n + (double)r->not_sent;
	return r->not_sent ? (double)(uint64_t)(n / all * 1000) / 10 : 100;
}

/* Only of the endpoints that lack nothing otherwise: a server reads all of its weights for it. */
static int prove(struct look *l, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_verify_opts o;
	size_t n = 0;
	for (size_t k = 0; k < l->n; k++)
		if (!ws_ready_lacks(l->views[l->index[k]].ready) &&
		    !l->views[l->index[k]].unreadable) {
			l->urls[n] = l->urls[k];
			l->index[n++] = l->index[k];
		}
	if (!n)
		return 0;
	o = *l->opts->proof;
	o.endpoints = l->urls;
	o.n_endpoints = n;
	o.samples = 0; /* a sample proves nothing about the rest */
	if (ws_verify_weights(&o, l->results, &why) &&
	    (is_fatal(&why, err) || why.code == WS_EINPUT)) {
		*err = why;
		return -1;
	}
	for (size_t k = 0; k < n; k++) {
		struct ws_fleet_view *v = &l->views[l->index[k]];
		const struct ws_verify_result *r = &l->results[k];
		v->coverage = r->means == WS_MEANS_PROOF ? r->proof.percent :
		              r->err.code == WS_OK       ? checksums_cover(r) :
		                                           -1;
		v->not_covered = r->err.code == WS_OK ? r->not_sent : 0;
		if (r->err.code == WS_EMISMATCH && *v->info.weight_version)
			judge(v, WS_READY_BYTES, "it has weight version %s, but other bytes: %s",
			      v->info.weight_version, r->err.msg);
		else if (r->err.code)
			judge(v, r->err.code == WS_EMISMATCH ? WS_READY_BYTES : WS_READY_UNPROVEN,
			      "%s", r->err.msg);
	}
	return 0;
}

/* ---- records --------------------------------------------------------------------------------- */

static const char *fate_of(const struct ws_journal_entry *e)
{
	return e->record.ended || e->fate == WS_PROCESS_DEAD ? "which has ended" :
	       e->fate == WS_PROCESS_ALIVE                   ? "which is running" :
	                                     "which cannot be seen from here";
}

/* Pauses, and memory whose content is not lost. */
static bool is_harmless(const struct ws_fleet_view *v, const struct ws_journal_endpoint *at)
{
	const bool kept = v->info.info_path && ws_endpoint_keeps_weights(&v->info);
	return at->state != WS_PARTIAL &&
	       (kept || !((at->asleep | at->unsure) & WS_MEMORY_WEIGHTS));
}

static void judge_record(struct ws_fleet_view *v, const struct ws_journal_entry *e,
                         const struct ws_journal_endpoint *was)
{
	const struct ws_journal_endpoint now =
		ws_known_now(e, was, v->info.info_path ? &v->info : NULL), *at = &now;
	const struct ws_process *of = &e->record.process;
	const long long pid = (long long)of->pid;
	const char *mixture = ws_journal_mixture(at);
	if (e->record.by_hand && !ws_journal_owes(at))
		return;
	if (e->record.by_hand && is_harmless(v, at)) {
		judge(v, WS_READY_PAUSED, "%s by wsync-ctl, process %lld on %s",
		      at->unsure                     ? "its memory may be released" :
		      at->paused                     ? "it is paused" :
		      at->asleep & WS_MEMORY_WEIGHTS ? "its memory is released" :
		                                       "its caches are released", pid, of->host);
		return;
	}
	v->mixed |= mixture != NULL;
	v->held |= at->paused && (e->record.ended || e->fate == WS_PROCESS_DEAD);
	if (mixture)
		judge(v, WS_READY_PARTIAL, "%s, since %s %lld on %s, %s", mixture,
		      e->record.by_hand ? "wsync-ctl" : "push", pid, of->host, fate_of(e));
	else if (at->paused || at->asleep || at->unsure)
		judge(v, WS_READY_HELD, "%s by push %lld on %s, %s",
		      at->unsure ? "its memory may be released" :
		      at->paused ? "it is paused" :
		                   "its caches are released", pid, of->host,
		      fate_of(e));
}

/* What the server says itself, if no record says who did it. */
static void judge_memory(struct ws_fleet_view *v, const struct ws_journal_list *list,
                         bool proves)
{
	const struct ws_endpoint_info *info = v->info.info_path ? &v->info : NULL;
	const struct ws_known k = ws_known(list, v->url, info);
	v->unreadable = !ws_known_readable(&k, info);
	if (v->unreadable && proves)
		judge(v, WS_READY_UNPROVEN, "%s, and cannot be compared",
		      ws_known_memory(&k, info));
	if (v->info.sleeping)
		judge(v, WS_READY_PAUSED, "it sleeps, and its memory is released");
	if (v->paused)
		judge(v, WS_READY_PAUSED, "it is paused, and no push that is recorded here has "
		      "paused it");
}

static void warn(const struct look *l, const char *text)
{
	const struct ws_event ev = { .type = WS_EV_WARNING,
		                     .warning = { .url = "", .message = text } };
	if (l->opts->sink.event)
		l->opts->sink.event(l->opts->sink.ctx, &ev);
}

static int read_records(struct look *l, bool warns, struct ws_err *err)
{
	struct ws_journal_list list = { 0 };
	if (l->opts->state_dir && ws_journal_list(l->opts->state_dir, &list, err))
		return -1;
	for (size_t i = 0; i < list.n; i++) {
		const struct ws_journal_entry *e = &list.items[i];
		if (e->err.code && warns)
			warn(l, e->err.msg);
		for (size_t k = 0; !e->err.code && k < e->record.n_endpoints; k++)
			for (size_t v = 0; v < l->opts->n_endpoints; v++)
				if (ws_journal_is_about(&e->record.endpoints[k], l->views[v].url,
				                        l->views[v].info.info_path ?
				                                &l->views[v].info :
				                                NULL))
					judge_record(&l->views[v], e, &e->record.endpoints[k]);
	}
	for (size_t v = 0; v < l->opts->n_endpoints; v++)
		judge_memory(&l->views[v], &list, l->opts->proof != NULL);
	ws_journal_list_free(&list);
	return 0;
}

/* ---- whose weights it has ---- */

/* Nothing is left to doubt if the checksums have proven all bytes: then its names fit, and so does
 * its format. */
static void take_proof(struct ws_fleet_view *v)
{
	v->current = WS_CURRENT_BY_PROOF;
	v->established |= WS_REQUIRE_NAMES | WS_REQUIRE_FORMAT | WS_REQUIRE_BYTES;
}

/* After the records, for the same reason. Without a wanted version its label is not in question. */
static int judge_current(struct look *l, struct ws_err *err)
{
	struct ws_history history = { 0 };
	if (l->opts->state_dir && ws_history_read(l->opts->state_dir, &history, err))
		return -1;
	for (size_t i = 0; i < l->opts->n_endpoints; i++) {
		struct ws_fleet_view *v = &l->views[i];
		struct fleet_current c;
		if (v->ready == WS_READY_UNREACHED)
			continue;
		fleet_current_judge(&history, v->url, &v->info,
		                    l->opts->weight_version ? l->opts->has_plan : NULL,
		                    l->opts->plan_ctx, &c);
		v->current = c.by;
		v->established = c.established;
		v->push = c.push;
		if (v->coverage >= 100 && !v->not_covered && !ws_ready_lacks(v->ready))
			take_proof(v);
		else if (c.by == WS_CURRENT_NOT && l->opts->weight_version)
			judge(v, WS_READY_STALE, "it has weight version %s, but %s",
			      v->info.weight_version, c.why);
	}
	ws_history_free(&history);
	return 0;
}

/* ---- all ------------------------------------------------------------------------------------- */

static int make_room(struct look *l, struct ws_err *err)
{
	const size_t n = l->opts->n_endpoints + 1;
	l->index = calloc(n, sizeof *l->index);
	l->urls = calloc(n, sizeof *l->urls);
	l->infos = calloc(n, sizeof *l->infos);
	l->known = calloc(n, sizeof *l->known);
	l->errs = calloc(n, sizeof *l->errs);
	l->seen = calloc(n, sizeof *l->seen);
	l->answers = calloc(n, sizeof *l->answers);
	l->results = calloc(n, sizeof *l->results);
	return l->index && l->urls && l->infos && l->known && l->errs && l->seen && l->answers &&
	                       l->results ?
	               0 :
	               ws_oom(err);
}

int ws_fleet_look(const struct ws_fleet_look_opts *opts, struct ws_fleet_view *views,
                  struct ws_err *err)
{
	struct look l = { .opts = opts, .views = views };
	for (size_t i = 0; i < opts->n_endpoints; i++)
		views[i] = (struct ws_fleet_view){ .url = opts->endpoints[i], .coverage = -1,
			                           .err = WS_ERR_INIT };
	const int rc = make_room(&l, err) || probe(&l, err) || see(&l, err) ||
	                               ask_health(&l, err) || read_records(&l, true, err) ||
	                               (opts->proof && (prove(&l, err) ||
	                                                read_records(&l, false, err))) ||
	                               judge_current(&l, err) ?
	                       -1 :
	                       0;
	free(l.index);
	free(l.urls);
	free(l.infos);
	free(l.known);
	free(l.errs);
	free(l.seen);
	free(l.answers);
	free(l.results);
	return rc;
}
