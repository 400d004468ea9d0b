/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy_weights.c - what the toy model knows of the tensors that the endpoint holds: one word for each
 * layer and each router, over the names and all bytes of its tensors.
 *
 * A model's are taken as the tensors of the checkpoint, put together again from the shares of all ranks
 * in the type of their parameters, so that it does not matter over how many ranks they are divided, nor in which
 * type they were sent. Where ranks hold copies and one of them differs, that counts too. What nothing was ever
 * loaded into is not there. */
#include "serve_model.h"
#include "serve_toy.h"

#include <stdlib.h>
#include <string.h>

/* ---- where a tensor belongs ---- */

static bool has_segment(const char *name, const char *segment)
{
	const size_t n = strlen(segment);
	for (const char *at = strstr(name, segment); at; at = strstr(at + 1, segment))
		if ((at == name || at[-1] == '.') && (!at[n] || at[n] == '.'))
			return true;
	return false;
}

/* "model.layers.7.mlp.gate.weight": 7; SIZE_MAX: in none. */
static size_t layer_of(const char *name)
{
	static const char word[] = "layers.";
	const char *at = strstr(name, word);
	size_t layer = 0;
	if (!at || (at != name && at[-1] != '.'))
		return SIZE_MAX;
	at += sizeof word - 1;
	if (*at < '0' || *at > '9')
		return SIZE_MAX;
	for (; *at >= '0' && *at <= '9' && layer < WS_TOY_LAYERS; at++)
		layer = layer * 10 + (size_t)(*at - '0');
	return *at == '.' && layer < WS_TOY_LAYERS ? layer : SIZE_MAX;
}

/* What is in no layer and has no other place either is in the first one, so that a cache holds it. */
static uint64_t *place_of(struct ws_toy *toy, const char *name)
{
	const size_t layer = layer_of(name);
	if (layer == SIZE_MAX && strstr(name, "embed"))
		return &toy->embed;
	if (layer == SIZE_MAX && (has_segment(name, "norm") || has_segment(name, "lm_head")))
		return &toy->head;
	const size_t l = layer == SIZE_MAX ? 0 : layer;
	toy->n_layers = l >= toy->n_layers ? l + 1 : toy->n_layers;
	return has_segment(name, "gate") || has_segment(name, "router") ? &toy->router[l] : &toy->layer[l];
}

/* In no order: they may come in any. */
static void add(struct ws_toy *toy, const char *name, uint64_t content)
{
	const uint64_t pair[] = { ws_hash64(name, strlen(name)), content };
	*place_of(toy, name) += ws_hash64(pair, sizeof pair);
}

/* ---- all of them ---- */

static int read_model(struct ws_toy *toy, const struct ws_serve_model *m)
{
	struct ws_serve_gather g;
	uint64_t hashes[WS_SERVE_MAX_TP];
	for (size_t i = 0; i < ws_layout_part_count(m->layout); i++) {
		const struct ws_part *part = ws_layout_part(m->layout, i);
		if (!m->parts[i].loaded || ws_layout_param(m->layout, part->param)->tied_to)
			continue;
		ws_serve_gather_begin(&g, m, part, m->dtypes[part->param]);
		if (ws_serve_gather_hash(&g, hashes))
			return -1;
		add(toy, part->name, hashes[0]);
		for (unsigned r = 1; r < m->tp; r++)
			if (hashes[r] != hashes[0])
				add(toy, part->name, hashes[r] + r);
	}
	return 0;
}

static void read_weights(struct ws_toy *toy, const struct ws_serve *s)
{
	for (size_t i = 0; i < s->weights.n; i++) {
		const struct ws_serve_weight *w = &s->weights.items[i];
		add(toy, w->name, w->data ? ws_hash64(w->data, (size_t)w->bytes) : w->hash);
	}
}

static bool is_same(const struct ws_toy *a, const struct ws_toy *b)
{
	return a && a->n_layers == b->n_layers && a->embed == b->embed && a->head == b->head &&
	       memcmp(a->layer, b->layer, sizeof a->layer) == 0 &&
	       memcmp(a->router, b->router, sizeof a->router) == 0;
}

static size_t count_layers(const struct ws_serve *s)
{
	int64_t n = 1;
	if (s->model)
		ws_config_int(s->model->config, "num_hidden_layers", &n);
	return n < 1 ? 1 : n > WS_TOY_LAYERS ? WS_TOY_LAYERS : (size_t)n;
}

static bool was_stirred(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	const bool stirred = s->stirred || !s->toys;
	s->stirred = false;
	pthread_mutex_unlock(&s->lock);
	return stirred;
}

/* All but the newest that no token of the cache was computed with. */
static void drop_unused(struct ws_serve *s)
{
	for (struct ws_toy **at = s->toys ? &s->toys->next : &s->toys; *at; ) {
		struct ws_toy *toy = *at;
		if (ws_serve_prompts_use(&s->prompts, toy)) {
			at = &toy->next;
			continue;
		}
		*at = toy->next;
		free(toy);
	}
}

const struct ws_toy *ws_serve_toy(struct ws_serve *s)
{
	if (!was_stirred(s))
		return s->toys;
	struct ws_toy *toy = calloc(1, sizeof *toy);
	if (!toy)
		return NULL;
	toy->n_layers = count_layers(s);
	if (!s->model || !s->model->memory[0])
		read_weights(toy, s);
	else if (read_model(toy, s->model)) {
		free(toy);
		return NULL;
	}
	if (is_same(s->toys, toy)) {
		free(toy);
		return s->toys;
	}
	toy->next = s->toys;
	s->toys = toy;
	drop_unused(s);
	return toy;
}

void ws_serve_toys_free(struct ws_serve *s)
{
	while (s->toys) {
		struct ws_toy *toy = s->toys;
		s->toys = toy->next;
		free(toy);
	}
}

/* ---- the model's sizes ---- */

void ws_serve_toy_shape(const struct ws_serve *s, struct ws_toy_shape *out)
{
	int64_t vocab = WS_TOY_CLASSES;
	struct ws_err none = WS_ERR_INIT;
	memset(out, 0, sizeof *out);
	if (s->model) {
		ws_config_int(s->model->config, "vocab_size", &vocab);
		if (ws_routing_shape_of(s->model->config, &out->routing, &none))
			out->routing.layers = 0;
	}
	out->vocab = vocab < 1 ? 1 : vocab > WS_TOY_VOCAB ? WS_TOY_VOCAB : (size_t)vocab;
	out->classes = out->vocab < WS_TOY_CLASSES ? out->vocab : WS_TOY_CLASSES;
}
