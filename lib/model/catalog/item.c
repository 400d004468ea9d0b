/* SPDX-License-Identifier: Apache-2.0 */
/* item.c - reads and hashes the bytes of one item. */
#include "computed_item.h"
#include "view.h"

#include "hash.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

enum { CHUNK = 256 << 10 };

struct ws_reader {
	pthread_mutex_t lock;
	struct ws_gather_buffer *gather;
};

struct ws_reader *ws_reader_new(void)
{
	struct ws_reader *r = malloc(sizeof *r);
	struct ws_gather_buffer *gather = ws_gather_buffer_new();
	if (!r || !gather) {
		free(r);
		ws_gather_buffer_free(gather);
		return NULL;
	}
	r->gather = gather;
	pthread_mutex_init(&r->lock, NULL);
	return r;
}

void ws_reader_free(struct ws_reader *r)
{
	if (!r)
		return;
	pthread_mutex_destroy(&r->lock);
	ws_gather_buffer_free(r->gather);
	free(r);
}

static int read_with(struct ws_gather_buffer *t, const struct ws_item *item, uint64_t at, void *dst,
                     size_t n, struct ws_err *err)
{
	if (!t)
		return ws_oom(err);
	return ws_gather_buffer_read(t, item, 0, item->view->n_pieces, at, dst, n, err);
}

int ws_item_read(const struct ws_item *item, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	assert(at <= item->bytes && n <= item->bytes - at);
	if (item->computed)
		return item->computed->ops->read(item->computed, at, dst, n, err);
	if (!item->view)
		return ws_source_read(item->source, item->from, at, dst, n, err);
	struct ws_reader *r = item->view->reader;
	if (!r) {
		struct ws_gather_buffer *t = ws_gather_buffer_new();
		const int rc = read_with(t, item, at, dst, n, err);
		ws_gather_buffer_free(t);
		return rc;
	}
	pthread_mutex_lock(&r->lock);
	const int rc = read_with(r->gather, item, at, dst, n, err);
	pthread_mutex_unlock(&r->lock);
	return rc;
}

/* Exactly one member is set. */
struct hash_reader {
	struct ws_gather_buffer *gather;
	struct ws_computed_read *reading;
};

static int read_chunk(const struct hash_reader *r, const struct ws_item *item, uint64_t at,
                      void *dst, size_t n, struct ws_err *err)
{
	return r->reading ? item->computed->ops->next(r->reading, 0, at, dst, n, err) :
	                    read_with(r->gather, item, at, dst, n, err);
}

static int hash_chunks(const struct ws_item *item, const struct hash_reader *r, uint8_t *chunk,
                       struct ws_hash *h, struct ws_err *err)
{
	for (uint64_t at = 0; at < item->bytes;) {
		const size_t n = item->bytes - at < CHUNK ? (size_t)(item->bytes - at) : CHUNK;
		if (read_chunk(r, item, at, chunk, n, err))
			return -1;
		ws_hash_add(h, chunk, n);
		at += n;
	}
	return 0;
}

static int open_hash_reader(struct hash_reader *r, const struct ws_item *item, struct ws_err *err)
{
	*r = (struct hash_reader){ 0 };
	if (item->computed)
		return item->computed->ops->begin(&item->computed, 1, &r->reading, err);
	r->gather = ws_gather_buffer_new();
	return r->gather ? 0 : ws_oom(err);
}

int ws_item_hash(const struct ws_item *item, uint64_t *hash, struct ws_err *err)
{
	struct hash_reader hash_reader;
	if (!item->computed && !item->view)
		return ws_source_hash(item->source, item->from, hash, err);
	if (open_hash_reader(&hash_reader, item, err))
		return -1;
	struct ws_hash *h = ws_hash_new();
	uint8_t *chunk = malloc(CHUNK);
	int rc = h && chunk ? 0 : ws_oom(err);
	if (rc == 0)
		rc = hash_chunks(item, &hash_reader, chunk, h, err);
	if (rc == 0)
		*hash = ws_hash_digest(h);
	free(chunk);
	ws_hash_free(h);
	if (item->computed)
		item->computed->ops->end(hash_reader.reading);
	ws_gather_buffer_free(hash_reader.gather);
	return rc;
}
