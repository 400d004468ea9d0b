/* SPDX-License-Identifier: Apache-2.0 */
/* namemap.h - how the tensors of a checkpoint become the parameters of a server, as data.
 *
 * One family is one block of rules in the text form of wsync-map(5); those of lib/names/families
 * are compiled in, and --map FILE adds or replaces families in the same form. Nothing here
 * depends on a particular model: the numbers come from its config.json (layout.h).
 *
 * Rules match whole segments of names, never parts of them. */
#ifndef WSYNC_NAMEMAP_H
#define WSYNC_NAMEMAP_H

#include "wsync/tool/config.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_namemap; /* a set of families; opaque, read-only, may be shared by threads */
struct ws_family;  /* one of them, owned by the set */

/* The built-in families, with those of a file in front when file is not NULL. Malformed text is
 * WS_EINPUT "FILE:LINE: ...". */
int ws_namemap_open(const char *file, struct ws_namemap **out, struct ws_err *err);
void ws_namemap_close(struct ws_namemap *m); /* NULL is fine */

/* Finds by architecture (of text_config, then of the top), then by model_type. NULL: unknown; the
 * generic rules then apply (ws_namemap_generic). */
const struct ws_family *ws_namemap_find(const struct ws_namemap *m, const struct ws_config *c);
/* The same for a server that reports only these two values of its config.json; each may be "". */
const struct ws_family *ws_namemap_claimed(const struct ws_namemap *m, const char *architecture,
                                           const char *model_type);
/* Are there rules for this architecture itself? Those of its model_type are, if they name no
 * architecture, or if it is "". */
bool ws_namemap_covers(const struct ws_namemap *m, const char *architecture,
                       const char *model_type);
const struct ws_family *ws_namemap_named(const struct ws_namemap *m, const char *family);
const struct ws_family *ws_namemap_generic(const struct ws_namemap *m);
const struct ws_family *ws_namemap_at(const struct ws_namemap *m, size_t i); /* NULL past the end */
const char *ws_family_name(const struct ws_family *f);
/* Does the family define the servers' parameters? Some define only the trainers' names. */
bool ws_family_has_params(const struct ws_family *f);

#ifdef __cplusplus
}
#endif
#endif
