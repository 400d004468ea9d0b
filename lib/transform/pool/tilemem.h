/* SPDX-License-Identifier: Apache-2.0 */
/* tilemem.h - memory for tiles, used again and again.
 *
 * A page that a process touches for the first time costs as much as filling it, twice that
 * on a virtual machine; so tiles that were read leave their memory for the next ones, in
 * sizes that fit each other, and large ones lie in huge pages where the system has them
 * for whoever asks (madvise).
 *
 * Not thread-safe: the owner's lock is held, except where it says otherwise. */
#ifndef WSYNC_TRANSFORM_TILEMEM_H
#define WSYNC_TRANSFORM_TILEMEM_H

#include <stddef.h>
#include <stdint.h>

enum { WS_TILEMEM_SPARES = 16, WS_TILEMEM_HUGE = 2 << 20 };

struct ws_tilemem {
	struct {
		void *bytes;
		uint32_t room;
	} spares[WS_TILEMEM_SPARES];
	size_t n;
	uint64_t spared; /* bytes of them */
};

/* The memory that a tile of n bytes takes: n, or whole huge pages where little of them is
 * wasted. */
uint32_t ws_tilemem_room(uint64_t n);

/* A spare of that room; NULL: none. */
void *ws_tilemem_find(struct ws_tilemem *m, uint32_t room);

/* Fresh memory, for free(3); NULL: the system has none. Needs no lock. */
void *ws_tilemem_new(uint32_t room);

/* Keeps it for another tile, or frees it when it is small or there are enough. */
void ws_tilemem_put(struct ws_tilemem *m, void *bytes, uint32_t room);

/* Frees spares until at most this many bytes of them are left. */
void ws_tilemem_trim(struct ws_tilemem *m, uint64_t most);

#endif
