/* SPDX-License-Identifier: Apache-2.0 */
/* push_journal.c - locks the endpoints, and records the changes that this push may make.
 *
 * If the state directory cannot be written, the push warns and continues, because servers would
 * otherwise keep old weights. If the caller named the directory, the push fails instead. */
#include "push_protocol.h"

#include "journal_core.h"
#include "lock.h"
#include "wsync/tool/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char NOBODY_KNOWS[] = "if this process is killed, nobody will know what it left";

/* A run that may change endpoints keeps a record. If it cannot be written to a state directory, it
 * stays in memory, for later runs of this process. */
static bool keeps_record(const struct ws_push *p)
{
	return p->opts.n_endpoints && !p->opts.dry_run;
}

static bool on_disk(const struct ws_push *p)
{
	return p->opts.state_dir && !p->recovery.unrecorded;
}

/* Warns that there is no record. -1: the push must not begin without a record. */
static int go_without(struct ws_push *p, const char *what, const struct ws_err *why,
                      struct ws_err *err)
{
	if (p->opts.state_required || p->recovery.contradicts) {
		if (err)
			*err = *why;
		return ws_err_hint(
			err, p->recovery.contradicts ?
				     "make room in the state directory, and push again" :
				     "{state_dir} names a directory that this user can write");
	}
	push_warn(p, NULL, "%s: %s", what, why->msg);
	return 0;
}

/* ---- locks ----------------------------------------------------------------------------------- */

static int take_locks(struct ws_push *p, const char *dir, struct ws_err *err)
{
	const int64_t most = push_lock_wait(p, p->opts.lock_wait_ns);
	struct push_wait wait;
	push_wait_begin(&wait, most);
	int rc;
	do {
		*err = (struct ws_err)WS_ERR_INIT;
		rc = ws_locks_take(dir, p->opts.endpoints, p->opts.n_endpoints,
		                   most ? push_wait_piece(&wait) : 0, p->opts.cancel,
		                   &p->recovery.locks, err);
	} while (rc && err->native == EWOULDBLOCK && push_wait_on(p, &wait, err));
	return rc;
}

int push_lock_endpoints(struct ws_push *p, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	int rc = 0;
	if (!keeps_record(p))
		return 0;
	if (on_disk(p)) {
		char *dir = ws_journal_locks(p->opts.state_dir);
		rc = dir ? take_locks(p, dir, &why) : ws_oom(&why);
		free(dir);
	}
	if (rc && why.code == WS_ESYSTEM)
		rc = go_without(p, "other pushes are not kept away", &why, err);
	else if (rc && err)
		*err = why;
	if (rc)
		return -1;
	p->recovery.claimed = true;
	push_read_records(p);
	return 0;
}

bool push_lock_again(const struct ws_push *p, size_t i, struct ws_locks **out)
{
	char *dir = on_disk(p) ? ws_journal_locks(p->opts.state_dir) : NULL;
	const bool is_ours = !dir || !p->recovery.kept ||
	                     ws_locks_again(dir, p->opts.endpoints[i], p->recovery.kept, out);
	free(dir);
	return is_ours;
}

bool push_was_locked(const struct ws_push *p, size_t i)
{
	return p->recovery.locks && p->recovery.kept &&
	       !ws_locks_kept(p->recovery.locks, p->opts.endpoints[i], p->recovery.kept);
}

void push_take_over_pauses(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		if (!e->paused && (!e->found_paused || e->weights.state == WS_PARTIAL))
			continue;
		e->paused = true;
		e->found_paused = false;
	}
}

/* ---- the record of this push ----------------------------------------------------------------- */

static int open_journal(struct ws_push *p, struct ws_err *err)
{
	if (p->recovery.journal)
		return 0;
	if (ws_journal_open(on_disk(p) ? p->opts.state_dir : NULL, p->opts.endpoints,
	                    p->opts.n_endpoints, &p->recovery.journal, err))
		return -1;
	struct ws_journal_record *r = ws_journal_record(p->recovery.journal);
	r->directory = p->opts.again_directory;
	r->args = p->opts.again_args;
	r->n_args = p->opts.n_again_args;
	if (p->recovery.staged) { /* to push again what it completes */
		r->directory = p->recovery.staged->record.directory;
		r->args = p->recovery.staged->record.args;
		r->n_args = p->recovery.staged->record.n_args;
	}
	return 0;
}

