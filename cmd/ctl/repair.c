/* SPDX-License-Identifier: Apache-2.0 */
/* repair.c - shows and repairs endpoints that dead pushes left, and repeats these pushes.
 *
 * The endpoints are those of the records. If an endpoint has some old and some new weights, that
 * is the exit status, because it is the most important failure for a scheduler. */
#include "ctl.h"
#include "run.h"

#include "wsync/tool/staged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct repairs {
	struct ctl_job *job;
	const char *state_dir;
	struct ws_journal_list list;
	struct ws_repair_answer **answers; /* of each entry; NULL: it was skipped */
	size_t taken;                      /* entries that are repaired, or skipped aloud */
	struct ws_err worst;
};

static void note_failure(struct repairs *r, const struct ws_err *err)
{
	if (!r->worst.code || (err->code == WS_EPARTIAL && r->worst.code != WS_EPARTIAL))
		r->worst = *err;
}

/* ---- showing --------------------------------------------------------------------------------- */

static const char *source_of(const struct ws_journal_record *rec)
{
	return rec->n_sources ? rec->sources[0] : "";
}

/* The last phase that an endpoint of the record had begun. */
static const char *phase_of(const struct ws_journal_record *rec)
{
	enum ws_phase last = WS_PHASE_PLAN;
	for (size_t i = 0; i < rec->n_endpoints; i++)
		if (rec->endpoints[i].phase > last)
			last = rec->endpoints[i].phase;
	return ws_phase_name(last);
}

static void put_transaction(struct ui *ui, const struct ws_journal_entry *e)
{
	struct ws_jw *w = ui_line(ui, "transaction");
	const struct ws_journal_record *rec = &e->record;
	ws_jw_str(w, "file", e->path);
	ws_jw_str(w, "process", record_fate(e));
	if (e->err.code) {
		ctl_put_failure(w, &e->err);
	} else {
		ws_jw_int(w, "pid", rec->process.pid);
		ws_jw_str(w, "host", rec->process.host);
		ws_jw_int(w, "began", rec->began);
		ws_jw_int(w, "updated", rec->updated);
		ws_jw_str(w, "phase", phase_of(rec));
		ws_jw_str(w, "group", *rec->group ? rec->group : NULL);
		ws_jw_hex64(w, "digest", rec->digest);
		ws_jw_str(w, "weight_version", *rec->weight_version ? rec->weight_version : NULL);
		ws_jw_strs(w, "sources", rec->sources, rec->n_sources);
		ws_jw_uint(w, "tensors", rec->tensors);
		ws_jw_uint(w, "bytes", rec->bytes);
		ws_jw_bool(w, "repeatable", rec->directory && rec->n_sources);
	}
	ui_line_end(ui);
}

/* "process 4711 on trainer3, died, in its transfer, 3 min ago: ckpt/step-7" */
static void say_transaction(struct repairs *r, const struct ws_journal_entry *e)
{
	const struct ws_journal_record *rec = &e->record;
	char ago[32];
	if (rec->by_hand) {
		ui_say(r->job->ui, "wsync-ctl, process %lld on %s, released weights %s ago\n",
		       (long long)rec->process.pid, ui_text(rec->process.host),
		       record_age(ago, sizeof ago, rec->began));
		return;
	}
	const char *how = e->record.ended ? "left something" :
	                  e->fate == WS_PROCESS_ALIVE ? "is still running" :
	                  e->fate == WS_PROCESS_ELSEWHERE ? "is not visible from here" : "died";
	if (rec->ended && rec->staged.stage == WS_STAGE_DONE) {
		ui_say(r->job->ui, "process %lld on %s staged an update %s ago: %s%s\n",
		       (long long)rec->process.pid, ui_text(rec->process.host),
		       record_age(ago, sizeof ago, rec->updated), ui_text(source_of(rec)),
		       rec->n_sources > 1 ? " ..." : "");
		return;
	}
	ui_say(r->job->ui, "process %lld on %s %s, in its %s, %s ago: %s%s\n",
	       (long long)rec->process.pid, ui_text(rec->process.host), how, phase_of(rec),
	       record_age(ago, sizeof ago, rec->updated), ui_text(source_of(rec)),
	       rec->n_sources > 1 ? " ..." : "");
}

