/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels.c - how fast the kernels are, beside the device's own copy.
 *
 * A row is one kernel over one tensor that no cache holds. GB/s counts the bytes of memory that the kernel
 * must read and write (decimal); the fraction is that of a device-to-device copy of 512 MiB, whose bytes
 * are counted twice, in the same run. Each is warmed up once, timed by events over RUNS launches, and the
 * median of ROUNDS is printed with the least and the most. Nothing outside the kernels is timed. */
#include "on_gpu.h"

#include "kernels/args.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RUNS = 10, ROUNDS = 9 };
static const int64_t ROWS = 16384, COLS = 8192; /* 256 MiB of bf16 */

static struct on_gpu gpu;
static struct ws_mark *from, *to;
static double copy_rate;

struct work {
	const char *name;
	double bytes;
	int (*start)(const void *job, struct ws_err *err);
	const void *job;
};

static int by_value(const void *x, const void *y)
{
	const double a = *(const double *)x, b = *(const double *)y;
	return (a > b) - (a < b);
}

static double one_round(const struct work *w)
{
	int64_t ns = 0;
	ON_GPU(ws_mark_set(gpu.gpu, from, gpu.stream, &err));
	for (int i = 0; i < RUNS; i++)
		ON_GPU(w->start(w->job, &err));
	ON_GPU(ws_mark_set(gpu.gpu, to, gpu.stream, &err));
	ON_GPU(ws_mark_wait(gpu.gpu, to, ws_deadline_in(60 * WS_NS_PER_S), NULL, &err));
	ON_GPU(ws_mark_between(gpu.gpu, from, to, &ns, &err));
	return w->bytes * RUNS / (double)(ns > 0 ? ns : 1);
}

static void measure(const struct work *w)
{
	double rates[ROUNDS];
	one_round(w);
	for (int i = 0; i < ROUNDS; i++)
		rates[i] = one_round(w);
	qsort(rates, ROUNDS, sizeof rates[0], by_value);
	const double median = rates[ROUNDS / 2];
	if (copy_rate == 0)
		copy_rate = median;
	printf("# %-22s %8.1f GB/s  %5.2f of a copy   (%.1f to %.1f)\n", w->name, median, median / copy_rate,
	       rates[0], rates[ROUNDS - 1]);
}

struct copy {
	ws_devptr dst, src;
	uint64_t bytes;
};

static int start_copy(const void *job, struct ws_err *err)
{
	const struct copy *c = job;
	return ws_gpu_copy(gpu.gpu, c->dst, c->src, c->bytes, gpu.stream, err);
}

static int start_fp8(const void *job, struct ws_err *err)
{
	return ws_compute_fp8(gpu.compute, job, gpu.stream, err);
}

static int start_merge(const void *job, struct ws_err *err)
{
	return ws_compute_merge(gpu.compute, job, gpu.stream, err);
}

static int start_unpack(const void *job, struct ws_err *err)
{
	return ws_compute_unpack(gpu.compute, job, gpu.stream, err);
}

static int start_gather(const void *job, struct ws_err *err)
{
	return ws_compute_gather(gpu.compute, job, gpu.stream, err);
}

/* ---- what is measured ---- */

static ws_devptr in, out, small, record; /* 512 MiB, 512 MiB, 64 MiB */

static void quantizing(double n)
{
	struct ws_fp8_job job = { .x = { in, WS_DTYPE_BF16, ROWS, COLS, COLS }, .block = { 128, 128 },
		                  .codes = out, .codes_stride = COLS, .scales = small, .record = record };
	measure(&(struct work){ "fp8 of bf16, xorl", 3 * n, start_fp8, &job });
	job.rule = WS_SCALE_SLIME;
	measure(&(struct work){ "fp8 of bf16, slime", 3 * n, start_fp8, &job });
	job.x.dtype = WS_DTYPE_F32;
	measure(&(struct work){ "fp8 of f32, slime", 5 * n, start_fp8, &job });
	job.x.dtype = WS_DTYPE_BF16;
	job.block[0] = ROWS;
	job.block[1] = COLS;
	measure(&(struct work){ "fp8 of bf16, one scale", 5 * n, start_fp8, &job });
}

