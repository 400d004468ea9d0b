/* SPDX-License-Identifier: Apache-2.0 */
/* tilemem.h - reuses the memory of tiles.
 *
 * The first touch of a page costs as much as filling it, and twice that on a virtual machine. So
 * the memory of a tile that was read is kept for later tiles of the same size. Large tiles use huge
 * pages if the system offers them (madvise).
 *
 * Not thread-safe: callers hold the owner's lock, unless a comment says otherwise. */
#ifndef WS_TRANSFORM_TILEMEM_H
#define WS_TRANSFORM_TILEMEM_H

#include <stddef.h>
#include <stdint.h>

enum { WS_TILEMEM_SPARES = 16, WS_TILEMEM_HUGE = 2 << 20 };

struct ws_tilemem {
	struct {
		void *bytes;
		uint32_t room;
	} spares[WS_TILEMEM_SPARES];
	size_t n;
	uint64_t spared; /* bytes of all spares */
};

/* Bytes of memory for a tile of n bytes: n, or whole huge pages if little of them is wasted. */
uint32_t ws_tilemem_room(uint64_t n);

/* Returns spare memory of exactly this size; NULL: none. */
void *ws_tilemem_find(struct ws_tilemem *m, uint32_t room);

/* Allocates memory, for free(3); NULL: out of memory. Needs no lock. */
void *ws_tilemem_new(uint32_t room);

/* Keeps the memory for another tile, or frees it if it is small or there are enough spares. */
void ws_tilemem_put(struct ws_tilemem *m, void *bytes, uint32_t room);

/* Frees spares until at most this many bytes of them are left. */
void ws_tilemem_trim(struct ws_tilemem *m, uint64_t most);

#endif
