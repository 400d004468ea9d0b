/* SPDX-License-Identifier: Apache-2.0 */
/* serve_weights.c - the received tensors, by name.
 *
 * Memory is reserved before the bytes arrive, and committed after. The new tensors of a request are
 * in one block, in the request's order. So a flattened bucket of them, and every later bucket with
 * the same content, can be received in place in one piece. A tensor that arrives in another type
 * takes that type: without a model, no type is the right one. A tensor moves to new memory only if
 * its old memory is too small, at most three times. */
#include "hash.h"
#include "serve_core.h"

#include <stdlib.h>
#include <string.h>

static size_t *place_of(const struct ws_serve_weights *w, const char *name)
{
	const size_t mask = w->n_index - 1;
	size_t at = (size_t)ws_hash64(name, strlen(name)) & mask;
	while (w->index[at] && strcmp(w->items[w->index[at] - 1].name, name) != 0)
		at = (at + 1) & mask;
	return &w->index[at];
}

struct ws_serve_weight *ws_serve_weights_find(const struct ws_serve_weights *w, const char *name)
{
	if (!w->n_index)
		return NULL;
	const size_t *place = place_of(w, name);
	return *place ? &w->items[*place - 1] : NULL;
}

int ws_serve_weights_reserve(struct ws_serve_weights *w, struct ws_serve_slot *slots, size_t n,
                             uint8_t **block, struct ws_err *err)
{
	uint64_t fresh = 0;
	for (size_t i = 0; i < n; i++) {
		const struct ws_serve_weight *have = ws_serve_weights_find(w, slots[i].name);
		slots[i].data = have && have->room >= slots[i].bytes ? have->data : NULL;
		if (!slots[i].data)
			fresh += slots[i].bytes; /* no overflow: ws_serve_check_update */
	}
	*block = NULL;
	if (!fresh)
		return 0;
	uint8_t *at = fresh <= SIZE_MAX ? malloc((size_t)fresh) : NULL;
	if (!at)
		return ws_err_set(err, WS_ESYSTEM,
		                  "not enough memory: you tried to allocate %llu bytes",
		                  (unsigned long long)fresh);
	*block = at;
	for (size_t i = 0; i < n; i++) {
		if (slots[i].data)
			continue;
		slots[i].data = at;
		at += slots[i].bytes;
	}
	return 0;
}

/* Doubles the table until `more` entries fit at half load. */
static int grow(struct ws_serve_weights *w, size_t more)
{
	size_t cap = w->cap ? w->cap : 256;
	while (cap - w->n < more)
		cap *= 2;
	if (cap == w->cap)
		return 0;
	size_t *index = calloc(2 * cap, sizeof *index);
	struct ws_serve_weight *items = index ? realloc(w->items, cap * sizeof *items) : NULL;
	if (!items) {
		free(index);
		return -1;
	}
	free(w->index);
	w->items = items;
	w->cap = cap;
	w->index = index;
	w->n_index = 2 * cap;
	for (size_t i = 0; i < w->n; i++)
		*place_of(w, items[i].name) = i + 1;
	return 0;
}

static int keep_block(struct ws_serve_weights *w, uint8_t *block)
{
	if (!block)
		return 0;
	uint8_t **blocks = realloc(w->blocks, (w->n_blocks + 1) * sizeof *blocks);
	if (!blocks)
		return -1;
	w->blocks = blocks;
	blocks[w->n_blocks++] = block;
	return 0;
}

static struct ws_serve_weight *add(struct ws_serve_weights *w, const struct ws_serve_slot *slot)
{
	char *name = strdup(slot->name);
	if (!name)
		return NULL;
	struct ws_serve_weight *item = &w->items[w->n];
	*item = (struct ws_serve_weight){
		.name = name, .dtype = slot->dtype, .n_dims = slot->n_dims, .bytes = slot->bytes
	};
	memcpy(item->dims, slot->dims, sizeof item->dims);
	*place_of(w, name) = w->n + 1;
	w->n++;
	return item;
}

int ws_serve_weights_commit(struct ws_serve_weights *w, const struct ws_serve_slot *slots, size_t n,
                            uint8_t *block, uint64_t sync, uint64_t *duplicates, struct ws_err *err)
{
	*duplicates = 0;
	if (grow(w, n) || keep_block(w, block)) {
		free(block);
		return ws_oom(err);
	}
	for (size_t i = 0; i < n; i++) {
		struct ws_serve_weight *item = ws_serve_weights_find(w, slots[i].name);
		if (!item && !(item = add(w, &slots[i])))
			return ws_oom(err);
		*duplicates += item->sync == sync;
		item->sync = sync;
		item->dtype = slots[i].dtype;
		item->bytes = slots[i].bytes;
		if (item->data != slots[i].data)
			item->room = slots[i].bytes;
		item->data = slots[i].data;
		item->hash = slots[i].hash;
	}
	return 0;
}

void ws_serve_weights_fini(struct ws_serve_weights *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->items[i].name);
	for (size_t i = 0; i < w->n_blocks; i++)
		free(w->blocks[i]);
	free(w->items);
	free(w->index);
	free(w->blocks);
	*w = (struct ws_serve_weights){ 0 };
}