static enum ws_open_update kind_of_update(const struct ws_push *p, size_t i)
{
	switch (p->opts.stage ? PUSH_SCOPE_NONE : push_scope_of(p, i)) {
	case PUSH_SCOPE_SESSION:
		return WS_UPDATE_SESSION;
	case PUSH_SCOPE_PROCESS:
		return WS_UPDATE_PROCESSING;
	case PUSH_SCOPE_TRANSFER:
		return WS_UPDATE_TRANSFER;
	case PUSH_SCOPE_NONE:
		break;
	}
	if (!p->protocol->prepares || p->opts.complete)
		return WS_UPDATE_NONE;
	return p->from.format == WS_FORMAT_FLATTENED ? WS_UPDATE_TWO_PHASE_FLAT :
	                                               WS_UPDATE_TWO_PHASE;
}

/* A transfer may leave the endpoint inside an update. After the transfer, an endpoint that is still
 * inside one did not answer. */
static enum ws_open_update open_update_of(const struct ws_push *p, size_t i)
{
	const bool may_be =
		p->run.phase == WS_PHASE_TRANSFER || p->to.endpoints[i].weights.scope_open;
	const enum ws_open_update own = may_be ? kind_of_update(p, i) : WS_UPDATE_NONE;
	return p->to.endpoints[i].staged && !own ? p->recovery.staged_as : own;
}

void push_describe(const struct ws_push *p, size_t i, struct ws_journal_endpoint *out)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	const bool pausing = p->run.phase == WS_PHASE_PAUSE && p->opts.pause != WS_PAUSE_NONE;
	if (p->run.phase > WS_PHASE_CONNECT && p->run.phase < WS_PHASE_RESUME)
		out->phase = p->run.phase; /* the phase that failed, and not its clean-up */
	/* Staging changes no weights. */
	out->state = p->run.phase == WS_PHASE_TRANSFER && e->weights.state == WS_UNTOUCHED &&
	                             !p->opts.stage ?
	                     WS_PARTIAL :
	                     e->weights.state;
	out->paused = e->paused || e->found_paused || pausing;
	out->grouped = e->grouped;
	out->open_update = open_update_of(p, i);
	out->version = p->to.infos[i].weight_version;
	out->instance = p->to.infos[i].instance;
	out->sure = out->instance && p->to.infos[i].identity.strength == WS_IDENTITY_SURE;
	out->inherited = e->weights.gap;
	out->unlabelled = p->from.weight_version && !p->opts.stage && !e->labelled &&
	                  !p->run.labelled && push_can(p, i)->set_version;
	out->slept = push_is_asleep(e);
	out->asleep = out->slept ? e->asleep : 0;
	out->unsure = out->slept ? e->unsure : 0;
}

static void describe_all(struct ws_push *p)
{
	struct ws_journal_record *r = ws_journal_record(p->recovery.journal);
	r->group = p->link.name;
	r->master_host = p->link.place.host;
	r->master_port = p->link.place.port;
	push_staged_describe(p, &r->staged);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		push_describe(p, i, &r->endpoints[i]);
}

static int save(struct ws_push *p, struct ws_err *err)
{
	if (open_journal(p, err))
		return -1;
	describe_all(p);
	return ws_journal_save(p->recovery.journal, err);
}

/* Once a run is recorded, only its file lists what the run may leave. If the file cannot be
 * updated, it stays as it is, and the next step is not taken. */
static int record(struct ws_push *p, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	if (!keeps_record(p) || save(p, &why) == 0)
		return 0;
	if (p->recovery.recorded) {
		if (err)
			*err = why;
		return ws_err_hint(err, "make room in the state directory, and push again");
	}
	if (go_without(p, NOBODY_KNOWS, &why, err))
		return -1;
	p->recovery.unrecorded = true;
	if (p->recovery.journal)
		ws_journal_to_memory(p->recovery.journal);
	return save(p, err);
}

int push_record(struct ws_push *p, struct ws_err *err)
{
	push_alive(p);
	const int rc = record(p, err);
	p->recovery.recorded = p->recovery.recorded || rc == 0;
	return rc;
}

/* Repair uses the order of these times: a push comes after the dead pushes before it, even if the
 * clock was set back. */
static int64_t begins_now(const struct ws_push *p)
{
	const int64_t now = time(NULL);
	return p->recovery.stale_began < now || p->recovery.stale_began == INT64_MAX ?
	               now :
	               p->recovery.stale_began + 1;
}

