/* SPDX-License-Identifier: Apache-2.0 */
/* serve_model.h - the runtime parameters of an endpoint that has a model's config.json.
 *
 *   serve_model.c        the list of parameters, their places in memory, reading them
 *   serve_model_fp8.c    parameters in FP8 that a server cannot update
 *   serve_model_names.c  which names are loaded, ignored or refused, as each model's loader does
 *   serve_model_load.c   an update: from the bytes of a request to the memory of every rank
 *
 * Each tensor-parallel rank has one piece of memory with its own share of every parameter, fused,
 * cut and replicated like a server's. A tensor is addressed by its name in the checkpoint (a part
 * of the layout), or, as a whole parameter, by the server's name (a param). */
#ifndef WS_ENDPOINT_SERVE_MODEL_H
#define WS_ENDPOINT_SERVE_MODEL_H

#include "serve_boxes.h"
#include "serve_core.h"
#include "serve_decode.h"

#include "wsync/tool/config.h"
#include "wsync/tool/layout.h"

enum { WS_SERVE_LOAD_NAMES = 16 }; /* ignored names of an update that the journal lists */

/* The load state of one part. */
struct ws_serve_part_state {
	bool loaded;
	enum ws_dtype came_as;      /* type in which the part was last sent */
	uint64_t sync;              /* sync in which the part was last sent */
};

/* How a loader treats names that are not in the checkpoint. */
struct ws_serve_loader_rules;

struct ws_serve_model {
	struct ws_config *config;
	struct ws_namemap *map;
	struct ws_layout *layout;
	const struct ws_serve_loader_rules *rules;
	bool refuses_unknown;       /* as vLLM does, instead of by the rules */
	unsigned tp, ep;
	enum ws_dtype dtype;        /* of parameters that are not quantized */
	int64_t n_layers;           /* layers from this number on are not in the target model */
	enum ws_dtype *dtypes;      /* of each param */
	/* of each param: it is FP8 and cannot be updated; NULL: no param is read-only */
	bool *read_only;
	uint64_t *offsets;          /* of param i at rank r: offsets[i * tp + r] */
	uint64_t *rank_bytes;       /* bytes of each rank's memory */
	uint8_t **memory;           /* of each rank; all NULL if no bytes are kept */
	struct ws_serve_part_state *parts;
	size_t n_loaded;            /* parts that were loaded at least once */
};

/* dir: directory of the config.json. tp: a multiple of ep.
 * dtype: a torch dtype; NULL: the config's.
 * quantization: the server's option; NULL or "": none. */
int ws_serve_model_open(const char *dir, unsigned rules, unsigned tp, unsigned ep,
                        const char *dtype,
                        const char *quantization, bool memory, struct ws_serve_model **out,
                        struct ws_err *err);
void ws_serve_model_close(struct ws_serve_model *m); /* NULL is fine */

/* Returns the memory of a param at a rank; NULL if no bytes are kept. Tied params share memory. */
uint8_t *ws_serve_model_at(const struct ws_serve_model *m, size_t param, unsigned rank);
/* Returns the size of a param at a rank. */
uint64_t ws_serve_model_bytes(const struct ws_serve_model *m, size_t param, unsigned rank);
/* The boxes of a part at a rank, in bytes of its param's type. */
void ws_serve_model_boxes(const struct ws_serve_model *m, const struct ws_part *p, unsigned rank,
                          struct ws_serve_boxes *out);
/* Bytes of a whole part, in its param's type. */
uint64_t ws_serve_model_part_bytes(const struct ws_serve_model *m, const struct ws_part *p);

/* Assembles a part from the memory of all ranks. */
struct ws_serve_gather {
	const struct ws_serve_model *model;
	const struct ws_part *part;
	enum ws_dtype dtype;        /* type of the returned bytes */
	uint64_t bytes;
	bool replicated;            /* several ranks have the same bytes of the part */
	struct ws_serve_boxes boxes[WS_SERVE_MAX_TP];
};
/* dtype: the param's type, or a type it converts to. The model must have memory. */
void ws_serve_gather_begin(struct ws_serve_gather *g, const struct ws_serve_model *m,
                           const struct ws_part *p, enum ws_dtype dtype);