static const char *verdict(const struct repairs *r, const struct ws_repair_answer *a)
{
	const bool dry = r->job->cfg->dry_run;
	if (a->busy)
		return "in use";
	if (a->err.code)
		return "failed";
	if (a->staged)
		return "staged";
	if (a->labelled && !a->resumed)
		return "labelled";
	if (a->state == WS_PARTIAL || (a->asleep | a->unsure) & WS_MEMORY_WEIGHTS)
		return a->paused ? "left paused" : a->resumed ? "resumed" : "left as it is";
	if (a->resumed)
		return "resumed";
	return a->paused ? (dry ? "to be resumed" : "paused") : "in order";
}

static enum ui_color shade(const struct ws_repair_answer *a)
{
	return a->busy || (a->state == WS_PARTIAL && !a->err.code) ? UI_WARN :
	       a->err.code                                         ? UI_BAD :
	                                                             UI_GOOD;
}

static void put_endpoint(struct repairs *r, const struct ws_journal_entry *e, size_t i,
                         const struct ws_repair_answer *a)
{
	struct ws_jw *w = ui_line(r->job->ui, "endpoint");
	ws_jw_str(w, "url", e->record.endpoints[i].url);
	ws_jw_str(w, "file", e->path);
	ws_jw_bool(w, "ok", !a->err.code && !a->incomplete && !(a->paused && a->asleep));
	ws_jw_str(w, "state", ws_endpoint_state_name(a->state));
	ws_jw_str(w, "weight_version", *a->weight_version ? a->weight_version : NULL);
	ws_jw_bool(w, "in_use", a->busy);
	ws_jw_bool(w, "resumed", a->resumed);
	ws_jw_bool(w, "paused", a->paused);
	ws_jw_bool(w, "left_group", a->left_group);
	ws_jw_bool(w, "in_protocol", a->in_update);
	ws_jw_bool(w, "staged", a->staged);
	ws_jw_bool(w, "restarted", a->restarted);
	ws_jw_str(w, "asleep", a->asleep ? ws_memory_text(a->asleep) : NULL);
	ws_jw_str(w, "unsure", a->unsure ? ws_memory_text(a->unsure) : NULL);
	if (a->err.code)
		ctl_put_failure(w, &a->err);
	ui_line_end(r->job->ui);
}

static void show_answers(struct repairs *r, const struct ws_journal_entry *e,
                         const struct ws_repair_answer *answers)
{
	struct table t = { .n_columns = 4 };
	for (size_t i = 0; i < e->record.n_endpoints; i++) {
		const struct ws_repair_answer *a = &answers[i];
		put_endpoint(r, e, i, a);
		char released[192] = "";
		if (a->unsure)
			snprintf(released, sizeof released, "not known whether released: %s",
			         ws_memory_text(a->unsure));
		else if (a->asleep)
			snprintf(released, sizeof released, "still released: %s",
			         ws_memory_text(a->asleep));
		else if (a->labelled || a->unlabelled)
			snprintf(released, sizeof released, "%s weight version %s",
			         a->labelled ? "has got" : "lacks",
			         ui_text(e->record.weight_version));
		table_add(&t, shade(a), e->record.endpoints[i].url, verdict(r, a),
		          ws_endpoint_state_name(a->state),
		          a->err.code          ? ui_words(a->err.msg) :
		          a->staged ? "waits for wsync-ctl complete or discard" :
		          a->restarted ? "was restarted since, with whole weights" :
		          r->job->cfg->dry_run ? released :
		          !a->left_group       ? "did not leave the group" :
		          a->may_join ? "may still take up the request to join: repair again if it "
		                        "stops answering" :
		          a->in_update ? "did not end its update" :
		                         released);
	}
	table_print(&t, r->job->ui);
	table_free(&t);
}

/* ---- one record ------------------------------------------------------------------------------ */

/* Also by another address, unless nothing is asked ({forget}). A record of an earlier start of the
 * server is one of its records, too. */
static bool names_one_of(const struct ws_journal_record *rec, const struct ctl_job *job)
{
	for (size_t i = 0; i < rec->n_endpoints; i++)
		for (size_t k = 0; k < job->to.n; k++) {
			const struct record_at at = record_at(job, k);
			if (ws_endpoint_same(rec->endpoints[i].url, at.url) ||
			    ws_journal_is_about(&rec->endpoints[i], at.url, at.info))
				return true;
		}
	return job->to.n == 0;
}

