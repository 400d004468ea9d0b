/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c - the GPU and the NCCL that the options name: they are there, or it ends with exit
 * status 7. */
#include "bench.h"

#include "run.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

int bench_find_nccl(struct bench_job *job, const char **out, struct ws_err *err)
{
	const struct pushing *p = &job->cfg->pushing;
	*out = pushing_nccl(p);
	if (p->nccl_lib && p->nccl_from)
		return ws_err_set(err, WS_EUSAGE, "either --nccl-lib or --nccl-from, not both");
	if (!p->nccl_from)
		return 0;
	*out = job->nccl_path;
	return ws_bench_find_nccl(p->nccl_from, job->cfg->timeout_ns, &run_cancel, job->nccl_path,
	                          err);
}

int bench_find_gpu(struct bench_job *job, bool nccl, struct ws_err *err)
{
	job->gpu = (struct ws_bench_gpu){ .device = (unsigned)job->cfg->pushing.gpu };
	if (nccl && bench_find_nccl(job, &job->gpu.nccl, err))
		return -1;
	job->report.has_gpu = ws_bench_machine(&job->gpu, nccl, &job->report.machine, err) == 0;
	return job->report.has_gpu ? 0 : -1;
}

void bench_find_driver(char *text, size_t n)
{
	char line[512] = "";
	FILE *f = fopen("/proc/driver/nvidia/version", "re");
	if (f && !fgets(line, sizeof line, f))
		line[0] = 0;
	if (f)
		fclose(f);
	/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build
	 * ..." */
	text[0] = 0;
	char *rest = NULL;
	for (char *word = strtok_r(line, " \t\n", &rest); word;
	     word = strtok_r(NULL, " \t\n", &rest))
		if (strchr("0123456789", *word) && strchr(word, '.')) {
			ws_printable(text, n, word, strlen(word));
			return;
		}
}
