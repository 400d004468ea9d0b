/* SPDX-License-Identifier: Apache-2.0 */
/* stages.c - one stage at a time: kernels, load, control, transport. */
#include "bench_cmd.h"
#include "nccl.h"

#include "run.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ws_bench_opts bench_opts(struct bench_job *job)
{
	const int64_t most = job->cfg->most_ns;
	return (struct ws_bench_opts){
		.samples = (unsigned)job->cfg->samples,
		.warmups = (unsigned)job->cfg->warmups,
		.most_ns = most == WS_FOREVER ? 0 :
		           most > 0           ? most :
		                                1,
		.check = job->cfg->check,
		.sink = { .begin = report_open,
		          .row = report_row,
		          .turn = report_turn,
		          .ctx = &job->report },
		.log = &job->ui->log,
		.cancel = &run_cancel,
	};
}

int bench_find_endpoints(struct bench_job *job, struct ws_err *err)
{
	const struct bench_config *cfg = job->cfg;
	if (cfg->common.endpoints.n || cfg->common.pool || cfg->common.registry) {
		if (targets_find(&job->targets, &cfg->common, false, job->ui, err))
			return -1;
		job->urls = job->targets.urls;
		job->n_urls = job->targets.n;
		return 0;
	}
	if (local_start(&job->local, cfg, err))
		return -1;
	job->urls = job->local.urls;
	job->n_urls = job->local.n;
	return 0;
}

int bench_source(const struct bench_job *job, const struct opt_args *args,
                 struct bench_source *out, struct ws_err *err)
{
	*out = (struct bench_source){ .paths = calloc(args->n + 1, sizeof *out->paths) };
	if (!out->paths)
		return ws_oom(err);
	if (job->cfg->model && args->n)
		return ws_err_set(err, WS_EUSAGE, "either a SOURCE or --model, not both");
	if (!job->cfg->model && !args->n)
		return ws_err_set(err, WS_EUSAGE, "a SOURCE or --model is needed");
	for (size_t i = 0; i < args->n; i++)
		out->paths[out->n++] = args->v[i];
	if (job->cfg->model) {
		snprintf(out->synthetic, sizeof out->synthetic, "synthetic:%s", job->cfg->model);
		out->paths[out->n++] = out->synthetic;
	}
	return 0;
}

/* ---- kernels --------------------------------------------------------------------------------- */

int bench_kernels(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	static const char definitions[] =
		"kernels: in memory, on one thread. bytes: each byte read or written, once\n"
		"(memcpy: twice its size). GB/s: bytes / median. Memory is touched and warm.\n"
		"ratio: rate / that of a memcpy timed beside it.\n";
	static const char on_gpu[] =
		"kernels --on gpu: in the GPU's memory, by its clock; a time is that of 4\n"
		"launches / 4. bytes: each byte read or written, once (a copy: twice its size).\n"
		"GB/s: bytes / median. ratio: rate / that of a device copy of the same matrix,\n"
		"timed beside it.\n";
	(void)args;
	struct bench_job *job = ctx;
	const struct ws_bench_opts o = bench_opts(job);
	if (job->cfg->on && bench_find_gpu(job, false, err))
		return -1;
	report_begin(&job->report, job->cfg->on ? on_gpu : definitions);
	return job->cfg->on ? ws_bench_kernels_gpu(&o, &job->gpu, job->cfg->size, err)
	                    : ws_bench_kernels(&o, job->cfg->size, err);
}

/* ---- load ------------------------------------------------------------------------------------ */

