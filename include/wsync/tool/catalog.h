/* SPDX-License-Identifier: Apache-2.0 */
/* catalog.h - the tensors of a source, named and shaped as servers expect them.
 *
 * Most items are a tensor of the source as it is. Where a trainer wrapped names, kept fused or
 * transposed tensors, or saved one file per rank, an item is a view: a concatenation, along
 * one axis, of strided pieces of source tensors. Views are never built in memory; runs of
 * bytes that lie together in a file are sent from there, and only a transpose passes
 * through a bounded scratch.
 *
 * An item of a transform (transform.h) is computed when it is read (`computed`). */
#ifndef WSYNC_CATALOG_H
#define WSYNC_CATALOG_H

#include "wsync/tool/layout.h"
#include "wsync/tool/source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A box of a source tensor, walked in any order of its axes. */
struct ws_piece {
	const struct ws_source *source;
	const struct ws_tensor *from;
	uint64_t at;                   /* first element */
	int64_t dims[WS_MAX_DIMS];     /* of the item's rank; dims[axis] is this piece's share */
	int64_t strides[WS_MAX_DIMS];  /* in elements of `from` */
};

struct ws_view {
	/* The shape in which the pieces lie: the item's, or one with as many elements in the same
	 * order. They follow each other along this axis of it. */
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	unsigned axis;
	const struct ws_piece *pieces;
	size_t n_pieces;
	struct ws_reader *reader;      /* the catalog's, for ws_item_read; may be NULL */
};

struct ws_computed_item; /* opaque: lib/model/catalog/computed_item.h */

struct ws_item {
	const char *name;              /* owned by the catalog or its source; unique */
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;
	const struct ws_source *source;
	const struct ws_tensor *from;  /* the first tensor it is made of; for messages and order */
	const struct ws_view *view;    /* NULL: `from`, whole and as it is, unless it is computed */
	/* computes its bytes; NULL: they are those of `from` or the view */
	const struct ws_computed_item *computed;
	/* "rows 0..2047 of model.layers.0.self_attn.qkv_proj.weight", "renamed from
	 * _orig_mod.model.x"; or why a fused tensor was not split: "left as it is: ...";
	 * NULL: nothing was done */
	const char *derivation;
	bool trained; /* an adapter changes it */
};

struct ws_catalog;

struct ws_catalog_opts {
	const struct ws_family *family;  /* NULL: names are taken as they are */
	/* at tp 1, ep 1; to split fused tensors; NULL: none is split */
	const struct ws_layout *layout;
	/* by tensor of the one source: its name, instead of the family's; NULL */
	const char *const *names;
	/* One source for each tensor-parallel rank, in their order, joined by this layout, which
	 * was made with their tp and ep; NULL: n_sources is 1. */
	const struct ws_layout *sharded;
};

/* Sources and layouts are borrowed and must outlive the catalog. WS_EINPUT: two tensors get the
 * same name, a shard is missing or has the wrong shape, or the shape does not determine the
 * arrangement. A tensor with an unknown name becomes an item unchanged. In a sharded source it is
 * an error, and tensors that servers ignore are left out. */
int ws_catalog_make(const struct ws_source *const *sources, size_t n_sources,
                    const struct ws_catalog_opts *opts, struct ws_catalog **out,
                    struct ws_err *err);
void ws_catalog_free(struct ws_catalog *c); /* NULL is fine */

size_t ws_catalog_count(const struct ws_catalog *c);
const struct ws_item *ws_catalog_item(const struct ws_catalog *c, size_t i);
const struct ws_item *ws_catalog_find(const struct ws_catalog *c, const char *name); /* NULL */
/* The item that is a whole tensor, by its name in the source, where that was changed by
 * ws_catalog_opts.names; NULL: none. */
const struct ws_item *ws_catalog_find_renamed(const struct ws_catalog *c, const char *name);
/* The index of a source among the catalog's sources; with a sharded source, the rank. */
size_t ws_catalog_source(const struct ws_catalog *c, const struct ws_source *source);
/* Source i of all that the items use: sources, adapters and corrections; NULL
 * past the end. */
const struct ws_source *ws_catalog_source_at(const struct ws_catalog *c, size_t i);
/* Runs ws_source_check on all that the items use: sources, and a transform's adapters
 * and corrections. */
int ws_catalog_check(const struct ws_catalog *c, struct ws_err *err);

/* Copies bytes [at, at+n) of the item. Rising offsets are fast, and one thread is faster than
 * several. ws_item_hash: XXH3-64 of all bytes. */
int ws_item_read(const struct ws_item *item, uint64_t at, void *dst, size_t n, struct ws_err *err);
int ws_item_hash(const struct ws_item *item, uint64_t *hash, struct ws_err *err);

struct ws_replica_opts {
	/* compare all bytes; else only the first and last 64 KiB of shares beyond 1 MiB */
	bool all;
	/* globs of ws_plan_opts: items that are compared */
	const char *const *include, *const *exclude;
	size_t n_include, n_exclude;
	const struct ws_cancel *cancel; /* NULL */
};
/* Compares the copies of an item in several ranks of a sharded source. If they differ, the ranks
 * saved at different times or incompletely: WS_EINPUT names the tensor and both files. */
int ws_catalog_check_replicas(const struct ws_catalog *c, const struct ws_replica_opts *opts,
                              struct ws_err *err);
size_t ws_catalog_replicas(const struct ws_catalog *c); /* the number of replicas */

#ifdef __cplusplus
}
#endif
#endif
