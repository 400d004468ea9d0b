/* SPDX-License-Identifier: Apache-2.0 */
/* scales_codes.c - 8-bit codes and their scales, read once.
 *
 * Codes are not decoded: magnitudes of E4M3 sort like their codes. So the largest code of a block,
 * the zeros and the clamped codes are counted sixteen at a time, in generic vectors that the
 * compiler maps to the machine's. */
#include "scales_core.h"

#include "fp8.h"

#include <inttypes.h>
#include <string.h>

enum {
	CHUNK = 1 << 20,
	NAN_CODE = 0x7f, LARGEST_CODE = 0x7e,
	QUARTER = 0x6e /* 112, a quarter of 448 */
};

typedef uint8_t lanes __attribute__((vector_size(16)));
enum { LANES = sizeof(lanes), ROUNDS = 255 }; /* until a lane's count is full */

struct counts {
	uint64_t codes, zero, largest, nan;
	uint64_t blocks, slack; /* not all zero; of these: all below a quarter of the range */
};

/* ---- counting ---- */

struct lane_counts {
	lanes most, zero, largest, nan;
	unsigned rounds;
};

static uint64_t sum_of(const lanes *v)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < LANES; i++)
		sum += (*v)[i];
	return sum;
}

static void drain(struct lane_counts *l, struct counts *c)
{
	c->zero += sum_of(&l->zero);
	c->largest += sum_of(&l->largest);
	c->nan += sum_of(&l->nan);
	l->zero = l->largest = l->nan = (lanes){ 0 };
	l->rounds = 0;
}

static void count_lanes(struct lane_counts *l, lanes v)
{
	const lanes m = v & 0x7f, above = (lanes)(m > l->most);
	l->most = (m & above) | (l->most & ~above);
	l->zero -= (lanes)(m == 0);
	l->largest -= (lanes)(m == LARGEST_CODE);
	l->nan -= (lanes)(m == NAN_CODE);
}

/* The rest of a row, padded with zero codes, which are subtracted from the count of zeros. */
static void count_rest(struct lane_counts *l, const uint8_t *codes, size_t n, struct counts *c)
{
	lanes v = { 0 };
	memcpy(&v, codes, n);
	count_lanes(l, v);
	c->zero -= LANES - n;
}

/* Counts a piece of a block; returns the magnitude of its largest code. */
static uint8_t count_piece(const uint8_t *codes, int64_t stride, int64_t rows, int64_t cols,
                           struct counts *c)
{
	struct lane_counts l = { .rounds = 0 };
	for (int64_t r = 0; r < rows; r++) {
		const uint8_t *row = codes + r * stride;
		int64_t i = 0;
		for (; i < cols; i += LANES, l.rounds++) {
			lanes v;
			if (l.rounds == ROUNDS)
				drain(&l, c);
			if (cols - i < LANES) {
				count_rest(&l, row + i, (size_t)(cols - i), c);
				continue;
			}
			memcpy(&v, row + i, sizeof v);
			count_lanes(&l, v);
		}
	}
	drain(&l, c);
	uint8_t most = 0;
	for (unsigned i = 0; i < LANES; i++)
		most = l.most[i] > most ? l.most[i] : most;
	return most;
}

/* ---- blocks ---- */

struct walk {
	const struct ws_packed *p;
	struct ws_fp8_grid grid;
	uint8_t *best; /* largest code of each block of the band */
	struct counts c;
	struct ws_scale_values *values;
};

static void count_band(struct walk *w, const uint8_t *codes, int64_t rows)
{
	const int64_t cols = w->p->cols, bk = w->p->bk;
	for (int64_t b = 0; b < w->grid.across; b++) {
		const int64_t width = cols - b * bk < bk ? cols - b * bk : bk;
		const uint8_t most = count_piece(codes + b * bk, cols, rows, width, &w->c);
		w->best[b] = most > w->best[b] ? most : w->best[b];
	}
	w->c.codes += (uint64_t)(rows * cols);
}

static void end_band(struct walk *w, const float *scales)
{
	for (int64_t b = 0; b < w->grid.across; b++) {
		const uint8_t most = w->best[b] < LARGEST_CODE ? w->best[b] : LARGEST_CODE;
		ws_scale_values_add(w->values, scales[b], 1, ws_fp8_to_float(most));
		w->c.blocks += most > 0;
		w->c.slack += most > 0 && most < QUARTER;
	}
	memset(w->best, 0, (size_t)w->grid.across);
}

/* Counts rows [in, in + n) of one matrix. scales: those of the bands that the rows touch. */
static void take_rows(struct walk *w, int64_t in, int64_t n, const uint8_t *codes,
                      const float *scales)
{
	const int64_t bn = w->p->bn, first = in / bn;
	while (n > 0) {
		const int64_t left = bn - in % bn, to_end = w->grid.rows - in;
		int64_t m = n < left ? n : left;
		count_band(w, codes, m);
		if (m == left || m == to_end)
			end_band(w, scales + (in / bn - first) * w->grid.across);
		codes += m * w->p->cols;
		in += m;
		n -= m;
	}
}

