/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c - what a push does to numbers, against memcpy. Bytes are those that must move: each that is
 * read or written, once; so a copy moves twice its size.
 *
 * Input, output and the copy are touched before the first sample, so that no page is faulted in within
 * one. The numbers are of normal distribution, as weights are: rounding and clamping take the paths that
 * they take in earnest. */
#include "fp8.h"
#include "hash.h"
#include "lowrank.h"
#include "samples.h"
#include "unpack_core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLS = 4096, BAND = 128, RANK = 16, NIBBLE_BLOCK = 64, TABLE = 4096 };
static const uint64_t LEAST = 1 << 20;

struct kernels {
	int64_t rows;      /* of COLS bf16 numbers */
	size_t bytes;      /* of x */
	uint16_t *x;       /* the input */
	char *copy;
	uint8_t *out;      /* what a kernel makes, at most 4 bytes for each number */
	uint8_t *expected; /* check: the same by plain C */
	float *scales, *a, *b, *w, *delta;
	struct ws_fp8_rule rule;
	enum ws_lora_rounding rounding;
	uint64_t hash;
};

/* ---- numbers ------------------------------------------------------------------------------------- */

static float narrow(float x, uint16_t *bf16)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	*bf16 = (uint16_t)(bits >> 16);
	return x;
}

/* A table of normal numbers of standard deviation 0.02, drawn from at random. */
static void fill(uint16_t *x, size_t n)
{
	uint16_t normal[TABLE];
	uint64_t state = 1;
	for (size_t i = 0; i < TABLE; i += 2) {
		const double u = ((double)i + 1) / (TABLE + 2);
		const double v = 6.283185307 * ((double)(i * 2654435761u % TABLE) / TABLE);
		const double r = 0.02 * sqrt(-2 * log(u));
		narrow((float)(r * cos(v)), &normal[i]);
		narrow((float)(r * sin(v)), &normal[i + 1]);
	}
	for (size_t i = 0; i < n; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		x[i] = normal[state >> 52];
	}
}

static void fill_floats(float *x, size_t n)
{
	uint64_t state = 2;
	for (size_t i = 0; i < n; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		x[i] = (float)((double)(state >> 40) / (1 << 24) - 0.5) * 0.01f;
	}
}

static void close_kernels(struct kernels *k)
{
	free(k->x);
	free(k->copy);
	free(k->out);
	free(k->expected);
	free(k->scales);
	free(k->a);
	free(k->b);
	free(k->w);
	free(k->delta);
}

static int open_kernels(struct kernels *k, uint64_t size, struct ws_err *err)
{
	const size_t band = (size_t)BAND * COLS * sizeof(float);
	size = size < LEAST ? LEAST : size;
	if (size > (UINT64_C(1) << 40))
		return ws_err_set(err, WS_EUSAGE, "a kernel's input has at most 1 TiB");
	*k = (struct kernels){ .rows = (int64_t)(size / (2 * COLS)) };
	k->bytes = (size_t)k->rows * COLS * 2;
	k->x = malloc(k->bytes);
	k->copy = malloc(k->bytes);
	k->out = malloc(2 * k->bytes + COLS * sizeof(float));
	k->expected = malloc(2 * k->bytes + COLS * sizeof(float));
	k->scales = malloc((size_t)(k->rows + BAND) * COLS / NIBBLE_BLOCK * sizeof(float));
	k->a = malloc((size_t)RANK * COLS * sizeof(float));
	k->b = malloc((size_t)k->rows * RANK * sizeof(float));
	k->w = malloc(band);
	k->delta = malloc(band);
	if (!k->x || !k->copy || !k->out || !k->expected || !k->scales || !k->a || !k->b || !k->w || !k->delta) {
		close_kernels(k);
		return ws_err_set(err, WS_ESYSTEM, "out of memory for kernels of %llu MiB",
		                  (unsigned long long)(size >> 20));
	}
	fill(k->x, k->bytes / 2);
	memset(k->copy, 1, k->bytes);
	memset(k->out, 1, 2 * k->bytes);
	memset(k->expected, 1, 2 * k->bytes);
	fill_floats(k->a, (size_t)RANK * COLS);
	fill_floats(k->b, (size_t)k->rows * RANK);
	return 0;
}

