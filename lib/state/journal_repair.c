/* SPDX-License-Identifier: Apache-2.0 */
/* journal_repair.c - repairs the endpoints that a dead push has left unfinished.
 *
 * A record states the worst that may have happened, so the endpoint is queried first. If it reports
 * the weight version of the push, and had another one before, all weights were loaded. No server
 * reports whether it is paused; a request to continue does no harm if it is not. Only the record
 * shows which memory a server has released: caches are woken once, and weights are left to a
 * push. Endpoints that another push has locked are left alone.
 *
 * A staged update is in order, and stays. If its completion died, it is completed here. A stage
 * that was cut short is dropped. */
#include "endpoint_call.h"
#include "journal_core.h"

#include "group.h"
#include "lock.h"
#include "vllm_workers.h"
#include "wsync/tool/deeds.h"
#include "wsync/tool/staged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Ranks try to reach their group about once a second. */
static const int64_t LATE_NS = 4 * WS_NS_PER_S;
enum { JOIN_MOST_S = 30 * 60 }; /* torch's limit for joining; later no rank waits any more */

struct repair {
	const struct ws_repair_opts *opts;
	struct ws_journal_entry *entry;
	struct ws_repair_answer *answers; /* one per endpoint, like the arrays below */
	struct ws_endpoint_info *infos;
	struct ws_endpoint_answer *replies;
	struct ws_err *errs;
	struct ws_locks **locks;
	struct ws_journal_endpoint *now;
	bool *loaded;
	const char **urls;                /* scratch: the endpoints of one call */
	const struct ws_endpoint_info **known; /* scratch: and what was detected there */
	size_t *index;
};

typedef bool wanted_fn(const struct repair *r, size_t i);

static size_t choose(struct repair *r, wanted_fn *wanted)
{
	size_t n = 0;
	for (size_t i = 0; i < r->entry->record.n_endpoints; i++) {
		if (!wanted(r, i))
			continue;
		r->urls[n] = r->entry->record.endpoints[i].url;
		r->known[n] = r->infos[i].url[0] ? &r->infos[i] : NULL;
		r->index[n++] = i;
	}
	return n;
}

static ws_deadline patience(const struct repair *r)
{
	const struct ws_repair_opts *o = r->opts;
	return ws_deadline_min(ws_deadline_in(o->timeout_ns > 0 ? o->timeout_ns : 10 * WS_NS_PER_S),
	                       o->until ? o->until : WS_FOREVER);
}

static struct ws_call call_to(const struct repair *r, size_t n)
{
	return (struct ws_call){ .http = r->opts->http, .urls = r->urls, .n = n,
		                 .until = patience(r), .cancel = r->opts->cancel,
		                 .infos = r->known };
}

/* ---- locks ----------------------------------------------------------------------------------- */

/* Locks the endpoints and marks those that another push has locked as busy. A dry run takes no
 * locks: it creates no file and is invisible to other pushes. */
static int take_locks(struct repair *r, struct ws_err *err)
{
	const struct ws_journal_record *rec = &r->entry->record;
	char *dir = ws_journal_locks(r->opts->state_dir);
	int rc = dir ? 0 : ws_oom(err);
	for (size_t i = 0; rc == 0 && !r->opts->dry_run && i < rec->n_endpoints; i++) {
		struct ws_err why = WS_ERR_INIT;
		const char *const url[] = { rec->endpoints[i].url };
		if (ws_locks_take(dir, url, 1, 0, r->opts->cancel, &r->locks[i], &why) == 0)
			continue;
		if (why.code == WS_EREFUSED) {
			r->answers[i].busy = true;
			r->answers[i].err = why;
			r->answers[i].err.hint[0] = 0;
		} else {
			if (err)
				*err = why;
			rc = -1;
		}
	}
	free(dir);
	return rc;
}

static bool is_free(const struct repair *r, size_t i)
{
	return !r->answers[i].busy;
}

/* ---- the state of each endpoint -------------------------------------------------------------- */

/* A push that died may have committed an endpoint without recording it. A push that ended has
 * recorded the final state. */
static enum ws_endpoint_state state_of(const struct ws_journal_record *rec,
                                       const struct ws_journal_endpoint *e, const char *version)
{
	const bool moved = *rec->weight_version && strcmp(version, rec->weight_version) == 0 &&
	                   strcmp(e->version, rec->weight_version) != 0;
	return e->state == WS_PARTIAL && moved && !rec->ended ? WS_COMMITTED : e->state;
}

