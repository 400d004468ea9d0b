/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_unknown.c - sent names that the server does not have, and the likely cause.
 *
 * Each cause is a function, tried in order: another prefix, the server's own fused name, a name
 * that a replacement hit twice, a scale for an unquantized server, a layer too many. The part that
 * the name was meant for is recorded, so that the missing parameter is explained too. */
#include "namecheck_unknown.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names of the layout ---- */

size_t ws_segment(const char *p)
{
	return strcspn(p, ".");
}

bool ws_is_number(const char *p)
{
	const size_t n = strspn(p, "0123456789");
	return n && n <= 9 && (p[n] == 0 || p[n] == '.');
}

static int64_t highest(struct ws_search *s, const char *word, size_t n)
{
	struct ws_range r = { "", -1 };
	if (n >= sizeof r.word)
		return -1;
	memcpy(r.word, word, n);
	for (size_t i = 0; i < s->n_ranges; i++)
		if (!strcmp(s->ranges[i].word, r.word))
			return s->ranges[i].last;
	for (size_t i = 0; i < s->c->n_parts; i++)
		for (const char *p = s->c->parts[i].name; (p = strstr(p, r.word)); p += n)
			if (p[n] == '.' && ws_is_number(p + n + 1) && atoll(p + n + 1) > r.last)
				r.last = atoll(p + n + 1);
	if (s->n_ranges < WS_MAX_RANGES)
		s->ranges[s->n_ranges++] = r;
	return r.last;
}

/* ---- reporting ---- */

/* True if the server has this name. *part: the part, or the first part of that parameter. */
bool ws_search_knows(const struct ws_search *s, const char *name, size_t *part)
{
	*part = ws_check_part(s->c, name);
	if (*part != WS_NONE)
		return true;
	const struct ws_param *p = ws_layout_find_param(s->c->layout, name);
	const struct ws_alias *a = p ? NULL : ws_layout_find_alias(s->c->layout, name, 0);
	if (a)
		p = ws_layout_param(s->c->layout, a->param);
	if (p && p->n_parts)
		*part = p->first;
	return p || ws_layout_skips(s->c->layout, name);
}

const struct ws_item *ws_search_sent(const struct ws_search *s, size_t part)
{
	return part == WS_NONE || s->c->part_item[part] == WS_NONE
	               ? NULL : s->c->sent[s->c->part_item[part]];
}

struct ws_new_finding ws_search_finding(struct ws_search *s, size_t part)
{
	struct ws_check *c = s->c;
	struct ws_new_finding finding = { .verdict = WS_NAME_UNEXPECTED, .severity = WS_ERROR,
		                .name = s->item->name };
	if (part == WS_NONE)
		return finding;
	finding.param = ws_layout_param(c->layout, c->parts[part].param)->name;
	finding.near = c->parts[part].name;
	finding.rule = ws_check_rule(c, &c->parts[part]);
	if (ws_search_sent(s, part))
		finding.verdict = WS_NAME_TWICE;
	else if (c->part_meant[part] == WS_NONE)
		c->part_meant[part] = s->sent;
	return finding;
}

bool ws_search_mark_parts(struct ws_search *s, const struct ws_param *p)
{
	struct ws_check *c = s->c;
	bool twice = false;
	for (size_t i = p->first; i < p->first + p->n_parts; i++) {
		twice |= c->part_item[i] != WS_NONE;
		if (c->part_item[i] == WS_NONE && c->part_meant[i] == WS_NONE)
			c->part_meant[i] = s->sent;
	}
	return twice;
}

const char *ws_also_sent(const struct ws_new_finding *finding)
{
	return finding->verdict == WS_NAME_TWICE ? ", which is sent as well" : "";
}

/* ---- causes ---- */

static bool is_left_aside(struct ws_search *s)
{
	const char *why = ws_layout_skips(s->c->layout, s->item->name);
	struct ws_text shared;
	if (!why)
		return false;
	shared = ws_textf("names are left aside by servers: %s", why);
	const struct ws_new_finding finding = { .verdict = WS_NAME_UNEXPECTED, .severity = WS_NOTE,
		                      .name = s->item->name, .shared = shared.s };
	ws_report_add(s->c->report, &finding, "servers leave it aside: %s", why);
	s->c->sent_known[s->sent] = true;
	return true;
}

