/* SPDX-License-Identifier: Apache-2.0 */
/* push.c - the phases of a push in order, and the clean-up of the endpoints after a failure.
 * Clean-up has deadlines of its own, because the deadline of the run may have passed. */
#include "push_protocol.h"

#include "wsync/tool/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one run --------------------------------------------------------------------------------- */

static int take_step(struct ws_push *p, enum push_step step, struct ws_err *err)
{
	return p->watch.step ? p->watch.step(p->watch.step_ctx, p, step, err) : 0;
}

/* Forms the group with the other senders. No endpoint knows of the group yet. */
static int meet_senders(struct ws_push *p, struct ws_err *err)
{
	push_enter(p, WS_PHASE_INIT);
	if (push_name_group(p, err) || push_init_group(p, err) || push_leader_gather(p, err))
		return -1;
	push_enter(p, WS_PHASE_PLAN);
	return 0;
}

/* Detects the servers. A dry run needs no endpoint. A completion has its protocol already, and
 * wakes what is recorded as released. */
static int detect(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	if (!p->opts.n_endpoints)
		return 0;
	push_leave_dead_group(p);
	push_enter(p, WS_PHASE_CONNECT);
	if (push_connect(p, err) || push_roll_call(p, err))
		return -1;
	push_match_records(p);
	push_read_memory(p);
	const unsigned asleep = p->opts.complete ? WS_MEMORY_RECORDED : s->asleep;
	if (push_note_asleep(p, asleep, err) || push_check_awake(p, err))
		return -1;
	return push_twins(p, err) ||
	                       (!p->opts.complete && push_choose(p, err)) ||
	                       push_in_step(p, err) || push_others_connect(p, err) ? -1 : 0;
}

/* Reads, plans and compares. No request here changes a server. */
static int get_ready(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	push_enter(p, WS_PHASE_CONNECT);
	if (ws_endpoint_check_version(p->from.weight_version, err) || push_check_files(p, err) ||
	    push_sender_enter(p, err) || push_lock_endpoints(p, err) ||
	    detect(p, s, err) ||
	    (p->opts.stage && !p->opts.dry_run && push_stage_check(p, err)) ||
	    push_staged_may_end(p, err))
		return -1;
	push_enter(p, WS_PHASE_PLAN);
	if (push_make_plan(p, s, err) || (p->protocol->planned && p->protocol->planned(p, err)))
		return -1;
	push_emit_plan(p);
	if (push_sender_part(p, err))
		return -1;
	if (push_is_leader(p) && meet_senders(p, err))
		return -1;
	if (push_legal(p, err) || push_check_plan(p, err) || push_check_fp8(p, err))
		return -1;
	push_enter(p, WS_PHASE_VERIFY);
	return push_verify_can(p, err) || push_names(p, err) || push_label_begin(p, err) ||
	                       push_values_begin(p, err) ||
	                       take_step(p, PUSH_STEP_PREPARE, err) || push_leader_share(p, err) ?
	               -1 :
	               0;
}

/* Forms the group, and finishes the checks that need no paused endpoint. */
static int form_group(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	push_enter(p, WS_PHASE_INIT);
	if (push_check_ranks_files(p, err) || push_name_group(p, err) ||
	    push_record_begin(p, s, err))
		return -1;
	/* The servers' torch version is known once they have joined, so the plan is checked
	 * again. */
	if (push_init_group(p, err) || push_check_plan(p, err))
		return -1;
	push_enter(p, WS_PHASE_VERIFY);
	if (push_values(p, err) || push_check_sources(p, err) || push_require_before(p, err))
		return -1;
	if (!p->protocol->prepare)
		return 0;
	push_enter(p, WS_PHASE_TRANSFER);
	return p->protocol->prepare(p, err);
}

/* Servers confirm what they received. That is not enough if the source changed, if the weights
 * were reset and are not known to be back, or if this push is a part and another part is
 * missing. push_complete runs twice: here it only marks endpoints as partial, so that a failure of
 * the next checks does not resume them. Its own error is reported after those checks. */
static void withdraw_commits(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_weights *w = &p->to.endpoints[i].weights;
		if (p->run.commits_void || w->random)
			push_target_event(w, PUSH_WITHDRAWN);
	}
	if (p->recovery.recorded)
		(void)push_complete(p, NULL);
}

