/* SPDX-License-Identifier: Apache-2.0 */
/* caches.c - does --between COMMAND clear the prefix caches of the endpoints? */
#include "verify_cmd.h"

#include "child.h"
#include "run.h"

#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/wait.h>

static const int64_t COMMAND_NS = 600 * WS_NS_PER_S;

struct shown {
	struct verify_job job; /* first, because asking.c casts ctx to it */
	const struct ws_ask_opts *asks;
};

/* The caller's command failed: that says nothing about the caches. */
static int run_command(void *ctx, struct ws_err *err)
{
	const struct shown *s = ctx;
	const struct verify_config *cfg = s->job.cfg;
	const int64_t limit = cfg->timeout_ns > 0 ? cfg->timeout_ns : COMMAND_NS;
	struct child_end how = { 0 };
	char time[32];
	if (child_run_shell(cfg->between, s->asks->endpoints, s->asks->n_endpoints, NULL,
	                    ws_deadline_in(limit), &how, err))
		return -1;
	if (how.late) {
		ws_err_set(err, WS_ETIMEOUT, "--between: the command did not end within %s",
		           ws_format_duration(time, sizeof time, limit));
		return ws_err_hint(err, "{timeout_ns} waits longer");
	}
	if (WIFSIGNALED(how.status))
		return ws_err_set(err, WS_EUSAGE, "--between: the command was ended by signal %d",
		                  WTERMSIG(how.status));
	if (WEXITSTATUS(how.status))
		return ws_err_set(err, WS_EUSAGE, "--between: the command failed: exit status %d",
		                  WEXITSTATUS(how.status));
	return 0;
}

static void put_count(struct ws_jw *w, const char *key, int64_t n)
{
	if (n < 0)
		ws_jw_null(w, key);
	else
		ws_jw_int(w, key, n);
}

static void take_checked(void *ctx, const struct ws_cache_checked *c)
{
	static const char *const words[] = { "cleared", "cached", "unknown" };
	struct ui *ui = ((const struct shown *)ctx)->job.ui;
	struct ws_jw *w = ui_line(ui, "caches");
	ws_jw_str(w, "url", c->url);
	ws_jw_str(w, "verdict", words[c->verdict]);
	put_count(w, "prompt_tokens", c->prompt);
	put_count(w, "cached_before", c->before);
	put_count(w, "cached_after", c->after);
	ws_jw_str(w, "reason", *c->why ? c->why : NULL);
	ui_line_end(ui);
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, c->verdict == WS_CACHED_NONE ? UI_GOOD :
	            c->verdict == WS_CACHED_SOME ? UI_BAD : UI_WARN, words[c->verdict]);
	if (c->verdict == WS_CACHED_UNKNOWN)
		printf("%s: %s\n", ui_text(c->url), c->why);
	else
		printf("%s: of %" PRId64 " tokens, %" PRId64 " cached before and %" PRId64
		       " after\n", ui_text(c->url), c->prompt, c->before, c->after);
}

int verify_caches(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct shown s = { .job = *(const struct verify_job *)ctx };
	struct verify_asking asking = { 0 };
	struct ws_verify_caches_opts opts = { .tokens = (unsigned)s.job.cfg->tokens,
		                              .between = run_command, .checked = take_checked };
	int rc = verify_asking_open(&s.job, args, 1, &asking, &opts.ask, err);
	opts.ask.ctx = &s;
	opts.ask.asked = NULL; /* three rows of one prompt tell nothing more */
	s.asks = &opts.ask;
	if (!rc && !s.job.cfg->between)
		rc = ws_err_set(err, WS_EUSAGE, "caches: --between COMMAND is needed");
	if (!rc)
		rc = ws_verify_caches(&opts, err);
	verify_asking_close(&asking, s.job.ui, err);
	return rc;
}
