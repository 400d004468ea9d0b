/* SPDX-License-Identifier: Apache-2.0 */
/* serve_model.h - the runtime parameters of an endpoint that was given a model's config.json.
 *
 *   serve_model.c        the parameters: which there are, where each rank keeps them, reading them
 *   serve_model_fp8.c    parameters in FP8 that a server cannot update
 *   serve_model_names.c  which names are loaded, ignored or refused, as each model's loader does
 *   serve_model_load.c   an update: from the bytes of a request to the memory of every rank
 *
 * Each tensor-parallel rank has one piece of memory with its own share of every parameter:
 * fused, cut and replicated as a server's would be. A tensor is addressed by its name in the
 * checkpoint (a part of the layout) or, as a whole parameter, by the server's (a param). */
#ifndef WS_ENDPOINT_SERVE_MODEL_H
#define WS_ENDPOINT_SERVE_MODEL_H

#include "serve_boxes.h"
#include "serve_core.h"
#include "serve_decode.h"

#include "wsync/tool/config.h"
#include "wsync/tool/layout.h"

enum { WS_SERVE_LOAD_NAMES = 16 }; /* ignored names that the journal tells of one update */

/* What became of one part. */
struct ws_serve_part_state {
	bool loaded;
	enum ws_dtype came_as;      /* the type it was last sent in */
	uint64_t sync;              /* the sync it last came in */
};

/* How a loader treats names that are not in the checkpoint. */
struct ws_serve_loader_rules;

struct ws_serve_model {
	struct ws_config *config;
	struct ws_namemap *map;
	struct ws_layout *layout;
	const struct ws_serve_loader_rules *rules;
	unsigned tp, ep;
	enum ws_dtype dtype;        /* of parameters that are not quantized */
	int64_t n_layers;           /* layers from here on belong to no target model */
	enum ws_dtype *dtypes;      /* of each param */
	/* of each param: in FP8, and none that can be updated; NULL: none is */
	bool *read_only;
	uint64_t *offsets;          /* of param i at rank r: offsets[i * tp + r] */
	uint64_t *rank_bytes;       /* of each rank */
	uint8_t **memory;           /* of each rank; all NULL where nothing but names is kept */
	struct ws_serve_part_state *parts;
	size_t n_loaded;            /* parts that came at least once */
};

/* dir: that of the config.json. tp: a multiple of ep.
 * dtype: a name of torch's, NULL: as the config says.
 * quantization: the server's option, NULL or "": none. */
int ws_serve_model_open(const char *dir, unsigned tp, unsigned ep, const char *dtype,
                        const char *quantization, bool memory, struct ws_serve_model **out,
                        struct ws_err *err);
void ws_serve_model_close(struct ws_serve_model *m); /* NULL is fine */

/* The memory of param i at a rank; NULL: none is kept. A tied parameter has that of its other. */
uint8_t *ws_serve_model_at(const struct ws_serve_model *m, size_t param, unsigned rank);
/* Bytes of param i at a rank. */
uint64_t ws_serve_model_bytes(const struct ws_serve_model *m, size_t param, unsigned rank);
/* The boxes of a part at a rank, in bytes of its param's type. */
void ws_serve_model_boxes(const struct ws_serve_model *m, const struct ws_part *p, unsigned rank,
                          struct ws_serve_boxes *out);
/* Bytes of a whole part, in its param's type. */
uint64_t ws_serve_model_part_bytes(const struct ws_serve_model *m, const struct ws_part *p);

/* A part put together again from the memory of the ranks. */
struct ws_serve_gather {
	const struct ws_serve_model *model;
	const struct ws_part *part;
	enum ws_dtype dtype;        /* what the bytes are given in */
	uint64_t bytes;
	bool replicated;            /* some of it is held by several ranks */
	struct ws_serve_boxes boxes[WS_SERVE_MAX_TP];
};
/* dtype: usually that of the param; else one it converts to. Needs memory. */
void ws_serve_gather_begin(struct ws_serve_gather *g, const struct ws_serve_model *m,
                           const struct ws_part *p, enum ws_dtype dtype);
/* Bytes [at, at+n), whole elements. Where several ranks hold the same, `rank` counts. */
void ws_serve_gather_read(const struct ws_serve_gather *g, unsigned rank, uint64_t at, uint8_t *dst,
                          size_t n);
