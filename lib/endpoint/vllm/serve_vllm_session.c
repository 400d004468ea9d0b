/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_session.c - what becomes of the layers of the model during an update, as in vLLM's
 * layerwise reload.
 *
 * A start takes the weights away from every module. A module that gets all of its weights is
 * loaded. At the finish, a module that got none takes its old weights back, and one that got a part
 * is loaded from memory of which that part was written: the rest is garbage. No answer says so.
 * After a failed update the modules have no weights until the finish of another one. A module that
 * had got a part then keeps it, and counts it again in that update: it is full before its last part
 * arrives, which is dropped. Only a finish makes modules forget.
 *
 * Since 0.32 two parameters of a module are never taken away (SKIP_TENSORS of reload/meta.py):
 * `bias`, which keeps its values if it does not come, and `e_score_correction_bias`, which is not
 * counted either. Which of the older releases do that is not known: here they do not. */
#include "serve_vllm.h"

#include "serve_lineage.h"
#include "serve_model.h"

#include <stdlib.h>
#include <string.h>

void ws_serve_vllm_begin(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->vllm->since = ++s->sync;
	pthread_mutex_unlock(&s->lock);
	s->vllm->active = true;
}

static bool came(const struct ws_serve *s, size_t part)
{
	return s->model->parts[part].sync >= s->vllm->since;
}

static size_t module_length(const struct ws_param *p)
{
	const char *dot = strrchr(p->name, '.');
	return dot ? (size_t)(dot - p->name) : 0;
}

static bool same_module(const struct ws_param *a, const struct ws_param *b)
{
	const size_t n = module_length(a);
	return module_length(b) == n && memcmp(a->name, b->name, n) == 0;
}

/* Returns the end of the module that begins with param `first`. */
static size_t module_end(const struct ws_layout *l, size_t first)
{
	size_t end = first + 1;
	while (end < ws_layout_param_count(l) &&
	       same_module(ws_layout_param(l, first), ws_layout_param(l, end)))
		end++;
	return end;
}

/* Is the last word of the param's name `word`, and does this release leave such params in place? */
static bool stays(const struct ws_serve *s, const struct ws_param *p, const char *word)
{
	const size_t n = module_length(p);
	return s->opts.lineage == WS_SERVE_VLLM_0_33 &&
	       strcmp(p->name + n + (p->name[n] == '.'), word) == 0;
}

static bool is_counted(const struct ws_serve *s, const struct ws_param *p)
{
	return !p->tied_to && !stays(s, p, "e_score_correction_bias");
}

/* How many parts the params [first, end) have, and how many of them came. */
static size_t count_parts(const struct ws_serve *s, size_t first, size_t end, size_t *n_came)
{
	size_t all = 0;
	*n_came = 0;
	for (size_t i = first; i < end; i++) {
		const struct ws_param *p = ws_layout_param(s->model->layout, i);
		for (size_t k = 0; k < p->n_parts && is_counted(s, p); k++, all++)
			*n_came += came(s, p->first + k);
	}
	return all;
}

void ws_serve_vllm_abandon(struct ws_serve *s)
{
	struct ws_serve_vllm *v = s->vllm;
	const struct ws_layout *l = s->model ? s->model->layout : NULL;
	const size_t n = l ? ws_layout_param_count(l) : 0;
	v->active = false;
	v->broken = true;
	if (!v->kept)
		v->kept = calloc(n + 1, sizeof *v->kept);
	for (size_t i = 0, end, n_came; v->kept && i < n; i = end) {
		end = module_end(l, i);
		const size_t all = count_parts(s, i, end, &n_came);
		v->kept[i] |= n_came && n_came < all;
	}
}

/* ---- the end ---- */

static void fill_with_garbage(struct ws_serve_model *m, const struct ws_part *part)
{
	const uint64_t n = ws_serve_model_part_bytes(m, part);
	uint8_t *garbage = malloc((size_t)n + 1);
	uint64_t x = (uint64_t)ws_now_ns() | 1;
	for (uint64_t i = 0; garbage && i < n; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		garbage[i] = (uint8_t)(x >> 32);
	}
	for (unsigned r = 0; garbage && r < m->tp; r++) {
		struct ws_serve_boxes boxes;
		ws_serve_model_boxes(m, part, r, &boxes);
		ws_serve_boxes_put(&boxes, 0, garbage, (size_t)n,
		                   ws_serve_model_at(m, part->param, r));
	}
	free(garbage);
}

/* Where only hashes are kept, the hash changes. */
static void spoil_part(struct ws_serve *s, size_t i)
{
	const struct ws_part *part = ws_layout_part(s->model->layout, i);
	struct ws_serve_weight *w = ws_serve_weights_find(&s->weights, part->name);
	if (s->model->memory[0])
		fill_with_garbage(s->model, part);
	if (w)
		w->hash = ~w->hash;
	ws_serve_mark_loaded(s->model, i, 1, s->model->dtypes[part->param]);
	ws_serve_mark_dirty(s);
}

static void spoil_last(struct ws_serve *s, size_t first, size_t end)
{
	for (size_t i = end; i-- > first;) {
		const struct ws_param *p = ws_layout_param(s->model->layout, i);
		if (p->tied_to || !p->n_parts)
			continue;
		spoil_part(s, p->first + p->n_parts - 1);
		return;
	}
}

/* Params [first, end) are those of one module. */
static void end_module(struct ws_serve *s, size_t first, size_t end)
{
	const struct ws_layout *l = s->model->layout;
	size_t n;
	const size_t all = count_parts(s, first, end, &n);
	if (s->vllm->kept && s->vllm->kept[first]) {
		s->vllm->kept[first] = false;
		spoil_last(s, first, end);
	}
	for (size_t i = first; i < end && n && n < all; i++) {
		const struct ws_param *p = ws_layout_param(l, i);
		const bool lost = is_counted(s, p) && !stays(s, p, "bias");
		for (size_t k = 0; k < p->n_parts && lost; k++)
			if (!came(s, p->first + k))
				spoil_part(s, p->first + k);
	}
}

void ws_serve_vllm_end(struct ws_serve *s)
{
	const struct ws_layout *l = s->model ? s->model->layout : NULL;
	const size_t n = l ? ws_layout_param_count(l) : 0;
	for (size_t i = 0, end; i < n; i = end) {
		end = module_end(l, i);
		end_module(s, i, end);
	}
	s->vllm->active = s->vllm->broken = false;
}

bool ws_serve_vllm_can_generate(struct ws_serve_call *c)
{
	const struct ws_serve_vllm *v = c->serve->vllm;
	if (!v || (!v->active && !v->broken))
		return true;
	ws_serve_crash(c, "RuntimeError: Tensor on device meta is not on the expected device "
	                  "(%s)", v->active ? "between start_weight_update and "
	                                      "finish_weight_update" : "after a failed update");
	return false;
}
