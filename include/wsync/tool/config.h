/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - a model's config.json, as far as names and shapes depend on it.
 *
 * Keys are those of Hugging Face's config.json. Multimodal models keep the language model's keys in
 * a nested "text_config": there a key is looked up first, and at the top level when it is
 * absent. */
#ifndef WSYNC_CONFIG_H
#define WSYNC_CONFIG_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "wsync/tool/buf.h"
#include "wsync/tool/config.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ws_config; /* opaque, read-only after opening */

/* path: a config.json, its directory, or hf:ORG/NAME (hub.h). WS_EINPUT: not a JSON object, or over
 * 16 MiB. */
int ws_config_open(const char *path, struct ws_config **out, struct ws_err *err);
int ws_config_parse(const char *text, size_t n, const char *what, struct ws_config **out,
                    struct ws_err *err);
void ws_config_free(struct ws_config *c); /* NULL is fine */

const char *ws_config_path(const struct ws_config *c);         /* of the file read, or `what` */
const char *ws_config_architecture(const struct ws_config *c); /* first of "architectures"; "" */
const char *ws_config_model_type(const struct ws_config *c);   /* "" */
/* The language model's own, where text_config is nested. "" */
const char *ws_config_text_architecture(const struct ws_config *c);
const char *ws_config_text_model_type(const struct ws_config *c);

/* Is the key there, and not null? */
bool ws_config_knows(const struct ws_config *c, const char *key);
/* False: absent, null, or of another type. A boolean reads as 0 or 1. */
bool ws_config_int(const struct ws_config *c, const char *key, int64_t *out);
const char *ws_config_string(const struct ws_config *c, const char *key); /* NULL */
/* Is value among the integers of that array? (mlp_only_layers) */
bool ws_config_has(const struct ws_config *c, const char *key, int64_t value);
/* Do both levels have this key, with different values? (Often tie_word_embeddings.) */
bool ws_config_disagrees(const struct ws_config *c, const char *key);

/* Is the head the embedding? tie_word_embeddings, or the default of the model type. */
bool ws_config_tied(const struct ws_config *c);

/* quantization_config. */
struct ws_quant {
	const char *method;           /* "fp8", "mxfp4", "compressed-tensors"; "" none */
	int64_t block[2];             /* weight_block_size: rows, columns; 0, 0: per tensor */
	/* modules_to_not_convert / ignored_layers, owned by the config */
	const char *const *skip;
	size_t n_skip;
	/* of skip; NULL: each entry is tried, by whole segments. Rules need it. */
	struct ws_skip_index *index;
	const char *scale_fmt;        /* "ue8m0": scales are powers of two; "": absent */
	const char *activation;       /* activation_scheme: "dynamic", "static"; "": absent */
	const char *algo;             /* ModelOpt's quant_algo, else a format: "NVFP4"; NULL, "" */
	int64_t bits;                 /* of a weight (AWQ, GPTQ, compressed-tensors); 0: absent */
	bool integers;                /* compressed-tensors: the weights are integers */
	bool ignored_layers;          /* that key has the list */
	unsigned rules;               /* enum ws_skip_rule: how servers may match the list */
};
/* How releases of servers match the list. 0: by whole segments, see ws_quant_skips. */
enum ws_skip_rule {
	WS_SKIP_VLLM = 1,
	WS_SKIP_SGLANG_NAME = 2,  /* to 0.5.6 */
	WS_SKIP_SGLANG_PART = 4,  /* 0.5.9 */
	WS_SKIP_SGLANG_SHARD = 8, /* 0.5.10 */
	WS_SKIP_SGLANG_PATH = 16  /* from 0.5.11 on */
};
/* The rules of a release; several where it cannot be known which it has. */
unsigned ws_quant_rules(bool vllm, const char *version);
const struct ws_quant *ws_config_quant(const struct ws_config *c); /* never NULL */
/* Replaces the quantization_config, after a transform. Borrows the strings and copies their
 * list. */
int ws_config_set_quant(struct ws_config *c, const struct ws_quant *q, struct ws_err *err);
/* The list is matched as servers with these rules (ws_quant_rules) match it. */
void ws_config_set_rules(struct ws_config *c, unsigned rules);
/* Is this module ("model.layers.0.mlp.gate") left unquantized, by the first of q->rules? Without
 * rules an entry matches the module itself, modules below it, its last segments ("gate",
 * "mlp.gate"), and "*" as a glob; a trailing ".weight" is ignored, and "re:" patterns match
 * nothing. */
bool ws_quant_skips(const struct ws_quant *q, const char *module);
/* Do all of q->rules say the same of this module? */
bool ws_quant_agrees(const struct ws_quant *q, const char *module);
/* True: the list was compared too often, as no list of a model needs, and later answers of its
 * rules are wrong. Check it before their answers are used. */
bool ws_quant_gave_up(const struct ws_quant *q);
void ws_quant_restart(const struct ws_quant *q); /* counts from 0 again; NULL is fine */

/* Writing the config.json of transformed weights. */
/* Appends this config.json with another quantization_config; all other members stay as written,
 * to the digit. q->method "": without one. `what` names the text in messages. WS_EINPUT: not a JSON
 * object. */
int ws_config_requantize(const char *text, size_t n, const char *what, const struct ws_quant *q,
                         struct ws_buf *out, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
