/* SPDX-License-Identifier: Apache-2.0 */
/* push_values.c - weights that are changed on their way: are they computed from numbers at all?
 *
 * A NaN must be found before anybody is paused, so everything that is computed with is read once while
 * the endpoints are reached and the group is made; what that finds of scales is used afterwards. What is in the
 * memory of a GPU is looked at there; what lies in files is not: its bytes would come to the host for it all the
 * same, and go on from there. */
#include "look_gpu.h"
#include "push_state.h"

#include <poll.h>

static int look(void *arg, struct ws_err *err)
{
	struct ws_push *p = arg;
	struct ws_look_gpu g = { .log = p->opts.log };
	const int rc = ws_transform_check_with(p->input.transform, p->plan, ws_look_on_gpu, &g, &p->check_stop, err);
	if (g.seen)
		ws_log(p->opts.log, 1, "values: the GPU has looked at %zu tensors", g.seen);
	return rc;
}

void push_values_memory(const struct ws_push *p, uint64_t *gpu, uint64_t *pinned)
{
	uint64_t more, more_pinned;
	bool placed = false;
	for (size_t i = 0; i < p->input.n_sources; i++)
		placed = placed || ws_source_pinned(p->input.sources[i]);
	if (!placed || !p->input.transform || p->opts.transform->trust_values)
		return;
	ws_look_gpu_memory(&more, &more_pinned);
	*gpu += more;
	*pinned += more_pinned;
}

int push_values_begin(struct ws_push *p, struct ws_err *err)
{
	if (!p->input.transform || p->opts.transform->trust_values || p->opts.dry_run)
		return 0;
	if (ws_cancel_init(&p->check_stop, err))
		return -1;
	if (ws_job_init(&p->check, err) || ws_job_start(&p->check, look, p, err)) {
		ws_job_fini(&p->check);
		ws_cancel_fini(&p->check_stop);
		return -1;
	}
	p->checking = true;
	return 0;
}

int push_values(struct ws_push *p, struct ws_err *err)
{
	struct pollfd over = { .fd = p->check.fd, .events = POLLIN };
	if (!p->checking)
		return 0;
	while (poll(&over, 1, 0) <= 0) {
		if (ws_http_wait(p->http, p->until, p->opts.cancel, over.fd, err) < 0)
			return -1;
		if (ws_deadline_passed(p->until))
			return ws_err_set(err, WS_ETIMEOUT, "looking at the values of the source: the deadline "
			                  "passed");
	}
	return ws_job_wait(&p->check, err);
}

void push_values_end(struct ws_push *p)
{
	if (!p->checking)
		return;
	ws_cancel_set(&p->check_stop);
	ws_job_fini(&p->check);
	ws_cancel_fini(&p->check_stop);
	p->checking = false;
}
