/* SPDX-License-Identifier: Apache-2.0 */
/* bench_staged.c - how long servers stand still: while a push updates them, and while they load an
 * update that was staged before. In turns. */
#include "bench_load.h"

#include <stdlib.h>

enum { UPDATE, STAGE, COMPLETE, STAGED_TIMES };

struct staged {
	const struct ws_bench_opts *opts;
	struct ws_push_opts push;
	struct ws_push_source source;
	size_t n;
	int64_t *ns[STAGED_TIMES]; /* one allocation */
	uint64_t bytes;
};

/* The server that stood still for longest: the fleet has new weights only then. */
static int64_t longest_pause(const struct ws_ev_end *end)
{
	int64_t most = 0;
	for (size_t i = 0; i < end->n_endpoints; i++)
		most = end->endpoints[i].paused_ns > most ? end->endpoints[i].paused_ns : most;
	return most;
}

static int run_once(struct staged *s, bool stage, bool complete, int64_t *pause, int64_t *total,
                    struct ws_err *err)
{
	const struct ws_push_source none = { 0 };
	struct ws_push_opts o = s->push;
	struct ws_ev_end end;
	struct ws_push *p = NULL;
	o.stage = stage;
	o.complete = complete;
	if (complete) { /* it takes no options about sending, and reads no source */
		o.verify = WS_VERIFY_NONE;
		o.backend = WS_BACKEND_AUTO;
		o.protocol = WS_PROTOCOL_AUTO;
		o.disk_dir = NULL;
	}
	if (ws_push_open(&o, &p, err))
		return -1;
	const int rc = ws_push_run(p, complete ? &none : &s->source, &end, err);
	*pause = rc ? 0 : longest_pause(&end);
	s->bytes = end.bytes;
	ws_push_finish(p, &end);
	*total = end.total_ns;
	ws_push_close(p);
	return rc;
}

static int take_update(struct staged *s, struct ws_err *err)
{
	int64_t total;
	return run_once(s, false, false, &s->ns[UPDATE][s->n], &total, err);
}

static int take_staged(struct staged *s, struct ws_err *err)
{
	int64_t none;
	return run_once(s, true, false, &none, &s->ns[STAGE][s->n], err) ||
	                       run_once(s, false, true, &s->ns[COMPLETE][s->n], &none, err) ?
	               -1 :
	               0;
}

static int take_sample(struct staged *s, unsigned turn, struct ws_err *err)
{
	if (ws_cancelled(s->opts->cancel))
		return ws_err_set(err, WS_ECANCELLED, "cancelled");
	if (bench_is_turned(turn))
		return take_staged(s, err) || take_update(s, err) ? -1 : 0;
	return take_update(s, err) || take_staged(s, err) ? -1 : 0;
}

static void report(const struct staged *s)
{
	struct ws_bench_row row = { .stage = "staged", .name = "update", .detail = "pause",
		                    .ns = s->ns[UPDATE], .n = s->n, .errors = -1 };
	bench_tell(s->opts, &row);
	row.name = "stage";
	row.detail = "no pause";
	row.bytes = s->bytes;
	row.ns = s->ns[STAGE];
	bench_tell(s->opts, &row);
	row = (struct ws_bench_row){ .stage = "staged", .name = "complete", .detail = "pause",
		                     .ns = s->ns[COMPLETE], .n = s->n, .errors = -1,
		                     .against = "update", .against_ns = s->ns[UPDATE] };
	bench_tell(s->opts, &row);
}

int ws_bench_staged(const struct ws_bench_opts *opts, const struct ws_bench_push *b,
                    struct ws_err *err)
{
	struct staged s = { .opts = opts, .push = *b->push,
		            .source = { .paths = b->paths, .n_paths = b->n_paths } };
	struct bench_turns turns = { .opts = opts, .name = "staged" };
	s.push.sink = (struct ws_sink){ 0 };
	s.ns[0] = calloc((size_t)STAGED_TIMES * opts->samples, sizeof *s.ns[0]);
	if (!s.ns[0])
		return ws_oom(err);
	for (int i = 1; i < STAGED_TIMES; i++)
		s.ns[i] = s.ns[i - 1] + opts->samples;
	int rc = 0;
	while (!rc && bench_turns_more(&turns)) {
		rc = take_sample(&s, turns.i, err);
		if (rc)
			break;
		bench_turns_over(&turns);
		s.n = turns.n;
	}
	if (s.n)
		report(&s);
	free(s.ns[0]);
	return rc;
}
