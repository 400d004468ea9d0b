/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of wsync-bench: made of samples, and on paper. */
#include "bench_samples.h"
#include "test.h"

TEST(figures_are_those_of_the_sorted_samples)
{
	struct ws_bench_sum s;
	ws_bench_sum((const int64_t[]){ 5 }, 1, &s);
	assert_int_equal(s.min, 5);
	assert_int_equal(s.median, 5);
	assert_int_equal(s.p99, 5);
	assert_int_equal(s.max, 5);
	ws_bench_sum((const int64_t[]){ 9, 1, 5, 3 }, 4, &s);
	assert_int_equal(s.n, 4);
	assert_int_equal(s.min, 1);
	assert_int_equal(s.median, 4); /* between 3 and 5 */
	assert_int_equal(s.p99, 9);
	ws_bench_sum((const int64_t[]){ 9, 1, 5 }, 3, &s);
	assert_int_equal(s.median, 5);
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

TEST(the_middle_half_says_how_noisy_it_was)
{
	struct ws_bench_sum s;
	ws_bench_sum((const int64_t[]){ 100 }, 1, &s);
	assert_float_equal(s.spread, 0, 1e-9);
	/* too few for halves: all of them */
	ws_bench_sum((const int64_t[]){ 100, 160, 80 }, 3, &s);
	assert_float_equal(s.spread, 0.8, 1e-9);
	/* one far off on each side counts for nothing */
	ws_bench_sum((const int64_t[]){ 100, 900, 90, 110, 10 }, 5, &s);
	assert_float_equal(s.spread, 0.2, 1e-9);
	ws_bench_sum((const int64_t[]){ 0, 0 }, 2, &s);
	assert_float_equal(s.spread, 0, 1e-9);
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
	assert_int_equal(measure((struct ws_bench_opts){ .samples = 5, .warmups = 2 },
	                         &(struct script){ 0 }, &(struct script){ 0 }, &seen),
	                 0);
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

static const double GB = 1e9;

static struct ws_bench_estimate on_paper(struct ws_bench_topology t)
{
	struct ws_bench_estimate e;
	ws_bench_estimate(&t, UINT64_C(200) * 1000000000, UINT64_C(100) * 1000000000, 10, &e);
	return e;
}

#define SECONDS(x) ((int64_t)((x) * 1e9))

TEST(a_ring_is_bound_by_the_receivers_link)
{
	const struct ws_bench_estimate e = on_paper((struct ws_bench_topology){ .senders = 4,
	                                                                        .endpoints = 8,
	                                                                        .ranks = 8,
	                                                                        .link = 50 * GB,
	                                                                        .at_once = true });
	assert_int_equal(e.copies, 1);
	assert_int_equal(e.send_ns, SECONDS(0.5));
	assert_int_equal(e.receive_ns, SECONDS(2));
	assert_int_equal(e.floor_ns, SECONDS(2));
	assert_int_equal(e.expected_ns, SECONDS(2));
	assert_string_equal(e.bound, "the receivers' links");
}

TEST(a_tree_sends_a_copy_to_each_child)
{
	const struct ws_bench_estimate e = on_paper((struct ws_bench_topology){
		.senders = 1, .endpoints = 7, .ranks = 1, .link = 10 * GB, .tree = true });
	assert_int_equal(e.copies, 3); /* 8 ranks: 1, 2, 4 */
	assert_int_equal(e.send_ns, SECONDS(30));
	assert_int_equal(e.receive_ns, SECONDS(10));
	assert_string_equal(e.bound, "the senders' links");
	const struct ws_bench_estimate two = on_paper((struct ws_bench_topology){
		.senders = 1, .endpoints = 1, .ranks = 1, .link = 10 * GB, .tree = true });
	assert_int_equal(two.copies, 1);
}

TEST(stages_overlap_or_add_up)
{
	struct ws_bench_topology t = { .senders = 2,
		                       .endpoints = 1,
		                       .ranks = 1,
		                       .link = 100 * GB,
		                       .source = 10 * GB,
		                       .make = 20 * GB,
		                       .apply = 50 * GB,
		                       .at_once = true,
		                       .bucket_ns = SECONDS(0.1),
		                       .fixed_ns = SECONDS(0.5) };
	struct ws_bench_estimate e = on_paper(t);
	assert_int_equal(e.read_ns, SECONDS(10));
	assert_int_equal(e.make_ns, SECONDS(5));
	assert_int_equal(e.apply_ns, SECONDS(2));
	assert_int_equal(e.control_ns, SECONDS(1.5));
	/* The longest of 5 buckets for each sender, and one bucket through the others: 8 / 5. */
	assert_int_equal(e.expected_ns, SECONDS(10 + 1.6 + 1.5));
	assert_string_equal(e.bound, "source");
	t.serial = true;
	e = on_paper(t);
	assert_int_equal(e.expected_ns, SECONDS(10 + 5 + 1 + 2 + 1.5));
	t.bucket_ns = SECONDS(2);
	assert_string_equal(on_paper(t).bound, "requests");
}

TEST(senders_in_turns_are_as_fast_as_one)
{
	struct ws_bench_topology t = { .senders = 4,
		                       .endpoints = 1,
		                       .ranks = 8,
		                       .nics = 8,
		                       .link = 50 * GB,
		                       .source = 100 * GB,
		                       .fixed_ns = SECONDS(1) };
	struct ws_bench_estimate e = on_paper(t);
	assert_int_equal(e.send_ns, SECONDS(2));
	assert_int_equal(e.read_ns, SECONDS(2));
	assert_int_equal(e.receive_ns, SECONDS(0.25));
	assert_int_equal(e.control_ns, SECONDS(4)); /* each makes a group of its own */
	assert_int_equal(e.floor_ns, SECONDS(0.5)); /* all links at once */
	assert_true(e.turns);
	t.at_once = true;
	e = on_paper(t);
	assert_int_equal(e.send_ns, SECONDS(0.5));
	assert_int_equal(e.read_ns, SECONDS(0.5));
	assert_int_equal(e.control_ns, SECONDS(1));
}

TEST(what_is_scattered_goes_to_every_endpoint_by_itself)
{
	const struct ws_bench_estimate e = on_paper((struct ws_bench_topology){ .senders = 4,
	                                                                        .endpoints = 2,
	                                                                        .ranks = 8,
	                                                                        .nics = 8,
	                                                                        .link = 50 * GB,
	                                                                        .apply = 10 * GB,
	                                                                        .scatter = true });
	assert_int_equal(e.copies, 2);
	assert_int_equal(e.send_ns, SECONDS(1));
	assert_int_equal(e.receive_ns, SECONDS(0.25));
	assert_int_equal(e.apply_ns, SECONDS(1.25)); /* an eighth for each rank */
	assert_int_equal(e.floor_ns, SECONDS(0.5));
	assert_string_equal(e.bound, "loading");
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
