/* SPDX-License-Identifier: Apache-2.0 */
/* bench_samples.h - takes samples of work and of its reference, and delivers them as a row. */
#ifndef WS_BENCH_SAMPLES_H
#define WS_BENCH_SAMPLES_H

#include "wsync/tool/bench.h"

struct bench_timed {
	/* Takes one sample. *ns is -1 before the call: if run does not set it, the duration of the
	 * call counts. */
	int (*run)(void *ctx, int64_t *ns, struct ws_err *err);
	/* Called after the last sample: counts the wrong bytes of the result. NULL: the result
	 * cannot be checked. */
	int (*check)(void *ctx, int64_t *errors, struct ws_err *err);
	void *ctx;
};

/* Takes warm-ups, then pairs of samples; against may be NULL. Fills in row's samples and errors.
 * Delivers row, even after a failure if there is a sample. The caller sets its other members. */
int bench_measure(const struct ws_bench_opts *opts, struct ws_bench_row *row,
                  const struct bench_timed *t, const struct bench_timed *against,
                  struct ws_err *err);

/* Counts turns: warm-ups, then as many samples as opts allow.
 *   struct bench_turns t = { .opts = opts, .name = "total" };
 *   while (bench_turns_more(&t)) { ...: turn t.i, whose sample is t.n ... bench_turns_over(&t);
 * } */
struct bench_turns {
	const struct ws_bench_opts *opts;
	const char *name;
	int64_t since;
	unsigned i; /* completed turns, with warm-ups */
	unsigned n; /* completed samples */
};
bool bench_turns_more(struct bench_turns *t);
void bench_turns_over(struct bench_turns *t);
/* Whether turn i (from 0, with the warm-ups) takes the reference first. */
bool bench_is_turned(unsigned i);

void bench_begin(const struct ws_bench_opts *opts);
void bench_tell(const struct ws_bench_opts *opts, const struct ws_bench_row *row);

/* ---- bench_kernels.c: input of the kernels ---- */

enum { BENCH_COLS = 4096, BENCH_BLOCK = 128, BENCH_NIBBLES = 64 };
/* Returns bf16 weights of BENCH_COLS columns, `size` bytes or a few rows; the caller frees them. */
uint16_t *bench_weights(uint64_t size, int64_t *rows, struct ws_err *err);
void bench_fill_floats(float *x, size_t n); /* small numbers around zero */

#endif