static bool is_over(const struct repairs *r, const struct ws_journal_entry *e)
{
	return e->fate == WS_PROCESS_DEAD ||
	       (e->fate == WS_PROCESS_ELSEWHERE && r->job->cfg->assume_dead) ||
	       (e->fate == WS_PROCESS_ALIVE &&
	        r->job->cfg->forget); /* ws_journal_forget refuses running pushes */
}

static int repair_one(struct repairs *r, struct ws_journal_entry *e,
                      struct ws_repair_answer *answers, struct ws_err *err)
{
	const struct ctl_config *cfg = r->job->cfg;
	const struct ws_repair_opts opts = {
		.http = r->job->to.http, .state_dir = r->state_dir, .dry_run = cfg->dry_run,
		.resume_partial = cfg->resume_partial, .timeout_ns = cfg->timeout_ns,
		.until = cfg->again ? r->job->until : WS_FOREVER,
		.cancel = &run_cancel,
	};
	const int rc = ws_journal_repair(e, &opts, answers, err);
	struct ws_err stays = WS_ERR_INIT;
	if (rc == 0 && !cfg->dry_run && ws_staged_clean(&e->record, &stays))
		ui_warn(r->job->ui, NULL, "a checkpoint stays: %s", stays.msg);
	if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)
		show_answers(r, e, answers);
	return rc;
}

/* Skips a record whose process may be alive, but is not visible from here. That is a failure,
 * unless a later push has handled the endpoint and only the group is left. */
static void leave_alone(struct repairs *r, const struct ws_journal_record *rec)
{
	static const char remedy[] =
		"repair it there; if that process is dead: wsync-ctl repair --assume-dead";
	const struct ws_journal_endpoint *owes = NULL;
	struct ws_err err = WS_ERR_INIT;
	ui_warn(r->job->ui, NULL, "process %lld runs, or ran, on %s or in another container: %s",
	        (long long)rec->process.pid, ui_text(rec->process.host), remedy);
	for (size_t i = 0; i < rec->n_endpoints; i++) {
		const struct ws_journal_endpoint *e = &rec->endpoints[i];
		if (ws_journal_owes(e) && e->phase != WS_PHASE_DESTROY &&
		    (!owes || e->state == WS_PARTIAL))
			owes = e;
	}
	if (!owes)
		return;
	ws_err_set(&err, owes->state == WS_PARTIAL ? WS_EPARTIAL : WS_EREACH,
	           "%s was left alone: process %lld, which may have paused it, cannot be seen from "
	           "here",
	           owes->url, (long long)rec->process.pid);
	ws_err_hint(&err, "%s", remedy);
	ws_err_where(&err, NULL, owes->url);
	note_failure(r, &err);
}

/* What was done by hand was meant, but weights that have no values are reported. */
static bool is_meant(const struct ws_journal_record *rec)
{
	for (size_t i = 0; i < rec->n_endpoints; i++)
		if (ws_journal_mixture(&rec->endpoints[i]) || rec->endpoints[i].unsure)
			return false;
	return rec->by_hand;
}

static int take_one(struct repairs *r, size_t i)
{
	struct ws_journal_entry *e = &r->list.items[i];
	const struct ctl_config *cfg = r->job->cfg;
	struct ws_err err = WS_ERR_INIT;
	int rc = 0;
	if (!e->err.code && (!names_one_of(&e->record, r->job) ||
	                     (is_meant(&e->record) && !cfg->forget)))
		return 0;
	r->taken++;
	put_transaction(r->job->ui, e);
	if (e->err.code) {
		ws_err_hint(&e->err,
		            "check the file; remove it when nothing is left to repair");
		ui_warn(r->job->ui, NULL, "%s", e->err.msg);
		note_failure(r, &e->err);
		return 0;
	}
	say_transaction(r, e);
	if (!is_over(r, e)) {
		if (e->fate == WS_PROCESS_ELSEWHERE)
			leave_alone(r, &e->record);
		return 0;
	}
	if (cfg->forget) {
		if (e->record.staged.stage && !cfg->dry_run)
			ui_warn(r->job->ui, NULL,
			        "the servers may keep what was staged, and refuse other prepared "
			        "updates: push with --protocol update, or restart them");
		if (!cfg->dry_run)
			rc = ws_journal_forget(e, r->job->to.urls, r->job->to.n, &err);
		/* If all records are meant, those of running pushes stay, as without --forget. */
		if (rc && err.code == WS_EREFUSED && !r->job->to.n)
			rc = 0;
	} else {
		r->answers[i] = calloc(e->record.n_endpoints + 1, sizeof **r->answers);
		rc = r->answers[i] ? repair_one(r, e, r->answers[i], &err) : ws_oom(&err);
	}
	if (rc)
		note_failure(r, &err);
	return rc && (err.code == WS_ECANCELLED || err.code == WS_ESYSTEM) ? -1 : 0;
}

