/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c - what a push does to numbers, against memcpy. Bytes are those that must move: each
 * that is read or written, once; so a copy moves twice its size.
 *
 * Input, output and the copy are touched before the first sample, so that no page
 * is faulted in within one. */
#include "hash.h"
#include "matrix.h"
#include "samples.h"
#include "unpack_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 16 };

struct kernels {
	struct bench_matrix m;
	size_t bytes;      /* of the matrix */
	char *copy;
	uint8_t *out;      /* what a kernel makes, at most 4 bytes for each number */
	uint8_t *expected; /* check: the same by plain C */
	float *scales, *a, *b;
	struct ws_fp8_rule rule;
	enum ws_lora_rounding rounding;
	uint64_t hash;
};

static void close_kernels(struct kernels *k)
{
	bench_matrix_close(&k->m);
	free(k->copy);
	free(k->out);
	free(k->expected);
	free(k->scales);
	free(k->a);
	free(k->b);
}

static int open_kernels(struct kernels *k, uint64_t size, struct ws_err *err)
{
	*k = (struct kernels){ 0 };
	if (bench_matrix_open(&k->m, size, err))
		return -1;
	k->bytes = 2 * k->m.count;
	const size_t n_scales = (k->m.count + (size_t)BENCH_BAND * BENCH_COLS) / BENCH_NIBBLES;
	k->copy = malloc(k->bytes);
	k->out = malloc(2 * k->bytes);
	k->expected = malloc(2 * k->bytes);
	k->scales = malloc(n_scales * sizeof *k->scales);
	k->a = malloc((size_t)RANK * BENCH_COLS * sizeof *k->a);
	k->b = malloc((size_t)k->m.rows * RANK * sizeof *k->b);
	if (!k->copy || !k->out || !k->expected || !k->scales || !k->a || !k->b)
		return ws_err_set(err, WS_ESYSTEM, "out of memory for kernels of %zu MiB",
		                  k->bytes >> 20);
	memset(k->copy, 1, k->bytes);
	memset(k->out, 1, 2 * k->bytes);
	memset(k->expected, 1, 2 * k->bytes);
	bench_fill_floats(k->a, (size_t)RANK * BENCH_COLS);
	bench_fill_floats(k->b, (size_t)k->m.rows * RANK);
	for (size_t i = 0; i < n_scales; i++)
		k->scales[i] = 0.01f;
	return 0;
}

/* ---- what is timed --------------------------------------------------------------------------- */

/* Nobody reads the result, and a compiler must not know that. */
static void keep(const void *p)
{
	__asm__ volatile("" : : "r"(p) : "memory");
}

static int copy(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	memcpy(k->copy, k->m.x, k->bytes);
	keep(k->copy);
	return 0;
}

static int hash(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	k->hash = ws_hash64(k->m.x, k->bytes);
	keep(&k->hash);
	return 0;
}

static int quantize(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	struct kernels *k = ctx;
	const int rc = bench_fp8_blocks(&k->m, &k->rule, k->out, k->scales, err);
	keep(k->out);
	return rc;
}

static int quantize_tensor(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	struct kernels *k = ctx;
	const int rc = bench_fp8_whole(&k->m, &k->rule, k->out, k->scales, err);
	keep(k->out);
	return rc;
}

static int merge(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	const struct ws_lowrank l = { k->a, k->b, RANK, BENCH_COLS, 2.0f };
	bench_merge(&k->m, &l, k->rounding == WS_LORA_TWO_STEP, (uint16_t *)(void *)k->out);
	keep(k->out);
	return 0;
}

/* Codes of 4 bits to fp32, a scale for every 64 of them: a quarter of the bytes are input. */
static void unpack_with(const struct ws_unpack_kernels *with, const struct kernels *k, uint8_t *out)
{
	float levels[16];
	for (int i = 0; i < 16; i++)
		levels[i] = (float)(i - 8) / 8;
	const struct ws_nibbles s = { .codes = (const uint8_t *)k->m.x,
		                      .high_first = true,
		                      .levels = levels,
		                      .scales = k->scales,
		                      .block = BENCH_NIBBLES };
	with->nibbles(&s, 0, (int64_t)k->m.count, (float *)(void *)out);
}

static int unpack(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	unpack_with(ws_unpack_kernels(), k, k->out);
	keep(k->out);
	return 0;
}

/* ---- checks: the same by plain C ------------------------------------------------------------- */

static int64_t count_differences(const struct kernels *k, size_t n)
{
	int64_t wrong = 0;
	for (size_t i = 0; i < n; i++)
		wrong += k->out[i] != k->expected[i];
	return wrong;
}

