/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads into memory of a GPU on the double of libcuda: that several threads read them and
 * their bytes are in order, what happens to whoever fails, waits too long or is cancelled. */
#include "on_gpu.h"

#include "gpu_stage.h"
#include "staging_ring.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { PAYLOADS = 9, SPANS = 3, LARGE = 3 * WS_RING_SLOT + 77 };

static struct on_gpu gpu;
static const struct fake_cuda *cuda;
static int file = -1;
static struct ws_payload payloads[PAYLOADS];
static struct ws_span spans[PAYLOADS][SPANS];

/* ---- bytes ---- */

static uint8_t byte_of(uint64_t seed, uint64_t at)
{
	return (uint8_t)((at * 0x9e3779b97f4a7c15u + seed * 0x12345671) >> 56);
}

/* Who makes bytes sees whether he is asked in order, by one thread at a time; from byte `bad` of
 * span number bad_seed on he has none, and at it he may be slow. */
static struct {
	_Atomic int inside;
	_Atomic bool together, out_of_order;
	uint64_t seed, next;
	uint64_t bad_seed, bad;
	_Atomic bool slow;
} maker;

static int make(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const uint64_t seed = (uintptr_t)ctx;
	if (atomic_fetch_add(&maker.inside, 1))
		maker.together = true;
	if (at && (seed != maker.seed || at != maker.next))
		maker.out_of_order = true;
	maker.seed = seed;
	maker.next = at + n;
	while (maker.slow)
		usleep(1000);
	for (size_t i = 0; i < n; i++)
		((uint8_t *)dst)[i] = byte_of(seed, at + i);
	atomic_fetch_sub(&maker.inside, 1);
	if (seed == maker.bad_seed && at + n > maker.bad)
		return ws_err_set(err, WS_EINPUT, "span %d has none at %d", (int)seed,
		                  (int)maker.bad);
	return 0;
}

/* Spans of a file and of a maker in turn, of all lengths. */
static void set_up_payloads(void)
{
	static const uint64_t lengths[PAYLOADS] = { 1000, 1, 0, LARGE, 255, 256, 257, LARGE, 3 };
	for (size_t i = 0; i < PAYLOADS; i++) {
		uint64_t left = lengths[i];
		size_t n = 0;
		for (; left && n < SPANS; n++) {
			const uint64_t some = n + 1 < SPANS ? (left + 1) / 2 : left;
			const bool made = (i + n) % 2;
			spans[i][n] = (struct ws_span){ .length = some, .fd = made ? -1 : file,
				                        .offset = made ? 0 : i * 1000 + n,
				                        .fill = make,
				                        .ctx = (void *)(uintptr_t)(i * SPANS + n) };
			left -= some;
		}
		payloads[i] = (struct ws_payload){ lengths[i], spans[i], n };
	}
}

static bool is_there(struct ws_gpu_stage *stage, const struct ws_staging_buffer *b, size_t i)
{
	uint64_t place = 0;
	for (size_t k = 0; k < i; k++)
		place = ws_gpu_stage_next_offset(place, &payloads[k]);
	ON_GPU(ws_stream_wait(gpu.gpu, stage->stream, WS_FOREVER, NULL, &err));
	const uint8_t *at = (const uint8_t *)(uintptr_t)(b->at + place);
	for (size_t n = 0; n < payloads[i].n_spans; n++) {
		const struct ws_span *s = &spans[i][n];
		for (uint64_t j = 0; j < s->length; j++)
			if (*at++ != (s->fd >= 0 ? byte_of(4711, s->offset + j) :
			                           byte_of((uintptr_t)s->ctx, j)))
				return false;
	}
	return true;
}

/* ---- one stage ---- */

static struct ws_gpu_stage stage;
static struct ws_staging_buffer *box;

