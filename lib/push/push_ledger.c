/* SPDX-License-Identifier: Apache-2.0 */
/* push_ledger.c - what a push owes to those who come after it: nobody else at its endpoints meanwhile, a
 * record of what it may have done, and order where a push before it died.
 *
 * A state directory that cannot be written is no reason to leave servers with old weights, so it is a
 * warning; where the caller has named the directory, he relies on it, and nothing is begun without. */
#include "push_protocol.h"

#include "ledger.h"
#include "lock.h"
#include "region.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* For a server to leave the group of a dead push; one that does not may still take part in a new one. */
static const int64_t STALE_NS = 5 * WS_NS_PER_S;

static const char NOBODY_KNOWS[] = "if this process is killed, nobody will know what it left";

static bool keeps_ledger(const struct ws_push *p)
{
	return p->opts.state_dir && p->opts.n_endpoints && !p->opts.dry_run && !p->unrecorded;
}

/* -1 where nothing may be begun like this. */
static int go_without(struct ws_push *p, const char *what, const struct ws_err *why,
                      struct ws_err *err)
{
	if (p->opts.state_required) {
		if (err)
			*err = *why;
		return ws_err_hint(err, "--state-dir names a directory that this user can write");
	}
	p->unrecorded = true;
	push_warn(p, NULL, "%s: %s", what, why->msg);
	return 0;
}

/* ---- what others have left ---------------------------------------------------------------------- */

/* The endpoint of this push that a record calls url: its exact URL, else another
 * URL of the same endpoint. */
static size_t find(const struct ws_push *p, const char *url)
{
	const size_t n = p->opts.n_endpoints;
	size_t i = 0;
	while (i < n && strcmp(p->endpoints[i].url, url) != 0)
		i++;
	if (i < n)
		return i;
	for (i = 0; i < n && !ws_endpoint_same(p->endpoints[i].url, url);)
		i++;
	return i;
}

static void leave_stale_group(struct ws_push *p, const char *group, struct ws_ledger_endpoint *now,
                              size_t n)
{
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (now[i].grouped && *group)
			p->urls[k++] = now[i].url;
	if (k)
		ws_endpoint_destroy_group(p->http, p->urls, k, group, ws_deadline_in(STALE_NS),
		                          p->opts.cancel, p->answers, NULL);
	k = 0;
	for (size_t i = 0; i < n; i++)
		if (now[i].grouped && *group) {
			const struct ws_err *said = &p->answers[k++].err;
			now[i].grouped = said->code != WS_OK && !ws_endpoint_said_no(said);
		}
}

static void end_stale_middles(struct ws_push *p, const char *group, struct ws_ledger_endpoint *now,
                              size_t n)
{
	struct ws_ledger_endpoint **those = calloc(n + 1, sizeof *those);
	size_t k = 0;
	for (size_t i = 0; those && i < n; i++)
		if (now[i].middle)
			those[k++] = &now[i];
	if (k)
		ws_ledger_end_middles(p->http, those, k, group, ws_deadline_in(STALE_NS),
		                      p->opts.cancel, NULL);
	free(those);
}

/* What the dead have left open at our endpoints would stand in our way. */
static void clean_up(struct ws_push *p, const struct ws_ledger_entry *entry)
{
	const struct ws_ledger_record *r = &entry->record;
	struct ws_ledger_endpoint *now = calloc(r->n_endpoints + 1, sizeof *now);
	size_t n = 0;
	for (size_t k = 0; now && k < r->n_endpoints; k++)
		if ((r->endpoints[k].grouped || r->endpoints[k].middle) &&
		    find(p, r->endpoints[k].url) < p->opts.n_endpoints)
			now[n++] = r->endpoints[k];
	if (n) {
		ws_ledger_release_late(r, p->until, p->opts.cancel);
		leave_stale_group(p, r->group, now, n);
		end_stale_middles(p, r->group, now, n);
		ws_ledger_amend(entry->path, now, n, NULL);
	}
	free(now);
}