int bench_load(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	static const char definitions[] =
		"load: a source read through a buffer in one thread, as a data plane reads it,\n"
		"without opening and planning. GB/s: bytes as sent / median. ratio: rate / that\n"
		"of read(2) of the same files, timed beside it.\n";
	static const char to_gpu[] =
		"load --to gpu: the source through a buffer (ratio: to read(2) of the same\n"
		"files); a copy of as many bytes from pinned memory; the source into GPU\n"
		"memory, as a push brings it there (ratio: to that copy). GB/s: bytes as sent /\n"
		"median.\n";
	struct bench_job *job = ctx;
	const struct ws_transform_opts transform = transforming_opts(&job->cfg->transforming);
	const struct ws_bench_opts o = bench_opts(job);
	struct bench_source source;
	struct ws_bench_load load = { .cold = job->cfg->cold,
		                      .most = job->cfg->most,
		                      .transform =
		                              ws_transform_wanted(&transform) ? &transform : NULL,
		                      .to = job->cfg->to ? &job->gpu : NULL,
		                      .transform_on = job->cfg->pushing.transform_on };
	/* Large buckets, because a push has few borders between buckets. */
	load.bucket_size = load.to && !load.most ? UINT64_C(256) << 20 : 0;
	int rc = bench_source(job, args, &source, err);
	load.paths = source.paths;
	load.n_paths = source.n;
	if (!rc && load.to)
		rc = bench_find_gpu(job, false, err);
	if (!rc) {
		report_begin(&job->report, load.to ? to_gpu : definitions);
		rc = ws_bench_load(&o, &load, err);
	}
	free(source.paths);
	return rc;
}

/* ---- control --------------------------------------------------------------------------------- */

int bench_control(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	static const char definitions[] =
		"control: GET /model_info, which changes nothing, from the request to the end\n"
		"of its answer: to the first endpoint on a new connection and on a kept one,\n"
		"and to all endpoints at once. ratio: below 1 all are slower than one.\n";
	(void)args;
	struct bench_job *job = ctx;
	const struct ws_bench_opts o = bench_opts(job);
	if (bench_find_endpoints(job, err))
		return -1;
	report_begin(&job->report, definitions);
	return ws_bench_control(&o,
	                        &(struct ws_bench_control){ .urls = job->urls, .n = job->n_urls,
	                                                    .api_key = job->targets.api_key,
	                                                    .ca_file = job->targets.ca_file,
	                                                    .timeout_ns = job->cfg->timeout_ns },
	                        err);
}

/* ---- transport ------------------------------------------------------------------------------- */

/* "gpu7:29500", "[::1]:29500" */
static int split_address(const char *text, char *host, size_t n, uint16_t *port, struct ws_err *err)
{
	const char *colon = strrchr(text, ':');
	const size_t len = colon ? (size_t)(colon - text) : 0;
	const bool brackets = len > 2 && text[0] == '[' && text[len - 1] == ']';
	char *end = NULL;
	const unsigned long number = colon ? strtoul(colon + 1, &end, 10) : 0;
	if (!len || len >= n || colon[1] < '0' || colon[1] > '9' || *end || number > 65535)
		return ws_err_set(err, WS_EUSAGE, "'%s' must be like gpu7:29500", text);
	snprintf(host, n, "%.*s", (int)(brackets ? len - 2 : len), brackets ? text + 1 : text);
	*port = (uint16_t)number;
	return 0;
}

enum { NCCL_COUNT = 8 }; /* several, because the first bucket in a row is not read ahead */

static int take_part(struct bench_job *job, struct ws_err *err)
{
	char host[256];
	uint16_t port;
	if (split_address(job->cfg->join, host, sizeof host, &port, err))
		return -1;
	ui_begin(job->ui);
	struct ws_bench_receive r = {
		.master = host,
		.port = port,
		.host = job->cfg->host,
		.timeout_ns = job->cfg->timeout_ns,
		.gpu = { .device = (unsigned)job->cfg->pushing.gpu },
		.log = &job->ui->log,
		.cancel = &run_cancel,
	};
	if (bench_find_nccl(job, &r.gpu.nccl, err))
		return -1;
	nccl_as_sglang();
	if (ws_bench_receive(&r, err))
		return -1;
	ui_say(job->ui, "received all of it\n");
	return 0;
}