static int begin(void **state)
{
	(void)state;
	cuda->reset();
	memset(&maker, 0, sizeof maker);
	maker.bad_seed = UINT64_MAX;
	set_up_payloads();
	ON_GPU(ws_gpu_stage_open(&stage, gpu.gpu, &err));
	box = ws_gpu_stage_buffer(&stage, payloads, PAYLOADS);
	return 0;
}

static int end(void **state)
{
	(void)state;
	ws_gpu_stage_close(&stage);
	return maker.together || maker.out_of_order ? -1 : 0;
}

#define ON_STAGE(test) TEST_BETWEEN(test, begin, end)

static int load_all(struct ws_err *err)
{
	while (box->loaded < PAYLOADS)
		if (ws_gpu_stage_load(&stage, box, ws_deadline_in(20 * WS_NS_PER_S), NULL, err))
			return -1;
	return 0;
}

static void assert_all_there(void)
{
	for (size_t i = 0; i < PAYLOADS; i++)
		assert_true(is_there(&stage, box, i));
}

/* ---- tests ---- */

ON_STAGE(all_bytes_arrive_whoever_reads_them)
{
	for (int late = 0; late < 2; late++) {
		cuda->defer(late);
		if (box->at) /* what was there before is no proof */
			memset((void *)(uintptr_t)box->at, 0, box->capacity);
		ON_GPU(load_all(&err));
		assert_all_there();
		ws_gpu_stage_release(box);
		assert_ptr_equal(ws_gpu_stage_buffer(&stage, payloads, PAYLOADS), box);
	}
}

ON_STAGE(each_payload_is_whole_when_it_is_said_to_be)
{
	for (size_t i = 0; i < PAYLOADS; i++) {
		ON_GPU(ws_gpu_stage_load(&stage, box, WS_FOREVER, NULL, &err));
		assert_int_equal(box->loaded, i + 1);
		assert_true(is_there(&stage, box, i));
	}
}

ON_STAGE(the_first_that_fails_is_told_and_tried_again)
{
	struct ws_err told = WS_ERR_INIT;
	maker.bad_seed = 3 * SPANS; /* payload 3 begins with a span that is made */
	maker.bad = WS_RING_SLOT;
	spans[3][1].offset = UINT64_C(1) << 40; /* and what follows cannot be read either */
	assert_fails(load_all(&told), &told, WS_EINPUT, "");
	assert_int_equal(box->loaded, 3);
	maker.bad_seed = UINT64_MAX;
	assert_fails(load_all(&told), &told, WS_EINPUT, "a file of the source");
	assert_int_equal(box->loaded, 3);
	spans[3][1].offset = 3 * 1000 + 1;
	ON_GPU(load_all(&err));
	assert_all_there();
}

/* Somebody else changes his mind at some moment. */
static struct ws_cancel enough;

static void *cancel_soon(void *arg)
{
	usleep((useconds_t)(uintptr_t)arg);
	ws_cancel_set(&enough);
	maker.slow = false;
	return NULL;
}

ON_STAGE(it_may_be_cancelled_at_any_moment)
{
	unsigned cancelled = 0;
	for (uintptr_t us = 1; us < 200000; us = us * 3 / 2 + 1) {
		struct ws_err told = WS_ERR_INIT;
		pthread_t other;
		enough = (struct ws_cancel)WS_CANCEL_INIT;
		maker.slow = us % 2;
		assert_int_equal(pthread_create(&other, NULL, cancel_soon, (void *)us), 0);
		int rc = 0;
		while (rc == 0 && box->loaded < PAYLOADS)
			rc = ws_gpu_stage_load(&stage, box, WS_FOREVER, &enough, &told);
		pthread_join(other, NULL);
		assert_int_equal(told.code, rc ? WS_ECANCELLED : WS_OK);
		cancelled += rc != 0;
		ws_gpu_stage_release(box);
		memset(spans, 0, sizeof spans); /* nobody looks at them any more */
		set_up_payloads();
		box = ws_gpu_stage_buffer(&stage, payloads, PAYLOADS);
	}
	assert_true(cancelled > 0);
	ON_GPU(load_all(&err));
	assert_all_there();
}

