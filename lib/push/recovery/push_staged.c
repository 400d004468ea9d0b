/* SPDX-License-Identifier: Apache-2.0 */
/* push_staged.c - staged updates. A push with {stage} sends everything and ends. Servers load it
 * when a second run, with {complete}, asks them to. The record of the first run is what the second
 * one knows: endpoints, group, plan and weight version. The second run writes a record of its own,
 * and then removes its endpoints from the first, before it pauses them. */
#include "push_protocol.h"

#include "disk.h"
#include "journal_core.h"
#include "wsync/tool/staged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int64_t LEAVE_NS = 10 * WS_NS_PER_S;

/* ---- finding --------------------------------------------------------------------------------- */

static void describe(const struct ws_journal_record *r, char *dst, size_t n)
{
	const int64_t s = time(NULL) - r->began;
	snprintf(dst, n, "process %lld on %s staged an update%s%s%s there %lld s ago",
	         (long long)r->process.pid, r->process.host,
	         *r->weight_version ? " (weight version " : "", r->weight_version,
	         *r->weight_version ? ")" : "", (long long)(s > 0 ? s : 0));
}

static int list(const struct ws_push *p, struct ws_journal_list *out, struct ws_err *err)
{
	*out = (struct ws_journal_list){ 0 };
	if (p->opts.state_dir)
		return ws_journal_list(p->opts.state_dir, out, err);
	ws_err_set(err, WS_EUSAGE, "a staged update needs a record, and there is no place for it");
	return ws_err_hint(err, "{state_dir} names a directory that this user can write");
}

/* ---- {stage} --------------------------------------------------------------------------------- */

static int refuse_second(const struct ws_push *p, size_t i, const struct ws_journal_record *r,
                         struct ws_err *err)
{
	const char *url = p->to.endpoints[i].url;
	char what[400];
	describe(r, what, sizeof what);
	if (r->staged.stage >= WS_STAGE_DONE) {
		ws_err_set(err, WS_EREFUSED, "%s: %s", url, what);
		ws_err_hint(err, "load it: wsync-ctl complete -e %s; or drop it: wsync-ctl discard "
		                 "-e %s", url, url);
	} else {
		ws_err_set(err, WS_EREFUSED, "%s: %s, and was cut short", url, what);
		ws_err_hint(err, "run wsync-ctl repair, or push without {stage}");
	}
	return ws_err_where(err, NULL, url);
}

static int check_endpoint(struct ws_push *p, size_t i, const struct ws_journal_list *all,
                          struct ws_err *err)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	struct ws_journal_entry *first;
	for (size_t k = 0; (first = ws_staged_at(all, e->url, &k));) {
		struct ws_journal_endpoint *was = &first->record.endpoints[k];
		const struct ws_journal_endpoint none = { .url = was->url };
		if (!ws_staged_lost(was, &p->to.infos[i]))
			return refuse_second(p, i, &first->record, err);
		if (ws_journal_change(first, &none, 1, err))
			return -1;
		was->open_update = WS_UPDATE_NONE;
	}
	if (e->weights.state != WS_PARTIAL && !e->found_paused && !push_is_asleep(e))
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s: an earlier push left it %s", e->url,
	           e->weights.state == WS_PARTIAL ? "with some old and some new weights" :
	           e->found_paused                ? "paused" :
	                                            "with released memory");
	ws_err_hint(err, "run wsync-ctl repair, or push without {stage}");
	return ws_err_where(err, NULL, e->url);
}

int push_stage_check(struct ws_push *p, struct ws_err *err)
{
	struct ws_journal_list all;
	int rc = list(p, &all, err);
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++)
		rc = check_endpoint(p, i, &all, err);
	ws_journal_list_free(&all);
	p->recovery.stage = WS_STAGE_SENDING;
	return rc;
}

void push_stage_done(struct ws_push *p, bool done)
{
	p->recovery.stage = done ? WS_STAGE_DONE : WS_STAGE_LAST;
	p->recovery.staged_as = p->protocol->files                    ? WS_UPDATE_DISK :
	                        p->from.format == WS_FORMAT_FLATTENED ? WS_UPDATE_TWO_PHASE_FLAT :
	                                                                WS_UPDATE_TWO_PHASE;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].staged = done;
}

