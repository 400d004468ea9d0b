/* SPDX-License-Identifier: Apache-2.0 */
/* shard_list.h - which paths are which rank's, between shards.c, which opens them, shard_names.c, which
 * reads it off the names in a directory, and shard_manifest.c. */
#ifndef WS_MODEL_SHARD_LIST_H
#define WS_MODEL_SHARD_LIST_H

#include "arena.h"
#include "wsync/err.h"

struct ws_shard_list {
	struct ws_arena arena;
	struct ws_list *ranks;  /* of const char *, for each of tp ranks */
	unsigned tp, ep;        /* ep 0: not said */
	const char *dir;        /* beside them all; NULL: there is no such place */
};

enum { WS_SHARDS_MAX = 65536 };

/* list->tp is set; fills ranks. */
int ws_shard_names(const char *dir, struct ws_shard_list *list, struct ws_err *err);
/* list->tp and ep are what was asked, or 0. */
int ws_shard_manifest(const char *path, struct ws_shard_list *list, struct ws_err *err);
/* The same for text in memory; path is where it would lie. */
int ws_shard_manifest_parse(const char *text, size_t n, const char *path,
                            struct ws_shard_list *list, struct ws_err *err);

int ws_shard_make_ranks(struct ws_shard_list *list, struct ws_err *err);
/* dir/name, or path where dir is NULL. */
int ws_shard_add(struct ws_shard_list *list, size_t rank, const char *dir, const char *name,
                 struct ws_err *err);

#endif
