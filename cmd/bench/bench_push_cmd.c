/* SPDX-License-Identifier: Apache-2.0 */
/* bench_push_cmd.c - measures whole pushes as the options say, and reports their bottleneck. */
#include "bench_cmd.h"

#include "run.h"

#include "wsync/tool/str.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char push_definitions[] =
	"push: whole pushes, whose phases add up to the total. transfer is sending;\n"
	"apply is waiting for answers after the last byte of each bucket; verify is\n"
	"what --verify checks. GB/s: checkpoint bytes / median. source: reading and\n"
	"making the same tensors alone (to a GPU, if they are sent from one), in turns\n"
	"with the pushes. ratio of transfer: its rate / that of the source. overlap:\n"
	"source / (transfer + apply); 1: all else hides behind it.\n";

int whole_open(struct whole *w, struct bench_job *job, const struct opt_args *args,
               struct ws_err *err)
{
	const struct bench_config *cfg = job->cfg;
	w->job = job;
	const bool nccl = cfg->pushing.backend == WS_BACKEND_NCCL,
		   ipc = cfg->pushing.backend == WS_BACKEND_IPC;
	/* Find the GPU first: without it, local endpoints cannot report why they do not start. */
	if (bench_source(job, args, &w->source, err) ||
	    ((nccl || ipc) && bench_find_gpu(job, nccl, err)) || bench_find_endpoints(job, err))
		return -1;
	w->transform = transforming_opts(&cfg->transforming);
	w->push = pushing_opts(&cfg->pushing, &cfg->common, &(struct naming){ 0 }, &w->transform,
	                       &job->targets, job->ui);
	w->push.endpoints = job->urls;
	w->push.n_endpoints = job->n_urls;
	if (nccl) {
		w->push.nccl_library = job->gpu.nccl;
		w->push.nccl_from = NULL; /* bench_find_gpu has found its NCCL */
	}
	/* Local endpoints need no push records. */
	return job->local.n ? 0 :
	                      pushing_find_state(&cfg->pushing, w->state, &w->push, job->ui, err);
}

static int run_whole(struct whole *w, struct ws_bench_bound *bound, struct ws_err *err)
{
	const struct ws_bench_opts o = bench_opts(w->job);
	const struct ws_bench_push b = { .push = &w->push, .paths = w->source.paths,
		                         .n_paths = w->source.n,
		                         .alone = w->job->cfg->alone,
		                         .keep = w->job->cfg->keep_group };
	return ws_bench_push(&o, &b, bound, err);
}

static void put_bound(struct bench_job *job, const struct ws_bench_bound *b)
{
	struct ws_jw *w = ui_line(job->ui, "bound");
	ws_jw_str(w, "bound", b->bound);
	ws_jw_int(w, "total_ns", b->total_ns);
	ws_jw_int(w, "supply_ns", b->supply_ns);
	ws_jw_int(w, "together_ns", b->together_ns);
	ws_jw_double(w, "overlap", b->overlap);
	ws_jw_uint(w, "bytes", b->bytes);
	ws_jw_uint(w, "wire_bytes", b->wire_bytes);
	ws_jw_uint(w, "buckets", b->buckets);
	ui_line_end(job->ui);
}

static const char *explain(const char *bound)
{
	static const struct { const char *bound, *text; } all[] = {
		{ "source", "the source: reading and making tensors" },
		{ "wire", "the wire: sending" },
		{ "apply", "apply: servers load what came" },
		{ "verify", "verify: checking what came" },
		{ "control", "control: requests, and forming the group" },
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (strcmp(all[i].bound, bound) == 0)
			return all[i].text;
	return bound;
}

static void say_bound(struct bench_job *job, const struct ws_bench_bound *b)
{
	char total[32], speed[32], wire[32], source[32], together[32];
	put_bound(job, b);
	if (job->cfg->csv)
		return;
	ui_say(job->ui, "a job takes %s, %s: %zu bucket%s, %s on the wire to all receivers\n",
	       ws_format_duration(total, sizeof total, b->total_ns),
	       ws_format_rate(speed, sizeof speed, b->bytes, b->total_ns), b->buckets,
	       b->buckets == 1 ? "" : "s", ws_format_size(wire, sizeof wire, b->wire_bytes));
	if (b->supply_ns)
		ui_say(job->ui, "source alone %s, transfer and apply %s: overlap %.2f\n",
		       ws_format_duration(source, sizeof source, b->supply_ns),
		       ws_format_duration(together, sizeof together, b->together_ns), b->overlap);
	ui_say(job->ui, "bound by %s\n", explain(b->bound));
}

static const char staged_definitions[] =
	"staged: the longest pause of any endpoint, in turns. update: in a whole push;\n"
	"complete: while it loads what was staged before. stage: duration of sending for\n"
	"that, while no server is paused. ratio: pause of update / pause of complete.\n";

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

/* Records of local endpoints have a directory of their own: these end with this program. */
static int bench_staged(struct whole *w, struct ws_err *err)
{
	const struct ws_bench_opts o = bench_opts(w->job);
	const struct ws_bench_push b = { .push = &w->push, .paths = w->source.paths,
		                         .n_paths = w->source.n };
	const char *tmp = getenv("TMPDIR");
	if (w->push.verify == WS_VERIFY_HASH)
		return ws_err_set(err, WS_EUSAGE, "--stage measures pauses without --verify hash");
	if (w->job->local.n) {
		snprintf(w->state, sizeof w->state, "%s/wsync-bench.XXXXXX",
		         tmp && *tmp ? tmp : "/tmp");
		if (!mkdtemp(w->state))
			return ws_err_errno(err, "create %s", w->state);
		w->push.state_dir = w->state;
	}
	report_begin(&w->job->report, staged_definitions);
	const int rc = ws_bench_staged(&o, &b, err);
	if (w->job->local.n)
		nftw(w->state, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	return rc;
}

int bench_push(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct bench_job *job = ctx;
	struct whole w = { .job = job };
	struct ws_bench_bound bound = { 0 };
	int rc = whole_open(&w, job, args, err);
	if (!rc && job->cfg->stage) {
		rc = bench_staged(&w, err);
	} else if (!rc) {
		report_begin(&job->report, push_definitions);
		rc = run_whole(&w, &bound, err);
	}
	if (bound.bound) /* after an interruption, of the pushes so far */
		say_bound(job, &bound);
	free(w.source.paths);
	return rc;
}