static bool is_scale_too_many(struct ws_search *s)
{
	char weight[WS_CHECK_NAME];
	if (!ws_scaled_name(s->item->name, weight, sizeof weight))
		return false;
	const size_t part = ws_check_part(s->c, weight);
	if (part == WS_NONE)
		return false;
	const struct ws_part *p = &s->c->parts[part];
	struct ws_new_finding finding = { .verdict = WS_NAME_UNEXPECTED, .severity = WS_ERROR,
		                .name = s->item->name,
		                .param = ws_layout_param(s->c->layout, p->param)->name,
		                .rule = ws_check_rule(s->c, p) };
	if (ws_dtype_is_fp8(p->dtype) && p->exact) {
		char own[WS_CHECK_NAME];
		snprintf(own, sizeof own, "%s_scale_inv", p->name);
		const bool blocks = ws_check_part(s->c, own) != WS_NONE;
		finding.shared =
			blocks ? "scales are of another scheme than the server's FP8 blocks" :
				 "scales are of blocks, and the server keeps one for each tensor";
		finding.remedy = blocks ? "quantize in the blocks that quantization_config says"
		        : "start the server from a block FP8 checkpoint, or send a checkpoint "
		          "with one scale per tensor";
		ws_report_add(s->c->report, &finding, "a scale of another scheme: the server keeps "
		              "%s with %s", p->name, blocks ? "weight_scale_inv of blocks"
		              : "weight_scale of the whole tensor");
		return true;
	}
	finding.shared =
		"scales are for a server that keeps these weights unquantized: it drops them";
	finding.remedy = "send unquantized weights, or start the server from an FP8 checkpoint";
	ws_report_add(s->c->report, &finding,
	              "a scale, and the server keeps %s unquantized: it drops it",
	              p->name);
	return true;
}

static bool has_static_scales(const struct ws_check *c)
{
	return c->opts->config && !strcmp(ws_config_quant(c->opts->config)->activation, "static");
}

/* Biases and activation scales of known weights. Servers keep the input_scale of a checkpoint with
 * static activation scales, and its shape is not checked. */
static bool is_companion(struct ws_search *s)
{
	static const struct {
		const char *suffix, *shared, *why;
	} kinds[] = {
		{ ".bias", "biases are of layers that by config.json have none",
		  "a bias, and by config.json this layer has none" },
		{ ".input_scale", "scales are of activations, which the server works out by itself",
		  "a scale of activations, which the server works out by itself" },
		{ ".input_scale", "scales are of activations (activation_scheme \"static\"), whose "
		  "shapes are not checked",
		  "a scale of activations, whose shape is not checked" },
	};
	struct ws_check *c = s->c;
	const char *name = s->item->name;
	char weight[WS_CHECK_NAME];
	const size_t i = ws_ends_with(name, kinds[0].suffix) ? 0 : has_static_scales(c) ? 2 : 1;
	if (!ws_ends_with(name, kinds[i].suffix))
		return false;
	snprintf(weight, sizeof weight, "%.*s.weight",
	         (int)(strlen(name) - strlen(kinds[i].suffix)), name);
	const size_t part = ws_check_part(c, weight);
	if (part == WS_NONE)
		return false;
	struct ws_new_finding finding = { .verdict = WS_NAME_UNEXPECTED, .severity = WS_NOTE,
		                          .name = name, .shared = kinds[i].shared };
	if (i == 2) {
		c->sent_known[s->sent] = true;
	} else {
		finding.severity = WS_ERROR;
		finding.param = ws_layout_param(c->layout, c->parts[part].param)->name;
		finding.rule = ws_check_rule(c, &c->parts[part]);
		finding.remedy = "leave them out with {exclude}, or compare the config.json of "
			         "both sides";
	}
	ws_report_add(c->report, &finding, "%s", kinds[i].why);
	return true;
}

static bool is_adapter(struct ws_search *s)
{
	if (!strstr(s->item->name, ".lora_"))
		return false;
	struct ws_new_finding finding = ws_search_finding(s, WS_NONE);
	finding.leads = true;
	finding.shared = "names are factors of an adapter that is not merged into the model";
	finding.remedy = "merge the adapter before saving (merge_and_unload), or save it as an "
	                 "adapter and send its base with {adapters}";
	ws_report_add(s->c->report, &finding,
	              "a factor of an adapter (LoRA), which is no weight of the model");
	return true;
}