/* {stage}: sends as change_weights does, but pauses no endpoint and loads nothing. */
static int stage_update(struct ws_push *p, struct ws_err *err)
{
	push_enter(p, WS_PHASE_TRANSFER);
	if (push_check_sources(p, err) || push_record(p, err))
		return -1;
	p->run.weights_dirty = true; /* a failure undoes what was prepared */
	if ((!p->protocol->files && push_transfer(p, err)) || push_check_end(p, err))
		return -1;
	push_stage_done(p, true);
	if (push_record(p, err)) {
		push_stage_done(p, false);
		return -1;
	}
	p->run.weights_dirty = false;
	return 0;
}

/* What was staged must be what is compared afterwards. */
static int plan_proof(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	const struct ws_journal_record *r = &p->recovery.staged->record;
	if (!s->n_paths && p->opts.verify != WS_VERIFY_HASH)
		return 0;
	if (!s->n_paths)
		return ws_err_set(err, WS_EUSAGE, "{verify} hash needs the SOURCE that was staged, "
		                  "and its transforms");
	if (push_make_plan(p, s, err))
		return -1;
	if (p->from.plan->digest == r->digest)
		return push_staged_files(p, err) || push_verify_can(p, err) ? -1 : 0;
	ws_err_set(err, WS_EUSAGE, "%s is not what was staged: its digest is %016llx, and not "
	           "%016llx", p->from.name, (unsigned long long)p->from.plan->digest,
	           (unsigned long long)r->digest);
	return ws_err_hint(err, "give the same SOURCE, {include}, {quantize} and so on");
}

/* {complete}: what comes before the pause. */
static int find_update(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	push_enter(p, WS_PHASE_CONNECT);
	if (ws_endpoint_check_version(p->from.weight_version, err) ||
	    push_lock_endpoints(p, err) || push_staged_find(p, err) || detect(p, s, err))
		return -1;
	push_enter(p, WS_PHASE_PLAN);
	return push_staged_check(p, err) || push_legal(p, err) || plan_proof(p, s, err) ||
	                       push_record_begin(p, s, err) ?
	               -1 :
	               0;
}

/* From the first pause on; weights_dirty: servers have neither all old nor all new weights. */
static int change_weights(struct ws_push *p, struct ws_err *err)
{
	push_enter(p, WS_PHASE_PAUSE);
	if (push_record(p, err) || push_staged_take(p, err) || push_others_recheck(p, err))
		return -1;
	push_note_parts(p);
	/* Its lock may be waited for, so before the pause. An end that left the weights untouched
	 * cancels the line. */
	push_history_begin(p);
	if (push_pause(p, err) || push_others_begin(p, err) || push_wake_weights(p, err))
		return -1;
	push_enter(p, WS_PHASE_FLUSH);
	if (push_flush(p, err))
		return -1;
	push_enter(p, WS_PHASE_TRANSFER);
	if (p->opts.complete)
		p->recovery.stage = WS_STAGE_LOADING;
	/* Waiting for the pause may take long, so check the sources again. Nothing was sent yet. */
	if (push_check_sources(p, err) || push_record(p, err))
		return -1;
	if (take_step(p, PUSH_STEP_CHANGE, err))
		return -1;
	p->run.weights_dirty = true;
	if (push_staged_end(p, err) || push_hash_begin(p, err) ||
	    (p->opts.complete ? p->protocol->load(p, err) : push_transfer(p, err)))
		return -1;
	withdraw_commits(p);
	p->run.weights_dirty = false;
	push_enter(p, WS_PHASE_VERIFY);
	(void)push_record(p, NULL);
	return push_verify(p, err) || take_step(p, PUSH_STEP_JUDGE, err) ||
	       push_others_end(p, err) ? -1 : 0;
}

/* {write_dir}: no endpoint takes part. */
static int write_only(struct ws_push *p, struct ws_err *err)
{
	if (push_values(p, err) || push_check_sources(p, err))
		return -1;
	push_enter(p, WS_PHASE_TRANSFER);
	return p->protocol->prepare(p, err);
}

