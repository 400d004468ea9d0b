/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - one push in several ways, job beside job, so that a machine which becomes slower
 * does so for all of them. The way that begins a turn goes round. */
#include "whole_job.h"

#include <stdlib.h>

struct sweep {
	const struct ws_bench_opts *opts;
	const struct ws_bench_way *ways;
	size_t n_ways;
	struct bench_whole *jobs; /* of each way */
	bool in_turns;
};

static int take_turns(struct sweep *s, struct ws_err *err)
{
	struct bench_turns turns = { .opts = s->opts, .name = "sweep" };
	while (bench_turns_more(&turns)) {
		for (size_t k = 0; k < s->n_ways; k++)
			if (bench_whole_take(&s->jobs[(turns.i + k) % s->n_ways], turns.i, err))
				return -1;
		bench_turns_over(&turns);
		for (size_t k = 0; k < s->n_ways; k++)
			s->jobs[k].n = turns.n;
	}
	return 0;
}

/* A group that stays makes its servers refuse the next one: one way after the other. */
static int take_kept(struct sweep *s, const struct ws_bench_push *push, size_t k,
                     struct ws_err *err)
{
	struct bench_whole *w = &s->jobs[k];
	struct bench_turns turns = { .opts = s->opts, .name = s->ways[k].name };
	int rc = bench_whole_open(w, s->opts, push, true, err);
	while (!rc && bench_turns_more(&turns)) {
		rc = bench_whole_take(w, turns.i, err);
		if (rc)
			break;
		bench_turns_over(&turns);
		w->n = turns.n;
	}
	ws_push_close(w->kept);
	w->kept = NULL;
	return rc;
}

/* ---- what comes of it ---- */

/* At least one of four turns of the slower one was no slower. */
static bool is_alike(const struct bench_whole *w, const struct bench_whole *best)
{
	const size_t n = w->n < best->n ? w->n : best->n;
	size_t faster = 0;
	for (size_t i = 0; i < n; i++)
		faster += w->total[i] <= best->total[i];
	return 4 * faster >= n;
}

static void judge(const struct sweep *s, struct ws_bench_standing *out)
{
	size_t best = s->n_ways;
	for (size_t k = 0; k < s->n_ways; k++) {
		struct ws_bench_sum sum = { 0 };
		if (s->jobs[k].n)
			ws_bench_sum(s->jobs[k].total, s->jobs[k].n, &sum);
		out[k] = (struct ws_bench_standing){ .total_ns = sum.median };
		if (sum.median && (best == s->n_ways || sum.median < out[best].total_ns))
			best = k;
	}
	if (best == s->n_ways)
		return;
	out[best].fastest = true;
	for (size_t k = 0; k < s->n_ways; k++)
		out[k].alike = s->jobs[k].n && is_alike(&s->jobs[k], &s->jobs[best]);
}

static void tell(const struct sweep *s, const struct ws_bench_standing *standing)
{
	const struct bench_whole *best = NULL;
	for (size_t k = 0; k < s->n_ways; k++)
		best = standing[k].fastest ? &s->jobs[k] : best;
	for (size_t k = 0; k < s->n_ways; k++) {
		const struct bench_whole *w = &s->jobs[k];
		if (!w->n)
			continue;
		struct ws_bench_row row = { .stage = "sweep",
			                    .name = s->ways[k].name,
			                    .detail = s->ways[k].detail,
			                    .bytes = w->end.bytes,
			                    .ns = w->total,
			                    .n = w->n,
			                    .errors = -1 };
		if (s->in_turns && w != best) { /* time over time: some make fewer bytes of it */
			row.against = "the fastest";
			row.against_ns = best->total;
		}
		bench_tell(s->opts, &row);
	}
}

int ws_bench_sweep(const struct ws_bench_opts *opts, const struct ws_bench_way *ways, size_t n,
                   const char *const *paths, size_t n_paths, bool keep,
                   struct ws_bench_standing *out, struct ws_err *err)
{
	struct sweep s = { .opts = opts, .ways = ways, .n_ways = n, .in_turns = !keep,
		           .jobs = calloc(n, sizeof *s.jobs) };
	struct ws_bench_push *push = calloc(n, sizeof *push);
	int rc = s.jobs && push ? 0 : ws_oom(err);
	for (size_t k = 0; k < n && !rc; k++) {
		push[k] = (struct ws_bench_push){ .push = ways[k].push,
			                          .paths = paths,
			                          .n_paths = n_paths };
		rc = keep ? take_kept(&s, &push[k], k, err) :
		            bench_whole_open(&s.jobs[k], opts, &push[k], false, err);
	}
	if (!rc && !keep)
		rc = take_turns(&s, err);
	if (s.jobs) {
		judge(&s, out);
		tell(&s, out);
	}
	for (size_t k = 0; s.jobs && k < n; k++)
		bench_whole_close(&s.jobs[k]);
	free(s.jobs);
	free(push);
	return rc;
}
