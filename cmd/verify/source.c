/* SPDX-License-Identifier: Apache-2.0 */
/* source.c - opens the source of a command that compares the tensors of a push. */
#include "verify_cmd.h"

#include "run.h"

#include "wsync/tool/plan.h"

static void warn_unused(const struct verify_job *job, const struct ws_catalog *items)
{
	const struct opt_list *exclude = &job->cfg->transforming.exclude;
	size_t next = 0;
	const char *unused;
	while ((unused = ws_plan_unused(items, exclude->items, exclude->n, &next)))
		ui_warn(job->ui, NULL, "--exclude %.200s matches no tensor of the source", unused);
}

int64_t verify_timeout(const struct verify_config *cfg)
{
	return cfg->timeout_ns ? cfg->timeout_ns : 60 * WS_NS_PER_S;
}

int verify_replicas(const struct verify_job *job, const struct ws_input *in, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	const struct ws_replica_opts opts = {
		.all = cfg->scan, TRANSFORMING_CHOICE(&cfg->transforming), .cancel = &run_cancel,
	};
	return cfg->transforming.trust ? 0 : ws_catalog_check_replicas(in->stored, &opts, err);
}

int verify_open_source(const struct verify_job *job, const struct opt_args *args,
                       const char *fallback, const struct ws_input_found *found,
                       const struct ws_quant *quant, struct ws_input *in, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	struct ws_input_opts opts = naming_input(&cfg->naming, args);
	struct ws_transform_opts transform = transforming_opts(&cfg->transforming);
	transform.quant = quant;
	opts.transform = &transform;
	opts.fallback = opts.fallback ? opts.fallback : fallback;
	if (found)
		opts.found = *found;
	const struct opt_list *include = &cfg->transforming.include,
	                      *exclude = &cfg->transforming.exclude;
	if (naming_open(job->ui, &opts, in, err) ||
	    ws_input_check_globs(in, "include", include->items, include->n, err) ||
	    ws_input_check_globs(in, "exclude", exclude->items, exclude->n, err))
		return -1;
	warn_unused(job, in->catalog);
	return 0;
}
