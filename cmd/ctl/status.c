/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - one table of the fleet. */
#include "ctl.h"
#include "outlet.h"
#include "run.h"

#include "wsync/registry.h"
#include "wsync/tool/history.h"

#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WATCH_MS = 2000, VERSIONS = 8 };

struct status {
	struct ctl_job *job;
	struct ws_fleet_view *views;
	struct ws_history history;
	struct ws_registry registry;
	struct ws_journal_list records;
};

static const char *pool_of(const struct status *s, size_t i)
{
	const struct ws_registry_entry *e = ws_registry_find(&s->registry, s->job->to.urls[i]);
	return e ? e->pool : "";
}

static const char *user_of(const struct ws_history_push *p, char *dst, size_t n)
{
	const struct passwd *user = p->uid < 0 ? NULL : getpwuid((uid_t)p->uid);
	if (user)
		snprintf(dst, n, "%s", user->pw_name);
	else
		snprintf(dst, n, "%lld", (long long)p->uid);
	return dst;
}

static void put_last(struct ws_jw *w, const struct ws_history_push *p,
                     const struct ws_history_endpoint *e)
{
	char user[64];
	if (!p) {
		ws_jw_null(w, "last_push");
		return;
	}
	ws_jw_object(w, "last_push");
	ws_jw_int(w, "began", p->began);
	ws_jw_int(w, "ended", p->ended);
	ws_jw_int(w, "pid", p->pid);
	ws_jw_str(w, "host", p->host);
	ws_jw_str(w, "user", user_of(p, user, sizeof user));
	ws_jw_str(w, "source", p->source);
	ws_jw_str(w, "weight_version", *p->weight_version ? p->weight_version : NULL);
	ws_jw_str(w, "code", p->code);
	ws_jw_bool(w, "ok", e->ok);
	ws_jw_str(w, "state", ws_endpoint_state_name(e->state));
	ws_jw_str(w, "verify", p->verify);
	if (e->coverage >= 0)
		ws_jw_double(w, "coverage", e->coverage);
	else
		ws_jw_null(w, "coverage");
	ui_json_words(w, "message", *e->message ? e->message : p->message);
	ws_jw_end_object(w);
}

/* "3 min ago, ann@trainer3, ok" */
static const char *last_text(const struct ws_history_push *p, const struct ws_history_endpoint *e,
                             char *dst, size_t n)
{
	char age[32], user[64];
	dst[0] = 0;
	if (p)
		snprintf(dst, n, "%s ago, %s@%s, %s", record_age(age, sizeof age, p->ended),
		         user_of(p, user, sizeof user), p->host, e->ok ? "ok" : p->code);
	return dst;
}

/* Nothing is proven of a server that was restarted since, or has another version. */
static const char *proof_text(const struct ws_history_push *p, const struct ws_history_endpoint *e,
                              const struct ws_endpoint_info *now, char *dst, size_t n)
{
	const bool same = e && e->instance && e->instance == now->instance &&
	                  now->identity.strength == WS_IDENTITY_SURE;
	dst[0] = 0;
	if (same && e->coverage >= 0 &&
	    (!*p->weight_version || strcmp(p->weight_version, now->weight_version) == 0))
		snprintf(dst, n, "%.4g %%", e->coverage);
	return dst;
}

static void put_endpoint(const struct status *s, size_t i, const struct ws_history_push *p,
                         const struct ws_history_endpoint *e)
{
	struct ws_jw *w = ui_line(s->job->ui, "endpoint");
	const struct ws_fleet_view *v = &s->views[i];
	const char *pool = pool_of(s, i);
	ready_put(w, v);
	ws_jw_str(w, "pool", *pool ? pool : NULL);
	ws_jw_str(w, "lineage",
	          v->ready == WS_READY_UNREACHED ? NULL : ws_lineage_name(v->info.lineage));
	const struct record_at at = { v->url,
		                      v->ready == WS_READY_UNREACHED ? NULL : &v->info };
	record_put_pause(w, ws_known(&s->records, at.url, at.info).paused);
	put_last(w, p, e);
	ui_line_end(s->job->ui);
}

