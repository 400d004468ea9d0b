/* SPDX-License-Identifier: Apache-2.0 */
/* lora_priv.h - internals of an adapter: its config, its parsed keys, its modules. */
#ifndef WS_TRANSFORM_LORA_PRIV_H
#define WS_TRANSFORM_LORA_PRIV_H

#include "lora.h"

#include "arena.h"
#include "wsync/tool/json_read.h"

enum { WS_LORA_MAX_NAME = 512 }; /* of a module, with the NUL */
/* Enough for 20,000 modules, each with a pattern of its own for its rank and its alpha. */
enum { WS_LORA_MAX_WORK = 1 << 30 };

/* ---- adapter_config.json ---- */

struct ws_lora_pattern {
	const char *text;
	double value;
};

/* Names or patterns of modules. */
struct ws_lora_names {
	bool given;             /* not null */
	const char *pattern;    /* one regular expression for a whole name; NULL: a list */
	const char **list;
	size_t n;
};

struct ws_lora_config {
	int64_t rank;
	double alpha;
	bool rslora;
	bool tying;         /* ensure_weight_tying */
	bool axes_in_order; /* PEFT before 0.19: a stack's A goes with the first axis of an expert's
	                     * matrix and B with the second, whatever those are */
	struct ws_lora_pattern *ranks, *alphas;
	size_t n_ranks, n_alphas;
	struct ws_lora_names params; /* target_parameters */
	struct ws_lora_names targets, excluded, saved; /* target_modules, exclude_modules,
	                                                * modules_to_save */
	struct ws_lora_names layers_pattern;
	int64_t *layers;             /* layers_to_transform */
	size_t n_layers;
	uint64_t *left;              /* of WS_LORA_MAX_WORK; 0: later answers are wrong */
	struct ws_arena arena;
};

/* what: the file's name. Refuses settings that would make the merge anything but B @ A * scale. */
int ws_lora_config_parse(const char *text, size_t len, const char *what, struct ws_lora_config *out,
                         struct ws_err *err);
void ws_lora_config_free(struct ws_lora_config *c);
/* Rank and scale of a module, by the first pattern that it matches. */
int ws_lora_config_find(const struct ws_lora_config *c, const char *module, int64_t *rank,
                        float *scale, struct ws_err *err);
/* The field of adapter_config.json for which PEFT gives this module no factors, so that it would
 * leave those of the file out; NULL: it has factors. tied: the head is the embedding. */
const char *ws_lora_config_omits(const struct ws_lora_config *c, const char *module, bool tied);
/* Is this name that of a module of modules_to_save, or inside of one? */
bool ws_lora_is_saved_as(const struct ws_lora_config *c, const char *entry, const char *name);
/* False: a pattern of modules is in a form that is not supported. */
bool ws_lora_config_is_understood(const struct ws_lora_config *c);
/* Does target_parameters name this parameter, MODULE.PARAMETER? */
bool ws_lora_config_has_param(const struct ws_lora_config *c, const char *parameter);
/* Fails if the names and patterns were too many to compare all of them with all modules. */
int ws_lora_config_check_work(const struct ws_lora_config *c, struct ws_err *err);
/* Does the pattern match the end of a name? *wrong: why the pattern is invalid, or NULL. */
bool ws_lora_matches(const char *pattern, const char *name, uint64_t *left, const char **wrong);
/* Does it match the whole name? */
bool ws_lora_matches_all(const char *pattern, const char *name, uint64_t *left, const char **wrong);
/* Takes the work of comparisons from *left. False: there was less, and nothing is left. One is
 * about 30 ns. */
bool ws_lora_spend(uint64_t *left, uint64_t work);

/* ---- keys ---- */

enum ws_lora_kind {
	WS_LORA_A,
	WS_LORA_B,
	WS_LORA_TENSOR, /* a tensor of the base, trained as a whole */
	WS_LORA_IGNORED /* a copy of a tensor of the base */
};

struct ws_lora_key {
	enum ws_lora_kind kind;
	/* of the module, or of the tensor: without prefix and wrappers */
	char name[WS_LORA_MAX_NAME];
	char other[WS_LORA_MAX_NAME]; /* of a tensor: its other possible name; "" */
	/* "model." may be missing in front: trained without a head */
	bool headless;
	bool prefixed;                /* with PEFT's "base_model." */
	bool embedding;
	char adapter[64];             /* its name in the key; "": none there */
	unsigned depth;               /* number of base_layer wrappers, each with its own factors */
};

/* Parses the name of a tensor. WS_EINPUT: only DoRA or another variant has such a tensor. */
int ws_lora_key_parse(const char *tensor, struct ws_lora_key *out, struct ws_err *err);

/* ---- modules ---- */

struct ws_lora_module {
	const char *name;
	bool headless, embedding;
	unsigned depth;
	const struct ws_item *a, *b;
	bool a_used, b_used;
};

struct ws_lora_tensor {
	const char *name, *other;
	const char *adapter; /* whose name is missing in `other`; NULL */
	bool headless;
	const struct ws_item *item;
};

struct ws_adapter {
	char *dir;
	struct ws_lora_config config;
	struct ws_source *source;
	struct ws_catalog *catalog;
	struct ws_lora_module *modules; /* by name, then depth */
	size_t n_modules;
	struct ws_lora_tensor *tensors;
	size_t n_tensors;
	const struct ws_family *family;
	const char *type;   /* the model type of the base; NULL: unknown */
	bool tied;          /* the base's head is its embedding */
	int64_t layers;     /* of the base, without next-token layers; 0: unknown */
	const char *name;   /* of the adapter, in all keys of its factors; "": in none */
	struct ws_arena arena;
};

/* Sorts items into modules and tensors. The items are borrowed. */
int ws_adapter_take(struct ws_adapter *a, const struct ws_item *const *items, size_t n,
                    struct ws_err *err);
/* NULL: there is no such module. */
const struct ws_lora_module *ws_adapter_module(const struct ws_adapter *a, const char *name);

#endif
