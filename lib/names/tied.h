/* SPDX-License-Identifier: Apache-2.0 */
/* tied.h - the names of a head and of the embedding that it may share its weight with. Whether it
 * does: ws_config_tied. */
#ifndef WS_NAMES_TIED_H
#define WS_NAMES_TIED_H

#include <stddef.h>

/* The i-th possible name of the embedding beside a head of this name. NULL: no more, or not a
 * head. */
const char *ws_embedding_of(const char *head, unsigned i, char *dst, size_t size);
/* The head's name beside an embedding of this name. NULL: not an embedding. */
const char *ws_head_of(const char *embedding, char *dst, size_t size);

#endif
