/* SPDX-License-Identifier: Apache-2.0 */
/* fused_weight_core.h - shared by fused_weight.c (tiles) and fused_weight_scales.c (scales,
 * checks). */
#ifndef WS_TRANSFORM_FUSED_WEIGHT_CORE_H
#define WS_TRANSFORM_FUSED_WEIGHT_CORE_H

#include "fused_weight.h"

static inline int64_t ws_least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline struct ws_fused_weight *ws_fused_of(const struct ws_tiled *t)
{
	return ((const struct ws_fused_part *)t)->fused;
}

/* ---- numbers in the scratch ------------------------------------------------------------------ */

/* How many numbers fit beside `extra` bytes. */
int64_t ws_fused_numbers_at_once(const struct ws_fused_weight *p, const struct ws_scratch *scratch,
                                 size_t extra);
/* The first piece of a rectangle within one band, of at most `most` numbers; compute_scales lists
 * its shapes. The kernels count blocks from a piece's first column, so a piece that begins within a
 * block ends with it. */
struct ws_rect ws_fused_first_piece(const struct ws_fused_weight *p, const struct ws_rect *r,
                                    int64_t most);
int ws_fused_load(struct ws_fused_weight *p, const struct ws_rect *r, struct ws_scratch *scratch,
                  struct ws_fp8_band *out, struct ws_err *err);
int ws_fused_scales_of(struct ws_fused_weight *p, const struct ws_rect *r,
                       const struct ws_fp8_band *x, float *out, struct ws_err *err);

/* ---- scales: of band b, blocks [j, j+k) ------------------------------------------------------ */

uint64_t ws_fused_scale_bytes(const struct ws_fused_weight *p);
/* Users of kept scales enter before and leave after. read: the scales themselves were read. */
void ws_fused_enter(struct ws_fused_weight *p);
void ws_fused_leave(struct ws_fused_weight *p, bool read);
/* False: at least one scale is not known. All threads compute the same value of a scale, so it does
 * not matter which thread writes it. */
bool ws_fused_recall(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k, float *out);
void ws_fused_remember(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k, float *scales);
/* Recalls the scales, or computes them in the scratch. */
int ws_fused_find_scales(struct ws_fused_weight *p, int64_t b, int64_t j, int64_t k, float *out,
                         struct ws_scratch *scratch, struct ws_err *err);

/* ---- checking ahead: the unit is a band ------------------------------------------------------ */

int ws_fused_check(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                   struct ws_scratch *scratch, struct ws_err *err);
int ws_fused_check_sums(const struct ws_tiled *t, uint64_t at, void *dst, size_t n,
                        struct ws_scratch *scratch, struct ws_err *err);

#endif
