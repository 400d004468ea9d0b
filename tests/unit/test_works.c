/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles that are numbers of their own place: whoever reads them, in whatever order and however
 * many at once, gets the bytes that belong there, within the memory that was allowed. */
#include "worker_pool.h"
#include "test.h"

#include <pthread.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

struct thing {
	struct ws_tiled tiled;
	unsigned seed;
	uint64_t fails_at;  /* UINT64_MAX: never */
	unsigned sleep_us;
	int held, made;     /* atomic */
};

static uint8_t byte_at(unsigned seed, uint64_t at)
{
	return (uint8_t)((at * 2654435761u + seed * 97u) >> 13);
}

static int make(const struct ws_tiled *t, uint64_t at, void *dst, size_t n, struct ws_scratch *desk,
                struct ws_err *err)
{
	struct thing *x = (struct thing *)(uintptr_t)t;
	uint8_t *to = dst;
	memset(ws_scratch_take(desk, 1000), 1, 1000);
	if (x->sleep_us)
		usleep(x->sleep_us);
	__atomic_fetch_add(&x->made, 1, __ATOMIC_RELAXED);
	if (at <= x->fails_at && x->fails_at < at + n)
		return ws_err_set(err, WS_EINPUT, "no byte %llu", (unsigned long long)x->fails_at);
	for (size_t i = 0; to && i < n; i++)
		to[i] = byte_at(x->seed, at + i);
	return 0;
}

static void hold(const struct ws_tiled *t)
{
	__atomic_fetch_add(&((struct thing *)(uintptr_t)t)->held, 1, __ATOMIC_RELAXED);
}

static void drop(const struct ws_tiled *t)
{
	__atomic_fetch_sub(&((struct thing *)(uintptr_t)t)->held, 1, __ATOMIC_RELAXED);
}

static struct thing thing(unsigned seed, uint64_t bytes, uint64_t tile)
{
	return (struct thing){ .tiled = { .bytes = bytes, .tile = tile, .make = make, .hold = hold,
		                          .drop = drop }, .seed = seed, .fails_at = UINT64_MAX };
}

static struct ws_worker_pool *works(unsigned threads)
{
	struct ws_worker_pool *w;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_worker_pool_new(threads, 16 * MIB, &w, &err), &err);
	return w;
}

static void check(const uint8_t *bytes, unsigned seed, uint64_t at, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i] != byte_at(seed, at + i))
			fail_msg("byte %llu of %u is wrong", (unsigned long long)(at + i), seed);
}

static struct ws_pool_job *begin(struct ws_worker_pool *w, struct thing *things, size_t n,
                                 bool eager)
{
	const struct ws_tiled *items[16];
	struct ws_pool_job *r;
	struct ws_err err = WS_ERR_INIT;
	for (size_t i = 0; i < n; i++)
		items[i] = &things[i].tiled;
	assert_ok(ws_pool_job_begin(w, items, n, eager, &r, &err), &err);
	return r;
}

TEST(a_reader_gets_the_bytes_in_order)
{
	struct thing things[] = { thing(1, 5 * MIB + 3, MIB), thing(2, 1, 7),
		                  thing(3, 40 * MIB, 300007) };
	struct ws_worker_pool *w = works(3);
	struct ws_pool_job *r = begin(w, things, 3, true);
	uint8_t *bytes = malloc(MIB);
	for (size_t k = 0; k < 3; k++) {
		assert_int_equal(things[k].held, 1);
		for (uint64_t at = 0; at < things[k].tiled.bytes;) {
			const size_t n = things[k].tiled.bytes - at < 100001 ?
			                         (size_t)(things[k].tiled.bytes - at) :
			                         100001;
			assert_int_equal(ws_pool_job_read(r, k, at, bytes, n, NULL), 0);
			check(bytes, things[k].seed, at, n);
			at += n;
		}
	}
	assert_int_equal(things[0].held, 0);
	ws_pool_job_end(r);
	assert_int_equal(things[2].held, 0);
	assert_true(ws_worker_pool_peak(w) <= 16 * MIB);
	assert_int_equal(ws_worker_pool_tiles_made(w), 6 + 1 + (40 * MIB + 300006) / 300007);
	ws_worker_pool_free(w);
	ws_worker_pool_free(NULL);
	ws_pool_job_end(NULL);
	free(bytes);
}

