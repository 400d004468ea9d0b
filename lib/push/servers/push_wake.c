/* SPDX-License-Identifier: Apache-2.0 */
/* push_wake.c - endpoints that have released memory. Their weights are woken after the pause,
 * before anything is sent. The rest is woken when the weights are complete again.
 *
 * No SGLang reports its released memory, and its scheduler crashes when it is asked to wake memory
 * that is awake. So the caller lists the memory, and from then on records keep each endpoint's
 * state (deeds.h). Woken weights are garbage until a push succeeds: the endpoint is
 * partial. An endpoint that still lacks memory stays paused: the first prompt would crash it. */
#include "push_state.h"

#include "journal_core.h"
#include "wsync/tool/deeds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For waking caches after a failure. */
static const int64_t CACHES_NS = 10 * WS_NS_PER_S;

bool push_lacks_memory(const struct push_endpoint *e)
{
	return e->asleep || e->unsure;
}

bool push_is_asleep(const struct push_endpoint *e)
{
	return e->slept && (push_lacks_memory(e) || e->weights.state == WS_PARTIAL);
}

/* The user repeated the command, or did not know of the earlier push. */
static int contradict(const struct push_endpoint *e, unsigned said, struct ws_err *err)
{
	ws_err_set(err, WS_EUSAGE,
	           "%s: an earlier push or wsync-ctl left %s released%s, and {asleep} %s%s",
	           e->url, e->recorded_asleep ? ws_memory_text(e->recorded_asleep) : "nothing",
	           e->weights.state == WS_PARTIAL ? ", with incomplete weights" : "",
	           said ? "says " : "is missing", ws_memory_text(said));
	ws_err_hint(err,
	            "give {asleep} recorded; if the server was restarted since, or others changed "
	            "its memory: wsync-ctl repair --forget --endpoint %s",
	            e->url);
	return ws_err_where(err, NULL, e->url);
}

/* Only a list can say what is true, and only a restart is sure. */
static int refuse_unsure(const struct push_endpoint *e, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED,
	           "%s: a request to release or to wake its %s was not answered, and may have been "
	           "obeyed", e->url, ws_memory_text(e->recorded_unsure));
	ws_err_hint(err, "restart the server; or, if you know what is released, list it: {asleep} "
	                 "%s, or if all is awake: wsync-ctl repair --forget --endpoint %s",
	            ws_memory_text(e->recorded_unsure | e->recorded_asleep), e->url);
	return ws_err_where(err, NULL, e->url);
}

/* Released weights have no values, even after they are woken. An endpoint that gets only a part
 * would commit, resume, and answer with garbage. So one push must send all weights. Senders that
 * take turns send a part each, and the endpoint answers in between. Senders of one group
 * (ep-scatter) are one push. */
static int check_whole(const struct ws_push *p, const struct push_endpoint *e, struct ws_err *err)
{
	const bool turns = p->opts.senders > 1 && p->opts.sender_lock;
	const bool released = (e->asleep | e->recorded_unsure) & WS_MEMORY_WEIGHTS;
	if ((p->from.all_names && !turns) ||
	    !(released || (e->slept && e->weights.state == WS_PARTIAL)))
		return 0;
	ws_err_set(err, WS_EUSAGE,
	           "%s: its weights were released and have no values, and %s sends only a part of "
	           "them",
	           e->url, turns ? "{sender}" : "{include} or {exclude}");
	if (!released)
		ws_err_hint(err, "push all of them first, with {asleep} recorded");
	else
		ws_err_hint(err, "push all of them; or wake them and keep the endpoint paused "
		                 "until every part is sent: wsync-ctl pause; wsync-ctl wake --tags "
		                 "weights; then push without {asleep}, with {pause} none; at the "
		                 "end wsync-ctl resume --force");
	return ws_err_where(err, NULL, e->url);
}

/* Does the list of the caller fit the record? It may settle what is unsure. Caches that wsync-ctl
 * released may stay released if this push resumes no server. */
