/* SPDX-License-Identifier: Apache-2.0 */
/* verify_logprobs.h - the state of a comparison of log-probabilities. verify_logprobs.c sends the
 * prompts, verify_logprobs_compare.c compares the answers. */
#ifndef WS_VERIFY_LOGPROBS_H
#define WS_VERIFY_LOGPROBS_H

#include "ask.h"

#include "answer.h"
#include "wsync/endpoint.h"

struct logprobs_side {
	const char *name;
	struct ws_logprobs_list answers;
	struct ws_logprobs_list other;   /* in a batch, or with cached prefixes */
};

struct verify_logprobs {
	const struct ws_verify_logprobs_opts *opts;
	const struct ws_ask_opts *ask;
	struct ws_http *http;
	struct ws_prompts own;           /* if no prompts were given */
	const struct ws_prompts *prompts;
	struct logprobs_side *sides;
	size_t n_sides;
	struct ws_ask_saved saved;
	size_t tokens;                   /* compared, of all prompts */
	const struct logprobs_side *blamed; /* the first side that differs; NULL: none */
};

/* True if each endpoint is compared with itself. */
bool verify_logprobs_alone(enum ws_logprobs_how how);
/* -1: the sides differ too much; *err has the first difference. */
int verify_logprobs_compare(struct verify_logprobs *v, struct ws_err *err);
/* Adds a hint that may explain the difference. */
void verify_logprobs_explain(const struct verify_logprobs *v, struct ws_err *err);

#endif
