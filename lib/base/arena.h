/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h - memory that is freed all at once, and lists in it.
 *
 * For structures that are built once and read until the end. NULL: out of memory. */
#ifndef WS_BASE_ARENA_H
#define WS_BASE_ARENA_H

#include <stddef.h>

struct ws_arena { struct ws_arena_block *newest; }; /* all zeros: empty */

void *ws_arena_alloc(struct ws_arena *a, size_t n); /* zeroed, aligned for anything */
char *ws_arena_text(struct ws_arena *a, const char *text, size_t n); /* a copy with a NUL behind */
void ws_arena_free(struct ws_arena *a);

/* A growing array. Its old copies stay in the arena, so that pointers into them remain readable. */
struct ws_list {
	void *items;
	size_t n, cap;
};
/* the new, zeroed, last item */
void *ws_list_add(struct ws_arena *a, struct ws_list *l, size_t size);

#endif
