/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy.c - the toy model, token by token.
 *
 *   h        = mix(embed, token, position)
 *   each layer:  seen += mix(h, layer), shuffled: what a cache of keys and values holds
 *                experts  = the k with the highest mix(h, router, expert)
 *                h        = mix(h, seen, layer)
 *   score of class c = mix(h, head, c), 0 to 12 in logarithms to base 2
 *
 * mix is a bijection of 64 bits in which every bit of the outcome depends on every bit that went in, so
 * that a tensor in which one bit changed gives other scores, but for a chance of 2^-64. */
#include "serve_toy.h"

#include <string.h>

enum { SCORES = 12 };

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t mix2(uint64_t a, uint64_t b)
{
	return mix(mix(a) + b * UINT64_C(0x9e3779b97f4a7c15));
}

/* ---- layers ---- */

/* The k best of all experts, best first. */
static void choose_experts(uint64_t h, uint64_t router, const struct ws_routing_shape *shape, int32_t *out)
{
	uint64_t best[WS_ROUTING_K];
	const uint64_t key = mix2(h, router);
	size_t n = 0;
	for (size_t e = 0; e < shape->experts; e++) {
		const uint64_t score = mix2(key, e);
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

void ws_toy_step(const struct ws_toy *toy, struct ws_toy_state *st, int32_t token,
                 const struct ws_toy_shape *shape, int32_t *experts)
{
	const struct ws_routing_shape *routing = &shape->routing;
	uint64_t h = mix2(mix2(toy->embed, (uint64_t)token), st->at);
	if (experts)
		memset(experts, 0, routing->layers * routing->k * sizeof *experts);
	for (size_t l = 0; l < toy->n_layers; l++) {
		st->seen[l] = mix(st->seen[l]) + mix2(h, toy->layer[l]);
		if (experts && l < routing->layers && !routing->dense[l])
			choose_experts(h, toy->router[l], routing, experts + l * routing->k);
		h = mix2(mix2(h, st->seen[l]), mix2(toy->layer[l], toy->router[l]));
	}
	st->hidden = mix2(h, toy->head);
	st->at++;
}

/* ---- the next token ---- */

static uint64_t members(const struct ws_toy_shape *shape, size_t class)
{
	return shape->vocab / shape->classes + (class < shape->vocab % shape->classes);
}

void ws_toy_predict(const struct ws_toy_state *st, const struct ws_toy_shape *shape,
                    uint64_t temperature, struct ws_toy_row *out)
{
	int64_t best = 0;
	for (size_t c = 0; c < shape->classes; c++) {
		out->below[c] = (int64_t)(mix2(st->hidden, c) >> 34) * SCORES;
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
	uint64_t left = mix2(seed, step) % row->sum;
	size_t c = 0;
	for (; left >= row->weight[c] * members(shape, c); c++)
		left -= row->weight[c] * members(shape, c);
	return (int32_t)(c + left / row->weight[c] * shape->classes);
}

void ws_toy_top(const struct ws_toy_row *row, const struct ws_toy_shape *shape, size_t n, int32_t *out)
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