/* A server that was restarted since has whole weights, runs, and is in no group. A checkpoint that
 * waits to be loaded is still there. */
static void note_restart(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info,
                         struct ws_repair_answer *a)
{
	if (!ws_journal_is_other(e, info))
		return;
	a->restarted = a->left_group = true;
	a->paused = false;
	a->state = WS_UNTOUCHED;
	a->in_update = a->in_update && e->open_update == WS_UPDATE_DISK;
}

static int probe(struct repair *r, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const struct ws_journal_record *rec = &r->entry->record;
	const size_t n = choose(r, is_free);
	const struct ws_call to = call_to(r, n);
	if (n && ws_endpoint_probe_all(&to, r->infos, r->errs, &why) &&
	    (why.code == WS_ECANCELLED || why.code == WS_ESYSTEM)) {
		if (err)
			*err = why;
		return -1;
	}
	for (size_t k = n; k-- > 0;) {
		const size_t i = r->index[k]; /* k or more */
		struct ws_repair_answer *a = &r->answers[i];
		a->err = r->errs[k];
		if (a->err.code)
			continue;
		r->infos[i] = r->infos[k];
		memcpy(a->weight_version, r->infos[i].weight_version, sizeof a->weight_version);
		a->state = state_of(rec, &rec->endpoints[i], a->weight_version);
		note_restart(&rec->endpoints[i], &r->infos[i], a);
		const struct ws_journal_endpoint now =
			ws_known_now(r->entry, &rec->endpoints[i], &r->infos[i]);
		a->asleep = a->restarted ? 0 : now.asleep;
		a->unsure = a->restarted ? 0 : now.unsure;
		a->staged = a->in_update && ws_staged_waits(rec, &rec->endpoints[i]);
		/* Somebody else may have set another label since. */
		a->unlabelled = rec->endpoints[i].unlabelled && a->state == WS_COMMITTED &&
		                strcmp(a->weight_version, rec->endpoints[i].version) == 0 &&
		                strcmp(a->weight_version, rec->weight_version) != 0;
	}
	return 0;
}

/* ---- steps of a repair ----------------------------------------------------------------------- */

/* -1 only if the repair was cancelled. */
static int go_on(const struct ws_err *why, struct ws_err *err)
{
	if (why->code != WS_ECANCELLED)
		return 0;
	if (err)
		*err = *why;
	return -1;
}

/* Stock vLLM fails to leave inside an update, and that brings several workers out of step. Its next
 * join replaces the group. */
static bool may_not_leave(const struct repair *r, size_t i)
{
	return r->entry->record.endpoints[i].open_update == WS_UPDATE_TRANSFER &&
	       !r->infos[i].gloo_worker;
}

static bool is_grouped(const struct repair *r, size_t i)
{
	return is_free(r, i) && !r->answers[i].err.code && !r->answers[i].left_group &&
	       !r->answers[i].staged;
}

static bool is_whole(const struct repair *r, size_t i)
{
	const struct ws_repair_answer *a = &r->answers[i];
	/* The first prompt may crash a vLLM with incomplete weights. */
	const bool may = r->opts->resume_partial &&
	                 ws_lineage_family(r->infos[i].lineage) != WS_FAMILY_VLLM;
	return is_free(r, i) && !a->err.code && (a->state != WS_PARTIAL || may) &&
	       !((a->asleep | a->unsure) & WS_MEMORY_WEIGHTS);
}

static bool misses_caches(const struct repair *r, size_t i)
{
	const struct ws_repair_answer *a = &r->answers[i];
	return is_whole(r, i) && a->asleep && !a->unsure &&
	       (a->paused || a->state == WS_COMMITTED);
}

/* While some of its memory is released, a server would die of the first prompt. */
static bool is_to_go_on(const struct repair *r, size_t i)
{
	return is_whole(r, i) && r->answers[i].paused && !r->answers[i].asleep &&
	       !r->answers[i].unsure;
}

unsigned ws_journal_release_late(const struct ws_journal_record *r, ws_deadline until,
                                 const struct ws_cancel *cancel)
{
	struct ws_group_place place = { .port = r->master_port };
	snprintf(place.host, sizeof place.host, "%s", r->master_host);
	return ws_group_release_late(&place, r->group,
	                             ws_deadline_min(until, ws_deadline_in(LATE_NS)), cancel);
}

/* Runs before the resume: on some servers a rank that waits for bytes of the dead push receives no
 * other request. An endpoint that does not answer is resumed all the same. */
