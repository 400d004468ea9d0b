/* SPDX-License-Identifier: Apache-2.0 */
/* tell.c - requests that change servers or check them, and a row for each answer. */
#include "ctl.h"
#include "run.h"

#include "wsync/push.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ctl_put_failure(struct ws_jw *w, const struct ws_err *err)
{
	ws_jw_str(w, "code", ws_code_name(err->code));
	ws_jw_str(w, "message", ui_words(err->msg));
	ui_json_words(w, "hint", err->hint);
}

static void put_answer(struct ctl_job *job, size_t i, const struct ws_endpoint_answer *a)
{
	const struct record_at at = record_at(job, i);
	const char *url = at.url;
	struct ws_jw *w = ui_line(job->ui, "endpoint");
	ws_jw_str(w, "url", url);
	ws_jw_bool(w, "ok", !a->err.code);
	if (a->err.code)
		ctl_put_failure(w, &a->err);
	else
		ws_jw_str(w, "message", *a->message ? a->message : NULL);
	if (job->records)
		record_put_pause(w, ws_known(job->records, at.url, at.info).paused);
	ws_jw_int(w, "ns", a->ns);
	ui_line_end(job->ui);
}

void ctl_print_unless_said(struct ctl_job *job, const struct table *t, enum ws_code first)
{
	if (job->to.n > 1 || first == WS_OK)
		table_print(t, job->ui);
}

static void show_answers(struct ctl_job *job, const char *done,
                         const struct ws_endpoint_answer *answers)
{
	struct table t = { .n_columns = 4 };
	for (size_t i = 0; i < job->to.n; i++) {
		const struct ws_endpoint_answer *a = &answers[i];
		char took[32];
		put_answer(job, i, a);
		ws_format_duration(took, sizeof took, a->ns);
		table_add(&t, a->err.code ? UI_BAD : UI_GOOD, job->to.urls[i],
		          a->err.code ? "failed" : done, took,
		          a->err.code ? ui_words(a->err.msg) : a->message);
	}
	ctl_print_unless_said(job, &t, answers[0].err.code);
	table_free(&t);
	if (job->records)
		record_say_pauses(job, job->records);
}

/* A request to all endpoints. */
struct request {
	enum { HEALTH, PAUSE, RESUME, FLUSH, SET_VERSION, LEAVE, SLEEP, WAKE } what;
	const char *done; /* the word for an endpoint that did it */
	const char *name; /* of a version or a group */
	unsigned tags;    /* of SLEEP */
	/* of SLEEP and WAKE, as is infos: enum ws_memory of each endpoint */
	unsigned *memory;
	const struct ws_endpoint_info *infos;
	/* Decides from the records and the servers' answers, under the locks; -1: no request is
	 * sent. NULL: nothing is to be decided. */
	int (*decide)(struct ctl_job *job, struct request *r, struct ws_err *err);
};

/* ---- flush: the caches beyond the prefix cache ---- */

/* Adds to the message of an answer which caches could not be cleared. */
static void name_old(const struct ws_caches *c, const char *external, struct ws_endpoint_answer *a)
{
	char old[160] = "";
	for (unsigned k = WS_CACHE_EXTERNAL; k < WS_N_CACHES; k++) {
		const enum ws_cache_fact fact = c->of[k].fact;
		if (fact == WS_CACHE_OLD ||
		    (fact == WS_CACHE_UNTOLD && k == WS_CACHE_EXTERNAL && *external)) {
			const size_t n = strlen(old);
			snprintf(old + n, sizeof old - n, "%s%s", n ? ", " : "not cleared: ",
			         ws_cache_name((enum ws_cache)k));
		}
	}
	if (*old)
		snprintf(a->message, sizeof a->message, "%s", old);
}

struct flushed {
	const char **urls;
	struct ws_endpoint_info *infos;
	const struct ws_endpoint_info **known;
	struct ws_err *errs;
	struct ws_caches *caches;
	size_t *index;
};

