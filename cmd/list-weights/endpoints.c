/* SPDX-License-Identifier: Apache-2.0 */
/* endpoints.c - the runtime parameters that endpoints show: fused names and local shapes, mostly
 * without dtypes, and then there are no sizes either. */
#include "list.h"

#include "run.h"
#include "targets.h"

static void add_weight(struct list_job *job, const struct ws_weight *w)
{
	struct tensors_row row = {
		.name = w->name, .dtype = w->dtype, .n_dims = w->n_dims, .dims = w->dims,
	};
	enum ws_dtype dtype;
	row.sized = ws_dtype_from_torch(w->dtype, &dtype) &&
	            ws_dtype_bytes(dtype, w->n_dims, w->dims, &row.bytes);
	list_add(job, &row);
}

static int list_endpoint(struct list_job *job, struct ws_http *http, const char *url, bool alone,
                         struct ws_err *err)
{
	const struct list_config *cfg = job->cfg;
	struct tensors *list = &job->list;
	struct ws_weight_list weights = { 0 };
	const struct ws_call to = { http, &url, 1, ws_deadline_in(cfg->timeout_ns), &run_cancel };
	struct ws_err one;
	if (ws_endpoint_list_all(&to, cfg->prefix, (unsigned)cfg->rank, &weights, &one, err))
		return ws_err_where(err, NULL, url);
	const int rc = tensors_start(list, weights.n, err);
	for (size_t i = 0; rc == 0 && i < weights.n; i++)
		add_weight(job, &weights.items[i]);
	if (!alone)
		ui_say(job->ui, "%s==> %s <==\n", job->tensors ? "\n" : "", url);
	list->from_key = "endpoint";
	list->from = url;
	for (size_t i = 0; rc == 0 && i < list->n; i++)
		tensors_print(list, &list->rows[i], NULL);
	if (rc == 0)
		list_finish(job);
	ws_weight_list_free(&weights);
	return rc;
}

/* Every endpoint is asked; the first failure is the run's, the others are said on the way. */
static int ask_endpoints(struct list_job *job, struct ws_http *http, const struct targets *to,
                         struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; i < to->n && !ws_cancelled(&run_cancel); i++) {
		struct ws_err one = WS_ERR_INIT;
		if (list_endpoint(job, http, to->urls[i], to->n == 1, &one) == 0)
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
	struct ws_http *http = NULL;
	int rc = targets_find(&to, &cfg->endpoints, cfg->pool, &cfg->common, false, job->ui, err);
	if (rc == 0)
		rc = targets_connect(&to, cfg->connect_ns, job->ui, &http, err);
	if (rc == 0)
		rc = ask_endpoints(job, http, &to, err);
	ws_client_close(http);
	targets_free(&to);
	return rc;
}