static int leave_group(struct repair *r, struct ws_err *err)
{
	const struct ws_journal_record *rec = &r->entry->record;
	struct ws_err why = WS_ERR_INIT;
	for (size_t i = 0; i < rec->n_endpoints; i++)
		r->answers[i].left_group |= !r->answers[i].err.code && may_not_leave(r, i);
	const size_t n = choose(r, is_grouped);
	if (n == 0)
		return 0;
	const bool came = ws_journal_release_late(rec, patience(r), r->opts->cancel) > 0;
	const bool pending = rec->master_port && !came && time(NULL) - rec->updated < JOIN_MOST_S;
	const struct ws_call to = call_to(r, n);
	ws_endpoint_destroy_group(&to, rec->group, r->replies, &why);
	for (size_t k = 0; k < n; k++) {
		const struct ws_err *said = &r->replies[k].err;
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		/* A server that refuses now would also refuse later, so this counts as done. */
		a->left_group = said->code == WS_OK || ws_endpoint_said_no(said);
		/* An endpoint that left the group had joined it. If it knows no such group, or
		 * refuses, it may still join later. */
		a->may_join = a->left_group && pending &&
		              (said->code != WS_OK || ws_endpoint_knew_none(&r->replies[k]));
	}
	return go_on(&why, err);
}

static bool is_in_middle(const struct repair *r, size_t i)
{
	const struct ws_repair_answer *a = &r->answers[i];
	return a->in_update && is_free(r, i) && !a->err.code && !a->staged;
}

static size_t choose_middles(struct repair *r)
{
	const size_t n = choose(r, is_in_middle);
	for (size_t k = 0; k < n; k++)
		r->now[k] = r->entry->record.endpoints[r->index[k]];
	return n;
}

/* Drops a stage that was cut short, where the server can. Where everything may have arrived, ending
 * it could load it, perhaps from a source that changed meanwhile: it is left to the next push. */
static int drop_stage(struct repair *r, struct ws_err *err)
{
	const struct ws_journal_record *rec = &r->entry->record;
	const size_t n = choose_middles(r);
	if (!n || !rec->staged.stage || rec->staged.stage > WS_STAGE_LAST)
		return 0;
	if (ws_journal_drop_updates(r->opts->http, r->now, n, rec->group, patience(r),
	                            r->opts->cancel, r->errs, err))
		return -1;
	for (size_t k = 0; k < n; k++) {
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		a->in_update = r->now[k].open_update != WS_UPDATE_NONE;
		if (!a->in_update || rec->staged.stage != WS_STAGE_LAST)
			continue;
		a->err = r->errs[k];
		if (a->err.code == WS_EREFUSED)
			ws_err_set(&a->err, WS_EREFUSED,
			           "%s: it may have all of an update, and cannot drop it",
			           r->urls[k]);
		ws_err_hint(&a->err, "push to it without {stage}, or restart the server");
		ws_err_where(&a->err, NULL, r->urls[k]);
	}
	return 0;
}

static bool is_about_to_load(const struct repair *r, size_t i)
{
	const struct ws_journal_record *rec = &r->entry->record;
	return is_in_middle(r, i) && rec->staged.stage == WS_STAGE_LOADING &&
	       ws_staged_can(&rec->endpoints[i]) &&
	       rec->endpoints[i].open_update != WS_UPDATE_DISK;
}

/* A server whose completion died may run again, and is about to load the update. */
static int pause_loading(struct repair *r, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const size_t n = choose(r, is_about_to_load);
	const struct ws_call to = call_to(r, n);
	if (!n)
		return 0;
	ws_endpoint_pause(&to, WS_PAUSE_ABORT, false, r->replies, &why);
	for (size_t k = 0; k < n; k++) {
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		a->paused = a->paused || r->replies[k].sent;
		a->err = r->replies[k].err;
	}
	return go_on(&why, err);
}

/* Chooses the servers that have loaded their update. */
static size_t choose_loaded(struct repair *r, size_t n)
{
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (r->loaded[i] && !r->answers[r->index[i]].err.code) {
			r->urls[k] = r->urls[i];
			r->loaded[k] = true;
			r->index[k++] = r->index[i];
		}
	return k;
}

