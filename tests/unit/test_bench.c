/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of wsync-bench: made of samples, and on paper. */
#include "wsync/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void figures_are_those_of_the_sorted_samples(void **state)
{
	(void)state;
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

static void p99_is_the_nearest_rank(void **state)
{
	(void)state;
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

static void ratios_are_of_pairs_and_of_rates(void **state)
{
	(void)state;
	const int64_t ours[] = { 100, 200, 50 }, theirs[] = { 200, 200, 200 };
	struct ws_bench_ratio r;
	struct ws_bench_row row = { .ns = ours, .n = 3, .bytes = 10, .against = "x", .against_bytes = 10,
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

/* ---- on paper ---- */

static const double GB = 1e9;

static struct ws_bench_estimate on_paper(struct ws_bench_topology t)
{
	struct ws_bench_estimate e;
	ws_bench_estimate(&t, UINT64_C(200) * 1000000000, UINT64_C(100) * 1000000000, 10, &e);
	return e;
}

#define SECONDS(x) ((int64_t)((x) * 1e9))

static void a_ring_is_bound_by_the_receivers_link(void **state)
{
	(void)state;
	const struct ws_bench_estimate e = on_paper((struct ws_bench_topology){
		.senders = 4, .endpoints = 8, .ranks = 8, .link = 50 * GB, .ring = true, .overlap = true });
	assert_int_equal(e.copies, 1);
	assert_int_equal(e.send_ns, SECONDS(0.5));
	assert_int_equal(e.receive_ns, SECONDS(2));
	assert_int_equal(e.floor_ns, SECONDS(2));
	assert_int_equal(e.expected_ns, SECONDS(2));
	assert_string_equal(e.bound, "the receivers' links");
}

static void a_tree_sends_a_copy_to_each_child(void **state)
{
	(void)state;
	const struct ws_bench_estimate e = on_paper((struct ws_bench_topology){
		.senders = 1, .endpoints = 7, .ranks = 1, .link = 10 * GB, .overlap = true });
	assert_int_equal(e.copies, 3); /* 8 ranks: 1, 2, 4 */
	assert_int_equal(e.send_ns, SECONDS(30));
	assert_int_equal(e.receive_ns, SECONDS(10));
	assert_string_equal(e.bound, "the senders' links");
	const struct ws_bench_estimate two = on_paper((struct ws_bench_topology){
		.senders = 1, .endpoints = 1, .ranks = 1, .link = 10 * GB });
	assert_int_equal(two.copies, 1);
}

static void stages_overlap_or_add_up(void **state)
{
	(void)state;
	struct ws_bench_topology t = { .senders = 2, .endpoints = 1, .ranks = 1, .link = 100 * GB,
		                       .source = 10 * GB, .make = 20 * GB, .apply = 50 * GB, .ring = true,
		                       .bucket_ns = SECONDS(0.1), .fixed_ns = SECONDS(0.5), .overlap = true };
	struct ws_bench_estimate e = on_paper(t);
	assert_int_equal(e.read_ns, SECONDS(10));
	assert_int_equal(e.make_ns, SECONDS(5));
	assert_int_equal(e.apply_ns, SECONDS(2));
	assert_int_equal(e.control_ns, SECONDS(1.5));
	assert_int_equal(e.expected_ns, SECONDS(11.5));
	assert_string_equal(e.bound, "source");
	t.overlap = false;
	e = on_paper(t);
	assert_int_equal(e.expected_ns, SECONDS(10 + 5 + 1 + 2 + 1.5));
	t.bucket_ns = SECONDS(2);
	assert_string_equal(on_paper(t).bound, "requests");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(figures_are_those_of_the_sorted_samples),
		cmocka_unit_test(p99_is_the_nearest_rank),
		cmocka_unit_test(ratios_are_of_pairs_and_of_rates),
		cmocka_unit_test(a_ring_is_bound_by_the_receivers_link),
		cmocka_unit_test(a_tree_sends_a_copy_to_each_child),
		cmocka_unit_test(stages_overlap_or_add_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
