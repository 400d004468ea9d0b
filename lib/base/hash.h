/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h - XXH3-64 (seed 0) of bytes: the digest of tensors and plans. Not cryptographic. */
#ifndef WS_BASE_HASH_H
#define WS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t ws_hash64(const void *bytes, size_t n);

struct ws_hash; /* streaming state */
struct ws_hash *ws_hash_new(void); /* NULL: out of memory */
void ws_hash_free(struct ws_hash *h); /* NULL is fine */
void ws_hash_reset(struct ws_hash *h);
void ws_hash_add(struct ws_hash *h, const void *bytes, size_t n);
uint64_t ws_hash_digest(const struct ws_hash *h);

#endif
