/* SPDX-License-Identifier: Apache-2.0 */
/* transform_core.h - what a transform is made of: transform.c builds it, recipe.c reads it. */
#ifndef WS_TRANSFORM_CORE_H
#define WS_TRANSFORM_CORE_H

#include "formula_make.h"
#include "computed_item.h"
#include "product.h"

struct ws_transform;

/* Computes one item. */
struct ws_made {
	struct ws_computed_item computed; /* first */
	struct ws_transform *owner;
	const struct ws_product_part *part;
	const char *name;
};

/* A product and the two items that it may have. */
struct ws_change {
	struct ws_product product; /* first */
	struct ws_made out, scales;
	struct ws_formula *formula;    /* written when it is asked for */
	bool written;
	struct ws_change *next;
};

/* Whoever reads without notice reads the same item on and on: its run is kept for the next call. */
struct ws_last_read {
	pthread_mutex_t lock;
	const struct ws_made *of; /* NULL: none */
	struct ws_pool_job *job;
	uint64_t at;              /* where the last call ended */
};

struct ws_transform {
	struct ws_transform_opts opts; /* pointers in it are good while it is being made only */
	struct ws_worker_pool *pool;
	const struct ws_catalog *base;
	struct ws_packed *found;       /* of each item of the base */
	struct ws_catalog *catalog;
	struct ws_change *changes, **end; /* in the order of the base; in the catalog's arena */
	struct ws_adapter **adapters;
	struct ws_bindings *bindings;  /* of each adapter */
	bool *sends;                   /* for each adapter: it changes a tensor that is sent */
	bool unpacks;                  /* a weight, sent or not, is made dense */
	struct ws_source *correction_source;
	struct ws_catalog *correction;
	struct ws_last_read last;
	struct ws_transform_report report;
};

/* recipe.c */
void ws_recipe_init(struct ws_made *m, struct ws_transform *t, const struct ws_product_part *part,
                    const char *name);
void ws_recipe_forget(struct ws_transform *t); /* whoever read last */

/* corrections.c: a low-rank pair for some tensors. Opens and binds it; *out is in the catalog's
 * arena and has one for each item of the base, n_deltas 0 where there is none. */
struct ws_correction {
	struct ws_delta delta;
	bool bound;
};
int ws_corrections_open(struct ws_transform *t, const char *path, struct ws_correction **out,
                        struct ws_err *err);

#endif
