/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs.c - compares the probabilities that two sides give the same tokens.
 *
 * The table has all prompts if they are few, else only those that are not good. The sum is below
 * the table. */
#include "verify_cmd.h"

#include "run.h"
#include "table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW = 10 };

/* ---- values of options ---- */

/* limit is a member of the first part's limits. */
int verify_limit(void *limit, const char *value, struct ws_err *err)
{
	bool part[WS_LOGPROB_PARTS] = { true, true };
	const char *number = strchr(value, '='), *word = number ? number + 1 : value;
	char *end = NULL;
	for (unsigned p = 0; number && p < WS_LOGPROB_PARTS; p++) {
		const char *name = ws_logprob_part_name((enum ws_logprob_part)p);
		part[p] = strlen(name) == (size_t)(number - value) &&
		          !strncmp(name, value, strlen(name));
	}
	const double x = strtod(word, &end);
	if (*word < '0' || *word > '9' || *end || !(x <= 1000) ||
	    (!part[WS_PREFILL] && !part[WS_DECODE]))
		return ws_err_set(
			err, WS_EUSAGE,
			"invalid limit '%.40s', must be like 0.01 or decode=0.01", value);
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++)
		if (part[p])
			*(double *)((char *)limit + p * sizeof(struct ws_logprobs_limits)) = x;
	return 0;
}

/* ---- as JSON ---- */

static void put_numbers(struct ws_jw *w, const struct ws_logprobs_diff *d)
{
	ws_jw_uint(w, "tokens", d->tokens);
	ws_jw_double(w, "max", d->max);
	ws_jw_double(w, "mean", d->mean);
	ws_jw_double(w, "k3", d->k3);
	ws_jw_uint(w, "missing", d->missing);
	ws_jw_bool(w, "diverges", d->diverges);
	ws_jw_double(w, "apart", d->apart);
}

static void put_row(struct ui *ui, const struct ws_compared *row)
{
	const struct ws_logprobs_diff *d = row->diff;
	struct ws_jw *w = ui_line(ui, row->prompt ? "logprobs" : "total");
	ws_jw_str(w, "how", ws_logprobs_how_name(row->how));
	ws_jw_str(w, "first", row->first);
	ws_jw_str(w, "second", row->second);
	if (row->prompt)
		ws_jw_uint(w, "prompt", row->prompt);
	ws_jw_str(w, "part", ws_logprob_part_name(row->part));
	if (!row->prompt) {
		ws_jw_uint(w, "prompts", row->prompts);
		ws_jw_uint(w, "different", row->bad);
	}
	put_numbers(w, d);
	if (row->prompt) {
		ws_jw_uint(w, "worst", d->worst);
		ws_jw_uint(w, "same", d->same);
	}
	if (row->prompt && d->max > 0) {
		ws_jw_int(w, "worst_id", d->worst_id);
		ws_jw_double(w, "first_says", d->first);
		ws_jw_double(w, "second_says", d->second);
	}
	ws_jw_bool(w, "good", row->good);
	if (row->prompt)
		ws_jw_str(w, "reason", *row->why ? row->why : NULL);
	ui_line_end(ui);
}

/* ---- as text ---- */

struct shown {
	struct verify_job job; /* first, because asking.c casts ctx to it */
	struct table rows;
	size_t bad;            /* rows that are not good, of this pair */
};

static const char *spell(char *dst, size_t n, double x)
{
	snprintf(dst, n, "%.3g", x);
	return dst;
}

static const char *word_for(const struct ws_compared *row)
{
	if (!row->good)
		return "NO";
	return row->diff->diverges ? "apart" : row->diff->max > 0 ? "near" : "yes";
}

/* Describes the largest difference, missing numbers, and the divergence. */
static void spell_why(char *dst, size_t n, const struct ws_logprobs_diff *d)
{
	size_t len = 0;
	*dst = '\0';
	if (d->max > 0)
		len = (size_t)snprintf(dst, n, "token %zu (id %" PRId64 "): %.9g and %.9g",
		                       d->worst, d->worst_id, d->first, d->second);
	if (d->missing)
		len += (size_t)snprintf(dst + len, n - len, "%s%zu without a number",
		                        len ? ", " : "", d->missing);
	if (d->diverges)
		snprintf(dst + len, n - len, "%sother tokens from %zu on", len ? ", " : "",
		         d->same);
}

static void add_row(struct shown *s, const struct ws_compared *row)
{
	const size_t limit = (size_t)s->job.cfg->limit;
	const struct ws_logprobs_diff *d = row->diff;
	char prompt[24], tokens[24], max[24], mean[24], k3[24], why[160];
	s->bad += !row->good;
	if (limit && row->prompts > FEW && (row->good || s->bad > limit))
		return;
	if (!s->rows.n)
		table_add(&s->rows, UI_DIM, "prompt", "equal", "part", "tokens", "largest", "mean",
		          "k3", "");
	snprintf(prompt, sizeof prompt, "%zu", row->prompt);
	snprintf(tokens, sizeof tokens, "%zu", d->tokens);
	spell_why(why, sizeof why, d);
	table_add(&s->rows, row->good ? UI_GOOD : UI_BAD, prompt, word_for(row),
	          ws_logprob_part_name(row->part), tokens, spell(max, sizeof max, d->max),
	          spell(mean, sizeof mean, d->mean), spell(k3, sizeof k3, d->k3), why);
}

