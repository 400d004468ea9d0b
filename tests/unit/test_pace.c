/* SPDX-License-Identifier: Apache-2.0 */
/* Which bucket sizes are tried, and which one stays, with servers of written speed. */
#include "pace.h"
#include "test.h"

enum { MIB = 1 << 20 };

/* A server of this speed (bytes per second at a size, in its n-th bucket). */
struct server {
	double (*speed)(uint64_t size, unsigned n);
	uint64_t sent[2048]; /* bytes at each size, by MiB */
	unsigned n;
};

/* Sends `total` bytes in full buckets. As in a push, the size of a bucket is asked for before the
 * one in front of it is measured. A trial takes a sixteenth of what was left when it began. */
static void run(struct ws_pace *p, struct server *s, uint64_t total)
{
	uint64_t trial = 0, before = total, took = 0, size = p->best;
	for (uint64_t left = total; left > 0;) {
		const uint64_t bytes = size < left ? size : left;
		const double seconds = (double)bytes / s->speed(size, s->n++);
		left -= bytes;
		const uint64_t next = ws_pace_size(p, left);
		if (p->trial != trial) {
			trial = p->trial;
			before = left;
			took = 0;
		}
		took += trial && next == trial && next < left ? next : 0;
		assert_true(took * 16 <= before);
		ws_pace_took(p, size, bytes, (int64_t)(seconds * 1e9));
		s->sent[size / MIB] += bytes;
		size = next;
	}
}

static double always_alike(uint64_t size, unsigned n)
{
	(void)size, (void)n;
	return 2e9;
}

static double noisy(uint64_t size, unsigned n)
{
	(void)size;
	return 2e9 * (0.8 + (double)(n * 7919 % 41) / 100);
}

/* malloc gives memory back above 32 MiB. */
static double fresh_memory(uint64_t size, unsigned n)
{
	(void)n;
	return size > 32 * MIB ? 0.8e9 : 2e9;
}

static double slow_requests(uint64_t size, unsigned n)
{
	(void)n;
	return (double)size / ((double)size / 3e9 + 0.02);
}

static double small_is_fast(uint64_t size, unsigned n)
{
	(void)n;
	return size > 16 * MIB ? 1e9 : 2e9;
}

static double smaller_is_faster(uint64_t size, unsigned n)
{
	(void)n;
	return 1e16 / (double)size;
}

/* The new size is faster than most buckets of the old one, but not than the fastest. */
static double one_is_fast(uint64_t size, unsigned n)
{
	return size == 31 * MIB ? (n % 8 == 1 ? 3e9 : 1e9) : 2e9;
}

static const struct {
	double (*speed)(uint64_t size, unsigned n);
	uint64_t total, best;
} cases[] = {
	{ smaller_is_faster, UINT64_C(60000) * MIB, 7 }, { one_is_fast, UINT64_C(6000) * MIB, 31 },
	{ always_alike, UINT64_C(60000) * MIB, 31 }, { noisy, UINT64_C(60000) * MIB, 31 },
	{ fresh_memory, UINT64_C(60000) * MIB, 31 }, { fresh_memory, UINT64_C(6000) * MIB, 31 },
	{ slow_requests, UINT64_C(600000) * MIB, 496 },
	{ small_is_fast, UINT64_C(60000) * MIB, 15 },
};

TEST(the_best_size_stays_and_a_trial_takes_a_sixteenth_at_most)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ws_pace p = { 0 };
		struct server s = { .speed = cases[i].speed };
		ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
		run(&p, &s, cases[i].total);
		assert_int_equal(p.best / MIB, cases[i].best);
	}
}

TEST(two_slow_buckets_end_a_trial)
{
	struct ws_pace p = { 0 };
	struct server s = { .speed = fresh_memory };
	ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
	run(&p, &s, UINT64_C(60000) * MIB);
	assert_int_equal(s.sent[62], 2 * 62 * MIB);
}

static double a_fifth_slower(uint64_t size, unsigned n)
{
	(void)n;
	return size > 32 * MIB ? 1.6e9 : 2e9;
}

TEST(four_buckets_decide_a_trial)
{
	struct ws_pace p = { 0 };
	struct server s = { .speed = a_fifth_slower };
	ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
	run(&p, &s, UINT64_C(60000) * MIB);
	assert_int_equal(s.sent[62], 4 * 62 * MIB);
	assert_int_equal(s.sent[15], 4 * (31 * MIB / 2));
}

/* Every other bucket of the trial is small: of five, three are no samples. */
TEST(a_trial_without_four_full_buckets_ends_after_five)
{
	struct ws_pace p = { 0 };
	unsigned tried[3] = { 0 };
	ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
	for (unsigned i = 0; i < 100; i++) {
		const uint64_t size = ws_pace_size(&p, UINT64_C(60000) * MIB);
		const unsigned k = size > 31 * MIB ? 2 : size < 31 * MIB ? 1 : 0;
		tried[k]++;
		const uint64_t bytes = k && tried[k] % 2 ? size / 4 : size;
		ws_pace_took(&p, size, bytes, (int64_t)bytes);
	}
	assert_int_equal(tried[1], 5);
	assert_int_equal(tried[2], 5);
	assert_int_equal(p.best, 31 * MIB);
}

TEST(a_small_push_tries_nothing)
{
	struct ws_pace p = { 0 };
	struct server s = { .speed = small_is_fast };
	ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
	run(&p, &s, 900 * MIB);
	assert_int_equal(s.sent[31], 900 * MIB);
}

TEST(the_next_push_begins_with_the_best_size)
{
	struct ws_pace p = { 0 };
	struct server s = { .speed = small_is_fast };
	ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
	run(&p, &s, UINT64_C(60000) * MIB);
	ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
	assert_int_equal(ws_pace_size(&p, 100 * MIB) / MIB, 15);
	ws_pace_begin(&p, 512 * MIB, 4 * MIB, 512 * MIB); /* other servers */
	assert_int_equal(p.best, 512 * MIB);
}

TEST(single_large_tensors_and_rests_say_nothing)
{
	struct ws_pace p = { 0 };
	ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
	for (int i = 0; i < 1000; i++) {
		const uint64_t size = ws_pace_size(&p, UINT64_C(60000) * MIB);
		ws_pace_took(&p, size, 300 * MIB, size > 31 * MIB ? 1 : 1000);
		ws_pace_took(&p, size, 8 * 1024, size > 31 * MIB ? 1 : 1000);
		ws_pace_took(&p, 124 * MIB, 120 * MIB, 1); /* cut before the last decision */
		ws_pace_took(&p, size, size, 0);
	}
	assert_int_equal(p.best, 31 * MIB);
	assert_int_equal(p.trial, 0); /* after a while they are given up */
}

/* The machine gets slower and faster by far more than the sizes differ. */
static double other_load(uint64_t size, unsigned n)
{
	(void)size;
	return n / 100 % 2 ? 0.3e9 : 3e9;
}

TEST(a_change_of_the_load_is_no_gain)
{
	for (unsigned n = 0; n < 200; n++) {
		struct ws_pace p = { 0 };
		struct server s = { .speed = other_load, .n = n };
		ws_pace_begin(&p, 31 * MIB, 4 * MIB, 512 * MIB);
		run(&p, &s, UINT64_C(60000) * MIB);
		assert_int_equal(p.best, 31 * MIB);
	}
}

RUN_TESTS(NULL, NULL)
