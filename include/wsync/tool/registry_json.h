/* SPDX-License-Identifier: Apache-2.0 */
/* registry_json.h - entries of the registry as JSON. */
#ifndef WSYNC_REGISTRY_JSON_H
#define WSYNC_REGISTRY_JSON_H

#include "wsync/registry.h"
#include "wsync/tool/json.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The entry's own keys as members of the object that is open, in the file's order. */
void ws_registry_put(struct ws_jw *w, const struct ws_registry_entry *e);

#ifdef __cplusplus
}
#endif
#endif