/* The records of a live process that is between two of its sources still claim
 * the pause of the last one. */
static bool left_paused(const struct ws_ledger_entry *entry, const struct ws_ledger_endpoint *was)
{
	return was->paused && (entry->fate != WS_PROCESS_ALIVE || was->state == WS_PARTIAL || was->asleep);
}

/* A partially updated endpoint stays partial until a push succeeds. An endpoint that an earlier
 * push paused and left whole is resumed with ours. We hold the locks, so no other push is at
 * work at these endpoints, dead or alive. */
static void inherit(struct ws_push *p, const struct ws_ledger_entry *entry)
{
	const struct ws_ledger_record *r = &entry->record;
	for (size_t k = 0; k < r->n_endpoints; k++) {
		const struct ws_ledger_endpoint *was = &r->endpoints[k];
		const size_t i = find(p, was->url);
		if (i == p->opts.n_endpoints)
			continue;
		struct push_endpoint *e = &p->endpoints[i];
		p->heir = true;
		p->heir_began = r->began > p->heir_began ? r->began : p->heir_began;
		e->found_paused = e->found_paused || left_paused(entry, was);
		if (was->slept) {
			e->slept = true;
			e->asleep = was->asleep;
		}
		if (was->state != WS_PARTIAL || e->weights.state == WS_PARTIAL)
			continue;
		push_target_event(&e->weights, PUSH_FOUND_PARTIAL);
		push_warn(p, e->url, was->slept ? "process %lld woke its weights and did not complete them" :
		          "process %lld left it with some old and some new weights", (long long)r->process.pid);
	}
	if (entry->fate == WS_PROCESS_DEAD)
		clean_up(p, entry);
}

static void describe_all(struct ws_push *p);

/* Nothing of ours is recorded, so all that is known came from the records of others. They may be
 * gone by now, or say something else. */
static void forget_others(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->endpoints[i];
		push_target_event(&e->weights, PUSH_FOUND_SETTLED);
		e->found_paused = e->slept = false;
		e->asleep = 0;
	}
}

/* Since our last run another push may have settled what that left, and wsync-ctl may have put an
 * endpoint to sleep or woken it. */
static void catch_up(struct ws_push *p)
{
	if (!p->ledger) {
		forget_others(p);
		return;
	}
	ws_ledger_reread(p->ledger);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct ws_ledger_endpoint *is = &ws_ledger_record(p->ledger)->endpoints[i];
		struct push_endpoint *e = &p->endpoints[i];
		if (e->weights.state == WS_PARTIAL && is->state != WS_PARTIAL)
			push_target_event(&e->weights, PUSH_FOUND_SETTLED);
		e->paused = e->paused && is->paused;
		e->found_paused = e->found_paused && is->paused;
		e->slept = is->slept;
		e->asleep = is->asleep;
	}
}

static void read_records(struct ws_push *p)
{
	struct ws_ledger_list list;
	catch_up(p);
	struct ws_err why = WS_ERR_INIT;
	if (ws_ledger_list(p->opts.state_dir, &list, &why)) {
		push_warn(p, NULL, "what earlier pushes left is not known: %s", why.msg);
		return;
	}
	p->heir_began = 0;
	for (size_t i = 0; i < list.n; i++)
		if (list.items[i].err.code)
			push_warn(p, NULL, "what an earlier push left is not known: %s", list.items[i].err.msg);
		else if (!p->ledger || strcmp(list.items[i].path, ws_ledger_path(p->ledger)) != 0)
			inherit(p, &list.items[i]);
	ws_ledger_list_free(&list);
}

static enum ws_ledger_middle middle_of(const struct ws_push *p, size_t i);

