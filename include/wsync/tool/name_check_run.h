/* SPDX-License-Identifier: Apache-2.0 */
/* name_check_run.h - the whole check of names: finds references to compare an input with
 * (the layout from a config and the server's sizes, the server's listing, or a saved one), and
 * runs the comparison (namecheck.h).
 *
 * If there is nothing to compare with, the result says why: an unknown server is no failure. */
#ifndef WSYNC_NAME_CHECK_RUN_H
#define WSYNC_NAME_CHECK_RUN_H

#include "wsync/tool/input.h"
#include "wsync/endpoint.h"
#include "wsync/event.h"
#include "wsync/tool/namecheck.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A server, or a saved listing in its place. */
struct ws_name_check_target {
	char url[WS_URL_MAX];          /* "": no server */
	unsigned tp, ep, attention_tp; /* 0: 1, 1 and tp */
	struct ws_config *config;      /* of its model_path, if readable here; NULL */
	struct ws_weight_list listing;
	char listed[WS_URL_MAX + 64];          /* origin of the listing; "": none */
	const char *unused;                    /* as info.path_unused */
	char unlisted[256];                    /* why there is no listing */
	char start[1024];                      /* start_path; "": not known */
	struct ws_input_found found;           /* the reference of this server */
	char model_type[64], architecture[96]; /* from the server's config.json; "": unknown */
	bool dtype_told;                       /* the server says what its weights are kept in */
	bool keeps_anything;                   /* wsync-endpoint without a model: takes any name */
	bool whole_modules, keeps_biases;      /* see ws_namecheck_opts */
	/* ws_name_check_measure queries it: config and listing are unknown */
	bool askable;
	/* a vLLM whose config and listing are unknown: ws_name_check_sums asks it, once */
	bool summable;
	/* the names of this plan fit the list that this start of the server showed before */
	bool listed_before;
	/* data-parallel: number of parts in replies to ws_name_check_measure */
	unsigned replicas;
	/* from the config that ws_name_check_measure compared; 0: none */
	int64_t layers, width;
	const char *differs_key; /* the differing key, static, */
	char differs[512];       /* and a sentence; "": no difference */
};

/* The model directory that an endpoint reports, if it has a config.json readable on this machine;
 * else NULL. */
const char *ws_name_check_model_dir(const struct ws_endpoint_info *info);
/* The config there, with the rules of the server's release. NULL: none can be read here. A
 * malformed config counts as missing, not as an error: the operator did not name it. */
struct ws_config *ws_name_check_config(const struct ws_endpoint_info *info);
/* Finds the checkpoint that a server was started from, where this machine has it: at the path of
 * its start, or by its name in the cache of the Hugging Face Hub. */
void ws_name_check_reference(const struct ws_endpoint_info *info, struct ws_input_found *out);
/* The first that is found for one of n servers. state_dir: with the records of pushes; NULL. */
struct ws_input_found ws_name_check_references(const struct ws_endpoint_info *infos, size_t n,
                                               const char *state_dir);
/* Is that the same config, with the same rules, for both? */
bool ws_name_check_alike(const struct ws_endpoint_info *a, const struct ws_endpoint_info *b);
/* The config of the first of n servers that keeps FP8. Its block size and its list of modules
 * decide what the transform t quantizes. NULL: no server keeps FP8, or t does not quantize. */
struct ws_config *ws_name_check_quant(const struct ws_endpoint_info *infos, size_t n,
                                      const struct ws_transform_opts *t);

/* Queries the properties and listings of n endpoints at once. thorough: an endpoint without a
 * listing is asked for the names of its checksums, for which it reads all of its weights. -1:
 * cancelled, or a system error. */
int ws_name_check_ask(struct ws_http *http, const struct ws_endpoint_info *infos, size_t n,
                      bool thorough, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_name_check_target *out, struct ws_err *err);
/* Takes the names of the checksums of targets that are summable as their listings. A server reads
 * all of its weights to compute them; without an answer nothing is known of it. infos: as detected;
 * NULL: not known. how: without URLs. -1: cancelled, or a system error. */
int ws_name_check_sums(const struct ws_call *how, const struct ws_endpoint_info *infos,
                       struct ws_name_check_target *targets, size_t n, struct ws_err *err);
