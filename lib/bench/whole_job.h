/* SPDX-License-Identifier: Apache-2.0 */
/* whole_job.h - whole pushes and, where that is wanted, their parts alone: taken in push.c,
 * made figures of in bound.c. */
#ifndef WS_BENCH_WHOLE_JOB_H
#define WS_BENCH_WHOLE_JOB_H

#include "load.h"

struct bench_whole {
	const struct ws_bench_opts *opts;
	const struct ws_bench_push *what;
	struct ws_push_opts push;
	struct ws_push_ready ready; /* what the wire alone sends */
	bool wire;                  /* it can be measured alone */
	const char *why_no_wire;
	struct ws_push *kept; /* NULL: each job has a group of its own */
	struct bench_load load;
	size_t n;                   /* samples, of each of these: */
	int64_t *total, *supply, *on_wire, *together, *phases[WS_PHASE_COUNT];
	struct ws_ev_end end; /* of the last */
};

/* To be closed in any case. */
int bench_whole_open(struct bench_whole *w, const struct ws_bench_opts *opts,
                     const struct ws_bench_push *what, bool keep, struct ws_err *err);
void bench_whole_close(struct bench_whole *w);
/* Sample w->n, which does not count yet, of a job and of its parts; turn:
 * from 0, with the warm-ups. */
int bench_whole_take(struct bench_whole *w, unsigned turn, struct ws_err *err);

/* Of w->n > 0 samples. */
void bench_whole_conclude(const struct bench_whole *w, struct ws_bench_bound *out);
void bench_whole_tell(const struct bench_whole *w);

#endif
