/* SPDX-License-Identifier: Apache-2.0 */
/* push.c - whole jobs, taken apart by the phases that they themselves account for, and in turns with each of
 * them its parts: the source read and made alone, up to where it is sent from, and the wire alone. */
#include "load.h"

#include <stdlib.h>
#include <string.h>

enum { PHASES = WS_PHASE_COUNT, PARTS = 3 };

struct whole {
	const struct ws_bench_opts *opts;
	const struct ws_bench_push *what;
	struct ws_push_opts push;
	struct ws_push_ready ready; /* what the wire alone sends */
	bool wire;                  /* it can be measured alone */
	const char *why_no_wire;
	struct ws_push *kept; /* NULL: each job has a group of its own */
	struct bench_load load;
	int64_t *total, *supply, *on_wire, *together, *phases[PHASES];
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

static int take_supply(struct whole *w, unsigned at, struct ws_err *err)
{
	if (!w->what->alone)
		return 0;
	return (w->load.gpu ? bench_feed_run : bench_load_run)(&w->load, &w->supply[at], err);
}

/* What a source can hide behind: while servers load a bucket, the next one is made. A push that is one
 * request for each bucket (ipc) counts most of it as apply. */
static int64_t moving_ns(const struct ws_ev_end *end)
{
	return end->ns[WS_PHASE_TRANSFER] + end->ns[WS_PHASE_APPLY];
}

static int take_wire(struct whole *w, unsigned at, struct ws_err *err)
{
	struct ws_ev_end end;
	if (!w->wire)
		return 0;
	w->ready.wanted = true;
	const int rc = run_job(w, &end, err);
	w->ready.wanted = false;
	if (rc)
		return -1;
	w->on_wire[at] = moving_ns(&end);
	w->why_no_wire = w->ready.why;
	w->wire = !w->ready.why;
	return 0;
}

static int take_whole(struct whole *w, unsigned at, struct ws_err *err)
{
	if (run_job(w, &w->end, err))
		return -1;
	w->total[at] = w->end.total_ns;
	w->together[at] = moving_ns(&w->end);
	for (int i = 0; i < PHASES; i++)
		w->phases[i][at] = w->end.ns[i];
	return 0;
}

/* Each begins every third turn. */
static int take_turn(struct whole *w, unsigned i, unsigned at, struct ws_err *err)
{
	static int (*const parts[PARTS])(struct whole *, unsigned, struct ws_err *) = { take_whole, take_wire,
		                                                                        take_supply };
	for (unsigned k = 0; k < PARTS; k++) {
		if (ws_cancelled(w->opts->cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (parts[(i + k) % PARTS](w, at, err))
			return -1;
	}
	return 0;
}

static int take_all(struct whole *w, struct ws_err *err)
{
	const struct ws_bench_opts *o = w->opts;
	for (unsigned i = 0; i < o->warmups + o->samples; i++) {
		if (take_turn(w, i, i < o->warmups ? 0 : i - o->warmups, err))
			return -1;
		if (i == 0)
			bench_begin(o);
	}
	return 0;
}

/* ---- what comes of it ---------------------------------------------------------------------------- */

static int64_t median(const int64_t *ns, size_t n)
{
	struct ws_bench_sum sum;
	ws_bench_sum(ns, n, &sum);
	return sum.median;
}

/* The longer part is what the other waits for. Where the wire cannot be had alone, a source that takes four
 * fifths of the time is. */
static const char *judge_transfer(const struct ws_bench_bound *b)
{
	const bool source = b->wire_ns ? b->supply_ns > b->wire_ns : b->supply_ns >= b->together_ns / 5 * 4;
	return b->supply_ns && source ? "source" : "wire";
}

static const char *judge(const struct ws_bench_bound *b)
{
	const int64_t transfer = b->phase_ns[WS_PHASE_TRANSFER], apply = b->phase_ns[WS_PHASE_APPLY];
	const int64_t verify = b->phase_ns[WS_PHASE_VERIFY];
	const int64_t control = b->total_ns - transfer - apply - verify;
	if (verify > transfer && verify > apply && verify > control)
		return "verify";
	if (control > transfer && control > apply)
		return "control";
	return apply > transfer ? "apply" : judge_transfer(b);
}

/* Of the pairs, as every ratio is. */
static void rate_overlap(const struct whole *w, struct ws_bench_bound *out)
{
	const unsigned n = w->opts->samples;
	int64_t *longer = calloc(n, sizeof *longer);
	for (unsigned i = 0; longer && i < n; i++)
		longer[i] = w->supply[i] > w->on_wire[i] ? w->supply[i] : w->on_wire[i];
	const struct ws_bench_row row = { .ns = w->together, .n = n, .against = "its longer part",
		                          .against_ns = longer };
	if (longer && !ws_bench_ratio(&row, &out->efficiency))
		out->efficiency = (struct ws_bench_ratio){ 0 };
	free(longer);
}

static void conclude(const struct whole *w, struct ws_bench_bound *out)
{
	const unsigned n = w->opts->samples;
	*out = (struct ws_bench_bound){ .total_ns = median(w->total, n), .bytes = w->end.bytes,
		                        .wire_bytes = w->end.wire_bytes, .buckets = w->end.buckets,
		                        .why_no_wire = w->why_no_wire };
	out->together_ns = median(w->together, n);
	for (int i = 0; i < PHASES; i++)
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

static void tell_phase(const struct whole *w, enum ws_phase phase)
{
	const unsigned n = w->opts->samples;
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

static void tell_all(const struct whole *w)
{
	const unsigned n = w->opts->samples;
	struct ws_bench_row row = { .stage = "push", .name = "total", .detail = "", .bytes = w->end.bytes,
		                    .ns = w->total, .n = n, .errors = -1 };
	bench_tell(w->opts, &row);
	for (int i = 0; i < PHASES; i++)
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

static int allocate(struct whole *w, struct ws_err *err)
{
	const unsigned n = w->opts->samples;
	bool all = (w->total = calloc(n, sizeof *w->total)) && (w->supply = calloc(n, sizeof *w->supply)) &&
	           (w->on_wire = calloc(n, sizeof *w->on_wire)) && (w->together = calloc(n, sizeof *w->together));
	for (int i = 0; all && i < PHASES; i++)
		all = (w->phases[i] = calloc(n, sizeof *w->phases[i])) != NULL;
	return all ? 0 : ws_err_set(err, WS_ESYSTEM, "out of memory");
}

/* Its source ends in a GPU's memory. */
static bool is_from_gpu(const struct ws_push_opts *p)
{
	return p->backend == WS_BACKEND_NCCL || p->backend == WS_BACKEND_IPC;
}

int ws_bench_push(const struct ws_bench_opts *opts, const struct ws_bench_push *b, bool keep,
                  struct ws_bench_bound *out, struct ws_err *err)
{
	struct whole w = { .opts = opts, .what = b, .push = *b->push, .ready = WS_PUSH_READY_INIT,
		           .wire = b->alone };
	const struct ws_bench_load load = { .paths = b->paths, .n_paths = b->n_paths,
		                            .transform = b->push->transform,
		                            .bucket_size = b->push->bucket_size };
	const struct ws_bench_gpu gpu = { .device = b->push->gpu };
	w.push.sink = (struct ws_sink){ 0 };
	w.push.ready = &w.ready;
	int rc = allocate(&w, err);
	if (!rc && b->alone)
		rc = bench_load_open(&w.load, &load, err);
	w.load.cancel = opts->cancel;
	if (!rc && b->alone && is_from_gpu(b->push))
		rc = bench_feed_open(&w.load, &gpu, b->push->transform_on, err);
	if (!rc && keep)
		rc = ws_push_open(&w.push, &w.kept, err);
	if (!rc)
		rc = take_all(&w, err);
	if (!rc) {
		conclude(&w, out);
		tell_all(&w);
	}
	ws_push_close(w.kept);
	ws_push_ready_free(&w.ready);
	bench_feed_close(&w.load);
	bench_load_close(&w.load);
	free(w.total);
	free(w.supply);
	free(w.on_wire);
	free(w.together);
	for (int i = 0; i < PHASES; i++)
		free(w.phases[i]);
	return rc;
}
