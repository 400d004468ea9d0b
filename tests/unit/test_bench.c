/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of wsync-bench: made of samples, and on paper. */
#include "bench_samples.h"
#include "test.h"

TEST(figures_are_those_of_the_sorted_samples)
{
	static const struct {
		size_t n;
		int64_t ns[5], min, median, p99, max;
		double spread;
	} cases[] = {
		{ 1, { 5 }, 5, 5, 5, 5, 0 },
		{ 2, { 0, 0 }, 0, 0, 0, 0, 0 },
		/* too few for halves: the spread is of all of them */
		{ 3, { 100, 160, 80 }, 80, 100, 160, 160, 0.8 },
		{ 4, { 10, 30, 10, 50 }, 10, 20, 50, 50, 1 },
		/* one far off on each side counts for nothing */
		{ 5, { 100, 900, 90, 110, 10 }, 10, 100, 900, 900, 0.2 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ws_bench_sum s;
		ws_bench_sum(cases[i].ns, cases[i].n, &s);
		assert_int_equal(s.n, cases[i].n);
		assert_int_equal(s.min, cases[i].min);
		assert_int_equal(s.median, cases[i].median);
		assert_int_equal(s.p99, cases[i].p99);
		assert_int_equal(s.max, cases[i].max);
		assert_float_equal(s.spread, cases[i].spread, 1e-9);
	}
}

TEST(p99_is_the_nearest_rank)
{
	int64_t ns[1000];
	struct ws_bench_sum s;
	for (int i = 0; i < 1000; i++)
		ns[i] = 1000 - i;
	ws_bench_sum(ns, 99, &s); /* 902..1000 */
	assert_int_equal(s.p99, 1000);
	ws_bench_sum(ns, 100, &s); /* 901..1000: one of a hundred may be greater */
	assert_int_equal(s.p99, 999);
	ws_bench_sum(ns, 1000, &s);
	assert_int_equal(s.p99, 990);
	assert_int_equal(s.max, 1000);
}

TEST(ratios_are_of_pairs_and_of_rates)
{
	const int64_t ours[] = { 100, 200, 50 }, theirs[] = { 200, 200, 200 };
	struct ws_bench_ratio r;
	struct ws_bench_row row = { .ns = ours,
		                    .n = 3,
		                    .bytes = 10,
		                    .against = "x",
		                    .against_bytes = 10,
		                    .against_ns = theirs };
	assert_true(ws_bench_ratio(&row, &r));
	assert_float_equal(r.median, 2, 1e-9);
	assert_float_equal(r.min, 1, 1e-9);
	assert_float_equal(r.max, 4, 1e-9);
	row.against_bytes = 20; /* it moves twice as much in that time */
	assert_true(ws_bench_ratio(&row, &r));
	assert_float_equal(r.median, 1, 1e-9);
	row.bytes = row.against_bytes = 0; /* times alone */
	assert_true(ws_bench_ratio(&row, &r));
	assert_float_equal(r.median, 2, 1e-9);
	row.against = NULL;
	assert_false(ws_bench_ratio(&row, &r));
}

/* ---- taking samples ---- */

/* Fails, or cancels, or sleeps, in that call. */
struct script {
	unsigned calls, fails_at, cancels_at;
	int64_t each_ns;
	struct ws_cancel *cancel;
};

static int play(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct script *s = ctx;
	*ns = ++s->calls;
	if (s->calls == s->fails_at)
		return ws_err_set(err, WS_EREFUSED, "gone");
	if (s->calls == s->cancels_at)
		ws_cancel_set(s->cancel);
	for (const int64_t since = ws_now_ns(); ws_now_ns() - since < s->each_ns;)
		;
	return 0;
}

struct seen {
	size_t rows, n, turns, begun;
	int64_t first, last, first_other;
};

static void see_row(void *ctx, const struct ws_bench_row *row)
{
	struct seen *s = ctx;
	s->rows++;
	s->n = row->n;
	s->first = row->ns[0];
	s->last = row->ns[row->n - 1];
	s->first_other = row->against_ns ? row->against_ns[0] : 0;
	assert_int_equal(row->errors, -1);
}

static void see_turn(void *ctx, const char *name, unsigned done, unsigned of)
{
	struct seen *s = ctx;
	assert_string_equal(name, "it");
	assert_int_equal(done, s->turns++);
	assert_true(done < of);
}

static void see_begin(void *ctx)
{
	((struct seen *)ctx)->begun++;
}

static int measure(struct ws_bench_opts o, struct script *s, struct script *other,
                   struct seen *seen)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_bench_row row = { .stage = "kernels", .name = "it" };
	struct ws_cancel cancel;
	const struct bench_timed it = { .run = play, .ctx = s },
				 against = { .run = play, .ctx = other };
	*seen = (struct seen){ 0 };
	assert_int_equal(ws_cancel_init(&cancel, &err), 0);
	s->cancel = &cancel;
	o.cancel = &cancel;
	o.sink = (struct ws_bench_sink){
		.begin = see_begin, .row = see_row, .turn = see_turn, .ctx = seen
	};
	const int rc = bench_measure(&o, &row, &it, other ? &against : NULL, &err);
	ws_cancel_fini(&cancel);
	return rc ? (int)err.code : 0;
}

