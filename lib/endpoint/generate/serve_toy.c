/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy.c - the toy model, token by token.
 *
 *   context  = mix(context, token)                          the same for all weights
 *   f        = the sketches of embeddings and layers, each number with a sign that the context
 * chooses v        = 15/16 v + 11/32 f                            what a cache of keys and values
 * holds trace    = mix(trace, context, hash of the weights)     likewise experts  = in each layer
 * the k with the highest mix(context, layer, expert) + signs . (router + v) score of class c, in
 * logarithms to base 2 = mix(context, c), 0 to 8, + signs . (v + head) / 4 + mix(trace, head, c), 0
 * to 1/512
 *
 * So weights that are near each other give scores that are near each other, and any other bit in
 * any tensor moves all scores a little. Sketches are so long that other weights move them by about
 * 1. */
#include "serve_toy.h"

#include <string.h>

enum { SCORES = 8, SCORE_BITS = 30, TRACE_BITS = 21 };

static uint64_t scramble(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t ws_toy_mix(uint64_t a, uint64_t b)
{
	return scramble(scramble(a) + (b + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

enum { SIGNS = 1 << WS_TOY_WIDTH };

/* The numbers of v, added and taken away as the bits of the index say. */
static void sum_signed(const int64_t *v, int64_t sums[SIGNS])
{
	sums[0] = 0;
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		sums[0] -= v[k];
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		for (size_t b = 0; b < (size_t)1 << k; b++)
			sums[(size_t)1 << k | b] = sums[b] + 2 * v[k];
}

/* ---- layers ---- */

/* The k best of all experts, best first. */
static void choose_experts(const struct ws_toy_state *st, const struct ws_toy_sketch *router,
                           size_t layer, const struct ws_routing_shape *shape, int32_t *out)
{
	int64_t best[WS_ROUTING_K], v[WS_TOY_WIDTH], sums[SIGNS];
	const uint64_t key = ws_toy_mix(st->context, layer);
	size_t n = 0;
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		v[k] = router->v[k] + st->v[k];
	sum_signed(v, sums);
	for (size_t e = 0; e < shape->experts; e++) {
		const uint64_t own = ws_toy_mix(key, e);
		/* 0 to 16, in 1/65536 */
		const int64_t score = (int64_t)(own >> 44) + sums[own % SIGNS];
		size_t i = n;
		for (; i > 0 && best[i - 1] < score; i--) {
			if (i == shape->k)
				continue;
			best[i] = best[i - 1];
			out[i] = out[i - 1];
		}
		if (i == shape->k)
			continue;
		best[i] = score;
		out[i] = (int32_t)e;
		n += n < shape->k;
	}
}

static void add_signed(int64_t *f, const struct ws_toy_sketch *s, uint64_t bits)
{
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		f[k] += bits >> k & 1 ? s->v[k] : -s->v[k];
}

static int64_t root(size_t n)
{
	int64_t r = 1;
	while ((size_t)((r + 1) * (r + 1)) <= n)
		r++;
	return r;
}

static void remember(const struct ws_toy *toy, struct ws_toy_state *st)
{
	int64_t f[WS_TOY_WIDTH] = { 0 };
	const int64_t length = root(toy->n_layers + 1);
	add_signed(f, &toy->embed, ws_toy_mix(st->context, WS_TOY_LAYERS));
	for (size_t l = 0; l < toy->n_layers; l++)
		add_signed(f, &toy->layer[l], ws_toy_mix(st->context, l));
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		st->v[k] = (30 * st->v[k] + 11 * f[k] / length) / 32;
	st->trace = ws_toy_mix(ws_toy_mix(st->trace, st->context), toy->body);
}

void ws_toy_step(const struct ws_toy *toy, struct ws_toy_state *st, int32_t token,
                 const struct ws_toy_shape *shape, int32_t *experts)
{
	const struct ws_routing_shape *routing = &shape->routing;
	st->context = ws_toy_mix(ws_toy_mix(st->context, st->at), (uint64_t)token);
	remember(toy, st);
	if (experts)
		memset(experts, 0, routing->layers * routing->k * sizeof *experts);
	for (size_t l = 0; experts && l < routing->layers; l++)
		if (!routing->dense[l])
			choose_experts(st, &toy->router[l], l, routing, experts + l * routing->k);
	memcpy(st->out, st->v, sizeof st->out);
	add_signed(st->out, &toy->head, st->context);
	st->out_trace = ws_toy_mix(st->trace, toy->head_body);
	st->at++;
}

/* ---- the next token ---- */

static int64_t score(const struct ws_toy_state *st, const int64_t sums[SIGNS], size_t class)
{
	const uint64_t own = ws_toy_mix(st->context, class),
		       trace = ws_toy_mix(st->out_trace, class);
	return (int64_t)(own >> (64 - SCORE_BITS)) * SCORES +
	       (int64_t)(trace >> (64 - TRACE_BITS)) + sums[own % SIGNS] * (WS_TOY_ONE / 65536 / 4);
}

static uint64_t members(const struct ws_toy_shape *shape, size_t class)
{
	return shape->vocab / shape->classes + (class < shape->vocab % shape->classes);
}

void ws_toy_predict(const struct ws_toy_state *st, const struct ws_toy_shape *shape,
                    uint64_t temperature, struct ws_toy_row *out)
{
	int64_t best = INT64_MIN, sums[SIGNS];
	sum_signed(st->out, sums);
	for (size_t c = 0; c < shape->classes; c++) {
		out->below[c] = score(st, sums, c);
		best = out->below[c] > best ? out->below[c] : best;
	}
	out->sum = 0;
	for (size_t c = 0; c < shape->classes; c++) {
		out->below[c] = (best - out->below[c]) * 65536 / (int64_t)temperature;
		out->weight[c] = ws_toy_power(out->below[c]);
		out->sum += out->weight[c] * members(shape, c);
	}
	out->log_sum = ws_toy_log2(out->sum);
}

double ws_toy_logprob(const struct ws_toy_row *row, const struct ws_toy_shape *shape, int32_t token)
{
	const double ln2 = 0.69314718055994530942;
	const int64_t log2 = -row->below[(size_t)token % shape->classes] - row->log_sum;
	return (double)(float)((double)log2 / (double)WS_TOY_ONE * ln2);
}

int32_t ws_toy_best(const struct ws_toy_row *row)
{
	int32_t c = 0;
	while (row->below[c])
		c++;
	return c;
}

int32_t ws_toy_draw(const struct ws_toy_row *row, const struct ws_toy_shape *shape, uint64_t seed,
                    uint64_t step)
{
	uint64_t left = ws_toy_mix(seed, step) % row->sum;
	size_t c = 0;
	for (; left >= row->weight[c] * members(shape, c); c++)
		left -= row->weight[c] * members(shape, c);
	return (int32_t)(c + left / row->weight[c] * shape->classes);
}

void ws_toy_top(const struct ws_toy_row *row, const struct ws_toy_shape *shape, size_t n,
                int32_t *out)
{
	size_t order[WS_TOY_CLASSES];
	for (size_t c = 0; c < shape->classes; c++) {
		size_t i = c;
		for (; i > 0 && row->below[order[i - 1]] > row->below[c]; i--)
			order[i] = order[i - 1];
		order[i] = c;
	}
	for (size_t i = 0, have = 0; have < n; i++)
		for (uint64_t m = 0; m < members(shape, order[i]) && have < n; m++)
			out[have++] = (int32_t)(order[i] + m * shape->classes);
}