/* Requests a few parameters from endpoints whose config and listing are unknown, and compares the
 * number of layers and the hidden size with the source's config. Parameters that they do not return
 * are no failure. A server logs each request for a parameter that it lacks. -1: cancelled, or a
 * system error. */
int ws_name_check_measure(struct ws_http *http, const struct ws_input *in,
                          struct ws_name_check_target *targets, size_t n, ws_deadline until,
                          const struct ws_cancel *cancel, struct ws_err *err);
/* Reads a saved listing (ws_weight_list_read). */
int ws_name_check_read(const char *path, struct ws_name_check_target *t, struct ws_err *err);
void ws_name_check_target_free(struct ws_name_check_target *t); /* NULL is fine */
/* True if both would get the same result. */
bool ws_name_check_same(const struct ws_name_check_target *a, const struct ws_name_check_target *b);

struct ws_name_check_run_opts {
	struct ws_input *input; /* borrowed until ws_name_check_run_free, as all of this */
	const struct ws_plan *plan;   /* NULL */
	/* as of ws_namecheck_opts */
	const char *const *include, *const *exclude;
	size_t n_include, n_exclude;
	bool (*elsewhere)(const void *ctx, const char *name);
	const void *elsewhere_ctx;
	bool scan, tied_later; /* as of ws_namecheck_opts */
	const struct ws_cancel *cancel;
};

struct ws_name_check_run {
	/* The names were compared with the server's data, or with files that the caller named. An
	 * endpoint without a model confirms names that fit the rules, if it has received tensors of
	 * all of them in these shapes before. */
	bool checked;
	/* not checked, but compared with the source's own config.json */
	bool own_config;
	bool by_list; /* checked: with names that the server lists, not only by rules */
	bool by_reference; /* checked: with a checkpoint that the server can be started from */
	bool layered; /* the family is known, and the names were compared with its layers */
	char why[640];      /* why not checked: "no config.json, and ..." */
	char unused[512];   /* why a reference that was found was not used; "" */
	char against[1536]; /* "qwen3 at tp 2 by ckpt/config.json" */
	char family[64];    /* "generic": unknown */
	struct ws_findings found;
	/* by_reference: the first rules that relate names with it */
	struct ws_name_check_related {
		char from[96], to[96]; /* segments; "" none */
		size_t names;
	} related[8];
	size_t n_related;
	struct ws_layout *layout; /* the server's; NULL: not known */
};

/* 0: done, whatever it found, or nothing to compare with. -1: the config lacks a key that its
 * family needs, out of memory, or cancelled while scanning. */
int ws_name_check_run(const struct ws_name_check_run_opts *opts,
                      const struct ws_name_check_target *target, struct ws_name_check_run *out,
                      struct ws_err *err);
void ws_name_check_run_free(struct ws_name_check_run *a); /* NULL is fine */
/* Adds the run at another server: *sum, which owns nothing, claims what holds for both. Of what was
 * left out it keeps that of the server that needs most of it. */
void ws_name_check_run_add(struct ws_name_check_run *sum, const struct ws_name_check_run *one);
void ws_name_check_take_left_out(struct ws_findings *sum, const struct ws_findings *one);

/* Runs the check once for equal targets, emits WS_EV_NAMES for each run, and adds the counts and
 * the tied heads to *sum, which owns nothing. Errors found: WS_EMISMATCH with the first of them. */
int ws_name_check_run_all(const struct ws_name_check_run_opts *opts,
                          const struct ws_name_check_target *targets, size_t n,
                          const struct ws_sink *sink, struct ws_name_check_run *sum,
                          struct ws_err *err);

/* The server's layout for this input: from the config that the user named, else the server's own if
 * its family is known, else the source's. *out NULL: no config, or an unknown family; why (or NULL)
 * then says which. */
int ws_name_check_layout(const struct ws_input *input, const struct ws_name_check_target *t,
                         struct ws_layout **out, char *why, size_t n, struct ws_err *err);

/* The dtype of a server's weights, as far as no rule fixes another, from its settings and the
 * config (NULL: none); WS_DTYPE_COUNT: unknown. */
enum ws_dtype ws_name_check_dtype(const struct ws_endpoint_info *info,
                                  const struct ws_config *config);

/* "there is no config.json", "no family is known for architecture 'X' of DIR/config.json". */
void ws_name_check_unknown(const struct ws_config *config, char *why, size_t n);

#ifdef __cplusplus
}
#endif
#endif