static int run_phases(struct ws_push *p, const struct ws_push_source *s, struct ws_err *err)
{
	if (p->opts.complete)
		return find_update(p, s, err) || change_weights(p, err) ? -1 : 0;
	if (get_ready(p, s, err))
		return -1;
	if (p->opts.dry_run)
		return push_values(p, err);
	if (p->opts.write_dir)
		return write_only(p, err);
	return form_group(p, s, err) ||
	                       (p->opts.stage ? stage_update(p, err) : change_weights(p, err)) ?
	               -1 :
	               0;
}

static void reset_run(struct ws_push *p, const struct ws_push_source *s)
{
	p->run.since = p->run.phase_since = ws_now_ns();
	p->run.phase = WS_PHASE_PLAN;
	memset(p->run.ns, 0, sizeof p->run.ns);
	p->run.sent_base = p->link.group ? push_sent(p) : 0;
	p->run.posted = 0;
	p->run.labelled = false;
	p->run.weights_dirty = p->run.commits_void = p->run.incomplete = p->run.flush_failed =
		p->recovery.recorded = p->recovery.contradicts = false;
	p->recovery.asleep_as = WS_ASLEEP_PENDING;
	p->recovery.stage = WS_STAGE_NONE;
	p->recovery.ends_staged = false;
	p->recovery.history_id = ws_history_id();
	push_staged_forget(p);
	p->checks.names = (struct ws_name_check_run){ 0 };
	p->run.until = p->deadline             ? p->deadline :
	               p->opts.timeout_ns > 0 ? ws_deadline_in(p->opts.timeout_ns) :
	                                        WS_FOREVER;
	p->from.weight_version = s->weight_version ? s->weight_version : p->opts.weight_version;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->to.endpoints[i];
		push_target_event(&e->weights, PUSH_RUN_BEGINS);
		e->paused = e->paused_now = e->found_paused = e->found_stopped = e->left_paused =
			e->confirmed_pause = e->unflushed = false;
		e->caches = (struct ws_caches){ 0 };
		e->disconnected = e->timed_out = e->slept = e->staged = false;
		e->paused_since = e->paused_ns = 0;
		e->asleep = e->unsure = e->recorded_asleep = e->recorded_unsure = 0;
		e->recorded = e->hand_paused = false;
		e->cleaned.asleep = e->cleaned.unsure = 0;
		e->may_finish = e->holds_parts = e->label_moved = e->label_read =
			e->labelled = false;
		e->end = WS_END_UNKNOWN;
		e->coverage = -1;
		e->proof = (struct ws_ev_proof){ 0 };
		e->left[0] = '\0';
		e->not_covered = 0;
		e->message[0] = 0;
	}
	p->run.failed_why = NULL;
	p->from.source = s;
	push_name_source(p, s);
	push_trace_run(p);
}

void *push_own(struct ws_push *p, size_t n, struct ws_err *err)
{
	if (!p->own && !(p->own = calloc(1, n)))
		ws_oom(err);
	return p->own;
}

void push_forget_own(struct ws_push *p, bool ended)
{
	if (p->protocol->forget) {
		p->protocol->forget(p, ended);
		return;
	}
	free(p->own);
	p->own = NULL;
}

void push_forget_run(struct ws_push *p)
{
	push_hash_end(p);
	push_values_end(p);
	push_forget_own(p, false);
	push_leader_free(p);
	p->from.source = NULL;
	ws_plan_free(p->from.plan);
	p->from.plan = NULL;
	ws_input_close(&p->from.input);
	ws_config_free(p->from.server_config);
	p->from.server_config = NULL;
}

/* Reports WS_EPARTIAL if only some endpoints have the new weights: a scheduler must see that,
 * whatever the cause. */
static void note_partial(const struct ws_push *p, struct ws_err *err)
{
	size_t committed = 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		committed += p->to.endpoints[i].weights.state == WS_COMMITTED &&
		             p->to.endpoints[i].end != WS_END_UNANSWERED;
	if (!committed || committed == p->opts.n_endpoints || err->code == WS_ECANCELLED)
		return;
	if (err->endpoint[0] && !strstr(err->msg, err->endpoint))
		ws_err_wrap(err, "%s", err->endpoint);
	ws_err_wrap(err, "%zu of %zu endpoints updated", committed, p->opts.n_endpoints);
	err->code = WS_EPARTIAL;
}

