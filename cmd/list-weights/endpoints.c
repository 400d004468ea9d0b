/* SPDX-License-Identifier: Apache-2.0 */
/* endpoints.c - lists the runtime parameters that endpoints report: fused names and local shapes.
 * Most servers report no dtypes; then the sizes are unknown too. */
#include "list.h"

#include "run.h"
#include "targets.h"

static int list_endpoint(struct list_job *job, const struct targets *to, size_t i,
                         struct ws_err *err)
{
	const struct list_config *cfg = job->cfg;
	struct tensors *list = &job->list;
	struct ws_weight_list weights = { 0 };
	const char *const url = to->urls[i];
	struct ws_call call = targets_call(to, cfg->timeout_ns);
	struct ws_err one;
	call.urls = &url;
	call.n = 1;
	if (ws_endpoint_list_all(&call, cfg->prefix, (unsigned)cfg->rank, &weights, &one, err))
		return ws_err_where(err, NULL, url);
	const int rc = tensors_start(list, weights.n, err);
	for (size_t k = 0; rc == 0 && k < weights.n; k++) {
		const struct ws_weight *w = &weights.items[k];
		list_add_param(job, w->name, w->dtype, w->n_dims, w->dims);
	}
	if (to->n > 1)
		ui_say(job->ui, "%s==> %s <==\n", job->tensors ? "\n" : "", url);
	list->from_key = "endpoint";
	list->from = url;
	for (size_t k = 0; rc == 0 && k < list->n; k++)
		tensors_print(list, &list->rows[k], NULL);
	if (rc == 0)
		list_finish(job);
	ws_weight_list_free(&weights);
	return rc;
}

/* Asks every endpoint. The first failure is the run's error, the others are warnings. */
static int ask_endpoints(struct list_job *job, const struct targets *to, struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; i < to->n && !ws_cancelled(&run_cancel); i++) {
		struct ws_err one = WS_ERR_INIT;
		if (list_endpoint(job, to, i, &one) == 0)
			continue;
		if (rc == 0)
			*err = one;
		else
			ui_warn(job->ui, one.endpoint, "%s", one.msg);
		rc = -1;
	}
	return rc;
}

int list_endpoints(struct list_job *job, struct ws_err *err)
{
	const struct list_config *cfg = job->cfg;
	struct targets to = { 0 };
	int rc = targets_find(&to, &cfg->common, false, job->ui, err);
	if (rc == 0)
		rc = targets_connect(&to, &cfg->common, job->ui, err);
	if (rc == 0)
		rc = ask_endpoints(job, &to, err);
	targets_free(&to);
	return rc;
}
