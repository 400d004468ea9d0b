/* SPDX-License-Identifier: Apache-2.0 */
/* shard_meaning.c - identifies a tensor of one rank: a part of the checkpoint, or a fused
 * parameter. */
#include "merge_shards.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 4096, MEANINGS = 8 };

static int misshapen(const struct ws_shard_merge *j, size_t rank, const struct ws_tensor *t,
                     const char *name)
{
	const struct ws_param *q = ws_layout_find_param(j->layout, name);
	int64_t dims[WS_MAX_DIMS];
	if (!q)
		q = ws_layout_param(j->layout, ws_layout_find_alias(j->layout, name, 0)->param);
	ws_layout_dims(j->layout, q, (unsigned)rank, dims);
	return ws_err_set(j->err, WS_EINPUT, "rank %zu: tensor '%s' is %s, and %s at tp %u is %s",
	                  rank, ws_quote(t->name).text, ws_shape_text(t->n_dims, t->dims).text,
	                  q->name, j->tp,
	                  q->trouble ? q->trouble : ws_shape_text(q->n_dims, dims).text);
}

static int place_fused(struct ws_shard_merge *j, size_t rank, const struct ws_tensor *t,
                      const char *name, const struct ws_layout_match *a, size_t n)
{
	const size_t i = n ? (size_t)(a->param - ws_layout_param(j->layout, 0)) : 0;
	struct ws_layout_match **place = n ? &j->ranks[rank].params[i] : NULL;
	char prefix[32];
	if (n == 0)
		return misshapen(j, rank, t, name);
	if (n > 1) {
		snprintf(prefix, sizeof prefix, "rank %zu: ", rank);
		return ws_match_ambiguous(j->layout, prefix, a, j->err);
	}
	if (*place)
		return ws_err_set(j->err, WS_EINPUT, "rank %zu: both '%s' and '%s' are %s", rank,
		                  ws_quote((*place)->tensor->name).text, ws_quote(t->name).text,
		                  a->param->name);
	*place = ws_arena_alloc(&j->c->arena, sizeof **place);
	if (!*place)
		return ws_oom(j->err);
	**place = *a;
	return 0;
}

static int unknown(const struct ws_shard_merge *j, size_t rank, const struct ws_tensor *t)
{
	ws_err_set(j->err, WS_EINPUT,
	           "rank %zu: tensor '%s' is not in the %s rules, so its division among the "
	           "ranks is unknown",
	           rank, ws_quote(t->name).text, ws_layout_family(j->layout));
	return ws_err_hint(j->err, "give its rule in a file: {map} FILE (wsync-map(5))");
}

int ws_shard_merge_place(struct ws_shard_merge *j, size_t rank, const struct ws_tensor *t)
{
	const struct ws_source *s = j->c->sources[rank];
	const struct ws_match_at at = { j->layout, (unsigned)rank, j->tp };
	struct ws_layout_match a[MEANINGS];
	char name[MAX_NAME + 1];
	bool known;
	if (!j->family || !ws_family_rename(j->family, t->name, name, sizeof name))
		memcpy(name, t->name, strlen(t->name) + 1);
	const struct ws_part *p = ws_layout_find_part(j->layout, name);
	if (p) {
		const struct ws_tensor **place =
			&j->ranks[rank].parts[p - ws_layout_part(j->layout, 0)];
		if (*place)
			return ws_err_set(j->err, WS_EINPUT,
			                  "rank %zu: both '%s' and '%s' become %s", rank,
			                  ws_quote((*place)->name).text, ws_quote(t->name).text,
			                  p->name);
		*place = t;
		return 0;
	}
	const size_t n = ws_match_layouts(s, t, name, &at, a, MEANINGS, &known);
	if (known)
		return place_fused(j, rank, t, name, a, n);
	return ws_layout_skips(j->layout, name) ? 0 : unknown(j, rank, t);
}