static bool agrees(const struct push_endpoint *e, unsigned said, unsigned list)
{
	if (said & WS_MEMORY_RECORDED || (!list && !push_is_asleep(e)))
		return !(list & ~e->recorded_asleep);
	return (list & ~e->recorded_unsure) == e->recorded_asleep;
}

/* Adds the released memory that the caller lists to *e. -1: that contradicts the records, or this
 * push cannot wake it. */
static int note(const struct ws_push *p, size_t i, struct push_endpoint *e, unsigned said,
                struct ws_err *err)
{
	const unsigned has = ws_endpoint_memory(&p->to.infos[i]), list = said & has;
	const bool settles = list && !(said & WS_MEMORY_RECORDED);
	e->asleep &= has;
	e->recorded_asleep &= has;
	if (e->recorded && e->unsure && !settles)
		return refuse_unsure(e, err);
	if (e->recorded && !agrees(e, said, list))
		return contradict(e, said & WS_MEMORY_ALL, err);
	if (!push_is_asleep(e) || settles) {
		e->asleep = list;
		e->slept = e->slept || list != 0;
	}
	e->unsure = 0;
	return check_whole(p, e, err);
}

void push_read_memory(struct ws_push *p)
{
	struct ws_journal_list list = { 0 };
	if (p->opts.state_dir)
		(void)ws_journal_list(p->opts.state_dir, &list, NULL);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		const struct ws_endpoint_info *info = p->to.probed ? &p->to.infos[i] : NULL;
		struct ws_known k = ws_known(&list, e->url, info);
		ws_known_add(&k, &p->recovery.left, e->url, info);
		const struct ws_journal_endpoint was = { .instance = e->cleaned.instance };
		if (!k.told && e->cleaned.asleep && !ws_journal_is_other(&was, info)) {
			k.told = k.slept = true;
			k.asleep = e->cleaned.asleep;
			k.unsure = e->cleaned.unsure;
		}
		e->recorded = k.told;
		e->recorded_asleep = k.asleep;
		e->recorded_unsure = k.unsure;
		e->hand_paused = k.paused && k.paused->record.by_hand;
		if (k.kept_caches && p->opts.pause == WS_PAUSE_NONE)
			continue;
		e->slept = k.slept;
		e->asleep = k.asleep;
		e->unsure = k.unsure;
	}
	ws_journal_list_free(&list);
}

/* Checks all endpoints before it changes the first: a refused run changes no state. */
int push_note_asleep(struct ws_push *p, unsigned said, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint is = p->to.endpoints[i];
		if (note(p, i, &is, said, err) == 0)
			continue;
		p->recovery.asleep_as = is.recorded ? WS_ASLEEP_CONTRADICTED : WS_ASLEEP_REFUSED;
		return -1;
	}
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		(void)note(p, i, &p->to.endpoints[i], said, NULL);
	return 0;
}

int push_check_awake(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; p->to.probed && i < p->opts.n_endpoints; i++) {
		const char *url = p->to.endpoints[i].url;
		if (!p->to.infos[i].sleeping || push_lacks_memory(&p->to.endpoints[i]))
			continue;
		ws_err_set(err, WS_EREFUSED, "%s sleeps, and an update may crash it", url);
		ws_err_hint(err, "say so with {asleep} weights,kv_cache, which wakes it first; or "
		                 "run wsync-ctl wake");
		return ws_err_where(err, NULL, url);
	}
	return 0;
}

enum ws_asleep ws_push_asleep(const struct ws_push *p)
{
	return p->recovery.recorded ? WS_ASLEEP_RECORDED : p->recovery.asleep_as;
}

/* ---- waking ---------------------------------------------------------------------------------- */

/* Before the request is sent, in the record too. */
static void expect(struct push_endpoint *e, unsigned memory)
{
	e->asleep &= ~memory;
	e->unsure |= memory;
	if (memory & WS_MEMORY_WEIGHTS)
		push_target_event(&e->weights, PUSH_BYTES_LEFT);
}

