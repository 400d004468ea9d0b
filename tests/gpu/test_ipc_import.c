/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of another process that is imported, on the double of libcuda: any range by many
 * threads at once, and that nothing is left whatever the driver refuses. */
#include "on_gpu.h"

#include "test.h"
#include "ipc_import.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ALLOCATIONS = 3, THREADS = 12, READS = 60 };

/* Ragged, smaller than a piece, and more pieces than stay. */
static const uint64_t sizes[ALLOCATIONS] = { 10 * WS_IPC_IMPORT_PIECE + 12345, 777,
	                                     WS_IPC_IMPORT_PIECE };
static const uint64_t devices[ALLOCATIONS] = { 0, 1, 1 };

static const struct fake_cuda *cuda;
static struct ws_cuda *driver;
static struct ws_manifest_allocation allocations[ALLOCATIONS];
static struct ws_manifest_device two[2];
static const struct ws_manifest manifest = {
	.devices = two, .n_devices = 2, .allocations = allocations, .n_allocations = ALLOCATIONS
};
static const int ordinals[] = { 0, 1 };
static atomic_uint checks, checks_left;
static struct ws_cancel cancelled;

static uint8_t byte_of(size_t allocation, uint64_t at)
{
	return (uint8_t)((at * 0x9e3779b97f4a7c15u + allocation * 77) >> 56);
}

/* ---- the exporter: another process, begun before the driver is here ---- */

static int export_array(struct ws_cuda *c, size_t i, unsigned char *handle, struct ws_err *err)
{
	struct ws_gpu *g;
	struct ws_stream *s;
	ws_devptr p;
	uint8_t *bytes = malloc(sizes[i]);
	for (uint64_t k = 0; bytes && k < sizes[i]; k++)
		bytes[k] = byte_of(i, k);
	return !bytes || ws_gpu_open(c, (int)devices[i], &g, err) || ws_stream_new(g, &s, err) ||
	                       ws_gpu_alloc(g, sizes[i], &p, err) ||
	                       ws_gpu_copy_in(g, p, bytes, sizes[i], s, err) ||
	                       ws_stream_wait(g, s, ws_deadline_in(10 * WS_NS_PER_S), NULL, err) ||
	                       ws_gpu_ipc_export(g, p, handle, err) ?
	               -1 :
	               0;
}

/* Lives until its standard input ends, and leaves as a killed trainer does. */
static void export_all(int out, int in)
{
	const struct ws_cuda_opts opts = { .library = on_gpu_library() };
	struct ws_cuda *c;
	struct ws_err err = WS_ERR_INIT;
	unsigned char handle[WS_IPC_HANDLE_BYTES];
	int rc = ws_cuda_open(&opts, &c, &err);
	for (size_t i = 0; i < ALLOCATIONS && rc == 0; i++) {
		rc = export_array(c, i, handle, &err);
		if (rc == 0 && write(out, handle, sizeof handle) != sizeof handle)
			rc = -1;
	}
	if (rc)
		fprintf(stderr, "# %s\n", err.msg);
	close(out);
	_exit(rc || read(in, handle, 1) < 0);
}

static pid_t exporter;
static int exporter_stays;

static bool begin_lending(void)
{
	int handles[2], stay[2];
	if (pipe(handles) || pipe(stay) || (exporter = fork()) < 0)
		return false;
	if (exporter == 0) {
		close(stay[1]);
		export_all(handles[1], stay[0]);
	}
	close(handles[1]);
	close(stay[0]);
	exporter_stays = stay[1];
	uint64_t base = 0;
	for (size_t i = 0; i < ALLOCATIONS; i++) {
		allocations[i] = (struct ws_manifest_allocation){ .device = devices[i],
			                                          .bytes = sizes[i], .base = base };
		base += sizes[i];
		if (read(handles[0], allocations[i].handle, WS_IPC_HANDLE_BYTES) !=
		    WS_IPC_HANDLE_BYTES)
			return false;
	}
	close(handles[0]);
	return true;
}

/* ---- who reads ---- */

