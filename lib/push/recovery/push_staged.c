/* SPDX-License-Identifier: Apache-2.0 */
/* push_staged.c - staged updates. A push with {stage} sends everything and ends. Servers load it
 * when a second run, with {complete}, asks them to. The record of the first run is what the second
 * one knows: endpoints, group, plan and weight version. The second run moves its endpoints into a
 * record of its own before it pauses them. So there is one record of each update at any time. */
#include "push_protocol.h"

#include "disk.h"
#include "journal_core.h"
#include "lock.h"
#include "wsync/tool/staged.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int64_t LEAVE_NS = 10 * WS_NS_PER_S;

/* ---- finding --------------------------------------------------------------------------------- */

struct ws_journal_entry *ws_staged_at(const struct ws_journal_list *list, const char *url,
                                      size_t *endpoint)
{
	for (size_t i = list->n; i-- > 0;) {
		const struct ws_journal_record *r = &list->items[i].record;
		for (size_t k = 0; !list->items[i].err.code && k < r->n_endpoints; k++) {
			if (!r->staged.stage || !r->endpoints[k].open_update ||
			    !ws_endpoint_same(r->endpoints[k].url, url))
				continue;
			*endpoint = k;
			return &list->items[i];
		}
	}
	return NULL;
}

/* A restarted server can still load a checkpoint. */
bool ws_staged_lost(const struct ws_journal_endpoint *e, const struct ws_endpoint_info *info)
{
	return e->open_update != WS_UPDATE_DISK && e->instance && info->instance &&
	       e->instance != info->instance;
}

static void describe(const struct ws_journal_record *r, char *dst, size_t n)
{
	char age[32];
	const int64_t s = time(NULL) - r->updated;
	ws_format_duration(age, sizeof age, (s > 0 ? s : 0) * WS_NS_PER_S);
	snprintf(dst, n, "process %lld on %s staged an update%s%s%s there %s ago",
	         (long long)r->process.pid, r->process.host,
	         *r->weight_version ? " (weight version " : "", r->weight_version,
	         *r->weight_version ? ")" : "", age);
}

static int list(struct ws_push *p, struct ws_journal_list *out, struct ws_err *err)
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
	if (r->staged.stage == WS_STAGE_DONE) {
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
	size_t k = 0;
	struct ws_journal_entry *first = ws_staged_at(all, e->url, &k);
	if (first && !ws_staged_lost(&first->record.endpoints[k], &p->to.infos[i]))
		return refuse_second(p, i, &first->record, err);
	if (first) {
		const struct ws_journal_endpoint none = { .url = first->record.endpoints[k].url };
		return ws_journal_change(first, &none, 1, err);
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

void push_stage_done(struct ws_push *p)
{
	p->recovery.stage = WS_STAGE_DONE;
	p->recovery.staged_as = p->protocol->files                    ? WS_UPDATE_DISK :
	                        p->from.format == WS_FORMAT_FLATTENED ? WS_UPDATE_TWO_PHASE_FLAT :
	                                                                WS_UPDATE_TWO_PHASE;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		p->to.endpoints[i].staged = true;
}

void push_staged_describe(const struct ws_push *p, struct ws_journal_staged *out)
{
	struct ws_journal_sent sent;
	if (!p->recovery.stage || !(p->recovery.staged || p->from.plan))
		return;
	if (p->recovery.staged) {
		*out = p->recovery.staged->record.staged;
		return;
	}
	push_describe_sent(p, &sent);
	*out = (struct ws_journal_staged){ .stage = p->recovery.stage, .whole = sent.whole,
		                           .checked = sent.checked, .model_path = "",
		                           .load_format = "", .written = "" };
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
		ws_err_hint(err, "wsync-push SOURCE --stage sends an update that waits for this "
		                 "command");
	}
	return ws_err_where(err, NULL, url);
}

static int adopt(struct ws_push *p, size_t i, struct ws_err *err)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	size_t k = 0;
	struct ws_journal_entry *entry = ws_staged_at(&p->recovery.staged_list, e->url, &k),
				**first = &p->recovery.staged;
	if (!entry || entry->record.staged.stage != WS_STAGE_DONE)
		return refuse_missing(e->url, entry, err);
	const struct ws_journal_record *r = &entry->record;
	if (*first && entry != *first) {
		ws_err_set(err, WS_EREFUSED, "%s and %s have updates of different pushes",
		           p->to.endpoints[0].url, e->url);
		ws_err_hint(err, "complete them one after the other, with {endpoints}");
		return ws_err_where(err, NULL, e->url);
	}
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
	return p->protocol->found ? p->protocol->found(p, r, err) : 0;
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
		    take_from(p, &all->items[i], err))
			return -1;
	return 0;
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
	const struct ws_call to = { p->http, p->to.call.urls, n,
		                    push_cleanup_deadline(p, LEAVE_NS), NULL };
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

