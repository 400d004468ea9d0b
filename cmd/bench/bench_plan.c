/* SPDX-License-Identifier: Apache-2.0 */
/* bench_plan.c - estimates a push: bytes from a model's shapes, rates from the user, and the
 * bottleneck. */
#include "bench_cmd.h"

#include "naming.h"
#include "run.h"

#include "wsync/tool/input.h"
#include "wsync/tool/plan.h"
#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bench_rate(void *rate, const char *value, struct ws_err *err)
{
	static const struct unit { const char *name; double bytes;
	} units[] = {
		{ "Gb", 1e9 / 8 }, { "Mb", 1e6 / 8 }, { "Tb", 1e12 / 8 },      { "GB", 1e9 },
		{ "MB", 1e6 },     { "TB", 1e12 },    { "GiB", 1073741824.0 }, { "MiB", 1048576.0 },
	};
	char *end;
	const double number = strtod(value, &end);
	const size_t n = strlen(end) > 2 && strcmp(end + strlen(end) - 2, "/s") == 0 ?
	                         strlen(end) - 2 :
	                         strlen(end);
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (end != value && number > 0 && number < 1e9 && strlen(units[i].name) == n &&
		    strncmp(units[i].name, end, n) == 0) {
			*(double *)rate = number * units[i].bytes;
			return 0;
		}
	return ws_err_set(err, WS_EUSAGE,
	                  "invalid rate '%s', must be like 400Gb (bits) or 12.5GB (bytes) a second",
	                  value);
}

struct bytes {
	uint64_t in, out;
	size_t buckets, tensors;
};

static int count_bytes(struct bench_job *job, const struct opt_args *args, struct bytes *b,
                       struct ws_err *err)
{
	const struct ws_transform_opts wanted = transforming_opts(&job->cfg->transforming);
	struct ws_transform_opts transform = wanted;
	struct bench_source source;
	struct ws_input input = { 0 };
	struct ws_plan *plan = NULL;
	const struct pushing *how = &job->cfg->pushing;
	const struct ws_plan_opts p = { .bucket_size = how->bucket_size ?
		                                               how->bucket_size :
		                                               ws_push_bucket_size(how->backend),
		                        .large = ws_push_bucket_size(how->backend),
		                        .together = how->bucket_size ? 0 : WS_PUSH_BUCKET_LARGEST,
		                        .format = WS_FORMAT_FLATTENED };
	int rc = bench_source(job, args, &source, err);
	const struct ws_input_opts o = { .paths = source.paths, .n_paths = source.n,
		                         .memory = &ws_memory_cuda, .cancel = &run_cancel,
		                         .transform = ws_transform_wanted(&wanted) ? &transform :
		                                                                     NULL };
	if (!rc)
		rc = naming_open(job->ui, &o, &input, err) ||
		                     ws_plan_make(input.catalog, &p, &plan, err) ?
		             -1 :
		             0;
	for (size_t s = 0; !rc && s < input.n_sources; s++)
		b->in += ws_source_bytes(input.sources[s]);
	if (!rc) {
		b->out = plan->bytes;
		b->buckets = plan->n_buckets;
		b->tensors = plan->n_tensors;
	}
	ws_plan_free(plan);
	ws_input_close(&input);
	free(source.paths);
	return rc;
}

static void define_plan(struct bench_job *job)
{
	ui_say(job->ui,
	       "%splan: on paper, bytes / rates. A stage's time is what it would take alone. "
	       "floor: every byte once out of\n"
	       "a sender, all of which send at once, and once into each endpoint, at the links' "
	       "full rate. expected:\n"
	       "%s, and requests.%s\n",
	       ui_on(job->ui, UI_DIM),
	       job->cfg->plan.serial ? "all stages, one after the other" :
	                               "the longest stage, one bucket's share of the others",
	       ui_off(job->ui));
}

