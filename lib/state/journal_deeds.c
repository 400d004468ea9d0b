/* SPDX-License-Identifier: Apache-2.0 */
/* journal_deeds.c - the records of released memory and of pauses by hand; deeds.h has the rules. */
#include "wsync/tool/deeds.h"

#include "endpoint_call.h"
#include "journal_core.h"
#include "lock.h"
#include "wsync/tool/history.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is known --------------------------------------------------------------------------- */

static bool says_itself(const struct ws_endpoint_info *info)
{
	return info && ws_lineage_family(info->lineage) == WS_FAMILY_VLLM && info->can.sleep;
}

struct ws_journal_endpoint ws_known_now(const struct ws_journal_entry *e,
                                        const struct ws_journal_endpoint *at,
                                        const struct ws_endpoint_info *info)
{
	struct ws_journal_endpoint now = *at;
	if (says_itself(info)) { /* it may be woken twice */
		now.asleep = info->sleeping ? at->asleep | at->unsure : 0;
		now.unsure = 0;
	}
	if (e->record.by_hand && info && info->runs)
		now.paused = false;
	return now;
}

static void add_record(struct ws_known *k, const struct ws_journal_entry *e,
                       const struct ws_journal_endpoint *now)
{
	const char *mixture = ws_journal_mixture(now);
	if (now->slept) {
		k->told = true;
		k->asleep = now->asleep;
		k->unsure = now->unsure;
		k->slept = now->asleep || now->unsure || !e->record.by_hand;
		k->kept_caches =
			e->record.by_hand && !((now->asleep | now->unsure) & WS_MEMORY_WEIGHTS);
	}
	if (mixture) {
		k->mixed = e;
		k->mixture = mixture;
	}
	if (now->paused)
		k->paused = e;
}

void ws_known_add(struct ws_known *k, const struct ws_journal_list *list, const char *url,
                  const struct ws_endpoint_info *info)
{
	for (size_t i = 0; i < list->n; i++) {
		const struct ws_journal_entry *e = &list->items[i];
		for (size_t j = 0; !e->err.code && j < e->record.n_endpoints; j++) {
			const struct ws_journal_endpoint *at = &e->record.endpoints[j];
			const struct ws_journal_endpoint now = ws_known_now(e, at, info);
			if (ws_journal_is_about(at, url, info))
				add_record(k, e, &now);
			else if (at->slept && ws_endpoint_same(at->url, url))
				k->restarted = true;
		}
	}
	k->restarted = k->restarted && !k->told;
}

struct ws_known ws_known(const struct ws_journal_list *list, const char *url,
                         const struct ws_endpoint_info *info)
{
	struct ws_known k = { 0 };
	ws_known_add(&k, list, url, info);
	return k;
}

bool ws_known_readable(const struct ws_known *k, const struct ws_endpoint_info *info)
{
	return !((k->asleep | k->unsure) & WS_MEMORY_WEIGHTS) &&
	       !(info && info->sleeping && !k->told);
}

const char *ws_known_memory(const struct ws_known *k, const struct ws_endpoint_info *info)
{
	return k->unsure & WS_MEMORY_WEIGHTS ? "it is not known whether its weights are released" :
	       !ws_known_readable(k, info)   ? "its weights are released" :
	       k->unsure                     ? "it is not known whether its caches are released" :
	       k->asleep                     ? "its caches are released" :
	                                       NULL;
}

void ws_deeds_forget(struct ws_journal_list *list, const char *url)
{
	for (size_t i = 0; i < list->n; i++)
		for (size_t k = list->items[i].record.n_endpoints; k-- > 0;) {
			struct ws_journal_endpoint now = list->items[i].record.endpoints[k];
			if (!now.slept || !ws_endpoint_same(now.url, url))
				continue;
			now.slept = false;
			now.asleep = now.unsure = 0;
			(void)ws_journal_change(&list->items[i], &now, 1, NULL);
		}
}

/* ---- one deed at one record ------------------------------------------------------------------ */