/* Of the servers that have flushed, those that say what they are. */
static size_t find_flushed(struct flushed *f, const struct ws_call *all,
                           const struct ws_endpoint_answer *answers)
{
	struct ws_call to = *all;
	size_t n = 0;
	to.n = 0;
	to.urls = f->urls;
	for (size_t i = 0; i < all->n; i++)
		if (!answers[i].err.code) {
			f->index[to.n] = i;
			f->urls[to.n++] = all->urls[i];
		}
	if (to.n)
		(void)ws_endpoint_probe_all(&to, f->infos, f->errs, NULL);
	for (size_t k = 0; k < to.n; k++) {
		if (f->errs[k].code)
			continue;
		f->caches[n].of[WS_CACHE_PREFIX].fact = WS_CACHE_CLEARED;
		f->index[n] = f->index[k];
		f->urls[n] = f->urls[k];
		f->known[n++] = &f->infos[k];
	}
	return n;
}

/* Clears what a flush leaves. */
static int flush_rest(const struct ws_call *all, struct ws_endpoint_answer *answers,
                      struct ws_err *err)
{
	struct flushed f = { .urls = calloc(all->n + 1, sizeof *f.urls),
		             .infos = calloc(all->n + 1, sizeof *f.infos),
		             .known = calloc(all->n + 1, sizeof *f.known),
		             .errs = calloc(all->n + 1, sizeof *f.errs),
		             .caches = calloc(all->n + 1, sizeof *f.caches),
		             .index = calloc(all->n + 1, sizeof *f.index) };
	const bool whole = f.urls && f.infos && f.known && f.errs && f.caches && f.index;
	int rc = whole ? 0 : ws_oom(err);
	if (!rc) {
		struct ws_call to = *all;
		to.n = find_flushed(&f, all, answers);
		to.urls = f.urls;
		to.infos = f.known;
		rc = ws_endpoint_clear_caches(&to, true, f.caches, err);
		for (size_t k = 0; !rc && k < to.n; k++)
			name_old(&f.caches[k], f.known[k]->external, &answers[f.index[k]]);
	}
	free(f.urls);
	free(f.infos);
	free(f.known);
	free(f.errs);
	free(f.caches);
	free(f.index);
	return rc;
}

static int flush(const struct ws_call *to, ws_deadline patience, struct ws_endpoint_answer *answers,
                 struct ws_err *err)
{
	const int rc = ws_endpoint_flush(to, patience, answers, err);
	if (rc && (err->code == WS_ECANCELLED || err->code == WS_ESYSTEM))
		return rc;
	struct ws_err why = WS_ERR_INIT;
	if (flush_rest(to, answers, &why) == 0)
		return rc;
	*err = why;
	return -1;
}

static int wake(const struct ws_call *to, const struct request *r,
                struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const int rc = ws_endpoint_wake(to, r->infos, r->memory, answers, err);
	for (size_t i = 0; i < to->n; i++)
		if (!r->memory[i])
			snprintf(answers[i].message, sizeof answers[i].message,
			         "no memory is recorded as released since it started");
	return rc;
}

static int call(struct ctl_job *job, const struct request *r, struct ws_endpoint_answer *answers,
                struct ws_err *err)
{
	const struct ctl_config *cfg = job->cfg;
	const ws_deadline patience = ws_deadline_in(cfg->wait_ns);
	struct ws_call to = targets_call(&job->to, cfg->timeout_ns);
	switch (r->what) {
	case HEALTH:
		return ws_endpoint_health(&to, answers, err);
	case PAUSE:
		return ws_endpoint_pause(&to, (enum ws_pause_mode)cfg->mode,
		                         cfg->mode != WS_PAUSE_IN_PLACE, answers, err);
	case RESUME:
		return ws_endpoint_resume(&to, answers, err);
	case FLUSH:
		to.until = cfg->wait_ns > cfg->timeout_ns ? patience : to.until;
		return flush(&to, patience, answers, err);
	case SET_VERSION:
		return ws_endpoint_set_version(&to, r->name, answers, err);
	case LEAVE:
		return ws_endpoint_destroy_group(&to, r->name, answers, err);
	case SLEEP:
		return ws_endpoint_sleep(&to, r->infos, r->tags, patience, answers, err);
	case WAKE:
		return wake(&to, r, answers, err);
	}
	return 0;
}

/* ---- deeds ---- */

/* What a request does that is recorded, or needs the lock; false: neither. */
static bool is_deed(const struct request *r, enum ws_deed_what *what)
{
	*what = r->what == PAUSE  ? WS_DEED_PAUSE :
	        r->what == RESUME ? WS_DEED_RESUME :
	        r->what == SLEEP  ? WS_DEED_SLEEP :
	        r->what == WAKE   ? WS_DEED_WAKE :
	                            WS_DEED_NONE;
	return *what || r->what == SET_VERSION;
}

