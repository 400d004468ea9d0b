/* SPDX-License-Identifier: Apache-2.0 */
/* verify_again.h - what the verifications that push share: verify_again.c (--twice) and verify_reset.c. */
#ifndef WS_SYNC_VERIFY_AGAIN_H
#define WS_SYNC_VERIFY_AGAIN_H

#include "verify_state.h"

struct again {
	const struct ws_push_opts *opts;
	const struct ws_push_source *source;
	struct ws_http *http;
	struct ws_err *errs;                /* one for each endpoint, as everything below */
	struct ws_endpoint_answer *answers;
	struct ws_endpoint_info *infos;
	struct ws_checksums *before, *after;
	struct ws_verify_result *results;
	ws_deadline until;
};

/* Probes the endpoints. Close it also after an error. */
int again_open(struct again *a, struct ws_err *err);
void again_close(struct again *a);
void again_warn(const struct again *a, const char *url, const char *message);
/* *why becomes the result of endpoint i. */
void again_fail(struct again *a, size_t i, const struct ws_err *why);
/* A push that gets what is left of the run's time. */
int again_push(const struct again *a, struct ws_push_opts opts, struct ws_err *err);
/* Asks all endpoints for checksums; errs[i] says why sums[i] is empty. -1: the first error. Frees older ones. */
int again_ask(struct again *a, struct ws_checksums *sums, struct ws_err *err);
/* Compares before and after of endpoint i, from the same ranks: counts and algorithm go to its result, each
 * difference to the sink. -1: the reply cannot be compared, and results[i].err says why. */
int again_compare(struct again *a, size_t i);

#endif