/* Does this record already describe the deed? A push describes in its own record what is left to
 * do. */
static bool tells(const struct ws_journal_endpoint *e, const struct ws_deed *d, bool by_hand,
                  bool by_push)
{
	switch (d->what) {
	case WS_DEED_NONE:
		return false;
	case WS_DEED_PAUSE:
		return by_hand || e->paused;
	case WS_DEED_RESUME:
		return by_hand || (e->paused && !by_push);
	case WS_DEED_SLEEP:
		return d->memory;
	case WS_DEED_WAKE:
		return d->memory && e->slept;
	}
	return false;
}

static void ask(struct ws_journal_endpoint *e, const struct ws_deed *d)
{
	if (d->what == WS_DEED_PAUSE)
		e->paused = true;
	if (d->what != WS_DEED_SLEEP && d->what != WS_DEED_WAKE)
		return;
	e->slept = true;
	e->unsure |= d->what == WS_DEED_SLEEP ? d->memory & ~e->asleep : d->memory;
	e->asleep &= ~(d->what == WS_DEED_WAKE ? d->memory : 0);
}

static void wake(struct ws_journal_endpoint *e, const struct ws_deed *d, bool by_hand, bool by_push)
{
	const struct ws_endpoint_info *info = d->info;
	if (by_push) {
		e->slept = e->asleep || e->unsure;
		return;
	}
	if (d->memory & WS_MEMORY_WEIGHTS && !(info && ws_endpoint_keeps_weights(info))) {
		e->state = WS_PARTIAL; /* woken weights are garbage */
		e->inherited = false;
	}
	/* A vLLM runs again when nothing sleeps any more. */
	if (by_hand && says_itself(info) && !e->asleep && !e->unsure)
		e->paused = false;
}

static void settle(struct ws_journal_endpoint *e, const struct ws_deed *d, bool by_hand,
                   bool by_push)
{
	switch (d->what) {
	case WS_DEED_NONE:
	case WS_DEED_PAUSE:
		break;
	case WS_DEED_RESUME:
		e->paused = false;
		if (by_hand && !by_push)
			e->state = WS_COMMITTED; /* they were accepted with --force */
		break;
	case WS_DEED_SLEEP:
		e->unsure &= ~d->memory;
		e->asleep |= d->memory;
		break;
	case WS_DEED_WAKE:
		e->unsure &= ~d->memory;
		wake(e, d, by_hand, by_push);
		break;
	}
}

/* ---- some deeds at all records --------------------------------------------------------------- */

/* One endpoint of one record that tells of a deed. */
struct line {
	size_t deed;
	char *path;
	bool by_hand;
	struct ws_journal_endpoint before, asked;
};

struct ws_deeds {
	const char *state_dir, *own;
	const struct ws_deed *at;
	size_t n;
	struct ws_locks **locks; /* of each deed; the first may have those of all */
	bool *skipped;           /* a push is at work there, which has its own record */
	struct ws_journal_list list;
	struct line *lines;
	size_t n_lines;
};

enum ws_outcome ws_deed_outcome(const struct ws_endpoint_answer *a)
{
	return a->err.code == WS_OK                         ? WS_DONE :
	       !a->sent || ws_endpoint_said_no(&a->err) ? WS_REFUSED :
	                                                  WS_UNANSWERED;
}

static int take_locks(struct ws_deeds *d, struct ws_err *err)
{
	char *dir = ws_journal_locks(d->state_dir);
	const char **urls = calloc(d->n + 1, sizeof *urls);
	int rc = dir && urls ? 0 : ws_oom(err);
	const bool waits_for_none = d->n && d->at[0].what == WS_DEED_PAUSE;
	for (size_t i = 0; rc == 0 && i < d->n; i++)
		urls[i] = d->at[i].url;
	if (rc == 0 && !waits_for_none)
		rc = ws_locks_take(dir, urls, d->n, 0, NULL, &d->locks[0], err);
	for (size_t i = 0; rc == 0 && waits_for_none && i < d->n; i++) {
		struct ws_err why = WS_ERR_INIT;
		rc = ws_locks_take(dir, &urls[i], 1, 0, NULL, &d->locks[i], &why);
		d->skipped[i] = rc && why.code == WS_EREFUSED;
		if (d->skipped[i])
			rc = 0;
		else if (rc && err)
			*err = why;
	}
	free(urls);
	free(dir);
	return rc;
}

