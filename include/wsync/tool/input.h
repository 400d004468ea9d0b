/* SPDX-License-Identifier: Apache-2.0 */
/* input.h - a checkpoint as a user names it, opened: sources, config, rules, and their catalog.
 *
 * One way for all programs, so that a check looks at the very items that a push sends. */
#ifndef WSYNC_INPUT_H
#define WSYNC_INPUT_H

#include "wsync/tool/catalog.h"
#include "wsync/transform.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_input_opts {
	const char *const *paths; /* several are one checkpoint; with sharded_tp see shards.h */
	size_t n_paths;
	const char *map;          /* rules in front of the built-in ones; NULL: none */
	const char *config; /* config.json or its directory; NULL: the one beside the checkpoint, or
	                     * that of the synthetic model */
	/* likewise, where there is none of these: the server's; NULL: none */
	const char *fallback;
	unsigned sharded_tp, sharded_ep; /* saved by so many ranks; 0: it is whole */
	const struct ws_memory_ops *memory; /* as of ws_source_opts, like */
	const struct ws_cancel *cancel;
	/* What is done to it; NULL: nothing. Its base, family and layout are filled in here, and
	 * where they are not said quant and blocks, from a config that is for FP8. */
	const struct ws_transform_opts *transform;
};

struct ws_input {
	struct ws_source **sources;     /* one, or with shards one of each rank */
	size_t n_sources;
	unsigned sharded_tp, sharded_ep; /* of the ranks that saved it; 0: it is whole */
	struct ws_namemap *map;
	/* NULL: none was found. quantization_config is that of what is sent */
	struct ws_config *config;
	bool named;                     /* it is that of the options' config: the caller's word */
	bool fallback;                  /* it is that of the options' fallback */
	/* the generic one where the config is of none, or there is none */
	const struct ws_family *family;
	struct ws_layout *layout;       /* at tp 1, to unfuse with; NULL: see `why` */
	struct ws_layout *sharded;      /* of the ranks that saved it; NULL: it is whole */
	struct ws_catalog *stored;      /* as the source has it */
	struct ws_transform *transform; /* NULL: there is nothing to do */
	const struct ws_catalog *catalog; /* as it is sent: of the transform, or what is stored */
	struct ws_err why; /* what kept the layout from being made; code WS_OK: nothing did,
	                    * there is no config or no family of ours */
};

/* No path at all: config and rules alone, and no catalog. A config or map that was asked for and
 * cannot be used is an error; one that merely lies beside a checkpoint or at a server and does
 * not suit is not: names are then taken as they are. */
int ws_input_open(const struct ws_input_opts *opts, struct ws_input *out, struct ws_err *err);
void ws_input_close(struct ws_input *in); /* NULL and all zero are fine */
/* It is of a family of ours, which says what parameters servers have. */
bool ws_input_known(const struct ws_input *in);

/* Of the transform of an input: what it has done so far, */
void ws_transform_report(const struct ws_transform *t, struct ws_transform_report *out);
/* and whether every adapter changes a tensor that is sent: else WS_EINPUT names the adapter. */
int ws_transform_sends(const struct ws_transform *t, struct ws_err *err);

/* The config beside a source, or that of a synthetic model; *out NULL: it has none. */
int ws_source_config(const struct ws_source *s, struct ws_config **out, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
