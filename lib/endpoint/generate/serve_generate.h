/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate.h - POST /generate, in three steps: read what is asked, run the toy, tell.
 *
 *   serve_generate.c        the route, and running
 *   serve_generate_read.c   the body: one prompt or several, with the servers' defaults and
 * refusals serve_generate_sampling.c  of it, what says how tokens are drawn serve_generate_write.c
 * the answer serve_prompts.c         the cache of prefixes */
#ifndef WS_ENDPOINT_SERVE_GENERATE_H
#define WS_ENDPOINT_SERVE_GENERATE_H

#include "serve_call.h"
#include "serve_toy.h"

enum {
	WS_GENERATE_MAX_BATCH = 512,
	WS_GENERATE_MAX_TOLD = 1 << 20,   /* logarithms beside those of the tokens themselves */
	WS_GENERATE_MAX_ROUTED = 1 << 22, /* experts */
	WS_GENERATE_RID = 160
};

/* One prompt: what is asked of it, and then what came of it. */
struct ws_generate_one {
	char rid[WS_GENERATE_RID];
	int32_t *ids;               /* owned: the prompt, and what is generated behind it */
	size_t n_prompt, n_new;
	uint64_t temperature, seed; /* 0: the best token always */
	bool logprobs;
	size_t from;                /* token of the prompt with which its logprobs begin */
	size_t top;                 /* so many of the best tokens, too */
	int32_t *asked;             /* owned: tokens whose logprobs are told at each place */
	size_t n_asked;

	size_t cached;
	const struct ws_toy **made_by; /* of each token that was run */
	double *logprob;            /* of each token, where told */
	/* [places][top]; place 0 is that of token from + 1, or the first new one */
	int32_t *top_ids;
	double *top_logprobs, *asked_logprobs;
	int32_t *experts;           /* [n_prompt + n_new - 1][layers][k]; NULL: not asked for */
};

struct ws_generate {
	struct ws_generate_one *items;
	size_t n;
	bool list;                  /* several were asked, so several are answered */
	bool texts;                 /* of tokens, in logprobs */
	bool routed;
	bool stream;
	struct ws_toy_shape shape;
	int64_t began_ns;
};

/* WS_EUSAGE: a body of the wrong form. WS_EREFUSED: one that the server refuses. */
int ws_generate_read(const struct ws_serve *s, const struct ws_json *body, struct ws_generate *out,
                     struct ws_err *err);
/* Likewise, of one prompt, whose tokens are there; params may be NULL. Makes
 * room for what is generated. */
int ws_generate_read_sampling(struct ws_generate_one *one, const struct ws_json *params,
                              struct ws_err *err);
void ws_generate_free(struct ws_generate *g);
/* The first token whose logprob is told beside others': that behind from, or the first new one. */
size_t ws_generate_first(const struct ws_generate_one *one);
void ws_generate_write(struct ws_serve_call *c, const struct ws_generate *g, const char *version);

#endif
