/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - sleep and wake. How that is said depends on the server, so each is asked first who it is. */
#include "ctl.h"
#include "run.h"

#include <stdlib.h>

static int tell(struct ctl_job *job, bool sleep, struct ws_endpoint_info *infos, struct ws_err *errs,
                struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const struct ctl_config *cfg = job->cfg;
	const ws_deadline until = ws_deadline_in(cfg->timeout_ns);
	const ws_deadline patience = ws_deadline_in(cfg->wait_ns);
	unsigned memory = WS_MEMORY_ALL;
	if ((cfg->tags && ws_memory_parse(cfg->tags, &memory, err)) ||
	    ws_endpoint_probe_all(job->http, job->to.urls, job->to.n, until, &run_cancel, infos, errs,
	                          err))
		return -1;
	for (size_t i = 0; i < job->to.n; i++)
		ws_endpoint_assume(&infos[i], (enum ws_lineage)cfg->lineage);
	const int rc = sleep ? ws_endpoint_sleep(job->http, infos, job->to.urls, job->to.n, memory,
	                                         patience, until, &run_cancel, answers, err)
	                     : ws_endpoint_wake(job->http, infos, job->to.urls, job->to.n, memory,
	                                        until, &run_cancel, answers, err);
	if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)
		ctl_show_answers(job, sleep ? "asleep" : "awake", answers);
	return rc;
}

static int run(struct ctl_job *job, bool sleep, struct ws_err *err)
{
	struct ws_endpoint_info *infos = calloc(job->to.n, sizeof *infos);
	struct ws_err *errs = calloc(job->to.n, sizeof *errs);
	struct ws_endpoint_answer *answers = calloc(job->to.n, sizeof *answers);
	const int rc = infos && errs && answers ? tell(job, sleep, infos, errs, answers, err)
	                                        : ws_err_set(err, WS_ESYSTEM, "out of memory");
	free(infos);
	free(errs);
	free(answers);
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
