/* SPDX-License-Identifier: Apache-2.0 */
/* shards.h - finds each rank's files of a checkpoint that tensor-parallel ranks saved separately.
 *
 * The files are given in one of these ways:
 *
 *   - as many paths as ranks, in their order;
 *   - a directory with a file or a sub-directory of each rank, whose number is in the name: behind
 *     "tp" or "tp_rank" (tp_rank_3), else behind "mp" or "mp_rank" (mp_rank_01), else behind "rank"
 *     (model-rank-2-part-0), else the one number that counts from 0 to the last rank. Several files
 *     of one rank (pipeline stages, parts) are one shard;
 *   - a manifest, {"tp": N, "ep": M, "shards": [["rank0/model.safetensors"], ...]}, with the files
 *     of each rank, relative to the manifest.
 *
 * Ambiguous input is refused, with a list of the files found. */
#ifndef WSYNC_SHARDS_H
#define WSYNC_SHARDS_H

#include "wsync/tool/source.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_shards {
	struct ws_source **sources; /* of rank 0, 1, ... */
	size_t n;
	unsigned tp, ep;            /* as asked, or as the manifest says */
	/* directory of a config.json for all ranks; NULL: see the ranks' own */
	char *config_dir;
};

/* Headers are read by several threads. tp 0: as the manifest says. ep 0: likewise, else 1. */
int ws_shards_open(const char *const *paths, size_t n_paths, unsigned tp, unsigned ep,
                   struct ws_shards *out, struct ws_err *err);
/* Likewise, with source options: a path of each rank may be cuda-ipc:MANIFEST.json. */
int ws_shards_open_with(const struct ws_source_opts *opts, const char *const *paths, size_t n_paths,
                        unsigned tp, unsigned ep, struct ws_shards *out, struct ws_err *err);
void ws_shards_close(struct ws_shards *s); /* NULL and all zero are fine */

#ifdef __cplusplus
}
#endif
#endif
