/* SPDX-License-Identifier: Apache-2.0 */
/* lora_priv.h - internals of an adapter: its config, its parsed keys, its modules. */
#ifndef WS_TRANSFORM_LORA_PRIV_H
#define WS_TRANSFORM_LORA_PRIV_H

#include "lora.h"

#include "arena.h"
#include "wsync/tool/json_read.h"

enum { WS_LORA_MAX_NAME = 512 }; /* of a module, with the NUL */

/* ---- adapter_config.json ---- */

struct ws_lora_pattern {
	const char *text;
	double value;
};

struct ws_lora_config {
	int64_t rank;
	double alpha;
	bool rslora, fan_in_fan_out;
	bool axes_in_order; /* PEFT before 0.19: a stack's A goes with the first axis of an expert's
	                     * matrix and B with the second, whatever those are */
	struct ws_lora_pattern *ranks, *alphas;
	size_t n_ranks, n_alphas;
	const char **params; /* target_parameters */
	size_t n_params;
	struct ws_arena arena;
};

/* what: the file's name. Refuses settings that would make the merge anything but B @ A * scale. */
int ws_lora_config_parse(const char *text, size_t len, const char *what, struct ws_lora_config *out,
                         struct ws_err *err);
void ws_lora_config_free(struct ws_lora_config *c);
/* Rank and scale of a module, by the first pattern that it matches. */
int ws_lora_config_find(const struct ws_lora_config *c, const char *module, int64_t *rank,
                        float *scale, struct ws_err *err);
/* Does the pattern match the end of a name? *wrong: why the pattern is invalid, or NULL. */
bool ws_lora_matches(const char *pattern, const char *name, const char **wrong);

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
	bool headless;                /* "model." may be missing in front: trained without a head */
	bool embedding;
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
	struct ws_arena arena;
};

/* Sorts items into modules and tensors. The items are borrowed. */
int ws_adapter_take(struct ws_adapter *a, const struct ws_item *const *items, size_t n,
                    struct ws_err *err);
/* NULL: there is no such module. */
const struct ws_lora_module *ws_adapter_module(const struct ws_adapter *a, const char *name);

#endif