static void settle_memory(struct push_endpoint *e, unsigned memory, enum ws_outcome outcome)
{
	if (outcome == WS_REFUSED)
		e->asleep |= memory;
	if (outcome != WS_UNANSWERED)
		e->unsure &= ~memory;
	if (memory & WS_MEMORY_WEIGHTS)
		push_target_event(&e->weights, outcome == WS_REFUSED ? PUSH_REFUSED_UNSENT :
		                                                       PUSH_VALUES_LOST);
}

/* The memory to wake at some endpoints, those of the push's call. */
struct waking {
	struct ws_waking *items;
	struct ws_deed *at;
	struct ws_deeds *deeds; /* NULL: there are no other records */
	size_t n;
};

static void settle_one(struct ws_push *p, struct waking *w, size_t k, enum ws_outcome outcome)
{
	const size_t i = p->to.call.index[k];
	settle_memory(&p->to.endpoints[i], w->items[k].memory, outcome);
	if (w->deeds)
		(void)ws_deeds_answered(w->deeds, k, outcome, NULL);
	if (outcome == WS_DONE)
		ws_deeds_forget(&p->recovery.left, p->to.endpoints[i].url);
}

static void take_answers(struct ws_push *p, struct waking *w)
{
	for (size_t k = 0; k < w->n; k++) {
		const struct ws_err *said = &w->items[k].answer.err;
		const size_t i = p->to.call.index[k];
		settle_one(p, w, k, ws_deed_outcome(&w->items[k].answer));
		push_note_failure(p, i, said);
		push_note_gone(p, i, said);
		if (said->code != WS_OK)
			snprintf(p->to.endpoints[i].message, sizeof p->to.endpoints[i].message,
			         "%.255s", said->msg);
	}
}

static int begin_waking(struct ws_push *p, struct waking *w, struct ws_err *err)
{
	for (size_t k = 0; k < w->n; k++)
		w->at[k] = (struct ws_deed){ .url = w->items[k].url, .info = w->items[k].info,
			                     .what = WS_DEED_WAKE, .memory = w->items[k].memory };
	if (push_record(p, err))
		return -1;
	return push_has_record(p) ? ws_deeds_begin(p->opts.state_dir,
	                                           ws_journal_path(p->recovery.journal), w->at,
	                                           w->n, &w->deeds, err) :
	                            0;
}

/* Wakes the part of `memory` that each wanted endpoint (NULL: all) has released. */
static int wake_those(struct ws_push *p,
                      bool (*wanted)(const struct ws_push *, const struct push_endpoint *),
                      unsigned memory, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_err *err)
{
	struct waking w = { .items = calloc(p->opts.n_endpoints + 1, sizeof *w.items),
		            .at = calloc(p->opts.n_endpoints + 1, sizeof *w.at) };
	int rc = w.items && w.at ? 0 : ws_oom(err);
	push_call_new(p);
	for (size_t i = 0; rc == 0 && i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		if (!(e->asleep & memory) || (wanted && !wanted(p, e)))
			continue;
		w.items[w.n++] = (struct ws_waking){ .url = e->url, .info = &p->to.infos[i],
			                             .memory = e->asleep & memory };
		expect(e, e->asleep & memory);
		push_call_add(p, i);
	}
	if (w.n && (rc = begin_waking(p, &w, err)))
		for (size_t k = 0; k < w.n; k++)
			settle_one(p, &w, k, WS_REFUSED);
	if (w.n && rc == 0) {
		rc = ws_endpoint_wake_each(p->http, w.items, w.n, until, cancel, err);
		take_answers(p, &w);
		(void)push_record(p, NULL);
	}
	ws_deeds_end(w.deeds);
	free(w.items);
	free(w.at);
	return rc;
}

void push_note_resumed(struct ws_push *p)
{
	struct ws_deed *at = calloc(p->opts.n_endpoints + 1, sizeof *at);
	struct ws_deeds *deeds = NULL;
	size_t n = 0;
	for (size_t i = 0; at && i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (e->paused_now && !e->paused && !e->left_paused)
			at[n++] = (struct ws_deed){ .url = e->url, .what = WS_DEED_RESUME,
				                    .info = p->to.probed ? &p->to.infos[i] : NULL };
	}
	if (n && push_has_record(p) &&
	    ws_deeds_begin(p->opts.state_dir, ws_journal_path(p->recovery.journal), at, n, &deeds,
	                   NULL) == 0)
		for (size_t k = 0; k < n; k++)
			(void)ws_deeds_answered(deeds, k, WS_DONE, NULL);
	ws_deeds_end(deeds);
	free(at);
}