/* If no record says that memory is released, the next push crashes the server. */
static int go_without(struct ctl_job *job, enum ws_deed_what what, struct ws_err *why,
                      struct ws_err *err)
{
	if (why->code == WS_EREFUSED || what == WS_DEED_SLEEP || what == WS_DEED_WAKE) {
		if (why->code == WS_ETIMEOUT)
			why->code = WS_ESYSTEM; /* of the record, and not of a server */
		if (err)
			*err = *why;
		return -1;
	}
	if (what == WS_DEED_NONE)
		ui_warn(job->ui, NULL, "other pushes are not kept away: %s", why->msg);
	else
		ui_warn(job->ui, job->to.urls[0], "no record says what is done here: %s", why->msg);
	return 0;
}

struct doing {
	struct ws_buf dir;
	struct ws_deed *at;
	struct ws_deeds *deeds; /* NULL: nothing is recorded */
};

static int take_locks(struct ctl_job *job, enum ws_deed_what what, struct doing *d,
                      struct ws_err *err)
{
	for (size_t i = 0; i < job->to.n; i++)
		d->at[i] = (struct ws_deed){ .url = job->to.urls[i], .what = what };
	return run_state_dir(job->cfg->state_dir, &d->dir, err) ||
	                       ws_deeds_lock(ws_buf_str(&d->dir), d->at, job->to.n, &d->deeds,
	                                     err) ?
	               -1 :
	               0;
}

static int record_deeds(struct ctl_job *job, const struct request *r, struct doing *d,
                        struct ws_err *err)
{
	for (size_t i = 0; i < job->to.n; i++) {
		d->at[i].info = record_at(job, i).info;
		d->at[i].memory = r->memory ? r->memory[i] : 0;
	}
	if (!d->deeds || ws_deeds_ask(d->deeds, err) == 0)
		return 0;
	ws_deeds_end(d->deeds);
	d->deeds = NULL;
	return -1;
}

/* Takes the locks, decides, and records what is about to be done. -1: nothing may be sent. Call
 * end also then. */
static int begin(struct ctl_job *job, struct request *r, enum ws_deed_what what, struct doing *d,
                 struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	*d = (struct doing){ 0 };
	ws_buf_init(&d->dir, 4095);
	d->at = calloc(job->to.n + 1, sizeof *d->at);
	if (!d->at)
		return ws_oom(err);
	if (take_locks(job, what, d, &why) && go_without(job, what, &why, err))
		return -1;
	/* The record is about this start of the server, if that is told. */
	if (what == WS_DEED_PAUSE && !job->to.infos)
		(void)ctl_ask(job, NULL);
	if (r->decide && r->decide(job, r, err))
		return -1;
	return record_deeds(job, r, d, &why) ? go_without(job, what, &why, err) : 0;
}

static void end(struct ctl_job *job, struct doing *d, const struct ws_endpoint_answer *answers)
{
	for (size_t i = 0; d->deeds && i < job->to.n; i++) {
		struct ws_err why = WS_ERR_INIT;
		if (ws_deeds_answered(d->deeds, i, ws_deed_outcome(&answers[i]), &why))
			ui_warn(job->ui, d->at[i].url, "no record says what was done here: %s",
			        why.msg);
	}
	ws_deeds_end(d->deeds);
	free(d->at);
	ws_buf_free(&d->dir);
}

static int tell(struct ctl_job *job, struct request *r, struct ws_err *err)
{
	enum ws_deed_what what;
	const bool deed = is_deed(r, &what);
	struct doing doing;
	struct ws_endpoint_answer *answers = calloc(job->to.n + 1, sizeof *answers);
	if (!answers)
		return ws_oom(err);
	int rc = deed ? begin(job, r, what, &doing, err) : 0;
	for (size_t i = 0; i < job->to.n; i++) /* until one comes */
		answers[i] = (struct ws_endpoint_answer){ .err = { .code = WS_ECANCELLED },
			                                  .sent = rc == 0 };
	if (rc == 0) {
		rc = call(job, r, answers, err);
		if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)
			show_answers(job, r->done, answers);
	}
	if (deed)
		end(job, &doing, answers);
	free(answers);
	return rc;
}

/* Also shows push records: a healthy server may be paused, and answer no prompts. Not every server
 * reports a pause, but a record may. */
