/* SPDX-License-Identifier: Apache-2.0 */
/* shards.h - a checkpoint that tensor-parallel ranks saved one by one: which files are whose.
 *
 * Said in one of these ways:
 *
 *   - as many paths as ranks, in their order;
 *   - a directory with a file or a sub-directory of each rank, whose number is in the name: behind
 * "tp" or "tp_rank" (tp_rank_3), else behind "mp" or "mp_rank" (mp_rank_01), else behind "rank"
 *     (model-rank-2-part-0), else the one number that counts from 0 to the last rank. Several of
 * one rank (its pipeline stages, its parts) are one;
 *   - a manifest, {"tp": N, "ep": M, "shards": [["rank0/model.safetensors"], ...]}, with what each
 * rank has, relative to the manifest.
 *
 * Whatever can be read in two ways is refused with a list of what was seen. */
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
	/* where a config.json lies beside all of them; NULL: look at theirs */
	char *config_dir;
};

/* Headers are read by several threads. tp 0: as the manifest says. ep 0: likewise, else 1. */
int ws_shards_open(const char *const *paths, size_t n_paths, unsigned tp, unsigned ep,
                   struct ws_shards *out, struct ws_err *err);
/* Likewise, of sources that are opened so: a path of each rank may be cuda-ipc:MANIFEST.json. */
int ws_shards_open_with(const struct ws_source_opts *opts, const char *const *paths, size_t n_paths,
                        unsigned tp, unsigned ep, struct ws_shards *out, struct ws_err *err);
void ws_shards_close(struct ws_shards *s); /* NULL and all zero are fine */

#ifdef __cplusplus
}
#endif
#endif
