/* SPDX-License-Identifier: Apache-2.0 */
/* ready.c - may these endpoints get traffic? For readiness probes, router gates and scripts. */
#include "ctl.h"
#include "run.h"

#include "wsync/tool/str.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A server that answers needs milliseconds; one that hangs must not delay the answer for longer. */
static const int64_t LOOK_NS = 10 * WS_NS_PER_S;
/* Between two rounds of wait, without and with checksums. */
static const int64_t POLL_NS = 250 * WS_NS_PER_MS, PROOF_NS = 5 * WS_NS_PER_S;

void ready_put(struct ws_jw *w, const struct ws_fleet_view *v)
{
	ws_jw_str(w, "url", v->url);
	ws_jw_bool(w, "ready", v->ready == WS_READY);
	ws_jw_str(w, "reason", v->ready == WS_READY ? NULL : ws_ready_name(v->ready));
	ui_json_words(w, "message", v->why);
	ui_json_text(w, "weight_version",
	             v->ready == WS_READY_UNREACHED ? NULL : v->info.weight_version);
	ws_jw_str(w, "current_by", ws_current_name(v->current));
	if (v->coverage >= 0)
		ws_jw_double(w, "coverage", v->coverage);
	else
		ws_jw_null(w, "coverage");
	ws_jw_uint(w, "not_covered", v->not_covered);
}

enum ui_color ready_color(const struct ws_fleet_view *v)
{
	return v->ready == WS_READY           ? UI_GOOD :
	       v->ready == WS_READY_UNREACHED ? UI_BAD :
	                                        UI_WARN;
}

static int look(struct ctl_job *job, struct ws_fleet_look_opts *o, struct ws_fleet_view *views,
                struct ws_err *err)
{
	struct ws_buf dir;
	ws_buf_init(&dir, 4095);
	o->http = job->to.http;
	o->endpoints = job->to.urls;
	o->n_endpoints = job->to.n;
	o->lineage = (enum ws_lineage)job->cfg->lineage;
	o->health = true;
	o->step_ns = LOOK_NS;
	o->until = job->until;
	o->cancel = &run_cancel;
	struct ws_err why = WS_ERR_INIT;
	int rc = run_state_dir(job->cfg->state_dir, &dir, &why);
	if (rc == 0)
		o->state_dir = ws_buf_str(&dir);
	else if (job->cfg->state_dir)
		*err = why;
	else
		rc = 0;
	if (why.code && !job->cfg->state_dir && o->sink.event)
		ui_warn(job->ui, NULL, "%s: no push records are read", why.msg);
	if (!rc)
		rc = ws_fleet_look(o, views, err);
	ws_buf_free(&dir);
	return rc;
}

/* The checksums are compared with SOURCE as a push would send it. */
static int look_with_proof(struct ctl_job *job, const struct opt_args *args,
                           struct ws_fleet_look_opts *o, struct ws_fleet_view *views,
                           struct ws_err *err)
{
	const struct ctl_config *cfg = job->cfg;
	struct ws_transform_opts transform = transforming_opts(&cfg->transforming);
	struct ws_input_opts input = naming_input(&cfg->naming, args);
	struct ws_input in = { 0 };
	struct ws_config *quant;
	input.transform = &transform;
	const struct ws_verify_opts proof = {
		.endpoints = job->to.urls,
		.n_endpoints = job->to.n,
		.input = &in,
		TRANSFORMING_CHOICE(&cfg->transforming),
		.min_coverage = (unsigned)cfg->min_coverage,
		.api_key = job->to.api_key,
		.ca_file = job->to.ca_file,
		.connect_ns = cfg->common.connect_ns,
		.timeout_ns = job->until == WS_FOREVER ? 0 : ws_deadline_left(job->until) + 1,
		.sink = job->ui->sink,
		.log = &job->ui->log,
		.cancel = &run_cancel,
	};
	if (ws_verify_look(&proof, &transform, &input.found, &quant, err))
		return -1;
	o->proof = &proof;
	const int rc =
		naming_open(job->ui, &input, &in, err) || look(job, o, views, err) ? -1 : 0;
	ws_input_close(&in);
	ws_config_free(quant);
	return rc;
}

int ready_look(struct ctl_job *job, const struct opt_args *args, bool warns,
               struct ws_fleet_view **views, struct ws_err *err)
{
	struct ws_fleet_look_opts o = { .weight_version = job->cfg->weight_version };
	if (warns)
		o.sink = job->ui->sink;
	*views = calloc(job->to.n + 1, sizeof **views);
	if (!*views)
		return ws_oom(err);
	return args->n ? look_with_proof(job, args, &o, *views, err) :
	                 look(job, &o, *views, err);
}

/* ---- the answer ------------------------------------------------------------------------------ */

static int check_options(const struct ctl_config *cfg, const struct opt_args *args,
                         struct ws_err *err)
{
	if (!cfg->verify != !args->n)
		return ws_err_set(err, WS_EUSAGE, "--verify hash and SOURCE need each other");
	if (cfg->min_coverage && !args->n)
		return ws_err_set(err, WS_EUSAGE, "--min-coverage needs --verify hash and SOURCE");
	return ws_endpoint_check_version(cfg->weight_version, err);
}

static size_t count(const struct ctl_job *job, const struct ws_fleet_view *views)
{
	size_t n = 0;
	for (size_t i = 0; i < job->to.n; i++)
		n += views[i].ready == WS_READY;
	return n;
}