int ctl_health(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct ctl_job *job = ctx;
	struct ws_journal_list records;
	(void)args;
	record_read(job, &records);
	job->records = &records;
	const int rc = tell(job, &(struct request){ .what = HEALTH, .done = "healthy" }, err);
	job->records = NULL;
	ws_journal_list_free(&records);
	return rc;
}

/* Checks the capabilities first: a server without pause modes would ignore the mode and abort. */
static int check_mode(struct ctl_job *job, struct ws_err *err)
{
	const enum ws_pause_mode mode = (enum ws_pause_mode)job->cfg->mode;
	if (mode == WS_PAUSE_ABORT)
		return 0;
	if (ctl_ask(job, err))
		return -1;
	for (size_t i = 0; i < job->to.n; i++) {
		const char *why = ws_push_refuses(&job->to.infos[i].can, mode, WS_FLUSH_NEVER, true,
		                                  false, NULL);
		if (!why)
			continue;
		ws_err_set(err, WS_EREFUSED, "%s: %s", job->to.urls[i], why);
		ws_err_hint(err, "use --mode abort");
		return ws_err_where(err, NULL, job->to.urls[i]);
	}
	return 0;
}

int ctl_pause(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct ctl_job *job = ctx;
	(void)args;
	struct request r = { .what = PAUSE, .done = "paused" };
	return check_mode(job, err) ? -1 : tell(job, &r, err);
}

/* Why this server must not be resumed; NULL: it may be. ends: a prompt may crash it, so no option
 * resumes it. */
static const char *why_not(const struct ws_known *k, const struct record_at *at, bool *ends)
{
	const bool vllm = at->info && ws_lineage_family(at->info->lineage) == WS_FAMILY_VLLM;
	const char *memory = ws_known_memory(k, at->info);
	*ends = memory != NULL || vllm;
	return memory ? memory : k->mixture;
}

static void hint_at_whole(const struct ws_known *k, const struct record_at *at, bool ends,
                          struct ws_err *err)
{
	const char *force = ends ? "" : "; --force resumes it all the same";
	const struct ws_journal_record *r = k->mixed ? &k->mixed->record : NULL;
	const bool lost = (k->asleep | k->unsure) & WS_MEMORY_WEIGHTS &&
	                  !(at->info && ws_endpoint_keeps_weights(at->info));
	if (k->unsure)
		ws_err_hint(err, "restart the server");
	else if (ends && !lost && (k->asleep || (at->info && at->info->sleeping)))
		ws_err_hint(err, "take it back: wsync-ctl wake -e %s", at->url);
	else if (r && r->directory && r->n_sources)
		ws_err_hint(err, "push again, or run wsync-ctl repair --again%s", force);
	else
		ws_err_hint(err, "push all weights: wsync-push SOURCE -e %s%s%s", at->url,
		            k->told ? " --asleep recorded" : "", force);
}

/* Nothing is resumed if one of the endpoints must not be. */
static int check_whole(struct ctl_job *job, struct request *r, struct ws_err *err)
{
	struct ws_journal_list records;
	int rc = 0;
	(void)r;
	/* It may sleep, and a record may be about an earlier start of it, or name it by another
	 * address. */
	if (!job->to.infos)
		(void)ctl_ask(job, NULL);
	record_read(job, &records);
	for (size_t i = 0; !rc && i < job->to.n; i++) {
		bool ends = false;
		const struct record_at at = record_at(job, i);
		const struct ws_known k = ws_known(&records, at.url, at.info);
		const char *why = why_not(&k, &at, &ends);
		if (!why || (job->cfg->force && !ends))
			continue;
		rc = ws_err_set(err, WS_EREFUSED, "%s: %s, and %s", at.url, why,
		                !ends        ? "would answer with them" :
		                k.mixture == why ? "the first prompt may crash a vLLM" :
		                                   "the first prompt may crash it");
		hint_at_whole(&k, &at, ends, err);
		ws_err_where(err, NULL, at.url);
	}
	ws_journal_list_free(&records);
	return rc;
}

int ctl_resume(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct request r = { .what = RESUME, .done = "resumed", .decide = check_whole };
	(void)args;
	return tell(ctx, &r, err);
}

int ctl_flush(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return tell(ctx, &(struct request){ .what = FLUSH, .done = "flushed" }, err);
}

int ctl_set_version(struct ctl_job *job, const char *version, struct ws_err *err)
{
	struct request r = { .what = SET_VERSION, .done = "labelled", .name = version };
	return ws_endpoint_check_version(version, err) || tell(job, &r, err) ? -1 : 0;
}