static void list_endpoints(struct ws_push *p)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		const struct ws_evidence evidence = push_evidence(p, i);
		p->to.results[i] = (struct ws_ev_endpoint_result){
			.url = e->url,
			.ok = ws_evidence_word(&evidence) != WS_WORD_NONE,
			.state = e->weights.state,
			.paused = e->paused || e->found_paused || e->left_paused,
			.unflushed = e->unflushed,
			.staged = e->staged,
			.paused_ns = e->paused_ns,
			.message = e->message,
			.evidence = evidence,
		};
	}
}

const char *push_verify_name(const struct ws_push *p)
{
	return p->opts.verify == WS_VERIFY_HASH  ? "hash" :
	       p->opts.verify == WS_VERIFY_NAMES ? "names" :
	                                           "none";
}

/* Fills all members except `ok`, `err` and the times. */
static void fill_result(struct ws_push *p, struct ws_ev_end *r)
{
	*r = (struct ws_ev_end){
		.source = p->from.name,
		.bytes = p->from.plan ? p->from.plan->bytes : 0,
		.wire_bytes = p->link.group ? push_sent(p) - p->run.sent_base : p->run.posted,
		.tensors = p->from.plan ? p->from.plan->n_tensors : 0,
		.buckets = p->from.plan ? p->from.plan->n_buckets : 0,
		.digest = p->from.plan ? p->from.plan->digest : 0,
		.bucket_size = push_last_bucket_limit(p),
		.n_endpoints = p->opts.n_endpoints, .endpoints = p->to.results,
		.first_byte_ns = p->link.group ? push_first_byte(p) : 0,
		.weight_version = p->from.weight_version,
		.round = p->turn.has_turn ? &p->turn.event : NULL,
		.verify = push_verify_name(p),
		.left_out = p->checks.names.found.n_left_out ? &p->checks.names.found : NULL,
		.format_note = push_format_note(p),
		.names = *p->checks.names.family ? &p->checks.names : NULL,
		.written = p->opts.write_dir,
		.dry_run = p->opts.dry_run,
		.staged = p->opts.stage,
		.completed = p->opts.complete,
	};
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->to.endpoints[i].not_covered > r->not_covered)
			r->not_covered = p->to.endpoints[i].not_covered;
	if (p->recovery.staged) {
		r->bytes = p->recovery.staged->record.bytes;
		r->tensors = p->recovery.staged->record.tensors;
		r->digest = p->recovery.staged->record.digest;
		r->buckets = 0;
	}
	if (push_is_worker(p)) { /* its plan is larger than its share */
		r->bytes = p->run.posted;
		r->tensors = p->turn.n_shared;
		r->buckets = p->turn.n_batches;
	}
	if (p->from.input.transform) {
		ws_transform_report(p->from.input.transform, &p->from.report);
		r->transform = &p->from.report;
	}
}

/* Records why the run failed, before its state is freed. */
static void note_failure(struct ws_push *p, struct ws_err *err)
{
	ws_err_where(err, ws_phase_name(p->run.phase), NULL);
	p->run.phase_why = p->run.failed_why = err->msg;
	/* The deadline of the step that failed has passed, or may pass
	 * while its threads are joined. */
	push_alive_until(p, ws_deadline_in(PUSH_CLEAN_UP_S * WS_NS_PER_S));
	ws_watchdog_failed(p->watch.watchdog, err);
	push_hash_end(p);
	push_values_end(p);
	push_hint_asleep(p, err);
}

/* Ends the group after a failure, because it is not known how far each rank has come. The next run
 * forms a new group, and the record of this run can state that its group ended. After a failure,
 * call it before the resume. A rank that still forwards bytes to a rank that refused them answers
 * nothing until that rank has left. */
static void end_transfer(struct ws_push *p, bool ok)
{
	const bool ends =
		p->run.weights_dirty || p->protocol->transfer || (!ok && p->recovery.recorded);
	if (!ends || !(p->link.group || p->protocol->groupless))
		return;
	push_enter(p, WS_PHASE_DESTROY);
	if (p->link.group)
		push_drop_group(p);
	if (p->run.weights_dirty && p->protocol->undo)
		p->protocol->undo(p);
}