/* An update that our last run could not end would keep this run from beginning its own. */
static void end_own_middles(struct ws_push *p)
{
	struct ws_ledger_endpoint *now = calloc(p->opts.n_endpoints + 1, sizeof *now);
	size_t n = 0;
	for (size_t i = 0; now && i < p->opts.n_endpoints; i++) {
		if (!p->endpoints[i].weights.scope_open)
			continue;
		if (p->ledger)
			now[n] = ws_ledger_record(p->ledger)->endpoints[i];
		now[n].url = p->endpoints[i].url;
		now[n].middle = middle_of(p, i);
		p->index[n++] = i;
	}
	if (n)
		end_stale_middles(p, p->group_name, now, n);
	if (n && p->ledger)
		ws_ledger_amend(ws_ledger_path(p->ledger), now, n, NULL);
	for (size_t k = 0; k < n; k++)
		if (!now[k].middle)
			push_target_event(&p->endpoints[p->index[k]].weights, PUSH_SCOPE_DROPPED);
	free(now);
}

static int take_locks(struct ws_push *p, const char *dir, struct ws_err *err)
{
	const int64_t most = push_lock_wait(p, p->opts.lock_wait_ns);
	struct push_wait wait;
	push_wait_begin(&wait, most);
	int rc;
	do {
		*err = (struct ws_err)WS_ERR_INIT;
		rc = ws_locks_take(dir, p->opts.endpoints, p->opts.n_endpoints, most ? push_wait_piece(&wait) : 0,
		                   p->opts.cancel, &p->locks, err);
	} while (rc && err->native == EWOULDBLOCK && push_wait_on(p, &wait, err));
	return rc;
}

int push_claim(struct ws_push *p, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	int rc = 0;
	if (!keeps_ledger(p)) {
		end_own_middles(p);
		return 0;
	}
	char *dir = ws_ledger_locks(p->opts.state_dir);
	rc = dir ? take_locks(p, dir, &why) : ws_err_set(&why, WS_ESYSTEM, "out of memory");
	free(dir);
	if (rc && why.code == WS_ESYSTEM) {
		rc = go_without(p, "other pushes are not kept away, and this one could not be repaired",
		                &why, err);
	} else if (rc) {
		if (err)
			*err = why;
	} else {
		read_records(p);
	}
	if (rc == 0)
		end_own_middles(p);
	return rc;
}

bool push_owns_endpoints(const struct ws_push *p)
{
	return !keeps_ledger(p) || p->locks;
}

void push_take_over_pauses(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->endpoints[i];
		if (!e->paused && (!e->found_paused || e->weights.state == WS_PARTIAL))
			continue;
		e->paused = true;
		e->found_paused = false;
	}
}

void push_release(struct ws_push *p, bool ok)
{
	struct ws_ledger_sent sent;
	/* After a success the record claims that endpoints may be paused, which is not worth
	 * a write: to continue does no harm. Until this run has recorded its plan, the record
	 * is that of an earlier run. */
	if (p->ledger && !ok && p->recorded)
		(void)push_record(p, NULL);
	else if (p->ledger && p->recorded)
		describe_all(p);
	/* Our record has all that the earlier ones said of endpoints that this plan
	 * completes. After a failure it must also be as hard to complete: a smaller
	 * plan is completed by less. */
	if (p->ledger && p->heir && p->recorded) {
		push_load(p, &sent);
		sent.checked = sent.checked && ok;
		ws_ledger_settle(p->opts.state_dir, ws_ledger_path(p->ledger), p->opts.endpoints,
		                 p->opts.n_endpoints, &sent);
	}
	if (p->recorded)
		push_remember_left(p);
	p->heir = false;
	ws_locks_drop(p->locks);
	p->locks = NULL;
}

/* ---- what we are about to do -------------------------------------------------------------------- */

static int open_ledger(struct ws_push *p, struct ws_err *err)
{
	if (p->ledger)
		return 0;
	if (ws_ledger_open(p->opts.state_dir, p->opts.endpoints, p->opts.n_endpoints, &p->ledger, err))
		return -1;
	struct ws_ledger_record *r = ws_ledger_record(p->ledger);
	r->directory = p->opts.again_directory;
	r->args = p->opts.again_args;
	r->n_args = p->opts.n_again_args;
	return 0;
}

