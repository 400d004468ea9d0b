/* SPDX-License-Identifier: Apache-2.0 */
/* bench_samples.c - takes samples in turns, and computes statistics of them. */
#include "bench_samples.h"

#include <stdlib.h>
#include <string.h>

static int by_size(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Nearest rank: the smallest sample such that at least p percent of samples do not exceed it. */
static int64_t percentile(const int64_t *sorted, size_t n, unsigned p)
{
	return sorted[(n * p + 99) / 100 - 1];
}

void ws_bench_sum(const int64_t *ns, size_t n, struct ws_bench_sum *out)
{
	int64_t *sorted = malloc(n * sizeof *sorted);
	*out = (struct ws_bench_sum){ .n = n };
	if (!sorted)
		return;
	memcpy(sorted, ns, n * sizeof *sorted);
	qsort(sorted, n, sizeof *sorted, by_size);
	out->min = sorted[0];
	out->median =
		n % 2 ? sorted[n / 2] : sorted[n / 2 - 1] + (sorted[n / 2] - sorted[n / 2 - 1]) / 2;
	out->p99 = percentile(sorted, n, 99);
	out->max = sorted[n - 1];
	const int64_t apart =
		n < 4 ? out->max - out->min : percentile(sorted, n, 75) - percentile(sorted, n, 25);
	out->spread = out->median > 0 ? (double)apart / (double)out->median : 0;
	free(sorted);
}

/* The ratio of pair i: of the rates if both have bytes, else of the times. */
static double pair_ratio(const struct ws_bench_row *row, size_t i)
{
	const double time = (double)row->against_ns[i] / (double)(row->ns[i] > 0 ? row->ns[i] : 1);
	return row->bytes && row->against_bytes ?
	               time * ((double)row->bytes / (double)row->against_bytes) :
	               time;
}

bool ws_bench_ratio(const struct ws_bench_row *row, struct ws_bench_ratio *out)
{
	const size_t n = row->n;
	double *sorted = row->against && n ? malloc(n * sizeof *sorted) : NULL;
	if (!sorted)
		return false;
	for (size_t i = 0; i < n; i++)
		sorted[i] = pair_ratio(row, i);
	qsort(sorted, n, sizeof *sorted, by_value);
	*out = (struct ws_bench_ratio){
		.median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2,
		.min = sorted[0],
		.max = sorted[n - 1],
	};
	free(sorted);
	return true;
}

/* ---- taking samples -------------------------------------------------------------------------- */

static int take_sample(const struct bench_timed *t, int64_t *ns, struct ws_err *err)
{
	int64_t own = -1; /* run may set its own time */
	const int64_t since = ws_now_ns();
	if (t->run(t->ctx, &own, err))
		return -1;
	*ns = own >= 0 ? own : ws_now_ns() - since;
	return 0;
}

/* Alternates the order, so that data left in a cache helps each side equally often. */
bool bench_is_turned(unsigned i)
{
	return i % 2;
}

static int take_pair(const struct bench_timed *t, const struct bench_timed *other, unsigned i,
                     int64_t *ns, int64_t *other_ns, struct ws_err *err)
{
	if (!other)
		return take_sample(t, ns, err);
	if (bench_is_turned(i))
		return take_sample(other, other_ns, err) || take_sample(t, ns, err) ? -1 : 0;
	return take_sample(t, ns, err) || take_sample(other, other_ns, err) ? -1 : 0;
}

bool bench_turns_more(struct bench_turns *t)
{
	const struct ws_bench_opts *o = t->opts;
	if (!t->i)
		t->since = ws_now_ns();
	if (t->n == o->samples || (t->n && o->most_ns && ws_now_ns() - t->since >= o->most_ns))
		return false;
	if (o->sink.turn)
		o->sink.turn(o->sink.ctx, t->name, t->i, o->warmups + o->samples);
	return true;
}

void bench_turns_over(struct bench_turns *t)
{
	t->n += t->i >= t->opts->warmups;
	if (t->i++ == 0)
		bench_begin(t->opts);
}

static int take_all(struct bench_turns *turns, const struct bench_timed *t,
                    const struct bench_timed *against, int64_t *ns, int64_t *against_ns,
                    struct ws_err *err)
{
	while (bench_turns_more(turns)) {
		if (ws_cancelled(turns->opts->cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (take_pair(t, against, turns->i, &ns[turns->n], &against_ns[turns->n], err))
			return -1;
		bench_turns_over(turns);
	}
	return 0;
}

int bench_measure(const struct ws_bench_opts *o, struct ws_bench_row *row,
                  const struct bench_timed *t, const struct bench_timed *against,
                  struct ws_err *err)
{
	int64_t *ns = calloc(o->samples, sizeof *ns), *other = calloc(o->samples, sizeof *other);
	struct bench_turns turns = { .opts = o, .name = row->name };
	int rc = ns && other ? 0 : ws_oom(err);
	if (!rc)
		rc = take_all(&turns, t, against, ns, other, err);
	row->errors = -1;
	if (!rc && o->check && t->check)
		rc = t->check(t->ctx, &row->errors, err);
	if (rc)
		row->errors = -1;
	if (turns.n) {
		row->ns = ns;
		row->n = turns.n;
		row->against_ns = against ? other : NULL;
		bench_tell(o, row);
	}
	free(ns);
	free(other);
	return rc;
}

void bench_begin(const struct ws_bench_opts *o)
{
	if (o->sink.begin)
		o->sink.begin(o->sink.ctx);
}

void bench_tell(const struct ws_bench_opts *o, const struct ws_bench_row *row)
{
	if (o->sink.row)
		o->sink.row(o->sink.ctx, row);
}
