/* SPDX-License-Identifier: Apache-2.0 */
/* What wsync-bench measures on a GPU, on doubles of libcuda and libnccl: that it is right, that its
 * rows are those that are promised, and that nothing is left behind when a call of the driver
 * fails. Its times mean nothing. */
#include "on_gpu.h"


#include "wsync/tool/bench.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 32 };

static const struct fake_cuda *cuda;
static const struct fake_nccl *nccl;
static char nccl_path[ON_GPU_PATH];
static struct {
	char name[ROWS][48];
	uint64_t bytes[ROWS];
	int64_t errors[ROWS];
	bool referred[ROWS];
	int n;
} seen;

static void note(void *ctx, const struct ws_bench_row *row)
{
	(void)ctx;
	assert_true(seen.n < ROWS && row->n == 1);
	snprintf(seen.name[seen.n], sizeof seen.name[0], "%s", row->name);
	seen.bytes[seen.n] = row->bytes;
	seen.errors[seen.n] = row->errors;
	seen.referred[seen.n++] = row->against && row->against_ns;
}

static struct ws_bench_opts options(bool check)
{
	return (struct ws_bench_opts){ .samples = 1, .check = check, .sink = { .row = note } };
}

static struct ws_bench_gpu which(void)
{
	return (struct ws_bench_gpu){ .driver = on_gpu_library(), .nccl = nccl_path };
}

static int begin(void **state)
{
	(void)state;
	cuda->reset();
	nccl->reset();
	seen.n = 0;
	return 0;
}

static int end(void **state)
{
	(void)state;
	assert_string_equal(cuda->mistake(), "");
	assert_string_equal(nccl->mistake(), "");
	assert_int_equal(cuda->live() + nccl->live(), 0);
	return 0;
}

/* ---- kernels ---- */

static int run_kernels(struct ws_err *err)
{
	const struct ws_bench_opts o = options(false);
	const struct ws_bench_gpu on = which();
	seen.n = 0;
	return ws_bench_kernels_gpu(&o, &on, 1 << 20, err);
}

static void every_kernel_is_timed_beside_a_copy(void **state)
{
	(void)state;
	static const char *const names[] = {
		"fp8 128x128 xorl",  "fp8 128x128 slime",
		"fp8 128x128 ue8m0",
		"lora rank 16 fold", "lora rank 16 two-step",
		"lora rank 64 fold",
		"unpack fp8",        "unpack nvfp4",
		"unpack nf4",        "gather half of each row",
		"transpose",         "look for NaN",
	};
	ON_GPU(run_kernels(&err));
	assert_int_equal(seen.n, sizeof names / sizeof *names);
	for (int i = 0; i < seen.n; i++) {
		assert_string_equal(seen.name[i], names[i]);
		assert_int_equal(seen.errors[i], -1);
		assert_true(seen.referred[i]);
	}
	assert_int_equal(seen.bytes[0], 3 << 19);  /* of 2^19 numbers: 2 in, 1 out */
	assert_int_equal(seen.bytes[10], 4 << 19);
}

static void kernels_leave_nothing_whatever_call_fails(void **state)
{
	(void)state;
	unsigned n = 0;
	/* Every third, to the first kernel and behind it, then few: kernels are slow here. */
	for (int rc = -1; rc; n += n < 60 ? 6 : 200) {
		struct ws_err told = WS_ERR_INIT;
		cuda->reset();
		cuda->refuse("", n, 700);
		rc = run_kernels(&told);
		assert_int_equal(told.code, rc ? WS_EDEVICE : WS_OK);
		assert_int_equal(cuda->live(), 0);
		assert_string_equal(cuda->mistake(), "");
	}
	assert_true(n > 200);
}

/* ---- load ---- */

static char path[64];