/* They have the cache and the label of the old weights. Without an answer they stay paused. */
static int finish_loaded(struct repair *r, size_t n, struct ws_err *err)
{
	const char *version = r->entry->record.weight_version;
	struct ws_err why = WS_ERR_INIT;
	n = choose_loaded(r, n);
	struct ws_call to = call_to(r, n);
	if (n)
		ws_endpoint_flush(&to, patience(r), r->replies, &why);
	for (size_t k = 0; k < n; k++)
		r->answers[r->index[k]].err = r->replies[k].err;
	to.n = n = choose_loaded(r, n);
	if (n && *version && why.code != WS_ECANCELLED)
		ws_endpoint_set_version(&to, version, r->replies, &why);
	for (size_t k = 0; *version && k < n; k++) {
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		a->err = r->replies[k].err;
		if (!a->err.code)
			snprintf(a->weight_version, sizeof a->weight_version, "%s", version);
	}
	return go_on(&why, err);
}

static int end_middles(struct repair *r, struct ws_err *err)
{
	const struct ws_journal_record *rec = &r->entry->record;
	if (drop_stage(r, err) || pause_loading(r, err))
		return -1;
	const size_t n = choose_middles(r);
	if (n && ws_journal_end_updates(r->opts->http, r->now, n, rec->group, patience(r),
	                                r->opts->cancel, r->loaded, err))
		return -1;
	for (size_t k = 0; k < n; k++) {
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		a->in_update = r->now[k].open_update != WS_UPDATE_NONE;
		/* Everything had arrived. Of a push it is not known. */
		r->loaded[k] = r->loaded[k] && rec->staged.stage == WS_STAGE_LOADING;
		if (r->loaded[k])
			a->state = WS_COMMITTED;
	}
	return finish_loaded(r, n, err);
}

/* Collects the endpoints to wake, and records it before the requests are sent. */
static int note_woken(struct repair *r, struct ws_waking *items, struct ws_deed *at, size_t *n,
                      struct ws_err *err)
{
	const struct ws_journal_record *rec = &r->entry->record;
	for (size_t i = 0; i < rec->n_endpoints; i++) {
		if (!misses_caches(r, i))
			continue;
		r->now[*n] = rec->endpoints[i];
		r->now[*n].state = r->answers[i].state;
		r->now[*n].paused = true; /* keeps it in the record until it answers */
		r->now[*n].asleep = 0;
		r->now[*n].unsure = r->answers[i].asleep;
		at[*n] = (struct ws_deed){ .url = rec->endpoints[i].url, .info = &r->infos[i],
			                   .what = WS_DEED_WAKE, .memory = r->answers[i].asleep };
		items[*n] = (struct ws_waking){ .url = rec->endpoints[i].url, .info = &r->infos[i],
			                        .memory = r->answers[i].asleep };
		r->index[(*n)++] = i;
	}
	return *n ? ws_journal_update(r->entry->path, r->now, *n, err) : 0;
}

static int wake_caches(struct repair *r, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_waking *items = calloc(r->entry->record.n_endpoints + 1, sizeof *items);
	struct ws_deed *at = calloc(r->entry->record.n_endpoints + 1, sizeof *at);
	struct ws_deeds *deeds = NULL;
	size_t n = 0;
	int rc = items && at ? note_woken(r, items, at, &n, err) : ws_oom(err);
	if (n && rc == 0)
		rc = ws_deeds_begin(r->opts->state_dir, r->entry->path, at, n, &deeds, err);
	if (n && rc == 0)
		ws_endpoint_wake_each(r->opts->http, items, n, patience(r), r->opts->cancel, &why);
	for (size_t k = 0; rc == 0 && k < n; k++) {
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		const enum ws_outcome outcome = ws_deed_outcome(&items[k].answer);
		a->err = items[k].answer.err;
		(void)ws_deeds_answered(deeds, k, outcome, NULL);
		a->unsure = outcome == WS_UNANSWERED ? a->asleep : 0;
		a->asleep = outcome == WS_REFUSED ? a->asleep : 0;
	}
	ws_deeds_end(deeds);
	free(items);
	free(at);
	if (rc || why.code != WS_ECANCELLED)
		return rc;
	if (err)
		*err = why;
	return -1;
}

/* Other records say of these endpoints that wsync-ctl has paused them. */
static void note_resumed(struct repair *r, size_t n)
{
	struct ws_deed *at = calloc(n + 1, sizeof *at);
	struct ws_deeds *deeds = NULL;
	for (size_t k = 0; at && k < n; k++)
		at[k] = (struct ws_deed){ .url = r->urls[k], .info = r->known[k],
			                  .what = WS_DEED_RESUME };
	if (at && ws_deeds_begin(r->opts->state_dir, r->entry->path, at, n, &deeds, NULL) == 0)
		for (size_t k = 0; k < n; k++)
			(void)ws_deeds_answered(deeds, k, ws_deed_outcome(&r->replies[k]), NULL);
	ws_deeds_end(deeds);
	free(at);
}

