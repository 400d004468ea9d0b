/* SPDX-License-Identifier: Apache-2.0 */
/* push_values.c - weights that are changed on their way: are they computed from numbers at all?
 *
 * A NaN must be found before anybody is paused, so everything that is computed with is read once while
 * the endpoints are reached and the group is made; what that finds of scales is used afterwards. */
#include "push_state.h"

#include <poll.h>

static int look(void *arg, struct ws_err *err)
{
	struct ws_push *p = arg;
	return ws_transform_check(p->input.transform, p->plan, &p->check_stop, err);
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
