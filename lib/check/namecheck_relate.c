/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_relate.c - finds the server parameter that a tensor is, or is a part of, by the fused
 * tensors that most servers have. Replaces whole segments only. */
#include "namecheck_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct ws_stacked stacks[] = {
	{ "q_proj", "qkv_proj", 1, 7 },   { "k_proj", "qkv_proj", 2, 7 },
	{ "v_proj", "qkv_proj", 4, 7 },   { "gate_proj", "gate_up_proj", 1, 3 },
	{ "up_proj", "gate_up_proj", 2, 3 },
	{ "w1", "gate_up_proj", 1, 3 },   { "w3", "gate_up_proj", 2, 3 },
	{ "w2", "down_proj", 1, 1 },
	{ "q_a_proj", "fused_qkv_a_proj_with_mqa", 1, 3 },
	{ "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa", 2, 3 },
	{ "in_proj_qkv", "in_proj_qkvz", 1, 3 }, { "in_proj_z", "in_proj_qkvz", 2, 3 },
	{ "in_proj_b", "in_proj_ba", 1, 3 }, { "in_proj_a", "in_proj_ba", 2, 3 },
	{ "moe_statics", "gate", 1, 1 }, /* Ernie at SGLang */
};

static const struct ws_stacked expert_stacks[] = {
	{ "gate_proj", "w13", 1, 3 }, { "w1", "w13", 1, 3 },
	{ "up_proj", "w13", 2, 3 },   { "w3", "w13", 2, 3 },
	{ "down_proj", "w2", 1, 1 },  { "w2", "w2", 1, 1 },
};

/* Experts that the checkpoint stores stacked, as transformers 5 does. */
static const struct ws_stacked stacked_experts[] = {
	{ "gate_up_proj", "w13_weight", 1, 1 }, { "down_proj", "w2_weight", 1, 1 }, {
	                "gate_up_proj_bias", "w13_weight_bias", 1, 1 }, { "down_proj_bias",
	                "w2_weight_bias", 1, 1 }, { "gate_up_proj_blocks", "w13_weight", 1, 1 }, {
	                "down_proj_blocks", "w2_weight", 1, 1 }, { "gate_up_proj_scales",
	                "w13_weight_scale", 1, 1 }, { "down_proj_scales", "w2_weight_scale", 1, 1 },
	{ "gate_up_proj_bias", "w13_bias", 1, 1 }, { "down_proj_bias", "w2_bias", 1, 1 }, /* vLLM */
	        };

enum { N_STACKS = sizeof stacks / sizeof stacks[0],
       N_EXPERT_STACKS = sizeof expert_stacks / sizeof expert_stacks[0],
       N_STACKED_EXPERTS = sizeof stacked_experts / sizeof stacked_experts[0] };

size_t ws_find_shown(const struct ws_check *c, const char *name)
{
	const struct ws_weight *w = ws_names_find(&c->shown, name);
	return w ? (size_t)(w - c->listing->items) : WS_NONE;
}

static size_t segment_length(const char *p)
{
	return strcspn(p, ".");
}

static bool is_segment(const char *p, size_t n, const char *word)
{
	return strlen(word) == n && !memcmp(p, word, n);
}

/* By SGLang's name ("experts.w13_weight") or vLLM's ("experts.routed_experts.w13_weight"). */
static size_t find_experts(const struct ws_check *c, const char *name, const char *p,
                           const char *leaf)
{
	static const char *const words[] = { "experts.", "experts.routed_experts." };
	char fused[WS_CHECK_NAME];
	size_t shown = WS_NONE;
	for (size_t i = 0; shown == WS_NONE && i < sizeof words / sizeof words[0]; i++)
		if (snprintf(fused, sizeof fused, "%.*s%s%s", (int)(p - name), name, words[i],
		             leaf) < WS_CHECK_NAME)
			shown = ws_find_shown(c, fused);
	return shown;
}

static bool relate_stacked(const struct ws_check *c, const char *name, const char *p,
                           struct ws_relation *r)
{
	const char *leaf = p + strlen("experts.");
	for (size_t i = 0; i < N_STACKED_EXPERTS; i++) {
		const struct ws_stacked *s = &stacked_experts[i];
		if (strcmp(leaf, s->part))
			continue;
		*r = (struct ws_relation){ find_experts(c, name, p, s->fused), s, true };
		if (r->shown != WS_NONE)
			return true;
	}
	return false;
}

