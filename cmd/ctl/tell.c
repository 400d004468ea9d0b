/* SPDX-License-Identifier: Apache-2.0 */
/* tell.c - calls that are answered with yes or no, and the row that each endpoint's answer
 * makes. */
#include "ctl.h"
#include "record.h"
#include "run.h"

#include "wsync/push.h"
#include "wsync/tool/str.h"

#include <stdlib.h>

void ctl_put_failure(struct ws_jw *w, const struct ws_err *err)
{
	ws_jw_str(w, "code", ws_code_name(err->code));
	ws_jw_str(w, "message", ui_words(err->msg));
	ui_json_words(w, "hint", err->hint);
}

static void put_answer(struct ctl_job *job, const char *url, const struct ws_endpoint_answer *a)
{
	struct ws_jw *w = ui_line(job->ui, "endpoint");
	ws_jw_str(w, "url", url);
	ws_jw_bool(w, "ok", !a->err.code);
	if (a->err.code)
		ctl_put_failure(w, &a->err);
	else
		ws_jw_str(w, "message", *a->message ? a->message : NULL);
	if (job->records)
		record_put_pause(w, record_of_pause(job->records, url));
	ws_jw_int(w, "ns", a->ns);
	ui_line_end(job->ui);
}

void ctl_print_unless_said(struct ctl_job *job, const struct table *t, enum ws_code first)
{
	if (job->to.n > 1 || first == WS_OK)
		table_print(t, job->ui);
}

void ctl_show_answers(struct ctl_job *job, const char *done,
                      const struct ws_endpoint_answer *answers)
{
	struct table t = { .n_columns = 4 };
	for (size_t i = 0; i < job->to.n; i++) {
		const struct ws_endpoint_answer *a = &answers[i];
		char took[32];
		put_answer(job, job->to.urls[i], a);
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

enum call { HEALTH, PAUSE, RESUME, FLUSH, SET_VERSION };

static int call(struct ctl_job *job, enum call what, const char *version,
                struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const struct ctl_config *cfg = job->cfg;
	const ws_deadline patience = ws_deadline_in(cfg->wait_ns);
	struct ws_call to = targets_call(&job->to, cfg->timeout_ns);
	switch (what) {
	case HEALTH:
		return ws_endpoint_health(&to, answers, err);
	case PAUSE:
		return ws_endpoint_pause(&to, (enum ws_pause_mode)cfg->mode, answers, err);
	case RESUME:
		return ws_endpoint_resume(&to, answers, err);
	case FLUSH:
		to.until = cfg->wait_ns > cfg->timeout_ns ? patience : to.until;
		return ws_endpoint_flush(&to, patience, answers, err);
	case SET_VERSION:
		return ws_endpoint_set_version(&to, version, answers, err);
	}
	return 0;
}

static int tell(struct ctl_job *job, enum call what, const char *done, const char *version,
                struct ws_err *err)
{
	struct ws_endpoint_answer *answers = calloc(job->to.n, sizeof *answers);
	if (!answers)
		return ws_oom(err);
	const int rc = call(job, what, version, answers, err);
	if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)
		ctl_show_answers(job, done, answers);
	free(answers);
	return rc;
}

/* Healthy servers that answer nobody: no server says that it is paused, but what a push has written
 * down may. */
int ctl_health(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct ctl_job *job = ctx;
	struct ws_journal_list records;
	(void)args;
	record_read(job, &records);
	job->records = &records;
	const int rc = tell(job, HEALTH, "healthy", NULL, err);
	job->records = NULL;
	ws_journal_list_free(&records);
	return rc;
}

/* A server that knows no modes ignores the word and aborts, which is no way to find that out. */
static int check_mode(struct ctl_job *job, struct ws_err *err)
{
	const enum ws_pause_mode mode = (enum ws_pause_mode)job->cfg->mode;
	if (mode == WS_PAUSE_ABORT)
		return 0;
	struct ws_endpoint_info *infos = ctl_ask(job, err);
	const char *why = NULL;
	for (size_t i = 0; infos && !why && i < job->to.n; i++) {
		why = ws_push_refuses(&infos[i].can, mode, WS_FLUSH_NEVER, true, false, NULL);
		if (!why)
			continue;
		ws_err_set(err, WS_EREFUSED, "%s: %s", job->to.urls[i], why);
		ws_err_hint(err, "use --mode abort");
		ws_err_where(err, NULL, job->to.urls[i]);
	}
	const bool asked = infos != NULL;
	free(infos);
	return asked && !why ? 0 : -1;
}

int ctl_pause(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return check_mode(ctx, err) ? -1 : tell(ctx, PAUSE, "paused", NULL, err);
}

int ctl_resume(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return tell(ctx, RESUME, "resumed", NULL, err);
}

int ctl_flush(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return tell(ctx, FLUSH, "flushed", NULL, err);
}

int ctl_set_version(struct ctl_job *job, const char *version, struct ws_err *err)
{
	return ws_endpoint_check_version(version, err) ||
	       tell(job, SET_VERSION, "labelled", version, err) ? -1 : 0;
}
