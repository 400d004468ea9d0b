/* SPDX-License-Identifier: Apache-2.0 */
/* serve_prompts.c - the cache of prefixes: which tokens were computed, and with which weights.
 *
 * Servers keep keys and values. Here it is enough to know which weights made them: the toy model is
 * run over a prefix again with just those, and comes to what it came to then. Whatever has a
 * beginning in common shares what was computed first, as in a radix tree; an update does not touch
 * it, a flush drops it. */
#include "serve_generate.h"

#include <stdlib.h>
#include <string.h>

/* All of these in the scheduler. */

static size_t in_common(const struct ws_serve_prompt *p, const int32_t *ids, size_t n)
{
	size_t i = 0;
	while (i < n && i < p->n && p->ids[i] == ids[i])
		i++;
	return i;
}

static const struct ws_serve_prompt *find(const struct ws_serve_prompts *p, const int32_t *ids,
                                          size_t n, size_t *common)
{
	const struct ws_serve_prompt *best = NULL;
	*common = 0;
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++) {
		const size_t have = in_common(&p->items[i], ids, n);
		if (have > *common) {
			*common = have;
			best = &p->items[i];
		}
	}
	return best;
}

size_t ws_serve_prompts_find(const struct ws_serve_prompts *p, const int32_t *ids, size_t n,
                             const struct ws_toy **made_by)
{
	size_t common;
	const struct ws_serve_prompt *have = find(p, ids, n, &common);
	if (have)
		memcpy(made_by, have->made_by, common * sizeof *made_by);
	return common;
}

static void drop(struct ws_serve_prompt *p)
{
	free(p->ids);
	free(p->made_by);
	*p = (struct ws_serve_prompt){ 0 };
}

/* Its beginning, if that is all there is of an older one; else the next in turn. */
static struct ws_serve_prompt *choose_place(struct ws_serve_prompts *p, const int32_t *ids,
                                            size_t n)
{
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++)
		if (p->items[i].n && in_common(&p->items[i], ids, n) == p->items[i].n)
			return &p->items[i];
	return &p->items[p->next++ % WS_SERVE_MAX_PROMPTS];
}

void ws_serve_prompts_add(struct ws_serve_prompts *p, const int32_t *ids, size_t n,
                          const struct ws_toy *const *made_by)
{
	struct ws_serve_prompt fresh = { malloc(n * sizeof *ids), malloc(n * sizeof *made_by), n };
	size_t common;
	const struct ws_serve_prompt *have = find(p, ids, n, &common);
	if (common == n || !fresh.ids || !fresh.made_by) { /* without memory less is cached */
		drop(&fresh);
		return;
	}
	memcpy(fresh.ids, ids, n * sizeof *ids);
	memcpy(fresh.made_by, made_by, n * sizeof *made_by);
	if (have)
		memcpy(fresh.made_by, have->made_by, common * sizeof *made_by);
	struct ws_serve_prompt *place = choose_place(p, ids, n);
	drop(place);
	*place = fresh;
}

bool ws_serve_prompts_use(const struct ws_serve_prompts *p, const struct ws_toy *toy)
{
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++)
		for (size_t k = 0; k < p->items[i].n; k++)
			if (p->items[i].made_by[k] == toy)
				return true;
	return false;
}

void ws_serve_prompts_forget(struct ws_serve_prompts *p)
{
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++)
		drop(&p->items[i]);
	p->next = 0;
}
