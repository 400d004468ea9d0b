/* SPDX-License-Identifier: Apache-2.0 */
/* staged.c - completes and drops updates that wsync-push --stage has sent. The endpoints are those
 * of the options, else all that have such an update. */
#include "ctl.h"
#include "run.h"

#include "wsync/push.h"
#include "wsync/tool/staged.h"

#include <stdlib.h>
#include <string.h>

static const int64_t LOAD_NS = 600 * WS_NS_PER_S; /* servers wait 300 s for what they lack */

struct staging {
	struct ctl_job *job;
	struct ws_buf state_dir;
	struct ws_journal_list records;
	const char **urls; /* owned array; the strings are of records or of the job */
	size_t n;
};

static bool is_among(const char *url, const char *const *urls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ws_endpoint_same(urls[i], url))
			return true;
	return false;
}

static size_t count_endpoints(const struct ws_journal_list *records)
{
	size_t n = 0;
	for (size_t i = 0; i < records->n; i++)
		n += records->items[i].record.n_endpoints;
	return n;
}

static bool has_update(const struct staging *s, const char *url)
{
	size_t k = 0;
	const struct ws_journal_entry *e = ws_staged_at(&s->records, url, &k);
	return e && e->record.staged.stage != WS_STAGE_NONE;
}

static int refuse(const char *url, struct ws_err *err)
{
	if (url)
		ws_err_set(err, WS_EREFUSED, "%s: nothing is staged there", url);
	else
		ws_err_set(err, WS_EREFUSED, "nothing is staged");
	ws_err_hint(err, "stage an update first: wsync-push SOURCE --stage");
	return ws_err_where(err, NULL, url);
}

static void add_staged(struct staging *s, const struct ws_journal_record *r)
{
	for (size_t k = 0; k < r->n_endpoints; k++)
		if (r->staged.stage >= WS_STAGE_DONE && r->endpoints[k].open_update &&
		    !is_among(r->endpoints[k].url, s->urls, s->n))
			s->urls[s->n++] = r->endpoints[k].url;
}

static int open_staging(struct staging *s, struct ctl_job *job, struct ws_err *err)
{
	*s = (struct staging){ .job = job };
	ws_buf_init(&s->state_dir, 4095);
	if (run_state_dir(job->cfg->state_dir, &s->state_dir, err) ||
	    ws_journal_list(ws_buf_str(&s->state_dir), &s->records, err))
		return -1;
	s->urls = calloc(job->to.n + count_endpoints(&s->records) + 1, sizeof *s->urls);
	if (!s->urls)
		return ws_oom(err);
	for (size_t i = 0; i < job->to.n; i++)
		if (has_update(s, job->to.urls[i]))
			s->urls[s->n++] = job->to.urls[i];
	for (size_t i = 0; s->n && i < job->to.n; i++)
		if (!has_update(s, job->to.urls[i]))
			ui_warn(job->ui, job->to.urls[i], "nothing is staged there: left out");
	if (job->to.n && !s->n)
		return refuse(job->to.urls[0], err);
	for (size_t i = 0; job->to.n == 0 && i < s->records.n; i++)
		if (!s->records.items[i].err.code)
			add_staged(s, &s->records.items[i].record);
	return 0;
}

static void close_staging(struct staging *s)
{
	free(s->urls);
	ws_journal_list_free(&s->records);
	ws_buf_free(&s->state_dir);
}

/* ---- complete -------------------------------------------------------------------------------- */

/* Endpoints that cannot be reached, or were restarted, must not keep the others from their new
 * weights. */
struct completion {
	struct staging *of;
	const char **urls; /* the others */
	size_t n;
	struct ws_err *errs; /* of each of of->urls, as the following */
	bool *lost;          /* its server was restarted */
	struct ws_ev_endpoint_result *results;
};

/* Forgets the update of a server that was restarted. */
static void forget_lost(struct completion *c, size_t i, const struct ws_endpoint_info *info)
{
	const struct staging *s = c->of;
	struct ws_discarding d = { 0 };
	const struct ws_repair_opts opts = { .http = s->job->to.http,
		                             .state_dir = ws_buf_str(&s->state_dir),
		                             .timeout_ns = s->job->cfg->timeout_ns,
		                             .cancel = &run_cancel };
	while ((d.entry = ws_staged_at(&s->records, s->urls[i], &d.endpoint)) &&
	       ws_staged_lost(&d.entry->record.endpoints[d.endpoint], info) &&
	       ws_staged_discard(&d, 1, &opts, NULL) == 0)
		c->lost[i] = true;
	if (!c->lost[i])
		return;
	ws_err_set(&c->errs[i], WS_EREFUSED, "%s: it was restarted, and has lost the staged update",
	           s->urls[i]);
	ws_err_hint(&c->errs[i], "push to it: wsync-push SOURCE -e %s", s->urls[i]);
	ws_err_where(&c->errs[i], NULL, s->urls[i]);
}

