/* SPDX-License-Identifier: Apache-2.0 */
/* What wsync-bench measures on a GPU, on the double of libcuda: that it is right, that its rows are those
 * that are promised, and that nothing is left behind when a call of the driver fails. Its times mean
 * nothing. */
#include "on_gpu.h"

#include "wsync/bench.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 32 };

static const struct fake_cuda *cuda;
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
	return (struct ws_bench_gpu){ .driver = on_gpu_library() };
}

static int begin(void **state)
{
	(void)state;
	cuda->reset();
	seen.n = 0;
	return 0;
}

static int end(void **state)
{
	(void)state;
	assert_string_equal(cuda->mistake(), "");
	assert_int_equal(cuda->live(), 0);
	return 0;
}

/* ---- kernels ---- */

static int run_kernels(bool check, struct ws_err *err)
{
	const struct ws_bench_opts o = options(check);
	const struct ws_bench_gpu on = which();
	seen.n = 0;
	return ws_bench_kernels_gpu(&o, &on, 1 << 20, err);
}

static void every_kernel_gives_the_bytes_of_the_cpu(void **state)
{
	(void)state;
	static const char *const names[] = {
		"fp8 128x128 xorl", "fp8 128x128 slime", "fp8 128x128 ue8m0", "fp8 per tensor", "lora rank 16 fold",
		"lora rank 16 two-step", "lora rank 64 fold", "lora rank 16 to fp8", "unpack fp8", "unpack nvfp4",
		"unpack nf4", "gather half of each row", "transpose", "flatten",
	};
	ON_GPU(run_kernels(true, &err));
	assert_int_equal(seen.n, sizeof names / sizeof *names);
	for (int i = 0; i < seen.n; i++) {
		assert_string_equal(seen.name[i], names[i]);
		assert_int_equal(seen.errors[i], 0);
		assert_true(seen.referred[i]);
	}
	assert_int_equal(seen.bytes[0], 3 << 19);  /* of 2^19 numbers: 2 in, 1 out */
	assert_int_equal(seen.bytes[12], 4 << 19);
}

static void kernels_leave_nothing_whatever_call_fails(void **state)
{
	(void)state;
	unsigned n = 0;
	/* All calls before the first kernel and around it, then few: kernels are slow here. */
	for (int rc = -1; rc; n += n < 60 ? 1 : 150) {
		struct ws_err told = WS_ERR_INIT;
		cuda->reset();
		cuda->refuse("", n, 700);
		rc = run_kernels(false, &told);
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
	static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[3000001],\"data_offsets\":[0,3000001]}}    ";
	uint64_t n = sizeof header - 1;
	snprintf(path, sizeof path, "/tmp/wsync-test-bench-%ld.safetensors", (long)getpid());
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	assert_int_equal(fwrite(&n, sizeof n, 1, f), 1);
	fputs(header, f);
	for (int i = 0; i < 3000001; i++)
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
		assert_int_equal(seen.bytes[i], 3000001);
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
		ON_DOUBLE(every_kernel_gives_the_bytes_of_the_cpu),
		ON_DOUBLE(kernels_leave_nothing_whatever_call_fails),
		ON_DOUBLE(a_source_goes_to_the_gpu_beside_a_copy_of_pinned_memory),
		ON_DOUBLE(loading_leaves_nothing_whatever_call_fails),
		ON_DOUBLE(the_machine_is_told_by_its_own_words),
	};
	if (!ws_cuda_built()) {
		printf("1..0 # SKIP this wsync was built without CUDA\n");
		return 0;
	}
	unsetenv("WSYNC_TEST_CUDA");
	void *library = dlopen(on_gpu_library(), RTLD_NOW | RTLD_LOCAL);
	cuda = library ? dlsym(library, "fake_cuda") : NULL;
	if (!cuda) {
		printf("1..1\nnot ok 1 - the double is there\n# %s\n", dlerror());
		return 1;
	}
	write_source();
	const int rc = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return rc;
}
