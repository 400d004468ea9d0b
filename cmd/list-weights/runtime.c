/* SPDX-License-Identifier: Apache-2.0 */
/* runtime.c - lists the parameters of a server at these sizes: names and one rank's shapes, and
 * dtypes if the config determines them. With --checksum, what the server must report for each if it
 * has the tensors of SOURCE. Omits parameters that share another parameter's memory, as all servers
 * do. */
#include "list.h"

#include "run.h"

#include "wsync/tool/name_check_run.h"
#include "wsync/tool/predict.h"

static const char *dtype_of(const struct ws_layout *l, const struct ws_param *p)
{
	const struct ws_part *first = p->n_parts ? ws_layout_part(l, p->first) : NULL;
	return first && first->exact ? ws_dtype_torch(first->dtype) : "";
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* Prints row i with its checksum. SGLang lists a weight in block FP8 without its scales. */
static int print_predicted(struct list_job *job, const struct ws_predict *p, size_t i,
                           struct ws_err *err)
{
	struct tensors_row *row = &job->list.rows[i];
	struct ws_prediction is;
	const size_t param = (size_t)((const struct ws_param *)row->origin -
	                              ws_layout_param(job->layout, 0));
	if (ws_predict(p, param, (unsigned)job->cfg->rank, &is, err))
		return -1;
	row->note = is.state == WS_PREDICT_OPAQUE ? is.why : NULL;
	if (is.state != WS_PREDICT_UNLISTED)
		tensors_print(&job->list, row, is.checksum);
	return 0;
}

static int print_with_checksums(struct list_job *job, const struct ws_catalog *sent,
                                struct ws_err *err)
{
	struct ws_predict_opts opts = {
		.layout = job->layout, .cancel = &run_cancel,
		.fn = (enum ws_checksum_fn)(job->cfg->checksum - 1),
	};
	struct ws_plan *plan = NULL;
	struct ws_predict *p = NULL;
	job->list.sum_key = "checksum";
	job->list.note_key = "why";
	int rc = ws_plan_make(sent, &(struct ws_plan_opts){ 0 }, &plan, err);
	opts.plan = plan;
	if (rc == 0)
		rc = ws_predict_open(&opts, &p, err);
	for (size_t i = 0; rc == 0 && i < job->list.n; i++)
		rc = print_predicted(job, p, i, err);
	if (rc == 0)
		rc = ws_catalog_check(sent, err);
	ws_predict_close(p);
	ws_plan_free(plan);
	return rc;
}

/* ---- the list -------------------------------------------------------------------------------- */

static void add_param(struct list_job *job, const struct ws_param *p)
{
	list_add_param(job, p->name, dtype_of(job->layout, p), p->n_dims, p->dims, p);
}

static int list_layout(struct list_job *job, const struct ws_catalog *sent, struct ws_err *err)
{
	const struct ws_layout *l = job->layout;
	const char *trouble = NULL;
	if (tensors_start(&job->list, ws_layout_param_count(l), err))
		return -1;
	for (size_t i = 0; i < ws_layout_param_count(l); i++) {
		const struct ws_param *p = ws_layout_param(l, i);
		trouble = trouble ? trouble : p->trouble;
		if (!p->tied_to)
			add_param(job, p);
	}
	if (trouble)
		return ws_err_set(err, WS_EMISMATCH, "no server runs so: %s", trouble);
	if (job->cfg->checksum && print_with_checksums(job, sent, err))
		return -1;
	for (size_t i = 0; !job->cfg->checksum && i < job->list.n; i++)
		tensors_print(&job->list, &job->list.rows[i], NULL);
	list_finish(job);
	return 0;
}

static int make_layout(const struct list_job *job, const struct ws_input *in,
                       struct ws_layout **out, struct ws_err *err)
{
	const struct list_config *cfg = job->cfg;
	const struct ws_layout_opts opts = {
		.tp = cfg->tp ? (unsigned)cfg->tp : 1, .ep = cfg->ep ? (unsigned)cfg->ep : 1,
		.attention_tp = (unsigned)cfg->attention_tp, .rank = (unsigned)cfg->rank,
		.packed_scales = in->packed_scales,
	};
	if (opts.rank >= opts.tp)
		return ws_err_set(err, WS_EUSAGE, "--rank %u: there are ranks 0 to %u", opts.rank,
		                  opts.tp - 1);
	if (ws_input_known(in))
		return ws_layout_make(in->family, in->config, &opts, out, err);
	if (in->why.code) {
		*err = in->why;
		return -1;
	}
	char why[384];
	ws_name_check_unknown(in->config, why, sizeof why);
	ws_err_set(err, WS_EINPUT, "%s", why);
	return ws_err_hint(err, "--config DIR names a config.json, --map FILE describes a family");
}

int list_runtime(struct list_job *job, const struct opt_args *args, struct ws_err *err)
{
	const struct list_config *cfg = job->cfg;
	const struct ws_transform_opts transform = transforming_opts(&cfg->transforming);
	struct ws_input_opts opts = naming_input(&cfg->naming, args);
	struct ws_layout *l = NULL;
	struct ws_input in;
	opts.transform = cfg->checksum ? &transform : NULL;
	if (naming_open(job->ui, &opts, &in, err))
		return -1;
	int rc = make_layout(job, &in, &l, err);
	job->layout = l;
	if (rc == 0)
		rc = list_layout(job, in.catalog, err);
	ws_layout_free(l);
	ws_input_close(&in);
	return rc;
}
