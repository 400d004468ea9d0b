/* SPDX-License-Identifier: Apache-2.0 */
/* bench_push.c - times whole pushes, phase by phase and in turns with the source alone, and
 * compares several ways to push. */
#include "bench_load.h"

#include <stdlib.h>

/* Indices of the measured times: the phases first, then these. */
enum { TOTAL = WS_PHASE_COUNT, SUPPLY, TOGETHER, TIMES };

struct whole {
	const struct ws_bench_opts *opts;
	const struct ws_bench_push *what;
	struct ws_push_opts push;
	struct ws_push *kept;   /* NULL: each push forms its own group */
	struct bench_load load; /* the source alone */
	size_t n;               /* samples of each time */
	int64_t *ns[TIMES];     /* one allocation */
	struct ws_ev_end end;   /* of the last push */
};

static int64_t median(const int64_t *ns, size_t n)
{
	struct ws_bench_sum sum = { 0 };
	if (n)
		ws_bench_sum(ns, n, &sum);
	return sum.median;
}

/* ---- taking samples -------------------------------------------------------------------------- */

static int take_push(struct whole *w, struct ws_err *err)
{
	const struct ws_push_source source = { .paths = w->what->paths,
		                               .n_paths = w->what->n_paths };
	struct ws_ev_end end;
	struct ws_push *p = w->kept;
	if (!p && ws_push_open(&w->push, &p, err))
		return -1;
	const int rc = ws_push_run(p, &source, &end, err);
	if (!w->kept) {
		ws_push_finish(p, &end);
		ws_push_close(p);
	}
	if (rc)
		return -1;
	w->end = end;
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		w->ns[i][w->n] = end.ns[i];
	w->ns[TOTAL][w->n] = end.total_ns;
	/* The next bucket is computed while servers load the current one. A push that sends one
	 * request for each bucket (ipc) counts most of that time as apply. */
	w->ns[TOGETHER][w->n] = end.ns[WS_PHASE_TRANSFER] + end.ns[WS_PHASE_APPLY];
	return 0;
}

static int take_supply(struct whole *w, struct ws_err *err)
{
	if (!w->what->alone)
		return 0;
	return (w->load.gpu ? bench_stage_run : bench_load_run)(&w->load, &w->ns[SUPPLY][w->n],
	                                                        err);
}

/* Takes sample w->n, which counts after the caller has increased w->n. */
static int take_sample(struct whole *w, unsigned turn, struct ws_err *err)
{
	if (ws_cancelled(w->opts->cancel))
		return ws_err_set(err, WS_ECANCELLED, "cancelled");
	if (bench_is_turned(turn))
		return take_supply(w, err) || take_push(w, err) ? -1 : 0;
	return take_push(w, err) || take_supply(w, err) ? -1 : 0;
}

/* In each turn, takes one sample of each of the n pushes. Each turn starts with another push. */
static int take_turns(const char *name, struct whole *all, size_t n, struct ws_err *err)
{
	struct bench_turns turns = { .opts = all->opts, .name = name };
	while (bench_turns_more(&turns)) {
		for (size_t k = 0; k < n; k++)
			if (take_sample(&all[(turns.i + k) % n], turns.i, err))
				return -1;
		bench_turns_over(&turns);
		for (size_t k = 0; k < n; k++)
			all[k].n = turns.n;
	}
	return 0;
}

/* The caller calls close_whole even after a failure. */
static int open_whole(struct whole *w, const struct ws_bench_opts *opts,
                      const struct ws_bench_push *b, struct ws_err *err)
{
	const struct ws_push_opts *push = b->push;
	const struct ws_bench_load load = { .paths = b->paths, .n_paths = b->n_paths,
		                            .transform = push->transform,
		                            .bucket_size = push->bucket_size };
	const struct ws_bench_gpu gpu = { .device = push->gpu };
	const bool from_gpu = push->backend == WS_BACKEND_NCCL || push->backend == WS_BACKEND_IPC;
	*w = (struct whole){ .opts = opts, .what = b, .push = *push };
	w->push.sink = (struct ws_sink){ 0 };
	w->ns[0] = calloc((size_t)TIMES * opts->samples, sizeof *w->ns[0]);
	if (!w->ns[0])
		return ws_oom(err);
	for (int i = 1; i < TIMES; i++)
		w->ns[i] = w->ns[i - 1] + opts->samples;
	if (b->alone && (bench_load_open(&w->load, &load, opts->cancel, err) ||
	                 (from_gpu && bench_stage_open(&w->load, &gpu, push->transform_on, err))))
		return -1;
	return b->keep ? ws_push_open(&w->push, &w->kept, err) : 0;
}

static void close_whole(struct whole *w)
{
	ws_push_close(w->kept);
	bench_stage_close(&w->load);
	bench_load_close(&w->load);
	free(w->ns[0]);
	*w = (struct whole){ 0 };
}

/* ---- one push -------------------------------------------------------------------------------- */

static const char *find_bound(const struct ws_bench_bound *b, const int64_t *phase)
{
	const int64_t transfer = phase[WS_PHASE_TRANSFER], apply = phase[WS_PHASE_APPLY];
	const int64_t verify = phase[WS_PHASE_VERIFY];
	const int64_t control = b->total_ns - transfer - apply - verify;
	if (verify > transfer && verify > apply && verify > control)
		return "verify";
	if (control > transfer && control > apply)
		return "control";
	if (b->supply_ns && b->supply_ns >= b->together_ns / 5 * 4)
		return "source";
	return apply > transfer ? "apply" : "wire";
}

