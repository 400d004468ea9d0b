/* SPDX-License-Identifier: Apache-2.0 */
/* skip_index.h - finds modules in a long list of unquantized ones without trying every entry. */
#ifndef WSYNC_SKIP_INDEX_H
#define WSYNC_SKIP_INDEX_H

#include "wsync/tool/config.h"

/* Borrows the entries. NULL: out of memory. */
struct ws_skip_index *ws_skip_index_make(const char *const *skip, size_t n);
void ws_skip_index_free(struct ws_skip_index *index); /* NULL is fine */
size_t ws_skip_index_globs(const struct ws_skip_index *index); /* entries with stars */

#endif
