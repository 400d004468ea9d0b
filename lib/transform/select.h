/* SPDX-License-Identifier: Apache-2.0 */
/* select.h - which tensors become FP8. */
#ifndef WS_TRANSFORM_SELECT_H
#define WS_TRANSFORM_SELECT_H

#include "wsync/transform.h"

/* By its name, and the rank of its numbers. */
bool ws_select_fp8(const struct ws_transform_opts *opts, const char *name, unsigned n_dims);

#endif
