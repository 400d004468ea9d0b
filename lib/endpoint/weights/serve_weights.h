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
	uint64_t room;      /* bytes at data, of the largest type that came */
	uint64_t hash;      /* as received, where the endpoint hashes */
	uint64_t sync;      /* the sync it last came in */
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
	uint8_t *data;      /* where rank 0 puts it; NULL: nowhere */
	uint64_t hash;
};

struct ws_serve_weight *ws_serve_weights_find(const struct ws_serve_weights *w, const char *name);
/* Gives every slot its data: that of the tensor it replaces, or a piece of one new block, in order
 * and without gaps. *block (NULL when nothing is new) is passed on to commit, or freed. */
int ws_serve_weights_reserve(struct ws_serve_weights *w, struct ws_serve_slot *slots, size_t n,
                             uint8_t **block, struct ws_err *err);
/* Takes the block. *duplicates: how many came before in this sync. */
int ws_serve_weights_commit(struct ws_serve_weights *w, const struct ws_serve_slot *slots, size_t n,
                            uint8_t *block, uint64_t sync, uint64_t *duplicates,
                            struct ws_err *err);
void ws_serve_weights_fini(struct ws_serve_weights *w);

#endif
