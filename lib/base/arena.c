/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024 };

struct ws_arena_block {
	struct ws_arena_block *older;
	size_t used, size;
	alignas(max_align_t) char bytes[];
};

void *ws_arena_alloc(struct ws_arena *a, size_t n)
{
	struct ws_arena_block *b = a->newest;
	if (n > SIZE_MAX / 2)
		return NULL;
	n = (n + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
	if (!b || b->size - b->used < n) {
		const size_t size = n > BLOCK_BYTES ? n : BLOCK_BYTES;
		b = calloc(1, sizeof *b + size);
		if (!b)
			return NULL;
		*b = (struct ws_arena_block){ .older = a->newest, .size = size };
		a->newest = b;
	}
	void *p = b->bytes + b->used;
	b->used += n;
	return p;
}

char *ws_arena_text(struct ws_arena *a, const char *text, size_t n)
{
	char *copy = ws_arena_alloc(a, n + 1);
	return copy ? memcpy(copy, text, n) : NULL;
}

void ws_arena_free(struct ws_arena *a)
{
	while (a->newest) {
		struct ws_arena_block *older = a->newest->older;
		free(a->newest);
		a->newest = older;
	}
}

void *ws_list_add(struct ws_arena *a, struct ws_list *l, size_t size)
{
	if (l->n == l->cap) {
		const size_t cap = l->cap ? l->cap * 2 : 4;
		void *items = ws_arena_alloc(a, cap * size);
		if (!items)
			return NULL;
		if (l->n)
			memcpy(items, l->items, l->n * size);
		l->items = items;
		l->cap = cap;
	}
	return (char *)l->items + l->n++ * size;
}