enum { LEAST_SIZE = 1 << 20 };

static size_t choose_sizes(const struct bench_config *cfg, uint64_t *sizes, size_t most)
{
	const uint64_t usual = cfg->greatest_size < LEAST_SIZE ? cfg->greatest_size : LEAST_SIZE;
	size_t n = 0;
	for (uint64_t size = cfg->least_size ? cfg->least_size : usual;
	     size <= cfg->greatest_size && n < most; size *= cfg->factor) {
		sizes[n++] = size;
		if (size > UINT64_MAX / cfg->factor)
			break;
	}
	return n;
}

static int refuse_sizes(const struct bench_config *cfg, struct ws_err *err)
{
	char least[32], greatest[32];
	ws_format_size(least, sizeof least, cfg->least_size);
	ws_format_size(greatest, sizeof greatest, cfg->greatest_size);
	return cfg->greatest_size ?
	               ws_err_set(err, WS_EUSAGE, "--min-size %s is more than --max-size %s", least,
	                          greatest) :
	               ws_err_set(err, WS_EUSAGE, "--max-size: a bucket has bytes");
}

int bench_transport(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	static const char definitions[] =
		"transport: a broadcast of one bucket over gloo, until every receiver has\n"
		"reported its last byte; of several in a row (x N) the time of all / N.\n"
		"Receivers discard it. GB/s: bucket bytes / median (nccl-tests: algbw). ratio:\n"
		"rate / that of one TCP connection on the loopback interface that sends the\n"
		"same bytes by sendfile, if all receivers are local.\n";
	static const char over_nccl[] =
		"transport --backend nccl: --count broadcasts of one bucket in a row by the\n"
		"data plane of wsync-push, from the page cache through pinned memory, until\n"
		"every receiver has reported its last byte; a time is that / --count. GB/s:\n"
		"bucket bytes / median (nccl-tests: algbw). ratio: rate / that of as many\n"
		"ncclBroadcast from GPU memory to the same receivers. Local receivers use the\n"
		"next GPUs; ranks that share a GPU use sockets.\n";
	(void)args;
	struct bench_job *job = ctx;
	const struct bench_config *cfg = job->cfg;
	const struct ws_bench_opts o = bench_opts(job);
	const bool nccl = cfg->pushing.backend == WS_BACKEND_NCCL;
	uint64_t sizes[64];
	char host[256];
	if (cfg->join)
		return take_part(job, err);
	struct ws_bench_transport t = { .receivers = (unsigned)cfg->receivers,
		                        .remote = (unsigned)cfg->remote,
		                        .sizes = sizes,
		                        .n_sizes = choose_sizes(cfg, sizes, 64),
		                        .backend = cfg->pushing.backend,
		                        .start = receivers_start,
		                        .failed = receivers_failed,
		                        .ctx = job,
		                        .count = cfg->count ? (unsigned)cfg->count :
		                                 nccl       ? NCCL_COUNT :
		                                              1,
		                        .total = cfg->total,
		                        .timeout_ns = cfg->timeout_ns };
	if (t.remote && !cfg->receivers)
		t.receivers = 0;
	else if (!t.receivers)
		t.receivers = 1;
	if (cfg->listen) {
		if (split_address(cfg->listen, host, sizeof host, &t.port, err))
			return -1;
		t.host = host;
	}
	if (t.remote && !cfg->listen)
		return ws_err_set(err, WS_EUSAGE,
		                  "--remote: needs --listen ADDRESS:PORT, where the receivers "
		                  "join");
	if (!t.n_sizes)
		return refuse_sizes(cfg, err);
	if (nccl && bench_find_gpu(job, true, err))
		return -1;
	if (nccl)
		nccl_as_sglang();
	t.gpu = job->gpu;
	job->n_receivers = t.receivers;
	report_begin(&job->report, nccl ? over_nccl : definitions);
	return ws_bench_transport(&o, &t, err);
}