/* XXH3-64 of all bytes, for every rank: hashes[tp]. 0, or -1 for want of memory. */
int ws_serve_gather_hash(const struct ws_serve_gather *g, uint64_t *hashes);

/* ---- read-only parameters ---- */

/* What SGLang refuses to start with: block FP8 with static scales of activations, or told another
 * quantization than the checkpoint's. */
int ws_serve_model_check_quant(const struct ws_config *c, const char *quantization,
                               struct ws_err *err);
/* Are its linear layers of this kind? */
bool ws_serve_model_is_read_only(const struct ws_config *c, const char *quantization);
/* Finds them: m->read_only, and their m->dtypes. */
int ws_serve_model_find_read_only(struct ws_serve_model *m, struct ws_err *err);
/* The shape that a rank has of a read-only parameter, or (scale) of its scales.
 * Returns the dims' number. */
unsigned ws_serve_read_only_dims(const struct ws_serve_model *m, size_t param, bool scale,
                             unsigned rank, int64_t *dims);
/* The read-only parameter whose scales have this name ("X.weight_scale"); SIZE_MAX. */
size_t ws_serve_read_only_scale(const struct ws_serve_model *m, const char *name);

/* ---- names ---- */

enum ws_serve_load_action {
	WS_ACTION_LOAD,    /* into parts [first, first+n) */
	WS_ACTION_IGNORE,  /* without a word or with a line in the log; success */
	WS_ACTION_REFUSE   /* an exception in the loader */
};

struct ws_serve_load_decision {
	enum ws_serve_load_action action;
	size_t first, n;     /* parts of the layout; several when the name is a fused parameter's */
	bool alone;          /* loaded only when all parts of its param are in one request */
	/* loaded only where its shape happens to be that of the read-only param, its scales */
	bool read_only, scale;
	char why[512];       /* IGNORE: for the log; REFUSE: the exception's text */
};

const struct ws_serve_loader_rules *ws_serve_loader_rules_of(const char *family);
void ws_serve_model_decide(const struct ws_serve_model *m, const char *name,
                           struct ws_serve_load_decision *out);

/* ---- an update ---- */

struct ws_serve_tensor_dest {      /* one tensor of the request */
	bool loads;
	size_t first, n;     /* parts */
	enum ws_dtype from, to;
};

struct ws_serve_cursor {     /* of one rank, in the stream of one tensor's bytes */
	size_t slot, part;   /* SIZE_MAX: none */
	uint64_t part_at;    /* where the part begins in the tensor, in bytes of the param's type */
	struct ws_serve_boxes boxes;
	uint8_t carry[8];    /* the beginning of an element that was cut by the stream */
	size_t n_carry;
};

struct ws_serve_load {
	struct ws_serve_model *model;
	struct ws_serve_tensor_dest *dest; /* one per slot */
	size_t n;
	uint64_t loaded, ignored;
	char *ignored_names;          /* of the first ones, each ended by a NUL; NULL: none */
	size_t ignored_len;
	struct ws_err why;            /* the tensor behind those that are loaded is refused */
	struct ws_serve_cursor cursors[WS_SERVE_MAX_TP];
};

/* In the words of the default loader. dims: the parameter's. */
int ws_serve_refuse_shape(const struct ws_serve_slot *slot, unsigned n_dims, const int64_t *dims,
                          struct ws_err *err);
/* Decides what becomes of every tensor. -1: out of memory. */
int ws_serve_load_begin(struct ws_serve_load *l, struct ws_serve_model *m,
                        const struct ws_serve_update *u, const struct ws_log *log,
                        struct ws_err *err);
/* Bytes [at, at+n) of a tensor as a rank received them, each rank in a thread of its own and in
 * order. Goes where they belong. */
void ws_serve_load_put(struct ws_serve_load *l, unsigned rank, size_t slot, uint64_t at,
                       const uint8_t *bytes, size_t n);
/* The parts are loaded now. *duplicates: how many came before in this sync. */
void ws_serve_load_commit(struct ws_serve_load *l, uint64_t sync, uint64_t *duplicates);
/* Of the model's parts [first, first+n). */
void ws_serve_mark_loaded(struct ws_serve_model *m, size_t first, size_t n, enum ws_dtype came_as);
void ws_serve_load_fini(struct ws_serve_load *l);

#endif
