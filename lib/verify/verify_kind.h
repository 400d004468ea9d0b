/* SPDX-License-Identifier: Apache-2.0 */
/* verify_kind.h - kinds of tensors and parameters: all layers and all experts are one kind. */
#ifndef WS_VERIFY_KIND_H
#define WS_VERIFY_KIND_H

enum { WS_KIND_MAX = 1024 };

/* "model.layers.*.mlp.experts.w13_weight": the name with each part that is a number replaced by
 * '*'. Returns kind. */
const char *verify_kind(const char *name, char kind[WS_KIND_MAX]);

#endif
