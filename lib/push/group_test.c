/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/tool/group_test.h"

#include "group.h"
#include "journal_core.h"
#include "lock.h"
#include "push_state.h"
#include "watchdog.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>

struct held {
	struct ws_group_test base;
	struct ws_endpoint_info *infos;
	struct ws_err *errs;
	struct ws_member *members;
	struct ws_group *group;
	char *locks_dir; /* NULL: there are no locks */
	unsigned kept;   /* ws_locks_keep */
};

static void free_held(struct held *h)
{
	if (!h)
		return;
	free(h->locks_dir);
	free(h->base.members);
	free(h->infos);
	free(h->errs);
	free(h->members);
	free(h);
}

static struct held *new_held(size_t n, struct ws_err *err)
{
	struct held *h = calloc(1, sizeof *h);
	if (h) {
		h->base.n = n;
		h->base.priv = h;
		h->base.members = calloc(n, sizeof *h->base.members);
		h->infos = calloc(n, sizeof *h->infos);
		h->errs = calloc(n, sizeof *h->errs);
		h->members = calloc(n, sizeof *h->members);
	}
	if (h && h->base.members && h->infos && h->errs && h->members)
		return h;
	if (h)
		free_held(h);
	ws_oom(err);
	return NULL;
}

/* The test group is one of gloo. */
static int check_gloo(const struct ws_endpoint_info *info, struct ws_err *err)
{
	if (ws_lineage_family(info->lineage) != WS_FAMILY_VLLM || info->gloo_worker)
		return 0;
	return ws_err_set(err, WS_EREFUSED, "%s: a vLLM joins over gloo only with the worker "
	                  "extension wsync_vllm", info->url);
}

static int probe_members(struct held *h, struct ws_http *http, const struct ws_group_test_opts *o,
                         ws_deadline until, struct ws_err *err)
{
	const struct ws_call to = { http, o->urls, o->n, until, o->cancel, NULL };
	if (ws_endpoint_probe_all(&to, h->infos, h->errs, err))
		return -1;
	for (size_t i = 0; i < o->n; i++) {
		if (push_check_ranks(&h->infos[i], err) || check_gloo(&h->infos[i], err))
			return ws_err_where(err, NULL, o->urls[i]);
		h->members[i] = push_member_of(o->urls[i], &h->infos[i]);
	}
	return 0;
}

static int form(struct held *h, struct ws_http *http, const struct ws_group_test_opts *o,
                struct ws_watchdog *x, ws_deadline until, struct ws_err *err)
{
	const struct ws_group_opts opts = {
		.http = http, .members = h->members, .n_members = o->n, .ops = &ws_transport_gloo,
		.master_address = o->master_address, .master_port = o->master_port, .name = o->name,
		.log = o->log, .cancel = o->cancel, .watch = &ws_watchdog_group, .watch_ctx = x,
	};
	if (ws_group_open(&opts, until, &h->group, err))
		return -1;
	snprintf(h->base.name, sizeof h->base.name, "%s", ws_group_name(h->group));
	h->base.world_size = ws_group_world_size(h->group);
	for (size_t i = 0; i < o->n; i++)
		h->base.members[i] = (struct ws_group_test_member){
			.url = o->urls[i], .rank_offset = h->members[i].rank_offset,
			.ranks = h->members[i].ranks, .ns = h->members[i].ns,
		};
	return 0;
}

static int ask_and_form(struct held *h, struct ws_http *http, const struct ws_group_test_opts *o,
                        struct ws_watchdog *x, ws_deadline until, struct ws_err *err)
{
	const struct ws_watchdog_limit limit = { "timeout_ns", ws_deadline_left(until), until };
	ws_watchdog_phase(x, WS_PHASE_CONNECT, &limit, 1);
	if (probe_members(h, http, o, until, err))
		return ws_err_where(err, ws_phase_name(WS_PHASE_CONNECT), NULL);
	ws_watchdog_phase(x, WS_PHASE_INIT, &limit, 1);
	if (form(h, http, o, x, until, err))
		return ws_err_where(err, ws_phase_name(WS_PHASE_INIT), NULL);
	return 0;
}

/* vLLM has one group: to join ours, it would leave that of a push. */
static int keep_pushes_away(struct held *h, const struct ws_group_test_opts *o,
                            struct ws_locks **out, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	if (!o->state_dir)
		return 0;
	h->locks_dir = ws_journal_locks(o->state_dir);
	if (!h->locks_dir)
		return ws_oom(err);
	if (ws_locks_take(h->locks_dir, o->urls, o->n, 0, o->cancel, out, &why) == 0 ||
	    why.code == WS_ESYSTEM) /* where no push can lock, there is nobody to keep away */
		return 0;
	why.hint[0] = 0; /* there is no option to wait */
	ws_err_hint(&why, "let it end first");
	if (err)
		*err = why;
	return -1;
}

int ws_group_test_run(struct ws_http *http, const struct ws_group_test_opts *opts,
                      ws_deadline until, struct ws_group_test **out, struct ws_err *err)
{
	const struct ws_watchdog_opts watch = { .http = http, .urls = opts->urls, .n = opts->n,
		                               .sink = opts->sink };
	struct ws_err why = WS_ERR_INIT;
	struct ws_watchdog *x = NULL;
	if (ws_check_label(opts->name, "group", WS_GROUP_NAME_MAX, err) ||
	    ws_check_utf8(opts->master_address, "{master_address}", err))
		return -1;
	struct ws_locks *locks = NULL;
	struct held *h = new_held(opts->n, err);
	if (!h || keep_pushes_away(h, opts, &locks, err) || ws_watchdog_open(&watch, &x, err)) {
		ws_locks_drop(locks);
		free_held(h);
		return -1;
	}
	const int rc = ask_and_form(h, http, opts, x, until, &why);
	h->kept = locks ? ws_locks_keep(locks) : 0;
	if (rc) {
		ws_watchdog_failed(x, &why);
		ws_watchdog_finish(x, &why);
		if (err)
			*err = why;
		free_held(h);
	} else {
		*out = &h->base;
	}
	ws_watchdog_close(x);
	return rc;
}

bool ws_group_test_broken(const struct ws_group_test *f)
{
	return !ws_group_alive(((const struct held *)f->priv)->group);
}

void ws_group_test_leave(struct ws_group_test *f, bool destroy, ws_deadline until)
{
	if (!f)
		return;
	struct held *h = f->priv;
	struct ws_locks **locks = calloc(h->base.n, sizeof *locks);
	if (!destroy)
		ws_group_forget(h->group);
	for (size_t i = 0; destroy && h->kept && i < h->base.n; i++)
		if (h->members[i].info &&
		    (!locks || !ws_locks_again(h->locks_dir, h->members[i].url, h->kept,
		                               &locks[i])))
			ws_group_forget_member(h->group, i);
	ws_group_close(h->group, NULL, until);
	for (size_t i = 0; locks && i < h->base.n; i++)
		ws_locks_drop(locks[i]);
	free(locks);
	free_held(h);
}
