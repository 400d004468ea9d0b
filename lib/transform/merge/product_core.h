/* SPDX-License-Identifier: Apache-2.0 */
/* product_core.h - what making a product (product.c) and finding its scales
 * (product_scales.c) share. */
#ifndef WS_TRANSFORM_PRODUCT_CORE_H
#define WS_TRANSFORM_PRODUCT_CORE_H

#include "product.h"

struct ws_rect {
	int64_t row, n, col, m;
};

/* As the kernels take them: bf16, or fp32. */
struct ws_numbers {
	const uint16_t *bf16;
	const float *f32;
};

static inline int64_t ws_least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline struct ws_product *ws_product_of(const struct ws_tiled *t)
{
	return ((const struct ws_product_part *)t)->product;
}

/* ---- numbers on the scratch ---------------------------------------------------------------------
 */

/* How many find room, beside `extra` bytes. */
int64_t ws_product_numbers_at_once(const struct ws_product *p, const struct ws_scratch *scratch,
                                   size_t extra);
/* The first piece of a rectangle within one band, of at most `most` numbers: whole rows of it
 * where that is so, else whole blocks beside each other, else a part of one block. The kernels
 * count blocks from a piece's first column, so one that begins within a block ends with it. */
struct ws_rect ws_product_first_piece(const struct ws_product *p, const struct ws_rect *r,
                                      int64_t most);
int ws_product_load(struct ws_product *p, const struct ws_rect *r, struct ws_scratch *scratch,
                    struct ws_numbers *out, struct ws_err *err);
int ws_product_scales_of(struct ws_product *p, const struct ws_rect *r, const struct ws_numbers *x,
                         float *out, struct ws_err *err);

/* ---- scales: of band b, blocks [j, j+k) ------------------------------------------------------ */

uint64_t ws_product_scale_bytes(const struct ws_product *p);
/* Whoever uses what is kept enters before and leaves behind; read: the scales themselves were. */
void ws_product_enter(struct ws_product *p);
void ws_product_leave(struct ws_product *p, bool read);
/* Where all of them are known. Threads that make the same scale make the same one, so it does
 * not matter who writes it. */
bool ws_product_recall(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *out);
void ws_product_remember(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *scales);
/* Known, or by a look at the numbers, which takes the scratch. */
int ws_product_find_scales(struct ws_product *p, int64_t b, int64_t j, int64_t k, float *out,
                           struct ws_scratch *scratch, struct ws_err *err);

/* ---- looking ahead: the unit is a band ------------------------------------------------------- */

int ws_product_check(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                     struct ws_scratch *scratch, struct ws_err *err);
int ws_product_check_sums(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                          struct ws_scratch *scratch, struct ws_err *err);

#endif
