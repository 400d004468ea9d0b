/* SPDX-License-Identifier: Apache-2.0 */
/* init_group.c - tests whether a group forms. */
#include "ctl.h"
#include "run.h"

#include "wsync/tool/group_test.h"
#include "wsync/tool/str.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static const int64_t LEAVE_NS = 10 * WS_NS_PER_S;

static void put_member(struct ctl_job *job, const struct ws_group_test *f,
                       const struct ws_group_test_member *m)
{
	struct ws_jw *w = ui_line(job->ui, "endpoint");
	ws_jw_str(w, "url", m->url);
	ws_jw_bool(w, "ok", true);
	ws_jw_str(w, "group", f->name);
	ws_jw_uint(w, "rank_offset", m->rank_offset);
	ws_jw_uint(w, "ranks", m->ranks);
	ws_jw_uint(w, "world_size", f->world_size);
	ws_jw_int(w, "ns", m->ns);
	ui_line_end(job->ui);
}

static void show(struct ctl_job *job, const struct ws_group_test *f)
{
	struct table t = { .n_columns = 4 };
	for (size_t i = 0; i < f->n; i++) {
		const struct ws_group_test_member *m = &f->members[i];
		char took[32], ranks[64];
		put_member(job, f, m);
		ws_format_duration(took, sizeof took, m->ns);
		if (m->ranks == 1)
			snprintf(ranks, sizeof ranks, "rank %u of %u", m->rank_offset,
			         f->world_size);
		else
			snprintf(ranks, sizeof ranks, "ranks %u to %u of %u", m->rank_offset,
			         m->rank_offset + m->ranks - 1, f->world_size);
		table_add(&t, UI_GOOD, m->url, f->name, took, ranks);
	}
	table_print(&t, job->ui);
	table_free(&t);
}

/* Waits until a signal comes, or a server leaves. */
static int keep(const struct ws_group_test *f, struct ws_err *err)
{
	struct pollfd stop = { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN };
	while (!ws_cancelled(&run_cancel)) {
		if (ws_group_test_broken(f))
			return ws_err_set(err, WS_EDATA, "a peer left group %s", f->name);
		poll(&stop, 1, 200);
	}
	return 0;
}

int ctl_init_group(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct ctl_job *job = ctx;
	const struct ctl_config *cfg = job->cfg;
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf dir;
	ws_buf_init(&dir, 4095);
	if (run_state_dir(cfg->state_dir, &dir, &why) && cfg->state_dir) {
		ws_buf_free(&dir);
		*err = why;
		return -1;
	}
	const struct ws_group_test_opts opts = {
		.urls = job->to.urls, .n = job->to.n, .name = args->n ? args->v[0] : NULL,
		.master_address = cfg->master_address, .master_port = (uint16_t)cfg->master_port,
		.state_dir = dir.len ? ws_buf_str(&dir) : NULL,
		.sink = job->ui->sink, .log = &job->ui->log, .cancel = &run_cancel,
	};
	struct ws_group_test *f = NULL;
	int rc = ws_group_test_run(job->to.http, &opts, ws_deadline_in(cfg->timeout_ns), &f, err);
	ws_buf_free(&dir);
	if (rc)
		return -1;
	show(job, f);
	if (cfg->keep)
		rc = keep(f, err);
	ws_group_test_leave(f, cfg->keep, ws_deadline_in(LEAVE_NS));
	return rc;
}
