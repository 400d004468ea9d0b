/* SPDX-License-Identifier: Apache-2.0 */
/* transform_make.h - a transform makes a new catalog from a catalog. The new items are computed
 * when they are read. The transform owns the new catalog, its adapters and its threads. */
#ifndef WS_TRANSFORM_MAKE_H
#define WS_TRANSFORM_MAKE_H

#include "wsync/cancel.h"
#include "wsync/tool/input.h"

struct ws_plan;

/* in is borrowed and must outlive the transform. Reads headers and small tables, but no weights.
 * WS_EINPUT, with the tensor's name: an adapter binds to nothing, shapes do not fit, or the base
 * has an unknown quantization. */
int ws_transform_make(const struct ws_catalog *in, const struct ws_transform_opts *opts,
                      struct ws_transform **out, struct ws_err *err);
void ws_transform_free(struct ws_transform *t); /* NULL is fine */
const struct ws_catalog *ws_transform_catalog(const struct ws_transform *t);
/* Reads all inputs of the tensors of a plan (NULL: of all tensors) once, before anything is sent.
 * WS_EINPUT, with tensor, row and column: a NaN or an infinity in a base or an adapter, also with
 * its file; or a sum beyond the range of its type. Sums are computed only where they may be too
 * large. Keeps the scales that it computes. Values are checked again when they are used. */
int ws_transform_check(const struct ws_transform *t, const struct ws_plan *plan,
                       const struct ws_cancel *cancel, struct ws_err *err);

#endif
