/* SPDX-License-Identifier: Apache-2.0 */
/* push.c - whole jobs, and in turns with each of them its parts: the source read and made alone,
 * up to where it is sent from, and the wire alone. */
#include "whole_job.h"

#include <stdlib.h>

enum { PARTS = 3 };

static int run_job(struct bench_whole *w, struct ws_ev_end *end, struct ws_err *err)
{
	const struct ws_push_source source = { .paths = w->what->paths,
		                               .n_paths = w->what->n_paths };
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

static int take_supply(struct bench_whole *w, struct ws_err *err)
{
	if (!w->what->alone)
		return 0;
	return (w->load.gpu ? bench_feed_run : bench_load_run)(&w->load, &w->supply[w->n], err);
}

/* What a source can hide behind: while servers load a bucket, the next one is made. A push that
 * is one request for each bucket (ipc) counts most of it as apply. */
static int64_t moving_ns(const struct ws_ev_end *end)
{
	return end->ns[WS_PHASE_TRANSFER] + end->ns[WS_PHASE_APPLY];
}

static int take_wire(struct bench_whole *w, struct ws_err *err)
{
	struct ws_ev_end end;
	if (!w->wire)
		return 0;
	w->ready.wanted = true;
	const int rc = run_job(w, &end, err);
	w->ready.wanted = false;
	if (rc)
		return -1;
	w->on_wire[w->n] = moving_ns(&end);
	w->why_no_wire = w->ready.why;
	w->wire = !w->ready.why;
	return 0;
}

static int take_whole(struct bench_whole *w, struct ws_err *err)
{
	struct ws_ev_end end;
	if (run_job(w, &end, err))
		return -1;
	w->end = end; /* of one that failed, nothing is told */
	w->total[w->n] = w->end.total_ns;
	w->together[w->n] = moving_ns(&w->end);
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		w->phases[i][w->n] = w->end.ns[i];
	return 0;
}

/* Each begins every third turn. */
int bench_whole_take(struct bench_whole *w, unsigned turn, struct ws_err *err)
{
	static int (*const parts[PARTS])(struct bench_whole *,
	                                 struct ws_err *) = { take_whole, take_wire, take_supply };
	for (unsigned k = 0; k < PARTS; k++) {
		if (ws_cancelled(w->opts->cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (parts[(turn + k) % PARTS](w, err))
			return -1;
	}
	return 0;
}

static int take_all(struct bench_whole *w, struct ws_err *err)
{
	struct bench_turns turns = { .opts = w->opts, .name = "push" };
	while (bench_turns_more(&turns)) {
		if (bench_whole_take(w, turns.i, err))
			return -1;
		bench_turns_over(&turns);
		w->n = turns.n;
	}
	return 0;
}

static int allocate(struct bench_whole *w, struct ws_err *err)
{
	const unsigned n = w->opts->samples;
	bool all = (w->total = calloc(n, sizeof *w->total)) &&
	           (w->supply = calloc(n, sizeof *w->supply)) &&
	           (w->on_wire = calloc(n, sizeof *w->on_wire)) &&
	           (w->together = calloc(n, sizeof *w->together));
	for (int i = 0; all && i < WS_PHASE_COUNT; i++)
		all = (w->phases[i] = calloc(n, sizeof *w->phases[i])) != NULL;
	return all ? 0 : ws_oom(err);
}

/* Its source ends in a GPU's memory. */
static bool is_from_gpu(const struct ws_push_opts *p)
{
	return p->backend == WS_BACKEND_NCCL || p->backend == WS_BACKEND_IPC;
}

int bench_whole_open(struct bench_whole *w, const struct ws_bench_opts *opts,
                     const struct ws_bench_push *b, bool keep, struct ws_err *err)
{
	const struct ws_bench_load load = { .paths = b->paths, .n_paths = b->n_paths,
		                            .transform = b->push->transform,
		                            .bucket_size = b->push->bucket_size };
	const struct ws_bench_gpu gpu = { .device = b->push->gpu };
	*w = (struct bench_whole){ .opts = opts,
		                   .what = b,
		                   .push = *b->push,
		                   .ready = WS_PUSH_READY_INIT,
		                   .wire = b->alone };
	w->push.sink = (struct ws_sink){ 0 };
	w->push.ready = &w->ready;
	if (allocate(w, err))
		return -1;
	if (b->alone && bench_load_open(&w->load, &load, opts->cancel, err))
		return -1;
	if (b->alone && is_from_gpu(b->push) &&
	    bench_feed_open(&w->load, &gpu, b->push->transform_on, err))
		return -1;
	return keep ? ws_push_open(&w->push, &w->kept, err) : 0;
}

void bench_whole_close(struct bench_whole *w)
{
	if (!w->opts)
		return; /* was never begun */
	ws_push_close(w->kept);
	ws_push_ready_free(&w->ready);
	bench_feed_close(&w->load);
	bench_load_close(&w->load);
	free(w->total);
	free(w->supply);
	free(w->on_wire);
	free(w->together);
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		free(w->phases[i]);
}

int ws_bench_push(const struct ws_bench_opts *opts, const struct ws_bench_push *b, bool keep,
                  struct ws_bench_bound *out, struct ws_err *err)
{
	struct bench_whole w;
	int rc = bench_whole_open(&w, opts, b, keep, err);
	if (!rc)
		rc = take_all(&w, err);
	*out = (struct ws_bench_bound){ 0 };
	if (w.n) {
		bench_whole_conclude(&w, out);
		bench_whole_tell(&w);
	}
	bench_whole_close(&w);
	return rc;
}