static int resume(struct repair *r, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	const size_t n = choose(r, is_to_go_on);
	if (n == 0)
		return 0;
	const struct ws_call to = call_to(r, n);
	ws_endpoint_resume(&to, r->replies, &why);
	for (size_t k = 0; k < n; k++) {
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		a->err = r->replies[k].err;
		a->resumed = !a->err.code;
		a->paused = !a->resumed;
	}
	note_resumed(r, n);
	return go_on(&why, err);
}

static bool lacks_label(const struct repair *r, size_t i)
{
	return is_whole(r, i) && r->answers[i].unlabelled;
}

/* The push ended between its last byte and its weight version. */
static int set_labels(struct repair *r, struct ws_err *err)
{
	const char *version = r->entry->record.weight_version;
	struct ws_err why = WS_ERR_INIT;
	const size_t n = choose(r, lacks_label);
	const struct ws_call to = call_to(r, n);
	if (n == 0)
		return 0;
	ws_endpoint_set_version(&to, version, r->replies, &why);
	for (size_t k = 0; k < n; k++) {
		struct ws_repair_answer *a = &r->answers[r->index[k]];
		a->err = r->replies[k].err;
		a->labelled = !a->err.code;
		a->unlabelled = !a->labelled;
		if (a->labelled)
			snprintf(a->weight_version, sizeof a->weight_version, "%s", version);
	}
	return go_on(&why, err);
}