void push_staged_describe(const struct ws_push *p, struct ws_journal_staged *out)
{
	struct ws_journal_sent sent;
	if (!p->recovery.stage || !(p->recovery.staged || p->from.plan))
		return;
	if (p->recovery.staged) {
		*out = p->recovery.staged->record.staged;
		out->stage = p->recovery.stage;
		out->used = true;
		return;
	}
	push_describe_sent(p, &sent);
	*out = (struct ws_journal_staged){ .stage = p->recovery.stage, .whole = sent.whole,
		                           .checked = sent.checked, .model_path = "",
		                           .load_format = "", .written = "",
		                           .keep = p->opts.disk_keep };
	if (p->protocol->stages)
		p->protocol->stages(p, out);
}

/* ---- {complete} ------------------------------------------------------------------------------ */

static int refuse_missing(const char *url, const struct ws_journal_entry *entry, struct ws_err *err)
{
	char what[400];
	if (entry) {
		describe(&entry->record, what, sizeof what);
		ws_err_set(err, WS_EREFUSED, "%s: %s, and was cut short", url, what);
		ws_err_hint(err, "run wsync-ctl repair, and stage again");
	} else {
		ws_err_set(err, WS_EREFUSED, "%s: nothing is staged there", url);
		ws_err_hint(err, "stage an update first: wsync-push SOURCE --stage");
	}
	return ws_err_where(err, NULL, url);
}

/* A completion that failed may have split the record of an update. */
static bool is_same(const struct ws_journal_record *a, const struct ws_journal_record *b)
{
	return a->digest == b->digest && strcmp(a->group, b->group) == 0 &&
	       strcmp(a->staged.model_path, b->staged.model_path) == 0;
}

static int adopt(struct ws_push *p, size_t i, struct ws_err *err)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	size_t k = 0;
	struct ws_journal_entry *entry = ws_staged_at(&p->recovery.staged_list, e->url, &k),
				**first = &p->recovery.staged;
	if (!entry || entry->record.staged.stage < WS_STAGE_DONE)
		return refuse_missing(e->url, entry, err);
	const struct ws_journal_record *r = &entry->record;
	if (*first && !is_same(r, &(*first)->record)) {
		ws_err_set(err, WS_EREFUSED, "%s and %s have updates of different pushes",
		           p->to.endpoints[0].url, e->url);
		ws_err_hint(err, "complete them one after the other, with {endpoints}");
		return ws_err_where(err, NULL, e->url);
	}
	if (!ws_staged_can(&r->endpoints[k]) ||
	    (*first && p->recovery.staged_as != r->endpoints[k].open_update))
		return ws_err_set(err, WS_EINPUT, "%s: no record of a staged update", entry->path);
	*first = entry;
	e->staged = true;
	e->grouped = r->endpoints[k].grouped;
	p->recovery.staged_as = r->endpoints[k].open_update;
	if (r->endpoints[k].open_update != WS_UPDATE_DISK)
		push_target_event(&e->weights, PUSH_SCOPE_OPENED);
	return 0;
}

int push_staged_find(struct ws_push *p, struct ws_err *err)
{
	if (list(p, &p->recovery.staged_list, err))
		return -1;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (adopt(p, i, err))
			return -1;
	const struct ws_journal_record *r = &p->recovery.staged->record;
	p->recovery.stage = WS_STAGE_DONE;
	p->protocol =
		p->recovery.staged_as == WS_UPDATE_DISK ? &push_disk : &push_two_phase;
	p->from.format = p->recovery.staged_as == WS_UPDATE_TWO_PHASE ? WS_FORMAT_TENSORS :
	                                                                WS_FORMAT_FLATTENED;
	snprintf(p->link.name, sizeof p->link.name, "%s", r->group);
	if (!p->from.weight_version && *r->weight_version)
		p->from.weight_version = r->weight_version;
	if (ws_endpoint_check_version(p->from.weight_version, err))
		return -1;
	return p->protocol->found ? p->protocol->found(p, r, err) : 0;
}

static bool was_staged(const struct ws_journal_record *r, uint64_t id)
{
	for (size_t i = 0; i < r->n_files; i++)
		if (!r->files[i].in_memory && r->files[i].id == id)
			return true;
	return false;
}

