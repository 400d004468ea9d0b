/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_missing.c - parameters, and parts of fused ones, for which nothing is sent. Names the
 * larger cause where there is one: a whole layer, or one expert in every layer. */
#include "namecheck_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COUNTED = 4096 }; /* limit of layers and of experts */

struct gaps {
	struct ws_check *c;
	bool layer_sent[MAX_COUNTED], layer_known[MAX_COUNTED], layer_gone[MAX_COUNTED];
	bool expert_sent[MAX_COUNTED], expert_known[MAX_COUNTED], expert_gone[MAX_COUNTED];
	struct ws_text layers, experts; /* the missing ones, as ranges */
};

static bool is_sent(const struct ws_check *c, size_t part)
{
	return c->part_item[part] != WS_NONE;
}

static const struct ws_param *param_of(const struct ws_check *c, size_t part)
{
	return ws_layout_param(c->layout, c->parts[part].param);
}

static void report_missing(struct ws_check *c, size_t part, enum ws_verdict verdict,
                           const char *near, const char *shared, const char *remedy,
                           const char *why)
{
	const struct ws_part *p = &c->parts[part];
	const struct ws_new_finding finding = {
		.verdict = verdict, .severity = WS_ERROR, .name = p->name,
		.param = param_of(c, part)->name, .near = near, .rule = ws_check_rule(c, p),
		.shared = shared, .remedy = remedy, .follows = near != NULL,
	};
	c->part_reported[part] = true;
	ws_report_add(c->report, &finding, "%s", why);
}

static bool is_head(const char *name)
{
	return !strcmp(name, "lm_head.weight") || ws_ends_with(name, ".lm_head.weight");
}

static bool is_lost_head(struct ws_check *c, size_t part)
{
	if (!is_head(c->parts[part].name))
		return false;
	report_missing(c, part, WS_NAME_MISSING, NULL, NULL, "save the head, or, if it was trained "
	            "tied to the embedding, set tie_word_embeddings in the config.json of both "
	            "sides", "tie_word_embeddings is false: the head is a parameter of its own, "
	            "and nothing is sent for it");
	return true;
}

/* ---- layers and experts ---- */

static void mark(bool *known, bool *sent, int64_t i, bool is)
{
	if (i < 0 || i >= MAX_COUNTED)
		return;
	known[i] = true;
	sent[i] |= is;
}

/* A layer counts as missing when others are there; so does an expert. */
static void find_gone(const bool *known, const bool *sent, bool *gone, struct ws_text *text)
{
	bool any = false;
	for (size_t i = 0; i < MAX_COUNTED; i++)
		any |= sent[i];
	for (size_t i = 0; any && i < MAX_COUNTED; i++)
		gone[i] = known[i] && !sent[i];
	*text = ws_text_ranges(gone, MAX_COUNTED);
}

static void find_gaps(struct gaps *g)
{
	struct ws_check *c = g->c;
	for (size_t i = 0; i < c->n_parts; i++) {
		const struct ws_part *p = &c->parts[i];
		const bool is = is_sent(c, i) || c->part_meant[i] != WS_NONE;
		mark(g->layer_known, g->layer_sent, ws_layer_of(p->name), is);
		mark(g->expert_known, g->expert_sent, p->expert, is);
	}
	find_gone(g->layer_known, g->layer_sent, g->layer_gone, &g->layers);
	find_gone(g->expert_known, g->expert_sent, g->expert_gone, &g->experts);
}

static bool is_gone(const bool *gone, int64_t i)
{
	return i >= 0 && i < MAX_COUNTED && gone[i];
}

static bool is_of_gap(struct gaps *g, size_t part)
{
	const struct ws_part *p = &g->c->parts[part];
	const int64_t layer = ws_layer_of(p->name);
	if (is_gone(g->layer_gone, layer)) {
		const struct ws_text shared = ws_textf("tensors are of layers that nothing is sent "
		                                       "for: %s", g->layers.s);
		const struct ws_text why = ws_textf("nothing is sent for layer %" PRId64, layer);
		report_missing(g->c, part, WS_NAME_MISSING, NULL, shared.s,
		               "name the files of every pipeline stage as sources",
		               why.s);
		return true;
	}
	if (is_gone(g->expert_gone, p->expert)) {
		const struct ws_text shared = ws_textf("tensors are of experts that nothing is "
		                                       "sent for in any layer: %s", g->experts.s);
		const struct ws_text why = ws_textf("nothing is sent for expert %" PRId64 " in any "
		                                    "layer", p->expert);
		report_missing(
			g->c, part, WS_NAME_MISSING, NULL, shared.s,
			"name the files of every expert-parallel rank as sources, and compare the "
			"number of experts in both config.json",
			why.s);
		return true;
	}
	return false;
}

