/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - prints each row when it is measured: in the table (bench_table.c), as a JSON line with
 * every sample, or as comma-separated values; then the summary of all rows. */
#include "bench_cmd.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void report_begin(struct report *r, const char *definitions)
{
	r->definitions = definitions;
	(void)getloadavg(&r->load, 1);
}

void report_open(void *report)
{
	struct report *r = report;
	if (!r->definitions)
		return;
	ui_progress(r->ui, NULL);
	ui_begin(r->ui);
	table_define(r);
	r->definitions = NULL;
	report_machine(r);
}

void report_turn(void *report, const char *name, unsigned done, unsigned of)
{
	const struct report *r = report;
	char text[128];
	snprintf(text, sizeof text, "%s: %u of %u", name, done + 1, of);
	ui_progress(r->ui, text);
}

/* ---- rows ------------------------------------------------------------------------------------ */

double report_rate(uint64_t bytes, int64_t ns)
{
	return ns > 0 ? (double)bytes / ((double)ns / (double)WS_NS_PER_S) : 0;
}

static bool keep_row(struct report *r, const struct ws_bench_row *row)
{
	struct report_row *rows = realloc(r->rows, (r->n + 1) * sizeof *rows);
	if (!rows) {
		r->failed = true;
		return false;
	}
	r->rows = rows;
	struct report_row *k = &rows[r->n++];
	*k = (struct report_row){ .bytes = row->bytes, .errors = row->errors,
		                  .count = row->count > 1 ? row->count : 1 };
	snprintf(k->stage, sizeof k->stage, "%s", row->stage);
	snprintf(k->name, sizeof k->name, "%s", row->name);
	snprintf(k->detail, sizeof k->detail, "%s", row->detail ? row->detail : "");
	snprintf(k->against, sizeof k->against, "%s", row->against ? row->against : "");
	ws_bench_sum(row->ns, row->n, &k->sum);
	k->minor = strcmp(k->stage, "push") == 0 && k->sum.median < rows[0].sum.median / 100;
	k->has_ratio = ws_bench_ratio(row, &k->ratio);
	if (k->has_ratio && row->against_bytes) {
		struct ws_bench_sum other;
		ws_bench_sum(row->against_ns, row->n, &other);
		k->against_rate = report_rate(row->against_bytes, other.median);
	}
	return true;
}

static void put_samples(struct ws_jw *w, const char *key, const int64_t *ns, size_t n)
{
	ws_jw_array(w, key);
	for (size_t i = 0; i < n; i++)
		ws_jw_int(w, NULL, ns[i]);
	ws_jw_end_array(w);
}

static void put_row(struct ui *ui, const struct report_row *k, const struct ws_bench_row *row)
{
	struct ws_jw *w = ui_line(ui, "measure");
	ws_jw_str(w, "stage", k->stage);
	ws_jw_str(w, "name", k->name);
	ws_jw_str(w, "detail", *k->detail ? k->detail : NULL);
	ws_jw_uint(w, "bytes", k->bytes);
	ws_jw_uint(w, "count", k->count);
	ws_jw_int(w, "min_ns", k->sum.min);
	ws_jw_int(w, "median_ns", k->sum.median);
	ws_jw_int(w, "p99_ns", k->sum.p99);
	ws_jw_int(w, "max_ns", k->sum.max);
	ws_jw_double(w, "spread", k->sum.spread);
	put_samples(w, "ns", row->ns, row->n);
	ws_jw_str(w, "against", k->has_ratio ? k->against : NULL);
	if (k->has_ratio) {
		ws_jw_uint(w, "against_bytes", row->against_bytes);
		put_samples(w, "against_ns", row->against_ns, row->n);
		ws_jw_double(w, "ratio", k->ratio.median);
		ws_jw_double(w, "ratio_min", k->ratio.min);
		ws_jw_double(w, "ratio_max", k->ratio.max);
	}
	if (k->errors >= 0)
		ws_jw_int(w, "errors", k->errors);
	ui_line_end(ui);
}

