/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate.c - POST /generate.
 *
 * Prompts wait while generation is paused or an update holds the model; then they have the
 * scheduler for as long as they take. Each is computed for itself, so that a batch answers what its
 * prompts alone would. */
#include "serve_generate.h"
#include "serve_lineage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the scheduler ---- */

/* False: the endpoint stops. */
static bool enter(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	while ((s->paused || s->writer || s->occupied) && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !s->stopping;
	s->occupied |= ok;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

/* ---- running ---- */

size_t ws_generate_first(const struct ws_generate_one *one)
{
	return one->from < one->n_prompt ? one->from + 1 : one->n_prompt;
}

static int allocate(struct ws_generate_one *one, const struct ws_generate *g)
{
	const size_t n = one->n_prompt + one->n_new;
	const size_t places = n - ws_generate_first(one);
	const size_t row = g->shape.routing.layers * g->shape.routing.k;
	one->made_by = calloc(n + 1, sizeof *one->made_by);
	one->logprob = calloc(n + 1, sizeof *one->logprob);
	one->top_ids = calloc(places * one->top + 1, sizeof *one->top_ids);
	one->top_logprobs = calloc(places * one->top + 1, sizeof *one->top_logprobs);
	one->asked_logprobs = calloc(places * one->n_asked + 1, sizeof *one->asked_logprobs);
	if (g->routed)
		one->experts = calloc(n * row + 1, sizeof *one->experts);
	return one->made_by && one->logprob && one->top_ids && one->top_logprobs &&
	                       one->asked_logprobs && (one->experts || !g->routed) ?
	               0 :
	               -1;
}

struct run {
	const struct ws_generate *g;
	struct ws_generate_one *one;
	const struct ws_toy *toy;
	struct ws_toy_state state;
	struct ws_toy_row row;
	bool variant;   /* the fault: not what it would be alone */
};

/* A float's next neighbour, or the one after that: what another order of additions comes to. */
static double value(const struct run *r, int32_t token)
{
	double x = ws_toy_logprob(&r->row, &r->g->shape, token);
	for (size_t i = 0; r->variant && i <= r->state.at % 2; i++)
		x = (double)nextafterf((float)x, -INFINITY);
	return x;
}

/* What is told of token i, which the row predicts. */
static void tell(struct run *r, size_t i)
{
	struct ws_generate_one *one = r->one;
	const size_t place = i - ws_generate_first(one);
	int32_t *ids = one->top_ids + place * one->top;
	one->logprob[i] = value(r, one->ids[i]);
	ws_toy_top(&r->row, &r->g->shape, one->top, ids);
	for (size_t k = 0; k < one->top; k++)
		one->top_logprobs[place * one->top + k] = value(r, ids[k]);
	for (size_t k = 0; k < one->n_asked; k++)
		one->asked_logprobs[place * one->n_asked + k] = value(r, one->asked[k]);
}

static void step(struct run *r, size_t i)
{
	const struct ws_toy_shape *shape = &r->g->shape;
	struct ws_generate_one *one = r->one;
	const size_t row = shape->routing.layers * shape->routing.k;
	int32_t *experts = one->experts ? one->experts + i * row : NULL;
	if (!one->made_by[i])
		one->made_by[i] = r->toy;
	ws_toy_step(one->made_by[i], &r->state, one->ids[i], shape, experts);
}

static void prefill(struct run *r)
{
	struct ws_generate_one *one = r->one;
	for (size_t i = 0; i < one->n_prompt; i++) {
		if (one->logprobs && i >= ws_generate_first(one)) {
			ws_toy_predict(&r->state, &r->g->shape, 1 << 16, &r->row);
			tell(r, i);
		}
		step(r, i);
	}
}

/* Logprobs of drawn tokens are those at their temperature. */
static void decode(struct run *r)
{
	struct ws_generate_one *one = r->one;
	for (size_t k = 0; k < one->n_new; k++) {
		const size_t i = one->n_prompt + k;
		ws_toy_predict(&r->state, &r->g->shape,
		               one->temperature ? one->temperature : 1 << 16, &r->row);
		one->ids[i] = one->temperature ? ws_toy_draw(&r->row, &r->g->shape, one->seed, i)
		                               : ws_toy_best(&r->row);
		if (one->logprobs)
			tell(r, i);
		if (k + 1 < one->n_new)
			step(r, i);
	}
}

/* What is not told anything about can come from the cache, but for the last token. */
static size_t most_cached(const struct ws_generate_one *one)
{
	const size_t most = one->n_prompt - 1;
	return one->logprobs && one->from < most ? one->from : most;
}

static int run_one(struct run *r, struct ws_serve *s)
{
	struct ws_generate_one *one = r->one;
	if (allocate(one, r->g))
		return -1;
	memset(&r->state, 0, sizeof r->state);
	one->cached = ws_serve_prompts_find(&s->prompts, one->ids, most_cached(one), one->made_by);
	prefill(r);
	decode(r);
	return 0;
}

/* In the scheduler. */
static int run(struct ws_serve_call *c, struct ws_generate *g)
{
	struct ws_serve *s = c->serve;
	const struct ws_toy *toy = ws_serve_toy(s);
	struct run *r = calloc(1, sizeof *r);
	int rc = toy && r ? 0 : -1;
	for (size_t i = 0; i < g->n && rc == 0; i++) {
		r->g = g;
		r->one = &g->items[i];
		r->toy = toy;
		r->variant = g->n > 1 && c->fault == WS_FAULT_BATCH_VARIANT;
		rc = run_one(r, s);
	}
	for (size_t i = 0; i < g->n && rc == 0; i++) {
		const struct ws_generate_one *one = &g->items[i];
		ws_serve_prompts_add(&s->prompts, one->ids,
		                     one->n_prompt + (one->n_new ? one->n_new - 1 : 0),
		                     one->made_by);
	}
	free(r);
	return rc;
}

/* ---- the route ---- */

static void refuse(struct ws_serve_call *c, unsigned status, const char *message)
{
	struct ws_jw w;
	c->rp->status = status;
	ws_jw_init(&w, &c->rp->body);
	ws_jw_object(&w, NULL);
	ws_jw_object(&w, "error");
	ws_jw_str(&w, "message", message);
	ws_jw_end_object(&w);
	ws_jw_end_object(&w);
}

static char *copy_version(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	char *version = strdup(s->weight_version);
	pthread_mutex_unlock(&s->lock);
	return version;
}

static void generate(struct ws_serve_call *c, struct ws_generate *g)
{
	struct ws_serve *s = c->serve;
	char *version = NULL;
	if (!enter(s)) {
		c->rp->drop = true;
		return;
	}
	if (ws_serve_has_weights(c)) {
		if (run(c, g) || !(version = copy_version(s)))
			refuse(c, 500, "not enough memory");
		else
			ws_generate_write(c, g, version);
	}
	ws_serve_vacate(s);
	free(version);
}

void ws_serve_route_generate(struct ws_serve_call *c)
{
	struct ws_generate g = { .began_ns = ws_now_ns() };
	struct ws_err err = WS_ERR_INIT;
	if (ws_generate_read(c->serve, c->body, &g, &err) == 0)
		generate(c, &g);
	else if (err.code == WS_EUSAGE)
		ws_serve_answer_invalid(c, err.msg);
	else
		refuse(c, err.code == WS_ESYSTEM ? 500 : 400, err.msg);
	ws_generate_free(&g);
}