/* Matches "mlp.experts.7.up_proj.weight" with "mlp.experts.w13_weight"; p points at "experts". */
static bool relate_expert(const struct ws_check *c, const char *name, const char *p,
                          struct ws_relation *r)
{
	const char *number = p + strlen("experts.");
	const char *leaf = number + strspn(number, "0123456789");
	char fused[WS_CHECK_NAME];
	if (leaf == number || *leaf != '.')
		return false;
	leaf++;
	const size_t n = segment_length(leaf);
	for (size_t i = 0; i < N_EXPERT_STACKS; i++) {
		const struct ws_stacked *s = &expert_stacks[i];
		if (!is_segment(leaf, n, s->part) || leaf[n] != '.' ||
		    snprintf(fused, sizeof fused, "%s_%s", s->fused, leaf + n + 1) >= WS_CHECK_NAME)
			continue;
		*r = (struct ws_relation){ find_experts(c, name, p, fused), s, true };
		return r->shown != WS_NONE;
	}
	return false;
}

static bool relate_segment(const struct ws_check *c, const char *name, const char *p,
                           struct ws_relation *r)
{
	const size_t n = segment_length(p);
	char fused[WS_CHECK_NAME];
	for (size_t i = 0; i < N_STACKS; i++) {
		if (!is_segment(p, n, stacks[i].part) || snprintf(fused, sizeof fused, "%.*s%s%s",
		                (int)(p - name), name, stacks[i].fused, p + n) >= WS_CHECK_NAME)
			continue;
		*r = (struct ws_relation){ ws_find_shown(c, fused), &stacks[i], false };
		if (r->shown != WS_NONE)
			return true;
	}
	return false;
}

struct ws_relation ws_relate(const struct ws_check *c, const char *name)
{
	struct ws_relation r = { ws_find_shown(c, name), NULL, false };
	for (const char *p = name; r.shown == WS_NONE && *p; p += segment_length(p),
	     p += *p == '.') {
		if (!strncmp(p, "experts.", 8) &&
		    (relate_expert(c, name, p, &r) || relate_stacked(c, name, p, &r)))
			return r;
		if (relate_segment(c, name, p, &r))
			return r;
	}
	return r;
}

/* ---- what globs leave out ---- */

/* Is the tensor left out that is the share s of this parameter? p: the fused segment. */
static bool lacks_share(const struct ws_check *c, const char *name, const char *p,
                        const struct ws_stacked *s)
{
	char part[WS_CHECK_NAME];
	return snprintf(part, sizeof part, "%.*s%s%s", (int)(p - name), name, s->part,
	                p + segment_length(p)) < WS_CHECK_NAME && ws_check_may_lack(c, part);
}

/* The same for all experts. */
static bool lacks_expert_share(const struct ws_check *c, const char *name, const char *p,
                               const struct ws_stacked *s, int64_t n_experts)
{
	const char *experts = strstr(name, "experts.");
	const size_t n = strlen(s->fused);
	char part[WS_CHECK_NAME];
	if (!experts || strncmp(p, s->fused, n) != 0 || p[n] != '_')
		return false;
	for (int64_t i = 0; i < n_experts; i++)
		if (snprintf(part, sizeof part, "%.*sexperts.%" PRId64 ".%s.%s",
		             (int)(experts - name), name, i, s->part, p + n + 1) >= WS_CHECK_NAME ||
		    !ws_check_may_lack(c, part))
			return false;
	return true;
}

bool ws_relate_may_lack(const struct ws_check *c, const char *name, unsigned shares,
                        int64_t n_experts)
{
	if (ws_check_may_lack(c, name))
		return true;
	for (const char *p = name; *p; p += segment_length(p), p += *p == '.') {
		unsigned left = shares, of = 0;
		for (size_t i = 0; i < N_STACKS; i++) {
			if (!is_segment(p, segment_length(p), stacks[i].fused))
				continue;
			of = stacks[i].of;
			left |= lacks_share(c, name, p, &stacks[i]) ? stacks[i].share : 0;
		}
		for (size_t i = 0; i < N_EXPERT_STACKS; i++)
			if (lacks_expert_share(c, name, p, &expert_stacks[i], n_experts)) {
				of = expert_stacks[i].of;
				left |= expert_stacks[i].share;
			}
		if (of && left == of)
			return true;
	}
	return false;
}

struct ws_text ws_text_lacking(const struct ws_stacked *stack, bool of_experts, unsigned shares)
{
	const struct ws_stacked *table = of_experts ? expert_stacks : stacks;
	const size_t n = of_experts ? N_EXPERT_STACKS : N_STACKS;
	struct ws_text t = { "" };
	size_t used = 0;
	for (size_t i = 0; i < n && used < sizeof t.s; i++)
		if (!strcmp(table[i].fused, stack->fused) && !(shares & table[i].share) &&
		    table[i].part[0] != 'w')
			used += (size_t)snprintf(t.s + used, sizeof t.s - used, "%s%s", used
			                         ? " and " : "", table[i].part);
	return t;
}