/* ---- pushing again --------------------------------------------------------------------------- */

static void put_again(struct ui *ui, const struct ws_journal_entry *e, int status)
{
	struct ws_jw *w = ui_line(ui, "again");
	ws_jw_str(w, "file", e->path);
	ws_jw_bool(w, "ok", status == 0);
	ws_jw_int(w, "exit", status);
	ui_line_end(ui);
}

/* Does endpoint k still need the weights of this record? No, if a later push has sent other
 * weights and only the group is left. If the bytes have arrived but the label is missing, they
 * were not verified. */
static bool lacks(const struct ws_journal_record *rec, size_t k, const struct ws_repair_answer *a)
{
	if (rec->endpoints[k].phase == WS_PHASE_DESTROY || a->staged)
		return false;
	return a->state != WS_COMMITTED || a->incomplete || a->labelled || a->unlabelled ||
	       (*rec->weight_version && *a->weight_version &&
	        strcmp(a->weight_version, rec->weight_version) != 0);
}

/* Fails if an endpoint was skipped because its repair had failed. */
static int check_missed(const struct ws_journal_record *rec, const struct ws_repair_answer *answers,
                        struct ws_err *err)
{
	for (size_t k = 0; k < rec->n_endpoints; k++) {
		const struct ws_repair_answer *a = &answers[k];
		if (!a->err.code || !lacks(rec, k, a))
			continue;
		*err = a->err;
		if (a->state == WS_PARTIAL && !a->busy) {
			err->code = WS_EPARTIAL;
			ws_err_wrap(err,
			            "%s: has some old and some new weights, and was not pushed to "
			            "again",
			            rec->endpoints[k].url);
		}
		return -1;
	}
	return 0;
}

/* Can record j be repeated at this endpoint, which needs it? */
static bool is_wish(const struct repairs *r, size_t j, const char *url)
{
	const struct ws_journal_record *rec = &r->list.items[j].record;
	if (!r->answers[j] || !rec->directory)
		return false;
	for (size_t k = 0; k < rec->n_endpoints; k++) {
		const struct ws_repair_answer *a = &r->answers[j][k];
		if (ws_endpoint_same(rec->endpoints[k].url, url) && lacks(rec, k, a) &&
		    !rec->endpoints[k].inherited && !a->err.code)
			return true;
	}
	return false;
}

/* A smaller push may be a part, on top of the other. */
static bool is_as_large(const struct repairs *r, size_t j, size_t i)
{
	const struct ws_journal_record *a = &r->list.items[j].record;
	const struct ws_journal_record *b = &r->list.items[i].record;
	return a->tensors >= b->tensors && a->bytes >= b->bytes;
}

/* Is another record repeated in place of record i? The last wish for an endpoint is, and of those
 * that no server refused, if there are any. */
static bool is_overtaken(const struct repairs *r, size_t i, const char *url)
{
	const bool refused = r->list.items[i].record.refused;
	for (size_t j = 0; j < r->list.n; j++) {
		const bool also = r->list.items[j].record.refused;
		if (j == i || !is_wish(r, j, url))
			continue;
		if (r->list.items[i].record.by_hand)
			return true;
		if (refused == also ? j > i && is_as_large(r, j, i) : refused)
			return true;
	}
	return false;
}

/* An inherited endpoint has all of this push, on top of an incomplete push. Until the incomplete
 * push is repeated, the endpoint stays partial. */
static bool is_in_vain(const struct repairs *r, const struct ws_journal_endpoint *e)
{
	return e->inherited && r->worst.code;
}

