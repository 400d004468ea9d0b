/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets that other processes read, on the double of libcuda: the bytes are there when their
 * place is told, parts come in turn, and nothing is left wherever it stops. */
#include "on_gpu.h"

#include "ipc_export.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	BUCKETS = 7,
	LENGTH = (9 << 20) + 3,
	OUT_OF_MEMORY = 2,
	ILLEGAL_ADDRESS = 700,
	UNKNOWN = 999
};

static const struct fake_cuda *fake;
static _Atomic bool is_slow, fails;

static uint8_t byte_of(uint64_t seed, uint64_t at)
{
	return (uint8_t)((at * 0x9e3779b97f4a7c15u + (seed + 1) * 0x12345671) >> 56);
}

static int make(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	const struct timespec pause = { .tv_nsec = 20000000 };
	if (fails)
		return ws_err_set(err, WS_EINPUT, "tensor 'x' has NaN");
	if (is_slow)
		nanosleep(&pause, NULL);
	for (size_t i = 0; i < n; i++)
		((uint8_t *)dst)[i] = byte_of((uintptr_t)ctx, at + i);
	return 0;
}

static struct ws_span spans[BUCKETS];
static struct ws_payload buckets[BUCKETS];

static int begin(void **state)
{
	(void)state;
	is_slow = fails = false;
	for (size_t i = 0; i < BUCKETS; i++) {
		spans[i] = (struct ws_span){
			.length = LENGTH - i, .fd = -1, .fill = make, .ctx = (void *)i
		};
		buckets[i] = (struct ws_payload){ LENGTH - i, &spans[i], 1 };
	}
	fake->reset();
	return 0;
}

static int end(void **state)
{
	(void)state;
	fake->reset();
	const char *mistake = fake->mistake();
	if (*mistake || fake->live())
		print_error("%s, %zu things left\n", mistake, fake->live());
	return *mistake || fake->live() ? -1 : 0;
}

static int open_it(struct ws_ipc_export **l, struct ws_err *err)
{
	const struct ws_ipc_export_opts opts = { .gpu = { .driver = on_gpu_library(),
		                                          .device = 1 } };
	return ws_ipc_export_open(&opts, l, err);
}

static struct ws_ipc_export *open_room(size_t n)
{
	struct ws_ipc_export *l = NULL;
	ON_GPU(open_it(&l, &err));
	ON_GPU(ws_ipc_export_reserve(l, n, LENGTH, &err));
	return l;
}

static int take(struct ws_ipc_export *l, size_t b, ws_deadline until,
                const struct ws_cancel *cancel, uint64_t *at, struct ws_err *err)
{
	return ws_ipc_export_take(l, &buckets[b], 1, until, cancel, at, err);
}

/* ---- what another process finds ---- */

static int see(const unsigned char *handle, uint64_t at, size_t b)
{
	const struct ws_cuda_opts opts = { .library = on_gpu_library() };
	struct ws_cuda *c = NULL;
	struct ws_gpu *g = NULL;
	ws_devptr p = 0;
	if (ws_cuda_open(&opts, &c, NULL) || ws_gpu_open(c, 1, &g, NULL) ||
	    ws_gpu_ipc_open(g, handle, &p, NULL))
		return 1;
	/* As the double's memory is; to ask a stream would do what other threads asked of
	 * theirs. */
	const uint8_t *got = (const uint8_t *)(uintptr_t)(p + at);
	for (size_t i = 0; i < LENGTH - b; i++)
		if (got[i] != byte_of(b, i))
			return 2;
	return 0;
}

static void assert_there(struct ws_ipc_export *l, uint64_t at, size_t b)
{
	const pid_t pid = fork();
	int status = -1;
	if (pid == 0)
		_exit(see(ws_ipc_export_handle(l), at, b));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* With work that is done as late as a driver may. */
TEST_BETWEEN(bytes_are_there_when_their_place_is_told, begin, end)
{
	struct ws_ipc_export *l = open_room(BUCKETS);
	uint64_t at[BUCKETS];
	fake->defer(true);
	for (size_t b = 0; b < BUCKETS; b++) {
		if (b + 1 < BUCKETS)
			ws_ipc_export_next(l, &buckets[b + 1], 1);
		ON_GPU(take(l, b, WS_FOREVER, NULL, &at[b], &err));
		assert_there(l, at[b], b);
		if (b > 0)
			assert_there(l, at[b - 1], b - 1); /* while the next one is brought */
	}
	for (size_t b = 2; b < BUCKETS; b++) {
		assert_true(at[b] != at[b - 1] && at[b] != at[b - 2] && at[b - 1] != at[b - 2]);
		assert_true(b < 3 || at[b] == at[b - 3]);
	}
	ws_ipc_export_close(l);
}

TEST_BETWEEN(what_is_reserved_again_stays_when_it_is_enough, begin, end)
{
	struct ws_ipc_export *l = open_room(2);
	unsigned char first[WS_IPC_HANDLE_BYTES];
	uint64_t at, gpu, pinned;
	memcpy(first, ws_ipc_export_handle(l), sizeof first);
	ON_GPU(take(l, 0, WS_FOREVER, NULL, &at, &err));
	ON_GPU(ws_ipc_export_reserve(l, 2, LENGTH - 5, &err));
	assert_memory_equal(first, ws_ipc_export_handle(l), sizeof first);
	ON_GPU(ws_ipc_export_reserve(l, 3, LENGTH, &err));
	assert_memory_not_equal(first, ws_ipc_export_handle(l), sizeof first);
	ON_GPU(take(l, 1, WS_FOREVER, NULL, &at, &err));
	assert_there(l, at, 1);
	ws_ipc_export_close(l);
	ws_ipc_export_close(NULL);
	ws_ipc_export_memory(7, LENGTH, 1, &gpu, &pinned);
	assert_true(gpu == 28 << 20 && pinned == 64 << 20);
	ws_ipc_export_memory(1, 1, 1, &gpu, &pinned);
	assert_true(gpu == WS_IPC_BLOCK);
}

static void *reserve_more(void *arg)
{
	struct ws_err told = WS_ERR_INIT;
	uint64_t at;
	const bool good = ws_ipc_export_reserve(arg, 3, LENGTH, &told) == 0 &&
	                  take(arg, 0, WS_FOREVER, NULL, &at, &told) == 0;
	if (!good)
		print_error("%s\n", told.msg);
	return good ? arg : NULL;
}

/* A context is a thread's, and a later push may be another's. */
TEST_BETWEEN(another_thread_may_go_on, begin, end)
{
	struct ws_ipc_export *l = open_room(1);
	void *said;
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, reserve_more, l), 0);
	assert_int_equal(pthread_join(thread, &said), 0);
	assert_ptr_equal(said, l);
	ws_ipc_export_close(l);
}

