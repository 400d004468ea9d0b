/* SPDX-License-Identifier: Apache-2.0 */
/* item.c - the bytes of one item, for whoever wants to look at them. */
#include "view.h"

#include "hash.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

enum { CHUNK = 256 << 10 };

struct ws_reader {
	pthread_mutex_t lock;
	struct ws_tiles *tiles;
};

struct ws_reader *ws_reader_new(void)
{
	struct ws_reader *r = malloc(sizeof *r);
	struct ws_tiles *tiles = ws_tiles_new();
	if (!r || !tiles) {
		free(r);
		ws_tiles_free(tiles);
		return NULL;
	}
	r->tiles = tiles;
	pthread_mutex_init(&r->lock, NULL);
	return r;
}

void ws_reader_free(struct ws_reader *r)
{
	if (!r)
		return;
	pthread_mutex_destroy(&r->lock);
	ws_tiles_free(r->tiles);
	free(r);
}

static int read_with(struct ws_tiles *t, const struct ws_item *item, uint64_t at, void *dst, size_t n,
                     struct ws_err *err)
{
	if (!t)
		return ws_err_set(err, WS_ESYSTEM, "reading a tensor: out of memory");
	return ws_tiles_read(t, item, 0, item->view->n_pieces, at, dst, n, err);
}

int ws_item_read(const struct ws_item *item, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	assert(at <= item->bytes && n <= item->bytes - at);
	if (!item->view)
		return ws_source_read(item->source, item->from, at, dst, n, err);
	struct ws_reader *r = item->view->reader;
	if (!r) {
		struct ws_tiles *t = ws_tiles_new();
		const int rc = read_with(t, item, at, dst, n, err);
		ws_tiles_free(t);
		return rc;
	}
	pthread_mutex_lock(&r->lock);
	const int rc = read_with(r->tiles, item, at, dst, n, err);
	pthread_mutex_unlock(&r->lock);
	return rc;
}

static int hash_view(const struct ws_item *item, struct ws_tiles *t, uint8_t *chunk, struct ws_hash *h,
                     struct ws_err *err)
{
	for (uint64_t at = 0; at < item->bytes;) {
		const size_t n = item->bytes - at < CHUNK ? (size_t)(item->bytes - at) : CHUNK;
		if (read_with(t, item, at, chunk, n, err))
			return -1;
		ws_hash_add(h, chunk, n);
		at += n;
	}
	return 0;
}

int ws_item_hash(const struct ws_item *item, uint64_t *hash, struct ws_err *err)
{
	if (!item->view)
		return ws_source_hash(item->source, item->from, hash, err);
	struct ws_tiles *t = ws_tiles_new();
	struct ws_hash *h = ws_hash_new();
	uint8_t *chunk = malloc(CHUNK);
	int rc = t && h && chunk ? 0 : ws_err_set(err, WS_ESYSTEM, "hashing a tensor: out of memory");
	if (rc == 0)
		rc = hash_view(item, t, chunk, h, err);
	if (rc == 0)
		*hash = ws_hash_digest(h);
	free(chunk);
	ws_hash_free(h);
	ws_tiles_free(t);
	return rc;
}
