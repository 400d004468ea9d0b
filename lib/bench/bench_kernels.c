/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kernels.c - times the CPU kernels of a push. Reference: memcpy. A row counts every
 * byte read and every byte written, each once; so a copy counts twice its size.
 *
 * Input, output and the copy are written before the first sample, so that no sample takes page
 * faults. */
#include "digest.h"
#include "floats.h"
#include "fp8.h"
#include "hash.h"
#include "lowrank.h"
#include "bench_samples.h"
#include "simd.h"
#include "unpack_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 16, BAND = 128, TABLE = 4096, B = BENCH_BLOCK, CELLS = BAND * BENCH_COLS };
static const uint64_t MOST = UINT64_C(1) << 40;

struct kernels {
	uint16_t *x;       /* the weights: BENCH_COLS columns of bf16 */
	int64_t rows;
	size_t count;      /* weights in x */
	char *copy;
	uint8_t *out;      /* at most 4 bytes for each weight */
	uint8_t *expected; /* for the check: the output without SIMD */
	float *scales, *a, *b, *w, *delta; /* w and delta hold one band of rows */
	const struct kernel *at;
	uint64_t hash;
};

/* ---- weights --------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state)
{
	return *state = *state * 6364136223846793005u + 1442695040888963407u;
}

static double draw_uniform(uint64_t *state)
{
	return (double)(draw(state) >> 40) / (1 << 24) - 0.5;
}

void bench_fill_floats(float *x, size_t n)
{
	uint64_t state = 2;
	for (size_t i = 0; i < n; i++)
		x[i] = (float)(draw_uniform(&state) * 0.01);
}

/* Draws from a nearly normal table with a standard deviation of 0.02, as weights have. So rounding
 * and clamping take their usual paths. */
uint16_t *bench_weights(uint64_t size, int64_t *rows, struct ws_err *err)
{
	uint16_t normal[TABLE];
	uint64_t state = 1;
	*rows = (int64_t)(size / (2 * BENCH_COLS));
	*rows = *rows < BAND ? BAND : *rows;
	const size_t n = (size_t)*rows * BENCH_COLS;
	if (size > MOST) {
		ws_err_set(err, WS_EUSAGE, "a kernel's input has at most 1 TiB");
		return NULL;
	}
	uint16_t *x = malloc(n * sizeof *x);
	if (!x) {
		ws_err_set(err, WS_ESYSTEM, "out of memory for kernels of %llu MiB",
		           (unsigned long long)(size >> 20));
		return NULL;
	}
	for (int i = 0; i < TABLE; i++) {
		float sum = 0;
		uint32_t bits;
		for (int k = 0; k < 12; k++)
			sum += (float)(draw_uniform(&state) * 0.02);
		memcpy(&bits, &sum, sizeof bits);
		normal[i] = (uint16_t)(bits >> 16);
	}
	for (size_t i = 0; i < n; i++)
		x[i] = normal[draw(&state) >> 52];
	return x;
}

static void close_kernels(struct kernels *k)
{
	void *const all[] = { k->x, k->copy, k->out, k->expected, k->scales, k->a, k->b, k->w,
		              k->delta };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		free(all[i]);
}

static int open_kernels(struct kernels *k, uint64_t size, struct ws_err *err)
{
	k->x = bench_weights(size, &k->rows, err);
	if (!k->x)
		return -1;
	k->count = (size_t)k->rows * BENCH_COLS;
	const size_t n_scales = k->count / BENCH_NIBBLES + CELLS, n_b = (size_t)k->rows * RANK;
	k->copy = malloc(2 * k->count);
	k->out = malloc(4 * k->count);
	k->expected = malloc(4 * k->count);
	k->scales = malloc(n_scales * sizeof *k->scales);
	k->a = malloc((size_t)RANK * BENCH_COLS * sizeof *k->a);
	k->b = malloc(n_b * sizeof *k->b);
	k->w = malloc(CELLS * sizeof *k->w);
	k->delta = malloc(CELLS * sizeof *k->delta);
	if (!k->copy || !k->out || !k->expected || !k->scales || !k->a || !k->b || !k->w ||
	    !k->delta)
		return ws_oom(err);
	memset(k->copy, 1, 2 * k->count);
	memset(k->out, 1, 4 * k->count);
	memset(k->expected, 1, 4 * k->count);
	bench_fill_floats(k->a, (size_t)RANK * BENCH_COLS);
	bench_fill_floats(k->b, n_b);
	for (size_t i = 0; i < n_scales; i++)
		k->scales[i] = 0.01f;
	return 0;
}

/* ---- the kernels ----------------------------------------------------------------------------- */

struct kernel {
	const char *name;
	int (*run)(struct kernels *k, struct ws_err *err);
	bool simd; /* has SIMD versions */
	/* for each weight: half bytes read; bytes written, 0: there is no output to check */
	unsigned reads, makes;
	struct ws_fp8_rule rule;
	bool two_step;
	enum ws_checksum_fn fn;
};

static int run_hash(struct kernels *k, struct ws_err *err)
{
	(void)err;
	k->hash = ws_hash64(k->x, 2 * k->count);
	return 0;
}

/* The checksums that SGLang reports of a parameter. */
static int run_checksum(struct kernels *k, struct ws_err *err)
{
	struct ws_digest d;
	char hex[WS_CHECKSUM_TEXT];
	if (ws_digest_open(&d, k->at->fn, err))
		return -1;
	ws_digest_begin(&d, 2 * k->count);
	ws_digest_add(&d, k->x, 2 * k->count);
	ws_digest_end(&d, hex);
	ws_digest_close(&d);
	k->hash = (uint64_t)hex[0];
	return 0;
}

