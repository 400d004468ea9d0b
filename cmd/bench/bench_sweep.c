/* SPDX-License-Identifier: Apache-2.0 */
/* bench_sweep.c - measures whole pushes with several settings, and recommends one. */
#include "bench_cmd.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const usual_buckets[] = { "auto", "32MiB", "64MiB", "512MiB" };
static const char *const usual_formats[] = { "flattened_bucket" };
static const char *const usual_quantize[] = { "none" };

enum { ENOUGH = 4 }; /* fewest samples of which one in four can be faster */

/* One setting, and the push with it. */
struct choice {
	const char *bucket, *format, *quantize;
	char detail[48];
	struct ws_push_opts push;
	struct ws_transform_opts transform;
};

struct sweep {
	struct bench_job *job;
	struct whole whole;
	struct choice *choices;
	struct ws_bench_way *ways;
	size_t n;
};

/* The values of a repeatable option, or the usual ones. */
struct axis {
	const char *const *items;
	size_t n;
};

static struct axis axis_of(const struct opt_list *list, const char *const *usual, size_t n)
{
	return list->n ? (struct axis){ list->items, list->n } : (struct axis){ usual, n };
}

static int find_word(const char *const *names, const char *word, const char *option, unsigned *out,
                     struct ws_err *err)
{
	for (unsigned i = 0; names[i]; i++)
		if (strcmp(names[i], word) == 0) {
			*out = i;
			return 0;
		}
	return ws_err_set(err, WS_EUSAGE, "--%s: invalid value '%s'", option, word);
}

static int add_choice(struct sweep *s, const char *bucket, const char *format, const char *quantize,
                      struct ws_err *err)
{
	struct choice *c = &s->choices[s->n];
	unsigned format_of = 0, quantize_of = 0;
	*c = (struct choice){ .bucket = bucket,
		              .format = format,
		              .quantize = quantize,
		              .push = s->whole.push,
		              .transform = s->whole.transform };
	if (pushing_bucket_size(&c->push.bucket_size, bucket, err))
		return ws_err_wrap(err, "--buckets");
	if (find_word(pushing_formats, format, "formats", &format_of, err) ||
	    find_word(transforming_quantize, quantize, "quantizations", &quantize_of, err))
		return -1;
	c->push.format = format_of;
	c->push.transform = &c->transform;
	c->transform.quantize = quantize_of;
	const bool quantized = strcmp(quantize, "none") != 0;
	snprintf(c->detail, sizeof c->detail, "%s%s%s", format, quantized ? ", " : "",
	         quantized ? quantize : "");
	s->ways[s->n] =
		(struct ws_bench_way){ .name = c->bucket, .detail = c->detail, .push = &c->push };
	s->n++;
	return 0;
}

static int add_all(struct sweep *s, struct ws_err *err)
{
	const struct bench_config *cfg = s->job->cfg;
	const struct axis buckets =
		axis_of(&cfg->buckets, usual_buckets, sizeof usual_buckets / sizeof *usual_buckets);
	const struct axis formats = axis_of(&cfg->formats, usual_formats, 1);
	const struct axis quantize = axis_of(&cfg->quantize, usual_quantize, 1);
	const size_t most = buckets.n * formats.n * quantize.n;
	s->choices = calloc(most, sizeof *s->choices);
	s->ways = calloc(most, sizeof *s->ways);
	if (!s->choices || !s->ways)
		return ws_oom(err);
	for (size_t q = 0; q < quantize.n; q++)
		for (size_t f = 0; f < formats.n; f++)
			for (size_t b = 0; b < buckets.n; b++)
				if (add_choice(s, buckets.items[b], formats.items[f],
				               quantize.items[q], err))
					return -1;
	return 0;
}

/* ---- the recommendation ---------------------------------------------------------------------- */

static void put_choice(struct ws_jw *w, const struct choice *c)
{
	ws_jw_str(w, "bucket_size", c->bucket);
	ws_jw_str(w, "load_format", c->format);
	ws_jw_str(w, "quantize", c->quantize);
}

static void put_recommendation(const struct sweep *s, size_t best)
{
	struct ws_jw *w = ui_line(s->job->ui, "recommendation");
	put_choice(w, &s->choices[best]);
	ws_jw_int(w, "total_ns", s->ways[best].total_ns);
	ws_jw_array(w, "alike");
	for (size_t i = 0; i < s->n; i++) {
		if (i == best || !s->ways[i].alike)
			continue;
		ws_jw_object(w, NULL);
		put_choice(w, &s->choices[i]);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
	ui_line_end(s->job->ui);
}

static void say_recommendation(const struct sweep *s, size_t best)
{
	struct ui *ui = s->job->ui;
	const struct choice *c = &s->choices[best];
	char total[32];
	size_t n = 0;
	ui_say(ui, "fastest here, %s: --bucket-size %s --load-format %s --quantize %s\n",
	       ws_format_duration(total, sizeof total, s->ways[best].total_ns), c->bucket,
	       c->format, c->quantize);
	for (size_t i = 0; i < s->n; i++)
		if (i != best && s->ways[i].alike)
			ui_say(ui, "%s%s (%s)",
			       n++ ? ", " : "as fast as this: ", s->choices[i].bucket,
			       s->choices[i].detail);
	ui_say(ui, n ? ". Smaller buckets take less memory of the servers.\n" : "");
	if (s->job->report.n && s->job->report.rows[0].sum.n < ENOUGH)
		ui_say(ui, "with fewer than %d samples, this choice may be chance\n", ENOUGH);
}

static void recommend(const struct sweep *s)
{
	for (size_t i = 0; i < s->n; i++) {
		if (!s->ways[i].fastest)
			continue;
		put_recommendation(s, i);
		if (!s->job->cfg->csv)
			say_recommendation(s, i);
	}
}

int bench_sweep(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	static const char definitions[] =
		"sweep: whole pushes with each bucket size, load format and quantization, in\n"
		"turns. GB/s: bytes as sent / median of the total. ratio: the fastest's time /\n"
		"its own, in the same turn. A setting that is no slower in every fourth turn is\n"
		"as fast as the fastest.\n";
	static const char kept[] =
		"sweep --keep-group: whole pushes with each setting, one setting after the\n"
		"other: a machine that becomes slower is slower for the later ones. GB/s: bytes\n"
		"as sent / median of the total.\n";
	struct bench_job *job = ctx;
	struct sweep s = { .job = job };
	int rc = whole_open(&s.whole, job, args, err);
	if (!rc)
		rc = add_all(&s, err);
	if (!rc) {
		const struct ws_bench_opts o = bench_opts(job);
		report_begin(&job->report, job->cfg->keep_group ? kept : definitions);
		rc = ws_bench_sweep(&o,
		                    &(struct ws_bench_sweep){ .ways = s.ways, .n_ways = s.n,
		                                              .paths = s.whole.source.paths,
		                                              .n_paths = s.whole.source.n,
		                                              .keep = job->cfg->keep_group },
		                    err);
		recommend(&s);
	}
	free(s.choices);
	free(s.ways);
	free(s.whole.source.paths);
	return rc;
}