static int write_down(struct repair *r, struct ws_err *err)
{
	const struct ws_journal_record *rec = &r->entry->record;
	size_t n = 0;
	for (size_t i = 0; i < rec->n_endpoints; i++) {
		struct ws_repair_answer *a = &r->answers[i];
		if (a->busy)
			continue;
		struct ws_journal_endpoint *e = &r->now[n++];
		*e = rec->endpoints[i];
		e->state = a->state;
		e->paused = a->paused;
		e->grouped = !a->left_group || a->may_join;
		e->asleep = a->asleep;
		e->unlabelled = a->unlabelled;
		e->unsure = a->unsure;
		if (!a->in_update)
			e->open_update = WS_UPDATE_NONE;
		a->settled = !ws_journal_owes(e);
	}
	return n ? ws_journal_update(r->entry->path, r->now, n, err) : 0;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* True if only a push can complete its weights, or only a restart heals it. A wake brings back
 * those that wsync-ctl released at a server that keeps a copy. */
static bool is_incomplete(const struct repair *r, size_t i)
{
	const struct ws_repair_answer *a = &r->answers[i];
	if (a->busy || a->state == WS_PARTIAL || a->unsure || !(a->asleep & WS_MEMORY_WEIGHTS))
		return !a->busy && (a->state == WS_PARTIAL || a->unsure);
	return r->entry->record.by_hand ?
	               !a->err.code && !ws_endpoint_keeps_weights(&r->infos[i]) :
	               a->paused;
}

/* A vLLM whose workers answer earlier requests takes no push. */
static bool is_out_of_step(const struct repair *r, size_t i)
{
	const struct ws_endpoint_info *info = &r->infos[i];
	const char *url = r->entry->record.endpoints[i].url;
	const struct ws_call to = { .http = r->opts->http, .urls = &url, .n = 1,
		                    .until = patience(r), .cancel = r->opts->cancel,
		                    .infos = &info };
	bool inside = false;
	struct ws_err said = WS_ERR_INIT;
	return info->url[0] && info->world_size > 1 && !r->answers[i].err.code &&
	       ws_lineage_family(info->lineage) == WS_FAMILY_VLLM && info->can.reload &&
	       ws_vllm_in_step(&to, &inside, &said, NULL) && said.code == WS_EREFUSED &&
	       (!said.native || said.native == 500);
}

static int sum_up(const struct repair *r, struct ws_err *err)
{
	const struct ws_journal_record *rec = &r->entry->record;
	const struct ws_err *first = NULL;
	const char *where = NULL, *stuck = NULL;
	size_t torn = 0;
	bool slept = false, restart = false, unsure = false;
	for (size_t i = 0; i < rec->n_endpoints; i++) {
		struct ws_repair_answer *a = &r->answers[i];
		a->incomplete = is_incomplete(r, i);
		if (a->incomplete && torn++ == 0) {
			where = rec->endpoints[i].url;
			slept = rec->endpoints[i].slept;
			unsure = a->unsure != 0;
			restart = is_out_of_step(r, i);
		}
		if (a->err.code && !first)
			first = &a->err;
		if (!a->busy && !a->err.code && (!a->left_group || a->in_update) && !a->staged &&
		    !stuck)
			stuck = rec->endpoints[i].url;
	}
	if (torn) {
		const char *what = unsure ? "a request to release or to wake its memory was not "
		                            "answered" :
		                   slept ? "its weights were released and are not complete" :
		                           "has some old and some new weights";
		ws_err_set(err, WS_EPARTIAL, torn == 1 ? "%s: %s" : "%s: %s (and %zu more)", where,
		           what, torn - 1);
		if (unsure) {
			ws_err_hint(err, "restart the server, then push again");
			return ws_err_where(err, NULL, where);
		}
		ws_err_hint(err, "%spush everything again: %swsync-push SOURCE -e %s%s",
		            restart ? "restart the server, whose workers answer earlier requests; "
		                      "then " : "",
		            rec->directory && rec->n_sources ? "wsync-ctl repair --again, or " : "",
		            where, slept ? " --asleep recorded" : "");
		return ws_err_where(err, NULL, where);
	}
	if (first) {
		if (err)
			*err = *first;
		return -1;
	}
	if (stuck && !r->opts->dry_run)
		return ws_err_set(err, WS_ETIMEOUT,
		                  "%s: did not answer the request to leave group %s, or to "
		                  "end an update: it may be stuck",
		                  stuck, rec->group);
	return 0;
}

static void take_from_record(struct repair *r)
{
	const struct ws_journal_record *rec = &r->entry->record;
	for (size_t i = 0; i < rec->n_endpoints; i++)
		r->answers[i] = (struct ws_repair_answer){
			.err = WS_ERR_INIT, .state = rec->endpoints[i].state,
			.paused = rec->endpoints[i].paused,
			.left_group = !rec->endpoints[i].grouped || !*rec->group,
			.in_update = rec->endpoints[i].open_update != WS_UPDATE_NONE,
			.asleep = rec->endpoints[i].asleep,
			.unlabelled = rec->endpoints[i].unlabelled,
			.unsure = rec->endpoints[i].unsure,
		};
}

int ws_journal_repair(struct ws_journal_entry *entry, const struct ws_repair_opts *opts,
                      struct ws_repair_answer *answers, struct ws_err *err)
{
	const size_t n = entry->record.n_endpoints;
	struct repair r = {
		.opts = opts,
		.entry = entry,
		.answers = answers,
		.infos = calloc(n + 1, sizeof *r.infos),
		.replies = calloc(n + 1, sizeof *r.replies),
		.errs = calloc(n + 1, sizeof *r.errs),
		.locks = calloc(n + 1, sizeof *r.locks),
		.now = calloc(n + 1, sizeof *r.now),
		.loaded = calloc(n + 1, sizeof *r.loaded),
		.urls = calloc(n + 1, sizeof *r.urls),
		.known = calloc(n + 1, sizeof *r.known),
		.index = calloc(n + 1, sizeof *r.index),
	};
	int rc = -1;
	take_from_record(&r);
	if (!r.infos || !r.replies || !r.errs || !r.locks || !r.now || !r.loaded || !r.urls ||
	    !r.known || !r.index) {
		ws_oom(err);
		goto out;
	}
	if (take_locks(&r, err) || probe(&r, err))
		goto out;
	if (!opts->dry_run) {
		rc = leave_group(&r, err) || end_middles(&r, err) || wake_caches(&r, err) ||
		                     resume(&r, err) || set_labels(&r, err) ?
		             -1 :
		             0;
		/* Record the changes also if the repair was cut short. */
		if (write_down(&r, rc ? NULL : err) || rc) {
			rc = -1;
			goto out;
		}
	}
	rc = sum_up(&r, err);
out:
	for (size_t i = 0; r.locks && i < n; i++)
		ws_locks_drop(r.locks[i]);
	free(r.infos);
	free(r.replies);
	free(r.errs);
	free(r.locks);
	free(r.now);
	free(r.loaded);
	free(r.urls);
	free(r.known);
	free(r.index);
	return rc;
}