/* Quantizes one band of rows at a time, as a push does. */
static int run_fp8(struct kernels *k, struct ws_err *err)
{
	const struct ws_fp8_rule *rule = &k->at->rule;
	struct ws_fp8_bad bad;
	for (int64_t row = 0; row < k->rows; row += B) {
		const int64_t rows = k->rows - row < B ? k->rows - row : B;
		const struct ws_fp8_band band = { .x = k->x + row * BENCH_COLS,
			                          .stride = BENCH_COLS,
			                          .rows = rows,
			                          .cols = BENCH_COLS };
		float *const scales = k->scales + row / B * (BENCH_COLS / B);
		if (!ws_fp8_scales(rule, &band, scales, &bad))
			return ws_err_set(err, WS_EDATA, "%s: the weights hold a NaN or Inf",
			                  k->at->name);
		ws_fp8_codes(rule, &band, scales, k->out + row * BENCH_COLS, BENCH_COLS);
	}
	return 0;
}

static int run_merge(struct kernels *k, struct ws_err *err)
{
	(void)err;
	uint16_t *const out = (uint16_t *)(void *)k->out;
	for (int64_t row = 0; row < k->rows; row += BAND) {
		const int64_t rows = k->rows - row < BAND ? k->rows - row : BAND;
		const size_t at = (size_t)row * BENCH_COLS;
		ws_floats_read(WS_DTYPE_BF16, k->x + at, (size_t)rows * BENCH_COLS, k->w);
		const struct ws_lowrank l = { k->a, k->b + row * RANK, RANK, BENCH_COLS, 2.0f };
		ws_lowrank_tile(&l, rows, 0, BENCH_COLS, k->delta, BENCH_COLS);
		struct ws_sum_tile t = { .w = k->w, .w_stride = BENCH_COLS, .delta = k->delta,
			                 .delta_stride = BENCH_COLS, .out = out + at,
			                 .out_stride = BENCH_COLS, .n = rows, .m = BENCH_COLS,
			                 .two_step = k->at->two_step };
		ws_merge_bf16(&t);
	}
	return 0;
}

/* Unpacks 4-bit codes to fp32, with one scale for 64 codes. */
static int run_unpack(struct kernels *k, struct ws_err *err)
{
	(void)err;
	float levels[16];
	for (int i = 0; i < 16; i++)
		levels[i] = (float)(i - 8) / 8;
	const struct ws_nibbles s = { .codes = (const uint8_t *)k->x, .high_first = true,
		                      .levels = levels, .scales = k->scales,
		                      .block = BENCH_NIBBLES };
	ws_unpack_kernels()->nibbles(&s, 0, (int64_t)k->count, (float *)(void *)k->out);
	return 0;
}

#define FP8(scale, exponents) run_fp8, true, 4, 1, .rule = { scale, exponents, B, B }
static const struct kernel table[] = {
	{ "hash xxh3-64", run_hash, false, 4, 0, .two_step = false },
	{ "checksum sglang-cuda", run_checksum, true, 4, 0, .fn = WS_CHECKSUM_SGLANG_CUDA },
	{ "checksum sglang-cpu", run_checksum, false, 4, 0, .fn = WS_CHECKSUM_SGLANG_CPU },
	{ "fp8 128x128 xorl", FP8(WS_SCALE_XORL, false) },
	{ "fp8 128x128 slime", FP8(WS_SCALE_SLIME, false) },
	{ "fp8 128x128 ue8m0", FP8(WS_SCALE_XORL, true) },
	{ "lora rank 16 fold", run_merge, true, 4, 2, .two_step = false },
	{ "lora rank 16 two-step", run_merge, true, 4, 2, .two_step = true },
	{ "unpack 4 bits", run_unpack, true, 1, 4, .two_step = false },
};

/* ---- time and check -------------------------------------------------------------------------- */

/* Keeps the compiler from removing work whose result is not read. */
static void keep(const void *p)
{
	__asm__ volatile("" : : "r"(p) : "memory");
}

static int time_copy(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	memcpy(k->copy, k->x, 2 * k->count);
	keep(k->copy);
	return 0;
}

static int time_kernel(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	struct kernels *k = ctx;
	const int rc = k->at->run(k, err);
	keep(k);
	return rc;
}

/* Runs the kernel once more without SIMD, and counts the bytes that differ. */
static int check_kernel(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct kernels *k = ctx, plain = *k;
	const char *const level = ws_simd_level();
	ws_simd_set_level("scalar");
	plain.out = k->expected;
	const int rc = k->at->run(&plain, err);
	ws_simd_set_level(level);
	*errors = 0;
	for (size_t i = 0; i < k->at->makes * k->count; i++)
		*errors += k->out[i] != k->expected[i];
	return rc;
}

int ws_bench_kernels(const struct ws_bench_opts *opts, uint64_t size, struct ws_err *err)
{
	struct kernels k = { 0 };
	int rc = open_kernels(&k, size, err);
	const struct bench_timed copy = { .run = time_copy, .ctx = &k };
	for (size_t i = 0; i < sizeof table / sizeof *table && !rc; i++) {
		const struct kernel *e = k.at = &table[i];
		const struct bench_timed timed = { time_kernel, e->makes ? check_kernel : NULL,
			                           &k };
		struct ws_bench_row row = { .stage = "kernels", .name = e->name,
			                    .detail = e->simd ? ws_simd_level() : "",
			                    .bytes = k.count / 2 * (e->reads + 2 * e->makes),
			                    .against = "memcpy", .against_bytes = 4 * k.count };
		rc = bench_measure(opts, &row, &timed, &copy, err);
	}
	close_kernels(&k);
	return rc;
}