/* ---- one tensor ---- */

/* A scale whose weight is sent. If the weight is in FP8 the scale is missing; else the weight's
 * dtype is the error, and check_dtype reports it. */
static bool is_lost_scale(struct ws_check *c, size_t part)
{
	char weight[WS_CHECK_NAME];
	if (!ws_scaled_name(c->parts[part].name, weight, sizeof weight))
		return false;
	const size_t of = ws_check_part(c, weight);
	if (of == WS_NONE || !is_sent(c, of))
		return false;
	const struct ws_item *item = c->sent[c->part_item[of]];
	c->part_reported[part] = true;
	if (item->dtype != c->parts[of].dtype)
		return true;
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_NO_SCALE, .severity = WS_ERROR, .name = item->name,
		.param = param_of(c, part)->name, .near = c->parts[part].name,
		.rule = ws_check_rule(c, &c->parts[part]),
		.shared = "quantized weights are sent without their scales: the server multiplies "
		        "them by what it holds",
		.remedy = "send the scales with them, in one request",
	};
	ws_report_add(c->report, &finding,
	              "%s is sent without %s: the server multiplies it by what it holds",
	              *ws_dtype_torch(item->dtype) ? ws_dtype_torch(item->dtype) : "it",
	              c->parts[part].name);
	return true;
}

/* Loaders drop q_a_proj or kv_a_proj_with_mqa without the other, so this is an error even for
 * chosen tensors. */
static bool is_lost_partner(struct ws_check *c, size_t part)
{
	const struct ws_param *p = param_of(c, part);
	if (!strstr(p->name, ".fused_qkv_a_proj_with_mqa."))
		return false;
	for (size_t i = p->first; i < p->first + p->n_parts; i++) {
		if (!is_sent(c, i))
			continue;
		const char *name = c->sent[c->part_item[i]]->name;
		const struct ws_new_finding finding = {
			.verdict = WS_NAME_PARTIAL,
			.severity = WS_ERROR,
			.name = c->parts[part].name,
			.param = p->name,
			.rule = ws_check_rule(c, &c->parts[part]),
			.shared = "tensors are the partners of others, which loaders drop without "
				  "them: q_a_proj and kv_a_proj_with_mqa are paired within one "
			          "request",
			.remedy = "send q_a_proj and kv_a_proj_with_mqa together",
		};
		c->part_reported[part] = true;
		ws_report_add(c->report, &finding, "not sent, and loaders drop %.400s without it: "
		              "they pair both within one request", name);
		return true;
	}
	return false;
}

static bool is_sent_otherwise(struct ws_check *c, size_t part)
{
	if (c->part_meant[part] == WS_NONE)
		return false;
	const char *name = c->sent[c->part_meant[part]]->name;
	const struct ws_text why = ws_textf("nothing is sent under this name, but %.400s is", name);
	report_missing(c, part, WS_NAME_MISSING, name, "parameters get nothing: what was meant for "
	            "them has names that the server does not know", "see the findings about those "
	            "names", why.s);
	return true;
}

static bool is_partly_sent(struct ws_check *c, size_t part)
{
	const struct ws_param *p = param_of(c, part);
	const struct ws_text kind = ws_text_kind(c->parts[part].name);
	size_t sent = 0;
	for (size_t i = 0; i < p->n_parts; i++)
		sent += is_sent(c, p->first + i);
	if (!sent)
		return false;
	const struct ws_text module = ws_text_module(c->parts[part].name);
	const struct ws_text why = p->n_parts > 4 ? ws_textf("%zu of the %zu tensors of %.300s are "
	                "sent, and this one is not", sent, p->n_parts, p->name)
	        : ws_textf("%.200s is made of %.200s, and %.100s is not sent",
	                   ws_text_module(p->name).s, ws_text_parts(c->layout, p).s, module.s);
	const struct ws_text shared = ws_textf("fused parameters are sent but for tensors like %s",
	                                       kind.s);
	report_missing(c, part, WS_NAME_PARTIAL, NULL, shared.s,
	               "send all parts: the server keeps what it has in the others' place", why.s);
	return true;
}