static void refuse_strange(struct completion *c, size_t i, const struct ws_endpoint_info *info)
{
	size_t k = 0;
	const char *url = c->of->urls[i];
	const struct ws_journal_entry *e = ws_staged_at(&c->of->records, url, &k);
	if (e && !c->lost[i] && ws_staged_strange(&e->record.endpoints[k], info))
		ws_staged_refuse_strange(url, &c->errs[i]);
}

static int find_reachable(struct completion *c, struct ws_err *err)
{
	const struct staging *s = c->of;
	const ws_deadline until = ws_deadline_in(s->job->cfg->common.connect_ns);
	const struct ws_call to = { s->job->to.http, s->urls, s->n, until, &run_cancel, NULL };
	struct ws_endpoint_info *infos = calloc(s->n + 1, sizeof *infos);
	struct ws_err why = WS_ERR_INIT;
	if (!infos)
		return ws_oom(err);
	ws_endpoint_probe_all(&to, infos, c->errs, &why);
	for (size_t i = 0; i < s->n && why.code != WS_ECANCELLED && why.code != WS_ESYSTEM; i++)
		if (!c->errs[i].code) {
			forget_lost(c, i, &infos[i]);
			refuse_strange(c, i, &infos[i]);
		}
	free(infos);
	if (why.code == WS_ECANCELLED || why.code == WS_ESYSTEM) {
		*err = why;
		return -1;
	}
	for (size_t i = 0; i < s->n; i++)
		if (!c->errs[i].code)
			c->urls[c->n++] = s->urls[i];
	if (c->n)
		return 0;
	*err = c->errs[0];
	return -1;
}

/* The message without the URL that it begins with. */
static const char *without_url(const char *message, const char *url)
{
	const size_t n = strlen(url);
	return strncmp(message, url, n) == 0 && strncmp(message + n, ": ", 2) == 0 ?
	               message + n + 2 :
	               message;
}

/* The results in the order of the options, with those of endpoints that do not answer. */
static void merge(struct completion *c, struct ws_ev_end *end, struct ws_err *err)
{
	const struct staging *s = c->of;
	const struct ws_err *gone = NULL;
	size_t k = 0, committed = 0;
	for (size_t i = 0; i < s->n; i++) {
		if (!c->errs[i].code && k < end->n_endpoints) {
			c->results[i] = end->endpoints[k++];
			committed += c->results[i].state == WS_COMMITTED;
			continue;
		}
		c->results[i] = (struct ws_ev_endpoint_result){
			.url = s->urls[i], .state = WS_UNTOUCHED,
			.staged = has_update(s, s->urls[i]) && !c->lost[i],
			.message = without_url(c->errs[i].msg, s->urls[i]),
		};
		if (!gone)
			gone = &c->errs[i];
	}
	end->endpoints = c->results;
	end->n_endpoints = s->n;
	if (!gone || err->code == WS_ECANCELLED) {
		end->err = err->code ? err : NULL;
		return;
	}
	const bool all_did = !err->code;
	if (all_did)
		*err = *gone;
	if (committed && err->code != WS_EPARTIAL) {
		ws_err_wrap(err, "%zu of %zu endpoints updated", committed, s->n);
		err->code = WS_EPARTIAL;
	}
	if (all_did && !err->hint[0])
		ws_err_hint(err, "if that server still runs: wsync-ctl complete; if it is "
		                 "restarted, push to it");
	end->ok = false;
	end->err = err;
}

static struct ws_push_opts push_opts(const struct completion *c,
                                     const struct ws_transform_opts *transform)
{
	const struct ctl_job *job = c->of->job;
	const struct ctl_config *cfg = job->cfg;
	struct ws_push_opts o;
	ws_push_opts_init(&o);
	o.endpoints = c->urls;
	o.n_endpoints = c->n;
	o.complete = true;
	o.pause = (enum ws_pause_mode)cfg->mode;
	o.flush = cfg->flush ? WS_FLUSH_NEVER : WS_FLUSH_LAST;
	o.verify = cfg->verify ? WS_VERIFY_HASH : WS_VERIFY_NONE;
	o.lineage = (enum ws_lineage)cfg->lineage;
	o.weight_version = cfg->weight_version;
	o.allow_older = cfg->allow_older;
	o.state_dir = ws_buf_str(&c->of->state_dir);
	o.api_key = job->to.api_key;
	o.ca_file = job->to.ca_file;
	o.connect_ns = cfg->common.connect_ns;
	o.bucket_ns = job->until == WS_FOREVER ? LOAD_NS : cfg->timeout_ns;
	o.lock_wait_ns = cfg->lock_wait_ns;
	o.map = cfg->naming.map;
	o.config = cfg->naming.config;
	o.like = cfg->naming.like;
	o.sharded_tp = cfg->naming.sharded_tp;
	o.sharded_ep = cfg->naming.sharded_ep;
	o.transform = transform;
	o.include = transform->include;
	o.n_include = transform->n_include;
	o.exclude = transform->exclude;
	o.n_exclude = transform->n_exclude;
	o.sink = job->ui->sink;
	o.log = &job->ui->log;
	o.cancel = &run_cancel;
	return o;
}