static int note_staged_files(struct ws_push *p, const struct ws_journal_record *r,
                             struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < r->n_files; i++)
		rc = ws_journal_add_file(p->recovery.journal, r->files[i].path,
		                         r->files[i].in_memory ? NULL : &r->files[i].id, err);
	return rc;
}

static int note_files(struct ws_push *p, struct ws_err *err)
{
	const struct ws_source *s;
	const char *path;
	int rc = 0;
	if (p->recovery.staged)
		return note_staged_files(p, &p->recovery.staged->record, err);
	for (size_t i = 0; (s = ws_catalog_source_at(p->from.input.catalog, i)); i++)
		for (size_t k = 0; rc == 0 && (path = ws_source_file_name(s, k)); k++) {
			uint64_t id;
			const bool is_file = ws_source_file_id(s, k, &id);
			if (is_file || ws_memory_path(path))
				rc = ws_journal_add_file(p->recovery.journal, path,
				                         is_file ? &id : NULL, err);
		}
	return rc;
}

static int note_source(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	struct ws_journal_sent sent;
	const struct ws_journal_record *staged =
		p->recovery.staged ? &p->recovery.staged->record : NULL;
	push_describe_sent(p, &sent);
	if (open_journal(p, err) ||
	    ws_journal_source(p->recovery.journal, staged ? staged->sources : s->paths,
	                      staged ? staged->n_sources : s->n_paths, p->from.weight_version,
	                      err) ||
	    note_files(p, err))
		return -1;
	struct ws_journal_record *r = ws_journal_record(p->recovery.journal);
	r->digest = sent.digest;
	r->tensors = sent.tensors;
	r->bytes = sent.bytes;
	r->began = begins_now(p);
	r->refused = false;
	return 0;
}

