/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - rows as a table, as JSON lines with every sample, or as comma-separated values.
 *
 * A table is printed row by row: who measures a slow thing sees how far it is. */
#include "bench.h"

#include "wsync/str.h"
#include "wsync/version.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- on what ------------------------------------------------------------------------------------- */

static void find_processor(char *name, size_t n)
{
	char line[256];
	FILE *f = fopen("/proc/cpuinfo", "re");
	snprintf(name, n, "unknown processor");
	while (f && fgets(line, sizeof line, f)) {
		const char *colon = strchr(line, ':');
		if (strncmp(line, "model name", 10) != 0 || !colon || !colon[1])
			continue;
		ws_printable(name, n, colon + 2, strcspn(colon + 2, "\n"));
		break;
	}
	if (f)
		fclose(f);
}

static void put_gpu(struct ws_jw *w, const struct ws_bench_machine *m, const char *driver)
{
	char text[32];
	ws_jw_str(w, "gpu", m->gpu);
	ws_jw_uint(w, "gpus", m->gpus);
	snprintf(text, sizeof text, "%d.%d", m->major, m->minor);
	ws_jw_str(w, "compute_capability", text);
	ws_jw_int(w, "multiprocessors", m->multiprocessors);
	ws_jw_uint(w, "gpu_memory", m->memory);
	snprintf(text, sizeof text, "%d.%d", m->cuda / 1000, m->cuda % 1000 / 10);
	ws_jw_str(w, "cuda", text);
	ws_jw_str(w, "driver", *driver ? driver : NULL);
	ws_jw_str(w, "nccl", *m->nccl ? m->nccl : NULL);
	ws_jw_str(w, "nccl_path", *m->nccl ? m->nccl_path : NULL);
}

static void say_gpu(struct report *r, const struct ws_bench_machine *m, const char *driver)
{
	char size[32];
	ui_say(r->ui, "%s, sm_%d%d, %d multiprocessors, %s; %s%s%sCUDA %d.%d", m->gpu, m->major, m->minor,
	       m->multiprocessors, ws_format_size(size, sizeof size, m->memory), *driver ? "driver " : "", driver,
	       *driver ? ", " : "", m->cuda / 1000, m->cuda % 1000 / 10);
	if (*m->nccl)
		ui_say(r->ui, ", NCCL %s (%s)", m->nccl, m->nccl_path);
	ui_say(r->ui, "\n");
}

static void tell_machine(struct report *r)
{
	struct utsname u = { 0 };
	char processor[128], driver[64] = "";
	uname(&u);
	find_processor(processor, sizeof processor);
	if (r->has_gpu)
		bench_find_driver(driver, sizeof driver);
	const long n = sysconf(_SC_NPROCESSORS_ONLN);
	struct ws_jw *w = ui_line(r->ui, "machine");
	if (w) {
		ws_jw_str(w, "version", ws_version());
		ws_jw_str(w, "processor", processor);
		ws_jw_int(w, "processors", n);
		ws_jw_str(w, "system", u.sysname);
		ws_jw_str(w, "release", u.release);
		ws_jw_double(w, "load", r->load);
		if (r->has_gpu)
			put_gpu(w, &r->machine, driver);
		ui_line_end(r->ui);
	}
	if (!r->cfg->csv)
		ui_say(r->ui, "wsync %s on %ld x %s, %s %s, load %.1f\n", ws_version(), n, processor, u.sysname,
		       u.release, r->load);
	if (!r->cfg->csv && r->has_gpu)
		say_gpu(r, &r->machine, driver);
	fflush(stdout); /* the first row may take long */
}

void report_begin(struct report *r, const char *const *definitions)
{
	r->definitions = definitions;
	(void)getloadavg(&r->load, 1);
}