/* A transfer may leave it in the middle of its protocol; afterwards one that is still there did not
 * answer. */
static enum ws_ledger_middle middle_of(const struct ws_push *p, size_t i)
{
	if (p->phase != WS_PHASE_TRANSFER && !p->endpoints[i].weights.scope_open)
		return WS_MIDDLE_NONE;
	switch (push_bracket_of(p, i)) {
	case PUSH_BRACKET_SESSION:
		return WS_MIDDLE_SESSION;
	case PUSH_BRACKET_PROCESS:
		return WS_MIDDLE_PROCESSING;
	case PUSH_BRACKET_NONE:
		break;
	}
	if (p->protocol != &push_two_phase)
		return WS_MIDDLE_NONE;
	return p->format == WS_FORMAT_FLATTENED ? WS_MIDDLE_TWO_PHASE_FLAT : WS_MIDDLE_TWO_PHASE;
}

void push_describe(const struct ws_push *p, size_t i, struct ws_ledger_endpoint *out)
{
	const struct push_endpoint *e = &p->endpoints[i];
	const bool pausing = p->phase == WS_PHASE_PAUSE && p->opts.pause != WS_PAUSE_NONE;
	if (p->phase > WS_PHASE_CONNECT && p->phase < WS_PHASE_RESUME)
		out->phase = p->phase; /* where it stopped is more than that it cleans up */
	out->state = p->phase == WS_PHASE_TRANSFER && e->weights.state == WS_UNTOUCHED ? WS_PARTIAL : e->weights.state;
	out->paused = e->paused || e->found_paused || pausing;
	out->grouped = e->grouped;
	out->middle = middle_of(p, i);
	out->version = p->infos[i].weight_version;
	out->inherited = e->weights.gap;
	out->slept = push_is_asleep(e);
	out->asleep = out->slept ? e->asleep : 0;
}

static void describe_all(struct ws_push *p)
{
	struct ws_ledger_record *r = ws_ledger_record(p->ledger);
	r->group = p->group_name;
	r->master_host = p->place.host;
	r->master_port = p->place.port;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		push_describe(p, i, &r->endpoints[i]);
}

static int save(struct ws_push *p, struct ws_err *err)
{
	if (open_ledger(p, err))
		return -1;
	describe_all(p);
	return ws_ledger_save(p->ledger, err);
}

static int record(struct ws_push *p, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	if (!keeps_ledger(p))
		return 0;
	if (save(p, &why) == 0) {
		p->owes_record = true;
		return 0;
	}
	/* The file stays as it was written last, which was before the step that now cannot be
	 * made: it may be the only one that knows of a partial endpoint. */
	if (p->owes_record) {
		if (err)
			*err = why;
		return ws_err_hint(err, "make room in the state directory, and push again");
	}
	ws_ledger_abandon(p->ledger);
	p->ledger = NULL;
	return go_without(p, NOBODY_KNOWS, &why, err);
}

int push_record(struct ws_push *p, struct ws_err *err)
{
	push_alive(p);
	const int rc = record(p, err);
	p->recorded = p->recorded || rc == 0;
	return rc;
}

/* Repair goes by this order, in which a push comes behind those that died before it,
 * although clocks are put back. */
static int64_t begins_now(const struct ws_push *p)
{
	const int64_t now = time(NULL);
	return p->heir_began < now || p->heir_began == INT64_MAX ? now : p->heir_began + 1;
}

/* The record of an earlier run of this process stays where this run does
 * not complete what that left. */
static void keep_earlier(struct ws_push *p, const struct ws_ledger_sent *sent)
{
	const struct ws_ledger_record *r = p->ledger ? ws_ledger_record(p->ledger) : NULL;
	struct ws_ledger_sent strict = *sent;
	bool keeps = false;
	strict.checked = false; /* it may still fail */
	for (size_t i = 0; r && i < r->n_endpoints; i++)
		keeps = keeps || (r->endpoints[i].state == WS_PARTIAL &&
		                  !ws_ledger_completes(&strict, r, &r->endpoints[i]));
	if (!keeps)
		return;
	p->heir_began = r->began > p->heir_began ? r->began : p->heir_began;
	ws_ledger_leave(p->ledger);
	p->ledger = NULL;
	p->heir = true;
}