/* Splits the path of a written checkpoint, and removes it. */
static int remove_written(const char *path, struct ws_err *err)
{
	char *dir = strdup(path);
	char *slash = dir ? strrchr(dir, '/') : NULL;
	if (!slash || !slash[1]) {
		free(dir);
		return 0;
	}
	*slash = 0;
	const int rc = ws_disk_remove(dir, slash + 1, err);
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

int push_staged_may_end(const struct ws_push *p, struct ws_err *err)
{
	if (!p->recovery.ends_staged || p->opts.complete || p->opts.pause != WS_PAUSE_NONE)
		return 0;
	ws_err_set(err, WS_EREFUSED, "an update is staged at these endpoints, and ending it may "
	           "load it: they must be paused");
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
		push_warn(p, NULL, "the update that process %lld staged is given up for this push",
		          (long long)e->record.process.pid);
		push_clean_up(p, e);
		if (*e->record.staged.written && has_all_of(p, &e->record) &&
		    remove_written(e->record.staged.written, &why))
			push_warn(p, NULL, "a staged checkpoint stays: %s", why.msg);
	}
	ws_journal_list_free(&all);
	p->recovery.ends_staged = false;
	return 0;
}

/* ---- dropping -------------------------------------------------------------------------------- */

/* Drops what is staged at one endpoint, which is locked. */
static int drop(struct ws_discarding *d, const struct ws_repair_opts *opts, ws_deadline until,
                struct ws_err *err)
{
	struct ws_journal_record *r = &d->entry->record;
	struct ws_journal_endpoint now = r->endpoints[d->endpoint];
	struct ws_endpoint_info info = { 0 };
	struct ws_err each = WS_ERR_INIT;
	const struct ws_call to = { opts->http, &now.url, 1, until, opts->cancel };
	if (now.open_update != WS_UPDATE_DISK) {
		if (ws_endpoint_probe_all(&to, &info, &each, err)) {
			*err = each.code ? each : *err;
			return ws_err_where(err, NULL, now.url);
		}
		if (!ws_staged_lost(&now, &info) &&
		    (ws_journal_drop_updates(opts->http, &now, 1, r->group, until, opts->cancel,
		                             &each, err) ||
		     now.open_update)) {
			*err = each.code ? each : *err;
			return -1;
		}
		ws_journal_leave_group(opts->http, &now, 1, r->group, until, opts->cancel);
	}
	now.open_update = WS_UPDATE_NONE;
	return ws_journal_change(d->entry, &now, 1, err);
}

static int discard(struct ws_discarding *d, const struct ws_repair_opts *opts, struct ws_err *err)
{
	const ws_deadline until =
		ws_deadline_in(opts->timeout_ns > 0 ? opts->timeout_ns : 10 * WS_NS_PER_S);
	const char *url = d->entry->record.endpoints[d->endpoint].url;
	char *dir = ws_journal_locks(opts->state_dir);
	struct ws_locks *locks = NULL;
	int rc = dir ? ws_locks_take(dir, &url, 1, 0, opts->cancel, &locks, err) : ws_oom(err);
	if (rc == 0)
		rc = drop(d, opts, until, err);
	ws_locks_drop(locks);
	free(dir);
	return rc;
}

/* Has no endpoint of the record a staged update any more? */
static bool is_free(const struct ws_discarding *items, size_t n, const struct ws_journal_entry *e)
{
	size_t left = e->record.n_endpoints;
	for (size_t i = 0; i < n; i++)
		left -= items[i].entry == e && !items[i].err.code;
	return left == 0;
}

int ws_staged_discard(struct ws_discarding *items, size_t n, const struct ws_repair_opts *opts,
                      struct ws_err *err)
{
	const struct ws_err *first = NULL;
	for (size_t i = 0; i < n && !ws_cancelled(opts->cancel); i++) {
		struct ws_discarding *d = &items[i];
		d->err = (struct ws_err)WS_ERR_INIT;
		const int rc = discard(d, opts, &d->err);
		if (rc == 0 && is_free(items, i + 1, d->entry) && *d->entry->record.staged.written)
			(void)remove_written(d->entry->record.staged.written, &d->err);
		if (d->err.code && !first)
			first = &d->err;
	}
	if (first && err)
		*err = *first;
	return first ? -1 : 0;
}