static void print_table(struct shown *s, const struct ws_compared *row)
{
	struct ui *ui = s->job.ui;
	const size_t limit = (size_t)s->job.cfg->limit;
	if (row->how == WS_HOW_BATCHED)
		ui_say(ui, "%s, alone and in a batch\n", ui_text(row->first));
	else if (row->how == WS_HOW_CACHED)
		ui_say(ui, "%s, without its cache and with it\n", ui_text(row->first));
	else if (row->how == WS_HOW_ANSWERS || strcmp(row->first, row->second))
		ui_say(ui, "%s against %s%s\n", ui_text(row->second), ui_text(row->first),
		       row->how == WS_HOW_FORCED ? ", on the tokens that the latter drew" : "");
	else
		ui_say(ui, "%s, its prefill against its decode\n", ui_text(row->first));
	table_print(&s->rows, ui);
	if (limit && row->prompts > FEW && s->bad > limit)
		ui_say(ui, "... and %zu more; --limit 0 shows all\n", s->bad - limit);
}

static void print_total(struct shown *s, const struct ws_compared *row)
{
	struct ui *ui = s->job.ui;
	const struct ws_logprobs_diff *d = row->diff;
	if (ui->json || ui->quiet)
		return;
	ui_head(ui, row->good ? UI_GOOD : UI_BAD, ws_logprob_part_name(row->part));
	if (row->prompts > 1)
		printf("%zu prompts, ", row->prompts);
	printf("%zu token%s, mean difference %.3g, largest %.3g", d->tokens,
	       d->tokens == 1 ? "" : "s", d->mean, d->max);
	if (d->max > 0 && row->prompts == 1)
		printf(" at token %zu", d->worst);
	if (d->max > 0)
		printf(", k3 %.3g", d->k3);
	if (d->diverges && row->prompts == 1)
		printf(", other tokens from %zu on", d->same);
	else if (d->diverges)
		printf(", not the same tokens throughout");
	if (row->bad && row->prompts > 1)
		printf(", %zu prompt%s not equal enough", row->bad, row->bad == 1 ? "" : "s");
	putchar('\n');
}

static void take_row(void *ctx, const struct ws_compared *row)
{
	struct shown *s = ctx;
	put_row(s->job.ui, row);
	if (row->prompt) {
		if (row->prompts > 1)
			add_row(s, row);
		return;
	}
	if (row->part == WS_PREFILL || row->how == WS_HOW_CACHED) { /* the first sum of this pair */
		if (row->prompts > 1 || row->how != WS_HOW_ANSWERS)
			print_table(s, row);
		table_free(&s->rows);
		s->bad = 0;
	}
	print_total(s, row);
}

/* ---- the command ---- */

static int choose(const struct verify_config *cfg, struct ws_verify_logprobs_opts *opts,
                  struct ws_err *err)
{
	const int kinds = cfg->teacher_forced + cfg->batched + cfg->cached;
	if (kinds > 1)
		return ws_err_set(err, WS_EUSAGE, "--%s: cannot be combined with --%s",
		                  cfg->cached ? "cached" : "batched",
		                  cfg->teacher_forced ? "teacher-forced" : "batched");
	if (!kinds && !cfg->save && opts->ask.n_files + opts->ask.n_endpoints < 2)
		return ws_err_set(err, WS_EUSAGE,
		                  "logprobs: a second --endpoint, a FILE of saved answers, --save, "
		                  "--teacher-forced, --batched or --cached is needed");
	opts->how = cfg->batched ? WS_HOW_BATCHED : cfg->cached ? WS_HOW_CACHED :
	            cfg->teacher_forced ? WS_HOW_FORCED : WS_HOW_ANSWERS;
	memcpy(opts->limits, cfg->limits, sizeof opts->limits);
	opts->compared = take_row;
	return 0;
}

int verify_logprobs(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct shown s = { .job = *(const struct verify_job *)ctx, .rows = { .n_columns = 8 } };
	struct verify_asking asking = { 0 };
	struct ws_verify_logprobs_opts opts = { 0 };
	int rc = verify_asking_open(&s.job, args, 2, &asking, &opts.ask, err);
	if (!rc)
		rc = choose(s.job.cfg, &opts, err);
	if (!rc)
		rc = ws_verify_logprobs(&opts, err);
	table_free(&s.rows);
	verify_asking_close(&asking, s.job.ui, err);
	return rc;
}
