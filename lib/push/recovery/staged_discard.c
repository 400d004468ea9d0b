/* SPDX-License-Identifier: Apache-2.0 */
/* staged_discard.c - drops staged updates, outside of a push. */
#include "push_recovery.h"

#include "journal_core.h"
#include "lock.h"
#include "wsync/tool/staged.h"

#include <stdlib.h>
#include <string.h>

int ws_staged_clean(const struct ws_journal_record *r, struct ws_err *err)
{
	return r->staged.stage == WS_STAGE_SENDING ? push_remove_written(r, err) : 0;
}

/* What happens at one endpoint, which is locked. */
struct dropping {
	struct ws_journal_entry entry; /* as the file is now */
	const struct ws_repair_opts *opts;
	ws_deadline until;
};

/* Finds the endpoint again: others may have changed the record before it was locked. */
static struct ws_journal_endpoint *find_again(struct dropping *d, const char *url,
                                              struct ws_err *err)
{
	struct ws_journal_record *r = &d->entry.record;
	ws_journal_read(&d->entry);
	for (size_t k = 0; !d->entry.err.code && k < r->n_endpoints; k++)
		if (strcmp(r->endpoints[k].url, url) == 0 && ws_staged_can(&r->endpoints[k]))
			return &r->endpoints[k];
	ws_err_set(err, WS_EREFUSED, "%s: nothing is staged there", url);
	ws_err_where(err, NULL, url);
	return NULL;
}

/* Only an ordinary push can help an endpoint that has loaded a part. */
static int check_state(const struct dropping *d, const struct ws_journal_endpoint *e,
                       struct ws_err *err)
{
	if (d->entry.record.staged.stage != WS_STAGE_LOADING || e->state == WS_UNTOUCHED)
		return 0;
	ws_err_set(err, WS_EPARTIAL, "%s: it has begun to load the update", e->url);
	ws_err_hint(err, "run wsync-ctl repair, or push to it");
	return ws_err_where(err, NULL, e->url);
}

static int drop_update(const struct dropping *d, struct ws_journal_endpoint *now,
                       struct ws_err *err)
{
	const struct ws_repair_opts *o = d->opts;
	const char *group = d->entry.record.group;
	const struct ws_call to = { o->http, &now->url, 1, d->until, o->cancel, NULL };
	struct ws_endpoint_info info = { 0 };
	struct ws_err each = WS_ERR_INIT;
	if (ws_endpoint_probe_all(&to, &info, &each, err)) {
		*err = each.code ? each : *err;
		return ws_err_where(err, NULL, now->url);
	}
	if (ws_staged_lost(now, &info)) {
		*now = (struct ws_journal_endpoint){ .url = now->url };
		return 0;
	}
	if (check_state(d, now, err) ||
	    ws_journal_drop_updates(o->http, now, 1, group, d->until, o->cancel, &each, err) ||
	    now->open_update) {
		*err = each.code ? each : *err;
		return -1;
	}
	ws_journal_leave_group(o->http, now, 1, group, d->until, o->cancel);
	return 0;
}

static int drop(struct dropping *d, const char *url, struct ws_err *err)
{
	const struct ws_journal_endpoint *found = find_again(d, url, err);
	if (!found)
		return -1;
	struct ws_journal_endpoint now = *found;
	const bool last = d->entry.record.n_endpoints == 1;
	if (now.open_update == WS_UPDATE_DISK ? check_state(d, &now, err) :
	                                        drop_update(d, &now, err))
		return -1;
	now.open_update = WS_UPDATE_NONE;
	if (ws_journal_change(&d->entry, &now, 1, err))
		return -1;
	return last && !ws_journal_owes(&now) ? push_remove_written(&d->entry.record, err) : 0;
}

static int discard(const struct ws_discarding *item, const struct ws_repair_opts *opts,
                   struct ws_err *err)
{
	const char *url = item->entry->record.endpoints[item->endpoint].url;
	struct dropping d = { .entry = { .path = item->entry->path, .err = WS_ERR_INIT },
		              .opts = opts,
		              .until = ws_deadline_in(opts->timeout_ns > 0 ? opts->timeout_ns :
		                                                             10 * WS_NS_PER_S) };
	char *dir = ws_journal_locks(opts->state_dir);
	struct ws_locks *locks = NULL;
	int rc = dir ? ws_locks_take(dir, &url, 1, opts->lock_wait_ns, opts->cancel, &locks, err) :
	               ws_oom(err);
	if (rc == 0)
		rc = drop(&d, url, err);
	ws_journal_drop(&d.entry.record, d.entry.priv);
	ws_locks_drop(locks);
	free(dir);
	return rc;
}

int ws_staged_discard(struct ws_discarding *items, size_t n, const struct ws_repair_opts *opts,
                      struct ws_err *err)
{
	const struct ws_err *first = NULL;
	for (size_t i = 0; i < n; i++) {
		items[i].err = (struct ws_err)WS_ERR_INIT;
		if (ws_cancelled(opts->cancel))
			ws_err_set(&items[i].err, WS_ECANCELLED, "cancelled");
		else if (discard(&items[i], opts, &items[i].err) == 0)
			items[i].entry->record.endpoints[items[i].endpoint].open_update =
				WS_UPDATE_NONE;
		if (items[i].err.code && !first)
			first = &items[i].err;
	}
	if (first && err)
		*err = *first;
	return first ? -1 : 0;
}
