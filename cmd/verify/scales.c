/* SPDX-License-Identifier: Apache-2.0 */
/* scales.c - checks the scales of a quantized checkpoint, or of a server.
 *
 * People see the first few findings of each kind, and the ten worst tensors of the comparison
 * with the source; programs get all of them. */
#include "verify_cmd.h"

#include "run.h"

#include "wsync/tool/name_check_run.h"
#include "wsync/tool/scales.h"
#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORST = 10 };

/* ---- values of options ---- */

int verify_max_error(void *share, const char *value, struct ws_err *err)
{
	char *end = NULL;
	const double x = strtod(value, &end);
	const bool digit = *value >= '0' && *value <= '9';
	const double of = end && !strcmp(end, "%") ? 100 : 1;
	if (!digit || (*end && of == 1) || !(x > 0) || x > 1000)
		return ws_err_set(err, WS_EUSAGE, "'%.40s' is not a share above 0, like 5%%",
		                  value);
	*(double *)share = x / of;
	return 0;
}

/* ---- findings ---- */

static void print_finding(struct ui *ui, const struct ws_scales_finding *f)
{
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, ui_severity(f->severity), ws_severity_name(f->severity));
	printf("%-10s %s: ", ws_scales_verdict_name(f->verdict), ui_text(f->name));
	printf("%s\n", ui_text(f->reason));
}

static void put_finding(struct ui *ui, const char *url, const struct ws_scales_finding *f)
{
	struct ws_jw *w = ui_line(ui, "mismatch");
	ws_jw_str(w, "url", url);
	ws_jw_str(w, "name", f->name);
	ws_jw_str(w, "kind", ws_scales_verdict_name(f->verdict));
	ws_jw_str(w, "severity", ws_severity_name(f->severity));
	ws_jw_str(w, "reason", f->reason);
	ui_line_end(ui);
}

static bool is_alike(const struct ws_scales_finding *a, const struct ws_scales_finding *b)
{
	return a->severity == b->severity && a->verdict == b->verdict;
}

static void tell_findings(const struct verify_job *job, const char *url,
                          const struct ws_scales_report *r)
{
	const size_t limit = (size_t)job->cfg->limit;
	size_t alike = 0;
	for (size_t i = 0; i < r->n_findings; i++) {
		const struct ws_scales_finding *f = &r->findings[i];
		const bool last = i + 1 == r->n_findings || !is_alike(f, f + 1);
		put_finding(job->ui, url, f);
		alike++;
		if (!limit || alike <= limit)
			print_finding(job->ui, f);
		if (last && limit && alike > limit)
			ui_say(job->ui,
			       "          ... and %zu more %ss of kind %s; --limit 0 shows all\n",
			       alike - limit, ws_severity_name(f->severity),
			       ws_scales_verdict_name(f->verdict));
		alike = last ? 0 : alike;
	}
}

/* ---- the comparison ---- */

static void put_compared(struct ui *ui, const struct ws_scales_error *e)
{
	struct ws_jw *w = ui_line(ui, "compared");
	ws_jw_str(w, "name", e->name);
	ws_jw_str(w, "packing", e->packing);
	ws_jw_double(w, "max", e->max);
	ws_jw_double(w, "rms", e->rms);
	ws_jw_double(w, "cosine", e->cosine);
	ws_jw_double(w, "limit", e->limit);
	ui_line_end(ui);
}

static void tell_compared(struct ui *ui, const struct ws_scales_report *r)
{
	size_t shown = 0;
	for (size_t i = 0; i < r->n_compared; i++) {
		const struct ws_scales_error *e = &r->compared[i];
		put_compared(ui, e);
		if (ui->json || ui->quiet || shown == WORST || (e->rms == 0 && e->cosine != 0))
			continue;
		if (shown++ == 0)
			ui_say(ui, "%9s %-9s %-9s %-9s of the source: the worst of %zu tensors\n",
			       "", "rms", "max", "cosine", r->n_compared);
		ui_head(ui, e->rms > e->limit ? UI_BAD : UI_PLAIN, e->packing);
		printf("%-9.3g %-9.3g %-9.6f %s\n", e->rms, e->max, e->cosine, ui_text(e->name));
	}
}

/* ---- the sum ---- */

static void print_count(size_t n, const char *what)
{
	if (n)
		printf(", %zu %s%s", n, what, n == 1 ? "" : "s");
}