TEST(jumping_about_is_slow_and_not_wrong)
{
	struct thing things[] = { thing(4, 3 * MIB + 1, 65536), thing(5, 9 * MIB, MIB) };
	struct ws_worker_pool *w = works(2);
	struct ws_pool_job *r = begin(w, things, 2, true);
	uint8_t bytes[5000];
	uint32_t x = 7;
	for (int i = 0; i < 300; i++) {
		x = x * 1664525 + 1013904223;
		const size_t k = x >> 31;
		const uint64_t at = (x >> 4) % (things[k].tiled.bytes - sizeof bytes);
		assert_false(ws_pool_job_read(r, k, at, bytes, 1 + (x >> 8) % sizeof bytes, NULL));
		check(bytes, things[k].seed, at, 1);
	}
	ws_pool_job_end(r);
	assert_int_equal(things[0].held, 0);
	assert_int_equal(things[1].held, 0);
	ws_worker_pool_free(w);
}

struct reader {
	struct ws_worker_pool *works;
	struct thing *things;
	unsigned seed;
};

static void *read_all(void *arg)
{
	struct reader *self = arg;
	uint8_t bytes[70001];
	for (int round = 0; round < 3; round++) {
		struct ws_pool_job *r = begin(self->works, self->things, 3, self->seed % 2);
		uint32_t x = self->seed;
		for (size_t k = 0; k < 3; k++) {
			for (uint64_t at = 0; at < self->things[k].tiled.bytes;) {
				x = x * 1664525 + 1013904223;
				size_t n = 1 + (x >> 8) % sizeof bytes;
				n = self->things[k].tiled.bytes - at < n ?
				            (size_t)(self->things[k].tiled.bytes - at) :
				            n;
				if (ws_pool_job_read(r, k, at, bytes, n, NULL))
					return self; /* refused */
				for (size_t i = 0; i < n; i += 977)
					if (bytes[i] != byte_at(self->things[k].seed, at + i))
						return self; /* wrong */
				at += n;
			}
			if (round == 1 && k == 1)
				break; /* in the middle */
		}
		ws_pool_job_end(r);
	}
	return NULL;
}

TEST(many_readers_get_on_with_little_memory)
{
	struct thing things[] = { thing(6, 8 * MIB, MIB), thing(7, 123457, 1000),
		                  thing(8, 6 * MIB + 5, MIB) };
	struct ws_worker_pool *w = works(4);
	struct reader readers[12];
	pthread_t threads[12];
	/* One that begins and never reads holds nobody up. */
	struct ws_pool_job *idle = begin(w, things, 3, true);
	for (unsigned i = 0; i < 12; i++) {
		readers[i] = (struct reader){ w, things, i };
		pthread_create(&threads[i], NULL, read_all, &readers[i]);
	}
	for (unsigned i = 0; i < 12; i++) {
		void *said;
		pthread_join(threads[i], &said);
		assert_null(said);
	}
	ws_pool_job_end(idle);
	assert_true(ws_worker_pool_peak(w) <= 16 * MIB);
	for (int i = 0; i < 3; i++)
		assert_int_equal(things[i].held, 0);
	ws_worker_pool_free(w);
}

TEST(the_first_failure_is_told_when_the_reader_is_there)
{
	struct thing things[] = { thing(9, 4 * MIB, 65536), thing(10, 4 * MIB, 65536) };
	struct ws_worker_pool *w = works(3);
	struct ws_err err = WS_ERR_INIT;
	uint8_t *bytes = malloc(4 * MIB);
	things[0].fails_at = 2 * MIB + 5;
	things[1].fails_at = 0;
	struct ws_pool_job *r = begin(w, things, 2, true);
	assert_int_equal(ws_pool_job_read(r, 0, 0, bytes, 2 * MIB, &err), 0);
	check(bytes, 9, 0, 2 * MIB);
	assert_fails_with(ws_pool_job_read(r, 0, 2 * MIB, bytes, MIB, &err), &err, WS_EINPUT,
	                  "no byte 2097157");
	ws_pool_job_end(r);
	ws_worker_pool_free(w);
	free(bytes);
}

