/* SPDX-License-Identifier: Apache-2.0 */
/* push_values.c - reads values of the source, before anything is paused. It checks that a tied
 * head equals the embedding, that ranks saved equal replicas of a tensor, and that transformed
 * tensors have no NaN or infinity.
 *
 * The scan runs in the background while the group forms, and the scales that it computes are used
 * later. Values in GPU memory are checked on that GPU. Values in files are checked on the CPU,
 * because their bytes pass through the host anyway. */
#include "gpu_value_scan.h"
#include "push_state.h"

#include <poll.h>

static bool trusts(const struct ws_push *p)
{
	return p->opts.transform && p->opts.transform->trust_values;
}

/* A dry run sends nothing, so it skips the scan: the run that sends finds a NaN. */
static bool looks(const struct ws_push *p)
{
	return p->from.input.transform && !trusts(p) && !p->opts.dry_run;
}

/* With {require} values, tensors that no transform changes are read too. */
static bool scans_all(const struct ws_push *p)
{
	return p->opts.require & WS_REQUIRE_VALUES && p->from.plan;
}

static bool has_replicas(const struct ws_push *p)
{
	return !trusts(p) && ws_catalog_replicas(p->from.input.stored) > 0;
}

static int compare_replicas(struct ws_push *p, struct ws_err *err)
{
	const struct ws_replica_opts opts = {
		.include = p->opts.include,
		.n_include = p->opts.n_include,
		.exclude = p->opts.exclude,
		.n_exclude = p->opts.n_exclude,
		.cancel = &p->checks.stop_values,
	};
	return ws_catalog_check_replicas(p->from.input.stored, &opts, err);
}

static int scan_inputs(struct ws_push *p, struct ws_err *err)
{
	struct ws_gpu_value_scan g = { .log = p->opts.log };
	const int rc =
		ws_transform_check_with(p->from.input.transform, p->from.plan,
	                                ws_gpu_value_scan_run, &g, &p->checks.stop_values, err);
	if (g.seen)
		ws_log(p->opts.log, 1, "values: the GPU checked %zu tensors", g.seen);
	return rc;
}

static int check_values(void *arg, struct ws_err *err)
{
	struct ws_push *p = arg;
	for (size_t i = 0; i < p->checks.names.found.n_tied; i++)
		if (ws_tied_check(&p->checks.names.found.tied[i], &p->checks.stop_values, err))
			return -1;
	if (has_replicas(p) && compare_replicas(p, err))
		return -1;
	if (looks(p) && scan_inputs(p, err))
		return -1;
	return scans_all(p) ? push_check_finite(p, err) : 0;
}

void push_values_memory(const struct ws_push *p, uint64_t *gpu, uint64_t *pinned)
{
	uint64_t more, more_pinned;
	bool placed = false;
	for (size_t i = 0; i < p->from.input.n_sources; i++)
		placed = placed || ws_source_pinned(p->from.input.sources[i]);
	if (!placed || !p->from.input.transform || trusts(p))
		return;
	ws_gpu_value_scan_memory(&more, &more_pinned);
	*gpu += more;
	*pinned += more_pinned;
}

int push_values_begin(struct ws_push *p, struct ws_err *err)
{
	if (!p->checks.names.found.n_tied && !has_replicas(p) && !looks(p) &&
	    !scans_all(p))
		return 0;
	if (ws_cancel_init(&p->checks.stop_values, err))
		return -1;
	if (ws_job_init(&p->checks.values, err) ||
	    ws_job_start(&p->checks.values, check_values, p, err)) {
		ws_job_fini(&p->checks.values);
		ws_cancel_fini(&p->checks.stop_values);
		return -1;
	}
	p->checks.on_values = true;
	return 0;
}

int push_values(struct ws_push *p, struct ws_err *err)
{
	struct pollfd over = { .fd = p->checks.values.fd, .events = POLLIN };
	if (!p->checks.on_values)
		return 0;
	while (poll(&over, 1, 0) <= 0) {
		if (ws_http_wait(p->http, p->run.until, p->opts.cancel, over.fd, err) < 0)
			return -1;
		if (ws_deadline_passed(p->run.until))
			return ws_err_set(err, WS_ETIMEOUT,
			                  "the deadline passed while the values of the source were "
			                  "checked");
	}
	return ws_job_wait(&p->checks.values, err);
}

void push_values_end(struct ws_push *p)
{
	if (!p->checks.on_values)
		return;
	ws_cancel_set(&p->checks.stop_values);
	ws_job_fini(&p->checks.values);
	ws_cancel_fini(&p->checks.stop_values);
	p->checks.on_values = false;
}
