/* SPDX-License-Identifier: Apache-2.0 */
#include "tilemem.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { LEAST_SPARE = 64 << 10 };

uint32_t ws_tilemem_room(uint64_t n)
{
	const uint64_t whole = (n + WS_TILEMEM_HUGE - 1) / WS_TILEMEM_HUGE * WS_TILEMEM_HUGE;
	return (uint32_t)(whole - n <= whole / 4 ? whole : n);
}

static void *take(struct ws_tilemem *m, size_t i)
{
	void *bytes = m->spares[i].bytes;
	m->spared -= m->spares[i].room;
	m->spares[i] = m->spares[--m->n];
	return bytes;
}

void *ws_tilemem_find(struct ws_tilemem *m, uint32_t room)
{
	for (size_t i = m->n; i-- > 0;) /* the latest is most likely cached */
		if (m->spares[i].room == room)
			return take(m, i);
	return NULL;
}

void *ws_tilemem_new(uint32_t room)
{
	if (room % WS_TILEMEM_HUGE)
		return malloc(room);
	void *bytes = aligned_alloc(WS_TILEMEM_HUGE, room);
	if (bytes)
		madvise(bytes, room,
		        MADV_HUGEPAGE); /* may fail without harm: then there are no huge pages */
	return bytes;
}

void ws_tilemem_put(struct ws_tilemem *m, void *bytes, uint32_t room)
{
	if (m->n == WS_TILEMEM_SPARES || room < LEAST_SPARE) {
		free(bytes);
		return;
	}
	m->spares[m->n].bytes = bytes;
	m->spares[m->n++].room = room;
	m->spared += room;
}

void ws_tilemem_trim(struct ws_tilemem *m, uint64_t most)
{
	while (m->n && m->spared > most)
		free(take(m, 0));
}
