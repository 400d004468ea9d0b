/* SPDX-License-Identifier: Apache-2.0 */
/* flags.c - compares settings of endpoints with the trainer's, or with another endpoint's.
 *
 * If settings are given, each endpoint is compared with them; otherwise every
 * endpoint with the first. */
#include "verify_cmd.h"

#include "run.h"

#include "wsync/tool/flags.h"

#include <stdio.h>
#include <stdlib.h>

struct sides {
	struct targets to;
	struct ws_settings want;   /* empty: the first endpoint's */
	struct ws_settings *have;  /* one for each endpoint */
	struct ws_err *errs;
	bool asked;                /* have and errs are filled in */
	struct ws_flags_report sum; /* without items */
};

/* ---- results ---- */

static void put_flag(struct ui *ui, const char *url, const struct ws_flag *f)
{
	struct ws_jw *w = ui_line(ui, "flag");
	ws_jw_str(w, "url", url);
	ws_jw_str(w, "key", f->key);
	ws_jw_str(w, "given", f->given);
	ws_jw_str(w, "answer", ws_flag_verdict_name(f->verdict));
	ws_jw_str(w, "severity", ws_severity_name(f->severity));
	ws_jw_str(w, "expected", f->expected);
	ws_jw_str(w, "found", f->found);
	ws_jw_str(w, "reason", *f->reason ? f->reason : NULL);
	ui_line_end(ui);
}

static void print_flag(struct ui *ui, const struct ws_flag *f)
{
	if (ui->json || ui->quiet || f->verdict == WS_FLAG_EQUAL)
		return;
	ui_head(ui, ui_severity(f->severity), ws_severity_name(f->severity));
	printf("%-9s %s: %s\n", ws_flag_verdict_name(f->verdict), ui_text(f->key),
	       ui_text(f->reason));
}

static void print_sum(struct ui *ui, const char *url, const struct ws_flags_report *r)
{
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, r->errors ? UI_BAD : UI_GOOD, "flags");
	printf("%s: %zu setting%s", ui_text(url), r->n, r->n == 1 ? "" : "s");
	for (unsigned v = 0; v < WS_FLAG_VERDICTS; v++)
		if (r->count[v])
			printf(", %zu %s", r->count[v],
			       ws_flag_verdict_name((enum ws_flag_verdict)v));
	putchar('\n');
}

static const struct ws_flag *first_error(const struct ws_flags_report *r)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->items[i].severity == WS_ERROR)
			return &r->items[i];
	return NULL;
}

/* Prints the report and adds it to the sum. The first difference is the run's error. */
static int conclude(struct ui *ui, const char *url, const struct ws_flags_report *r,
                    struct ws_flags_report *sum, struct ws_err *err)
{
	const struct ws_flag *bad = first_error(r);
	for (size_t i = 0; i < r->n; i++) {
		put_flag(ui, url, &r->items[i]);
		print_flag(ui, &r->items[i]);
	}
	print_sum(ui, url, r);
	sum->n += r->n;
	sum->errors += r->errors;
	sum->compared += r->compared;
	for (unsigned v = 0; v < WS_FLAG_VERDICTS; v++)
		sum->count[v] += r->count[v];
	if (!bad)
		return 0;
	if (err->code == WS_EMISMATCH)
		return -1;
	ws_err_set(err, WS_EMISMATCH, "%zu setting%s differ%s, the first: %s: %s", r->errors,
	           r->errors == 1 ? "" : "s", r->errors == 1 ? "s" : "", bad->key, bad->reason);
	return ws_err_where(err, NULL, url);
}

static void put_end(struct ui *ui, const struct sides *s, int64_t ns, const struct ws_err *err)
{
	struct ws_jw *w = ui_end_open(ui, err);
	ws_jw_uint(w, "endpoints", s->to.n);
	ws_jw_uint(w, "settings", s->sum.n);
	ws_jw_uint(w, "errors", s->sum.errors);
	for (unsigned v = 0; v < WS_FLAG_VERDICTS; v++)
		ws_jw_uint(w, ws_flag_verdict_name((enum ws_flag_verdict)v), s->sum.count[v]);
	ws_jw_int(w, "ns", ns);
	ui_line_end(ui);
}

