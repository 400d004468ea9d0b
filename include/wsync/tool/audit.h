/* SPDX-License-Identifier: Apache-2.0 */
/* audit.h - the check of names from end to end: finds out what there is to hold an input against
 * (the layout that a config and the server's sizes give, what the server lists, a saved
 * listing), and holds it against that.
 *
 * Where there is nothing of the kind, the audit says so and why: an unknown server is no
 * failure. */
#ifndef WSYNC_AUDIT_H
#define WSYNC_AUDIT_H

#include "wsync/tool/input.h"
#include "wsync/endpoint.h"
#include "wsync/event.h"
#include "wsync/tool/namecheck.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One server, or what stands for one. */
struct ws_audit_target {
	char url[WS_URL_MAX];          /* "": no server */
	unsigned tp, ep, attention_tp; /* 0: 1, 1 and tp */
	struct ws_config *config;      /* of its model_path, where that can be read here; NULL */
	struct ws_weight_list listing;
	char listed[WS_URL_MAX + 64];  /* where the listing comes from; "": there is none */
	char unlisted[256];            /* why there is none */
	char model_type[64],
		architecture[96]; /* of the server's config.json, as it tells them; "" not told */
	bool keeps_anything;           /* wsync-endpoint without a model: every name fits */
	/* ws_audit_measure asks it: neither config nor listing is known */
	bool askable;
	/* data-parallel: answers of ws_audit_measure have so many parts */
	unsigned replicas;
	/* of the config that ws_audit_measure compared it with; 0: none */
	int64_t layers, width;
	const char *differs_key;       /* what differed: the key, static, */
	char differs[512];             /* and a sentence; "": nothing did */
};

/* The directory of the model that an endpoint says it runs, where a config.json can be read
 * there on this machine; else NULL. */
const char *ws_audit_model_dir(const struct ws_endpoint_info *info);

/* What n endpoints are and list, all asked at once. thorough: one without a list of weights
 * is asked for the names of its checksums, for which it reads all of its weights. -1:
 * cancelled, or the system. */
int ws_audit_ask(struct ws_http *http, const struct ws_endpoint_info *infos, size_t n,
                 bool thorough, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_audit_target *out, struct ws_err *err);
/* Asks those of which neither config nor listing is known for a few parameters, and
 * compares number of layers and hidden size with the source's config. What they do not show
 * is no failure. A server logs each question for a parameter that it does not have. -1:
 * cancelled, or the system. */
int ws_audit_measure(struct ws_http *http, const struct ws_input *in,
                     struct ws_audit_target *targets, size_t n, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err);
/* Takes a saved listing (ws_weight_list_read). */
int ws_audit_read(const char *path, struct ws_audit_target *t, struct ws_err *err);
void ws_audit_target_free(struct ws_audit_target *t); /* NULL is fine */
/* Both would get the same answer. */
bool ws_audit_same(const struct ws_audit_target *a, const struct ws_audit_target *b);

struct ws_audit_opts {
	const struct ws_input *input;          /* borrowed until ws_audit_free, as all of this */
	const struct ws_plan *plan;            /* NULL */
	/* as of ws_plan_opts; any of them: a part is sent */
	const char *const *include, *const *exclude;
	size_t n_include, n_exclude;
	/* a part is sent in any case: other senders send the rest */
	bool part;
	bool scan, tied_later;                 /* as of ws_namecheck_opts */
	const struct ws_cancel *cancel;
};

struct ws_audit {
	/* with something of the server's, or with what the caller named */
	bool checked;
	/* it was not, but with the config.json of the source itself */
	bool own_config;
	char why[640];                 /* it was not checked: "no config.json, and ..." */
	char against[1536];            /* "qwen3 at tp 2 by ckpt/config.json" */
	char family[64];               /* "generic" where none is known */
	struct ws_findings found;
	struct ws_layout *layout;      /* the server's; NULL: not known */
};

/* 0: it was done, whatever it found, or there was nothing to do. -1: a config that lacks what
 * its family needs, memory, cancelled while scanning. */
int ws_audit_run(const struct ws_audit_opts *opts, const struct ws_audit_target *target,
                 struct ws_audit *out, struct ws_err *err);
void ws_audit_free(struct ws_audit *a); /* NULL is fine */

/* Runs it once for targets that are alike, emits WS_EV_NAMES for each run, and adds up
 * the numbers and the tied heads in *sum, which owns nothing. Errors found are
 * WS_EMISMATCH with the first of them. */
int ws_audit_all(const struct ws_audit_opts *opts, const struct ws_audit_target *targets, size_t n,
                 const struct ws_sink *sink, struct ws_audit *sum, struct ws_err *err);

/* The layout of that server for this input: by the config that was named, else by the server's own
 * where its family is known, else by the one that lies with the source. *out NULL: no config, or no
 * family is known by it; why (or NULL) then says which. */
int ws_audit_layout(const struct ws_input *input, const struct ws_audit_target *t,
                    struct ws_layout **out, char *why, size_t n, struct ws_err *err);

/* "there is no config.json", "no family is known for architecture 'X' of DIR/config.json". */
void ws_audit_unknown(const struct ws_config *config, char *why, size_t n);

#ifdef __cplusplus
}
#endif
#endif
