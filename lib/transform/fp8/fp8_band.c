/* SPDX-License-Identifier: Apache-2.0 */
/* fp8_band.c - the scales and codes of a band of blocks.
 *
 * The magnitudes are found row by row across all blocks, in memory order. The largest of each block
 * is kept in its scale's place, as the bits of a float. The codes are then made block by block: the
 * band is in a cache by then, and each block needs some preparation. */
#include "fp8.h"

#include "float_bits.h"
#include "fp8_rows.h"

#include <string.h>

enum { INFINITE = 0x7f800000 };

static const struct ws_fp8_rows *kernels_of(const struct ws_fp8_band *b)
{
	return b->is_f32 ? &ws_fp8_kernels()->f32 : &ws_fp8_kernels()->bf16;
}

static size_t size_of(const struct ws_fp8_band *b)
{
	return b->is_f32 ? sizeof(float) : sizeof(uint16_t);
}

static const uint8_t *at(const struct ws_fp8_band *b, int64_t row, int64_t col)
{
	return (const uint8_t *)b->x + ((size_t)row * b->stride + (size_t)col) * size_of(b);
}

static int64_t width(const struct ws_fp8_band *b, int64_t col, int64_t bk)
{
	return b->cols - col < bk ? b->cols - col : bk;
}

/* ---- scales ---------------------------------------------------------------------------------- */

float ws_fp8_scale(const struct ws_fp8_rule *r, float amax)
{
	const float least = r->rule == WS_SCALE_SLIME ? 1e-10f : 1e-12f;
	const float scale = (amax > least ? amax : least) / 448;
	if (!r->ue8m0)
		return scale;
	const uint32_t up = (ws_float_bits(scale) + 0x7fffff) & 0x7f800000;
	float power;
	memcpy(&power, &up, sizeof power);
	return power;
}

/* Finds the first element that is not finite, in row order. There must be one. */
static void find_bad(const struct ws_fp8_band *b, struct ws_fp8_bad *bad)
{
	const struct ws_fp8_rows *k = kernels_of(b);
	bad->row = bad->col = 0;
	while (k->amax(at(b, bad->row, 0), (size_t)b->cols) < INFINITE)
		bad->row++;
	while (k->amax(at(b, bad->row, bad->col), 1) < INFINITE)
		bad->col++;
	uint32_t bits = 0;
	memcpy((uint8_t *)&bits + 4 - size_of(b), at(b, bad->row, bad->col), size_of(b));
	memcpy(&bad->value, &bits, sizeof bad->value);
}

/* Raises the magnitudes of the blocks; false: an element is not finite. */
static bool raise_blocks(const struct ws_fp8_band *b, int64_t bk, float *amax,
                         struct ws_fp8_bad *bad)
{
	const struct ws_fp8_rows *k = kernels_of(b);
	bool finite = true;
	for (int64_t row = 0; row < b->rows; row++)
		for (int64_t col = 0, block = 0; col < b->cols; col += bk, block++) {
			const uint32_t bits = k->amax(at(b, row, col), (size_t)width(b, col, bk));
			finite = finite && bits < INFINITE;
			if (bits > ws_float_bits(amax[block]))
				memcpy(&amax[block], &bits, sizeof bits);
		}
	if (!finite)
		find_bad(b, bad);
	return finite;
}

bool ws_fp8_scales(const struct ws_fp8_rule *r, const struct ws_fp8_band *b, float *scales,
                   struct ws_fp8_bad *bad)
{
	const int64_t n = b->cols / r->bk + (b->cols % r->bk != 0);
	for (int64_t i = 0; i < n; i++)
		scales[i] = 0;
	if (!raise_blocks(b, r->bk, scales, bad))
		return false;
	for (int64_t i = 0; i < n; i++)
		scales[i] = ws_fp8_scale(r, scales[i]);
	return true;
}

/* ---- codes ----------------------------------------------------------------------------------- */

void ws_fp8_codes(const struct ws_fp8_rule *r, const struct ws_fp8_band *b, const float *scales,
                  uint8_t *codes, size_t codes_stride)
{
	const struct ws_fp8_rows *k = kernels_of(b);
	const bool multiply = r->rule == WS_SCALE_SLIME;
	struct ws_fp8_block block = { .stride = b->stride * size_of(b),
		                      .out_stride = codes_stride,
		                      .multiply = multiply,
		                      .rows = (size_t)b->rows };
	for (int64_t col = 0; col < b->cols; col += r->bk, scales++) {
		block.x = at(b, 0, col);
		block.cols = (size_t)width(b, col, r->bk);
		block.by = multiply ? 1 / *scales : *scales;
		block.out = codes + col;
		k->codes(&block);
	}
}
