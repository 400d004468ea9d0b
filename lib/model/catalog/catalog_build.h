/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_build.h - a catalog under construction, between catalog.c (the list), unfuse.c (one
 * source) and join.c (one source for each rank). */
#ifndef WS_MODEL_CATALOG_BUILD_H
#define WS_MODEL_CATALOG_BUILD_H

#include "arena.h"
#include "match_layout.h"
#include "name_index.h"
#include "view.h"

/* A share of an item that another rank has as well, and whose bytes are not sent. */
struct ws_replica {
	size_t item;               /* of the catalog */
	unsigned axis;             /* of the item, along which the share is a part of it */
	int64_t at;                /* the first of that part */
	struct ws_item own;        /* the share as this rank has it */
	size_t rank, sent_rank;
	const struct ws_tensor *sent; /* what is sent instead, or the first part of it */
};

struct ws_catalog {
	const struct ws_source **sources;
	size_t n_sources;
	struct ws_item *items;
	size_t n_items, cap;
	uint64_t bytes;
	bool plain;                /* items are the source's tensors, in their order */
	struct ws_names names;     /* otherwise */
	struct ws_arena arena;     /* names, words, views */
	struct ws_reader *reader;
	size_t n_views, n_copied;
	struct ws_replica *replicas; /* by item */
	size_t n_replicas, cap_replicas;
};

int ws_catalog_no_memory(struct ws_err *err); /* -1 */

/* A copy in the catalog's arena; NULL: out of memory. */
const char *ws_catalog_text(struct ws_catalog *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* A tensor as it is, under a name that the source or the arena owns. made: NULL, or in the
 * arena. */
int ws_catalog_add(struct ws_catalog *c, const struct ws_source *s, const struct ws_tensor *t,
                   const char *name, const char *made, struct ws_err *err);
/* Fills in what an item of these pieces needs beyond name, dtype, dims and made, which it has. */
int ws_catalog_view(struct ws_catalog *c, struct ws_item *item, unsigned axis,
                    const struct ws_pieces *pieces, struct ws_err *err);
int ws_catalog_add_replica(struct ws_catalog *c, const struct ws_replica *r, struct ws_err *err);
/* item: name, dtype, dims and made. The pieces, whose sum its dims are, are copied; an item that is
 * a tensor of its shape, whole and in order, becomes that. */
int ws_catalog_add_view(struct ws_catalog *c, struct ws_item item, unsigned axis,
                        const struct ws_pieces *pieces, struct ws_err *err);

/* An empty catalog for items that are added one by one; sources as of ws_catalog_make,
 * copied. NULL: out of memory. */
struct ws_catalog *ws_catalog_new(const struct ws_source *const *sources, size_t n_sources);
/* Items are also made of this source: ws_catalog_check checks it too. Borrowed. */
int ws_catalog_use(struct ws_catalog *c, const struct ws_source *source, struct ws_err *err);
/* item: everything, in memory that outlives the catalog, or in its arena. */
int ws_catalog_add_item(struct ws_catalog *c, const struct ws_item *item, struct ws_err *err);
/* Once all are there: finds names that occur twice, and lets them be found. */
int ws_catalog_close(struct ws_catalog *c, struct ws_err *err);

/* split_fused.c: the items of one source. */
int ws_catalog_split_fused(struct ws_catalog *c, const struct ws_catalog_opts *opts,
                           struct ws_err *err);
/* merge_shards.c: the items of what the ranks saved. */
int ws_catalog_merge_shards(struct ws_catalog *c, const struct ws_catalog_opts *opts,
                            struct ws_err *err);

#endif
