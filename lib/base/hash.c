/* SPDX-License-Identifier: Apache-2.0 */
#include "hash.h"

/* Inlined, so that the hash runs at the speed of the compiler flags given here. */
#define XXH_INLINE_ALL
#include <xxhash.h>

struct ws_hash {
	XXH3_state_t *state;
};

uint64_t ws_hash64(const void *bytes, size_t n)
{
	return XXH3_64bits(bytes, n);
}

struct ws_hash *ws_hash_new(void)
{
	struct ws_hash *h = malloc(sizeof *h);
	if (!h)
		return NULL;
	h->state = XXH3_createState();
	if (!h->state) {
		free(h);
		return NULL;
	}
	XXH3_64bits_reset(h->state);
	return h;
}

void ws_hash_free(struct ws_hash *h)
{
	if (!h)
		return;
	XXH3_freeState(h->state);
	free(h);
}

void ws_hash_reset(struct ws_hash *h)
{
	XXH3_64bits_reset(h->state);
}

void ws_hash_add(struct ws_hash *h, const void *bytes, size_t n)
{
	XXH3_64bits_update(h->state, bytes, n);
}

uint64_t ws_hash_digest(const struct ws_hash *h)
{
	return XXH3_64bits_digest(h->state);
}