static void write_source(void)
{
	static const char header[] =
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[300001],\"data_offsets\":[0,300001]}}    ";
	uint64_t n = sizeof header - 1;
	snprintf(path, sizeof path, "/tmp/wsync-test-bench-%ld.safetensors", (long)getpid());
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(&n, sizeof n, 1, f), 1);
	fputs(header, f);
	for (int i = 0; i < 300001; i++)
		putc(i * 7 & 0xff, f);
	assert_int_equal(fclose(f), 0);
}

static int run_load(struct ws_err *err)
{
	const struct ws_bench_opts o = options(false);
	const struct ws_bench_gpu to = which();
	const char *paths[] = { path };
	const struct ws_bench_load load = { .paths = paths, .n_paths = 1, .to = &to };
	seen.n = 0;
	return ws_bench_load(&o, &load, err);
}

static void a_source_goes_to_the_gpu_beside_a_copy_of_pinned_memory(void **state)
{
	(void)state;
	ON_GPU(run_load(&err));
	assert_int_equal(seen.n, 3);
	assert_string_equal(seen.name[0], "read");
	assert_string_equal(seen.name[1], "copied to GPU");
	assert_string_equal(seen.name[2], "read to GPU");
	for (int i = 0; i < 3; i++) {
		assert_int_equal(seen.bytes[i], 300001);
		assert_int_equal(seen.referred[i], i != 1);
	}
}

static void loading_leaves_nothing_whatever_call_fails(void **state)
{
	(void)state;
	unsigned n = 0;
	for (int rc = -1; rc; n++) {
		struct ws_err told = WS_ERR_INIT;
		cuda->reset();
		cuda->refuse("", n, 700);
		rc = run_load(&told);
		assert_int_equal(told.code, rc ? WS_EDEVICE : WS_OK);
		assert_int_equal(cuda->live(), 0);
		assert_string_equal(cuda->mistake(), "");
	}
	assert_true(n > 40);
}

/* ---- transport: the receiver is another thread ---- */

static struct {
	struct ws_bench_receive what;
	char host[64];
	pthread_t thread;
	bool started;
	atomic_bool failed;
	struct ws_err err;
} peer;

static void *receive(void *arg)
{
	(void)arg;
	if (ws_bench_receive(&peer.what, &peer.err))
		atomic_store(&peer.failed, true);
	return NULL;
}

static int start_peer(void *ctx, const char *host, uint16_t port, struct ws_err *err)
{
	(void)ctx;
	(void)err;
	snprintf(peer.host, sizeof peer.host, "%s", host);
	peer.what = (struct ws_bench_receive){ .master = peer.host,
		                               .port = port,
		                               .host = peer.host,
		                               .gpu = which(),
		                               .timeout_ns = 3 * WS_NS_PER_S };
	peer.what.gpu.device = 1;
	peer.started = pthread_create(&peer.thread, NULL, receive, NULL) == 0;
	return peer.started ? 0 : -1;
}

static int ask_peer(void *ctx, struct ws_err *err)
{
	(void)ctx;
	if (!atomic_load(&peer.failed))
		return 0;
	*err = peer.err;
	return -1;
}

static int run_transport(struct ws_err *err)
{
	const uint64_t sizes[] = { 1, 100000 };
	const struct ws_bench_opts o = options(false);
	const struct ws_bench_transport t = { .backend = WS_BACKEND_NCCL,
		                              .gpu = which(),
		                              .receivers = 1,
		                              .start = start_peer,
		                              .failed = ask_peer,
		                              .sizes = sizes,
		                              .n_sizes = 2,
		                              .count = 3,
		                              .timeout_ns = 20 * WS_NS_PER_S };
	seen.n = 0;
	peer.started = false;
	peer.err = (struct ws_err)WS_ERR_INIT;
	atomic_store(&peer.failed, false);
	const int rc = ws_bench_transport(&o, &t, err);
	if (peer.started)
		pthread_join(peer.thread, NULL);
	return rc;
}

