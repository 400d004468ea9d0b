/* SPDX-License-Identifier: Apache-2.0 */
/* verify_again.h - functions shared by the verifications that push: verify_again.c (--twice) and
 * verify_reset.c. */
#ifndef WS_PUSH_VERIFY_AGAIN_H
#define WS_PUSH_VERIFY_AGAIN_H

#include "endpoint_weights.h"
#include "verify_state.h"

struct again {
	const struct ws_push_opts *opts;
	struct ws_http *http;
	struct ws_endpoint_info *infos;     /* one for each endpoint, like all below */
	struct ws_err *errs;
	struct ws_checksums *before, *after; /* allocated by again_open */
	struct ws_verify_result *results;
	ws_deadline until;                  /* of the run */
};

/* Uses only opts and results. Call again_close also after an error. */
int again_open(struct again *a, struct ws_err *err);
void again_close(struct again *a);
/* Sets the result of endpoint i to *why. */
void again_fail(struct again *a, size_t i, const struct ws_err *why);
/* The deadline of a step that begins now. */
ws_deadline again_step(const struct again *a);
/* Requests the checksums of all endpoints, and frees older ones. errs[i] says why sums[i] is empty.
 * -1: the first error. */
int again_ask(struct again *a, struct ws_checksums *sums, struct ws_err *err);
/* Compares before and after of endpoint i, from the same ranks. Writes counts and algorithm to its
 * result, and sends each difference to the sink. -1: the reply cannot be compared; results[i].err
 * says why. */
int again_compare(struct again *a, size_t i);

#endif