/* ---- what is timed ------------------------------------------------------------------------------- */

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
	memcpy(k->copy, k->x, k->bytes);
	keep(k->copy);
	return 0;
}

static int hash(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	k->hash = ws_hash64(k->x, k->bytes);
	keep(&k->hash);
	return 0;
}

static int quantize(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	struct kernels *k = ctx;
	struct ws_fp8_bad bad;
	for (int64_t row = 0; row < k->rows; row += k->rule.bn) {
		const int64_t n = k->rows - row < k->rule.bn ? k->rows - row : k->rule.bn;
		const size_t at = (size_t)row * COLS;
		float *const s = k->scales + row / k->rule.bn * (COLS / k->rule.bk);
		if (!ws_fp8_scales_bf16(&k->rule, k->x + at, COLS, n, COLS, s, &bad))
			return ws_err_set(err, WS_EDATA, "a kernel found no number where there is one");
		ws_fp8_codes_bf16(&k->rule, k->x + at, COLS, n, COLS, s, k->out + at, COLS);
	}
	keep(k->out);
	return 0;
}

/* The whole tensor has one scale: it is read for its largest magnitude, and once more for its codes. */
static int quantize_tensor(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	struct kernels *k = ctx;
	struct ws_fp8_bad bad;
	float amax = 0;
	for (int64_t row = 0; row < k->rows; row += BAND) {
		const int64_t n = k->rows - row < BAND ? k->rows - row : BAND;
		if (!ws_fp8_amax_bf16(k->x + (size_t)row * COLS, COLS, n, COLS, &amax, &bad))
			return ws_err_set(err, WS_EDATA, "a kernel found no number where there is one");
	}
	const float scale = ws_fp8_scale(&k->rule, amax);
	const struct ws_fp8_rule whole = { .rule = k->rule.rule, .bn = BAND, .bk = COLS };
	for (int64_t row = 0; row < k->rows; row += BAND) {
		const int64_t n = k->rows - row < BAND ? k->rows - row : BAND;
		const size_t at = (size_t)row * COLS;
		ws_fp8_codes_bf16(&whole, k->x + at, COLS, n, COLS, &scale, k->out + at, COLS);
	}
	keep(k->out);
	return 0;
}

static int merge(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	const struct ws_lowrank l = { k->a, k->b, RANK, COLS, 2.0f };
	const struct ws_unpack_kernels *const with = ws_unpack_kernels();
	float max_delta, max_w;
	for (int64_t row = 0; row < k->rows; row += BAND) {
		const int64_t n = k->rows - row < BAND ? k->rows - row : BAND;
		const size_t at = (size_t)row * COLS;
		with->widen_bf16((const uint8_t *)(k->x + at), (size_t)n * COLS, k->w);
		ws_lowrank_tile(&l, row, n, 0, COLS, k->delta, COLS);
		ws_merge_bf16(k->w, COLS, k->delta, COLS, n, COLS, k->rounding == WS_LORA_TWO_STEP,
		              (uint16_t *)(void *)k->out + at, COLS, &max_delta, &max_w);
	}
	keep(k->out);
	return 0;
}

/* Codes of 4 bits to fp32, a scale for every 64 of them: a quarter of the bytes are input. */
static int unpack(void *ctx, int64_t *ns, struct ws_err *err)
{
	(void)ns;
	(void)err;
	struct kernels *k = ctx;
	float levels[16];
	for (int i = 0; i < 16; i++)
		levels[i] = (float)(i - 8) / 8;
	const struct ws_nibbles s = { .codes = (const uint8_t *)k->x, .high_first = true, .levels = levels,
		                      .scales = k->scales, .block = NIBBLE_BLOCK };
	ws_unpack_kernels()->nibbles(&s, 0, (int64_t)(k->bytes / 2), (float *)(void *)k->out);
	keep(k->out);
	return 0;
}