TEST(ending_in_the_middle_hangs_nobody)
{
	struct thing slow = thing(11, 64 * MIB, MIB);
	slow.sleep_us = 500;
	for (int i = 0; i < 100; i++) {
		struct ws_worker_pool *w = works(1 + (unsigned)i % 4);
		struct ws_pool_job *r = begin(w, &slow, 1, true);
		uint8_t byte;
		if (i % 3)
			assert_false(ws_pool_job_read(r, 0, (uint64_t)i * MIB / 2, &byte, 1, NULL));
		ws_pool_job_end(r);
		ws_worker_pool_free(w);
		assert_int_equal(slow.held, 0);
	}
}

/* Goes on until nobody wants it, as far as the test has patience. */
static int make_for_long(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                         struct ws_scratch *desk, struct ws_err *err)
{
	struct thing *x = (struct thing *)(uintptr_t)t;
	(void)at, (void)dst, (void)n;
	__atomic_fetch_add(&x->made, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 100000 && !ws_scratch_cancelled(desk); i++)
		usleep(100);
	if (ws_scratch_cancelled(desk))
		__atomic_fetch_add(&x->held, 1, __ATOMIC_RELAXED);
	return ws_err_set(err, WS_ECANCELLED, "not wanted");
}

TEST(who_makes_is_told_that_nobody_waits)
{
	struct thing slow = thing(14, 2, 1);
	slow.tiled.scan_only = true;
	slow.tiled.make = make_for_long;
	slow.tiled.hold = slow.tiled.drop = NULL;
	struct ws_worker_pool *w = works(2);
	struct ws_pool_job *r = begin(w, &slow, 1, true);
	assert_int_equal(ws_pool_job_wait(r, 20, NULL), 0);
	while (__atomic_load_n(&slow.made, __ATOMIC_RELAXED) < 2)
		usleep(100);
	ws_pool_job_end(r);
	ws_worker_pool_free(w);
	assert_int_equal(slow.held, 2);
}

TEST(dry_things_are_waited_for)
{
	struct thing things[] = { thing(12, 1000, 7), thing(13, 5, 100) };
	struct ws_worker_pool *w = works(2);
	struct ws_err err = WS_ERR_INIT;
	things[0].tiled.scan_only = things[1].tiled.scan_only = true;
	struct ws_pool_job *r = begin(w, things, 2, true);
	assert_int_equal(ws_pool_job_wait(r, -1, &err), 1);
	assert_int_equal(things[0].made, 143);
	ws_pool_job_end(r);
	things[0].fails_at = 500;
	things[1].fails_at = 1;
	r = begin(w, things, 2, true);
	assert_fails_with(ws_pool_job_wait(r, -1, &err), &err, WS_EINPUT, "no byte 500");
	ws_pool_job_end(r);
	things[0].fails_at = UINT64_MAX;
	things[0].sleep_us = 20000;
	r = begin(w, things, 1, true);
	assert_int_equal(ws_pool_job_wait(r, 1, &err), 0);
	ws_pool_job_end(r);
	ws_worker_pool_free(w);
}

TEST(what_is_kept_is_counted)
{
	struct ws_worker_pool *w = works(1);
	assert_true(ws_worker_pool_reserve(w, MIB));
	assert_false(ws_worker_pool_reserve_is_scarce(w));
	assert_true(ws_worker_pool_reserve(w, MIB));
	assert_false(ws_worker_pool_reserve(w, 1));
	assert_false(ws_worker_pool_reserve(w, UINT64_MAX));
	assert_true(ws_worker_pool_reserve_is_scarce(w));
	ws_worker_pool_unreserve(w, 2 * MIB);
	assert_int_equal(ws_worker_pool_peak(w), 2 * MIB);
	ws_worker_pool_free(w);
}

RUN_TESTS(NULL, NULL)
