/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate.h - POST /generate without a language model.
 *
 *   serve_generate.c        the route, and the tokens
 *   serve_generate_cache.c  the cache of prompts
 *   serve_generate_read.c   the request, with the servers' defaults and refusals
 *   serve_generate_write.c  the answer
 *
 * Each token gets a state: a hash of the state before it, of the token, and of all weights. The
 * state decides the probabilities of the next token and the experts. So the same weights and the
 * same prompt give the same answer, and any other bit gives another answer. A cache of states
 * keeps results of old weights, like a server's cache. */
#ifndef WS_ENDPOINT_SERVE_GENERATE_H
#define WS_ENDPOINT_SERVE_GENERATE_H

#include "serve_call.h"

#include "wsync/tool/routing.h"

enum {
	WS_GENERATE_CONTEXT = 32768,      /* tokens of a prompt and its answer */
	WS_GENERATE_MAX_BATCH = 512,
	WS_GENERATE_MAX_TOKENS = 65536,   /* tokens of a batch */
	WS_GENERATE_MAX_ROUTED = 1 << 22, /* experts in one answer */
	WS_GENERATE_RID = 160
};

/* One prompt and its answer. */
struct ws_generate_one {
	char rid[WS_GENERATE_RID];
	int32_t *ids;      /* owned: the prompt, then the generated tokens */
	uint64_t *states;  /* owned: the state after each token */
	size_t n_prompt, n_new, cached;
	bool logprobs;
	size_t from;       /* first token of the prompt in input_token_logprobs */
};

struct ws_generate {
	struct ws_generate_one *items;
	size_t n;
	size_t vocab;
	struct ws_routing_shape routing; /* layers 0: the model has no experts */
	bool list;         /* the request has a list of prompts */
	bool routed;       /* answer with experts */
	bool variant;      /* fault batch-variant */
	int64_t began_ns;
};

/* WS_EUSAGE: the body has the wrong form. WS_EREFUSED: servers refuse such a request. */
int ws_generate_read(const struct ws_serve *s, const struct ws_json *body, struct ws_generate *out,
                     struct ws_err *err);
void ws_generate_free(struct ws_generate *g);
/* Rounded to float, like servers' logprobs. state: the state of the previous token. */
double ws_generate_logprob(const struct ws_generate *g, uint64_t state, int32_t token);
/* Returns the first of routing.k consecutive experts of that layer. */
size_t ws_generate_expert(const struct ws_generate *g, uint64_t state, size_t layer);
/* Waits for the scheduler, computes the answers and writes them. */
void ws_generate_run(struct ws_serve_call *c, struct ws_generate *g,
                     void (*write)(struct ws_serve_call *c, const struct ws_generate *g,
                                   const char *version));
void ws_generate_write(struct ws_serve_call *c, const struct ws_generate *g, const char *version);

/* The cache; call in the scheduler. Finds the longest cached prefix of ids (at most n tokens),
 * copies its states, and returns its length. */
size_t ws_serve_prompts_find(const struct ws_serve *s, const int32_t *ids, size_t n,
                             uint64_t *states);
void ws_serve_prompts_add(struct ws_serve *s, const int32_t *ids, size_t n, const uint64_t *states);

#endif