static int note_resume_failure(struct ws_push *p, const struct ws_err *why, struct ws_err *err)
{
	*err = *why;
	ws_err_where(err, ws_phase_name(WS_PHASE_RESUME), NULL);
	ws_watchdog_failed(p->watch.watchdog, err);
	return -1;
}

/* rc: the result of the run so far. Returns the new result: a push fails if an endpoint stays
 * paused, whatever weights it has. */
static int resume_all(struct ws_push *p, int rc, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	push_enter(p, WS_PHASE_RESUME);
	push_take_over_pauses(p);
	if (rc && p->recovery.recorded)
		(void)push_record(p, NULL);
	if (push_wake_caches(p, rc == 0, &why) && rc == 0)
		rc = note_resume_failure(p, &why, err);
	if (push_resume(p, rc ? NULL : &why) && rc == 0)
		rc = note_resume_failure(p, &why, err);
	if (rc == 0 && !p->opts.stage && push_check_end(p, &why)) /* a stage has checked it */
		rc = note_resume_failure(p, &why, err);
	if (rc == 0 && !p->opts.stage && push_require_after(p, &why))
		rc = note_resume_failure(p, &why, err);
	return rc;
}

/* The other senders report the result of this push, so they get it after the resume. */
static int finish(struct ws_push *p, struct ws_err *err)
{
	const int rc = resume_all(p, 0, err);
	push_staged_leave(p);
	push_leader_end(p, err);
	end_transfer(p, rc == 0);
	return rc;
}

static int give_up(struct ws_push *p, struct ws_err *err)
{
	push_leader_end(p, err);
	end_transfer(p, false);
	withdraw_commits(p);
	push_others_leave(p);
	push_flush_undo(p);
	if (p->recovery.staged)
		push_staged_label(p);
	const int rc = resume_all(p, -1, err);
	push_staged_leave(p);
	return rc;
}

/* Completes the error and lists the endpoints. Their states are final now. */
static void close_books(struct ws_push *p, bool ok, struct ws_err *err)
{
	if (!ok) {
		push_record_failure(p, err);
		note_partial(p, err);
		push_name_remedy(p, err);
		ws_watchdog_finish(p->watch.watchdog, err);
	}
	list_endpoints(p);
	if (p->protocol->done)
		p->protocol->done(p, ok);
	push_history(p, ok, err);
	push_unlock_endpoints(p, ok);
	if (p->opts.complete) /* the next run borrows from another record */
		push_record_end(p);
}

static void keep_version(struct ws_push *p)
{
	const bool set = p->from.weight_version && !p->opts.dry_run && !p->opts.stage;
	for (size_t i = 0; set && i < p->opts.n_endpoints; i++)
		snprintf(p->to.infos[i].weight_version, sizeof p->to.infos[i].weight_version, "%s",
		         p->from.weight_version);
}

int ws_push_run(struct ws_push *p, const struct ws_push_source *source, struct ws_ev_end *result,
                struct ws_err *err)
{
	struct ws_err local = WS_ERR_INIT;
	struct ws_ev_end r;
	reset_run(p, source);
	push_guard_watch(p, true);
	int rc = push_is_worker(p) ? push_worker(p, source, &local) : run_phases(p, source, &local);
	if (rc)
		note_failure(p, &local);
	else
		keep_version(p);
	fill_result(p, &r); /* before the group ends, which counts the bytes */
	rc = rc ? give_up(p, &local) : finish(p, &local);
	close_books(p, rc == 0, &local);
	if (push_sender_leave(p, rc == 0, &local))
		rc = -1;
	push_enter(p, WS_PHASE_PLAN);
	push_guard_watch(p, false);
	p->run.failure = local;
	p->run.failed_why = NULL;
	r.ok = rc == 0;
	r.err = rc ? &p->run.failure : NULL;
	memcpy(r.ns, p->run.ns, sizeof r.ns);
	r.total_ns = ws_now_ns() - p->run.since;
	push_trace_over(p, &r);
	push_forget_run(p);
	if (result)
		*result = r;
	if (rc && err)
		*err = local;
	return rc;
}
