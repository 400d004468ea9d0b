/* SPDX-License-Identifier: Apache-2.0 */
/* ask.h - sends prompts to endpoints and passes on each answer as it arrives. */
#ifndef WS_VERIFY_ASK_H
#define WS_VERIFY_ASK_H

#include "http.h"
#include "wsync/tool/answers.h"
#include "wsync/tool/json_read.h"

/* Takes the answer of endpoint `url` to one prompt. text: the server's text; NULL if the answer was
 * part of a batch. A wrong answer is WS_EINPUT or WS_EREFUSED. */
typedef int ws_ask_take(void *ctx, size_t url, size_t prompt, const struct ws_json *answer,
                        const struct ws_buf *text, struct ws_err *err);

struct ws_ask {
	const struct ws_ask_opts *opts;
	const char *const *urls;  /* some of the endpoints of opts */
	size_t n_urls;
	const struct ws_prompts *prompts;
	enum ws_asked_as as;      /* WS_ASKED_BATCH: all prompts in one request; _CACHED: no
	                           * log-probabilities of the prompts themselves */
	bool logprobs, experts;   /* what the answers must contain */
	ws_ask_take *take;
	void *ctx;
};

/* The number of tokens to draw after this prompt. */
unsigned ws_ask_most(const struct ws_ask *ask, const struct ws_prompt *x);

/* Sends all prompts to all endpoints; the first failure ends it. Warns of doubtful answers: cached
 * tokens, or another weight version. */
int ws_ask(struct ws_http *http, const struct ws_ask *ask, struct ws_err *err);

/* ---- shared by both verifications ---- */

int ws_ask_open(const struct ws_ask_opts *opts, struct ws_http **http, struct ws_err *err);
void ws_ask_warn(const struct ws_ask_opts *opts, const char *url, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Answers that are kept for a file, by prompt. */
struct ws_ask_saved {
	char **texts; /* owned */
	size_t n, bytes;
};
int ws_ask_keep(struct ws_ask_saved *saved, size_t prompt, size_t n_prompts,
                const struct ws_buf *text, struct ws_err *err);
int ws_ask_write(const struct ws_ask_saved *saved, const char *path, struct ws_err *err);
void ws_ask_forget(struct ws_ask_saved *saved);

#endif
