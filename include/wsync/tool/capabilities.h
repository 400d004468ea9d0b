/* SPDX-License-Identifier: Apache-2.0 */
/* capabilities.h - the fields of struct ws_capabilities by name, to print or merge them. */
#ifndef WSYNC_CAPABILITIES_H
#define WSYNC_CAPABILITIES_H

#include "wsync/lineage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order of the struct. */
size_t ws_capability_count(void);
const char *ws_capability_name(size_t i);
/* The heading it stands under: "weights", "update", "life", "answers", "beware". */
const char *ws_capability_kind(size_t i);
bool ws_capability_get(const struct ws_capabilities *can, size_t i);
void ws_capability_set(struct ws_capabilities *can, size_t i, bool value);

#ifdef __cplusplus
}
#endif
#endif