/* As long as it is read, its bytes are borrowed: so it ends when the reader does, and says why. */
ON_STAGE(a_slow_reader_ends_after_the_deadline)
{
	struct ws_err told = WS_ERR_INIT;
	pthread_t other;
	enough = (struct ws_cancel)WS_CANCEL_INIT;
	maker.slow = true;
	assert_int_equal(pthread_create(&other, NULL, cancel_soon, (void *)(uintptr_t)200000), 0);
	int rc = 0;
	while (rc == 0)
		rc = ws_gpu_stage_load(&stage, box, ws_deadline_in(WS_NS_PER_S / 20), NULL, &told);
	pthread_join(other, NULL);
	assert_int_equal(told.code, WS_ETIMEOUT);
	assert_string_equal(told.msg, "reading took too long");
	ON_GPU(load_all(&err));
	assert_all_there();
}

ON_STAGE(another_box_takes_the_ring_over)
{
	struct ws_payload other = { LARGE, &(struct ws_span){ .length = LARGE, .fd = file }, 1 };
	ON_GPU(ws_gpu_stage_load(&stage, box, WS_FOREVER, NULL, &err));
	struct ws_staging_buffer *second = ws_gpu_stage_buffer(&stage, &other, 1);
	assert_ptr_not_equal(second, box);
	assert_null(ws_gpu_stage_buffer(&stage, &payloads[3], 1));
	ON_GPU(ws_gpu_stage_load(&stage, second, WS_FOREVER, NULL, &err));
	ON_GPU(load_all(&err));
	assert_all_there();
	const uint8_t *at = (const uint8_t *)(uintptr_t)second->at;
	for (uint64_t j = 0; j < LARGE; j++)
		assert_true(at[j] == byte_of(4711, j));
}

ON_STAGE(no_more_memory_is_taken_than_was_said)
{
	uint64_t most = 0, pinned = 0, bytes = 0, box_bytes = 0, host = 0;
	unsigned long long n;
	for (size_t i = 0; i < PAYLOADS; i++)
		bytes += payloads[i].length;
	ws_gpu_stage_memory(2, bytes, PAYLOADS, &most, &pinned);
	ON_GPU(load_all(&err));
	const char *record = cuda->record();
	for (const char *p = record; (p = strstr(p, "cuMemAlloc_v2 ")); p++)
		box_bytes += sscanf(p, "cuMemAlloc_v2 %llu", &n) == 1 ? n : 0;
	for (const char *p = record; (p = strstr(p, "cuMemHostAlloc ")); p++)
		host += sscanf(p, "cuMemHostAlloc %llu", &n) == 1 ? n : 0;
	assert_true(2 * box_bytes <= most && box_bytes >= bytes);
	assert_true(host == pinned);
}

ON_STAGE(every_call_of_the_driver_may_fail)
{
	unsigned n = 0;
	for (int rc = -1; rc; n++) {
		struct ws_err told = WS_ERR_INIT;
		ws_gpu_stage_close(&stage);
		cuda->reset();
		set_up_payloads();
		cuda->refuse("", n, 700);
		rc = ws_gpu_stage_open(&stage, gpu.gpu, &told);
		if (rc == 0) {
			box = ws_gpu_stage_buffer(&stage, payloads, PAYLOADS);
			rc = load_all(&told);
		}
		assert_int_equal(told.code, rc ? WS_EDEVICE : WS_OK);
	}
	assert_true(n > 40);
	cuda->reset();
	assert_all_there();
}

int main(void)
{
	cuda = on_gpu_double();
	if (!cuda || !on_gpu_open(&gpu))
		return 0;
	FILE *f = tmpfile();
	for (uint64_t i = 0; i < LARGE + 100000; i++)
		putc(byte_of(4711, i), f);
	fflush(f);
	file = fileno(f);
	const int rc = run_listed(NULL, NULL);
	fclose(f);
	on_gpu_close(&gpu);
	return rc;
}
