/* SPDX-License-Identifier: Apache-2.0 */
/* index.h - model.safetensors.index.json: which shard holds which tensor. */
#ifndef WS_MODEL_INDEX_H
#define WS_MODEL_INDEX_H

#include "wsync/err.h"

#include <stddef.h>

struct ws_index_entry {
	const char *name, *shard;
};

struct ws_index {
	char *path;                     /* of the index itself */
	char *text;                     /* names and shards point into it */
	struct ws_index_entry *entries; /* as in the file; a name may still occur twice */
	size_t n_entries;
	const char **shards;            /* each once, sorted: plain file names beside the index */
	size_t n_shards;
};

#define WS_INDEX_INIT { 0, 0, 0, 0, 0, 0 }

int ws_index_read(const char *path, struct ws_index *out, struct ws_err *err);
/* The same for text in memory, which is copied. */
int ws_index_parse(const char *text, size_t len, const char *path, struct ws_index *out,
                   struct ws_err *err);
void ws_index_free(struct ws_index *index); /* NULL is fine */

#endif