TEST(warm_ups_are_dropped)
{
	struct seen seen;
	const struct ws_bench_opts o = { .samples = 5, .warmups = 2 };
	assert_int_equal(measure(o, &(struct script){ 0 }, &(struct script){ 0 }, &seen), 0);
	assert_int_equal(seen.rows, 1);
	assert_int_equal(seen.n, 5);
	assert_int_equal(seen.turns, 7);
	assert_int_equal(seen.begun, 1);
	assert_int_equal(seen.first, 3);
	assert_int_equal(seen.last, 7);
	assert_int_equal(seen.first_other, 3);
}

TEST(what_was_taken_before_a_failure_is_told)
{
	struct seen seen;
	const struct ws_bench_opts o = { .samples = 5, .warmups = 1 };
	assert_int_equal(measure(o, &(struct script){ .fails_at = 5 }, &(struct script){ 0 },
	                         &seen),
	                 WS_EREFUSED);
	assert_int_equal(seen.n, 3);
	assert_int_equal(measure(o, &(struct script){ 0 }, &(struct script){ .fails_at = 4 },
	                         &seen),
	                 WS_EREFUSED);
	assert_int_equal(seen.n, 2); /* pairs */
	assert_int_equal(measure(o, &(struct script){ .cancels_at = 3 }, NULL, &seen),
	                 WS_ECANCELLED);
	assert_int_equal(seen.n, 2);
	assert_int_equal(measure(o, &(struct script){ .fails_at = 1 }, NULL, &seen), WS_EREFUSED);
	assert_int_equal(seen.rows + seen.begun, 0);
	assert_int_equal(measure(o, &(struct script){ .fails_at = 2 }, NULL, &seen), WS_EREFUSED);
	assert_int_equal(seen.rows, 0); /* only to warm up */
}

TEST(no_sample_is_begun_when_the_time_is_over)
{
	struct seen seen;
	struct ws_bench_opts o = { .samples = 1000, .warmups = 1, .most_ns = 1 };
	assert_int_equal(measure(o, &(struct script){ .each_ns = 1000000 }, NULL, &seen), 0);
	assert_int_equal(seen.n, 1); /* one at least */
	o.most_ns = 20 * WS_NS_PER_MS;
	assert_int_equal(measure(o, &(struct script){ .each_ns = 1000000 }, NULL, &seen), 0);
	assert_true(seen.n >= 1 && seen.n < 20);
	o.most_ns = 60 * WS_NS_PER_S;
	o.samples = 3;
	assert_int_equal(measure(o, &(struct script){ 0 }, NULL, &seen), 0);
	assert_int_equal(seen.n, 3);
}

/* ---- on paper ---- */

#define GB 1e9
#define SECONDS(x) ((int64_t)((x) * 1e9))

