/* SPDX-License-Identifier: Apache-2.0 */
/* transform_core.h - the parts of a transform: transform.c builds it, transform_item.c reads its
 * items. */
#ifndef WS_TRANSFORM_CORE_H
#define WS_TRANSFORM_CORE_H

#include "transform_recipe.h"
#include "computed_item.h"
#include "fused_weight.h"
#include "transform_make.h"

struct ws_transform;

/* A computed item of the transform's catalog. */
struct ws_transform_item {
	struct ws_computed_item computed; /* first */
	struct ws_transform *owner;
	const struct ws_fused_part *part;
	const char *name;
};

/* A weight that is computed, and its one or two items. */
struct ws_transformed {
	struct ws_fused_weight fused; /* first */
	struct ws_transform_item out, scales;
	struct ws_transform_recipe *recipe; /* made at the first request; NULL: none */
	bool has_recipe;                    /* the request was made */
	struct ws_transformed *next;
};

/* Unannounced reads usually continue in the same item: keeps its job for the next call. */
struct ws_last_read {
	pthread_mutex_t lock;
	const struct ws_transform_item *of; /* NULL: none */
	struct ws_pool_job *job;
	uint64_t at; /* end of the last call */
};

struct ws_transform {
	struct ws_transform_opts opts; /* its pointers are valid only during ws_transform_make */
	struct ws_worker_pool *pool;
	const struct ws_catalog *base;
	struct ws_packed *found;       /* of each item of the base */
	struct ws_catalog *catalog;
	struct ws_transformed *changes,
		**end; /* in the order of the base; in the catalog's arena */
	struct ws_adapter **adapters;
	struct ws_bindings *bindings;  /* of each adapter */
	bool *sends;                   /* for each adapter: it changes a tensor that is sent */
	bool unpacks;                  /* a weight, sent or not, is unpacked */
	struct ws_source *correction_source;
	struct ws_catalog *correction;
	struct ws_last_read last;
	struct {
		struct ws_catalog *catalog; /* the base with a head; NULL: as it is */
		size_t head, body;          /* items of it */
	} tied;
	struct ws_transform_report report;
};

/* ---- transform_item.c ---- */

void ws_transform_item_init(struct ws_transform_item *m, struct ws_transform *t,
                            const struct ws_fused_part *part, const char *name);
void ws_transform_drop_reader(struct ws_transform *t); /* ends the kept job */

/* ---- select.c ---- */

/* Does a tensor of this name and rank become FP8? */
bool ws_select_fp8(const struct ws_transform_opts *opts, const char *name, unsigned n_dims);

/* Is it a module that becomes FP8 without a list of the server's? */
bool ws_select_is_known(const char *module);
/* Is it in the user's list? */
bool ws_select_is_skipped(const struct ws_transform_opts *o, const char *module);

/* ---- tied_head.c ---- */

/* Adds a head to the base if config.json ties it to the embedding and the base has none. */
int ws_tied_head_add(struct ws_transform *t, struct ws_err *err);
/* Is item i that head, and does no adapter change it or leave it behind? It is not sent then. */
bool ws_tied_head_idle(const struct ws_transform *t, size_t i);

/* ---- corrections.c ---- */

/* One more low-rank term for some tensors (--correction). Opens and binds them. *out, in the
 * catalog's arena, has an entry for each item of the base; bound: it has a term. */
struct ws_correction {
	struct ws_delta delta;
	bool bound;
};
int ws_corrections_open(struct ws_transform *t, const char *path, struct ws_correction **out,
                        struct ws_err *err);

#endif
