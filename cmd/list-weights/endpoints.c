/* SPDX-License-Identifier: Apache-2.0 */
/* endpoints.c - lists the runtime parameters that endpoints report: fused names and local shapes,
 * or with --checksum reported their checksums. Most servers report no dtypes; then the sizes are
 * unknown too. */
#include "list.h"

#include "run.h"
#include "targets.h"

#include "wsync/tool/checksums.h"

#include <inttypes.h>

static void start_endpoint(struct list_job *job, const struct targets *to, const char *url)
{
	if (to->n > 1)
		ui_say(job->ui, "%s==> %s <==\n", job->tensors ? "\n" : "", url);
	job->list.from_key = "endpoint";
	job->list.from = url;
}

static const struct ws_checksum_rank *find_rank(const struct ws_checksums *sums, uint64_t rank)
{
	for (size_t i = 0; i < sums->n_ranks; i++)
		if ((uint64_t)sums->ranks[i].rank == rank && !sums->ranks[i].replica)
			return &sums->ranks[i];
	return NULL;
}

/* Rows have a name and a checksum: the reply has no shapes. */
static int list_checksums(struct list_job *job, const struct targets *to, const char *url,
                          const struct ws_checksum_rank *rank, struct ws_err *err)
{
	if (!rank)
		return ws_err_set(err, WS_EREFUSED, "%s reports no checksums of rank %" PRIu64, url,
		                  job->cfg->rank);
	if (tensors_start(&job->list, rank->n, err))
		return -1;
	for (size_t k = 0; k < rank->n; k++)
		list_add(job, &(struct tensors_row){ .name = rank->items[k].name,
		                                     .dtype = "",
		                                     .shapeless = true,
		                                     .origin = &rank->items[k] });
	job->list.sum_key = "checksum";
	start_endpoint(job, to, url);
	for (size_t k = 0; k < job->list.n; k++) {
		const struct ws_checksum *sum = job->list.rows[k].origin;
		tensors_print(&job->list, &job->list.rows[k], sum->text);
	}
	list_finish(job);
	return 0;
}

static int ask_checksums(struct list_job *job, const struct targets *to, const struct ws_call *call,
                         struct ws_err *err)
{
	struct ws_checksums sums = { 0 };
	struct ws_err one = WS_ERR_INIT;
	int rc = ws_endpoint_checksums(call, &sums, &one, err);
	if (rc == 0 && one.code != WS_OK) {
		*err = one;
		rc = -1;
	}
	if (rc == 0)
		rc = list_checksums(job, to, call->urls[0], find_rank(&sums, job->cfg->rank), err);
	ws_checksums_free(&sums);
	return rc;
}

static int list_params(struct list_job *job, const struct targets *to, const struct ws_call *call,
                       struct ws_err *err)
{
	const struct list_config *cfg = job->cfg;
	struct tensors *list = &job->list;
	struct ws_weight_list weights = { 0 };
	struct ws_err one;
	if (ws_endpoint_list_all(call, cfg->prefix, (unsigned)cfg->rank, &weights, &one, err))
		return -1;
	const int rc = tensors_start(list, weights.n, err);
	for (size_t k = 0; rc == 0 && k < weights.n; k++) {
		const struct ws_weight *w = &weights.items[k];
		list_add_param(job, w->name, w->dtype, w->n_dims, w->dims, NULL);
	}
	start_endpoint(job, to, call->urls[0]);
	for (size_t k = 0; rc == 0 && k < list->n; k++)
		tensors_print(list, &list->rows[k], NULL);
	if (rc == 0)
		list_finish(job);
	ws_weight_list_free(&weights);
	return rc;
}

static int list_endpoint(struct list_job *job, const struct targets *to, size_t i,
                         struct ws_err *err)
{
	const char *const url = to->urls[i];
	struct ws_call call = targets_call(to, job->cfg->timeout_ns);
	call.urls = &url;
	call.n = 1;
	const int rc = job->cfg->checksum ? ask_checksums(job, to, &call, err) :
	                                    list_params(job, to, &call, err);
	return rc ? ws_err_where(err, NULL, url) : 0;
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
	if (rc == 0 && cfg->checksum)
		rc = targets_check_readable(&to, NULL, ws_deadline_in(cfg->timeout_ns), err);
	if (rc == 0)
		rc = ask_endpoints(job, &to, err);
	targets_free(&to);
	return rc;
}
