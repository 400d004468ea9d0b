/* SPDX-License-Identifier: Apache-2.0 */
/* wsync-ctl - one lifecycle call at a time, to every endpoint at once. It remembers nothing: what
 * it pauses stays paused until somebody resumes it. */
#include "main.h"
#include "run.h"
#include "table.h"
#include "targets.h"

#include "wsync/endpoint.h"
#include "wsync/str.h"

#include <stdio.h>
#include <stdlib.h>

struct config {
	struct opt_common common;
	struct opt_list endpoints;
	const char *pool;
	unsigned mode; /* enum ws_pause_mode */
	int64_t connect_ns, timeout_ns, wait_ns;
};

struct job {
	const struct config *cfg;
	struct ui *ui;
	struct targets to;
	struct ws_http *http;
};

/* ---- rows ---- */

/* What failed, as members of an endpoint's line. */
static void put_failure(struct ws_jw *w, const struct ws_err *err)
{
	ws_jw_str(w, "code", ws_code_name(err->code));
	ws_jw_str(w, "message", err->msg);
	ws_jw_str(w, "hint", err->hint[0] ? err->hint : NULL);
}

static void put_answer(struct ui *ui, const char *url, const struct ws_endpoint_answer *a)
{
	struct ws_jw *w = ui_line(ui, "endpoint");
	if (!w)
		return;
	ws_jw_str(w, "url", url);
	ws_jw_bool(w, "ok", !a->err.code);
	if (a->err.code)
		put_failure(w, &a->err);
	else
		ws_jw_str(w, "message", *a->message ? a->message : NULL);
	ws_jw_int(w, "ns", a->ns);
	ui_line_end(ui);
}

/* The failure of a single endpoint is the error of the run, which says it. */
static void print_unless_said(struct job *job, const struct table *t, enum ws_code first)
{
	if (job->to.n > 1 || first == WS_OK)
		table_print(t, job->ui);
}

static void show_answers(struct job *job, const char *done,
                         const struct ws_endpoint_answer *answers)
{
	struct table t = { .n_columns = 4 };
	for (size_t i = 0; i < job->to.n; i++) {
		const struct ws_endpoint_answer *a = &answers[i];
		char took[32];
		put_answer(job->ui, job->to.urls[i], a);
		ws_format_duration(took, sizeof took, a->ns);
		table_add(&t, a->err.code ? UI_BAD : UI_GOOD, job->to.urls[i],
		          a->err.code ? "failed" : done, took,
		          a->err.code ? a->err.msg : a->message);
	}
	print_unless_said(job, &t, answers[0].err.code);
	table_free(&t);
}

/* ---- calls ---- */

enum call { HEALTH, PAUSE, RESUME, FLUSH, SET_VERSION };

static int call(struct job *job, enum call what, const char *version,
                struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const struct config *cfg = job->cfg;
	const char *const *urls = job->to.urls;
	const size_t n = job->to.n;
	const ws_deadline until = ws_deadline_in(cfg->timeout_ns);
	const ws_deadline patience = ws_deadline_in(cfg->wait_ns);
	struct ws_http *http = job->http;
	switch (what) {
	case HEALTH:
		return ws_endpoint_health(http, urls, n, until, &run_cancel, answers, err);
	case PAUSE:
		return ws_endpoint_pause(http, urls, n, (enum ws_pause_mode)cfg->mode, until,
		                         &run_cancel, answers, err);
	case RESUME:
		return ws_endpoint_resume(http, urls, n, until, &run_cancel, answers, err);
	case FLUSH:
		return ws_endpoint_flush(http, urls, n, patience,
		                         cfg->wait_ns > cfg->timeout_ns ? patience : until,
		                         &run_cancel, answers, err);
	case SET_VERSION:
		return ws_endpoint_set_version(http, urls, n, version, until, &run_cancel, answers,
		                               err);
	}
	return 0;
}

static int tell(struct job *job, enum call what, const char *done, const char *version,
                struct ws_err *err)
{
	struct ws_endpoint_answer *answers = calloc(job->to.n, sizeof *answers);
	if (!answers)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	const int rc = call(job, what, version, answers, err);
	if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM)
		show_answers(job, done, answers);
	free(answers);
	return rc;
}

static int do_health(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return tell(ctx, HEALTH, "healthy", NULL, err);
}

static int do_pause(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return tell(ctx, PAUSE, "paused", NULL, err);
}

