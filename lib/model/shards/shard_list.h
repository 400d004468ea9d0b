/* SPDX-License-Identifier: Apache-2.0 */
/* shard_list.h - assigns paths to ranks. shards.c opens the paths. shard_names.c finds the ranks in
 * file names, shard_manifest.c in a manifest. */
#ifndef WS_MODEL_SHARD_LIST_H
#define WS_MODEL_SHARD_LIST_H

#include "arena.h"
#include "wsync/err.h"

struct ws_shard_list {
	struct ws_arena arena;
	struct ws_list *ranks;  /* paths (const char *) of each of the tp ranks */
	unsigned tp, ep;        /* ep 0: not given */
	const char *dir;        /* directory of the shards or of their manifest; NULL: none */
};

enum { WS_SHARDS_MAX = 65536 };

/* Finds the files of each rank in dir. The caller sets list->tp. */
int ws_shard_names(const char *dir, struct ws_shard_list *list, struct ws_err *err);
/* Reads a manifest. list->tp and ep: the required values, or 0. */
int ws_shard_manifest(const char *path, struct ws_shard_list *list, struct ws_err *err);
/* The same for a text in memory; path is the manifest's. */
int ws_shard_manifest_parse(const char *text, size_t n, const char *path,
                            struct ws_shard_list *list, struct ws_err *err);

int ws_shard_make_ranks(struct ws_shard_list *list, struct ws_err *err);
/* Adds dir/name to the paths of a rank, or name if dir is NULL. */
int ws_shard_add(struct ws_shard_list *list, size_t rank, const char *dir, const char *name,
                 struct ws_err *err);

#endif