static int walk_rows(struct ws_scales *s, struct walk *w, struct ws_scales_buffers *b, bool first,
                     struct ws_err *err)
{
	const struct ws_packed *p = w->p;
	const int64_t most = p->cols < CHUNK ? CHUNK / p->cols : 1;
	for (int64_t row = 0, n; row < p->rows; row += n) {
		const int64_t in = row % w->grid.rows, left = w->grid.rows - in;
		n = most < left ? most : left;
		const int64_t band = in / p->bn, bands = (in + n - 1) / p->bn - band + 1;
		const uint64_t bytes = (uint64_t)(n * p->cols);
		uint8_t *codes = ws_unpack_scratch(&b->codes, bytes, err);
		float *scales =
			ws_unpack_scratch(&b->scales,
		                          (uint64_t)(bands * w->grid.across) * sizeof *scales, err);
		if (!codes || !scales ||
		    ws_fp8_grid_scales(p, &w->grid, row / w->grid.rows, band, bands, scales, err) ||
		    ws_item_read(p->weight, (uint64_t)row * (uint64_t)p->cols, codes, bytes, err) ||
		    ws_scales_step(s, bytes, first, err))
			return -1;
		take_rows(w, in, n, codes, scales);
	}
	return 0;
}

/* ---- findings ---- */

static double percent(uint64_t n, uint64_t of)
{
	return of ? 100.0 * (double)n / (double)of : 0;
}

/* One code of each block is at the end of the range; a few more may be. Far more were clamped. */
static bool is_clamped(const struct walk *w)
{
	const uint64_t usual = 4 * w->c.blocks + w->c.codes / 100;
	return w->c.largest > usual && w->c.largest > 16;
}

bool ws_scales_zero_codes(struct ws_scales_notes *notes, const struct ws_scales_task *t,
                          uint64_t zero, uint64_t codes)
{
	const char *name = t->item->name;
	if (codes && zero == codes)
		ws_scales_say(notes, t->order, WS_SCALES_CODES, WS_WARN, name,
		              "all codes are zero");
	else if (codes >= 64 && zero > codes / 2)
		ws_scales_say(notes, t->order, WS_SCALES_CODES, WS_WARN, name,
		              "%.0f %% of the codes are zero: were the weights that small, or are "
		              "the scales too large?",
		              percent(zero, codes));
	else
		return false;
	return true;
}

static void judge_codes(const struct walk *w, const struct ws_scales_task *t,
                        struct ws_scales_notes *notes)
{
	const struct counts *c = &w->c;
	const char *name = t->item->name;
	const size_t order = t->order;
	if (c->nan)
		ws_scales_say(notes, order, WS_SCALES_CODES, WS_ERROR, name,
		              "%" PRIu64 " of %" PRIu64 " codes %s NaN",
		              c->nan, c->codes, c->nan == 1 ? "is" : "are");
	if (!ws_scales_zero_codes(notes, t, c->zero, c->codes) && c->blocks > 1 &&
	    c->slack > c->blocks / 2)
		ws_scales_say(notes, order, WS_SCALES_CODES, WS_WARN, name,
		              "%.0f %% of the blocks use less than a quarter "
		              "of the range up to 448: the scales are larger than necessary",
		              percent(c->slack, c->blocks));
	if (is_clamped(w))
		ws_scales_say(notes, order, WS_SCALES_CODES, WS_WARN, name,
		              "%.1f %% of the codes are 448, the "
		              "largest: weights were clamped, the scales are too small",
		              percent(c->largest, c->codes));
}

static int walk_fp8(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *b,
                    bool first, struct ws_scale_values *values, struct ws_err *err)
{
	const struct ws_packed *p = &t->packed;
	struct walk w = { .p = p, .grid = ws_fp8_grid_of(p), .values = values };
	if (p->rows == 0 || p->cols == 0)
		return 0;
	w.best = ws_unpack_scratch(&b->best, (uint64_t)w.grid.across, err);
	if (!w.best)
		return -1;
	memset(w.best, 0, (size_t)w.grid.across);
	if (walk_rows(s, &w, b, first, err))
		return -1;
	judge_codes(&w, t, &s->notes);
	t->powers = w.c.blocks && values->powers == values->n;
	t->others = w.c.blocks && values->powers < values->n;
	return 0;
}

int ws_scales_codes(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *b,
                    bool first, struct ws_scale_values *values, struct ws_err *err)
{
	int rc = 0;
	if (t->packed.packing == WS_PACK_FP8)
		rc = walk_fp8(s, t, b, first, values, err);
	else if (t->packed.packing != WS_PACK_NONE)
		rc = ws_scales_nibbles(s, t, b, first, values, err);
	if (rc)
		return -1;
	if (t->packed.packing != WS_PACK_NONE)
		ws_scale_values_judge(values, t->item->name, t->order, &s->notes);
	__atomic_fetch_add(&s->n_scales, values->n, __ATOMIC_RELAXED);
	return 0;
}
