/* SPDX-License-Identifier: Apache-2.0 */
/* merge_shards.h - shared by shard_meaning.c, which identifies each tensor, and merge_shards.c,
 * which merges them. */
#ifndef WS_MODEL_MERGE_SHARDS_H
#define WS_MODEL_MERGE_SHARDS_H

#include "catalog_build.h"

/* One rank's tensors, identified. */
struct ws_merge_rank {
	const struct ws_tensor **parts;       /* by part; NULL: not saved under that name */
	struct ws_layout_match **params;       /* by param */
};

struct ws_shard_merge {
	struct ws_catalog *c;
	const struct ws_family *family;
	const struct ws_layout *layout;
	unsigned tp;
	size_t n_parts, n_params;
	struct ws_merge_rank *ranks;
	struct ws_pieces pieces;              /* scratch */
	struct ws_err *err;
};

/* Records the tensor in j->ranks. Tensors that servers ignore are skipped; an unknown tensor is
 * an error. */
int ws_shard_merge_place(struct ws_shard_merge *j, size_t rank, const struct ws_tensor *t);

#endif