static void emit_end(const struct completion *c, const struct ws_ev_end *end)
{
	const struct ui *ui = c->of->job->ui;
	struct ws_event ev = { .type = WS_EV_END, .end = *end };
	ev.end.source = NULL;
	ui->sink.event(ui->sink.ctx, &ev);
}

static void quit_hung(void *ctx, const struct ws_ev_end *end, const struct ws_err *err)
{
	struct ws_err why = *err;
	struct ws_ev_end all = *end;
	merge(ctx, &all, &why);
	emit_end(ctx, &all);
	run_quit(&why);
}

static int complete(struct completion *c, const struct opt_args *args, struct ws_err *err)
{
	const struct ctl_job *job = c->of->job;
	const struct ws_transform_opts transform = transforming_opts(&job->cfg->transforming);
	const struct ws_push_source source = { .paths = args->v, .n_paths = args->n };
	struct ws_push *p = NULL;
	struct ws_ev_end end = { .completed = true, .verify = "none" };
	if (find_reachable(c, err)) {
		merge(c, &end, err);
		emit_end(c, &end);
		return -1;
	}
	struct ws_push_opts o = push_opts(c, &transform);
	o.hung = quit_hung;
	o.hung_ctx = c;
	int rc = ws_push_open(&o, &p, err);
	if (rc == 0) {
		rc = ws_push_run(p, &source, &end, err);
		merge(c, &end, err);
		emit_end(c, &end);
	}
	ws_push_close(p);
	return rc || err->code ? -1 : 0;
}

int ctl_complete(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct staging s;
	struct completion c = { .of = &s };
	const struct ctl_job *job = ctx;
	if (args->n && !job->cfg->verify)
		return ws_err_set(err, WS_EUSAGE, "SOURCE is for --verify hash only");
	int rc = open_staging(&s, ctx, err);
	if (rc == 0 && !s.n)
		rc = refuse(NULL, err);
	c.urls = calloc(s.n + 1, sizeof *c.urls);
	c.errs = calloc(s.n + 1, sizeof *c.errs);
	c.lost = calloc(s.n + 1, sizeof *c.lost);
	c.results = calloc(s.n + 1, sizeof *c.results);
	if (rc == 0)
		rc = c.urls && c.errs && c.lost && c.results ? complete(&c, args, err) :
		                                               ws_oom(err);
	free(c.urls);
	free(c.errs);
	free(c.lost);
	free(c.results);
	close_staging(&s);
	return rc;
}

/* ---- discard --------------------------------------------------------------------------------- */

static void show_discarded(struct staging *s, const struct ws_discarding *items, size_t n)
{
	struct table t = { .n_columns = 3 };
	for (size_t i = 0; i < n; i++) {
		const struct ws_err *e = &items[i].err;
		struct ws_jw *w = ui_line(s->job->ui, "endpoint");
		ws_jw_str(w, "url", s->urls[i]);
		ws_jw_bool(w, "ok", !e->code);
		if (e->code)
			ctl_put_failure(w, e);
		ui_line_end(s->job->ui);
		table_add(&t, e->code ? UI_BAD : UI_GOOD, s->urls[i],
		          e->code ? "failed" : "discarded", e->code ? ui_words(e->msg) : "");
	}
	if (n > 1 || !items[0].err.code)
		table_print(&t, s->job->ui);
	table_free(&t);
}

static int discard(struct staging *s, struct ws_err *err)
{
	const struct ws_repair_opts opts = {
		.http = s->job->to.http, .state_dir = ws_buf_str(&s->state_dir),
		.timeout_ns = s->job->cfg->timeout_ns, .cancel = &run_cancel,
		.lock_wait_ns = s->job->cfg->lock_wait_ns,
	};
	struct ws_discarding *items = calloc(s->n, sizeof *items);
	int rc = items ? 0 : ws_oom(err);
	for (size_t i = 0; rc == 0 && i < s->n; i++) {
		struct ws_discarding *d = &items[i];
		/* A completion that was killed may have left a second record. */
		while ((d->entry = ws_staged_at(&s->records, s->urls[i], &d->endpoint)) &&
		       ws_staged_discard(d, 1, &opts, NULL) == 0)
			;
		if (d->err.code && !err->code)
			*err = d->err;
	}
	if (rc == 0)
		show_discarded(s, items, s->n);
	rc = rc || err->code ? -1 : 0;
	free(items);
	return rc;
}

int ctl_discard(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct staging s;
	(void)args;
	int rc = open_staging(&s, ctx, err);
	if (rc == 0 && s.n)
		rc = discard(&s, err);
	else if (rc == 0)
		ui_say(s.job->ui, "nothing is staged\n");
	close_staging(&s);
	return rc;
}
