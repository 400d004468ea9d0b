/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - what the commands of wsync-verify share. */
#ifndef WSYNC_CMD_VERIFY_H
#define WSYNC_CMD_VERIFY_H

#include "naming.h"
#include "pushing.h"
#include "targets.h"
#include "transforming.h"

/* --timeout was not given: each command has its own idea. */
#define VERIFY_NO_TIMEOUT INT64_C(-1)

struct verify_config {
	struct opt_common common;
	struct naming naming;
	struct transforming transforming;
	struct opt_list endpoints, include, exclude;
	const char *pool, *list;
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
	double max_difference;           /* logprobs */
	struct pushing pushing;          /* with twice and reset */
	int64_t connect_ns, timeout_ns;
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
/* Values of options: "128x128" to int64_t[2], "0.05" or "5%" to double. */
int verify_max_error(void *share, const char *value, struct ws_err *err);
int verify_min_equal(void *share, const char *value, struct ws_err *err);
int verify_max_difference(void *most, const char *value, struct ws_err *err);

#endif