int push_record_begin(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	int rc = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (!p->opts.complete)
			p->to.endpoints[i].grouped = !p->protocol->groupless;
	if (keeps_record(p) && note_source(p, s, &why)) {
		rc = go_without(p, NOBODY_KNOWS, &why, err);
		p->recovery.unrecorded = rc == 0;
		if (rc == 0)
			rc = note_source(p, s, err);
	}
	/* The join request is recorded once the group's address is known (push_group.c). With the
	 * group of an earlier run, the next request is the pause. */
	return rc == 0 && p->protocol->groupless && !p->opts.complete ? push_record(p, err) : rc;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* An endpoint that completed this run's update is no longer inside an earlier push's. Ending that
 * one again would make the server pack packed weights, so the old record drops it. */
static void forget_updates(const struct ws_push *p, struct ws_journal_entry *entry)
{
	struct ws_journal_record *r = &entry->record;
	for (size_t k = r->n_endpoints; k-- > 0;) { /* ws_journal_change may remove it */
		struct ws_journal_endpoint now = r->endpoints[k];
		const size_t i = push_find_endpoint(p, now.url);
		if (entry->err.code || !now.open_update || i == p->opts.n_endpoints ||
		    !push_weights_arrived(&p->to.endpoints[i].weights) ||
		    (now.open_update != kind_of_update(p, i) &&
		     now.open_update != WS_UPDATE_TRANSFER))
			continue;
		now.open_update = r->endpoints[k].open_update = WS_UPDATE_NONE;
		ws_journal_change(entry, &now, 1, NULL);
	}
}

/* Clears the endpoints also where a record names them by other URLs. */
static void clear_all(struct ws_push *p, struct ws_journal_list *list,
                      const struct ws_journal_sent *sent)
{
	enum { ALIASES = 64 };
	const size_t n = p->opts.n_endpoints;
	const char **urls = calloc(n + ALIASES, sizeof *urls);
	for (size_t i = 0; urls && i < n; i++)
		urls[i] = p->opts.endpoints[i];
	if (urls)
		ws_journal_clear(list, ws_journal_path(p->recovery.journal), urls,
		                 n + push_aliases(p, list, urls + n, ALIASES), sent);
	free(urls);
}

/* Our record has all facts of the earlier records about endpoints that this plan completes. After a
 * failure it must also be as hard to complete: a smaller plan is completed by a smaller push. */
static void settle_earlier(struct ws_push *p, bool ok)
{
	struct ws_journal_sent sent;
	struct ws_journal_list list = { 0 };
	push_describe_sent(p, &sent);
	sent.checked = sent.checked && ok;
	sent.ok = ok;
	push_note_resumed(p);
	if (p->opts.state_dir && (ok || ws_journal_path(p->recovery.journal)))
		(void)ws_journal_list(p->opts.state_dir, &list, NULL);
	for (size_t i = 0; i < list.n; i++)
		if (!push_own_entry(p, &list.items[i]))
			forget_updates(p, &list.items[i]);
	for (size_t i = 0; i < p->recovery.left.n; i++)
		forget_updates(p, &p->recovery.left.items[i]);
	/* What a server refused does not replace what can be repeated. */
	sent.refused = !ok && ws_journal_record(p->recovery.journal)->refused;
	if (list.n)
		clear_all(p, &list, &sent);
	sent.refused = false;
	ws_journal_clear(&p->recovery.left, NULL, p->opts.endpoints, p->opts.n_endpoints, &sent);
	ws_journal_list_free(&list);
}

void push_unlock_endpoints(struct ws_push *p, bool ok)
{
	/* Until this run has recorded its plan, the record is that of an earlier run, whose group
	 * this run would have used. */
	if (p->recovery.journal && p->recovery.recorded) {
		describe_all(p);
		if (p->recovery.adopts_stale)
			settle_earlier(p, ok);
		push_alive(p);
		if (ok) {
			/* Now it lists no endpoint as paused: wsync-ctl ready and --only-stale read
			 * it while the group is kept. */
			(void)ws_journal_save(p->recovery.journal, NULL);
		} else {
			ws_journal_close(p->recovery.journal, &p->recovery.left);
			p->recovery.journal = NULL;
		}
	}
	p->recovery.adopts_stale = p->recovery.claimed = false;
	if (p->recovery.locks && p->link.group)
		p->recovery.kept = ws_locks_keep(p->recovery.locks);
	else
		ws_locks_drop(p->recovery.locks);
	p->recovery.locks = NULL;
}

void push_record_failure(struct ws_push *p, const struct ws_err *err)
{
	const bool sending = p->run.weights_dirty || strcmp(err->phase, "transfer") == 0 ||
	                     strcmp(err->phase, "verify") == 0;
	if (p->recovery.journal)
		ws_journal_record(p->recovery.journal)->refused =
			sending && (err->code == WS_EREFUSED || err->code == WS_EMISMATCH);
}

bool push_has_record(const struct ws_push *p)
{
	return p->recovery.journal && ws_journal_path(p->recovery.journal);
}

void push_record_end(struct ws_push *p)
{
	struct ws_journal_record *r =
		p->recovery.journal ? ws_journal_record(p->recovery.journal) : NULL;
	for (size_t i = 0; r && i < p->opts.n_endpoints; i++) {
		r->endpoints[i].grouped = p->to.endpoints[i].grouped;
		/* A run that could not be recorded has filled its record in, and paused nothing. */
		r->endpoints[i].paused = r->endpoints[i].paused && p->to.endpoints[i].paused;
	}
	if (p->recovery.journal)
		ws_journal_reread(p->recovery.journal);
	ws_journal_close(p->recovery.journal, NULL);
	p->recovery.journal = NULL;
	ws_journal_list_free(&p->recovery.left);
}

void push_name_remedy(const struct ws_push *p, struct ws_err *err)
{
	bool partial = false, asleep = false, unlabelled = false;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		struct ws_journal_endpoint now = { 0 };
		push_describe(p, i, &now);
		unlabelled |= now.unlabelled && now.state == WS_COMMITTED;
		partial |= e->weights.state == WS_PARTIAL;
		asleep |= push_is_asleep(e) && (e->paused || e->weights.state == WS_PARTIAL);
	}
	if (!err->hint[0] && !partial && !asleep && unlabelled && push_has_record(p))
		ws_err_hint(err, "the new weights still have the old weight version: push again, "
		            "or give them theirs: wsync-ctl repair");
	if (err->hint[0] || (!partial && !asleep))
		return;
	if (!push_has_record(p) && asleep)
		ws_err_hint(err, "when the cause is gone, push again; {asleep} must list what is "
		                 "still released");
	if (!push_has_record(p))
		return;
	const bool again = p->recovery.staged ? p->recovery.staged->record.directory != NULL :
	                                        p->opts.again_directory != NULL;
	ws_err_hint(err, "%s%s push again%s",
	            err->code == WS_ECANCELLED ? "they wait until their weights are whole" :
	                                         "when the cause is gone",
	            again ? ": wsync-ctl repair --again, or" : ",",
	            asleep ? " with {asleep} recorded" : "");
}
