/* SPDX-License-Identifier: Apache-2.0 */
/* serve_weights.h - received tensors under the names they were sent with, without a model. */
#ifndef WS_ENDPOINT_SERVE_WEIGHTS_H
#define WS_ENDPOINT_SERVE_WEIGHTS_H

#include "wsync/dtype.h"
#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

struct ws_serve_weight {
	char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;
	uint8_t *data;      /* inside a block; NULL: only the hash is known */
	uint64_t room;      /* bytes allocated at data */
	uint64_t hash;      /* of the received bytes, if the endpoint hashes */
	uint64_t sync;      /* sync in which the tensor was last sent */
};

struct ws_serve_weights {
	struct ws_serve_weight *items; /* in order of first arrival */
	size_t n, cap;
	size_t *index;      /* open addressing over items: 0 empty, else place + 1 */
	size_t n_index;     /* a power of two, or 0 */
	uint8_t **blocks;   /* the memory behind data */
	size_t n_blocks;
};

/* One tensor of an update request. */
struct ws_serve_slot {
	const char *name, *dtype_name; /* borrowed from the request */
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;
	uint8_t *data;      /* rank 0 stores the bytes here; NULL: not stored */
	uint64_t hash;
};

struct ws_serve_weight *ws_serve_weights_find(const struct ws_serve_weights *w, const char *name);
/* Sets the data of every slot: the memory of the tensor it replaces, or a piece of one new block,
 * in order and without gaps. The caller passes *block (NULL: no block) to commit, or frees it. */
int ws_serve_weights_reserve(struct ws_serve_weights *w, struct ws_serve_slot *slots, size_t n,
                             uint8_t **block, struct ws_err *err);
/* Takes ownership of block. *duplicates: tensors that were already sent in this sync. */
int ws_serve_weights_commit(struct ws_serve_weights *w, const struct ws_serve_slot *slots, size_t n,
                            uint8_t *block, uint64_t sync, uint64_t *duplicates,
                            struct ws_err *err);
void ws_serve_weights_fini(struct ws_serve_weights *w);

#endif
