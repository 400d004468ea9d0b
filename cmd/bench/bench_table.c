/* SPDX-License-Identifier: Apache-2.0 */
/* bench_table.c - rows for people: definitions of the figures, then each measured row. */
#include "bench_cmd.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

enum { ENOUGH = 100 }; /* fewest samples for which p99 may differ from the greatest */

bool report_noisy(const struct report_row *k)
{
	return !k->minor && k->sum.n > 1 && k->sum.spread > WS_BENCH_NOISY;
}

static bool has_p99(const struct report *r)
{
	return r->cfg->samples >= ENOUGH && r->cfg->most_ns == WS_FOREVER;
}

static void define_samples(struct report *r)
{
	char most[32], within[64] = "";
	const unsigned long long samples = r->cfg->samples, warmups = r->cfg->warmups;
	if (r->cfg->most_ns != WS_FOREVER)
		snprintf(within, sizeof within, ", no sample begins after %s",
		         ws_format_duration(most, sizeof most, r->cfg->most_ns));
	ui_say(r->ui, "%llu sample%s after %llu to warm up%s: the least, the median and %s of n.\n",
	       samples, samples == 1 ? "" : "s", warmups, within,
	       has_p99(r) ? "p99 (nearest rank)" : "the greatest");
	ui_say(r->ui, "~: noisy, the middle half of the samples (below 4: all) is wider than a "
	              "quarter\nof the median. GB is 10^9 bytes, MiB 2^20.\n");
}

void table_define(struct report *r)
{
	if (r->cfg->csv)
		return;
	ui_say(r->ui, "%s%s", ui_on(r->ui, UI_DIM), r->definitions);
	define_samples(r);
	ui_say(r->ui, "%s", ui_off(r->ui));
}

static void table_head(struct report *r, const struct report_row *k)
{
	if (!r->headed)
		ui_say(r->ui, "%s%-36s %9s %5s %9s %9s  %9s %6s  %s%s\n", ui_on(r->ui, UI_DIM),
		       k->stage, "bytes", "n", "min", "median", has_p99(r) ? "p99" : "max", "GB/s",
		       "ratio (least..greatest)", ui_off(r->ui));
	r->headed = true;
}

/* "fp8 128x128 xorl (gpu x 4)" */
void report_label(const struct report_row *k, char *label, size_t n)
{
	char times[16] = "";
	if (k->count > 1)
		snprintf(times, sizeof times, " x %u", k->count);
	if (*k->detail || *times)
		snprintf(label, n, "%s (%s%s)", k->name, k->detail, times);
	else
		snprintf(label, n, "%s", k->name);
}

/* Three digits, and a column of one unit. */
static void format_rate(char *text, size_t n, double gigabytes)
{
	snprintf(text, n, "%.*f",
	         gigabytes < 1   ? 3 :
	         gigabytes < 10  ? 2 :
	         gigabytes < 100 ? 1 :
	                           0,
	         gigabytes);
}

void table_row(struct report *r, const struct report_row *k)
{
	char label[128], size[32] = "", min[32], median[32], top[32], speed[32] = "";
	table_head(r, k);
	report_label(k, label, sizeof label);
	ws_format_duration(min, sizeof min, k->sum.min);
	ws_format_duration(median, sizeof median, k->sum.median);
	ws_format_duration(top, sizeof top, has_p99(r) ? k->sum.p99 : k->sum.max);
	if (k->bytes) {
		ws_format_size(size, sizeof size, k->bytes);
		format_rate(speed, sizeof speed, report_rate(k->bytes, k->sum.median) / 1e9);
	}
	ui_say(r->ui, "%-36s %9s %5zu %9s %9s%c %9s", label, size, k->sum.n, min, median,
	       report_noisy(k) ? '~' : ' ', top);
	if (*speed || k->has_ratio)
		ui_say(r->ui, " %6s", speed);
	if (k->has_ratio)
		ui_say(r->ui, "  %.2f (%.2f..%.2f) of %s", k->ratio.median, k->ratio.min,
		       k->ratio.max, k->against);
	if (k->errors > 0)
		ui_say(r->ui, "  %s%lld bytes wrong%s", ui_on(r->ui, UI_BAD), (long long)k->errors,
		       ui_off(r->ui));
	ui_say(r->ui, "\n");
}
