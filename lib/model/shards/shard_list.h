/* SPDX-License-Identifier: Apache-2.0 */
/* shard_list.h - assigns paths to ranks. Shared by shards.c, which opens them, shard_names.c,
 * which reads the ranks off file names, and shard_manifest.c. */
#ifndef WS_MODEL_SHARD_LIST_H
#define WS_MODEL_SHARD_LIST_H

#include "arena.h"
#include "wsync/err.h"

struct ws_shard_list {
	struct ws_arena arena;
	struct ws_list *ranks;  /* of const char *, for each of tp ranks */
	unsigned tp, ep;        /* ep 0: not given */
	const char *dir;        /* directory of all shards; NULL: none */
};

enum { WS_SHARDS_MAX = 65536 };

/* Fills ranks; list->tp is set. */
int ws_shard_names(const char *dir, struct ws_shard_list *list, struct ws_err *err);
/* list->tp and ep are the wanted ones, or 0. */
int ws_shard_manifest(const char *path, struct ws_shard_list *list, struct ws_err *err);
/* The same for a text in memory; path is its file's. */
int ws_shard_manifest_parse(const char *text, size_t n, const char *path,
                            struct ws_shard_list *list, struct ws_err *err);

int ws_shard_make_ranks(struct ws_shard_list *list, struct ws_err *err);
/* dir/name, or path where dir is NULL. */
int ws_shard_add(struct ws_shard_list *list, size_t rank, const char *dir, const char *name,
                 struct ws_err *err);

#endif
