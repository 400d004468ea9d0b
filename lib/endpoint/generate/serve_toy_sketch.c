/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy_sketch.c - a tensor's numbers, added up with signs that name and place choose.
 *
 * Each sum is divided by the size that numbers like these come to, so that all tensors count alike,
 * and numbers that are off by a few percent give sums that are. Of a large tensor some rows are
 * looked at: that every bit counts is the hash's part. Codes in FP8 are taken with the scales of
 * their blocks, as the numbers that they stand for. */
#include "hash.h"
#include "serve_toy.h"

#include "number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUN = 256, RUNS = 64, BLOCK = 128 };

static const double unit = 16777216, most = 256; /* numbers are kept in 1/2^24, below 256 */

static void read_numbers(const struct ws_toy_tensor *t, uint64_t first, size_t n, double *out)
{
	uint8_t raw[RUN * 8];
	const size_t size = ws_dtype_bits(t->dtype) / 8;
	if (t->data)
		memcpy(raw, t->data + first * size, n * size);
	else
		ws_serve_gather_read(t->gather, 0, first * size, raw, n * size);
	ws_number_read(t->dtype, raw, n, out);
}

/* ---- scales ---- */

struct scales {
	double *values; /* owned; NULL: there are none */
	uint64_t cols;  /* of the matrix */
	uint64_t block[2], scale_cols;
};

/* Of a ragged end the number alone does not tell how long blocks are. */
static uint64_t block_of(int64_t length, int64_t blocks)
{
	const uint64_t n = (uint64_t)length, b = (uint64_t)blocks;
	return (n + BLOCK - 1) / BLOCK == b ? BLOCK : (n + b - 1) / b;
}

static bool is_matrix(const struct ws_toy_tensor *t)
{
	return t->n_dims == 2 && t->n && t->n == (uint64_t)t->dims[0] * (uint64_t)t->dims[1];
}

static int read_scales(const struct ws_toy_tensor *t, const struct ws_toy_tensor *scales,
                       struct scales *out)
{
	memset(out, 0, sizeof *out);
	if (!scales || !is_matrix(t) || !is_matrix(scales) || scales->dims[0] > t->dims[0] ||
	    scales->dims[1] > t->dims[1] || !ws_number_readable(scales->dtype))
		return 0;
	out->values = calloc((size_t)scales->n, sizeof *out->values);
	if (!out->values)
		return -1;
	for (uint64_t i = 0; i < scales->n; i += RUN)
		read_numbers(scales, i, scales->n - i < RUN ? (size_t)(scales->n - i) : RUN,
		             out->values + i);
	out->cols = (uint64_t)t->dims[1];
	out->scale_cols = (uint64_t)scales->dims[1];
	for (size_t d = 0; d < 2; d++)
		out->block[d] = block_of(t->dims[d], scales->dims[d]);
	return 0;
}

static double scale_of(const struct scales *s, uint64_t i)
{
	return s->values[i / s->cols / s->block[0] * s->scale_cols + i % s->cols / s->block[1]];
}

/* ---- sums ---- */

struct sums {
	int64_t v[WS_TOY_WIDTH], magnitude;
	uint64_t n;
};

static void add_number(struct sums *s, double x, uint64_t bits)
{
	const double cut = x > most ? most : x < -most ? -most : x == x ? x : 0;
	const int64_t q = (int64_t)(cut * unit);
	s->magnitude += q < 0 ? -q : q;
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		s->v[k] += bits >> k & 1 ? q : -q;
	s->n++;
}

static void add_run(struct sums *s, const struct ws_toy_tensor *t, const struct scales *scales,
                    uint64_t key, uint64_t first, size_t n)
{
	double x[RUN];
	read_numbers(t, first, n, x);
	for (size_t i = 0; i < n; i++) {
		const double scale = scales->values ? scale_of(scales, first + i) : 1;
		add_number(s, x[i] * scale, ws_toy_mix(key, first + i));
	}
}

/* The sum of n numbers of that magnitude, with any signs, is about as long
 * as 1.25 times their root. */
static void normalize(const struct sums *s, struct ws_toy_sketch *out)
{
	const double longest = 8 * 65536;
	const double length = s->n ? (double)s->magnitude / sqrt((double)s->n) * 1.25 : 0;
	for (size_t k = 0; k < WS_TOY_WIDTH; k++) {
		const double x = length > 0 ? (double)s->v[k] / length * 65536 : 0;
		out->v[k] = (int32_t)(x > longest ? longest : x < -longest ? -longest : x);
	}
}

int ws_toy_sketch(const struct ws_toy_tensor *t, const struct ws_toy_tensor *scales,
                  struct ws_toy_sketch *out)
{
	struct scales blocks;
	struct sums sums = { 0 };
	const uint64_t key = ws_hash64(t->name, strlen(t->name));
	const uint64_t stride = t->n > RUN * RUNS ? t->n / RUNS : RUN;
	if (read_scales(t, scales, &blocks))
		return -1;
	for (uint64_t i = 0; i < t->n; i += stride)
		add_run(&sums, t, &blocks, key, i, t->n - i < RUN ? (size_t)(t->n - i) : RUN);
	normalize(&sums, out);
	free(blocks.values);
	return 0;
}

void ws_toy_sketch_hash(uint64_t hash, struct ws_toy_sketch *out)
{
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		out->v[k] = (int32_t)(ws_toy_mix(hash, k) >> 46) - 131072; /* -2 to 2 */
}