int ctl_destroy_group(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct request r = { .what = LEAVE, .done = "left", .name = args->v[0] };
	return ws_check_utf8(r.name, "group", err) || tell(ctx, &r, err) ? -1 : 0;
}

/* ---- sleep and wake ---- */

/* A server may crash if it is to wake memory that is awake. */
static int refuse_awake(const char *url, unsigned tags, unsigned asleep, struct ws_err *err)
{
	if (tags) {
		ws_err_set(err, WS_EREFUSED, "%s: the memory of %s is awake, as the records of "
		           "wsync-ctl and of pushes say, and to wake it again may crash the "
		           "server",
		           url, ws_memory_text(tags & ~asleep));
		ws_err_hint(err, "without --tags, wake takes back what is released; if others "
		                 "released that: wsync-ctl repair --forget -e %s", url);
	} else {
		ws_err_set(err, WS_EREFUSED, "%s: no record says that its memory is released, and "
		           "to wake it again may crash the server", url);
		ws_err_hint(err, "wake only released memory: if others released it, list it: "
		                 "wsync-ctl wake --tags weights,kv_cache -e %s", url);
	}
	return ws_err_where(err, NULL, url);
}

static int refuse_unsure(const char *url, unsigned unsure, bool sleeps, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s: a request to release or to wake its %s was not answered, "
	           "and to ask again may crash the server", url, ws_memory_text(unsure));
	ws_err_hint(err, "restart the server; or, if you know that it is %s: wsync-ctl %s --tags "
	                 "%s -e %s", sleeps ? "awake" : "released", sleeps ? "sleep" : "wake",
	            ws_memory_text(unsure), url);
	return ws_err_where(err, NULL, url);
}

/* Chooses the memory to wake at one endpoint: that of --tags, else what is known as released.
 * *known: a record or the server says it. */
static int choose_memory(const struct ctl_job *job, const struct ws_journal_list *records, size_t i,
                         bool sleeps, unsigned *memory, bool *known, struct ws_err *err)
{
	const struct ws_endpoint_info *info = &job->to.infos[i];
	const char *url = job->to.urls[i];
	const unsigned tags = job->cfg->tags ? *memory : 0;
	const struct ws_known k = ws_known(records, url, info);
	if (k.unsure && !tags)
		return refuse_unsure(url, k.unsure, sleeps, err);
	/* vLLM says itself that it sleeps, and may be woken twice. */
	const bool asks = !info->can.memory && (tags || info->sleeping || !(k.told || k.restarted));
	*known = *known || sleeps || tags || asks || k.told || k.restarted;
	if (sleeps || asks)
		return 0;
	if (tags && k.told && tags & ~(k.asleep | k.unsure))
		return refuse_awake(url, tags, k.asleep, err);
	if (!tags)
		*memory = k.asleep;
	return 0;
}

/* The request depends on the server's lineage, which is detected first. */
static int choose_memories(struct ctl_job *job, struct request *r, struct ws_err *err)
{
	struct ws_journal_list records;
	bool known = false;
	int rc = 0;
	if (ctl_ask(job, err))
		return -1;
	r->infos = job->to.infos;
	record_read(job, &records);
	for (size_t i = 0; !rc && i < job->to.n; i++) {
		r->memory[i] = r->tags & ws_endpoint_memory(&r->infos[i]);
		rc = choose_memory(job, &records, i, r->what == SLEEP, &r->memory[i], &known, err);
	}
	if (!rc && !known)
		rc = refuse_awake(job->to.urls[0], 0, 0, err);
	ws_journal_list_free(&records);
	return rc;
}

static int change_memory(struct ctl_job *job, struct request *r, struct ws_err *err)
{
	r->tags = WS_MEMORY_ALL;
	if (job->cfg->tags && ws_memory_parse(job->cfg->tags, &r->tags, err))
		return -1;
	r->decide = choose_memories;
	r->memory = calloc(job->to.n + 1, sizeof *r->memory);
	if (!r->memory)
		return ws_oom(err);
	const int rc = tell(job, r, err);
	free(r->memory);
	return rc;
}

int ctl_sleep(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return change_memory(ctx, &(struct request){ .what = SLEEP, .done = "asleep" }, err);
}

int ctl_wake(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return change_memory(ctx, &(struct request){ .what = WAKE, .done = "awake" }, err);
}