/* ---- both sides ---- */

static int read_wanted(const struct verify_config *cfg, const struct opt_args *args,
                       struct ws_settings *want, struct ws_err *err)
{
	if (args->n && ws_settings_read(want, args->v[0], err))
		return -1;
	for (size_t i = 0; i < cfg->expect.n; i++)
		if (ws_settings_add(want, cfg->expect.items[i], err))
			return ws_err_wrap(err, "--expect");
	if (args->n && !want->n)
		return ws_err_set(err, WS_EINPUT, "%s: has no settings", args->v[0]);
	return 0;
}

static int ask(const struct verify_job *job, struct sides *s, struct ws_err *err)
{
	const struct verify_config *cfg = job->cfg;
	s->have = calloc(s->to.n, sizeof *s->have);
	s->errs = calloc(s->to.n, sizeof *s->errs);
	if (!s->have || !s->errs)
		return ws_oom(err);
	if (targets_connect(&s->to, &cfg->common, job->ui, err))
		return -1;
	const struct ws_call to = targets_call(&s->to, verify_timeout(cfg));
	const int rc = ws_endpoint_settings(&to, s->have, s->errs, err);
	s->asked = true;
	return rc;
}

/* Compares the endpoints that answered, even if others did not. */
static int compare(const struct verify_job *job, struct sides *s, struct ws_err *err)
{
	const bool between = !s->want.n;
	int rc = 0;
	for (size_t i = between ? 1 : 0; i < s->to.n; i++) {
		struct ws_flags_report r = { 0 };
		if (s->errs[i].code || (between && s->errs[0].code))
			continue;
		if (between ? ws_flags_between(&s->have[0], &s->have[i], &r, err)
		            : ws_flags_compare(&s->want, &s->have[i], &r, err))
			rc = -1;
		else if (conclude(job->ui, s->to.urls[i], &r, &s->sum, err))
			rc = -1;
		ws_flags_report_free(&r);
	}
	return rc;
}

/* Fails if nothing was compared: names that no server knows are mostly misspelled. */
static int check_compared(const struct sides *s, const struct opt_args *args, struct ws_err *err)
{
	if (s->sum.compared)
		return 0;
	if (!s->want.n)
		return ws_err_set(err, WS_EUNKNOWN,
		                  "nothing was compared: the endpoints show none of the known "
		                  "settings");
	ws_err_set(err, WS_EINPUT,
	           "%s: nothing was compared: no endpoint shows any of its %zu settings, like "
	           "'%.60s'",
	           args->n ? args->v[0] : "--expect", s->want.n, s->want.items[0].key);
	return ws_err_hint(
		err, "settings have the names of /server_info: attention_backend, dtype, tp_size");
}

static void free_sides(struct sides *s)
{
	for (size_t i = 0; s->have && i < s->to.n; i++)
		ws_settings_free(&s->have[i]);
	free(s->have);
	free(s->errs);
	ws_settings_free(&s->want);
	targets_free(&s->to);
}

int verify_flags(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	const struct verify_job *job = ctx;
	const struct verify_config *cfg = job->cfg;
	const int64_t since = ws_now_ns();
	struct sides s = { .to = { 0 } };
	int rc = read_wanted(cfg, args, &s.want, err);
	if (!rc)
		rc = targets_find(&s.to, &cfg->common, false, job->ui, err);
	if (!rc && !s.want.n && s.to.n < 2)
		rc = ws_err_set(err, WS_EUSAGE,
		                "flags: a FILE of settings, --expect KEY=VALUE or a second "
		                "--endpoint is needed");
	if (!rc) {
		rc = ask(job, &s, err);
		if (s.asked && err->code != WS_ECANCELLED && compare(job, &s, err))
			rc = -1;
		if (!rc)
			rc = check_compared(&s, args, err);
	}
	put_end(job->ui, &s, ws_now_ns() - since, err);
	free_sides(&s);
	return rc;
}
