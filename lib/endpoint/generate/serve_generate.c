/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate.c - POST /generate: the route, and the tokens.
 *
 * Prompts wait while generation is paused or an update holds the model; then they occupy the
 * scheduler. Each prompt is computed separately, so its answer does not depend on the batch. */
#include "serve_generate.h"
#include "serve_lineage.h"
#include "serve_vllm.h"

#include "hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- probabilities ---- */

/* Tokens of one class have the same probability, so that large vocabularies are cheap. */
enum { CLASSES = 256 };

static uint64_t mix(uint64_t a, uint64_t b)
{
	const uint64_t pair[] = { a, b };
	return ws_hash64(pair, sizeof pair);
}

static size_t count_classes(const struct ws_generate *g)
{
	return g->vocab < CLASSES ? g->vocab : CLASSES;
}

/* The weight, 1 to 2^32, of a class for the next token. */
static uint64_t weight(uint64_t state, size_t class)
{
	return 1 + (mix(state, class) >> 32);
}

static int32_t best_token(const struct ws_generate *g, uint64_t state)
{
	size_t best = 0;
	for (size_t c = 1; c < count_classes(g); c++)
		if (weight(state, c) > weight(state, best))
			best = c;
	return (int32_t)best;
}

double ws_generate_logprob(const struct ws_generate *g, uint64_t state, int32_t token)
{
	const size_t n = count_classes(g);
	uint64_t sum = 0;
	for (size_t c = 0; c < n; c++)
		sum += weight(state, c) * (g->vocab / n + (c < g->vocab % n));
	const float x = (float)log((double)weight(state, (size_t)token % n) / (double)sum);
	return (double)(g->variant ? nextafterf(x, -INFINITY) : x);
}

size_t ws_generate_expert(const struct ws_generate *g, uint64_t state, size_t layer)
{
	return mix(state, CLASSES + layer) % g->routing.experts;
}

/* ---- tokens ---- */

/* In the scheduler. */
static int hash_weights(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	const bool dirty = s->dirty;
	s->dirty = false;
	pthread_mutex_unlock(&s->lock);
	if (!dirty || ws_serve_hash_weights(s, &s->weights_hash) == 0)
		return 0;
	ws_serve_mark_dirty(s);
	return -1;
}

/* The last token, and tokens whose logprobs are in the answer, are always computed. */
static size_t most_cached(const struct ws_generate_one *one)
{
	const size_t most = one->n_prompt - 1;
	return one->logprobs && one->from < most ? one->from : most;
}

/* The cache keeps whole blocks: of 16 tokens in a vLLM on a GPU, of one in an SGLang. */
static size_t cache_block(const struct ws_serve *s)
{
	return ws_serve_in(s->opts.lineage, WS_IN_VLLM) ? 16 : 1;
}

static int run_one(const struct ws_serve *s, const struct ws_generate *g,
                   struct ws_generate_one *one)
{
	const size_t n = one->n_prompt + one->n_new;
	one->states = calloc(n, sizeof *one->states);
	if (!one->states)
		return -1;
	one->cached = ws_serve_prompts_find(s, one->ids, most_cached(one), one->states);
	one->cached -= one->cached % cache_block(s);
	for (size_t i = one->cached; i < n; i++) {
		const uint64_t before = i ? one->states[i - 1] : 0;
		if (i >= one->n_prompt)
			one->ids[i] = best_token(g, before);
		one->states[i] = mix(mix(before, (uint64_t)one->ids[i]), s->weights_hash);
	}
	return 0;
}

/* In the scheduler. */
static int run_all(struct ws_serve *s, struct ws_generate *g)
{
	int rc = hash_weights(s);
	for (size_t i = 0; i < g->n && rc == 0; i++)
		rc = run_one(s, g, &g->items[i]);
	for (size_t i = 0; i < g->n && rc == 0; i++) {
		const struct ws_generate_one *one = &g->items[i];
		const size_t n = one->n_prompt + (one->n_new ? one->n_new - 1 : 0);
		ws_serve_prompts_add(s, one->ids, n, one->states);
	}
	return rc;
}

/* ---- the route ---- */

/* *rejected: the server is paused and rejects new requests. False, too: the endpoint stops. */
static bool enter(struct ws_serve *s, bool *rejected)
{
	pthread_mutex_lock(&s->lock);
	while (((s->paused && !s->rejects) || s->writer || s->occupied) && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	*rejected = s->paused && !s->stopping;
	const bool ok = !s->paused && !s->stopping;
	s->occupied |= ok;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

/* The answer uses one copy, because update_weight_version does not wait for the scheduler. */
static char *copy_version(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	char *version = strdup(s->weight_version);
	pthread_mutex_unlock(&s->lock);
	return version;
}

void ws_generate_run(struct ws_serve_call *c, struct ws_generate *g,
                     void (*write)(struct ws_serve_call *c, const struct ws_generate *g,
                                   const char *version))
{
	struct ws_serve *s = c->serve;
	char *version = NULL;
	bool rejected = false;
	if (!enter(s, &rejected)) {
		if (rejected)
			ws_serve_vllm_answer_paused(c);
		else
			c->rp->drop = true;
		return;
	}
	g->variant = g->n > 1 && c->fault == WS_FAULT_BATCH_VARIANT;
	if (ws_serve_has_weights(c) && ws_serve_vllm_can_generate(c)) {
		if (run_all(s, g) || !(version = copy_version(s)))
			ws_serve_answer_error(c, 500, "out of memory");
		else
			write(c, g, version);
	}
	ws_serve_release(s);
	free(version);
}

void ws_serve_route_generate(struct ws_serve_call *c)
{
	struct ws_generate g = { .began_ns = ws_now_ns() };
	struct ws_err err = WS_ERR_INIT;
	if (ws_generate_read(c->serve, c->body, &g, &err) == 0)
		ws_generate_run(c, &g, ws_generate_write);
	else if (err.code == WS_EUSAGE)
		c->invalid = err;
	else
		ws_serve_answer_error(c, err.code == WS_ESYSTEM ? 500 : 400, err.msg);
	ws_generate_free(&g);
}
