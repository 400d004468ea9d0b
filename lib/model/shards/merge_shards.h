/* SPDX-License-Identifier: Apache-2.0 */
/* merge_shards.h - the joining of what ranks saved, between join_meaning.c, which finds out what
 * each tensor is, and join.c, which puts them together. */
#ifndef WS_MODEL_MERGE_SHARDS_H
#define WS_MODEL_MERGE_SHARDS_H

#include "catalog_build.h"

/* One rank's tensors by their meaning. */
struct ws_merge_rank {
	const struct ws_tensor **parts;       /* by part; NULL: not there under that name */
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

/* Gives the tensor its place in j->ranks. One that the server leaves aside has none; one that
 * nobody knows is an error. */
int ws_shard_merge_place(struct ws_shard_merge *j, size_t rank, const struct ws_tensor *t);

#endif
