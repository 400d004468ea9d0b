/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_build.h - a catalog under construction, shared by catalog.c (the list), split_fused.c
 * (one source) and merge_shards.c (one source for each rank). */
#ifndef WS_MODEL_CATALOG_BUILD_H
#define WS_MODEL_CATALOG_BUILD_H

#include "arena.h"
#include "match_layout.h"
#include "name_index.h"
#include "view.h"

/* One rank's copy of a share of an item. Another rank's copy is sent; this one is only compared. */
struct ws_replica {
	size_t item;               /* of the catalog */
	unsigned axis;             /* axis of the item that is divided */
	int64_t at;                /* first index of the share along the axis */
	struct ws_item own;        /* this rank's copy of the share */
	size_t rank, sent_rank;
	const struct ws_tensor *sent; /* the tensor that is sent, or its first part */
};

struct ws_catalog {
	const struct ws_source **sources;
	size_t n_sources;
	struct ws_item *items;
	size_t n_items, cap;
	bool plain;                /* items are the tensors of the one source, in order */
	struct ws_names names;     /* index of the items; unused if plain */
	size_t *renamed;           /* by tensor: its whole item, counted from 1; NULL: none is */
	struct ws_arena arena;     /* names, words, views */
	struct ws_reader *reader;
	struct ws_replica *replicas; /* in the order of their items */
	size_t n_replicas, cap_replicas;
};

/* Formats a text into the catalog's arena. NULL: out of memory. */
const char *ws_catalog_text(struct ws_catalog *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Adds a whole tensor under a name that the source or the arena owns. made: its derivation, in the
 * arena, or NULL. */
int ws_catalog_add(struct ws_catalog *c, const struct ws_source *s, const struct ws_tensor *t,
                   const char *name, const char *made, struct ws_err *err);
/* Makes an item of these pieces, which are copied. The caller sets name, dtype, n_dims and dims. */
int ws_catalog_view(struct ws_catalog *c, struct ws_item *item, unsigned axis,
                    const struct ws_pieces *pieces, struct ws_err *err);
int ws_catalog_add_replica(struct ws_catalog *c, const struct ws_replica *r, struct ws_err *err);
/* Adds an item made of pieces, which are copied. The caller sets name, dtype, dims and derivation.
 * An item that is one whole tensor in order becomes that tensor. */
int ws_catalog_add_view(struct ws_catalog *c, struct ws_item item, unsigned axis,
                        const struct ws_pieces *pieces, struct ws_err *err);

/* An empty catalog. sources as for ws_catalog_make, copied. NULL: out of memory. */
struct ws_catalog *ws_catalog_new(const struct ws_source *const *sources, size_t n_sources);
/* Adds a borrowed source. ws_catalog_check also checks it. */
int ws_catalog_use(struct ws_catalog *c, const struct ws_source *source, struct ws_err *err);
/* Adds a complete item. Its memory is in the arena or outlives the catalog. */
int ws_catalog_add_item(struct ws_catalog *c, const struct ws_item *item, struct ws_err *err);
/* Call after the last item: refuses duplicate names and builds the index. */
int ws_catalog_close(struct ws_catalog *c, struct ws_err *err);

/* split_fused.c: the items of one source. */
int ws_catalog_split_fused(struct ws_catalog *c, const struct ws_catalog_opts *opts,
                           struct ws_err *err);
/* merge_shards.c: the items that the shards of all ranks form. */
int ws_catalog_merge_shards(struct ws_catalog *c, const struct ws_catalog_opts *opts,
                            struct ws_err *err);

#endif
