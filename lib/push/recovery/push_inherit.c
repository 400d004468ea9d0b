/* SPDX-License-Identifier: Apache-2.0 */
/* push_inherit.c - adopts the state that earlier pushes left at our endpoints, and ends what blocks
 * this push: groups, and updates that are open. */
#include "push_state.h"

#include "journal_core.h"
#include "process_id.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Time for a server to leave the group of a dead push. A server that does not leave may still join
 * the new group. */
static const int64_t STALE_NS = 5 * WS_NS_PER_S;

size_t push_find_endpoint(const struct ws_push *p, const char *url)
{
	const size_t n = p->opts.n_endpoints;
	size_t i = 0;
	while (i < n && strcmp(p->to.endpoints[i].url, url) != 0)
		i++;
	if (i < n)
		return i;
	for (i = 0; i < n && !ws_endpoint_same(p->to.endpoints[i].url, url);)
		i++;
	return i;
}

/* Loading a staged update takes as long as loading what a push sends. */
static ws_deadline a_while(const struct ws_push *p)
{
	return ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
}

/* A two-phase update that is ended may be loaded: if it was staged, all of it. */
static void note_ended(struct ws_push *p, const struct ws_journal_endpoint *now, const bool *loaded,
                       size_t n)
{
	for (size_t k = 0; k < n; k++)
		if (loaded[k])
			push_target_event(
				&p->to.endpoints[push_find_endpoint(p, now[k].url)].weights,
				PUSH_BYTES_LEFT);
}

/* Where a server can, a staged update is dropped instead of loaded. */
static void end_updates(struct ws_push *p, const struct ws_journal_record *r,
                        struct ws_journal_endpoint *now, size_t n)
{
	struct ws_err *errs = calloc(n, sizeof *errs);
	bool *loaded = calloc(n, sizeof *loaded);
	if (errs && loaded && r->staged.stage)
		ws_journal_drop_updates(p->http, now, n, r->group, ws_deadline_in(STALE_NS),
		                        p->opts.cancel, errs, NULL);
	if (errs && loaded && ws_journal_end_updates(p->http, now, n, r->group,
	                                             r->staged.stage ? a_while(p) :
	                                                               ws_deadline_in(STALE_NS),
	                                             p->opts.cancel, loaded, NULL) == 0 &&
	    r->staged.stage)
		note_ended(p, now, loaded, n);
	free(errs);
	free(loaded);
}

void push_clean_up(struct ws_push *p, struct ws_journal_entry *entry)
{
	const struct ws_journal_record *r = &entry->record;
	struct ws_journal_endpoint *now = calloc(r->n_endpoints + 1, sizeof *now);
	size_t n = 0;
	for (size_t k = 0; now && k < r->n_endpoints; k++)
		if ((r->endpoints[k].grouped || r->endpoints[k].open_update) &&
		    push_find_endpoint(p, r->endpoints[k].url) < p->opts.n_endpoints)
			now[n++] = r->endpoints[k];
	/* If our own group has that name, it replaced the group of the record. */
	for (size_t i = 0; p->link.group && strcmp(r->group, p->link.name) == 0 && i < n; i++)
		now[i].grouped = false;
	if (n) {
		ws_journal_release_late(r, ws_deadline_part(p->run.until, 4), p->opts.cancel);
		ws_journal_leave_group(p->http, now, n, r->group, ws_deadline_in(STALE_NS),
		                       p->opts.cancel);
		end_updates(p, r, now, n);
		for (size_t i = 0; i < n; i++) {
			struct push_endpoint *e =
				&p->to.endpoints[push_find_endpoint(p, now[i].url)];
			e->cleaned.asleep = now[i].asleep;
			e->cleaned.unsure = now[i].unsure;
			e->cleaned.instance = now[i].instance;
		}
		ws_journal_change(entry, now, n, NULL);
	}
	free(now);
}


bool push_own_entry(const struct ws_push *p, const struct ws_journal_entry *entry)
{
	const char *path = p->recovery.journal ? ws_journal_path(p->recovery.journal) : NULL;
	return entry->path && path && strcmp(entry->path, path) == 0;
}

/* A process that keeps its group between two sources keeps the pause of the last source in its
 * record, although it has resumed. */
static bool left_paused(const struct ws_journal_entry *entry, const struct ws_journal_endpoint *was)
{
	return was->paused &&
	       (entry->fate != WS_PROCESS_ALIVE || was->state == WS_PARTIAL || was->asleep);
}

/* Written by an earlier run of this process. */
static bool is_ours(const struct ws_journal_record *r)
{
	return r->process.pid == getpid() && ws_process_fate(&r->process) == WS_PROCESS_ALIVE;
}