static int still_valid(void *ctx, struct ws_err *err)
{
	(void)ctx;
	checks++;
	if (atomic_load(&checks_left) == 0)
		return ws_err_set(err, WS_EINPUT, "it is gone");
	checks_left--;
	return 0;
}

static int open_it(struct ws_ipc_import **w, struct ws_err *err)
{
	const struct ws_ipc_import_opts opts = { .manifest = &manifest,
		                                 .cuda = driver,
		                                 .ordinals = ordinals,
		                                 .still_valid = still_valid,
		                                 .cancel = &cancelled };
	return ws_ipc_import_open(&opts, w, err);
}

static int check(struct ws_ipc_import *w, size_t i, uint64_t at, size_t n, struct ws_err *err)
{
	uint8_t *bytes = malloc(n + 1);
	bytes[n] = 0x5a;
	const int rc = ws_ipc_import_read(w, i, at, bytes, n, err);
	for (size_t k = 0; rc == 0 && k < n; k++)
		if (bytes[k] != byte_of(i, at + k))
			fail_msg("byte %zu of %zu at %llu of allocation %zu", k, n,
			         (unsigned long long)at, i);
	assert_int_equal(bytes[n], 0x5a);
	free(bytes);
	return rc;
}

static void *read_at_random(void *arg)
{
	struct ws_ipc_import *w = arg;
	unsigned seed = (unsigned)(uintptr_t)pthread_self();
	struct ws_err err = WS_ERR_INIT;
	for (int k = 0; k < READS; k++) {
		const size_t i = (size_t)rand_r(&seed) % ALLOCATIONS;
		const uint64_t at = (uint64_t)rand_r(&seed) % sizes[i];
		const uint64_t most = k % 10 ? 5000 : 2 * WS_IPC_IMPORT_PIECE, left = sizes[i] - at;
		if (check(w, i, at, (size_t)((uint64_t)rand_r(&seed) % (left < most ? left : most)),
		          &err))
			return strdup(err.msg);
	}
	return NULL;
}

static int begin(void **state)
{
	(void)state;
	cuda->reset();
	checks = 0;
	checks_left = 100000;
	cancelled = (struct ws_cancel)WS_CANCEL_INIT;
	return 0;
}

static int end(void **state)
{
	(void)state;
	const char *mistake = cuda->mistake();
	if (*mistake || cuda->live())
		print_error("%s, %zu things left\n", mistake, cuda->live());
	return *mistake || cuda->live() ? -1 : 0;
}

#define IN_ORDER(test) TEST_BETWEEN(test, begin, end)

IN_ORDER(any_range_is_read_by_many_at_once)
{
	struct ws_ipc_import *w;
	pthread_t threads[THREADS];
	ON_GPU(open_it(&w, &err));
	assert_int_equal(cuda->live(), 0); /* nothing was asked for */
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_at_random, w), 0);
	for (size_t i = 0; i < THREADS; i++) {
		void *said;
		pthread_join(threads[i], &said);
		assert_null(said);
	}
	ws_ipc_import_close(w);
}

IN_ORDER(reading_on_costs_a_copy_for_each_piece)
{
	struct ws_ipc_import *w;
	unsigned copies = 0, handles = 0;
	ON_GPU(open_it(&w, &err));
	for (uint64_t at = 0; at < sizes[0]; at += 100000)
		ON_GPU(check(w, 0, at, (size_t)(sizes[0] - at < 100000 ? sizes[0] - at : 100000),
		             &err));
	ws_ipc_import_close(w);
	for (const char *at = cuda->record(); (at = strstr(at, "cuMemcpyDtoHAsync_v2")); at++)
		copies++;
	for (const char *at = cuda->record(); (at = strstr(at, "cuIpcOpenMemHandle_v2")); at++)
		handles++;
	assert_int_equal(copies, 11);
	assert_int_equal(handles, 1);
	assert_true(atomic_load(&checks) >= 1);
}

