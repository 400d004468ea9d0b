/* SPDX-License-Identifier: Apache-2.0 */
/* serve_toy_weights.c - what the toy model knows of the tensors that the endpoint holds: the sum of
 * the sketches in each layer and router, and hashes over the names and all bytes.
 *
 * A model's are taken as the tensors of the checkpoint, put together again from the shares of all
 * ranks in the type of their parameters, so that it does not matter over how many ranks they are
 * divided, nor in which type they were sent. Where ranks hold copies and one of them differs, that
 * counts too. What nothing was ever loaded into is not there. */
#include "hash.h"
#include "serve_model.h"
#include "serve_toy.h"

#include "number.h"

#include <stdio.h>
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

enum { EMBED, HEAD, LAYER, ROUTER = LAYER + WS_TOY_LAYERS, PLACES = ROUTER + WS_TOY_LAYERS };

/* What is in no layer and has no other place either is in the first one, so that a cache holds
 * it. */
static size_t place_of(const char *name)
{
	const size_t layer = layer_of(name);
	if (layer == SIZE_MAX && strstr(name, "embed"))
		return EMBED;
	if (layer == SIZE_MAX && (has_segment(name, "norm") || has_segment(name, "lm_head")))
		return HEAD;
	if (has_segment(name, "gate") || has_segment(name, "router"))
		return ROUTER + (layer == SIZE_MAX ? 0 : layer);
	return LAYER + (layer == SIZE_MAX ? 0 : layer);
}

/* ---- all that belongs to a place ---- */

struct build {
	struct ws_toy *toy;
	int64_t sum[PLACES][WS_TOY_WIDTH];
	size_t n[PLACES];
};

/* In no order: they may come in any. */
static void add_hash(struct build *b, const char *name, uint64_t content)
{
	const uint64_t pair[] = { ws_hash64(name, strlen(name)), content };
	const size_t place = place_of(name);
	*(place == HEAD ? &b->toy->head_body : &b->toy->body) += ws_hash64(pair, sizeof pair);
}

static void add_sketch(struct build *b, const char *name, const struct ws_toy_sketch *s)
{
	const size_t place = place_of(name);
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		b->sum[place][k] += s->v[k];
	b->n[place]++;
}

/* Sums of signs are as long as the root of how many there are. */
static void finish(const struct build *b, size_t place, struct ws_toy_sketch *out)
{
	int64_t root = 1;
	while ((size_t)((root + 1) * (root + 1)) <= b->n[place])
		root++;
	for (size_t k = 0; k < WS_TOY_WIDTH; k++)
		out->v[k] = (int32_t)(b->sum[place][k] / root);
}

static void finish_all(const struct build *b)
{
	finish(b, EMBED, &b->toy->embed);
	finish(b, HEAD, &b->toy->head);
	for (size_t l = 0; l < WS_TOY_LAYERS; l++) {
		finish(b, LAYER + l, &b->toy->layer[l]);
		finish(b, ROUTER + l, &b->toy->router[l]);
		if (b->n[LAYER + l] + b->n[ROUTER + l] && l >= b->toy->n_layers)
			b->toy->n_layers = l + 1;
	}
}

/* ---- one tensor ---- */

static bool is_coded(const struct ws_toy_tensor *t)
{
	return t->dtype == WS_DTYPE_F8_E4M3 && t->n_dims == 2;
}

/* The name of the scales of a matrix in FP8; NULL: it is none. */
static const char *scales_of(const struct ws_toy_tensor *t, char *dst, size_t n)
{
	const int len = snprintf(dst, n, "%s_scale_inv", t->name);
	return is_coded(t) && len > 0 && (size_t)len < n ? dst : NULL;
}

/* Those of a matrix are counted with it. */
static bool is_scale(const char *name)
{
	const char *end = strstr(name, "_scale_inv");
	return end && !end[strlen("_scale_inv")];
}

static int add_numbers(struct build *b, const struct ws_toy_tensor *t,
                       const struct ws_toy_tensor *scales)
{
	struct ws_toy_sketch s;
	if (is_scale(t->name))
		return 0;
	if (ws_toy_sketch(t, scales, &s))
		return -1;
	add_sketch(b, t->name, &s);
	return 0;
}

static void add_unseen(struct build *b, const char *name, uint64_t hash)
{
	struct ws_toy_sketch s;
	ws_toy_sketch_hash(hash, &s);
	add_sketch(b, name, &s);
}

/* ---- a model's ---- */

