/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_gpu_check.c - the same by the CPU, as lib/transform defines it, byte by byte. */
#include "kernels_gpu.h"

#include "unpack_core.h"

#include <stdlib.h>
#include <string.h>

struct check {
	struct gpu_kernels *k;
	uint8_t *got, *want;        /* 2 bytes for each number */
	float *got_scales, *scales; /* of blocks, or one */
	float *row;                 /* BENCH_COLS numbers */
	uint64_t bytes;             /* of the result that count */
	size_t n_scales;
};

/* ---- what the CPU makes of it ---- */

static struct ws_fp8_rule rule_of(const struct gpu_kernel *at)
{
	return (struct ws_fp8_rule){ at->rule, at->ue8m0, BENCH_BLOCK, BENCH_BLOCK };
}

static int64_t blocks_of(const struct gpu_kernels *k)
{
	return (k->m.rows + BENCH_BLOCK - 1) / BENCH_BLOCK * (BENCH_COLS / BENCH_BLOCK);
}

static int quantize(struct check *c, const struct bench_matrix *m, struct ws_err *err)
{
	const struct ws_fp8_rule rule = rule_of(c->k->at);
	c->bytes = m->count;
	c->n_scales = (size_t)blocks_of(c->k);
	return bench_fp8_blocks(m, &rule, c->want, c->scales, err);
}

static int quantize_whole(struct check *c, struct ws_err *err)
{
	const struct ws_fp8_rule rule = rule_of(c->k->at);
	c->bytes = c->k->m.count;
	c->n_scales = 1;
	return bench_fp8_whole(&c->k->m, &rule, c->want, c->scales, err);
}

static void merge(struct check *c, uint16_t *out)
{
	struct gpu_kernels *k = c->k;
	const struct ws_lowrank l = { k->a, k->b, k->at->rank, BENCH_COLS, 2.0f };
	bench_merge(&k->m, &l, k->at->two_step, out);
	c->bytes = 2 * k->m.count;
}

static int chain(struct check *c, struct ws_err *err)
{
	struct bench_matrix merged = c->k->m;
	merged.x = malloc(2 * merged.count);
	if (!merged.x)
		return ws_oom(err);
	merge(c, merged.x);
	const int rc = quantize(c, &merged, err);
	free(merged.x);
	return rc;
}

static void unpack_row(const struct check *c, int64_t r)
{
	static const float e2m1[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
		                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };
	const struct gpu_kernels *k = c->k;
	const uint8_t *const nibbles = k->codes + r * (BENCH_COLS / 2);
	float wide[BENCH_COLS / GPU_NVFP4];
	if (k->at->kind == WS_UNPACK_FP8) {
		ws_fp8_decode_row(k->codes + r * BENCH_COLS, 0, BENCH_COLS, BENCH_BLOCK,
		                  k->scales + r / BENCH_BLOCK * (BENCH_COLS / BENCH_BLOCK), c->row);
		return;
	}
	struct ws_nibbles s = { .codes = nibbles,
		                .high_first = true,
		                .levels = bench_nf4_levels,
		                .scales = k->scales + r * (BENCH_COLS / BENCH_NIBBLES),
		                .block = BENCH_NIBBLES };
	if (k->at->kind == WS_UNPACK_NVFP4) {
		for (int i = 0; i < BENCH_COLS / GPU_NVFP4; i++)
			wide[i] = ws_fp8_to_float(k->codes[r * (BENCH_COLS / GPU_NVFP4) + i]) *
			          BENCH_TENSOR_SCALE;
		s = (struct ws_nibbles){
			.codes = nibbles, .levels = e2m1, .scales = wide, .block = GPU_NVFP4
		};
	}
	ws_unpack_scalar.nibbles(&s, 0, BENCH_COLS, c->row);
}

static void narrow_row(const float *row, uint8_t *bf16)
{
	for (int i = 0; i < BENCH_COLS; i++) {
		uint32_t bits;
		memcpy(&bits, &row[i], sizeof bits);
		const uint16_t upper = (uint16_t)(bits >> 16);
		memcpy(bf16 + 2 * i, &upper, sizeof upper);
	}
}

static void unpack(struct check *c)
{
	for (int64_t r = 0; r < c->k->m.rows; r++) {
		unpack_row(c, r);
		ws_unpack_scalar.round_bf16(c->row, BENCH_COLS); /* still fp32 */
		narrow_row(c->row, c->want + r * BENCH_COLS * 2);
	}
	c->bytes = 2 * c->k->m.count;
}