IN_ORDER(an_address_is_where_the_bytes_are)
{
	struct ws_ipc_import *w;
	ws_devptr at = 0, again = 0;
	ON_GPU(open_it(&w, &err));
	ON_GPU(ws_ipc_import_address(w, 1, &at, &err));
	assert_true(cuda->has_context() == false); /* this thread has what it had */
	for (size_t i = 0; i < sizes[1]; i++)
		assert_int_equal(((const uint8_t *)(uintptr_t)at)[i], byte_of(1, i));
	ON_GPU(check(w, 1, 700, 77, &err));
	ON_GPU(ws_ipc_import_address(w, 1, &again, &err));
	assert_true(at == again);
	ws_ipc_import_close(w);
}

IN_ORDER(what_is_gone_is_told_and_stays_gone)
{
	struct ws_ipc_import *w;
	struct ws_err told = WS_ERR_INIT;
	ws_devptr at;
	checks_left = 0;
	ON_GPU(open_it(&w, &err));
	assert_fails_with(check(w, 2, 0, 100, &told), &told, WS_EINPUT, "it is gone");
	assert_fails_with(ws_ipc_import_address(w, 0, &at, &told), &told, WS_EINPUT, "it is gone");
	ws_ipc_import_close(w);
	/* A handle that does not open any more: what is asked is who is gone. */
	cuda->refuse("cuIpcOpenMemHandle_v2", 0, 1);
	ON_GPU(open_it(&w, &err));
	assert_fails_with(ws_ipc_import_address(w, 0, &at, &told), &told, WS_EINPUT, "it is gone");
	checks_left = 1000;
	ws_ipc_import_close(w);
}

static void *cancel_soon(void *arg)
{
	usleep(100 * 1000);
	ws_cancel_set(&cancelled);
	return arg;
}

IN_ORDER(a_wait_for_a_gpu_that_is_stuck_is_cancelled)
{
	struct ws_ipc_import *w;
	struct ws_err told = WS_ERR_INIT;
	pthread_t canceller;
	ws_devptr at;
	ON_GPU(open_it(&w, &err));
	ON_GPU(ws_ipc_import_address(w, 1, &at, &err));
	cuda->busy(~0u);
	const int64_t begun = ws_now_ns();
	assert_int_equal(pthread_create(&canceller, NULL, cancel_soon, NULL), 0);
	assert_fails(check(w, 0, 5, 100, &told), &told, WS_ECANCELLED, "");
	assert_int_equal(ws_ipc_import_address(w, 2, &at, &told), -1);
	assert_true(ws_now_ns() - begun < 20 * WS_NS_PER_S);
	pthread_join(canceller, NULL);
	cuda->busy(0);
	ws_ipc_import_close(w);
}

static int live_once(struct ws_err *err)
{
	struct ws_ipc_import *w;
	ws_devptr at;
	if (open_it(&w, err))
		return -1;
	const int rc = check(w, 0, 5, WS_IPC_IMPORT_PIECE, err) || check(w, 2, 0, 100, err) ||
	                               ws_ipc_import_address(w, 1, &at, err) ?
	                       -1 :
	                       0;
	ws_ipc_import_close(w);
	return rc;
}

IN_ORDER(every_call_may_fail_and_nothing_is_left)
{
	unsigned n = 0;
	for (int rc = -1; rc; n++) {
		struct ws_err told = WS_ERR_INIT;
		cuda->reset();
		cuda->refuse("", n, 700);
		rc = live_once(&told);
		assert_int_equal(told.code, rc ? WS_EDEVICE : WS_OK);
		assert_int_equal(cuda->live(), 0);
		assert_string_equal(cuda->mistake(), "");
	}
	assert_true(n > 15);
}

static bool open_driver(void)
{
	const struct ws_cuda_opts opts = { .library = on_gpu_library() };
	struct ws_err err = WS_ERR_INIT;
	return ws_cuda_open(&opts, &driver, &err) == 0;
}

int main(void)
{
	cuda = on_gpu_double();
	if (!cuda)
		return 0;
	if (!begin_lending() || !open_driver()) {
		printf("1..1\nnot ok 1 - another process exports its memory\n");
		return 1;
	}
	const int rc = run_listed(NULL, NULL);
	ws_cuda_close(driver);
	close(exporter_stays);
	waitpid(exporter, NULL, 0);
	return rc;
}
