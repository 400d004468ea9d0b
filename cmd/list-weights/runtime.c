/* SPDX-License-Identifier: Apache-2.0 */
/* runtime.c - lists the parameters of a server at these sizes: names and one rank's
 * shapes, and dtypes if the config determines them. Omits parameters that share another
 * parameter's memory, as all servers do. */
#include "list.h"

#include "wsync/tool/name_check_run.h"

static const char *dtype_of(const struct ws_layout *l, const struct ws_param *p)
{
	const struct ws_part *first = p->n_parts ? ws_layout_part(l, p->first) : NULL;
	return first && first->exact ? ws_dtype_torch(first->dtype) : "";
}

static int list_layout(struct list_job *job, const struct ws_layout *l, struct ws_err *err)
{
	const char *trouble = NULL;
	if (tensors_start(&job->list, ws_layout_param_count(l), err))
		return -1;
	for (size_t i = 0; i < ws_layout_param_count(l); i++) {
		const struct ws_param *p = ws_layout_param(l, i);
		trouble = trouble ? trouble : p->trouble;
		if (!p->tied_to)
			list_add_param(job, p->name, dtype_of(l, p), p->n_dims, p->dims);
	}
	if (trouble)
		return ws_err_set(err, WS_EMISMATCH, "no server runs so: %s", trouble);
	for (size_t i = 0; i < job->list.n; i++)
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
	const struct ws_input_opts opts = naming_input(&job->cfg->naming, args);
	struct ws_layout *l = NULL;
	struct ws_input in;
	if (naming_open(job->ui, &opts, &in, err))
		return -1;
	int rc = make_layout(job, &in, &l, err);
	if (rc == 0)
		rc = list_layout(job, l, err);
	ws_layout_free(l);
	ws_input_close(&in);
	return rc;
}
