/* SPDX-License-Identifier: Apache-2.0 */
/* scales_nibbles.c - 4-bit codes and their scales, read once.
 *
 *   nf4    one scale (absmax) for each `blocksize` codes of the tensor as one vector. A quantized
 *          block has a code at an end of the range, because absmax is its largest number.
 *   nvfp4  a scale for each 16 codes of a row, times one for the whole matrix
 *
 * Note: an absmax that was quantized itself may be slightly negative. */
#include "scales_core.h"

#include <inttypes.h>
#include <math.h>

enum { BLOCKS = 1 << 14 /* read at once */ };

struct walk {
	const struct ws_packed *p;
	struct ws_scale_values *values;
	float sizes[16];                /* magnitudes of the codes */
	float largest[256];             /* the larger of the two in a byte */
	uint8_t zeros[256];
	float end;                      /* below this a block leaves much of its range unused */
	bool high_first, twice;         /* absmax is quantized, too */
	int64_t block, line, lines;     /* codes under one scale; in a line of blocks; lines */
	uint64_t codes, zero;
	/* with codes; of these: below the end; scales that are powers of two */
	uint64_t blocks, slack, powers;
};

static const float e2m1_sizes[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

static void fill_tables(struct walk *w)
{
	for (unsigned i = 0; i < 256; i++) {
		const float a = w->sizes[i >> 4], b = w->sizes[i & 15];
		w->largest[i] = a > b ? a : b;
		w->zeros[i] = (uint8_t)((a == 0) + (b == 0));
	}
}

/* Counts n codes; returns their largest magnitude. Skips a nibble left over in the last byte. */
static float count_block(struct walk *w, const uint8_t *codes, int64_t n)
{
	float most = 0;
	uint64_t zero = 0;
	for (int64_t i = 0; i < n / 2; i++) {
		const float size = w->largest[codes[i]];
		most = size > most ? size : most;
		zero += w->zeros[codes[i]];
	}
	if (n % 2) {
		const float size = w->sizes[w->high_first ? codes[n / 2] >> 4 : codes[n / 2] & 15];
		most = size > most ? size : most;
		zero += size == 0;
	}
	w->codes += (uint64_t)n;
	w->zero += zero;
	w->blocks += most > 0;
	w->slack += most > 0 && most < w->end;
	return most;
}

static void add_scale(struct walk *w, float scale, float second, float most)
{
	w->powers += ws_scale_is_power(scale);
	if (w->twice && scale < 0 && scale > -0.1f)
		w->values->n++; /* a quantized absmax: not an error */
	else
		ws_scale_values_add(w->values, scale, second, most);
}

static int read_scales(const struct walk *w, int64_t first, size_t n, float *out,
                       struct ws_err *err)
{
	if (w->p->packing == WS_PACK_NF4)
		return ws_nf4_scales(w->p, first, n, out, err);
	return ws_unpack_floats(w->p->parts[0], (uint64_t)first, n, out, err);
}

/* The second scale: of the tensor, or of the matrix in a stack; 1 if there is none. */
static int read_second(const struct walk *w, int64_t line, float *out, struct ws_err *err)
{
	const struct ws_item *second = w->p->packing == WS_PACK_NVFP4 ? w->p->parts[1] : NULL;
	const int64_t n = second ? (int64_t)ws_unpack_count(second) : 0;
	*out = 1;
	return second ? ws_unpack_floats(second, (uint64_t)(line / (w->lines / n)), 1, out, err) :
	                0;
}

/* Counts blocks [b, b + n) of one line. */
static int walk_blocks(struct ws_scales *s, struct walk *w, struct ws_scales_buffers *bufs,
                       int64_t line, int64_t b, int64_t n, bool first, struct ws_err *err)
{
	const int64_t each = (w->line - 1) / w->block + 1, at = b * w->block;
	const int64_t end = (b + n) * w->block < w->line ? (b + n) * w->block : w->line;
	const uint64_t bytes = (uint64_t)(end - at + 1) / 2,
		       front = (uint64_t)(line * (w->line / 2) + at / 2);
	uint8_t *codes = ws_unpack_scratch(&bufs->codes, bytes, err);
	float *scales = ws_unpack_scratch(&bufs->scales, (uint64_t)n * sizeof *scales, err), second;
	if (!codes || !scales || read_scales(w, line * each + b, (size_t)n, scales, err) ||
	    read_second(w, line, &second, err) ||
	    ws_item_read(w->p->weight, front, codes, bytes, err) ||
	    ws_scales_step(s, bytes, first, err))
		return -1;
	for (int64_t i = 0; i < n; i++) {
		const int64_t from = i * w->block, left = end - at - from;
		const float most =
			count_block(w, codes + from / 2, left < w->block ? left : w->block);
		add_scale(w, scales[i], second, most);
	}
	return 0;
}

static int walk_lines(struct ws_scales *s, struct walk *w, struct ws_scales_buffers *bufs,
                      bool first, struct ws_err *err)
{
	const int64_t each = (w->line - 1) / w->block + 1;
	for (int64_t line = 0; line < w->lines; line++)
		for (int64_t b = 0; b < each; b += BLOCKS)
			if (walk_blocks(s, w, bufs, line, b, each - b < BLOCKS ? each - b : BLOCKS,
			                first, err))
				return -1;
	return 0;
}

static void judge_codes(const struct walk *w, const struct ws_scales_task *t,
                        struct ws_scales_notes *notes)
{
	ws_scales_zero_codes(notes, t, w->zero, w->codes);
	if (w->blocks > 1 && w->slack > w->blocks / 2)
		ws_scales_say(notes, t->order, WS_SCALES_CODES, WS_WARN,
		              t->item->name,
		              "%.0f %% of the blocks leave the end "
		              "of the range unused: the scales are larger than necessary",
		              100.0 * (double)w->slack / (double)w->blocks);
}

static void begin_nf4(struct walk *w)
{
	const struct ws_nf4 *nf4 = w->p->priv;
	for (int i = 0; i < 16; i++)
		w->sizes[i] = fabsf(nf4->levels[i]);
	w->end = 1;
	w->high_first = true;
	w->twice = nf4->nested_blocksize > 0;
	w->line = w->p->rows * w->p->cols;
	w->lines = 1;
}

static void begin_nvfp4(struct walk *w)
{
	for (int i = 0; i < 16; i++)
		w->sizes[i] = e2m1_sizes[i & 7];
	w->end = 4;
	w->line = w->p->cols;
	w->lines = w->p->rows;
}

int ws_scales_nibbles(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *bufs,
                      bool first, struct ws_scale_values *values, struct ws_err *err)
{
	struct walk w = { .p = &t->packed, .values = values, .block = t->packed.bk };
	if (w.p->rows == 0 || w.p->cols == 0)
		return 0;
	if (w.p->packing == WS_PACK_NF4)
		begin_nf4(&w);
	else
		begin_nvfp4(&w);
	fill_tables(&w);
	if (walk_lines(s, &w, bufs, first, err))
		return -1;
	judge_codes(&w, t, &s->notes);
	if (w.p->packing == WS_PACK_NVFP4 && w.blocks) {
		t->powers = w.powers == values->n;
		t->others = !t->powers;
	}
	return 0;
}