static void print_sum(const struct verify_job *job, const char *url,
                      const struct ws_scales_report *r, int64_t ns)
{
	struct ui *ui = job->ui;
	char bytes[32], time[32];
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, r->errors ? UI_BAD : UI_GOOD, "scales");
	if (url)
		printf("%s: ", ui_text(url));
	printf("%zu tensor%s, %zu quantized, %" PRIu64 " scales", r->tensors,
	       r->tensors == 1 ? "" : "s", r->quantized, r->scales);
	if (r->n_compared)
		printf(", %zu compared", r->n_compared);
	if (!r->errors)
		printf(", no errors");
	print_count(r->errors, "error");
	print_count(r->warnings, "warning");
	print_count(r->notes, "note");
	if (!url)
		printf(", %s in %s", ws_format_size(bytes, sizeof bytes, r->bytes),
		       ws_format_duration(time, sizeof time, ns));
	putchar('\n');
}

static void put_end(struct ui *ui, const struct ws_scales_report *r, int64_t ns,
                    const struct ws_err *err)
{
	struct ws_jw *w = ui_end_open(ui, err);
	ws_jw_uint(w, "tensors", r->tensors);
	ws_jw_uint(w, "quantized", r->quantized);
	ws_jw_uint(w, "scales", r->scales);
	ws_jw_uint(w, "compared", r->n_compared);
	ws_jw_uint(w, "bytes", r->bytes);
	ws_jw_uint(w, "errors", r->errors);
	ws_jw_uint(w, "warnings", r->warnings);
	ws_jw_uint(w, "notes", r->notes);
	ws_jw_object(w, "kinds");
	for (unsigned v = 0; v < WS_SCALES_VERDICTS; v++)
		ws_jw_uint(w, ws_scales_verdict_name((enum ws_scales_verdict)v), r->count[v]);
	ws_jw_end_object(w);
	ws_jw_int(w, "ns", ns);
	ui_line_end(ui);
}

static void add_to(struct ws_scales_report *sum, const struct ws_scales_report *r)
{
	sum->tensors += r->tensors;
	sum->quantized += r->quantized;
	sum->scales += r->scales;
	sum->n_compared += r->n_compared;
	sum->bytes += r->bytes;
	sum->errors += r->errors;
	sum->warnings += r->warnings;
	sum->notes += r->notes;
	for (unsigned v = 0; v < WS_SCALES_VERDICTS; v++)
		sum->count[v] += r->count[v];
}

/* Fails if nothing was checked: no scales, and no source to compare with. */
static int check_compared(const char *url, const struct ws_scales_report *r, struct ws_err *err)
{
	if (r->quantized || r->scales || r->n_compared)
		return 0;
	if (err->code != WS_OK)
		return -1;
	if (url)
		return ws_err_set(err, WS_EUNKNOWN,
		                  "%s: nothing was checked: the endpoint shows no scales and no "
		                  "quantized parameter",
		                  url);
	ws_err_set(err, WS_EUNKNOWN, "nothing was checked: none of %zu tensors is quantized",
	           r->tensors);
	return ws_err_hint(err, "--against SOURCE compares weights that are not quantized, too");
}

/* Prints the report and adds it to the sum. The first error found is the run's error. */
static int conclude(const struct verify_job *job, const char *url, const struct ws_scales_report *r,
                    int64_t since, struct ws_scales_report *sum, struct ws_err *err)
{
	tell_findings(job, url, r);
	tell_compared(job->ui, r);
	print_sum(job, url, r, ws_now_ns() - since);
	add_to(sum, r);
	if (!r->errors)
		return check_compared(url, r, err);
	if (err->code != WS_OK)
		return -1;
	return ws_err_set(err, WS_EMISMATCH, "%s%s%zu error%s, the first: %s: %s", url ? url : "",
	                  url ? ": " : "", r->errors, r->errors == 1 ? "" : "s",
	                  r->findings[0].name, r->findings[0].reason);
}

/* ---- a checkpoint ---- */

static int open_against(const struct verify_job *job, struct ws_input *in, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	const struct ws_input_opts opts = {
		.paths = cfg->against.items, .n_paths = cfg->against.n, .map = cfg->naming.map,
		.memory = &ws_memory_cuda, .cancel = &run_cancel,
	};
	return cfg->against.n ? naming_open(job->ui, &opts, in, err) : 0;
}