static void csv_row(struct report *r, const struct report_row *k)
{
	if (!r->headed)
		printf("stage,name,detail,bytes,count,samples,min_ns,median_ns,p99_ns,max_ns,"
		       "against,ratio,ratio_min,ratio_max,errors,spread,rate\n");
	r->headed = true;
	printf("%s,%s,\"%s\",%llu,%u,%zu,%lld,%lld,%lld,%lld,", k->stage, k->name, k->detail,
	       (unsigned long long)k->bytes, k->count, k->sum.n, (long long)k->sum.min,
	       (long long)k->sum.median, (long long)k->sum.p99, (long long)k->sum.max);
	if (k->has_ratio)
		printf("%s,%.4f,%.4f,%.4f,", k->against, k->ratio.median, k->ratio.min,
		       k->ratio.max);
	else
		printf(",,,,");
	if (k->errors >= 0)
		printf("%lld", (long long)k->errors);
	printf(",%.4f,%.0f\n", k->sum.spread, report_rate(k->bytes, k->sum.median));
}

void report_row(void *report, const struct ws_bench_row *row)
{
	struct report *r = report;
	report_open(r);
	ui_progress(r->ui, NULL);
	if (!keep_row(r, row))
		return;
	const struct report_row *k = &r->rows[r->n - 1];
	r->errors += k->errors > 0 ? k->errors : 0;
	put_row(r->ui, k, row);
	if (r->cfg->csv)
		csv_row(r, k);
	else if (!r->ui->json)
		table_row(r, k);
}

/* ---- the end --------------------------------------------------------------------------------- */

static const struct report_row *find_best(const struct report *r)
{
	const struct report_row *best = NULL;
	for (size_t i = 0; i < r->n; i++) {
		const struct report_row *k = &r->rows[i];
		if (k->has_ratio && k->against_rate > 0 &&
		    (!best || k->ratio.median > best->ratio.median))
			best = k;
	}
	return best;
}

/* Reports the row that comes nearest to the speed of its reference. */
static void say_roofline(struct report *r)
{
	const struct report_row *best = find_best(r);
	if (!best)
		return;
	struct ws_jw *w = ui_line(r->ui, "roofline");
	ws_jw_str(w, "against", best->against);
	ws_jw_double(w, "rate", best->against_rate);
	ws_jw_str(w, "nearest", best->name);
	ws_jw_uint(w, "bytes", best->bytes);
	ws_jw_double(w, "ratio", best->ratio.median);
	ui_line_end(r->ui);
	char size[32];
	if (!r->cfg->csv)
		ui_say(r->ui, "roofline: %s at %.2f GB/s; nearest: %s of %s at %.2f of it\n",
		       best->against, best->against_rate / 1e9, best->name,
		       ws_format_size(size, sizeof size, best->bytes), best->ratio.median);
}

/* Reports the number of noisy rows, and the machine's load, which may be the cause. */
static void say_noise(struct report *r)
{
	const struct report_row *worst = NULL;
	size_t n = 0;
	double load = 0;
	for (size_t i = 0; i < r->n; i++) {
		const struct report_row *k = &r->rows[i];
		if (!report_noisy(k))
			continue;
		n++;
		worst = !worst || k->sum.spread > worst->sum.spread ? k : worst;
	}
	(void)getloadavg(&load, 1);
	if (!worst || r->cfg->csv)
		return;
	char size[32] = "", label[128];
	report_label(worst, label, sizeof label);
	if (worst->bytes)
		ws_format_size(size, sizeof size, worst->bytes);
	ui_say(r->ui,
	       "~ noisy: %zu of %zu rows, most of all %s%s%s (%.0f %%); load %.1f at first, %.1f "
	       "now\n",
	       n, r->n, label, *size ? ", " : "", size, 100 * worst->sum.spread, r->load, load);
}

/* Reports that the checked rows have no errors. */
static void say_checked(struct report *r)
{
	size_t n = 0;
	for (size_t i = 0; i < r->n; i++)
		n += r->rows[i].errors >= 0;
	if (n && !r->errors && !r->cfg->csv)
		ui_say(r->ui, "checked: %zu of %zu rows, no byte is wrong\n", n, r->n);
}

static int end_rows(struct report *r, struct ws_err *err)
{
	if (r->failed)
		return ws_oom(err);
	if (r->errors)
		return ws_err_set(err, WS_EMISMATCH, "%lld bytes were wrong", (long long)r->errors);
	return 0;
}

int report_end(struct report *r, struct ws_err *err)
{
	ui_progress(r->ui, NULL);
	if (!r->n)
		return 0;
	say_roofline(r);
	say_noise(r);
	say_checked(r);
	return end_rows(r, err);
}

void report_free(struct report *r)
{
	free(r->rows);
	r->rows = NULL;
	r->n = 0;
}
