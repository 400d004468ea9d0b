/* SPDX-License-Identifier: Apache-2.0 */
/* receivers.c - the receivers of a broadcast: one process of this program for each, with --join.
 *
 * NCCL accepts one rank per GPU and identifies GPUs by machine and bus. Each receiver is on the
 * next GPU. With fewer GPUs than ranks, every receiver gets an NCCL_HOSTID of its own, so that NCCL
 * treats it as another machine: then ranks may share a GPU, and use sockets. */
#include "bench_cmd.h"

#include "nccl.h"
#include "run.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int start_receiver(struct bench_job *job, const char *address, const char *host, unsigned i,
                          struct ws_err *err)
{
	const struct bench_config *cfg = job->cfg;
	const bool nccl = cfg->pushing.backend == WS_BACKEND_NCCL;
	const unsigned gpus = job->report.machine.gpus;
	char gpu[16], timeout[32], id[64];
	snprintf(gpu, sizeof gpu, "%u", nccl ? (job->gpu.device + 1 + i) % gpus : 0);
	snprintf(timeout, sizeof timeout, "%" PRId64 "ms",
	         (cfg->timeout_ns - 1) / WS_NS_PER_MS + 1);
	snprintf(id, sizeof id, "wsync-bench-%ld-%u", (long)getpid(), i + 1);
	const char *argv[] = { "/proc/self/exe", "transport", "--quiet", "--join", address,
		               "--host",         host,        "--gpu",   gpu,      "--timeout",
		               timeout,          NULL,        NULL,      NULL };
	if (job->gpu.nccl) {
		argv[11] = "--nccl-lib";
		argv[12] = job->gpu.nccl;
	}
	/* Over gloo a receiver's only error is that this process ended. */
	const int quiet = nccl ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
	const int rc = local_spawn(&job->local, (char *const *)argv,
	                           nccl && job->n_receivers >= gpus ? id : NULL, quiet, err);
	if (quiet >= 0)
		close(quiet);
	return rc;
}

int receivers_start(void *ctx, const char *host, uint16_t port, struct ws_err *err)
{
	struct bench_job *job = ctx;
	char address[300];
	const bool six = strchr(host, ':') != NULL;
	snprintf(address, sizeof address, "%s%s%s:%u", six ? "[" : "", host, six ? "]" : "", port);
	for (unsigned i = 0; i < job->n_receivers; i++)
		if (start_receiver(job, address, host, i, err))
			return -1;
	return 0;
}

int receivers_failed(void *ctx, struct ws_err *err)
{
	struct bench_job *job = ctx;
	return local_failed(&job->local, err);
}

/* ---- the GPU and the NCCL that the options name; exit status 7 if they do not exist ---- */

int bench_find_nccl(struct bench_job *job, const char **out, struct ws_err *err)
{
	const struct pushing *p = &job->cfg->pushing;
	*out = nccl_prepare(p->nccl_lib, p->nccl_from);
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
