/* SPDX-License-Identifier: Apache-2.0 */
/* matrix.c - the numbers that kernels are measured with, and what lib/transform makes of them, a
 * band of rows at a time, as a push has it done. */
#include "matrix.h"

#include "unpack_core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE = 4096 };
static const uint64_t LEAST = (uint64_t)BENCH_BAND * BENCH_COLS * 2, MOST = UINT64_C(1) << 40;

/* ---- numbers ---- */

static uint16_t narrow(double x)
{
	const float f = (float)x;
	uint32_t bits;
	memcpy(&bits, &f, sizeof bits);
	return (uint16_t)(bits >> 16);
}

static uint64_t draw(uint64_t *state)
{
	return *state = *state * 6364136223846793005u + 1442695040888963407u;
}

/* From a table of normal numbers of standard deviation 0.02: rounding and clamping take the
 * paths that they take in earnest. */
static void fill(uint16_t *x, size_t n)
{
	uint16_t normal[TABLE];
	uint64_t state = 1;
	for (size_t i = 0; i < TABLE; i += 2) {
		const double u = ((double)i + 1) / (TABLE + 2);
		const double v = 6.283185307 * ((double)(i * 2654435761u % TABLE) / (double)TABLE);
		const double r = 0.02 * sqrt(-2 * log(u));
		normal[i] = narrow(r * cos(v));
		normal[i + 1] = narrow(r * sin(v));
	}
	for (size_t i = 0; i < n; i++)
		x[i] = normal[draw(&state) >> 52];
}

void bench_fill_floats(float *x, size_t n)
{
	uint64_t state = 2;
	for (size_t i = 0; i < n; i++)
		x[i] = (float)((double)(draw(&state) >> 40) / (1 << 24) - 0.5) * 0.01f;
}

void bench_matrix_close(struct bench_matrix *m)
{
	free(m->x);
	free(m->w);
	free(m->delta);
	*m = (struct bench_matrix){ 0 };
}

int bench_matrix_open(struct bench_matrix *m, uint64_t size, struct ws_err *err)
{
	const size_t band = (size_t)BENCH_BAND * BENCH_COLS * sizeof(float);
	size = size < LEAST ? LEAST : size;
	*m = (struct bench_matrix){ .rows = (int64_t)(size / (2 * BENCH_COLS)) };
	if (size > MOST)
		return ws_err_set(err, WS_EUSAGE, "a kernel's input has at most 1 TiB");
	m->count = (size_t)m->rows * BENCH_COLS;
	m->x = malloc(2 * m->count);
	m->w = malloc(band);
	m->delta = malloc(band);
	if (!m->x || !m->w || !m->delta)
		return ws_err_set(err, WS_ESYSTEM, "out of memory for kernels of %llu MiB",
		                  (unsigned long long)(size >> 20));
	fill(m->x, m->count);
	return 0;
}

/* ---- bands ---- */

struct band {
	int64_t row, rows;
	size_t at; /* its first number */
};

/* The first has row and rows of 0. False: there is no further one. */
static bool next_band(const struct bench_matrix *m, int64_t height, struct band *b)
{
	b->row += b->rows;
	b->rows = m->rows - b->row < height ? m->rows - b->row : height;
	b->at = (size_t)b->row * BENCH_COLS;
	return b->rows > 0;
}

static int no_number(struct ws_err *err)
{
	return ws_err_set(err, WS_EDATA, "a kernel found no number where there is one");
}

int bench_fp8_blocks(const struct bench_matrix *m, const struct ws_fp8_rule *rule, uint8_t *codes,
                     float *scales, struct ws_err *err)
{
	struct ws_fp8_bad bad;
	for (struct band b = { 0 }; next_band(m, rule->bn, &b);) {
		float *const s = scales + b.row / rule->bn * (BENCH_COLS / rule->bk);
		if (!ws_fp8_scales_bf16(rule, m->x + b.at, BENCH_COLS, b.rows, BENCH_COLS, s, &bad))
			return no_number(err);
		ws_fp8_codes_bf16(rule, m->x + b.at, BENCH_COLS, b.rows, BENCH_COLS, s,
		                  codes + b.at, BENCH_COLS);
	}
	return 0;
}

/* The whole tensor has one scale: it is read for its largest magnitude, and once more for its
 * codes. */
int bench_fp8_whole(const struct bench_matrix *m, const struct ws_fp8_rule *rule, uint8_t *codes,
                    float *scales, struct ws_err *err)
{
	const struct ws_fp8_rule band = { rule->rule, rule->ue8m0, BENCH_BAND, BENCH_COLS };
	struct ws_fp8_bad bad;
	float amax = 0;
	for (struct band b = { 0 }; next_band(m, BENCH_BAND, &b);)
		if (!ws_fp8_amax_bf16(m->x + b.at, BENCH_COLS, b.rows, BENCH_COLS, &amax, &bad))
			return no_number(err);
	*scales = ws_fp8_scale(rule, amax);
	for (struct band b = { 0 }; next_band(m, BENCH_BAND, &b);)
		ws_fp8_codes_bf16(&band, m->x + b.at, BENCH_COLS, b.rows, BENCH_COLS, scales,
		                  codes + b.at, BENCH_COLS);
	return 0;
}

void bench_merge(struct bench_matrix *m, const struct ws_lowrank *l, bool two_step, uint16_t *out)
{
	const struct ws_unpack_kernels *const with = ws_unpack_kernels();
	float max_delta, max_w;
	for (struct band b = { 0 }; next_band(m, BENCH_BAND, &b);) {
		with->widen_bf16((const uint8_t *)(m->x + b.at), (size_t)b.rows * BENCH_COLS, m->w);
		ws_lowrank_tile(l, b.row, b.rows, 0, BENCH_COLS, m->delta, BENCH_COLS);
		ws_merge_bf16(m->w, BENCH_COLS, m->delta, BENCH_COLS, b.rows, BENCH_COLS, two_step,
		              out + b.at, BENCH_COLS, &max_delta, &max_w);
	}
}