static bool is_torn(struct ws_check *c, size_t part)
{
	const struct ws_param *p = param_of(c, part);
	if (!ws_modules_torn(c, c->parts[part].param, p->name))
		return false;
	const struct ws_text module = ws_text_of_module(p->name);
	const struct ws_text shared = ws_textf("tensors are missing in modules of which others are "
	                                       "sent, like %.300s: vLLM loads a module anew when "
	                                       "any part of it comes, and gives the rest random "
	                                       "values", ws_text_kind(c->parts[part].name).s);
	const struct ws_text why = ws_textf("a part of %.300s is sent, and this is not: vLLM loads "
	                                    "the module anew and gives the rest random values",
	                                    module.s);
	report_missing(c, part, WS_NAME_PARTIAL, NULL, shared.s, "send all tensors of a module, or "
	               "none, with one sender", why.s);
	return true;
}

static bool may_lack(struct ws_check *c, size_t part)
{
	const struct ws_part *p = &c->parts[part];
	const char *why = ws_check_may_lack(c, p->name);
	if (!why && c->part_left[part])
		why = "left out under a fused name";
	if (!why)
		return false;
	const struct ws_text shared = ws_textf("tensors are %s: the server keeps what it has", why);
	const struct ws_text reason = ws_textf("%s: the server keeps what it has", why);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_MISSING, .severity = WS_NOTE, .name = p->name,
		.param = param_of(c, part)->name, .rule = ws_check_rule(c, p), .shared = shared.s,
	};
	c->part_reported[part] = true;
	ws_report_add(c->report, &finding, "%s", reason.s);
	return true;
}

static void explain(struct gaps *g, size_t part)
{
	struct ws_check *c = g->c;
	if (is_sent_otherwise(c, part) || is_lost_scale(c, part) || is_lost_partner(c, part) ||
	    is_torn(c, part) || may_lack(c, part) || is_lost_head(c, part) ||
	    is_of_gap(g, part) || is_partly_sent(c, part))
		return;
	const struct ws_text shared = ws_textf("tensors like %s are not sent: the server keeps "
	                                       "what it has", ws_text_kind(c->parts[part].name).s);
	report_missing(c, part, WS_NAME_MISSING, NULL, shared.s, NULL,
	            "nothing is sent for it: the server keeps what it has");
}

static const char *param_name(const struct ws_check *c, size_t i)
{
	return ws_layout_param(c->layout, i)->name;
}

static int find_modules(struct ws_check *c)
{
	if (!c->opts->whole_modules)
		return 0;
	if (ws_modules_make(c, param_name, ws_layout_param_count(c->layout)))
		return -1;
	for (size_t i = 0; i < c->n_parts; i++)
		if (is_sent(c, i) && !param_of(c, i)->tied_to)
			ws_modules_send(c, c->parts[i].param, param_of(c, i)->name);
	return 0;
}

/* An optional parameter may be missing as a whole, but not in part. */
static bool is_wanted(const struct ws_check *c, size_t part)
{
	const struct ws_param *p = param_of(c, part);
	bool wanted = !c->parts[part].optional || c->part_meant[part] != WS_NONE ||
	              (c->parts[part].draft && c->has_draft);
	for (size_t i = p->first; !wanted && i < p->first + p->n_parts; i++)
		wanted = is_sent(c, i);
	return wanted;
}

int ws_check_missing(struct ws_check *c)
{
	struct gaps *g = calloc(1, sizeof *g);
	int rc = 0;
	if (!g)
		return ws_oom(c->err);
	g->c = c;
	for (size_t i = 0; !rc && i < c->n_parts; i++)
		if (param_of(c, i)->tied_to)
			rc = ws_check_tied(c, i);
	rc = rc ? rc : find_modules(c);
	find_gaps(g);
	for (size_t i = 0; !rc && i < c->n_parts; i++)
		if (is_wanted(c, i)) {
			if (!param_of(c, i)->tied_to)
				ws_check_need(c, c->parts[i].name);
			if (!is_sent(c, i) && !c->part_reported[i])
				explain(g, i);
		}
	free(g);
	return rc;
}