static void a_broadcast_is_held_against_a_bare_one_of_the_same_bytes(void **state)
{
	(void)state;
	ON_GPU(run_transport(&err));
	assert_int_equal(seen.n, 2);
	assert_true(seen.referred[0] && seen.referred[1]);
	assert_int_equal(seen.bytes[1], 100000);
	/* Root and receiver: a row of three by the transport, and a bare one, of each size. */
	unsigned n = 0;
	for (const char *p = nccl->record(); (p = strstr(p, "ncclBroadcast 100000 ")); p++)
		n++;
	assert_int_equal(n, 2 * 2 * 3);
}

static void broadcasts_leave_nothing_whatever_call_fails(void **state)
{
	(void)state;
	static const char *const calls[] = { "ncclGetVersion", "ncclGetUniqueId",
		                             "ncclCommInitRankConfig", "ncclCommGetAsyncError",
		                             "ncclBroadcast" };
	unsigned n = 0;
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		struct ws_err told = WS_ERR_INIT;
		nccl->reset();
		nccl->refuse(calls[i], i > 1 ? 2 : 0, 2);
		assert_int_equal(run_transport(&told), -1);
		assert_true(told.code == WS_EDATA || told.code == WS_EREACH);
		assert_int_equal(cuda->live() + nccl->live(), 0);
	}
	nccl->reset();
	for (int rc = -1; rc; n += n < 60 ? 2 : 4) {
		struct ws_err told = WS_ERR_INIT;
		cuda->reset();
		cuda->refuse("", n, 700);
		rc = run_transport(&told);
		assert_true(rc ? told.code != WS_OK : told.code == WS_OK);
		assert_int_equal(cuda->live() + nccl->live(), 0);
		assert_string_equal(cuda->mistake(), "");
	}
	assert_true(n > 60);
}

/* ---- on what ---- */

static void the_machine_is_told_by_its_own_words(void **state)
{
	(void)state;
	struct ws_err told = WS_ERR_INIT;
	struct ws_bench_machine m;
	struct ws_bench_gpu gpu = which();
	ON_GPU(ws_bench_machine(&gpu, false, &m, &err));
	assert_non_null(strstr(m.gpu, "Double 0"));
	assert_int_equal(m.gpus, 2);
	assert_string_equal(m.nccl, "");
	gpu.device = 2;
	assert_int_equal(ws_bench_machine(&gpu, false, &m, &told), -1);
	assert_int_equal(told.code, WS_EDEVICE);
	gpu = (struct ws_bench_gpu){ .driver = on_gpu_library(), .nccl = "/nowhere/libnccl.so.2" };
	assert_int_equal(ws_bench_machine(&gpu, true, &m, &told), -1);
	assert_int_equal(told.code, WS_EDEVICE);
	gpu = (struct ws_bench_gpu){ .driver = "/nowhere/libcuda.so.1" };
	assert_int_equal(ws_bench_machine(&gpu, false, &m, &told), -1);
	assert_int_equal(told.code, WS_EDEVICE);
}

int main(void)
{
#define ON_DOUBLE(test) cmocka_unit_test_setup_teardown(test, begin, end)
	const struct CMUnitTest tests[] = {
		ON_DOUBLE(every_kernel_is_timed_beside_a_copy),
		ON_DOUBLE(kernels_leave_nothing_whatever_call_fails),
		ON_DOUBLE(a_source_goes_to_the_gpu_beside_a_copy_of_pinned_memory),
		ON_DOUBLE(loading_leaves_nothing_whatever_call_fails),
		ON_DOUBLE(a_broadcast_is_held_against_a_bare_one_of_the_same_bytes),
		ON_DOUBLE(broadcasts_leave_nothing_whatever_call_fails),
		ON_DOUBLE(the_machine_is_told_by_its_own_words),
	};
	setenv("FAKE_NCCL_TOGETHER", "1", 1); /* broadcasts go from thread to thread */
	cuda = on_gpu_double();
	nccl = cuda ? on_gpu_double_of_nccl(nccl_path) : NULL;
	if (!nccl)
		return 0;
	write_source();
	const int rc = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return rc;
}
