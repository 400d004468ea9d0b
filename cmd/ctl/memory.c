/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - sleep and wake. How that is said depends on the server, so each is asked first who it is. */
#include "ctl.h"
#include "run.h"

#include <stdlib.h>

static int tell(struct ctl_job *job, bool sleep, unsigned memory,
                const struct ws_endpoint_info *infos, struct ws_err *err)
{
	struct ws_endpoint_answer *answers = calloc(job->to.n, sizeof *answers);
	const ws_deadline until = ws_deadline_in(job->cfg->timeout_ns);
	const ws_deadline patience = ws_deadline_in(job->cfg->wait_ns);
	if (!answers)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	const int rc = sleep ? ws_endpoint_sleep(job->http, infos, job->to.urls, job->to.n, memory,
	                                         patience, until, &run_cancel, answers, err)
	                     : ws_endpoint_wake(job->http, infos, job->to.urls, job->to.n, memory,
	                                        until, &run_cancel, answers, err);
	if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)
		ctl_show_answers(job, sleep ? "asleep" : "awake", answers);
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
