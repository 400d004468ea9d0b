/* SPDX-License-Identifier: Apache-2.0 */
/* feed_boxes.h - parts of a span that boxes of a GPU's memory make up, put together there. */
#ifndef WS_STAGING_FEED_BOXES_H
#define WS_STAGING_FEED_BOXES_H

#include "compute.h"
#include "payload.h"

/* Those elements of a box that lie in bytes [from, from+n) of its span, which begin and end with
 * one: as boxes that are calls of fn, until one returns non-zero; returns that. */
typedef int ws_boxes_fn(void *ctx, const struct ws_strided *part, struct ws_err *err);
int ws_strided_cut(const struct ws_strided *b, uint64_t from, uint64_t n, ws_boxes_fn *fn,
                   void *ctx, struct ws_err *err);

/* Has the stream put bytes [from, from+n) of a span with boxes at `to`. *here false: they are
 * not on this GPU, or not where its kernels take numbers from and to; nothing was asked of it. */
int ws_boxes_gather(struct ws_compute *c, const struct ws_cuda_device *gpu,
                    const struct ws_span *span, uint64_t from, uint64_t n, ws_devptr to,
                    struct ws_stream *s, bool *here, struct ws_err *err);

#endif
