/* SPDX-License-Identifier: Apache-2.0 */
/* push.c - whole jobs, taken apart by the phases that they themselves account for, and beside each of
 * them its source read alone. */
#include "load.h"

#include <stdlib.h>
#include <string.h>

enum { PHASES = WS_PHASE_COUNT };

struct whole {
	const struct ws_bench_opts *opts;
	const struct ws_bench_push *what;
	struct ws_push_opts push;
	struct ws_push *kept; /* NULL: each job has a group of its own */
	struct bench_load load;
	int64_t *total, *supply, *phases[PHASES];
	struct ws_ev_end end; /* of the last */
};

static int run_job(struct whole *w, struct ws_ev_end *end, struct ws_err *err)
{
	const struct ws_push_source source = { .paths = w->what->paths, .n_paths = w->what->n_paths };
	struct ws_push *p = w->kept;
	if (!p && ws_push_open(&w->push, &p, err))
		return -1;
	const int rc = ws_push_run(p, &source, end, err);
	if (!w->kept) {
		ws_push_finish(p, end);
		ws_push_close(p);
	}
	return rc;
}

static int take_pair(struct whole *w, unsigned at, struct ws_err *err)
{
	if (ws_cancelled(w->opts->cancel))
		return ws_err_set(err, WS_ECANCELLED, "cancelled");
	if (w->what->alone && bench_load_run(&w->load, &w->supply[at], err))
		return -1;
	if (run_job(w, &w->end, err))
		return -1;
	w->total[at] = w->end.total_ns;
	for (int i = 0; i < PHASES; i++)
		w->phases[i][at] = w->end.ns[i];
	return 0;
}

static int take_all(struct whole *w, struct ws_err *err)
{
	const struct ws_bench_opts *o = w->opts;
	for (unsigned i = 0; i < o->warmups + o->samples; i++)
		if (take_pair(w, i < o->warmups ? 0 : i - o->warmups, err))
			return -1;
	return 0;
}

/* ---- what comes of it ---------------------------------------------------------------------------- */

static int64_t median(const int64_t *ns, size_t n)
{
	struct ws_bench_sum sum;
	ws_bench_sum(ns, n, &sum);
	return sum.median;
}

/* The transfer goes no faster than its source alone: within a fifth, that is what it waits for. */
static const char *judge(const struct ws_bench_bound *b)
{
	const int64_t transfer = b->phase_ns[WS_PHASE_TRANSFER], apply = b->phase_ns[WS_PHASE_APPLY];
	const int64_t verify = b->phase_ns[WS_PHASE_VERIFY];
	const int64_t control = b->total_ns - transfer - apply - verify;
	if (verify > transfer && verify > apply && verify > control)
		return "verify";
	if (control > transfer && control > apply)
		return "control";
	if (apply > transfer)
		return "apply";
	return b->supply_ns && b->supply_ns >= transfer / 5 * 4 ? "source" : "wire";
}

static void conclude(const struct whole *w, struct ws_bench_bound *out)
{
	const unsigned n = w->opts->samples;
	*out = (struct ws_bench_bound){ .total_ns = median(w->total, n), .bytes = w->end.bytes,
		                        .wire_bytes = w->end.wire_bytes, .buckets = w->end.buckets };
	for (int i = 0; i < PHASES; i++)
		out->phase_ns[i] = median(w->phases[i], n);
	if (w->what->alone)
		out->supply_ns = median(w->supply, n);
	out->bound = judge(out);
	const int64_t transfer = out->phase_ns[WS_PHASE_TRANSFER];
	out->overlap = transfer > 0 ? (double)out->supply_ns / (double)transfer : 0;
}

static void tell_all(const struct whole *w)
{
	const unsigned n = w->opts->samples;
	struct ws_bench_row row = { .stage = "push", .name = "total", .detail = "", .bytes = w->end.bytes,
		                    .ns = w->total, .n = n, .errors = -1 };
	bench_tell(w->opts, &row);
	for (int i = 0; i < PHASES; i++) {
		row = (struct ws_bench_row){ .stage = "push", .name = ws_phase_name((enum ws_phase)i),
			                     .detail = "", .ns = w->phases[i], .n = n, .errors = -1 };
		if (i == WS_PHASE_TRANSFER) {
			row.bytes = w->end.bytes;
			row.against = w->what->alone ? "its source alone" : NULL;
			row.against_bytes = w->load.bytes;
			row.against_ns = w->supply;
		}
		if (median(w->phases[i], n) > 0)
			bench_tell(w->opts, &row);
	}
}

static int allocate(struct whole *w, struct ws_err *err)
{
	const unsigned n = w->opts->samples;
	bool all = (w->total = calloc(n, sizeof *w->total)) && (w->supply = calloc(n, sizeof *w->supply));
	for (int i = 0; all && i < PHASES; i++)
		all = (w->phases[i] = calloc(n, sizeof *w->phases[i])) != NULL;
	return all ? 0 : ws_err_set(err, WS_ESYSTEM, "out of memory");
}

int ws_bench_push(const struct ws_bench_opts *opts, const struct ws_bench_push *b, bool keep,
                  struct ws_bench_bound *out, struct ws_err *err)
{
	struct whole w = { .opts = opts, .what = b, .push = *b->push };
	const struct ws_bench_load load = { .paths = b->paths, .n_paths = b->n_paths,
		                            .transform = b->push->transform };
	w.push.sink = (struct ws_sink){ 0 };
	int rc = allocate(&w, err);
	if (!rc && b->alone)
		rc = bench_load_open(&w.load, &load, err);
	w.load.cancel = opts->cancel;
	if (!rc && keep)
		rc = ws_push_open(&w.push, &w.kept, err);
	if (!rc)
		rc = take_all(&w, err);
	if (!rc) {
		conclude(&w, out);
		tell_all(&w);
	}
	ws_push_close(w.kept);
	bench_load_close(&w.load);
	free(w.total);
	free(w.supply);
	for (int i = 0; i < PHASES; i++)
		free(w.phases[i]);
	return rc;
}
