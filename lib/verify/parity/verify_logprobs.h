/* SPDX-License-Identifier: Apache-2.0 */
/* verify_logprobs.h - a comparison of log-probabilities in work: verify_logprobs.c asks, and
 * verify_logprobs_compare.c holds the answers against each other. */
#ifndef WS_VERIFY_LOGPROBS_H
#define WS_VERIFY_LOGPROBS_H

#include "ask.h"

#include "answer.h"
#include "wsync/endpoint.h"

struct logprobs_side {
	const char *name;
	struct ws_logprobs_list answers;
	struct ws_logprobs_list other;   /* in a batch, or with the help of the cache */
};

struct verify_logprobs {
	const struct ws_verify_logprobs_opts *opts;
	const struct ws_ask_opts *ask;
	struct ws_http *http;
	struct ws_prompts own;           /* where none were given */
	const struct ws_prompts *prompts;
	struct logprobs_side *sides;
	size_t n_sides;
	struct ws_ask_saved saved;
	size_t tokens;                   /* compared, of all prompts */
	const struct logprobs_side *blamed; /* the first that is not near enough; NULL: none */
};

/* Each endpoint is compared with itself. */
bool verify_logprobs_alone(enum ws_logprobs_how how);
/* -1: they differ too much; the first difference is what *err says. */
int verify_logprobs_compare(struct verify_logprobs *v, struct ws_err *err);
/* Adds what would explain a difference, of what is known. */
void verify_logprobs_explain(const struct verify_logprobs *v, struct ws_err *err);

#endif
