/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs.h - compares the log probabilities of the same tokens in two answers.
 *
 * Different kernels compute the tokens of the prompt (prefill) and the drawn tokens (decode), so
 * both parts are compared separately. Drawn tokens are compared up to the first one that differs:
 * later tokens have another context. */
#ifndef WSYNC_LOGPROBS_H
#define WSYNC_LOGPROBS_H

#include "wsync/err.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ws_logprob_part { WS_PREFILL, WS_DECODE, WS_LOGPROB_PARTS };
const char *ws_logprob_part_name(enum ws_logprob_part part); /* "prefill", "decode" */

struct ws_logprobs {
	struct {
		int64_t *ids;   /* owned */
		double *values; /* owned; NaN for null, which the first token has */
		size_t n;
	} part[WS_LOGPROB_PARTS];
	int64_t cached_tokens;    /* of the prompt, computed by an earlier pass; -1: not reported */
	char weight_version[128]; /* "": not reported */
};

/* Parses a saved answer of /generate to "return_logprob": true, of one prompt. WS_EINPUT: the text
 * is no such answer. */
int ws_logprobs_parse(const char *text, size_t n, const char *what, struct ws_logprobs *out,
                      struct ws_err *err);
void ws_logprobs_free(struct ws_logprobs *l);

struct ws_logprobs_list { /* zeroed: none */
	struct ws_logprobs *items;
	size_t n;
};
/* The same for any number of prompts: an array of such answers, or a single one. */
int ws_logprobs_read_all(const char *path, struct ws_logprobs_list *out, struct ws_err *err);
int ws_logprobs_parse_all(const char *text, size_t n, const char *what,
                          struct ws_logprobs_list *out, struct ws_err *err);
void ws_logprobs_list_free(struct ws_logprobs_list *list);

struct ws_logprobs_diff {
	size_t tokens;   /* compared: both have a number */
	double max, mean; /* of the absolute differences */
	double k3; /* mean of r - 1 - log r, r being the second's probability divided by the
	            * first's: the estimate of the divergence that trainers monitor */
	size_t worst;    /* the token of max */
	int64_t worst_id;
	double first, second; /* both values of that token */
	size_t missing;  /* only one side has a number */
	size_t same;     /* number of equal tokens, from the first on */
	bool diverges;   /* after them the tokens differ, or one side ends */
	double apart;    /* if it diverges, the difference of the two drawn tokens: at temperature
	                  * 0 not above the largest difference of any token of the vocabulary;
	                  * else 0 */
};
void ws_logprobs_compare(const struct ws_logprobs *a, const struct ws_logprobs *b,
                         struct ws_logprobs_diff out[WS_LOGPROB_PARTS]);
/* Adds one prompt's to the sum over several, in which worst is of the worst prompt, same means
 * nothing and diverges is true where any did. */
void ws_logprobs_sum(struct ws_logprobs_diff *sum, const struct ws_logprobs_diff *d);

/* The allowed maxima. NaN: no limit; if all three are NaN, nothing may differ. */
struct ws_logprobs_limits {
	double max, mean, k3;
};
#define WS_LOGPROBS_NO_LIMITS { NAN, NAN, NAN }
/* Is the difference within the limits? If not, writes the reason as half a sentence. Prompt tokens
 * must be the same; drawn tokens may diverge if differences are allowed. */
bool ws_logprobs_within(const struct ws_logprobs_diff *d, enum ws_logprob_part part,
                        const struct ws_logprobs_limits *limits, char *why, size_t n);

#ifdef __cplusplus
}
#endif
#endif