static void describe_partial(char *dst, size_t n, const struct ws_journal_record *r, bool woken)
{
	char who[64];
	if (is_ours(r))
		snprintf(who, sizeof who, "an earlier push of this process");
	else
		snprintf(who, sizeof who, "process %lld", (long long)r->process.pid);
	snprintf(dst, n, woken ? "%s woke its weights and did not complete them" :
	         "%s left it with some old and some new weights", who);
}

/* A partially updated endpoint stays partial until a push succeeds. An endpoint that an earlier
 * push paused and left whole is resumed at the end of this push. We hold the locks, so no other
 * push, dead or alive, is working at these endpoints. */
static void inherit_endpoint(struct ws_push *p, const struct ws_journal_entry *entry,
                             const struct ws_journal_endpoint *was, size_t i)
{
	const struct ws_journal_record *r = &entry->record;
	const bool own = push_own_entry(p, entry);
	struct push_endpoint *e = &p->to.endpoints[i];
	p->recovery.adopts_stale = p->recovery.adopts_stale || !own;
	if (entry->path && !own &&
	    (was->slept || (!r->by_hand && left_paused(entry, was) && was->state != WS_PARTIAL)))
		p->recovery.contradicts = true;
	p->recovery.stale_began =
		r->began > p->recovery.stale_began ? r->began : p->recovery.stale_began;
	/* in our own record, our last run has resumed it */
	e->found_paused = e->found_paused || (!own && !r->by_hand && left_paused(entry, was));
	e->may_finish |= was->open_update == WS_UPDATE_TRANSFER &&
	                 (entry->fate == WS_PROCESS_DEAD || is_ours(r));
	/* Our own record: the file could not be updated after everything had been sent. A record
	 * by hand: pushes that resume nobody may send the weights in parts. */
	if (was->state != WS_PARTIAL || e->weights.state == WS_PARTIAL || own ||
	    (r->by_hand && p->opts.pause == WS_PAUSE_NONE))
		return;
	push_target_event(&e->weights, PUSH_FOUND_PARTIAL);
	describe_partial(e->left, sizeof e->left, r, was->slept);
}

static void inherit(struct ws_push *p, struct ws_journal_entry *entry)
{
	const struct ws_journal_record *r = &entry->record;
	for (size_t k = 0; k < r->n_endpoints; k++) {
		const size_t i = push_find_endpoint(p, r->endpoints[k].url);
		if (i < p->opts.n_endpoints)
			inherit_endpoint(p, entry, &r->endpoints[k], i);
	}
	/* The process that staged an update may still run, but is not at work here. */
	const bool over = entry->fate == WS_PROCESS_DEAD || r->staged.stage == WS_STAGE_DONE;
	if (!over || !(p->recovery.locks || is_ours(r)))
		return;
	if (push_staged_has(p, r) && r->staged.stage > WS_STAGE_SENDING)
		p->recovery.ends_staged = true; /* that may load it: after the pause */
	else
		push_clean_up(p, entry);
}

/* ---- once the servers are known ---- */

/* The endpoint that this record is about although it was reached by another URL; n_endpoints:
 * none. */
static size_t find_by_instance(const struct ws_push *p, const struct ws_journal_endpoint *was)
{
	size_t i = 0;
	while (i < p->opts.n_endpoints &&
	       (ws_endpoint_same(p->to.endpoints[i].url, was->url) ||
	        !ws_journal_is_about(was, p->to.endpoints[i].url, &p->to.infos[i])))
		i++;
	return i;
}

/* The server was restarted: it has whole weights of its own, and owes nothing. */
static void forget_start(struct ws_push *p, struct ws_journal_entry *entry,
                         const struct ws_journal_endpoint *was, size_t i)
{
	struct push_endpoint *e = &p->to.endpoints[i];
	const struct ws_journal_endpoint gone = { .url = was->url, .phase = WS_PHASE_DESTROY };
	if (ws_journal_owes(was) && !entry->record.by_hand)
		push_warn(p, e->url, "it was restarted since push %lld, whose record is forgotten",
		          (long long)entry->record.process.pid);
	push_target_event(&e->weights, PUSH_RUN_BEGINS);
	e->found_paused = e->may_finish = false;
	e->left[0] = '\0';
	ws_journal_change(entry, &gone, 1, NULL);
}

/* Returns whether the record was about an earlier start of one of our endpoints. */
static bool forget_starts(struct ws_push *p, struct ws_journal_entry *entry)
{
	bool forgot = false;
	const struct ws_journal_record *r = &entry->record;
	for (size_t k = r->n_endpoints; k-- > 0;) { /* forget_start may remove it */
		const struct ws_journal_endpoint was = r->endpoints[k];
		const size_t i = push_find_endpoint(p, was.url);
		if (i == p->opts.n_endpoints || !ws_journal_is_other(&was, &p->to.infos[i]))
			continue;
		forgot = true;
		if (was.open_update != WS_UPDATE_DISK && !push_own_entry(p, entry))
			forget_start(p, entry, &was, i);
	}
	return forgot;
}