static int add_line(struct ws_deeds *d, size_t i, const char *path, bool by_hand,
                    const struct ws_journal_endpoint *before)
{
	struct line *lines = reallocarray(d->lines, d->n_lines + 1, sizeof *lines);
	if (lines)
		d->lines = lines;
	char *copy = lines ? strdup(path) : NULL;
	if (!copy)
		return -1;
	struct line *l = &lines[d->n_lines++];
	*l = (struct line){ .deed = i, .path = copy, .by_hand = by_hand, .before = *before,
		            .asked = *before };
	ask(&l->asked, &d->at[i]);
	return 0;
}

static int write_line(const struct line *l, const struct ws_journal_endpoint *now,
                      struct ws_err *err)
{
	return ws_journal_update(l->path, now, 1, err);
}

/* A record by hand is made in the state that the request may lead to. */
static int make_record(struct ws_deeds *d, size_t i, struct ws_err *err)
{
	const struct ws_deed *deed = &d->at[i];
	const struct ws_endpoint_info *info = deed->info;
	struct ws_journal *made = NULL;
	if (ws_journal_open(d->state_dir, &deed->url, 1, &made, err))
		return -1;
	struct ws_journal_record *r = ws_journal_record(made);
	struct ws_journal_endpoint *e = &r->endpoints[0];
	r->by_hand = true;
	e->state = WS_COMMITTED;
	e->phase = WS_PHASE_PAUSE;
	e->instance = info ? info->instance : 0;
	e->sure = info && info->instance && info->identity.strength == WS_IDENTITY_SURE;
	int rc = add_line(d, i, ws_journal_path(made), true, e) ? ws_oom(err) : 0;
	ask(e, deed);
	if (rc == 0)
		rc = ws_journal_save(made, err);
	if (rc)
		ws_journal_abandon(made);
	else
		ws_journal_close(made, NULL);
	return rc;
}

/* The server was restarted since: nothing of a record by hand is true any more. */
static bool is_over(const struct ws_journal_entry *e, const struct ws_journal_endpoint *at,
                    const struct ws_deed *deed)
{
	return e->record.by_hand && ws_endpoint_same(at->url, deed->url) &&
	       ws_journal_is_other(at, deed->info);
}

static int begin_in(struct ws_deeds *d, size_t i, const struct ws_journal_entry *e, bool *told,
                    struct ws_err *err)
{
	const struct ws_deed *deed = &d->at[i];
	/* A push may be at work under another name, whose lock we do not have. */
	const bool busy = e->fate == WS_PROCESS_ALIVE && !e->record.ended;
	for (size_t k = e->record.n_endpoints; k-- > 0;) {
		const struct ws_journal_endpoint *at = &e->record.endpoints[k];
		const struct ws_journal_endpoint gone = { .url = at->url };
		if (is_over(e, at, deed) && ws_journal_update(e->path, &gone, 1, err))
			return -1;
		if (!ws_journal_is_about(at, deed->url, deed->info) ||
		    (busy && !ws_endpoint_same(at->url, deed->url)) ||
		    !tells(at, deed, e->record.by_hand, d->own != NULL))
			continue;
		*told = true;
		if (add_line(d, i, e->path, e->record.by_hand, at))
			return ws_oom(err);
		const struct line *l = &d->lines[d->n_lines - 1];
		if (deed->what != WS_DEED_RESUME && write_line(l, &l->asked, err))
			return -1;
	}
	return 0;
}