/* Names of other checkpoint formats, recognized by one segment. */
static bool is_foreign(struct ws_search *s)
{
	static const char *const formats[][2] = {
		{ "linear_qkv", "Megatron" }, { "linear_fc1", "Megatron" },
		{ "linear_fc2", "Megatron" }, { "linear_proj", "Megatron" },
		{ "word_embeddings", "Megatron" }, { "c_attn", "GPT-2" }, { "c_fc", "GPT-2" },
		{ "c_proj", "GPT-2" }, { "wte", "GPT-2" }, { "wq", "Meta" }, { "wk", "Meta" },
		{ "wv", "Meta" }, { "wo", "Meta" }, { "tok_embeddings", "Meta" },
		{ "query_key_value", "GPT-NeoX" }, { "blk", "GGUF" }, { "token_embd", "GGUF" },
	};
	for (const char *p = s->item->name; *p; p += ws_segment(p), p += *p == '.') {
		const size_t n = ws_segment(p);
		for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
			struct ws_text shared;
			if (strlen(formats[i][0]) != n || memcmp(formats[i][0], p, n))
				continue;
			struct ws_new_finding finding = ws_search_finding(s, WS_NONE);
			shared = ws_textf("names are those of the %s format, which servers "
			         "do not load", formats[i][1]);
			finding.shared = shared.s;
			finding.remedy =
				"convert the checkpoint to Hugging Face names, or name them "
				"in a {map} (wsync-map(5))";
			ws_report_add(s->c->report, &finding,
			              "%s is a name of the %s format, which servers do not load",
			              formats[i][0], formats[i][1]);
			return true;
		}
	}
	return false;
}

/* The only segment in which the names differ, if it is a number in both; else NULL. */
static const char *differing_number(const char *a, const char *b, const char **word)
{
	const char *found = NULL, *before = a;
	while (*a && *b) {
		const size_t n = ws_segment(a), m = ws_segment(b);
		if (n != m || memcmp(a, b, n)) {
			if (found || !ws_is_number(a) || !ws_is_number(b))
				return NULL;
			found = a;
			*word = before;
		}
		before = a;
		a += n;
		b += m;
		if (*a != *b)
			return NULL;
		a += *a == '.';
		b += *b == '.';
	}
	return *a == *b ? found : NULL;
}

static bool is_numbered_otherwise(struct ws_search *s, const char *near)
{
	const char *word = NULL;
	const char *number = near ? differing_number(s->item->name, near, &word) : NULL;
	struct ws_text shared;
	if (!number)
		return false;
	const int n = (int)ws_segment(word);
	const int64_t last = highest(s, word, (size_t)n), at = atoll(number);
	struct ws_new_finding finding = ws_search_finding(s, WS_NONE);
	finding.near = near;
	finding.shared = shared.s;
	if (last >= 0 && at > last) {
		shared = ws_textf("names are of %.*s that %s: there are 0 to %" PRId64, n, word,
		                  ws_text_lacks(s->c), last);
		finding.remedy = ws_text_compare(s->c);
		ws_report_add(s->c->report, &finding,
		              "%s %.*s 0 to %" PRId64 ", and this is of %" PRId64,
		              ws_text_gives(s->c), n, word, last, at);
	} else {
		shared = ws_textf("names are of %.*s that %s have no %s", n, word,
		                  ws_text_by(s->c), ws_text_kind(near).s);
		ws_report_add(s->c->report, &finding, "%s %.*s %" PRId64 " has no such "
		              "tensor, though others have", ws_text_by(s->c), n, word, at);
	}
	return true;
}

static void report_unknown(struct ws_search *s, const char *near)
{
	const size_t part = near ? ws_check_part(s->c, near) : WS_NONE;
	const bool free = part != WS_NONE && !ws_search_sent(s, part);
	struct ws_new_finding finding = ws_search_finding(s, free ? part : WS_NONE);
	struct ws_text shared;
	shared = ws_textf("names like %s are unknown to the server: it drops or refuses them",
	         ws_text_kind(s->item->name).s);
	finding.near = near;
	finding.shared = shared.s;
	finding.remedy = near ? "rename them, or leave them out with {exclude}"
	                   : "leave them out with {exclude} if the server does without";
	ws_report_add(s->c->report, &finding,
	              "the server has no parameter of this name: it drops or refuses it");
}

static void explain(struct ws_search *s)
{
	if (is_left_aside(s) || ws_is_fused(s) || ws_has_wrong_prefix(s) ||
	    ws_is_replaced_twice(s) || is_adapter(s) || is_scale_too_many(s) ||
	    is_companion(s) ||
	    ws_has_segment_too_many(s) || ws_lacks_weight(s) || ws_is_permuted(s) ||
	    is_foreign(s))
		return;
	const char *near = ws_check_near(s->c, s->item->name);
	if (!is_numbered_otherwise(s, near))
		report_unknown(s, near);
}

int ws_check_unknown(struct ws_check *c)
{
	struct ws_search *s = calloc(1, sizeof *s);
	if (!s)
		return ws_oom(c->err);
	s->c = c;
	ws_search_root(s);
	ws_search_pairs(s);
	for (size_t i = 0; i < c->n_sent; i++) {
		if (c->sent_known[i])
			continue;
		s->sent = i;
		s->item = c->sent[i];
		explain(s);
	}
	free(s);
	return 0;
}