static int check_source(const struct verify_job *job, const struct opt_args *args,
                        struct ws_scales_report *sum, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	const struct ws_input_opts source = naming_input(&cfg->naming, args);
	const int64_t since = ws_now_ns();
	struct ws_input in = { 0 }, against = { 0 };
	struct ws_scales_report r = { 0 };
	int rc = naming_open(job->ui, &source, &in, err);
	if (!rc)
		rc = open_against(job, &against, err);
	if (!rc) {
		const struct ws_scales_opts opts = {
			.items = in.catalog,
			.against = against.catalog,
			.config = in.config,
			.layout = ws_input_layout(&in),
			.block = { cfg->transforming.block[0], cfg->transforming.block[1] },
			.max_error = cfg->max_error,
			TRANSFORMING_CHOICE(&cfg->transforming),
			.threads = (unsigned)cfg->threads,
			.sink = job->ui->sink,
			.cancel = &run_cancel,
		};
		rc = ws_scales_check(&opts, &r, err);
	}
	if (!rc)
		rc = ws_catalog_check(in.catalog, err);
	if (!rc && against.catalog)
		rc = ws_catalog_check(against.catalog, err);
	if (!rc)
		rc = conclude(job, NULL, &r, since, sum, err);
	ws_scales_report_free(&r);
	ws_input_close(&against);
	ws_input_close(&in);
	return rc;
}

/* ---- endpoints ---- */

static int check_endpoint(const struct verify_job *job, struct ws_http *http,
                          const struct ws_scales_ask_opts *opts, struct ws_scales_report *sum,
                          struct ws_err *err)
{
	const int64_t since = ws_now_ns();
	struct ws_scales_report r = { 0 };
	struct ws_err why = WS_ERR_INIT;
	int rc = ws_scales_ask(http, opts, &r, &why);
	if (!rc)
		rc = conclude(job, opts->url, &r, since, sum, err);
	else if (err->code == WS_OK)
		*err = why;
	ws_scales_report_free(&r);
	return rc;
}

static int check_endpoints(const struct verify_job *job, struct targets *to,
                           struct ws_scales_report *sum, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	struct ws_scales_ask_opts opts = {
		.block = { cfg->transforming.block[0], cfg->transforming.block[1] },
		.samples = (size_t)cfg->samples,
		.until = ws_deadline_in(verify_timeout(cfg)),
		.cancel = &run_cancel,
	};
	struct ws_config *config = NULL;
	int rc = cfg->naming.config ? ws_config_open(cfg->naming.config, &config, err) : 0;
	if (!rc)
		rc = targets_connect(to, &cfg->common, job->ui, err) ||
		                     targets_check_readable(to, cfg->pushing.state_dir, opts.until,
		                                            err) ?
		             -1 :
		             0;
	opts.config = config;
	const size_t n = rc ? 0 : to->n;
	for (size_t i = 0; i < n && !ws_cancelled(&run_cancel); i++) {
		opts.url = to->urls[i];
		if (check_endpoint(job, to->http, &opts, sum, err))
			rc = -1;
	}
	ws_config_free(config);
	return rc;
}

static int check_usage(const struct verify_config *cfg, const struct opt_args *args, bool ask,
                       struct ws_err *err)
{
	if (!args->n && !ask)
		return ws_err_set(err, WS_EUSAGE, "scales: a SOURCE, or --endpoint URL, is needed");
	if (cfg->against.n && !args->n)
		return ws_err_set(
			err, WS_EUSAGE,
			"--against: an endpoint does not show its codes; it is for a SOURCE");
	return 0;
}

int verify_scales(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	const struct verify_job *job = ctx;
	const struct verify_config *cfg = job->cfg;
	const bool ask = cfg->common.endpoints.n || cfg->common.pool;
	const int64_t since = ws_now_ns();
	struct ws_scales_report sum = { 0 };
	struct targets to = { 0 };
	int rc = check_usage(cfg, args, ask, err);
	if (!rc && ask)
		rc = targets_find(&to, &cfg->common, false, job->ui, err);
	if (!rc && args->n)
		rc = check_source(job, args, &sum, err);
	if (ask && (!rc || err->code == WS_EMISMATCH) && check_endpoints(job, &to, &sum, err))
		rc = -1;
	put_end(job->ui, &sum, ws_now_ns() - since, err);
	targets_free(&to);
	return rc;
}
