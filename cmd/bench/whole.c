/* SPDX-License-Identifier: Apache-2.0 */
/* whole.c - whole pushes: one way of it, or several to find the best. */
#include "bench.h"

#include "run.h"

#include "wsync/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const push_definitions[] = {
	"push: whole jobs as wsync-push makes them; every nanosecond belongs to one phase, and they add up to the",
	"total. transfer is sending, apply is waiting for the servers' answers after the last byte, verify is what",
	"--verify asks for. rate is the checkpoint's bytes / median. In turns with each job its parts alone: the",
	"source, which is reading and making the same tensors (to a GPU, where they are sent from one); the wire, which",
	"is transfer and apply of the same plan with all bytes made before, in memory. efficiency is the longer part",
	"/ (transfer + apply): 1 where the other hides behind it wholly. ratio of transfer: its rate over that of its",
	"source alone.", NULL
};

struct whole {
	struct bench_job *job;
	struct ws_push_opts push;
	struct ws_transform_opts transform;
	const char **paths;
	size_t n_paths;
	char synthetic[256], state[PUSHING_PATH];
};

static int open_whole(struct whole *w, struct bench_job *job, const struct opt_args *args, struct ws_err *err)
{
	const struct bench_config *cfg = job->cfg;
	w->job = job;
	w->paths = calloc(args->n + 1, sizeof *w->paths);
	if (!w->paths)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	const bool nccl = cfg->pushing.backend == WS_BACKEND_NCCL, ipc = cfg->pushing.backend == WS_BACKEND_IPC;
	/* The GPU first: without one, endpoints of our own could not tell why they do not start. */
	if (bench_source(job, args, w->paths, &w->n_paths, w->synthetic, sizeof w->synthetic, err) ||
	    ((nccl || ipc) && bench_find_gpu(job, nccl, err)) || bench_find_endpoints(job, err))
		return -1;
	w->transform = transforming_opts(&cfg->transforming);
	w->push = (struct ws_push_opts){
		.endpoints = job->urls, .n_endpoints = job->n_urls, .verify = cfg->verify,
		.transform = &w->transform, .api_key = job->targets.api_key,
		.ca_file = job->targets.ca_file, .connect_ns = cfg->connect_ns,
		.log = &job->ui->log, .cancel = &run_cancel,
	};
	pushing_apply(&cfg->pushing, &w->push);
	if (nccl) {
		w->push.nccl_library = job->gpu.nccl;
		w->push.nccl_from = NULL; /* has been asked */
	}
	/* Endpoints of our own need no record of what became of them. */
	return job->local.n ? 0 : pushing_find_state(&cfg->pushing, w->state, &w->push, job->ui, err);
}

static int run_whole(struct whole *w, bool alone, struct ws_bench_bound *bound, struct ws_err *err)
{
	const struct ws_bench_opts o = bench_opts(w->job);
	const struct ws_bench_push b = { .push = &w->push, .paths = w->paths, .n_paths = w->n_paths,
		                         .alone = alone };
	return ws_bench_push(&o, &b, w->job->cfg->keep_group, bound, err);
}

static void say_overlap(struct bench_job *job, const struct ws_bench_bound *b)
{
	char source[32], wire[32], together[32];
	ws_format_duration(together, sizeof together, b->together_ns);
	ws_format_duration(source, sizeof source, b->supply_ns);
	if (b->wire_ns)
		ui_say(job->ui, "overlap: source alone %s, wire alone %s, together %s: efficiency %.2f (%.2f..%.2f)\n",
		       source, ws_format_duration(wire, sizeof wire, b->wire_ns), together, b->efficiency.median,
		       b->efficiency.min, b->efficiency.max);
	else if (b->supply_ns)
		ui_say(job->ui, "overlap: source alone %s, together %s; the wire alone was not measured: %s\n", source,
		       together, b->why_no_wire);
}

static void say_bound(struct bench_job *job, const struct ws_bench_bound *b)
{
	char total[32], speed[32], wire[32];
	struct ws_jw *w = ui_line(job->ui, "bound");
	if (w) {
		ws_jw_str(w, "bound", b->bound);
		ws_jw_int(w, "total_ns", b->total_ns);
		ws_jw_int(w, "supply_ns", b->supply_ns);
		ws_jw_int(w, "wire_ns", b->wire_ns);
		ws_jw_str(w, "why_no_wire", b->why_no_wire);
		ws_jw_int(w, "together_ns", b->together_ns);
		ws_jw_double(w, "overlap", b->overlap);
		ws_jw_double(w, "efficiency", b->efficiency.median);
		ws_jw_double(w, "efficiency_min", b->efficiency.min);
		ws_jw_double(w, "efficiency_max", b->efficiency.max);
		ws_jw_uint(w, "bytes", b->bytes);
		ws_jw_uint(w, "wire_bytes", b->wire_bytes);
		ws_jw_uint(w, "buckets", b->buckets);
		ui_line_end(job->ui);
	}
	if (job->cfg->csv)
		return;
	ui_say(job->ui, "bound by the %s: %s for %zu bucket%s, %s in all, %s on the wire", b->bound,
	       ws_format_duration(total, sizeof total, b->total_ns), b->buckets, b->buckets == 1 ? "" : "s",
	       ws_format_rate(speed, sizeof speed, b->bytes, b->total_ns),
	       ws_format_size(wire, sizeof wire, b->wire_bytes));
	ui_say(job->ui, "\n");
	say_overlap(job, b);
}