static size_t wanted(const struct ctl_job *job)
{
	return job->cfg->min_endpoints ? (size_t)job->cfg->min_endpoints :
	       job->to.n               ? job->to.n :
	                                 1;
}

/* A yes about a version, asked for or not, says so if the server's label is all that it rests on.
 * The label of a fresh server is no version. */
static const char *comment(const struct ws_fleet_view *v)
{
	static char text[96];
	const char *label = v->info.weight_version;
	if (v->ready == WS_READY && v->not_covered) {
		snprintf(text, sizeof text, "%zu of its tensors were left out and are not covered",
		         v->not_covered);
		return text;
	}
	return v->ready == WS_READY && v->current == WS_CURRENT_BY_LABEL &&
	                       *label && strcmp(label, "default") ?
	               "by its label alone" :
	               ui_words(v->why);
}

static void show(struct ctl_job *job, const struct ws_fleet_view *views)
{
	struct table t = { .n_columns = 4 };
	for (size_t i = 0; i < job->to.n; i++) {
		const struct ws_fleet_view *v = &views[i];
		ready_put(ui_line(job->ui, "endpoint"), v);
		ui_line_end(job->ui);
		table_add(&t, ready_color(v), v->url, ws_ready_name(v->ready),
		          v->info.weight_version, comment(v));
	}
	table_print(&t, job->ui);
	table_free(&t);
}

/* "1 of 3 endpoints is ready, 2 are needed: URL: reason" */
static int judge(const struct ctl_job *job, const struct ws_fleet_view *views, enum ws_code code,
                 struct ws_err *err)
{
	const size_t n = count(job, views), need = wanted(job);
	size_t i = 0;
	if (n >= need)
		return 0;
	while (i < job->to.n && views[i].ready == WS_READY)
		i++;
	if (i == job->to.n)
		return ws_err_set(err, code, "%zu endpoint%s %s registered or given, and %zu %s "
		                  "needed", n, n == 1 ? "" : "s", n == 1 ? "is" : "are", need,
		                  need == 1 ? "is" : "are");
	const struct ws_fleet_view *first = &views[i];
	if (job->to.n == 1 && need == 1)
		ws_err_set(err, code, "%s%s%s", strstr(first->why, first->url) ? "" : first->url,
		           strstr(first->why, first->url) ? "" : ": ", first->why);
	else
		ws_err_set(err, code, "%zu of %zu endpoints %s ready, %zu %s needed: %s: %s", n,
		           job->to.n, n == 1 ? "is" : "are", need, need == 1 ? "is" : "are",
		           first->url, first->why);
	return ws_err_where(err, NULL, first->url);
}

int ctl_ready(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct ctl_job *job = ctx;
	struct ws_fleet_view *views = NULL;
	int rc = check_options(job->cfg, args, err);
	if (!rc)
		rc = ready_look(job, args, true, &views, err);
	if (!rc)
		show(job, views);
	if (!rc)
		rc = judge(job, views, WS_EMISMATCH, err);
	free(views);
	return rc;
}

/* Checksums may prove what the last push does not. */
static size_t may_be_ready(const struct ctl_job *job, const struct ws_fleet_view *views)
{
	size_t n = count(job, views);
	for (size_t i = 0; i < job->to.n; i++)
		n += views[i].ready == WS_READY_STALE;
	return n;
}

/* The views of one round of wait. The checksums are asked for only when all else is right, because
 * the servers read all of their weights for them. *proved: they were asked for. */
static int wait_look(struct ctl_job *job, const struct opt_args *args, bool first, bool *proved,
                     struct ws_fleet_view **views, struct ws_err *err)
{
	static const struct opt_args none;
	const int rc = ready_look(job, &none, first, views, err);
	*proved = !rc && args->n && may_be_ready(job, *views) >= wanted(job);
	if (!*proved)
		return rc;
	free(*views);
	return ready_look(job, args, first, views, err);
}

/* Is there time for another round? It takes about as long as this one, but an endpoint that hangs
 * may answer next time. *pause_ns: how long to wait until then. */
static bool has_time(const struct ctl_job *job, int64_t took, bool proved, int64_t *pause_ns)
{
	const int64_t need = proved || took < WS_NS_PER_S ? took : WS_NS_PER_S;
	const int64_t left = ws_deadline_left(job->until) - need;
	const int64_t pause = proved ? PROOF_NS : POLL_NS;
	*pause_ns = left < pause ? left : pause;
	return left > POLL_NS;
}

int ctl_wait(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct ctl_job *job = ctx;
	struct pollfd stop = { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN };
	int rc = check_options(job->cfg, args, err);
	for (bool over = false, first = true; !rc && !over; first = false) {
		struct ws_fleet_view *views = NULL;
		const int64_t since = ws_now_ns();
		int64_t pause_ns = 0;
		bool proved = false;
		rc = wait_look(job, args, first, &proved, &views, err);
		const bool yes = !rc && count(job, views) >= wanted(job);
		over = yes || !has_time(job, ws_now_ns() - since, proved, &pause_ns);
		if (!rc && over)
			show(job, views);
		if (!rc && over)
			rc = judge(job, views, WS_ETIMEOUT, err);
		free(views);
		if (!rc && !over)
			poll(&stop, 1, (int)(pause_ns / WS_NS_PER_MS));
		if (!rc && !over && ws_cancelled(&run_cancel))
			rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (!rc && !over)
			rc = ctl_follow(job, err);
	}
	return rc;
}