static int do_resume(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return tell(ctx, RESUME, "resumed", NULL, err);
}

static int do_flush(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return tell(ctx, FLUSH, "flushed", NULL, err);
}

/* ---- info ---- */

struct probe {
	struct ws_endpoint_info *infos;
	struct ws_err *errs;
};

static void put_info(struct ws_jw *w, const struct ws_endpoint_info *info)
{
	ws_jw_str(w, "version", info->version);
	ws_jw_str(w, "weight_version", info->weight_version);
	ws_jw_uint(w, "tp_size", info->tp_size);
	ws_jw_uint(w, "dp_size", info->dp_size);
	ws_jw_uint(w, "pp_size", info->pp_size);
	ws_jw_uint(w, "ep_size", info->ep_size);
	ws_jw_bool(w, "dp_attention", info->dp_attention);
	ws_jw_str(w, "dtype", info->dtype);
	ws_jw_str(w, "quantization", info->quantization);
	ws_jw_str(w, "kv_cache_dtype", info->kv_cache_dtype);
	ws_jw_str(w, "model_path", info->model_path);
	ws_jw_str(w, "served_model", info->served_model);
	ws_jw_str(w, "model_type", info->model_type);
	ws_jw_int(w, "ns", info->ns);
}

static void put_endpoint(struct ui *ui, const char *url, const struct ws_endpoint_info *info,
                         const struct ws_err *failure)
{
	struct ws_jw *w = ui_line(ui, "endpoint");
	if (!w)
		return;
	ws_jw_str(w, "url", url);
	ws_jw_bool(w, "ok", !failure->code);
	if (failure->code)
		put_failure(w, failure);
	else
		put_info(w, info);
	ui_line_end(ui);
}

/* "8", "8 dp 2", "4 pp 2 ep 4": tp first, the others where there is more than one. */
static void format_ranks(char *dst, size_t n, const struct ws_endpoint_info *info)
{
	const struct { const char *name; unsigned size; } more[] = {
		{ "dp", info->dp_size }, { "pp", info->pp_size }, { "ep", info->ep_size },
	};
	size_t used = (size_t)snprintf(dst, n, "%u", info->tp_size);
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		if (more[i].size > 1 && used < n)
			used += (size_t)snprintf(dst + used, n - used, " %s %u", more[i].name,
			                         more[i].size);
}

static void show_infos(struct job *job, const struct probe *p)
{
	struct table t = { .n_columns = 7 };
	table_add(&t, UI_DIM, "ENDPOINT", "WEIGHTS", "TP", "DTYPE", "QUANTIZATION", "VERSION",
	          "MODEL");
	for (size_t i = 0; i < job->to.n; i++) {
		const struct ws_endpoint_info *info = &p->infos[i];
		const char *model = *info->served_model ? info->served_model : info->model_path;
		char ranks[64];
		put_endpoint(job->ui, job->to.urls[i], info, &p->errs[i]);
		format_ranks(ranks, sizeof ranks, info);
		if (p->errs[i].code)
			table_add(&t, UI_BAD, job->to.urls[i], "failed", "", "", "", "",
			          p->errs[i].msg);
		else
			table_add(&t, UI_PLAIN, job->to.urls[i], info->weight_version, ranks,
			          info->dtype, info->quantization, info->version, model);
	}
	print_unless_said(job, &t, p->errs[0].code);
	table_free(&t);
}

/* The label alone: for scripts, one bare line where there is one endpoint. */
static void show_versions(struct job *job, const struct probe *p)
{
	struct table t = { .n_columns = 2 };
	for (size_t i = 0; i < job->to.n; i++) {
		put_endpoint(job->ui, job->to.urls[i], &p->infos[i], &p->errs[i]);
		table_add(&t, UI_PLAIN, job->to.urls[i],
		          p->errs[i].code ? p->errs[i].msg : p->infos[i].weight_version);
	}
	if (job->to.n > 1)
		table_print(&t, job->ui);
	else if (!p->errs[0].code)
		ui_say(job->ui, "%s\n", ui_text(p->infos[0].weight_version));
	table_free(&t);
}

/* Some answered and some did not. */
static int count_failures(const struct job *job, const struct probe *p, struct ws_err *err)
{
	const struct ws_err first = *err;
	size_t failed = 0;
	for (size_t i = 0; i < job->to.n; i++)
		failed += p->errs[i].code != WS_OK;
	if (failed && failed < job->to.n) {
		ws_err_set(err, WS_EPARTIAL, "%zu of %zu endpoints failed: %s", failed, job->to.n,
		           first.msg);
		ws_err_hint(err, "%s", first.hint);
		ws_err_where(err, NULL, first.endpoint);
	}
	return failed ? -1 : 0;
}