static void merging(double n)
{
	static const int64_t ranks[] = { 8, 16, 32, 64 };
	for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
		char name[32];
		const struct ws_merge_job job = { .w = { in, WS_DTYPE_BF16, ROWS, COLS, COLS },
			                          .pairs = { { small, small + (32 << 20), ranks[i], 1 } },
			                          .n_pairs = 1, .out = out, .out_stride = COLS, .record = record };
		snprintf(name, sizeof name, "merge of rank %d", (int)ranks[i]);
		measure(&(struct work){ name, 4 * n, start_merge, &job });
	}
}

static void unpacking(double n)
{
	struct ws_unpack_job job = { .codes = in, .scales = small, .rows = ROWS, .cols = COLS, .block = { 128, 128 },
		                     .tensor_scale = 1, .out = out, .dtype = WS_DTYPE_BF16, .record = record };
	measure(&(struct work){ "fp8 to bf16", 3 * n, start_unpack, &job });
	job.kind = WS_UNPACK_NVFP4;
	measure(&(struct work){ "nvfp4 to bf16", 2.5625 * n, start_unpack, &job });
	job.kind = WS_UNPACK_NF4;
	job.block[1] = 64;
	measure(&(struct work){ "nf4 to bf16", 2.5625 * n, start_unpack, &job });
}

static void gathering(double n)
{
	const struct ws_gather_job rows = { in, out, 2, 2, { ROWS, COLS / 2 }, { COLS, 1 }, { COLS / 2, 1 } };
	const struct ws_gather_job turned = { in, out, 2, 2, { COLS, ROWS }, { 1, COLS }, { ROWS, 1 } };
	measure(&(struct work){ "half of each row", 2 * n, start_gather, &rows });
	measure(&(struct work){ "transpose of bf16", 4 * n, start_gather, &turned });
}

static void all_kernels(void **state)
{
	(void)state;
	const double n = (double)ROWS * (double)COLS;
	const struct copy copy = { 0, 0, (uint64_t)512 << 20 };
	struct copy c = copy;
	in = c.src = on_gpu_new(&gpu, copy.bytes);
	out = c.dst = on_gpu_new(&gpu, copy.bytes);
	small = on_gpu_new(&gpu, 64 << 20);
	record = on_gpu_record(&gpu);
	/* Numbers whose bytes are alike: 0.4 or so as bf16 and as fp32, and codes and scales that are finite. */
	ON_GPU(ws_gpu_fill(gpu.gpu, in, 0x3e, copy.bytes, gpu.stream, &err));
	ON_GPU(ws_gpu_fill(gpu.gpu, small, 0x3e, 64 << 20, gpu.stream, &err));
	measure(&(struct work){ "device copy", 2 * (double)copy.bytes, start_copy, &c });
	quantizing(n);
	merging(n);
	unpacking(n);
	gathering(n);
	on_gpu_release(&gpu);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(all_kernels) };
	if (!on_gpu_open(&gpu))
		return 0;
	if (gpu.is_double) {
		printf("1..0 # SKIP a double has no speed\n");
		on_gpu_close(&gpu);
		return 0;
	}
	const struct ws_cuda_device *d = ws_gpu_device(gpu.gpu);
	const int version = ws_cuda_version(gpu.cuda);
	printf("# %s, sm_%d%d, %d multiprocessors, CUDA %d.%d\n", d->name, d->major, d->minor, d->multiprocessors,
	       version / 1000, version % 1000 / 10);
	ON_GPU(ws_mark_new(gpu.gpu, &from, &err));
	ON_GPU(ws_mark_new(gpu.gpu, &to, &err));
	const int rc = cmocka_run_group_tests(tests, NULL, NULL);
	ws_mark_free(gpu.gpu, from);
	ws_mark_free(gpu.gpu, to);
	on_gpu_close(&gpu);
	return rc;
}
