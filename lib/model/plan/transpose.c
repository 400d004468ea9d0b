/* SPDX-License-Identifier: Apache-2.0 */
/* transpose.c - copies strided boxes in memory, two axes at a time.
 *
 * If one axis is dense in the source and another in the destination, squares are transposed in
 * registers. A square is n rows of n elements, 16 bytes each. log2(n) times, each row is
 * interleaved with the row half a square below; the rows are then the columns. */
#include "strided_read.h"

#include <string.h>

/* ---- squares in registers -------------------------------------------------------------------- */

typedef uint8_t lanes8 __attribute__((vector_size(16)));
typedef uint16_t lanes16 __attribute__((vector_size(16)));
typedef uint32_t lanes32 __attribute__((vector_size(16)));
typedef uint64_t lanes64 __attribute__((vector_size(16)));

/* gcc has this of clang's from 12 on, and one of its own before. */
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE __builtin_shufflevector
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){ __VA_ARGS__ })
#endif
#define LOW8(a, b)  SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH8(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW16(a, b)  SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH16(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW32(a, b)  SHUFFLE(a, b, 0, 4, 1, 5)
#define HIGH32(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#define LOW64(a, b)  SHUFFLE(a, b, 0, 2)
#define HIGH64(a, b) SHUFFLE(a, b, 1, 3)

#define INTERLEAVE(bits, in, out) \
	_Pragma("GCC unroll 16") \
	for (int i = 0; i < 64 / (bits); i++) { \
		out[2 * i] = LOW##bits(in[i], in[i + 64 / (bits)]); \
		out[2 * i + 1] = HIGH##bits(in[i], in[i + 64 / (bits)]); \
	}

#define SQUARE(bits, rounds) \
	static void square##bits(const uint8_t *src, int64_t from, uint8_t *dst, int64_t to) \
	{ \
		lanes##bits a[128 / (bits)], b[128 / (bits)]; \
		_Pragma("GCC unroll 16") \
		for (int i = 0; i < 128 / (bits); i++) \
			memcpy(&a[i], src + i * from, 16); \
		rounds \
		_Pragma("GCC unroll 16") \
		for (int i = 0; i < 128 / (bits); i++) \
			memcpy(dst + i * to, &a[i], 16); \
	}

#define TWO(bits) INTERLEAVE(bits, a, b) INTERLEAVE(bits, b, a)
#define ONE(bits) INTERLEAVE(bits, a, b) memcpy(a, b, sizeof a);
SQUARE(8, TWO(8) TWO(8))
SQUARE(16, TWO(16) ONE(16))
SQUARE(32, TWO(32))
SQUARE(64, ONE(64))

/* ---- planes: two axes, any strides ----------------------------------------------------------- */

/* The columns axis is the densest axis of dst, the rows axis the densest other axis of src. */
struct plane {
	int64_t rows, cols;
	int64_t row_from, row_to, col_from, col_to;
	unsigned size;
};

#define ELEMENTS(type) \
	for (int64_t r = 0; r < p->rows; r++) { \
		for (int64_t c = 0; c < p->cols; c++) { \
			type element; \
			memcpy(&element, src + r * p->row_from + c * p->col_from, sizeof element); \
			memcpy(dst + r * p->row_to + c * p->col_to, &element, sizeof element); \
		} \
	}

static void copy_elements(const struct plane *p, const uint8_t *src, uint8_t *dst)
{
	switch (p->size) {
	case 1:
		ELEMENTS(uint8_t)
		break;
	case 2:
		ELEMENTS(uint16_t)
		break;
	case 4:
		ELEMENTS(uint32_t)
		break;
	default:
		ELEMENTS(uint64_t)
	}
}

static void copy_rows(const struct plane *p, const uint8_t *src, uint8_t *dst)
{
	for (int64_t r = 0; r < p->rows; r++)
		memcpy(dst + r * p->row_to, src + r * p->row_from, (size_t)p->cols * p->size);
}

static void copy_square(const struct plane *p, const uint8_t *src, uint8_t *dst)
{
	switch (p->size) {
	case 1:
		square8(src, p->col_from, dst, p->row_to);
		break;
	case 2:
		square16(src, p->col_from, dst, p->row_to);
		break;
	case 4:
		square32(src, p->col_from, dst, p->row_to);
		break;
	default:
		square64(src, p->col_from, dst, p->row_to);
	}
}

/* Copies a plane whose rows axis is dense in src and whose columns axis is dense in dst. */
static void transpose(const struct plane *p, const uint8_t *src, uint8_t *dst)
{
	const int64_t side = 16 / p->size;
	const int64_t rows = p->rows / side * side, cols = p->cols / side * side;
	for (int64_t r = 0; r < rows; r += side)
		for (int64_t c = 0; c < cols; c += side)
			copy_square(p, src + r * p->row_from + c * p->col_from,
			            dst + r * p->row_to + c * p->col_to);
	struct plane right = *p, below = *p;
	right.rows = rows;
	right.cols -= cols;
	copy_elements(&right, src + cols * p->col_from, dst + cols * p->col_to);
	below.rows -= rows;
	copy_elements(&below, src + rows * p->row_from, dst + rows * p->row_to);
}

static void copy_plane(const struct plane *p, const uint8_t *src, uint8_t *dst)
{
	const int64_t size = p->size;
	if (p->col_from == size && p->col_to == size)
		copy_rows(p, src, dst);
	else if (p->row_from == size && p->col_to == size)
		transpose(p, src, dst);
	else
		copy_elements(p, src, dst);
}

/* ---- boxes ----------------------------------------------------------------------------------- */

/* Removes and returns the axis with the smallest stride. */
static struct ws_spread_axis take_nearest_axis(struct ws_spread *s, bool in_dst)
{
	unsigned best = 0;
	if (s->n == 0)
		return (struct ws_spread_axis){ 1, s->size, s->size };
	for (unsigned d = 1; d < s->n; d++) {
		const struct ws_spread_axis *a = &s->axes[d], *b = &s->axes[best];
		if (in_dst ? a->to < b->to : a->from < b->from)
			best = d;
	}
	const struct ws_spread_axis axis = s->axes[best];
	s->axes[best] = s->axes[--s->n];
	return axis;
}

static void spread(const struct ws_spread *outer, unsigned d, const struct plane *p,
                   const uint8_t *src, uint8_t *dst)
{
	if (d == outer->n) {
		copy_plane(p, src, dst);
		return;
	}
	for (int64_t i = 0; i < outer->axes[d].n; i++)
		spread(outer, d + 1, p, src + i * outer->axes[d].from, dst + i * outer->axes[d].to);
}

void ws_spread(const struct ws_spread *s, const uint8_t *src, uint8_t *dst)
{
	struct ws_spread outer = { .size = s->size };
	for (unsigned d = 0; d < s->n; d++)
		if (s->axes[d].n > 1)
			outer.axes[outer.n++] = s->axes[d];
	const struct ws_spread_axis col = take_nearest_axis(&outer, true),
				    row = take_nearest_axis(&outer, false);
	const struct plane p = { .rows = row.n,
		                 .cols = col.n,
		                 .row_from = row.from,
		                 .row_to = row.to,
		                 .col_from = col.from,
		                 .col_to = col.to,
		                 .size = s->size };
	spread(&outer, 0, &p, src, dst);
}