static int note_files(struct ws_push *p, struct ws_err *err)
{
	const struct ws_source *s;
	const char *path;
	int rc = 0;
	for (size_t i = 0; (s = ws_catalog_source_at(p->input.catalog, i)); i++)
		for (size_t k = 0; rc == 0 && (path = ws_source_file_name(s, k)); k++) {
			uint64_t id;
			const bool is_file = ws_source_file_id(s, k, &id);
			if (is_file || ws_memory_path(path))
				rc = ws_ledger_add_file(p->ledger, path, is_file ? &id : NULL, err);
		}
	return rc;
}

/* What an earlier run of this process left must stay written down. */
static bool owes_record(const struct ws_push *p)
{
	const struct ws_ledger_record *r = p->ledger ? ws_ledger_record(p->ledger) : NULL;
	bool owes = false;
	for (size_t i = 0; r && i < r->n_endpoints; i++) {
		const struct ws_ledger_endpoint *e = &r->endpoints[i];
		owes = owes || e->state == WS_PARTIAL || e->paused || e->middle || e->slept;
	}
	return owes;
}

static int note_source(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	struct ws_ledger_sent sent;
	push_load(p, &sent);
	keep_earlier(p, &sent);
	if (open_ledger(p, err) || ws_ledger_source(p->ledger, s->paths, s->n_paths, p->weight_version, err) ||
	    note_files(p, err))
		return -1;
	struct ws_ledger_record *r = ws_ledger_record(p->ledger);
	r->digest = sent.digest;
	r->tensors = sent.tensors;
	r->bytes = sent.bytes;
	r->began = begins_now(p);
	return 0;
}

int push_record_begin(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	int rc = 0;
	p->owes_record = owes_record(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		p->endpoints[i].grouped = !p->protocol->groupless;
		push_target_event(&p->endpoints[i].weights, PUSH_PLAN_RECORDED);
	}
	if (keeps_ledger(p) && note_source(p, s, &why))
		rc = go_without(p, NOBODY_KNOWS, &why, err);
	/* Who is in the group already is only asked again with the pause,
	 * and that is recorded first. */
	return rc == 0 && !p->group ? push_record(p, err) : rc;
}

bool push_has_record(const struct ws_push *p)
{
	return p->ledger && !p->unrecorded;
}

void push_record_end(struct ws_push *p)
{
	struct ws_ledger_record *r = p->ledger ? ws_ledger_record(p->ledger) : NULL;
	for (size_t i = 0; r && i < p->opts.n_endpoints; i++) {
		r->endpoints[i].grouped = r->endpoints[i].grouped && p->endpoints[i].grouped;
		r->endpoints[i].paused = r->endpoints[i].paused && p->endpoints[i].paused;
		if (!p->endpoints[i].weights.scope_open)
			r->endpoints[i].middle = WS_MIDDLE_NONE;
	}
	if (p->ledger)
		ws_ledger_reread(p->ledger);
	ws_ledger_close(p->ledger);
	p->ledger = NULL;
}

void push_name_remedy(const struct ws_push *p, struct ws_err *err)
{
	bool partial = false, asleep = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->endpoints[i];
		partial |= e->weights.state == WS_PARTIAL;
		asleep |= push_is_asleep(e) && (e->paused || e->weights.state == WS_PARTIAL);
	}
	if (err->hint[0] || (!partial && !asleep))
		return;
	if (!push_has_record(p) && asleep)
		ws_err_hint(err, "when the cause is gone, push again; --asleep must list what is still released");
	if (!push_has_record(p))
		return;
	ws_err_hint(err, "when the cause is gone%s push again%s",
	            p->opts.again_directory ? ": wsync-ctl repair --again, or" : ",",
	            asleep ? " with --asleep recorded" : "");
}
