/* SPDX-License-Identifier: Apache-2.0 */
/* bench_samples.h - one measurement, taken beside its reference and delivered as a row. */
#ifndef WS_BENCH_SAMPLES_H
#define WS_BENCH_SAMPLES_H

#include "wsync/tool/bench.h"

struct bench_timed {
	/* One sample. *ns is -1: its time is that of the call; or it is set to the part that
	 * counts. */
	int (*run)(void *ctx, int64_t *ns, struct ws_err *err);
	/* After the last: how many bytes of its result are wrong. May be NULL: that cannot be
	 * told. */
	int (*check)(void *ctx, int64_t *errors, struct ws_err *err);
	void *ctx;
};

/* Warm-ups, then pairs; against may be NULL. row says what is measured; its samples and errors
 * are filled in, and it is delivered, of as many samples as there are when this ends. */
int bench_measure(const struct ws_bench_opts *opts, struct ws_bench_row *row,
                  const struct bench_timed *t, const struct bench_timed *against,
                  struct ws_err *err);

/* Which turn is next: warm-ups, then samples, as many as opts allow.
 *   struct bench_turns t = { .opts = opts, .name = "total" };
 *   while (bench_turns_more(&t)) { ...: turn t.i, whose sample is t.n ... bench_turns_over(&t);
 * } */
struct bench_turns {
	const struct ws_bench_opts *opts;
	const char *name;
	int64_t since;
	unsigned i; /* turns that are over */
	unsigned n; /* of which so many are samples */
};
bool bench_turns_more(struct bench_turns *t);
void bench_turns_over(struct bench_turns *t);
/* Of turn i, from 0 and with the warm-ups: is the reference taken first? */
bool bench_is_turned(unsigned i);

void bench_begin(const struct ws_bench_opts *opts);
void bench_tell(const struct ws_bench_opts *opts, const struct ws_bench_row *row);

/* ---- bench_kernels.c: what kernels are measured with ---- */

enum { BENCH_COLS = 4096, BENCH_BLOCK = 128, BENCH_NIBBLES = 64 };
/* bf16 weights of BENCH_COLS columns, `size` bytes or a few rows; the caller frees them. */
uint16_t *bench_weights(uint64_t size, int64_t *rows, struct ws_err *err);
void bench_fill_floats(float *x, size_t n); /* small ones, about zero */

#endif