void report_open(void *report)
{
	struct report *r = report;
	if (!r->definitions)
		return;
	ui_begin(r->ui);
	if (!r->cfg->csv) {
		for (size_t i = 0; r->definitions[i]; i++)
			ui_say(r->ui, "%s%s%s\n", ui_on(r->ui, UI_DIM), r->definitions[i], ui_off(r->ui));
		ui_say(r->ui, "%s%llu samples after %llu to warm up; median and p99 (nearest rank%s) of them. "
		       "GB is 10^9 bytes.%s\n", ui_on(r->ui, UI_DIM), (unsigned long long)r->cfg->samples,
		       (unsigned long long)r->cfg->warmups,
		       r->cfg->samples < 100 ? ": of fewer than 100 the greatest" : "", ui_off(r->ui));
	}
	r->definitions = NULL;
	tell_machine(r);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static double rate(uint64_t bytes, int64_t ns)
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
	k->has_ratio = ws_bench_ratio(row, &k->ratio);
	if (k->has_ratio && row->against_bytes) {
		struct ws_bench_sum other;
		ws_bench_sum(row->against_ns, row->n, &other);
		k->against_rate = rate(row->against_bytes, other.median);
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
	if (!w)
		return;
	ws_jw_str(w, "stage", k->stage);
	ws_jw_str(w, "name", k->name);
	ws_jw_str(w, "detail", *k->detail ? k->detail : NULL);
	ws_jw_uint(w, "bytes", k->bytes);
	ws_jw_uint(w, "count", k->count);
	ws_jw_int(w, "min_ns", k->sum.min);
	ws_jw_int(w, "median_ns", k->sum.median);
	ws_jw_int(w, "p99_ns", k->sum.p99);
	ws_jw_int(w, "max_ns", k->sum.max);
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
		printf("stage,name,detail,bytes,count,samples,min_ns,median_ns,p99_ns,max_ns,against,ratio,"
		       "ratio_min,ratio_max,errors\n");
	r->headed = true;
	printf("%s,%s,\"%s\",%llu,%u,%zu,%lld,%lld,%lld,%lld,", k->stage, k->name, k->detail,
	       (unsigned long long)k->bytes, k->count, k->sum.n, (long long)k->sum.min, (long long)k->sum.median,
	       (long long)k->sum.p99, (long long)k->sum.max);
	if (k->has_ratio)
		printf("%s,%.4f,%.4f,%.4f,", k->against, k->ratio.median, k->ratio.min, k->ratio.max);
	else
		printf(",,,,");
	if (k->errors >= 0)
		printf("%lld", (long long)k->errors);
	putchar('\n');
	fflush(stdout);
}

static void say_row(struct report *r, const struct report_row *k)
{
	char size[32] = "", median[32], p99[32], speed[32] = "", how[96];
	if (!r->headed)
		ui_say(r->ui, "%s%-22s %-22s %10s %9s %9s %10s  %s%s\n", ui_on(r->ui, UI_DIM), k->stage, "", "bytes",
		       "median", "p99", "rate", "ratio (least..greatest)", ui_off(r->ui));
	r->headed = true;
	ws_format_duration(median, sizeof median, k->sum.median);
	ws_format_duration(p99, sizeof p99, k->sum.p99);
	if (k->bytes) {
		ws_format_size(size, sizeof size, k->bytes);
		ws_format_rate(speed, sizeof speed, k->bytes, k->sum.median);
	}
	snprintf(how, sizeof how, "%s", k->detail);
	if (k->count > 1)
		snprintf(how, sizeof how, "%s x %u", k->detail, k->count);
	ui_say(r->ui, "%-22s %-22s %10s %9s %9s", k->name, how, size, median, p99);
	if (*speed || k->has_ratio)
		ui_say(r->ui, " %10s", speed);
	if (k->has_ratio)
		ui_say(r->ui, "  %.2f (%.2f..%.2f) of %s", k->ratio.median, k->ratio.min, k->ratio.max,
		       k->against);
	if (k->errors > 0)
		ui_say(r->ui, "  %s%lld bytes wrong%s", ui_on(r->ui, UI_BAD), (long long)k->errors,
		       ui_off(r->ui));
	ui_say(r->ui, "\n");
	fflush(stdout);
}

void report_row(void *report, const struct ws_bench_row *row)
{
	struct report *r = report;
	report_open(r);
	if (!keep_row(r, row))
		return;
	const struct report_row *k = &r->rows[r->n - 1];
	r->errors += k->errors > 0 ? k->errors : 0;
	put_row(r->ui, k, row);
	if (r->cfg->csv)
		csv_row(r, k);
	else if (!r->ui->json)
		say_row(r, k);
}

/* ---- the end ------------------------------------------------------------------------------------- */

static const struct report_row *find_best(const struct report *r)
{
	const struct report_row *best = NULL;
	for (size_t i = 0; i < r->n; i++) {
		const struct report_row *k = &r->rows[i];
		if (k->has_ratio && k->against_rate > 0 && (!best || k->ratio.median > best->ratio.median))
			best = k;
	}
	return best;
}

/* How near to what is possible here the nearest of them comes. */
static void say_roofline(struct report *r)
{
	const struct report_row *best = find_best(r);
	if (!best)
		return;
	struct ws_jw *w = ui_line(r->ui, "roofline");
	if (w) {
		ws_jw_str(w, "against", best->against);
		ws_jw_double(w, "rate", best->against_rate);
		ws_jw_str(w, "nearest", best->name);
		ws_jw_uint(w, "bytes", best->bytes);
		ws_jw_double(w, "ratio", best->ratio.median);
		ui_line_end(r->ui);
	}
	char size[32];
	if (!r->cfg->csv)
		ui_say(r->ui, "roofline: %s at %.2f GB/s; nearest: %s of %s at %.2f of it\n", best->against,
		       best->against_rate / 1e9, best->name, ws_format_size(size, sizeof size, best->bytes),
		       best->ratio.median);
}

int report_end(struct report *r, struct ws_err *err)
{
	say_roofline(r);
	if (r->failed)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	if (r->cfg->plot && plot_rows(r, r->cfg->plot, err))
		return -1;
	if (r->errors)
		return ws_err_set(err, WS_EMISMATCH, "%lld bytes were wrong", (long long)r->errors);
	return 0;
}

void report_free(struct report *r)
{
	free(r->rows);
	r->rows = NULL;
	r->n = 0;
}
