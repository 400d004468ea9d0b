/* SPDX-License-Identifier: Apache-2.0 */
/* receivers.c - the receivers of a broadcast over NCCL: this program once
 * more for each, with --join.
 *
 * NCCL takes one rank of a GPU and tells GPUs apart by machine and bus. Each receiver is on the
 * next GPU; where there are fewer of them than ranks, every receiver is told to be on a machine
 * of its own (NCCL_HOSTID), which its libnccl reads when it joins: then ranks may share a GPU,
 * and speak through sockets. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int start_one(struct bench_job *job, const char *address, const char *host, unsigned i,
                     struct ws_err *err)
{
	const struct bench_config *cfg = job->cfg;
	const unsigned gpus = job->report.machine.gpus;
	char gpu[16], timeout[32], id[64];
	snprintf(gpu, sizeof gpu, "%u", (job->gpu.device + 1 + i) % gpus);
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
	return local_spawn(&job->local, (char *const *)argv, job->n_receivers >= gpus ? id : NULL,
	                   -1, err);
}

int receivers_start(void *ctx, const char *host, uint16_t port, struct ws_err *err)
{
	struct bench_job *job = ctx;
	char address[300];
	const bool six = strchr(host, ':') != NULL;
	snprintf(address, sizeof address, "%s%s%s:%u", six ? "[" : "", host, six ? "]" : "", port);
	for (unsigned i = 0; i < job->n_receivers; i++)
		if (start_one(job, address, host, i, err))
			return -1;
	return 0;
}

int receivers_failed(void *ctx, struct ws_err *err)
{
	struct bench_job *job = ctx;
	return local_failed(&job->local, err);
}
