/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs.h - how far apart two saved answers are in what they say of the same tokens.
 *
 * The tokens of the prompt (prefill) and those that were drawn (decode) are computed by different
 * kernels, and are told apart. Drawn tokens are compared up to the first one that differs: what comes
 * after has another past. */
#ifndef WSYNC_LOGPROBS_H
#define WSYNC_LOGPROBS_H

#include "wsync/err.h"

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
		double *values; /* owned; NaN where the answer has null, as of the first token */
		size_t n;
	} part[WS_LOGPROB_PARTS];
};

/* A saved answer of /generate to "return_logprob": true, of one prompt: WS_EINPUT where it is none. */
int ws_logprobs_read(const char *path, struct ws_logprobs *out, struct ws_err *err);
int ws_logprobs_parse(const char *text, size_t n, const char *what, struct ws_logprobs *out,
                      struct ws_err *err);
void ws_logprobs_free(struct ws_logprobs *l);

struct ws_logprobs_diff {
	size_t tokens;   /* compared: both have a number */
	double max, mean; /* of the absolute differences */
	size_t worst;    /* the token of max */
	size_t same;     /* so many tokens are the same, from the first on */
	bool diverges;   /* and then come others, or one side ends */
};
void ws_logprobs_compare(const struct ws_logprobs *a, const struct ws_logprobs *b,
                         struct ws_logprobs_diff out[WS_LOGPROB_PARTS]);

#ifdef __cplusplus
}
#endif
#endif
