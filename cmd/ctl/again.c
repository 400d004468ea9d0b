/* SPDX-License-Identifier: Apache-2.0 */
/* again.c - repeats a recorded push: runs wsync-push with the options that it recorded itself,
 * because only wsync-push can parse them. No shell is involved. */
#include "ctl.h"

#include "child.h"
#include "run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { FIXED_WORDS = 16 };
static const int64_t GRACE_NS = 10 * WS_NS_PER_S; /* for the push to end after its deadline */

struct line {
	char program[4096];
	char **words; /* owned, NULL-terminated */
	size_t n;
	bool failed;
};

static void add(struct line *l, const char *option, const char *value)
{
	char *word = NULL;
	if (l->failed || asprintf(&word, "%s%s", option, value) < 0)
		l->failed = true;
	else
		l->words[l->n++] = word;
}

/* Comes after the recorded options, because the last value of an option counts. */
static void add_timeout(struct line *l, ws_deadline until)
{
	char ms[32];
	if (until == WS_FOREVER)
		return;
	snprintf(ms, sizeof ms, "%" PRId64 "ms", ws_deadline_left(until) / WS_NS_PER_MS + 1);
	add(l, "--timeout=", ms);
}

/* Makes the path absolute: the push runs in another directory. Omits a file that does not exist. */
static void add_path(struct line *l, const char *option, const char *path)
{
	char *real = path ? realpath(path, NULL) : NULL;
	if (real)
		add(l, option, real);
	free(real);
}

static int make_line(struct line *l, const struct ctl_job *job, const struct ws_journal_record *rec,
                     const char *const *urls, size_t n, struct ws_err *err)
{
	const struct ctl_config *cfg = job->cfg;
	*l = (struct line){ 0 };
	if (run_beside("wsync-push", l->program, sizeof l->program))
		return ws_err_errno(err, "find wsync-push");
	l->words = calloc(rec->n_args + rec->n_sources + n + FIXED_WORDS, sizeof *l->words);
	if (!l->words)
		return ws_oom(err);
	add(l, "wsync-push", "");
	/* What a completion left is sent and loaded at once. */
	const bool completed = rec->staged.stage >= WS_STAGE_DONE;
	for (size_t i = 0; i < rec->n_args; i++)
		if (!completed || strcmp(rec->args[i], "--stage") != 0)
			add(l, rec->args[i], "");
	for (size_t i = 0; i < n; i++)
		add(l, "--endpoint=", urls[i]);
	if (completed || !rec->staged.stage)
		add(l, "--asleep=", "recorded"); /* as the records now say for each endpoint */
	if (*rec->weight_version)
		add(l, "--weight-version=", rec->weight_version);
	add_path(l, "--state-dir=", cfg->state_dir);
	add_path(l, "--api-key-file=", cfg->common.api_key_file);
	add_path(l, "--admin-api-key-file=", cfg->common.admin_api_key_file);
	add_path(l, "--ca-file=", cfg->common.ca_file);
	add_timeout(l, job->until);
	if (job->ui->json || job->ui->quiet)
		add(l, "--quiet", "");
	add(l, "--", "");
	for (size_t i = 0; i < rec->n_sources; i++)
		add(l, rec->sources[i], "");
	return l->failed ? ws_oom(err) : 0;
}

static void free_line(struct line *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->words[i]);
	free(l->words);
}

int again_run(const struct ctl_job *job, const struct ws_journal_record *rec,
              const char *const *urls, size_t n, int *status, struct ws_err *err)
{
	struct line l = { 0 };
	struct child_end end = { 0 };
	if (!rec->directory || !rec->n_sources)
		return ws_err_set(err, WS_EINPUT,
		                  "process %lld was no wsync-push: it cannot be repeated from here",
		                  (long long)rec->process.pid);
	if (ws_journal_check_source(rec, err))
		return -1;
	int rc = make_line(&l, job, rec, urls, n, err);
	if (!rc) /* it ends by itself at its deadline, within seconds */
		rc = child_run(&(struct child){ .program = l.program, .words = l.words,
		                                .directory = rec->directory, .mute = job->ui->json,
		                                .until = job->until, .grace_ns = GRACE_NS },
		               &end, err);
	const int how = end.status;
	free_line(&l);
	if (rc)
		return -1;
	if (WIFSIGNALED(how) && ws_cancelled(&run_cancel))
		return ws_err_set(err, WS_ECANCELLED, "cancelled");
	if (WIFSIGNALED(how) && ws_deadline_passed(job->until))
		return ws_err_set(err, WS_ETIMEOUT,
		                  "wsync-push did not end at its deadline, and was killed");
	if (WIFSIGNALED(how))
		return ws_err_set(err, WS_ESYSTEM, "wsync-push was killed by signal %d",
		                  WTERMSIG(how));
	*status = WEXITSTATUS(how);
	return 0;
}
