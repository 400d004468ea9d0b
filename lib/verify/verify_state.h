/* SPDX-License-Identifier: Apache-2.0 */
/* verify_state.h - shared by the files of the verification: verify.c (means, wsync's checksums),
 * verify_proof.c (the server's own checksums), verify_samples.c and verify_choose.c (numbers),
 * verify_again.c (with a push). */
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
	struct ws_endpoint_info *infos; /* opts->n_endpoints items, like all arrays below */
	struct ws_err *errs;
	struct ws_checksums *sums;
	struct ws_err *unproven;        /* why its checksums prove nothing; WS_OK: they may */
	struct ws_verify_result *results;
	const char **urls;              /* scratch: the endpoints a call goes to */
	size_t *index;                  /* scratch: urls[k] is endpoint index[k] */
	ws_deadline until;
};

/* Puts the endpoints of these means that have not failed into urls and index; returns their
 * number. */
size_t verify_select(struct verify *v, enum ws_verify_means means);

/* -1 with WS_ECANCELLED after a cancel, else 0. */
int verify_stopped(const struct verify *v, struct ws_err *err);

/* Compares checksums at the endpoints with WS_MEANS_PROOF. Those at which nothing can be proven get
 * WS_MEANS_SAMPLES. -1 as of verify_samples. */
int verify_proof(struct verify *v, struct ws_err *err);

/* Compares samples at the endpoints with WS_MEANS_SAMPLES. -1: cancelled, or the source cannot be
 * read. */
int verify_samples(struct verify *v, struct ws_err *err);
/* The number of elements of one row. */
uint64_t verify_row(const struct ws_plan_tensor *t);
/* Chooses at most `most` tensors of the plan that a server can return, spread over kinds and
 * layers. Equal seeds choose equally. Returns their number; SIZE_MAX: out of memory. */
size_t verify_choose(const struct ws_plan *plan, size_t most, uint64_t seed, size_t *chosen);

/* The result of all endpoints: 0, the first mismatch if there is one, else the first failure. */
int verify_sum_up(const struct ws_verify_result *results, size_t n, struct ws_err *err);
/* Gives up: *why becomes the error of each endpoint that has none. */
void verify_give_up(struct ws_verify_result *results, size_t n, const struct ws_err *why);
/* Initializes the result of an endpoint. */
void verify_begin(struct ws_verify_result *r, const char *url);

#endif