/* "2 of 3 endpoints ready; weight version 120: 2, 119: 1" */
static void say_sum(const struct status *s)
{
	const char *versions[VERSIONS];
	size_t counts[VERSIONS], n = 0, ready = 0;
	const size_t all = s->job->to.n;
	for (size_t i = 0; i < all; i++) {
		const char *version = s->views[i].info.weight_version;
		size_t k = 0;
		ready += s->views[i].ready == WS_READY;
		while (k < n && strcmp(versions[k], version) != 0)
			k++;
		if (k == n && (!*version || n == VERSIONS))
			continue;
		counts[k] = k == n ? 1 : counts[k] + 1;
		versions[k] = version;
		n += k == n;
	}
	ui_say(s->job->ui, "%zu of %zu endpoint%s ready", ready, all, all == 1 ? "" : "s");
	for (size_t k = 0; k < n; k++)
		ui_say(s->job->ui, "%s%s: %zu", k ? ", " : "; weight version ",
		       ui_text(versions[k]), counts[k]);
	ui_say(s->job->ui, "\n");
	struct ws_jw *w = ui_line(s->job->ui, "status");
	ws_jw_uint(w, "endpoints", all);
	ws_jw_uint(w, "ready", ready);
	ui_line_end(s->job->ui);
}

/* "5 (by its label alone)". A fresh server's label is no version of anybody. */
static const char *weights_text(const struct ws_fleet_view *v, char *dst, size_t n)
{
	const bool fresh = strcmp(v->info.weight_version, "default") == 0;
	snprintf(dst, n, "%s%s", v->info.weight_version,
	         v->current == WS_CURRENT_NOT               ? " (stale)" :
	         v->current == WS_CURRENT_BY_LABEL && !fresh ? " (by its label alone)" :
	                                                      "");
	return dst;
}

static void show(const struct status *s)
{
	struct table t = { .n_columns = 8 };
	table_add(&t, UI_DIM, "ENDPOINT", "READY", "WEIGHTS", "POOL", "FAMILY", "PROVEN",
	          "LAST PUSH", "WHY NOT READY");
	for (size_t i = 0; i < s->job->to.n; i++) {
		const struct ws_fleet_view *v = &s->views[i];
		const struct ws_history_endpoint *e = NULL;
		const struct ws_history_push *p = ws_history_last(&s->history, v->url, &e);
		char last[192], proof[32], weights[192];
		put_endpoint(s, i, p, e);
		table_add(&t, ready_color(v), v->url, ws_ready_name(v->ready),
		          weights_text(v, weights, sizeof weights), pool_of(s, i),
		          v->ready == WS_READY_UNREACHED ? "" : ws_lineage_name(v->info.lineage),
		          proof_text(p, e, &v->info, proof, sizeof proof),
		          last_text(p, e, last, sizeof last),
		          ui_words(v->why));
	}
	table_print(&t, s->job->ui);
	table_free(&t);
	say_sum(s);
	fflush(stdout);
}

/* A registry or a history that cannot be read leaves its columns empty. */
static void read_files(struct status *s)
{
	struct ws_buf path;
	ws_buf_init(&path, 4095);
	record_read(s->job, &s->records);
	if (run_state_dir(s->job->cfg->state_dir, &path, NULL) == 0)
		(void)ws_history_read(ws_buf_str(&path), &s->history, NULL);
	ws_buf_reset(&path);
	if (run_registry_path(s->job->cfg->common.registry, &path, NULL) == 0)
		(void)ws_registry_load(ws_buf_str(&path), &s->registry, NULL);
	ws_buf_free(&path);
}

static int once(struct ctl_job *job, const struct opt_args *args, struct ws_err *err)
{
	struct status s = { .job = job };
	const int rc = ready_look(job, args, false, &s.views, err);
	read_files(&s); /* warns about records that cannot be read */
	if (!rc)
		show(&s);
	free(s.views);
	ws_journal_list_free(&s.records);
	ws_history_free(&s.history);
	ws_registry_free(&s.registry);
	return rc;
}

int ctl_status(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct ctl_job *job = ctx;
	struct pollfd stop = { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN };
	const bool clears = isatty(STDOUT_FILENO) && !job->ui->json && !job->ui->quiet;
	int rc = 0;
	do {
		if (job->until != WS_FOREVER) /* the limit is that of each table */
			job->until = ws_deadline_in(job->cfg->timeout_ns);
		if (job->cfg->watch && clears)
			printf("\033[H\033[2J");
		rc = once(job, args, err);
		if (rc || !job->cfg->watch || outlet_failed())
			break;
		poll(&stop, 1, WATCH_MS);
		if (ws_cancelled(&run_cancel))
			rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
		else
			rc = ctl_follow(job, err);
	} while (!rc);
	return rc;
}