/* A vLLM resumes when it is woken: up to 0.20 with any of its memory, later with the last of it. */
static int pause_again(struct ws_push *p, ws_deadline until, struct ws_err *err)
{
	push_call_new(p);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (push_to_vllm(p, i) && e->slept && e->paused_now &&
		    !(e->asleep & WS_MEMORY_WEIGHTS))
			push_call_add(p, i);
	}
	const struct ws_call to = push_call_made(p, until, p->opts.cancel);
	if (!to.n)
		return 0;
	const struct ws_endpoint_answer *said = p->to.call.answers;
	const int rc = ws_endpoint_pause(&to, p->opts.pause,
	                                 push_flush_when(p) != WS_FLUSH_NEVER,
	                                 p->to.call.answers, err);
	for (size_t k = to.n; k-- > 0;)
		if (said[k].err.code) {
			push_note_failure(p, p->to.call.index[k], &said[k].err);
			*err = said[k].err; /* not the sum: no endpoint has new weights */
		}
	return rc;
}

int push_wake_weights(struct ws_push *p, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns));
	if (wake_those(p, NULL, WS_MEMORY_WEIGHTS, until, p->opts.cancel, err) == 0 &&
	    pause_again(p, until, err) == 0)
		return 0;
	err->hint[0] = 0; /* push_name_remedy writes the hint */
	return -1;
}

static bool is_to_go_on(const struct ws_push *p, const struct push_endpoint *e)
{
	if ((e->asleep | e->unsure) & WS_MEMORY_WEIGHTS)
		return false;
	if (e->weights.state == WS_PARTIAL)
		return e->paused && p->opts.on_partial == WS_PARTIAL_RESUME;
	return e->paused || e->weights.state == WS_COMMITTED;
}

static int hint_at_caches(const struct ws_push *p, const struct push_endpoint *e,
                          struct ws_err *err)
{
	err->hint[0] = 0;
	if (e->unsure)
		return ws_err_hint(err, "whether its %s came back is not known: restart the "
		                        "server, and push again", ws_memory_text(e->unsure));
	if (push_has_record(p))
		return ws_err_hint(
			err,
			"the weights have arrived; to wake the rest and resume: wsync-ctl repair");
	return ws_err_hint(
		err,
		"the weights have arrived; to wake the rest and resume: wsync-ctl wake --tags %s; "
		"wsync-ctl resume",
		ws_memory_text(e->asleep));
}

int push_wake_caches(struct ws_push *p, bool ok, struct ws_err *err)
{
	const ws_deadline until =
		ok ? ws_deadline_min(p->run.until, ws_deadline_in(p->opts.bucket_ns)) :
		     push_cleanup_deadline(p, CACHES_NS);
	if (!p->to.known || !p->recovery.recorded)
		return 0;
	if (wake_those(p, is_to_go_on, WS_MEMORY_ALL & ~(unsigned)WS_MEMORY_WEIGHTS, until,
	               ok ? p->opts.cancel : NULL, err) == 0)
		return 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (push_lacks_memory(&p->to.endpoints[i]))
			return hint_at_caches(p, &p->to.endpoints[i], err);
	return -1;
}

/* ---- hints ----------------------------------------------------------------------------------- */

/* Errors of servers that write into released memory. */
static bool speaks_of_memory(const char *text)
{
	return strstr(text, "illegal memory access") || strstr(text, "released") ||
	       strstr(text, "asleep") || strstr(text, "sleeping");
}

void push_hint_asleep(struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].slept)
			return;
	if (err->code == WS_EREFUSED && !err->hint[0] && speaks_of_memory(err->msg))
		ws_err_hint(
			err,
			"if the endpoint has released memory, list it: {asleep} weights,kv_cache");
}