static void conclude(const struct whole *w, struct ws_bench_bound *out)
{
	int64_t phases[WS_PHASE_COUNT];
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		phases[i] = median(w->ns[i], w->n);
	*out = (struct ws_bench_bound){ .total_ns = median(w->ns[TOTAL], w->n),
		                        .supply_ns = median(w->ns[SUPPLY], w->n),
		                        .together_ns = median(w->ns[TOGETHER], w->n),
		                        .bytes = w->end.bytes, .wire_bytes = w->end.wire_bytes,
		                        .buckets = w->end.buckets };
	out->bound = find_bound(out, phases);
	out->overlap = out->together_ns > 0 ? (double)out->supply_ns / (double)out->together_ns : 0;
}

static void report_push(const struct whole *w)
{
	struct ws_bench_row row = { .stage = "push", .name = "total", .detail = "",
		                    .bytes = w->end.bytes, .ns = w->ns[TOTAL], .n = w->n,
		                    .errors = -1 };
	bench_tell(w->opts, &row);
	for (int i = 0; i < WS_PHASE_COUNT; i++) {
		const bool against = i == WS_PHASE_TRANSFER && w->what->alone;
		row.name = ws_phase_name((enum ws_phase)i);
		row.bytes = i == WS_PHASE_TRANSFER ? w->end.bytes : 0;
		row.ns = w->ns[i];
		row.against = against ? "its source alone" : NULL;
		row.against_bytes = w->load.bytes;
		row.against_ns = w->ns[SUPPLY];
		if (median(w->ns[i], w->n) > 0)
			bench_tell(w->opts, &row);
	}
	if (!w->what->alone)
		return;
	row = (struct ws_bench_row){ .stage = "push", .name = "source", .detail = "alone",
		                     .bytes = w->load.bytes, .ns = w->ns[SUPPLY], .n = w->n,
		                     .errors = -1 };
	bench_tell(w->opts, &row);
}

int ws_bench_push(const struct ws_bench_opts *opts, const struct ws_bench_push *b,
                  struct ws_bench_bound *out, struct ws_err *err)
{
	struct whole w;
	int rc = open_whole(&w, opts, b, err);
	if (!rc)
		rc = take_turns("push", &w, 1, err);
	*out = (struct ws_bench_bound){ 0 };
	if (w.n) {
		conclude(&w, out);
		report_push(&w);
	}
	close_whole(&w);
	return rc;
}

/* ---- sweep ----------------------------------------------------------------------------------- */

/* Whether w was no slower than best in at least a quarter of the turns. */
static bool is_alike(const struct whole *w, const struct whole *best)
{
	const size_t n = w->n < best->n ? w->n : best->n;
	size_t faster = 0;
	for (size_t i = 0; i < n; i++)
		faster += w->ns[TOTAL][i] <= best->ns[TOTAL][i];
	return w->n && 4 * faster >= n;
}

/* Fills in ways. Returns the fastest, or NULL if no way was measured. */
static const struct whole *compare_ways(const struct whole *all, size_t n,
                                        struct ws_bench_way *ways)
{
	size_t best = n;
	for (size_t k = 0; k < n; k++) {
		ways[k].total_ns = median(all[k].ns[TOTAL], all[k].n);
		if (all[k].n && (best == n || ways[k].total_ns < ways[best].total_ns))
			best = k;
	}
	if (best == n)
		return NULL;
	ways[best].fastest = true;
	for (size_t k = 0; k < n; k++)
		ways[k].alike = is_alike(&all[k], &all[best]);
	return &all[best];
}

static void report_way(const struct ws_bench_way *way, const struct whole *w,
                       const struct whole *best)
{
	if (!w->n) /* not measured, or not opened */
		return;
	struct ws_bench_row row = { .stage = "sweep", .name = way->name, .detail = way->detail,
		                    .bytes = w->end.bytes, .ns = w->ns[TOTAL], .n = w->n,
		                    .errors = -1 };
	if (!w->what->keep && w != best) { /* compares times: some ways send fewer bytes */
		row.against = "the fastest";
		row.against_ns = best->ns[TOTAL];
	}
	bench_tell(w->opts, &row);
}

static int measure_ways(const struct ws_bench_opts *opts, const struct ws_bench_sweep *s,
                        struct ws_bench_push *push, struct whole *all, struct ws_err *err)
{
	int rc = 0;
	for (size_t k = 0; k < s->n_ways && !rc; k++) {
		push[k] = (struct ws_bench_push){ .push = s->ways[k].push, .paths = s->paths,
			                          .n_paths = s->n_paths, .keep = s->keep };
		rc = open_whole(&all[k], opts, &push[k], err);
		/* A server that keeps a group refuses another, so measure one way after another. */
		if (!rc && s->keep)
			rc = take_turns(s->ways[k].name, &all[k], 1, err);
		if (s->keep) {
			ws_push_close(all[k].kept);
			all[k].kept = NULL;
		}
	}
	return rc || s->keep ? rc : take_turns("sweep", all, s->n_ways, err);
}

int ws_bench_sweep(const struct ws_bench_opts *opts, const struct ws_bench_sweep *s,
                   struct ws_err *err)
{
	struct whole *all = calloc(s->n_ways, sizeof *all);
	struct ws_bench_push *push = calloc(s->n_ways, sizeof *push);
	const int rc = all && push ? measure_ways(opts, s, push, all, err) : ws_oom(err);
	const struct whole *best = all ? compare_ways(all, s->n_ways, s->ways) : NULL;
	for (size_t k = 0; best && k < s->n_ways; k++)
		report_way(&s->ways[k], &all[k], best);
	for (size_t k = 0; all && k < s->n_ways; k++)
		close_whole(&all[k]);
	free(all);
	free(push);
	return rc;
}