/* Weights that wsync-ctl released have no push that could be repeated. */
static int refuse_by_hand(const char *url, struct ws_err *err)
{
	ws_err_set(err, WS_EPARTIAL, "%s: its weights were released and are not complete", url);
	ws_err_hint(err, "push everything: wsync-push SOURCE -e %s --asleep recorded", url);
	return ws_err_where(err, NULL, url);
}

/* Repeats the push to the endpoints that answered and do not have the new weights. */
static int push_again(struct repairs *r, size_t i, struct ws_err *err)
{
	const struct ws_journal_entry *e = &r->list.items[i];
	const struct ws_journal_record *rec = &e->record;
	const char **urls = calloc(rec->n_endpoints + 1, sizeof *urls);
	size_t n = 0;
	int status = 0;
	if (!urls)
		return ws_oom(err);
	for (size_t k = 0; k < rec->n_endpoints; k++)
		if (lacks(rec, k, &r->answers[i][k]) && !r->answers[i][k].err.code &&
		    !is_overtaken(r, i, rec->endpoints[k].url) &&
		    !is_in_vain(r, &rec->endpoints[k]))
			urls[n++] = rec->endpoints[k].url;
	int rc = 0;
	if (n && ws_deadline_passed(r->job->until))
		rc = ws_err_set(err, WS_ETIMEOUT, "no time is left to push %s again",
		                source_of(rec));
	else if (n && rec->by_hand)
		rc = refuse_by_hand(urls[0], err);
	else if (n)
		rc = again_run(r->job, rec, urls, n, &status, err);
	if (n && !rc)
		put_again(r->job->ui, e, status);
	if (!rc && status)
		rc = ws_err_set(err, (enum ws_code)status, "pushing %s again failed",
		                source_of(rec));
	if (status == WS_EUSAGE)
		ws_err_hint(err, "wsync-push refuses an option that was recorded, maybe by another "
		                 "version: push by hand, without it");
	if (!rc)
		rc = check_missed(rec, r->answers[i], err);
	free(urls);
	return rc;
}

static void push_all_again(struct repairs *r)
{
	/* Repeating the pushes may complete partial endpoints; other failures stay. */
	if (r->worst.code == WS_EPARTIAL)
		r->worst = (struct ws_err)WS_ERR_INIT;
	for (size_t i = 0; i < r->list.n && !ws_cancelled(&run_cancel); i++) {
		struct ws_err err = WS_ERR_INIT;
		if (r->answers[i] && push_again(r, i, &err))
			note_failure(r, &err);
	}
}

/* ---- the command ----------------------------------------------------------------------------- */

static int work(struct repairs *r, struct ws_err *err)
{
	const struct ctl_config *cfg = r->job->cfg;
	if (ws_journal_list(r->state_dir, &r->list, err))
		return -1;
	r->answers = calloc(r->list.n + 1, sizeof *r->answers);
	if (!r->answers)
		return ws_oom(err);
	int rc = 0;
	if (r->list.n && r->job->to.n && !cfg->forget)
		(void)ctl_ask(r->job, NULL);
	for (size_t i = 0; rc == 0 && i < r->list.n; i++)
		rc = take_one(r, i);
	if (r->taken == 0)
		ui_say(r->job->ui, "nothing to repair\n");
	if (rc == 0 && cfg->again && !cfg->dry_run)
		push_all_again(r);
	if (!r->worst.code)
		return 0;
	*err = r->worst;
	return -1;
}

static int check_options(const struct ctl_config *cfg, struct ws_err *err)
{
	if (cfg->forget && (cfg->again || cfg->resume_partial))
		return ws_err_set(err, WS_EUSAGE,
		                  "--forget: asks the endpoints nothing, so neither --again "
		                  "nor --resume-partial goes with it");
	return 0;
}

int ctl_repair(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	struct repairs r = { .job = ctx, .worst = WS_ERR_INIT };
	struct ws_buf dir;
	ws_buf_init(&dir, 4095);
	int rc = check_options(r.job->cfg, err);
	if (!rc)
		rc = run_state_dir(r.job->cfg->state_dir, &dir, err);
	r.state_dir = ws_buf_str(&dir);
	if (!rc)
		rc = work(&r, err);
	for (size_t i = 0; r.answers && i < r.list.n; i++)
		free(r.answers[i]);
	free(r.answers);
	ws_journal_list_free(&r.list);
	ws_buf_free(&dir);
	return rc;
}
