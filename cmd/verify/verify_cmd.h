/* SPDX-License-Identifier: Apache-2.0 */
/* verify_cmd.h - shared by the commands of wsync-verify. */
#ifndef WSYNC_CMD_VERIFY_CMD_H
#define WSYNC_CMD_VERIFY_CMD_H

#include "naming.h"
#include "pushing.h"
#include "targets.h"
#include "transforming.h"

#include "wsync/tool/answers.h"

struct verify_config {
	struct opt_common common;
	struct naming naming;
	struct transforming transforming;
	const char *list;
	uint64_t tp, ep, attention_tp; /* 0: not given */
	uint64_t limit;
	bool scan;
	uint64_t samples, seed, threads; /* weights; threads 0: as many as there are processors */
	struct opt_list against;         /* scales, up to max_error */
	double max_error;                /* 0: not given */
	bool twice, reset, yes;
	struct opt_list expect;          /* flags */
	const char *npy;                 /* routing; NULL: none */
	double min_equal;
	struct ws_logprobs_limits limits[WS_LOGPROB_PARTS]; /* logprobs */
	bool teacher_forced, batched, cached;
	struct opt_list prompts;         /* logprobs and routing */
	const char *prompts_file, *save; /* NULL: none */
	uint64_t max_new_tokens, parallel;
	bool flush_first;
	const char *between;             /* caches; NULL: not given */
	uint64_t tokens;
	struct pushing pushing;          /* with twice and reset */
	int64_t timeout_ns;              /* 0: not given */
};

struct verify_job {
	const struct verify_config *cfg;
	struct ui *ui;
};

/* The commands: ctx is a verify_job. They end the stream of JSON lines themselves. */
int verify_names(void *ctx, const struct opt_args *args, struct ws_err *err);
int verify_weights(void *ctx, const struct opt_args *args, struct ws_err *err);
int verify_scales(void *ctx, const struct opt_args *args, struct ws_err *err);
int verify_flags(void *ctx, const struct opt_args *args, struct ws_err *err);
int verify_routing(void *ctx, const struct opt_args *args, struct ws_err *err);
int verify_logprobs(void *ctx, const struct opt_args *args, struct ws_err *err);
int verify_caches(void *ctx, const struct opt_args *args, struct ws_err *err);
/* Opens the source as a push would send it, and warns of each --exclude that matches nothing.
 * fallback: a config for a source without one; NULL. found: a reference of the servers; NULL.
 * quant: as in ws_transform_opts; NULL. */
int verify_open_source(const struct verify_job *job, const struct opt_args *args,
                       const char *fallback, const struct ws_input_found *found,
                       const struct ws_quant *quant, struct ws_input *in, struct ws_err *err);
/* --timeout, or 60 s. */
int64_t verify_timeout(const struct verify_config *cfg);
/* Compares the copies of a tensor that several ranks saved; with --scan all bytes. */
int verify_replicas(const struct verify_job *job, const struct ws_input *in, struct ws_err *err);
/* Values of options: "128x128" to int64_t[2], "0.05" or "5%" to double. */
int verify_max_error(void *share, const char *value, struct ws_err *err);
int verify_min_equal(void *share, const char *value, struct ws_err *err);
/* "0.01" for both parts, "decode=0.01" for one. limit points to a double in the first part's
 * limits; sets it, the same member of the next part, or both. */
int verify_limit(void *limit, const char *value, struct ws_err *err);

/* The endpoints and prompts of the options. The caller zeroes it, and closes it also after an
 * error. */
struct verify_asking {
	struct targets to;
	struct ws_prompts prompts;
	int64_t since;
	size_t n_files, n_endpoints;
};
/* The arguments are files of saved answers. With two files no endpoint is asked; with `enough`
 * files only named endpoints are asked. */
int verify_asking_open(const struct verify_job *job, const struct opt_args *args, size_t enough,
                       struct verify_asking *a, struct ws_ask_opts *out, struct ws_err *err);
/* Ends the stream of JSON lines, too. */
void verify_asking_close(struct verify_asking *a, struct ui *ui, const struct ws_err *err);

#endif
