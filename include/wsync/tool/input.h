/* SPDX-License-Identifier: Apache-2.0 */
/* input.h - opens a checkpoint that a user names: sources, config, rules, and their catalog.
 *
 * All programs use this, so that a check sees the same items that a push sends. */
#ifndef WSYNC_INPUT_H
#define WSYNC_INPUT_H

#include "wsync/tool/catalog.h"
#include "wsync/tool/reference.h"
#include "wsync/tool/related.h"
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
	/* the server's config, if none of these exists; NULL: none */
	const char *fallback;
	/* A reference that the user named; NULL: none. It must be usable. */
	const char *like;
	/* One that was found for a server, if none was named; "" and 0: none */
	struct ws_input_found {
		char path[1100];
		char of[1024];      /* the server's start_path: it holds for these servers */
		char name[640];     /* for people */
		int64_t started;    /* ns since 1970; 0: not known */
		int64_t seen;       /* it ran at that time, by the record of a push; 0: not known */
		bool cached;        /* by its name on a hub: these files never change */
		char architecture[96], model_type[64]; /* that the server runs; "": not told */
	} found;
	unsigned sharded_tp, sharded_ep; /* sizes of the ranks that saved it; 0: whole */
	const struct ws_memory_ops *memory; /* as in ws_source_opts, also cancel */
	const struct ws_cancel *cancel;
	/* Transforms; NULL: none. ws_input_open fills in base, family and layout. If quant and
	 * block are unset, it takes them from a config that is for FP8. */
	const struct ws_transform_opts *transform;
};

struct ws_input {
	struct ws_source **sources;     /* one, or with shards one of each rank */
	size_t n_sources;
	unsigned sharded_tp, sharded_ep; /* of the ranks that saved it; 0: it is whole */
	struct ws_namemap *map;
	/* NULL: none was found. quantization_config is that of the sent tensors */
	struct ws_config *config;
	bool named;                     /* the config is the one named in the options */
	bool fallback;                  /* the config is the options' fallback */
	/* the generic family if the config's is unknown, or there is no config */
	const struct ws_family *family;
	/* at tp 1, to split fused tensors; NULL: see `why`, or it is not needed yet
	 * (ws_input_layout) */
	struct ws_layout *layout;
	struct ws_layout *sharded;      /* of the ranks that saved it; NULL: it is whole */
	struct ws_catalog *stored;      /* the tensors as the source has them */
	struct ws_reference like;       /* n 0: none */
	bool like_named;                /* by the options, for all servers */
	char like_of[1024];             /* else: for servers with this start_path */
	char like_unused[512];          /* why one that was found is not used; "" */
	bool same;                      /* the source has its tensors, and nothing is transformed */
	bool unruled;                   /* the family's rules do not hold for the reference */
	struct ws_related related;      /* the names of the one source at the reference */
	bool packed_scales;             /* the transform packs the scales of FP8 */
	struct ws_transform *transform; /* NULL: there is nothing to do */
	const struct ws_catalog *catalog; /* the tensors as sent: the transform's, else `stored` */
	struct ws_err why; /* the error that prevented the layout; code WS_OK: no error, but there
	                    * is no config or its family is unknown */
};

/* Without paths: config and rules only, no catalog. A config or map that the options name and that
 * cannot be used is an error. An unsuitable config beside a checkpoint or at a server is no error:
 * names then stay unchanged. */
int ws_input_open(const struct ws_input_opts *opts, struct ws_input *out, struct ws_err *err);
void ws_input_close(struct ws_input *in); /* NULL and all zero are fine */
/* Is the model's family known, with the parameters that servers have? */
bool ws_input_known(const struct ws_input *in);
/* Its layout, made now if it was not needed so far; NULL: see `why`. */
const struct ws_layout *ws_input_layout(struct ws_input *in);

/* Does a server that tells this run another model than that of the config? It may tell the text
 * model, or an architecture in the place of the config's (SGLang 0.5.23 runs Olmo 3 as
 * Olmo2ForCausalLM). "": it does not tell. */
bool ws_input_is_other(const struct ws_config *c, const char *architecture, const char *model_type);
/* Opens the reference that was found for another server than the first. False: it is not used, and
 * why (n bytes) says so; "": none was found. */
bool ws_input_open_found(const struct ws_input *in, const struct ws_input_found *found,
                         struct ws_reference *out, char *why, size_t n);
/* Globs choose among the names that are sent. WS_EUSAGE: one matches only names that tensors have
 * in the source, and have no more, because a reference has others. option: "include" */
int ws_input_check_globs(const struct ws_input *in, const char *option, const char *const *globs,
                         size_t n, struct ws_err *err);

/* Reports the work of an input's transform so far. */
void ws_transform_report(const struct ws_transform *t, struct ws_transform_report *out);
/* Checks that every adapter changes a tensor that is sent; else WS_EINPUT names the adapter. */
int ws_transform_sends(const struct ws_transform *t, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