/* What other records say of this start of the servers still holds. */
static void inherit_again(struct ws_push *p, const struct ws_journal_list *list)
{
	for (size_t i = 0; i < list->n; i++) {
		const struct ws_journal_record *r = &list->items[i].record;
		for (size_t k = 0; !list->items[i].err.code && k < r->n_endpoints; k++) {
			const size_t at = push_find_endpoint(p, r->endpoints[k].url);
			if (at < p->opts.n_endpoints &&
			    !ws_journal_is_other(&r->endpoints[k], &p->to.infos[at]))
				inherit_endpoint(p, &list->items[i], &r->endpoints[k], at);
		}
	}
}

/* A live push of our endpoints by other URLs is left alone: we do not hold these locks. */
static void inherit_by_instance(struct ws_push *p, const struct ws_journal_entry *entry)
{
	const struct ws_journal_record *r = &entry->record;
	if (entry->err.code || (entry->fate == WS_PROCESS_ALIVE && !is_ours(r)))
		return;
	for (size_t k = 0; k < r->n_endpoints; k++) {
		const struct ws_journal_endpoint *was = &r->endpoints[k];
		const size_t i = find_by_instance(p, was);
		if (push_find_endpoint(p, was->url) == p->opts.n_endpoints &&
		    i < p->opts.n_endpoints)
			inherit_endpoint(p, entry, was, i);
	}
}

void push_match_records(struct ws_push *p)
{
	struct ws_journal_list list = { 0 };
	if (!p->recovery.claimed || !p->to.probed)
		return;
	if (p->opts.state_dir)
		(void)ws_journal_list(p->opts.state_dir, &list, NULL);
	bool forgot = false;
	for (size_t i = list.n; i-- > 0;)
		forgot |= !list.items[i].err.code && forget_starts(p, &list.items[i]);
	for (size_t i = p->recovery.left.n; i-- > 0;)
		forgot |= forget_starts(p, &p->recovery.left.items[i]);
	if (forgot) {
		inherit_again(p, &list);
		inherit_again(p, &p->recovery.left);
	}
	for (size_t i = 0; i < list.n; i++)
		inherit_by_instance(p, &list.items[i]);
	for (size_t i = 0; i < p->recovery.left.n; i++)
		inherit_by_instance(p, &p->recovery.left.items[i]);
	ws_journal_list_free(&list);
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].left[0])
			push_warn(p, p->to.endpoints[i].url, "%s", p->to.endpoints[i].left);
}

size_t push_aliases(const struct ws_push *p, const struct ws_journal_list *list, const char **urls,
                    size_t most)
{
	size_t n = 0;
	for (size_t i = 0; i < list->n; i++) {
		const struct ws_journal_record *r = &list->items[i].record;
		if (list->items[i].fate == WS_PROCESS_ALIVE || list->items[i].err.code)
			continue;
		for (size_t k = 0; k < r->n_endpoints && n < most; k++)
			if (find_by_instance(p, &r->endpoints[k]) < p->opts.n_endpoints)
				urls[n++] = r->endpoints[k].url;
	}
	return n;
}

/* Weights that wsync-ctl wake has woken since our last run have no values. The record says so, and
 * stays until a run has sent them. So this run gets another record. Its group stays. */
static void leave_woken(struct ws_push *p)
{
	struct ws_journal_record *r =
		p->recovery.journal ? ws_journal_record(p->recovery.journal) : NULL;
	bool woken = false;
	if (!r)
		return;
	ws_journal_reread(p->recovery.journal);
	for (size_t i = 0; i < r->n_endpoints; i++)
		woken = woken || r->endpoints[i].state == WS_PARTIAL;
	for (size_t i = 0; woken && i < r->n_endpoints; i++)
		r->endpoints[i].grouped = false;
	if (woken)
		ws_journal_close(p->recovery.journal, NULL);
	if (woken)
		p->recovery.journal = NULL;
}

void push_read_records(struct ws_push *p)
{
	struct ws_journal_list list = { 0 };
	struct ws_err why = WS_ERR_INIT;
	p->recovery.stale_began = 0;
	leave_woken(p);
	if (p->opts.state_dir && ws_journal_list(p->opts.state_dir, &list, &why))
		push_warn(p, NULL, "cannot read the records of earlier pushes: %s", why.msg);
	for (size_t i = 0; i < list.n; i++)
		if (list.items[i].err.code)
			push_warn(p, NULL, "cannot read the record of an earlier push: %s",
			          list.items[i].err.msg);
		else
			inherit(p, &list.items[i]);
	for (size_t i = 0; i < p->recovery.left.n; i++)
		inherit(p, &p->recovery.left.items[i]);
	ws_journal_list_free(&list);
}