/* ---- where it stops ---- */

TEST_BETWEEN(a_source_that_fails_is_told_of_and_nothing_stays, begin, end)
{
	struct ws_ipc_export *l = open_room(BUCKETS);
	struct ws_err told = WS_ERR_INIT;
	uint64_t at;
	ws_ipc_export_next(l, &buckets[1], 1);
	ON_GPU(take(l, 0, WS_FOREVER, NULL, &at, &err));
	fails = true;
	ws_ipc_export_next(l, NULL, 0); /* whatever has been brought of it */
	assert_int_equal(take(l, 1, WS_FOREVER, NULL, &at, &told), -1);
	assert_string_equal(told.msg, "tensor 'x' has NaN");
	fails = false;
	ON_GPU(take(l, 1, WS_FOREVER, NULL, &at, &err)); /* from its beginning */
	assert_there(l, at, 1);
	ws_ipc_export_close(l);
}

TEST_BETWEEN(waits_end_at_the_deadline_and_with_a_signal, begin, end)
{
	struct ws_ipc_export *l = open_room(BUCKETS);
	struct ws_err told = WS_ERR_INIT;
	struct ws_cancel cancel = WS_CANCEL_INIT;
	uint64_t at;
	is_slow = true;
	assert_fails_with(take(l, 0, ws_deadline_in(10 * WS_NS_PER_MS), NULL, &at, &told), &told,
	                  WS_ETIMEOUT, "the source was not read in time");
	ws_cancel_set(&cancel);
	assert_fails(take(l, 0, WS_FOREVER, &cancel, &at, &told), &told, WS_ECANCELLED, "");
	ws_ipc_export_next(l, &buckets[2], 1);
	ON_GPU(take(l, 1, WS_FOREVER, NULL, &at, &err));
	ws_ipc_export_close(l); /* in the middle of the next */
}

static int use(struct ws_err *err)
{
	struct ws_ipc_export *l = NULL;
	uint64_t at;
	int rc = open_it(&l, err) || ws_ipc_export_reserve(l, 3, LENGTH, err);
	for (size_t b = 0; rc == 0 && b < 3; b++) {
		if (b < 2)
			ws_ipc_export_next(l, &buckets[b + 1], 1);
		rc = take(l, b, ws_deadline_in(20 * WS_NS_PER_S), NULL, &at, err);
	}
	ws_ipc_export_close(l);
	return rc;
}

TEST_BETWEEN(every_call_of_the_driver_may_fail, begin, end)
{
	static const int codes[] = { OUT_OF_MEMORY, ILLEGAL_ADDRESS, UNKNOWN };
	for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
		unsigned n = 0;
		for (;; n += n < 40 ? 1 : 5) {
			struct ws_err told = WS_ERR_INIT;
			fake->reset();
			fake->refuse("", n, codes[i]);
			if (use(&told) == 0)
				break;
			assert_int_equal(told.code, WS_EDEVICE);
			assert_int_equal(told.native, codes[i]);
			fake->reset();
			assert_int_equal(fake->live(), 0);
		}
		assert_true(n > 40);
	}
}

TEST_BETWEEN(a_gpu_without_room_has_a_remedy, begin, end)
{
	struct ws_ipc_export *l = NULL;
	struct ws_err told = WS_ERR_INIT;
	ON_GPU(open_it(&l, &err));
	fake->refuse("cuMemAlloc_v2", 0, OUT_OF_MEMORY);
	assert_int_equal(ws_ipc_export_reserve(l, 9, (uint64_t)1 << 30, &told), -1);
	assert_non_null(strstr(told.msg, "allocating 3.00 GiB: CUDA_ERROR_OUT_OF_MEMORY"));
	assert_non_null(strstr(told.hint, "3 buckets lie on the GPU at once"));
	fake->reset();
	assert_fails(ws_ipc_export_reserve(l, 1, UINT64_MAX, &told), &told, WS_EINPUT, "");
	ws_ipc_export_close(l);
}

int main(void)
{
	fake = on_gpu_double();
	return fake ? run_listed(NULL, NULL) : 0;
}