int bench_push(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct bench_job *job = ctx;
	struct whole w = { .job = job };
	struct ws_bench_bound bound;
	int rc = open_whole(&w, job, args, err);
	if (!rc) {
		report_begin(&job->report, push_definitions);
		rc = run_whole(&w, job->cfg->alone, &bound, err);
	}
	if (!rc)
		say_bound(job, &bound);
	free(w.paths);
	return rc;
}

/* ---- sweep --------------------------------------------------------------------------------------- */

static const char *const usual_buckets[] = { "64MiB", "256MiB", "512MiB", "1GiB" };
static const char *const usual_formats[] = { "flattened_bucket" };
static const char *const usual_quantize[] = { "none" };

struct choice {
	const char *bucket, *format, *quantize;
};

struct best {
	struct choice choice;
	int64_t total_ns;
	bool any;
};

static int find_word(const char *const *names, const char *word, const char *option, unsigned *out,
                     struct ws_err *err)
{
	for (unsigned i = 0; names[i]; i++)
		if (strcmp(names[i], word) == 0) {
			*out = i;
			return 0;
		}
	return ws_err_set(err, WS_EUSAGE, "--%s: '%s' is none of its values", option, word);
}

static int choose(struct whole *w, const struct choice *c, struct ws_err *err)
{
	unsigned format = 0, quantize = 0;
	if (ws_parse_size(c->bucket, &w->push.bucket_size, err) ||
	    find_word(pushing_formats, c->format, "formats", &format, err) ||
	    find_word(transforming_quantize, c->quantize, "quantizations", &quantize, err))
		return -1;
	w->push.format = format;
	w->transform.quantize = quantize;
	return 0;
}

/* The whole job under one name, instead of its phases. */
struct renamed {
	struct report *report;
	char name[48];
	struct choice choice;
};

static void total_only(void *ctx, const struct ws_bench_row *row)
{
	struct renamed *to = ctx;
	struct ws_bench_row as = *row;
	if (strcmp(row->name, "total") != 0)
		return;
	as.stage = "sweep";
	as.name = to->name;
	as.detail = to->choice.format;
	report_row(to->report, &as);
}

static void begin_report(void *ctx)
{
	report_open(((struct renamed *)ctx)->report);
}

static int run_choice(struct whole *w, const struct choice *c, struct best *best, struct ws_err *err)
{
	struct renamed to = { .report = &w->job->report, .choice = *c };
	struct ws_bench_opts o = bench_opts(w->job);
	const struct ws_bench_push b = { .push = &w->push, .paths = w->paths, .n_paths = w->n_paths };
	struct ws_bench_bound bound;
	if (choose(w, c, err))
		return -1;
	const bool quantized = strcmp(c->quantize, "none") != 0;
	snprintf(to.name, sizeof to.name, "%.20s%s%.20s", c->bucket, quantized ? " " : "",
	         quantized ? c->quantize : "");
	o.sink.row = total_only;
	o.sink.ctx = &to;
	o.sink.begin = begin_report;
	if (ws_bench_push(&o, &b, w->job->cfg->keep_group, &bound, err))
		return -1;
	if (!best->any || bound.total_ns < best->total_ns)
		*best = (struct best){ .choice = *c, .total_ns = bound.total_ns, .any = true };
	return 0;
}

static int run_all(struct whole *w, struct best *best, struct ws_err *err)
{
	const struct bench_config *cfg = w->job->cfg;
	const char *const *buckets = cfg->buckets.n ? cfg->buckets.items : usual_buckets;
	const char *const *formats = cfg->formats.n ? cfg->formats.items : usual_formats;
	const char *const *quantize = cfg->quantize.n ? cfg->quantize.items : usual_quantize;
	const size_t n_buckets = cfg->buckets.n ? cfg->buckets.n : sizeof usual_buckets / sizeof *usual_buckets;
	const size_t n_formats = cfg->formats.n ? cfg->formats.n : 1;
	const size_t n_quantize = cfg->quantize.n ? cfg->quantize.n : 1;
	for (size_t q = 0; q < n_quantize; q++)
		for (size_t f = 0; f < n_formats; f++)
			for (size_t b = 0; b < n_buckets; b++)
				if (run_choice(w, &(struct choice){ buckets[b], formats[f], quantize[q] }, best, err))
					return -1;
	return 0;
}

static void recommend(struct bench_job *job, const struct best *best)
{
	char total[32];
	struct ws_jw *w = ui_line(job->ui, "recommendation");
	if (w) {
		ws_jw_str(w, "bucket_size", best->choice.bucket);
		ws_jw_str(w, "load_format", best->choice.format);
		ws_jw_str(w, "quantize", best->choice.quantize);
		ws_jw_int(w, "total_ns", best->total_ns);
		ui_line_end(job->ui);
	}
	if (!job->cfg->csv)
		ui_say(job->ui, "fastest here, %s: --bucket-size %s --load-format %s --quantize %s\n",
		       ws_format_duration(total, sizeof total, best->total_ns), best->choice.bucket,
		       best->choice.format, best->choice.quantize);
}

int bench_sweep(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	static const char *const definitions[] = {
		"sweep: the whole job (see push) with each bucket size, load format and quantization; rate is the",
		"bytes as they are sent / median of the total.", NULL
	};
	struct bench_job *job = ctx;
	struct whole w = { .job = job };
	struct best best = { .any = false };
	int rc = open_whole(&w, job, args, err);
	if (!rc) {
		report_begin(&job->report, definitions);
		rc = run_all(&w, &best, err);
	}
	if (!rc)
		recommend(job, &best);
	free(w.paths);
	return rc;
}