/* 100 GB in 10 buckets, of a source of 200 GB; figures in seconds, of which 0 is not compared. */
static const struct paper {
	const char *name;
	struct ws_bench_topology t;
	unsigned copies;
	double send, receive, read, make, apply, control, floor, expected;
	const char *bound;
} papers[] = {
	{ .name = "a ring is bound by the receivers' link",
	  .t = { .senders = 4, .endpoints = 8, .ranks = 8, .link = 50 * GB, .at_once = true },
	  .copies = 1, .send = 0.5, .receive = 2, .floor = 2, .expected = 2,
	  .bound = "the receivers' links" },
	{ .name = "a tree of 8 ranks, 1, 2 and 4, sends a copy to each child",
	  .t = { .senders = 1, .endpoints = 7, .ranks = 1, .link = 10 * GB, .tree = true },
	  .copies = 3, .send = 30, .receive = 10, .bound = "the senders' links" },
	{ .name = "a tree of two ranks",
	  .t = { .senders = 1, .endpoints = 1, .ranks = 1, .link = 10 * GB, .tree = true },
	  .copies = 1 },
	/* The longest of 5 buckets for each sender, and one bucket through the others: 8 / 5. */
	{ .name = "stages overlap", .t = { .senders = 2, .endpoints = 1, .ranks = 1,
	  .link = 100 * GB, .source = 10 * GB, .make = 20 * GB, .apply = 50 * GB, .at_once = true,
	  .bucket_ns = SECONDS(0.1), .fixed_ns = SECONDS(0.5) },
	  .read = 10, .make = 5, .apply = 2, .control = 1.5, .expected = 10 + 1.6 + 1.5,
	  .bound = "source" },
	{ .name = "stages add up", .t = { .senders = 2, .endpoints = 1, .ranks = 1,
	  .link = 100 * GB, .source = 10 * GB, .make = 20 * GB, .apply = 50 * GB, .at_once = true,
	  .bucket_ns = SECONDS(0.1), .fixed_ns = SECONDS(0.5), .serial = true },
	  .expected = 10 + 5 + 1 + 2 + 1.5 },
	{ .name = "slow requests", .t = { .senders = 2, .endpoints = 1, .ranks = 1,
	  .link = 100 * GB, .source = 10 * GB, .make = 20 * GB, .apply = 50 * GB, .at_once = true,
	  .bucket_ns = SECONDS(2), .fixed_ns = SECONDS(0.5), .serial = true },
	  .bound = "requests" },
	/* Each makes a group of its own; the floor is that of all links at once. */
	{ .name = "senders in turns are as fast as one", .t = { .senders = 4, .endpoints = 1,
	  .ranks = 8, .nics = 8, .link = 50 * GB, .source = 100 * GB, .fixed_ns = SECONDS(1) },
	  .send = 2, .read = 2, .receive = 0.25, .control = 4, .floor = 0.5 },
	{ .name = "senders at once", .t = { .senders = 4, .endpoints = 1, .ranks = 8, .nics = 8,
	  .link = 50 * GB, .source = 100 * GB, .fixed_ns = SECONDS(1), .at_once = true },
	  .send = 0.5, .read = 0.5, .control = 1 },
	/* Each rank loads an eighth. */
	{ .name = "what is scattered goes to every endpoint by itself", .t = { .senders = 4,
	  .endpoints = 2, .ranks = 8, .nics = 8, .link = 50 * GB, .apply = 10 * GB,
	  .scatter = true }, .copies = 2, .send = 1, .receive = 0.25, .apply = 1.25, .floor = 0.5,
	  .bound = "loading" },
};

static void check_seconds(const struct paper *p, const char *what, int64_t ns, double seconds)
{
	if (seconds > 0 && ns != SECONDS(seconds))
		fail_msg("%s: %s takes %lld ns, not %g s", p->name, what, (long long)ns, seconds);
}

TEST(estimates_are_those_worked_out_on_paper)
{
	for (size_t i = 0; i < sizeof papers / sizeof *papers; i++) {
		const struct paper *p = &papers[i];
		struct ws_bench_estimate e;
		ws_bench_estimate(&p->t, UINT64_C(200000000000), UINT64_C(100000000000), 10, &e);
		check_seconds(p, "sending", e.send_ns, p->send);
		check_seconds(p, "receiving", e.receive_ns, p->receive);
		check_seconds(p, "reading", e.read_ns, p->read);
		check_seconds(p, "making", e.make_ns, p->make);
		check_seconds(p, "applying", e.apply_ns, p->apply);
		check_seconds(p, "control", e.control_ns, p->control);
		check_seconds(p, "the floor", e.floor_ns, p->floor);
		check_seconds(p, "all of it", e.expected_ns, p->expected);
		if ((p->copies && e.copies != p->copies) || (p->bound && strcmp(e.bound, p->bound)))
			fail_msg("%s: %u copies, bound by %s", p->name, e.copies, e.bound);
		assert_int_equal(e.turns, p->t.senders > 1 && !p->t.at_once && !p->t.scatter);
	}
}

TEST(a_single_bucket_overlaps_with_nothing)
{
	const struct ws_bench_topology t = { .senders = 1,
		                             .endpoints = 1,
		                             .ranks = 1,
		                             .link = 10 * GB,
		                             .source = 20 * GB };
	struct ws_bench_estimate e;
	ws_bench_estimate(&t, UINT64_C(10000000000), UINT64_C(10000000000), 1, &e);
	assert_int_equal(e.expected_ns, SECONDS(1.5));
	ws_bench_estimate(&t, UINT64_C(10000000000), UINT64_C(10000000000), 10, &e);
	assert_int_equal(e.expected_ns, SECONDS(1.05));
}

RUN_TESTS(NULL, NULL)