/* ---- checks: the same by plain C ----------------------------------------------------------------- */

static int64_t count_differences(const struct kernels *k, size_t n)
{
	int64_t wrong = 0;
	for (size_t i = 0; i < n; i++)
		wrong += k->out[i] != k->expected[i];
	return wrong;
}

/* run once more without SIMD; n bytes of its result count. */
static int against_plain(struct kernels *k, int (*run)(void *, int64_t *, struct ws_err *), size_t n,
                         int64_t *errors, struct ws_err *err)
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
	return against_plain(k, quantize, k->bytes / 2, errors, err);
}

static int check_quantize_tensor(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct kernels *k = ctx;
	return against_plain(k, quantize_tensor, k->bytes / 2, errors, err);
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
	float levels[16];
	for (int i = 0; i < 16; i++)
		levels[i] = (float)(i - 8) / 8;
	const struct ws_nibbles s = { .codes = (const uint8_t *)k->x, .high_first = true, .levels = levels,
		                      .scales = k->scales, .block = NIBBLE_BLOCK };
	ws_unpack_scalar.nibbles(&s, 0, (int64_t)(k->bytes / 2), (float *)(void *)k->expected);
	*errors = count_differences(k, 2 * k->bytes);
	return 0;
}

/* ---- all of them --------------------------------------------------------------------------------- */

struct kernel {
	const char *name;
	int (*run)(void *, int64_t *, struct ws_err *);
	int (*check)(void *, int64_t *, struct ws_err *);
	struct ws_fp8_rule rule;
	enum ws_lora_rounding rounding;
	unsigned quarters; /* of the input's bytes, that move */
};

static const struct kernel table[] = {
	{ "hash xxh3-64", hash, NULL, { .bn = BAND, .bk = BAND }, WS_LORA_FOLD, 4 },
	{ "fp8 128x128 xorl", quantize, check_quantize, { WS_SCALE_XORL, false, BAND, BAND }, WS_LORA_FOLD, 6 },
	{ "fp8 128x128 slime", quantize, check_quantize, { WS_SCALE_SLIME, false, BAND, BAND }, WS_LORA_FOLD, 6 },
	{ "fp8 128x128 ue8m0", quantize, check_quantize, { WS_SCALE_XORL, true, BAND, BAND }, WS_LORA_FOLD, 6 },
	{ "fp8 per tensor", quantize_tensor, check_quantize_tensor, { WS_SCALE_XORL, false, BAND, COLS },
	  WS_LORA_FOLD, 6 },
	{ "lora rank 16 fold", merge, check_merge, { .bn = BAND, .bk = BAND }, WS_LORA_FOLD, 8 },
	{ "lora rank 16 two-step", merge, check_merge, { .bn = BAND, .bk = BAND }, WS_LORA_TWO_STEP, 8 },
	{ "unpack 4 bits", unpack, check_unpack, { .bn = BAND, .bk = BAND }, WS_LORA_FOLD, 9 },
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
	int rc = 0;
	if (open_kernels(&k, size, err))
		return -1;
	for (size_t i = 0; i < (size_t)(k.rows + BAND) * COLS / NIBBLE_BLOCK; i++)
		k.scales[i] = 0.01f;
	const struct bench_timed memory = { .run = copy, .ctx = &k };
	for (size_t i = 0; i < sizeof table / sizeof *table && !rc; i++) {
		const struct kernel *e = &table[i];
		struct ws_bench_row row = { .stage = "kernels", .name = e->name, .detail = level_of(e),
			                    .bytes = k.bytes / 4 * e->quarters, .against = "memcpy",
			                    .against_bytes = 2 * k.bytes };
		k.rule = e->rule;
		k.rounding = e->rounding;
		rc = bench_measure(opts, &row, &(struct bench_timed){ e->run, e->check, &k }, &memory, err);
	}
	close_kernels(&k);
	return rc;
}
