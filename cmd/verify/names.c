/* SPDX-License-Identifier: Apache-2.0 */
/* names.c - checks that every parameter of a server gets exactly the right bytes from a source.
 *
 * A named server is detected and lists its parameters. Without one, a config.json and sizes, or a
 * saved listing, describe the server. */
#include "verify_cmd.h"

#include "outlet.h"
#include "run.h"

#include "wsync/tool/name_check_run.h"

#include <stdlib.h>

/* The servers, or the description of one. */
struct against {
	struct targets to;
	struct ws_name_check_target *targets;
	size_t n;
	struct ws_config *quant; /* decides what --quantize makes; NULL */
};

static void free_against(struct against *a)
{
	for (size_t i = 0; a->targets && i < a->n; i++)
		ws_name_check_target_free(&a->targets[i]);
	free(a->targets);
	ws_config_free(a->quant);
	targets_free(&a->to);
}

static int ask(struct verify_job *job, struct against *a, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	const size_t n = a->to.n;
	outlet_never_wait();
	if (targets_connect(&a->to, &cfg->common, job->ui, err))
		return -1;
	const ws_deadline until = ws_deadline_in(verify_timeout(cfg));
	bool readable = true;
	if (targets_probe(&a->to, until, err))
		return -1;
	for (size_t i = 0; i < n; i++)
		readable = readable && targets_readable(&a->to, i, cfg->pushing.state_dir, NULL);
	if (ws_name_check_ask(a->to.http, a->to.infos, n, readable, until, &run_cancel, a->targets,
	                      err))
		return -1;
	a->n = n;
	for (size_t i = 0; i < n; i++)
		a->targets[i].askable &=
			targets_readable(&a->to, i, cfg->pushing.state_dir, NULL);
	return 0;
}

static int describe(struct verify_job *job, struct against *a, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	a->n = 1;
	a->targets[0] = (struct ws_name_check_target){
		.tp = (unsigned)cfg->tp,
		.ep = (unsigned)cfg->ep,
		.attention_tp = (unsigned)cfg->attention_tp,
	};
	return cfg->list ? ws_name_check_read(cfg->list, &a->targets[0], err) : 0;
}

/* A description replaces the registered servers. */
static bool is_described(const struct verify_config *cfg)
{
	return cfg->list || cfg->naming.config || cfg->tp || cfg->ep || cfg->attention_tp;
}

static int find_against(struct verify_job *job, struct against *a, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	const bool named = cfg->common.endpoints.n || cfg->common.pool || cfg->common.registry;
	if ((named || !is_described(cfg)) &&
	    targets_find(&a->to, &cfg->common, !named, job->ui, err))
		return -1;
	a->targets = calloc(a->to.n + 1, sizeof *a->targets);
	if (!a->targets)
		return ws_oom(err);
	return a->to.n ? ask(job, a, err) : describe(job, a, err);
}

/* Makes a plan, to find the buckets of partners. Its bucket size does not matter. */
static int make_plan(const struct verify_config *cfg, const struct ws_input *in,
                     struct ws_plan **plan, struct ws_err *err)
{
	const struct ws_plan_opts opts = {
		.format = WS_FORMAT_FLATTENED, TRANSFORMING_CHOICE(&cfg->transforming),
	};
	if (ws_plan_make(in->catalog, &opts, plan, err))
		return -1;
	return in->transform ? ws_transform_sends(in->transform, err) : 0;
}

static int refuse_unchecked(const struct ws_input *in, const struct ws_name_check_run *sum,
                            struct ws_err *err)
{
	if (sum->own_config)
		ws_err_set(err, WS_EUNKNOWN,
		           "the names were not compared with the server: they fit the source's own "
		           "config.json; %s",
		           sum->why);
	else
		ws_err_set(err, in->why.code ? in->why.code : WS_EUNKNOWN,
		           "nothing to compare the names with: %s", sum->why);
	return ws_err_hint(err, "--config DIR names the server's config.json, --like DIR a "
	                        "checkpoint that the server can be started from, --map FILE "
	                        "describes a family, --list FILE is a saved listing, --endpoint "
	                        "URL asks a server");
}

static int check(struct verify_job *job, const struct against *a, struct ws_input *in,
                 const struct ws_plan *plan, struct ws_name_check_run *sum, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	const ws_deadline until = ws_deadline_in(verify_timeout(cfg));
	const struct ws_name_check_run_opts opts = {
		.input = in,
		.plan = plan,
		.scan = cfg->scan,
		.cancel = &run_cancel,
		TRANSFORMING_CHOICE(&cfg->transforming),
	};
	if (a->to.http &&
	    ws_name_check_measure(a->to.http, in, a->targets, a->n, until, &run_cancel, err))
		return -1;
	if (ws_name_check_run_all(&opts, a->targets, a->n, &job->ui->sink, sum, err))
		return -1;
	return 0;
}

static int open_input(struct verify_job *job, const struct opt_args *args, struct against *a,
                      struct ws_input *in, struct ws_err *err)
{
	const struct ws_transform_opts transform = transforming_opts(&job->cfg->transforming);
	const char *fallback = NULL;
	for (size_t i = 0; !fallback && i < a->to.n; i++)
		fallback = ws_name_check_model_dir(&a->to.infos[i]);
	a->quant = ws_name_check_quant(a->to.infos, a->to.n, &transform);
	struct ws_buf state;
	ws_buf_init(&state, PUSHING_PATH);
	const bool records = !run_state_dir(job->cfg->pushing.state_dir, &state, NULL);
	const struct ws_input_found found = ws_name_check_references(
		a->to.infos, a->to.n, records ? ws_buf_str(&state) : NULL);
	ws_buf_free(&state);
	return verify_open_source(job, args, fallback, &found,
	                          a->quant ? ws_config_quant(a->quant) : NULL, in, err);
}

int verify_names(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct verify_job *job = ctx;
	struct against a = { 0 };
	struct ws_name_check_run sum = { 0 };
	struct ws_input in = { 0 };
	struct ws_plan *plan = NULL;
	job->ui->limit = (size_t)job->cfg->limit;
	job->ui->notes = true;
	int rc = find_against(job, &a, err);
	if (!rc)
		rc = open_input(job, args, &a, &in, err);
	if (!rc)
		rc = make_plan(job->cfg, &in, &plan, err);
	if (!rc)
		rc = check(job, &a, &in, plan, &sum, err) || verify_replicas(job, &in, err) ||
		     ws_catalog_check(in.catalog, err) ||
		     (!sum.checked && refuse_unchecked(&in, &sum, err)) ? -1 : 0;
	struct ws_jw *w = ui_end_open(job->ui, err);
	ui_json_left_out(w, &sum.found);
	ui_json_name_check(w, &sum);
	ui_line_end(job->ui);
	ws_plan_free(plan);
	ws_input_close(&in);
	free_against(&a);
	return rc;
}