static int probe(struct job *job, void (*show)(struct job *, const struct probe *),
                 struct ws_err *err)
{
	struct probe p = { calloc(job->to.n, sizeof *p.infos), calloc(job->to.n, sizeof *p.errs) };
	int rc = p.infos && p.errs ? 0 : ws_err_set(err, WS_ESYSTEM, "out of memory");
	if (!rc) {
		rc = ws_endpoint_probe_all(job->http, job->to.urls, job->to.n,
		                           ws_deadline_in(job->cfg->timeout_ns), &run_cancel,
		                           p.infos, p.errs, err);
		if (err->code != WS_ECANCELLED && err->code != WS_ESYSTEM) {
			show(job, &p);
			rc = count_failures(job, &p, err);
		}
	}
	free(p.infos);
	free(p.errs);
	return rc;
}

static int do_info(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	(void)args;
	return probe(ctx, show_infos, err);
}

static int do_version(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	return args->n ? tell(ctx, SET_VERSION, "labelled", args->v[0], err)
	               : probe(ctx, show_versions, err);
}

/* ---- the program ---- */

static struct config cfg = {
	.connect_ns = 10 * WS_NS_PER_S, .timeout_ns = 60 * WS_NS_PER_S, .wait_ns = 60 * WS_NS_PER_S,
};

static const char *const mode_names[] = { "abort", "retract", "in_place", NULL };

static const struct opt_command commands[] = {
	{ "info", "", "show what the endpoints are and which weights they have", 0, 0, do_info },
	{ "health", "", "ask whether they are up", 0, 0, do_health },
	{ "pause", "", "stop generation", 0, 0, do_pause },
	{ "resume", "", "let generation go on", 0, 0, do_resume },
	{ "flush", "", "drop the cache of computed prefixes", 0, 0, do_flush },
	{ "version", "[VERSION]", "show the weight version, or set it", 0, 1, do_version },
	{ 0 },
};

static const struct opt opts[] = {
	OPT_GROUP("Where"),
	OPT_LIST('e', "endpoint", "URL", &cfg.endpoints,
	         "ask this endpoint (every registered one); repeatable"),
	OPT_STRING(0, "pool", "NAME", &cfg.pool,
	           "of the registered endpoints, only those of this pool"),
	OPT_REGISTRY(&cfg.common),
	OPT_API_KEY_FILE(&cfg.common),
	OPT_DURATION(0, "connect-timeout", &cfg.connect_ns, "to connect (10s)"),
	OPT_DURATION('t', "timeout", &cfg.timeout_ns, "for the answers (60s)"),
	OPT_GROUP_FOR("Pausing", "pause"),
	OPT_CHOICE(0, "mode", mode_names, &cfg.mode,
	           "what becomes of running requests: they end, are queued again, or stay (abort)"),
	OPT_GROUP_FOR("Flushing", "flush"),
	OPT_DURATION(0, "wait", &cfg.wait_ns, "keep asking a busy endpoint for so long (60s)"),
	OPT_COMMON(&cfg.common),
	OPT_END,
};

static const struct opt_program program = {
	.name = "wsync-ctl",
	.args = "COMMAND [VERSION]",
	.summary = "Make one lifecycle call to every endpoint at once.",
	.examples = { "wsync-ctl info",
	              "wsync-ctl pause --mode abort && wsync-ctl flush --wait 30s",
	              "wsync-ctl version 120 --endpoint gpu7:30000" },
	.commands = commands,
	.opts = opts,
};

static void run(const struct opt_args *args, struct ui *ui, struct ws_err *err)
{
	struct job job = { .cfg = &cfg, .ui = ui };
	ui_begin(ui);
	int rc = targets_find(&job.to, &cfg.endpoints, cfg.pool, &cfg.common, false, ui, err);
	if (!rc)
		rc = targets_connect(&job.to, cfg.connect_ns, ui, &job.http, err);
	if (!rc)
		args->command->run(&job, args, err);
	ws_client_close(job.http);
	targets_free(&job.to);
}

int main(int argc, char **argv)
{
	return main_run(&(struct main_program){ &program, &cfg.common, NULL, run }, argc, argv);
}