static int begin_one(struct ws_deeds *d, size_t i, struct ws_err *err)
{
	const enum ws_deed_what what = d->at[i].what;
	const bool makes = what == WS_DEED_PAUSE || d->at[i].memory;
	bool told = false;
	if (d->skipped[i])
		return 0;
	for (size_t j = 0; j < d->list.n; j++) {
		const struct ws_journal_entry *e = &d->list.items[j];
		if (!e->err.code && !(d->own && strcmp(e->path, d->own) == 0) &&
		    begin_in(d, i, e, &told, err))
			return -1;
	}
	return told || d->own || !makes ? 0 : make_record(d, i, err);
}

static int make_deeds(const char *state_dir, const char *own, const struct ws_deed *at, size_t n,
                      struct ws_deeds **out, struct ws_err *err)
{
	struct ws_deeds *d = calloc(1, sizeof *d);
	*out = NULL;
	if (!d)
		return ws_oom(err);
	*d = (struct ws_deeds){ .state_dir = state_dir, .own = own, .at = at, .n = n,
		                .locks = calloc(n + 1, sizeof(struct ws_locks *)),
		                .skipped = calloc(n + 1, sizeof(bool)) };
	int rc = d->locks && d->skipped ? 0 : ws_oom(err);
	if (rc == 0 && !own)
		rc = take_locks(d, err);
	if (rc)
		ws_deeds_end(d);
	else
		*out = d;
	return rc;
}

int ws_deeds_lock(const char *state_dir, const struct ws_deed *at, size_t n, struct ws_deeds **out,
                  struct ws_err *err)
{
	return make_deeds(state_dir, NULL, at, n, out, err);
}

int ws_deeds_ask(struct ws_deeds *d, struct ws_err *err)
{
	int rc = ws_journal_list(d->state_dir, &d->list, err);
	for (size_t i = 0; rc == 0 && i < d->n; i++)
		rc = begin_one(d, i, err);
	for (size_t i = 0; rc && i < d->n; i++) /* nothing is sent */
		(void)ws_deeds_answered(d, i, WS_REFUSED, NULL);
	return rc;
}

int ws_deeds_begin(const char *state_dir, const char *own, const struct ws_deed *at, size_t n,
                   struct ws_deeds **out, struct ws_err *err)
{
	if (make_deeds(state_dir, own, at, n, out, err))
		return -1;
	if (ws_deeds_ask(*out, err) == 0)
		return 0;
	ws_deeds_end(*out);
	*out = NULL;
	return -1;
}

int ws_deeds_answered(struct ws_deeds *d, size_t i, enum ws_outcome outcome, struct ws_err *err)
{
	int rc = 0;
	const struct ws_deed *deed = &d->at[i];
	for (size_t k = 0; k < d->n_lines && outcome != WS_UNANSWERED; k++) {
		const struct line *l = &d->lines[k];
		struct ws_journal_endpoint now = outcome == WS_DONE ? l->asked : l->before;
		if (l->deed != i)
			continue;
		if (outcome == WS_DONE)
			settle(&now, deed, l->by_hand, d->own != NULL);
		if (write_line(l, &now, rc ? NULL : err))
			rc = -1;
	}
	if (outcome != WS_REFUSED && deed->what == WS_DEED_SLEEP &&
	    deed->memory & WS_MEMORY_WEIGHTS &&
	    !(deed->info && ws_endpoint_keeps_weights(deed->info)))
		ws_history_spoil(d->state_dir, deed->url, deed->info,
		                 "wsync-ctl has released its weights since");
	return rc;
}

void ws_deeds_end(struct ws_deeds *d)
{
	if (!d)
		return;
	for (size_t i = 0; d->locks && i < d->n; i++)
		ws_locks_drop(d->locks[i]);
	for (size_t k = 0; k < d->n_lines; k++)
		free(d->lines[k].path);
	ws_journal_list_free(&d->list);
	free(d->lines);
	free(d->locks);
	free(d->skipped);
	free(d);
}