/* run once more without SIMD; n bytes of its result count. */
static int against_plain(struct kernels *k, int (*run)(void *, int64_t *, struct ws_err *),
                         size_t n, int64_t *errors, struct ws_err *err)
{
	char fp8[16], lowrank[16];
	snprintf(fp8, sizeof fp8, "%s", ws_fp8_level());
	snprintf(lowrank, sizeof lowrank, "%s", ws_lowrank_level());
	uint8_t *const made = k->out;
	ws_fp8_set_level("scalar");
	ws_lowrank_set_level("scalar");
	k->out = k->expected;
	const int rc = run(k, NULL, err);
	k->expected = k->out;
	k->out = made;
	ws_fp8_set_level(fp8);
	ws_lowrank_set_level(lowrank);
	*errors = rc ? -1 : count_differences(k, n);
	return rc;
}

static int check_quantize(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct kernels *k = ctx;
	return against_plain(k, quantize, k->m.count, errors, err);
}

static int check_quantize_tensor(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct kernels *k = ctx;
	return against_plain(k, quantize_tensor, k->m.count, errors, err);
}

static int check_merge(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct kernels *k = ctx;
	return against_plain(k, merge, k->bytes, errors, err);
}

static int check_unpack(void *ctx, int64_t *errors, struct ws_err *err)
{
	(void)err;
	struct kernels *k = ctx;
	unpack_with(&ws_unpack_scalar, k, k->expected);
	*errors = count_differences(k, 2 * k->bytes);
	return 0;
}

/* ---- all of them ----------------------------------------------------------------------------- */

enum { B = BENCH_BLOCK };

struct kernel {
	const char *name;
	int (*run)(void *, int64_t *, struct ws_err *);
	int (*check)(void *, int64_t *, struct ws_err *);
	struct ws_fp8_rule rule;
	enum ws_lora_rounding rounding;
	unsigned quarters; /* of the input's bytes, that move */
};

static const struct kernel table[] = {
	{ "hash xxh3-64", hash, NULL, { .bn = B, .bk = B }, WS_LORA_FOLD, 4 },
	{ "fp8 128x128 xorl",
	  quantize,
	  check_quantize,
	  { WS_SCALE_XORL, false, B, B },
	  WS_LORA_FOLD,
	  6 },
	{ "fp8 128x128 slime",
	  quantize,
	  check_quantize,
	  { WS_SCALE_SLIME, false, B, B },
	  WS_LORA_FOLD,
	  6 },
	{ "fp8 128x128 ue8m0",
	  quantize,
	  check_quantize,
	  { WS_SCALE_XORL, true, B, B },
	  WS_LORA_FOLD,
	  6 },
	{ "fp8 per tensor",
	  quantize_tensor,
	  check_quantize_tensor,
	  { WS_SCALE_XORL, false, B, BENCH_COLS },
	  WS_LORA_FOLD,
	  6 },
	{ "lora rank 16 fold", merge, check_merge, { .bn = B, .bk = B }, WS_LORA_FOLD, 8 },
	{ "lora rank 16 two-step", merge, check_merge, { .bn = B, .bk = B }, WS_LORA_TWO_STEP, 8 },
	{ "unpack 4 bits", unpack, check_unpack, { .bn = B, .bk = B }, WS_LORA_FOLD, 9 },
};

static const char *level_of(const struct kernel *e)
{
	return e->run == hash   ? ""
	     : e->run == merge  ? ws_lowrank_level()
	     : e->run == unpack ? ws_unpack_kernels()->level
	                        : ws_fp8_level();
}

int ws_bench_kernels(const struct ws_bench_opts *opts, uint64_t size, struct ws_err *err)
{
	struct kernels k;
	int rc = open_kernels(&k, size, err);
	const struct bench_timed memory = { .run = copy, .ctx = &k };
	for (size_t i = 0; i < sizeof table / sizeof *table && !rc; i++) {
		const struct kernel *e = &table[i];
		struct ws_bench_row row = { .stage = "kernels",
			                    .name = e->name,
			                    .detail = level_of(e),
			                    .bytes = k.bytes / 4 * e->quarters,
			                    .against = "memcpy",
			                    .against_bytes = 2 * k.bytes };
		k.rule = e->rule;
		k.rounding = e->rounding;
		rc = bench_measure(opts, &row, &(struct bench_timed){ e->run, e->check, &k },
		                   &memory, err);
	}
	close_kernels(&k);
	return rc;
}
