/* SPDX-License-Identifier: Apache-2.0 */
/* transform_make.h - a transform takes a catalog and gives another one, whose items are made when
 * they are read. It owns that catalog, its adapters and its threads. */
#ifndef WS_TRANSFORM_MAKE_H
#define WS_TRANSFORM_MAKE_H

#include "wsync/cancel.h"
#include "wsync/tool/input.h"

struct ws_plan;

/* in is borrowed and must outlive. Headers are read, tensors are not. An adapter that
 * binds to nothing, shapes that do not fit, an unknown kind of quantized base:
 * WS_EINPUT with the tensor's name. */
int ws_transform_make(const struct ws_catalog *in, const struct ws_transform_opts *opts,
                      struct ws_transform **out, struct ws_err *err);
void ws_transform_free(struct ws_transform *t); /* NULL is fine */
const struct ws_catalog *ws_transform_catalog(const struct ws_transform *t);
/* Reads once whatever the tensors of a plan (NULL: all) will be computed from: a NaN or an
 * infinity in a base or an adapter is WS_EINPUT with tensor, row, column and file, and so is
 * a sum beyond the range of its type, which is looked for where one could be. What this finds
 * of scales is kept. Values are checked again when they are used; this is for finding out
 * before anything was begun. */
int ws_transform_check(const struct ws_transform *t, const struct ws_plan *plan,
                       const struct ws_cancel *cancel, struct ws_err *err);

#endif
