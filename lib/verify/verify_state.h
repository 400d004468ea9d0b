/* SPDX-License-Identifier: Apache-2.0 */
/* verify_state.h - what the files of the verification share: verify.c (who offers what, checksums),
 * verify_samples.c and verify_choose.c (numbers), verify_again.c (with a push). */
#ifndef WS_VERIFY_STATE_H
#define WS_VERIFY_STATE_H

#include "endpoint_weights.h"
#include "hashes.h"
#include "wsync/tool/plan.h"
#include "wsync/tool/verify.h"

struct verify {
	const struct ws_verify_opts *opts;
	struct ws_http *http;
	struct ws_plan *plan;
	struct ws_endpoint_info *infos; /* opts->n_endpoints of them, as everything below */
	struct ws_err *errs;
	struct ws_checksums *sums;
	struct ws_verify_result *results;
	const char **urls;              /* scratch: the endpoints a call goes to */
	size_t *index;                  /* scratch: urls[k] is endpoint index[k] */
	ws_deadline until;
};

/* The endpoints of these means that have not failed, into urls/index; returns how many. */
size_t verify_select(struct verify *v, enum ws_verify_means means);

/* -1 with WS_ECANCELLED once somebody asked us to stop. */
int verify_stopped(const struct verify *v, struct ws_err *err);

/* Compares samples at the endpoints whose means they are. -1: cancelled, or
 * the source cannot be read. */
int verify_samples(struct verify *v, struct ws_err *err);
/* Elements of one row, of what has rows. */
uint64_t verify_row(const struct ws_plan_tensor *t);
/* At most `most` tensors of the plan that a server can show, spread over kinds and layers; the same
 * for the same seed. Returns how many; SIZE_MAX: out of memory. */
size_t verify_choose(const struct ws_plan *plan, size_t most, uint64_t seed, size_t *chosen);

/* What came of all endpoints: 0, a "no" where there is one, else the first failure. */
int verify_sum_up(const struct ws_verify_result *results, size_t n, struct ws_err *err);
/* Nothing more can be found out: whoever has said neither yes nor no has not because of *why. */
void verify_give_up(struct ws_verify_result *results, size_t n, const struct ws_err *why);
/* The result of an endpoint about which nothing is known yet. */
void verify_begin(struct ws_verify_result *r, const char *url);

#endif
