/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate_cache.c - the cache of prompts: the state after each token, instead of keys and
 * values. An update does not change the cache; a flush empties it. */
#include "serve_generate.h"

#include <stdlib.h>
#include <string.h>

static const struct ws_serve_prompt *find_longest(const struct ws_serve *s, const int32_t *ids,
                                                  size_t n, size_t *common)
{
	const struct ws_serve_prompt *best = NULL;
	*common = 0;
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++) {
		const struct ws_serve_prompt *p = &s->prompts[i];
		size_t k = 0;
		while (k < n && k < p->n && p->ids[k] == ids[k])
			k++;
		if (k > *common) {
			*common = k;
			best = p;
		}
	}
	return best;
}

size_t ws_serve_prompts_find(const struct ws_serve *s, const int32_t *ids, size_t n,
                             uint64_t *states)
{
	size_t common;
	const struct ws_serve_prompt *p = find_longest(s, ids, n, &common);
	if (p)
		memcpy(states, p->states, common * sizeof *states);
	return common;
}

static void drop(struct ws_serve_prompt *p)
{
	free(p->ids);
	free(p->states);
	*p = (struct ws_serve_prompt){ 0 };
}

/* The states of a prefix that is already cached are kept, as in a radix tree. */
void ws_serve_prompts_add(struct ws_serve *s, const int32_t *ids, size_t n, const uint64_t *states)
{
	struct ws_serve_prompt fresh = { malloc(n * sizeof *ids), malloc(n * sizeof *states), n };
	size_t common;
	const struct ws_serve_prompt *p = find_longest(s, ids, n, &common);
	if (common == n || !fresh.ids || !fresh.states) { /* out of memory: not cached */
		drop(&fresh);
		return;
	}
	memcpy(fresh.ids, ids, n * sizeof *ids);
	memcpy(fresh.states, states, n * sizeof *states);
	if (p)
		memcpy(fresh.states, p->states, common * sizeof *states);
	struct ws_serve_prompt *place = &s->prompts[s->next_prompt++ % WS_SERVE_MAX_PROMPTS];
	drop(place);
	*place = fresh;
}

void ws_serve_prompts_forget(struct ws_serve *s)
{
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++)
		drop(&s->prompts[i]);
}