static void view_part(const struct ws_serve_model *m, const struct ws_part *part,
                      struct ws_serve_gather *g, struct ws_toy_tensor *out)
{
	const enum ws_dtype dtype = m->dtypes[part->param];
	ws_serve_gather_begin(g, m, part, dtype);
	*out = (struct ws_toy_tensor){ .name = part->name, .dtype = dtype, .n_dims = part->n_dims,
		                       .dims = part->dims, .n = g->bytes * 8 / ws_dtype_bits(dtype),
		                       .gather = g };
}

/* Room for what is at hand. */
struct views {
	struct ws_serve_gather own, of_scales;
	struct ws_toy_tensor t, scales;
	uint64_t hashes[WS_SERVE_MAX_TP];
	char name[WS_SERVE_MAX_TEXT];
};

static int add_part(struct build *b, const struct ws_serve_model *m, const struct ws_part *part,
                    struct views *v)
{
	view_part(m, part, &v->own, &v->t);
	if (ws_serve_gather_hash(&v->own, v->hashes))
		return -1;
	add_hash(b, part->name, v->hashes[0]);
	for (unsigned r = 1; r < m->tp; r++)
		if (v->hashes[r] != v->hashes[0])
			add_hash(b, part->name, v->hashes[r] + r);
	const char *name = scales_of(&v->t, v->name, sizeof v->name);
	const struct ws_part *scales = name ? ws_layout_find_part(m->layout, name) : NULL;
	if (scales)
		view_part(m, scales, &v->of_scales, &v->scales);
	if (ws_number_readable(v->t.dtype))
		return add_numbers(b, &v->t, scales ? &v->scales : NULL);
	add_unseen(b, part->name, v->hashes[0]);
	return 0;
}

static int read_model(struct build *b, const struct ws_serve_model *m)
{
	struct views *v = malloc(sizeof *v);
	int rc = v ? 0 : -1;
	for (size_t i = 0; i < ws_layout_part_count(m->layout) && rc == 0; i++) {
		const struct ws_part *part = ws_layout_part(m->layout, i);
		if (m->parts[i].loaded && !ws_layout_param(m->layout, part->param)->tied_to)
			rc = add_part(b, m, part, v);
	}
	free(v);
	return rc;
}

/* ---- what was received ---- */

static void view_weight(const struct ws_serve_weight *w, struct ws_toy_tensor *out)
{
	*out = (struct ws_toy_tensor){ .name = w->name,
		                       .dtype = w->dtype,
		                       .n_dims = w->n_dims,
		                       .dims = w->dims,
		                       .n = w->bytes * 8 / ws_dtype_bits(w->dtype),
		                       .data = w->data };
}

static int add_weight(struct build *b, const struct ws_serve *s, const struct ws_serve_weight *w)
{
	struct ws_toy_tensor t, of_scales;
	char text[WS_SERVE_MAX_TEXT];
	const uint64_t hash = w->data ? ws_hash64(w->data, (size_t)w->bytes) : w->hash;
	view_weight(w, &t);
	add_hash(b, w->name, hash);
	const char *name = scales_of(&t, text, sizeof text);
	const struct ws_serve_weight *scales =
		name ? ws_serve_weights_find(&s->weights, name) : NULL;
	if (scales)
		view_weight(scales, &of_scales);
	if (w->data && ws_number_readable(w->dtype))
		return add_numbers(b, &t, scales && scales->data ? &of_scales : NULL);
	add_unseen(b, w->name, hash);
	return 0;
}

static int read_weights(struct build *b, const struct ws_serve *s)
{
	int rc = 0;
	for (size_t i = 0; i < s->weights.n && rc == 0; i++)
		rc = add_weight(b, s, &s->weights.items[i]);
	return rc;
}

/* ---- all of them ---- */

static bool is_same(const struct ws_toy *a, const struct ws_toy *b)
{
	return a && a->n_layers == b->n_layers && a->body == b->body &&
	       a->head_body == b->head_body;
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

static int read_all(struct ws_toy *toy, const struct ws_serve *s)
{
	struct build *b = calloc(1, sizeof *b);
	if (!b)
		return -1;
	b->toy = toy;
	toy->n_layers = count_layers(s);
	const int rc =
		s->model && s->model->memory[0] ? read_model(b, s->model) : read_weights(b, s);
	finish_all(b);
	free(b);
	return rc;
}

const struct ws_toy *ws_serve_toy(struct ws_serve *s)
{
	if (!was_stirred(s))
		return s->toys;
	struct ws_toy *toy = calloc(1, sizeof *toy);
	if (!toy || read_all(toy, s)) {
		free(toy);
		ws_serve_stir(s);
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