int push_staged_files(const struct ws_push *p, struct ws_err *err)
{
	const struct ws_source *s;
	const char *path;
	for (size_t i = 0; (s = ws_catalog_source_at(p->from.input.catalog, i)); i++)
		for (size_t k = 0; (path = ws_source_file_name(s, k)); k++) {
			uint64_t id;
			if (!ws_source_file_id(s, k, &id) ||
			    was_staged(&p->recovery.staged->record, id))
				continue;
			ws_err_set(err, WS_EINPUT, "%s is not the file that was staged, or has "
			           "changed since", path);
			return ws_err_hint(err, "leave {verify} hash out, or stage again");
		}
	return 0;
}

static int take_from(struct ws_push *p, struct ws_journal_entry *entry, struct ws_err *err)
{
	const struct ws_journal_record *r = &entry->record;
	struct ws_journal_endpoint *none = calloc(r->n_endpoints + 1, sizeof *none);
	size_t n = 0;
	if (!none)
		return ws_oom(err);
	for (size_t k = 0; k < r->n_endpoints; k++)
		if (push_find_endpoint(p, r->endpoints[k].url) < p->opts.n_endpoints)
			none[n++].url = r->endpoints[k].url;
	const int rc = n ? ws_journal_change(entry, none, n, err) : 0;
	free(none);
	return rc;
}

/* A completion that was killed here leaves two records of its endpoints. */
int push_staged_take(struct ws_push *p, struct ws_err *err)
{
	const struct ws_journal_list *all = &p->recovery.staged_list;
	for (size_t i = 0; i < all->n; i++)
		if (!all->items[i].err.code && push_staged_has(p, &all->items[i].record) &&
		    ((*all->items[i].record.staged.written &&
		      ws_journal_use_written(&all->items[i], err)) ||
		     take_from(p, &all->items[i], err)))
			return -1;
	return 0;
}

/* A server that loads files takes any that it finds, at whatever start, and of whatever model. */
static void doubt_start(struct ws_push *p, size_t i, const struct ws_journal_endpoint *was)
{
	const uint64_t now = p->to.infos[i].instance;
	if (was->open_update != WS_UPDATE_DISK || (now && now == was->instance))
		return;
	p->to.endpoints[i].start_unknown = true;
	push_warn(p, p->to.endpoints[i].url, "nothing tells whether this is still the server that "
	          "the update was staged for");
}

/* Another push may have come between, perhaps from another machine: a warning. Another start of a
 * server has whole weights, but may be of another model. */
int push_staged_check(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		size_t k = 0;
		const char *url = p->to.endpoints[i].url, *is = p->to.infos[i].weight_version;
		const struct ws_journal_entry *e =
			ws_staged_at(&p->recovery.staged_list, url, &k);
		if (e && ws_staged_strange(&e->record.endpoints[k], &p->to.infos[i]))
			return ws_staged_refuse_strange(url, err);
		if (e)
			doubt_start(p, i, &e->record.endpoints[k]);
		const char *was = e ? e->record.endpoints[k].version : "";
		if (*was && *is && strcmp(was, is) != 0)
			push_warn(p, url, "its weight version was '%s' when the update was staged, "
			          "and is '%s' now", was, is);
	}
	return 0;
}

static bool has_new(const struct push_endpoint *e)
{
	return e->weights.state == WS_COMMITTED;
}

/* If others failed, the version is not set by push_set_version. */
void push_staged_label(struct ws_push *p)
{
	const size_t n = p->from.weight_version ? push_select(p, has_new) : 0;
	const struct ws_call to = push_call_made(p, push_cleanup_deadline(p, LEAVE_NS), NULL);
	if (n)
		ws_endpoint_set_version(&to, p->from.weight_version, p->to.call.answers, NULL);
	for (size_t i = 0; i < n; i++)
		p->to.endpoints[p->to.call.index[i]].labelled =
			p->to.call.answers[i].err.code == WS_OK;
}

void push_staged_over(struct ws_push *p, size_t i)
{
	p->to.endpoints[i].staged = false;
	push_target_event(&p->to.endpoints[i].weights, PUSH_SCOPE_DROPPED);
}

static bool may_leave(const struct push_endpoint *e)
{
	return e->grouped && !e->staged && !e->disconnected && !e->timed_out;
}

