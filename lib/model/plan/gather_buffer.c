/* SPDX-License-Identifier: Apache-2.0 */
/* gather_buffer.c - reads the bytes of a view in ascending order, gathered a few megabytes ahead.
 *
 * A tile is a box of the view with consecutive bytes: a few indices of one axis, and all indices of
 * the axes inside it. */
#include "view.h"

#include "strided_read.h"

#include <stdlib.h>
#include <string.h>

enum {
	TILE = (4 << 20) - WS_GATHER_BLOCK,
	TILE_MIN = 4096
};

struct ws_gather_buffer {
	uint8_t *memory;            /* one tile, then scratch memory for gathering */
	const struct ws_item *item; /* the pieces whose bytes [at, at+have) are buffered */
	size_t first;
	uint64_t at;
	size_t have;
	uint64_t next;              /* end of the last read */
};

/* The pieces as one tensor, and a tile of it. */
struct tile {
	const struct ws_item *item;
	const struct ws_piece *pieces;
	size_t n_pieces;
	unsigned axis, n, size;
	int64_t dims[WS_MAX_DIMS];
	int64_t begin[WS_MAX_DIMS], extent[WS_MAX_DIMS];
	size_t bytes;
};

struct ws_gather_buffer *ws_gather_buffer_new(void)
{
	return calloc(1, sizeof(struct ws_gather_buffer));
}

void ws_gather_buffer_free(struct ws_gather_buffer *t)
{
	if (!t)
		return;
	free(t->memory);
	free(t);
}

static struct tile shape_of(const struct ws_item *item, size_t first, size_t n_pieces)
{
	struct tile t = {
		.item = item, .pieces = item->view->pieces + first, .n_pieces = n_pieces,
		.axis = item->view->axis, .n = item->view->n_dims,
		.size = ws_dtype_bits(item->dtype) / 8,
	};
	memcpy(t.dims, item->view->dims, sizeof t.dims);
	if (t.n == 0)
		return t;
	t.dims[t.axis] = 0;
	for (size_t i = 0; i < n_pieces; i++)
		t.dims[t.axis] += t.pieces[i].dims[t.axis];
	return t;
}

/* Finds the tile of at most `most` bytes that begins at the row of byte `at`; returns the row's
 * first byte. */
static uint64_t choose_tile(struct tile *t, uint64_t at, size_t most)
{
	uint64_t inner = t->size;
	unsigned d = t->n;
	while (d > 0 && inner * (uint64_t)t->dims[d - 1] <= most)
		inner *= (uint64_t)t->dims[--d];
	for (unsigned k = 0; k < t->n; k++) {
		t->begin[k] = 0;
		t->extent[k] = k < d ? 1 : t->dims[k];
	}
	uint64_t row = at / inner;
	const uint64_t start = row * inner;
	t->bytes = (size_t)inner;
	for (unsigned k = d; k-- > 0; row /= (uint64_t)t->dims[k])
		t->begin[k] = (int64_t)(row % (uint64_t)t->dims[k]);
	if (d > 0) {
		const int64_t left = t->dims[d - 1] - t->begin[d - 1],
			      rows = (int64_t)(most / inner);
		t->extent[d - 1] = rows < 1 ? 1 : rows < left ? rows : left;
		t->bytes *= (size_t)t->extent[d - 1];
	}
	return start;
}

static int gather_piece(const struct tile *t, const struct ws_piece *p, int64_t before,
                        uint8_t *dst, uint8_t *block, struct ws_err *err)
{
	struct ws_strided_read g = { .source = p->source,
		                     .from = p->from,
		                     .at = p->at,
		                     .n_dims = t->n,
		                     .size = t->size,
		                     .dst = dst };
	int64_t stride = 1;
	for (unsigned d = t->n; d-- > 0; stride *= t->extent[d]) {
		int64_t begin = t->begin[d], end = begin + t->extent[d];
		if (d == t->axis) {
			begin = begin > before ? begin - before : 0;
			end = end - before < p->dims[d] ? end - before : p->dims[d];
			if (begin >= end)
				return 0;
			g.dst += (begin + before - t->begin[d]) * stride * t->size;
		}
		g.dims[d] = end - begin;
		g.read[d] = p->strides[d];
		g.write[d] = stride;
		g.at += (uint64_t)(begin * p->strides[d]);
	}
	return ws_strided_read(&g, block, err);
}

static int gather_tile(const struct tile *t, uint8_t *dst, uint8_t *block, struct ws_err *err)
{
	int64_t before = 0;
	for (size_t i = 0; i < t->n_pieces; i++) {
		if (gather_piece(t, &t->pieces[i], before, dst, block, err))
			return -1;
		if (t->n)
			before += t->pieces[i].dims[t->axis];
	}
	return 0;
}

static int load(struct ws_gather_buffer *t, struct tile *tile, uint64_t at, size_t most,
                struct ws_err *err)
{
	if (!t->memory)
		t->memory = malloc(TILE + WS_GATHER_BLOCK);
	if (!t->memory)
		return ws_oom(err);
	t->have = 0;
	t->at = choose_tile(tile, at, most);
	if (gather_tile(tile, t->memory, t->memory + TILE, err))
		return -1;
	t->have = tile->bytes;
	return 0;
}

int ws_gather_buffer_read(struct ws_gather_buffer *t, const struct ws_item *item, size_t first,
                          size_t n_pieces, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	struct tile tile = shape_of(item, first, n_pieces);
	const bool rising = t->item == item && t->first == first && at == t->next && at > 0;
	const size_t ask = n < TILE_MIN ? TILE_MIN : n;
	const size_t most = rising || ask > TILE ? TILE : ask;
	uint8_t *to = dst;
	if (t->item != item || t->first != first)
		t->have = 0;
	t->item = item;
	t->first = first;
	t->next = at + n;
	while (n > 0) {
		if ((at < t->at || at >= t->at + t->have) && load(t, &tile, at, most, err))
			return -1;
		const size_t skip = (size_t)(at - t->at);
		const size_t k = t->have - skip < n ? t->have - skip : n;
		memcpy(to, t->memory + skip, k);
		to += k;
		at += k;
		n -= k;
	}
	return 0;
}
