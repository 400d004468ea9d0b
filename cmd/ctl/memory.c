/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - sleep and wake. How that is said depends on the server, so each
 * is asked first who it is. */
#include "ctl.h"
#include "run.h"

#include "wsync/tool/journal.h"

#include <stdlib.h>

/* Records of pushes that have left something at these endpoints must not be outdated by it. */
static void note(const struct ctl_job *job, bool sleep, unsigned memory,
                 const struct ws_endpoint_answer *answers)
{
	struct ws_buf dir;
	struct ws_err none = WS_ERR_INIT;
	ws_buf_init(&dir, 4095);
	if (run_state_dir(job->cfg->state_dir, &dir, &none) == 0)
		for (size_t i = 0; i < job->to.n; i++)
			if (answers[i].err.code == WS_OK)
				ws_journal_note_memory(ws_buf_str(&dir), job->to.urls[i], memory,
				                       sleep);
	ws_buf_free(&dir);
}

static int tell(struct ctl_job *job, bool sleep, unsigned memory,
                const struct ws_endpoint_info *infos, struct ws_err *err)
{
	struct ws_endpoint_answer *answers = calloc(job->to.n, sizeof *answers);
	const ws_deadline patience = ws_deadline_in(job->cfg->wait_ns);
	if (!answers)
		return ws_oom(err);
	const struct ws_call to = targets_call(&job->to, job->cfg->timeout_ns);
	const int rc = sleep ? ws_endpoint_sleep(&to, infos, memory, patience, answers, err) :
	                       ws_endpoint_wake(&to, infos, memory, answers, err);
	if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)
		ctl_show_answers(job, sleep ? "asleep" : "awake", answers);
	note(job, sleep, memory, answers);
	free(answers);
	return rc;
}

static int run(struct ctl_job *job, bool sleep, struct ws_err *err)
{
	unsigned memory = WS_MEMORY_ALL;
	if (job->cfg->tags && ws_memory_parse(job->cfg->tags, &memory, err))
		return -1;
	struct ws_endpoint_info *infos = ctl_ask(job, err);
	const int rc = infos ? tell(job, sleep, memory, infos, err) : -1;
	free(infos);
	return rc;
}

int ctl_sleep(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return run(ctx, true, err);
}

int ctl_wake(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return run(ctx, false, err);
}