static void halve(struct check *c)
{
	const size_t half = BENCH_COLS; /* bytes of half a row */
	for (int64_t r = 0; r < c->k->m.rows; r++)
		memcpy(c->want + (size_t)r * half, c->k->m.x + r * BENCH_COLS, half);
	c->bytes = c->k->m.count;
}

static void turn(struct check *c)
{
	const int64_t rows = c->k->m.rows;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < BENCH_COLS; i++)
			memcpy(c->want + (i * rows + r) * 2, &c->k->m.x[r * BENCH_COLS + i], 2);
	c->bytes = 2 * c->k->m.count;
}

static void flatten(struct check *c)
{
	for (unsigned i = 0; i < GPU_SPANS; i++) {
		size_t from, to, count;
		bench_gpu_span(c->k, i, &from, &to, &count);
		memcpy(c->want + 2 * to, c->k->m.x + from, 2 * count);
	}
	c->bytes = 2 * c->k->m.count;
}

static void find_largest(struct check *c)
{
	uint32_t most = 0;
	for (uint64_t i = 0; i < c->k->m.count; i++)
		most = (c->k->m.x[i] & 0x7fff) > most ? c->k->m.x[i] & 0x7fff : most;
	c->bytes = sizeof most;
	memcpy(c->want, &most, sizeof most);
}

static int make_expected(struct check *c, struct ws_err *err)
{
	switch (c->k->at->recipe) {
	case GPU_FP8: return quantize(c, &c->k->m, err);
	case GPU_FP8_WHOLE: return quantize_whole(c, err);
	case GPU_CHAIN: return chain(c, err);
	case GPU_MERGE: merge(c, (uint16_t *)(void *)c->want); return 0;
	case GPU_UNPACK: unpack(c); return 0;
	case GPU_HALVES: halve(c); return 0;
	case GPU_TURN: turn(c); return 0;
	case GPU_FLATTEN: flatten(c); return 0;
	case GPU_LARGEST: find_largest(c); return 0;
	}
	return 0;
}

/* ---- what the GPU made ---- */

static int run_once(struct check *c, struct ws_err *err)
{
	struct gpu_kernels *k = c->k;
	char bytes[WS_RECORD_BYTES];
	struct ws_record record;
	/* What the one before it left there is no result. */
	if (ws_gpu_fill(k->g.gpu, k->out, 0x55, 2 * k->m.count, k->g.stream, err) ||
	    (c->n_scales &&
	     ws_gpu_fill(k->g.gpu, k->made, 0x55, c->n_scales * 4, k->g.stream, err)) ||
	    ws_record_clear(k->compute, k->record, k->g.stream, err) || bench_gpu_start(k, err) ||
	    ws_gpu_copy_out(k->g.gpu, c->got, k->out, c->bytes, k->g.stream, err) ||
	    (c->n_scales && ws_gpu_copy_out(k->g.gpu, c->got_scales, k->made, c->n_scales * 4,
	                                    k->g.stream, err)) ||
	    ws_gpu_copy_out(k->g.gpu, bytes, k->record, sizeof bytes, k->g.stream, err) ||
	    bench_gpu_wait(&k->g, err))
		return -1;
	ws_record_read(bytes, BENCH_COLS, &record);
	return record.bad ? ws_err_set(err, WS_EDATA, "%s: found no number where there is one",
	                               k->at->name) :
	                    0;
}

static int64_t count_differences(const void *got, const void *want, uint64_t bytes)
{
	const uint8_t *const x = got, *const y = want;
	int64_t wrong = 0;
	for (uint64_t i = 0; i < bytes; i++)
		wrong += x[i] != y[i];
	return wrong;
}

int bench_gpu_check(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct gpu_kernels *k = ctx;
	struct check c = { .k = k };
	c.got = malloc(2 * k->m.count);
	c.want = malloc(2 * k->m.count);
	c.got_scales = malloc((size_t)blocks_of(k) * sizeof(float));
	c.scales = malloc((size_t)blocks_of(k) * sizeof(float));
	c.row = malloc(BENCH_COLS * sizeof(float));
	int rc = c.got && c.want && c.got_scales && c.scales && c.row ? 0 :
	         ws_err_set(err, WS_ESYSTEM, "out of memory to check %s", k->at->name);
	if (!rc)
		rc = make_expected(&c, err) || run_once(&c, err) ? -1 : 0;
	if (!rc)
		*errors = count_differences(c.got, c.want, c.bytes) +
		          count_differences(c.got_scales, c.scales, c.n_scales * sizeof(float));
	free(c.got);
	free(c.want);
	free(c.got_scales);
	free(c.scales);
	free(c.row);
	return rc;
}
