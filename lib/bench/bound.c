/* SPDX-License-Identifier: Apache-2.0 */
/* bound.c - what bounds a push: its phases, as the jobs themselves account for
 * them, and its parts alone. */
#include "whole_job.h"

#include <stdlib.h>

static int64_t median(const int64_t *ns, size_t n)
{
	struct ws_bench_sum sum;
	ws_bench_sum(ns, n, &sum);
	return sum.median;
}

/* The longer part is what the other waits for: the wire alone has servers that load, too. Where
 * it cannot be had alone, a source that takes four fifths of the time is. */
static const char *judge_moving(const struct ws_bench_bound *b)
{
	const bool source =
		b->wire_ns ? b->supply_ns > b->wire_ns : b->supply_ns >= b->together_ns / 5 * 4;
	if (b->supply_ns && source)
		return "source";
	return b->phase_ns[WS_PHASE_APPLY] > b->phase_ns[WS_PHASE_TRANSFER] ? "apply" : "wire";
}

static const char *judge(const struct ws_bench_bound *b)
{
	const int64_t transfer = b->phase_ns[WS_PHASE_TRANSFER],
		      apply = b->phase_ns[WS_PHASE_APPLY];
	const int64_t verify = b->phase_ns[WS_PHASE_VERIFY];
	const int64_t control = b->total_ns - transfer - apply - verify;
	if (verify > transfer && verify > apply && verify > control)
		return "verify";
	if (control > transfer && control > apply)
		return "control";
	return judge_moving(b);
}

/* Of the pairs, as every ratio is. */
static void rate_overlap(const struct bench_whole *w, struct ws_bench_bound *out)
{
	const size_t n = w->n;
	int64_t *longer = calloc(n, sizeof *longer);
	for (size_t i = 0; longer && i < n; i++)
		longer[i] = w->supply[i] > w->on_wire[i] ? w->supply[i] : w->on_wire[i];
	const struct ws_bench_row row = { .ns = w->together, .n = n, .against = "its longer part",
		                          .against_ns = longer };
	if (longer && !ws_bench_ratio(&row, &out->efficiency))
		out->efficiency = (struct ws_bench_ratio){ 0 };
	free(longer);
}

void bench_whole_conclude(const struct bench_whole *w, struct ws_bench_bound *out)
{
	const size_t n = w->n;
	*out = (struct ws_bench_bound){ .total_ns = median(w->total, n), .bytes = w->end.bytes,
		                        .wire_bytes = w->end.wire_bytes, .buckets = w->end.buckets,
		                        .why_no_wire = w->why_no_wire };
	out->together_ns = median(w->together, n);
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		out->phase_ns[i] = median(w->phases[i], n);
	if (w->what->alone)
		out->supply_ns = median(w->supply, n);
	if (w->wire) {
		out->wire_ns = median(w->on_wire, n);
		rate_overlap(w, out);
	}
	out->bound = judge(out);
	out->overlap = out->together_ns > 0 ? (double)out->supply_ns / (double)out->together_ns : 0;
}

static void tell_phase(const struct bench_whole *w, enum ws_phase phase)
{
	const size_t n = w->n;
	struct ws_bench_row row = { .stage = "push", .name = ws_phase_name(phase), .detail = "",
		                    .ns = w->phases[phase], .n = n, .errors = -1 };
	if (phase == WS_PHASE_TRANSFER) {
		row.bytes = w->end.bytes;
		row.against = w->what->alone ? "its source alone" : NULL;
		row.against_bytes = w->load.bytes;
		row.against_ns = w->supply;
	}
	if (median(w->phases[phase], n) > 0)
		bench_tell(w->opts, &row);
}

void bench_whole_tell(const struct bench_whole *w)
{
	const size_t n = w->n;
	struct ws_bench_row row = { .stage = "push",
		                    .name = "total",
		                    .detail = "",
		                    .bytes = w->end.bytes,
		                    .ns = w->total,
		                    .n = n,
		                    .errors = -1 };
	bench_tell(w->opts, &row);
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		tell_phase(w, (enum ws_phase)i);
	row.detail = "alone";
	if (w->what->alone) {
		row.name = "source";
		row.bytes = w->load.bytes;
		row.ns = w->supply;
		bench_tell(w->opts, &row);
	}
	if (w->wire) {
		row.name = "wire";
		row.bytes = w->end.bytes;
		row.ns = w->on_wire;
		bench_tell(w->opts, &row);
	}
}
