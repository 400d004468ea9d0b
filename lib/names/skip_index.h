/* SPDX-License-Identifier: Apache-2.0 */
/* skip_index.h - finds modules in a long list of unquantized ones without trying every entry. */
#ifndef WSYNC_SKIP_INDEX_H
#define WSYNC_SKIP_INDEX_H

#include "wsync/tool/config.h"

/* Borrows the entries. NULL: out of memory. */
struct ws_skip_index *ws_skip_index_make(const char *const *skip, size_t n);
void ws_skip_index_free(struct ws_skip_index *index); /* NULL is fine */
size_t ws_skip_index_globs(const struct ws_skip_index *index); /* entries with stars */
/* How many comparisons with entries all look-ups took until now. */
uint64_t ws_skip_index_work(const struct ws_skip_index *index);
/* ws_quant_gave_up is true after more comparisons than these; 2^30 without a call. */
void ws_skip_index_limit(struct ws_skip_index *index, uint64_t most);

#endif