/* Reads bytes [at, at+n), whole elements. If several ranks have the same bytes, reads `rank`'s. */
void ws_serve_gather_read(const struct ws_serve_gather *g, unsigned rank, uint64_t at, uint8_t *dst,
                          size_t n);
/* Writes the XXH3-64 of all bytes for every rank to hashes[tp]. -1: out of memory. */
int ws_serve_gather_hash(const struct ws_serve_gather *g, uint64_t *hashes);

/* ---- read-only parameters ---- */

/* Refuses models that SGLang does not start with: block FP8 with static activation scales, or a
 * quantization option that differs from the checkpoint's. */
int ws_serve_model_check_quant(const struct ws_config *c, const char *quantization,
                               struct ws_err *err);
/* Whether the model's linear layers are read-only FP8 (serve_model_fp8.c). */
bool ws_serve_model_is_read_only(const struct ws_config *c, const char *quantization);
/* Finds the read-only parameters: fills in m->read_only and their m->dtypes. */
int ws_serve_model_find_read_only(struct ws_serve_model *m, struct ws_err *err);
/* Writes the shape at a rank of a read-only parameter, or (scale) of its scales.
 * Returns the number of dims. */
unsigned ws_serve_read_only_dims(const struct ws_serve_model *m, size_t param, bool scale,
                             unsigned rank, int64_t *dims);
/* Returns the read-only parameter whose scales have this name ("X.weight_scale"), or SIZE_MAX. */
size_t ws_serve_read_only_scale(const struct ws_serve_model *m, const char *name);

/* ---- names ---- */

enum ws_serve_load_action {
	WS_ACTION_LOAD,    /* into parts [first, first+n) */
	WS_ACTION_IGNORE,  /* succeeds silently, or with a line in the log */
	WS_ACTION_REFUSE   /* an exception in the loader */
};

struct ws_serve_load_decision {
	enum ws_serve_load_action action;
	size_t first, n;     /* parts of the layout; several if the name is a fused parameter's */
	bool alone;          /* loaded only if all parts of its param are in the request */
	/* a read-only param; its scales: loaded only if the sent shape equals the rank's shape */
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

struct ws_serve_cursor {     /* position of one rank in the bytes of one tensor */
	size_t slot, part;   /* slot SIZE_MAX: none */
	uint64_t part_at;    /* offset of the part in the tensor, in bytes of the param's type */
	struct ws_serve_boxes boxes;
	uint8_t carry[8];    /* the first bytes of an element that the stream has cut */
	size_t n_carry;
};

struct ws_serve_load {
	struct ws_serve_model *model;
	struct ws_serve_tensor_dest *dest; /* one per slot */
	size_t n;
	uint64_t loaded, ignored;
	char *ignored_names;          /* the first ignored names, each ends with a NUL; or NULL */
	size_t ignored_len;
	struct ws_err why;            /* the first refusal; later tensors are not loaded */
	size_t refused;               /* the refused tensor; n: none */
	struct ws_serve_cursor cursors[WS_SERVE_MAX_TP];
};

/* Sets the default loader's error for a wrong shape. dims: the parameter's shape. */
int ws_serve_refuse_shape(const struct ws_serve_slot *slot, unsigned n_dims, const int64_t *dims,
                          struct ws_err *err);
/* Decides for every tensor whether it is loaded, ignored or refused. -1: out of memory. */
int ws_serve_load_begin(struct ws_serve_load *l, struct ws_serve_model *m,
                        const struct ws_serve_update *u, const struct ws_log *log,
                        struct ws_err *err);
/* Stores received bytes [at, at+n) of a tensor in a rank's memory. Each rank calls it in its own
 * thread, with bytes in order. */
void ws_serve_load_put(struct ws_serve_load *l, unsigned rank, size_t slot, uint64_t at,
                       const uint8_t *bytes, size_t n);
/* Marks the parts as loaded. *duplicates: tensors that were already loaded in this sync. */
void ws_serve_load_commit(struct ws_serve_load *l, uint64_t sync, uint64_t *duplicates);
/* Marks the model's parts [first, first+n) as loaded. */
void ws_serve_mark_loaded(struct ws_serve_model *m, size_t first, size_t n, enum ws_dtype came_as);
void ws_serve_load_fini(struct ws_serve_load *l);

#endif