void push_staged_leave(struct ws_push *p)
{
	const size_t n = p->recovery.staged ? push_select(p, may_leave) : 0;
	if (!n)
		return;
	push_enter(p, WS_PHASE_DESTROY);
	const struct ws_call to = push_call_made(p, push_cleanup_deadline(p, LEAVE_NS), NULL);
	ws_endpoint_destroy_group(&to, p->link.name, p->to.call.answers, NULL);
	for (size_t k = 0; k < n; k++) {
		const struct ws_err *said = &p->to.call.answers[k].err;
		struct push_endpoint *e = &p->to.endpoints[p->to.call.index[k]];
		e->grouped = said->code != WS_OK && !ws_endpoint_said_no(said);
		if (e->grouped)
			push_warn(p, e->url, "did not answer the request to leave group %s",
			          p->link.name);
	}
}

void push_staged_forget(struct ws_push *p)
{
	ws_journal_list_free(&p->recovery.staged_list);
	p->recovery.staged = NULL;
}

/* ---- written checkpoints --------------------------------------------------------------------- */

int push_remove_written(const struct ws_journal_record *r, struct ws_err *err)
{
	char *dir = strdup(r->staged.written);
	char *slash = dir ? strrchr(dir, '/') : NULL;
	int rc = 0;
	if (slash && !r->staged.used && access(dir, F_OK) == 0) {
		*slash = 0;
		rc = ws_disk_remove(*dir ? dir : "/", slash + 1, err);
	}
	free(dir);
	return rc;
}

/* ---- the next push --------------------------------------------------------------------------- */

bool push_staged_has(const struct ws_push *p, const struct ws_journal_record *r)
{
	for (size_t k = 0; r->staged.stage && k < r->n_endpoints; k++)
		if (r->endpoints[k].open_update &&
		    push_find_endpoint(p, r->endpoints[k].url) < p->opts.n_endpoints)
			return true;
	return false;
}

static bool has_all_of(const struct ws_push *p, const struct ws_journal_record *r)
{
	for (size_t k = 0; k < r->n_endpoints; k++)
		if (push_find_endpoint(p, r->endpoints[k].url) == p->opts.n_endpoints)
			return false;
	return true;
}

/* The endpoints stay in the group of a staged update until it has ended. */
static int check_name(const struct ws_push *p, struct ws_err *err)
{
	struct ws_journal_list all;
	bool same = false;
	if (!p->opts.group_name || list(p, &all, NULL))
		return 0;
	for (size_t i = 0; i < all.n; i++)
		same = same || (!all.items[i].err.code &&
		                push_staged_has(p, &all.items[i].record) &&
		                strcmp(all.items[i].record.group, p->opts.group_name) == 0);
	ws_journal_list_free(&all);
	if (!same)
		return 0;
	ws_err_set(err, WS_EREFUSED, "an update is staged at these endpoints, with group name %s",
	           p->opts.group_name);
	return ws_err_hint(err, "give another {group_name}, or run wsync-ctl complete or discard "
	                        "before");
}

int push_staged_may_end(const struct ws_push *p, struct ws_err *err)
{
	if (!p->recovery.ends_staged || p->opts.complete)
		return 0;
	if (p->opts.pause != WS_PAUSE_NONE)
		return check_name(p, err);
	ws_err_set(err, WS_EREFUSED, "an update is staged at these endpoints, and a push can end "
	           "it only while they are paused");
	return ws_err_hint(err, "run wsync-ctl discard before, or push without {pause} none");
}

int push_staged_end(struct ws_push *p, struct ws_err *err)
{
	struct ws_journal_list all;
	struct ws_err why = WS_ERR_INIT;
	if (!p->recovery.ends_staged || p->opts.complete)
		return 0;
	if (list(p, &all, err))
		return -1;
	for (size_t i = 0; i < all.n; i++) {
		struct ws_journal_entry *e = &all.items[i];
		if (e->err.code || !push_staged_has(p, &e->record))
			continue;
		push_warn(p, NULL, "this push ends the update that process %lld staged",
		          (long long)e->record.process.pid);
		push_clean_up(p, e);
		if (has_all_of(p, &e->record) && push_remove_written(&e->record, &why))
			push_warn(p, NULL, "a staged checkpoint stays: %s", why.msg);
	}
	ws_journal_list_free(&all);
	p->recovery.ends_staged = false;
	return 0;
}