static void say_part(struct bench_job *job, const char *name, int64_t ns, const char *how,
                     const char *more)
{
	char text[32];
	if (ns > 0)
		ui_say(job->ui, "  %-22s %10s  %s%s\n", name,
		       ws_format_duration(text, sizeof text, ns), how, more);
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* Links count in GB, memory in GiB. */
static char *format_both(char *text, size_t n, uint64_t bytes)
{
	char size[32];
	snprintf(text, n, "%.*f GB (%s)", bytes < 10000000000 ? 2 : 1, (double)bytes / 1e9,
	         ws_format_size(size, sizeof size, bytes));
	return text;
}

static void say_topology(struct bench_job *job, size_t tensors, const struct ws_bench_topology *t,
                         const struct ws_bench_estimate *e)
{
	char in[64], out[64], link[32];
	ui_say(job->ui, "%zu tensors, %s read, %s sent in %zu bucket%s\n", tensors,
	       format_both(in, sizeof in, e->read_bytes),
	       format_both(out, sizeof out, e->wire_bytes), e->buckets, plural(e->buckets));
	ui_say(job->ui,
	       "%" PRIu64 " sender%s, %" PRIu64 " endpoint%s of %" PRIu64
	       " rank%s; links of %s one way: 1 of each sender, %" PRIu64 " of each endpoint\n",
	       t->senders, plural(t->senders), t->endpoints, plural(t->endpoints), t->ranks,
	       plural(t->ranks), ws_format_rate(link, sizeof link, (uint64_t)t->link, WS_NS_PER_S),
	       t->nics);
}

static void say_estimate(struct bench_job *job, size_t tensors, const struct ws_bench_topology *t,
                         const struct ws_bench_estimate *e)
{
	char floor[32], expected[32], times[64];
	snprintf(times, sizeof times, "each sends its share %u times", e->copies);
	define_plan(job);
	say_topology(job, tensors, t, e);
	say_part(job, "source", e->read_ns, "each sender reads its share", "");
	say_part(job, "making tensors", e->make_ns, "likewise", "");
	say_part(job, "the senders' links", e->send_ns,
	         t->scatter       ? "each sends its share to every endpoint by itself" :
	         e->copies == 1 ? "each sends its share once, to all" :
	                          times,
	         e->turns ? ", one sender after the other (wsync-push --lock)" : "");
	say_part(job, "the receivers' links", e->receive_ns, "every endpoint takes all of it",
	         t->scatter                ? ", each rank its part" :
	         t->tree && t->ranks > 1 ? ", for each rank" :
	                                   "");
	say_part(job, "loading", e->apply_ns, "a rank copies what came into its parameters", "");
	say_part(job, "requests", e->control_ns,
	         "for each bucket, and once for all or for each turn", "");
	ui_say(job->ui, "floor %s, expected %s, bound by %s\n",
	       ws_format_duration(floor, sizeof floor, e->floor_ns),
	       ws_format_duration(expected, sizeof expected, e->expected_ns), e->bound);
}

static void put_estimate(struct bench_job *job, size_t tensors, const struct ws_bench_topology *t,
                         const struct ws_bench_estimate *e)
{
	struct ws_jw *w = ui_line(job->ui, "estimate");
	ws_jw_uint(w, "tensors", tensors);
	ws_jw_uint(w, "read_bytes", e->read_bytes);
	ws_jw_uint(w, "wire_bytes", e->wire_bytes);
	ws_jw_uint(w, "buckets", e->buckets);
	ws_jw_uint(w, "senders", t->senders);
	ws_jw_uint(w, "endpoints", t->endpoints);
	ws_jw_uint(w, "ranks", t->ranks);
	ws_jw_uint(w, "nics", t->nics);
	ws_jw_bool(w, "scatter", t->scatter);
	ws_jw_bool(w, "turns", e->turns);
	ws_jw_uint(w, "copies", e->copies);
	ws_jw_double(w, "link", t->link);
	ws_jw_int(w, "read_ns", e->read_ns);
	ws_jw_int(w, "make_ns", e->make_ns);
	ws_jw_int(w, "send_ns", e->send_ns);
	ws_jw_int(w, "receive_ns", e->receive_ns);
	ws_jw_int(w, "apply_ns", e->apply_ns);
	ws_jw_int(w, "control_ns", e->control_ns);
	ws_jw_int(w, "floor_ns", e->floor_ns);
	ws_jw_int(w, "expected_ns", e->expected_ns);
	ws_jw_str(w, "bound", e->bound);
	ui_line_end(job->ui);
}

int bench_plan(void *ctx, const struct opt_args *args, struct ws_err *err)
{
	struct bench_job *job = ctx;
	const struct bench_config *cfg = job->cfg;
	struct bytes b = { 0 };
	struct ws_bench_estimate e;
	struct ws_bench_topology t = cfg->plan;
	if (!t.endpoints)
		t.endpoints = cfg->receivers ? cfg->receivers : 1;
	t.ranks = cfg->tp;
	t.scatter = cfg->pushing.protocol == WS_PROTOCOL_EP_SCATTER;
	if (t.link <= 0)
		return ws_err_set(err, WS_EUSAGE, "plan: --link RATE is needed, like 400Gb");
	if (count_bytes(job, args, &b, err))
		return -1;
	ws_bench_estimate(&t, b.in, b.out, b.buckets, &e);
	ui_begin(job->ui);
	put_estimate(job, b.tensors, &t, &e);
	if (!cfg->csv)
		say_estimate(job, b.tensors, &t, &e);
	return 0;
}
