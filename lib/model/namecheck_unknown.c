/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_unknown.c - what is sent under names that the server does not have, and why.
 *
 * Each cause is one function, tried in turn: a name with another prefix, the server's own fused name, a
 * name that a replacement hit twice, a scale for a server without scales, a layer too many. What the
 * name was meant for is remembered, so that the parameter it leaves empty is explained too. */
#include "namecheck_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STRIPPED = 4, MAX_SEGMENTS = 24, MAX_PAIRS = 32, MAX_RANGES = 8 };

/* A fused parameter and one of its parts, by their modules: gate_up_proj, up_proj. */
struct pair {
	struct ws_text fused, part;
};

/* The highest number behind a word, in names of the layout: experts, 127. */
struct range {
	char word[64];
	int64_t last;
};

struct search {
	struct ws_check *c;
	size_t sent;                /* index of the name at hand */
	const struct ws_item *item;
	char root[128];             /* what stands before "layers.0": "model." */
	struct pair pairs[MAX_PAIRS];
	size_t n_pairs;
	struct range ranges[MAX_RANGES];
	size_t n_ranges;
};

/* ---- what the names of the layout are like ---- */

static size_t segment_length(const char *p)
{
	return strcspn(p, ".");
}

static bool is_number(const char *p)
{
	const size_t n = strspn(p, "0123456789");
	return n && n <= 9 && (p[n] == 0 || p[n] == '.');
}

static void find_root(struct search *s)
{
	for (size_t i = 0; i < s->c->n_parts; i++) {
		const char *name = s->c->parts[i].name, *before = name, *p = name;
		while (*p && !is_number(p)) {
			before = p;
			p += segment_length(p);
			p += *p == '.';
		}
		if (!*p)
			continue;
		snprintf(s->root, sizeof s->root, "%.*s", (int)(before - name), name);
		return;
	}
}

static void add_pair(struct search *s, const struct ws_text *fused, const struct ws_text *part)
{
	for (size_t i = 0; i < s->n_pairs; i++)
		if (!strcmp(s->pairs[i].fused.s, fused->s) && !strcmp(s->pairs[i].part.s, part->s))
			return;
	if (s->n_pairs < MAX_PAIRS)
		s->pairs[s->n_pairs++] = (struct pair){ *fused, *part };
}

static void find_pairs(struct search *s)
{
	const struct ws_layout *l = s->c->layout;
	for (size_t i = 0; i < ws_layout_param_count(l); i++) {
		const struct ws_param *p = ws_layout_param(l, i);
		const struct ws_text fused = ws_text_module(p->name);
		for (size_t k = 0; p->n_parts > 1 && p->n_parts <= 8 && k < p->n_parts; k++) {
			const struct ws_text part = ws_text_module(s->c->parts[p->first + k].name);
			add_pair(s, &fused, &part);
		}
	}
}

static int64_t highest(struct search *s, const char *word, size_t n)
{
	struct range r = { "", -1 };
	if (n >= sizeof r.word)
		return -1;
	memcpy(r.word, word, n);
	for (size_t i = 0; i < s->n_ranges; i++)
		if (!strcmp(s->ranges[i].word, r.word))
			return s->ranges[i].last;
	for (size_t i = 0; i < s->c->n_parts; i++)
		for (const char *p = s->c->parts[i].name; (p = strstr(p, r.word)); p += n)
			if (p[n] == '.' && is_number(p + n + 1) && atoll(p + n + 1) > r.last)
				r.last = atoll(p + n + 1);
	if (s->n_ranges < MAX_RANGES)
		s->ranges[s->n_ranges++] = r;
	return r.last;
}

/* ---- saying it ---- */

/* Has the server something of this name? *part: the part, or the first of that parameter. */
static bool is_known(const struct search *s, const char *name, size_t *part)
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

static const struct ws_item *sent_for(const struct search *s, size_t part)
{
	return part == WS_NONE || s->c->part_item[part] == WS_NONE
	               ? NULL : s->c->sent[s->c->part_item[part]];
}

/* The name was meant for that part (WS_NONE: for none). What the part is sent by its own name as well
 * is a second tensor for the same bytes. */
static struct ws_said said_of(struct search *s, size_t part)
{
	struct ws_check *c = s->c;
	struct ws_said said = { .verdict = WS_NAME_UNEXPECTED, .severity = WS_ERROR,
		                .name = s->item->name };
	if (part == WS_NONE)
		return said;
	said.param = ws_layout_param(c->layout, c->parts[part].param)->name;
	said.near = c->parts[part].name;
	said.rule = ws_check_rule(c, &c->parts[part]);
	if (sent_for(s, part))
		said.verdict = WS_NAME_TWICE;
	else if (c->part_meant[part] == WS_NONE)
		c->part_meant[part] = s->sent;
	return said;
}

static const char *also_sent(const struct ws_said *said)
{
	return said->verdict == WS_NAME_TWICE ? ", which is sent as well" : "";
}

/* ---- causes ---- */

static bool is_left_aside(struct search *s)
{
	const char *why = ws_layout_skips(s->c->layout, s->item->name);
	struct ws_text shared;
	if (!why)
		return false;
	shared = ws_textf("names are left aside by servers: %s", why);
	const struct ws_said said = { .verdict = WS_NAME_UNEXPECTED, .severity = WS_NOTE,
		                      .name = s->item->name, .shared = shared.s };
	ws_report_add(s->c->report, &said, "servers leave it aside: %s", why);
	s->c->sent_known[s->sent] = true;
	return true;
}

static const char fused_remedy[] = "send the parts: wsync-push splits fused tensors where the config.json "
	"of a known family or --map says how";

/* The name was meant for every part. True: some are sent by their own names as well. */
static bool mean_all(struct search *s, const struct ws_param *p)
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

/* The server's own name, or a trainer's name for the same. */
static void say_fused(struct search *s, const struct ws_param *p, bool stacked)
{
	struct ws_check *c = s->c;
	struct ws_said said = said_of(s, p->first);
	const struct ws_text parts = ws_text_parts(c->layout, p);
	const char *last = c->parts[p->first + p->n_parts - 1].name;
	struct ws_text shared;
	if (mean_all(s, p))
		said.verdict = WS_NAME_TWICE;
	const char *both = said.verdict == WS_NAME_TWICE ? "; its parts are sent as well" : "";
	said.shared = shared.s;
	said.remedy = fused_remedy;
	if (strstr(s->item->name, "kv_a_proj_with_mqa")) {
		shared = ws_textf("names are the server's own fused_qkv_a_proj_with_mqa: "
		         "loaders take them for kv_a_proj_with_mqa, wait for a partner and drop them%s",
		         both);
		ws_report_add(c->report, &said, "the server's own name of %s fused: loaders take it for "
		              "kv_a_proj_with_mqa, wait for a partner that never comes, and drop it%s",
		              parts.s, both);
	} else if (stacked || p->n_parts > 4) {
		shared = ws_textf("names are experts stacked in one tensor: loaders want "
		         "those of each expert, and skip or refuse the stack%s", both);
		ws_report_add(c->report, &said, "%s holds all experts: loaders want %zu tensors up to %s, "
		              "and skip or refuse the stack%s",
		              ws_text_shape(s->item->n_dims, s->item->dims).s, p->n_parts, last, both);
	} else {
		shared = ws_textf("names are those of fused tensors (%s): loaders map %s, "
		         "and drop or mis-split the whole%s", ws_text_module(s->item->name).s, parts.s,
		         both);
		ws_report_add(c->report, &said, "%s fused in one: loaders map the names of the parts, and "
		              "drop or mis-split the whole%s", parts.s, both);
	}
}

static bool is_fused(struct search *s)
{
	const struct ws_layout *l = s->c->layout;
	const struct ws_param *p = ws_layout_find_param(l, s->item->name);
	const struct ws_alias *a = p ? NULL : ws_layout_find_alias(l, s->item->name, 0);
	if (a)
		p = ws_layout_param(l, a->param);
	if (!p || !p->n_parts)
		return false;
	say_fused(s, p, s->item->n_dims == 3);
	return true;
}

static void say_prefix(struct search *s, const char *rest, bool rooted, size_t part)
{
	const char *name = s->item->name;
	const int n = (int)(rest - name);
	struct ws_said said = said_of(s, part);
	struct ws_text shared, remedy;
	const char *also = also_sent(&said);
	said.shared = shared.s;
	said.remedy = remedy.s;
	if (n == 0) {
		shared = ws_textf("names lack %s, and with it they match%s", s->root, also);
		remedy = ws_textf("save the whole model's state dict, or put %s before "
		         "the names by rename rules in a --map (wsync-map(5))", s->root);
		ws_report_add(s->c->report, &said, "lacks %s, and with it the name matches%s", s->root,
		              also);
	} else if (rooted) {
		shared = ws_textf("names begin with %.*s where the server has %s%s", n, name,
		         s->root, also);
		remedy = ws_textf("--map FILE with: rename %.*s** -> %s**", n, name, s->root);
		ws_report_add(s->c->report, &said, "begins with %.*s where the server has %s%s", n, name,
		              s->root, also);
	} else {
		shared = ws_textf("names begin with %.*s, and without it they match%s", n,
		         name, also);
		remedy = ws_textf("--map FILE with: rename %.*s** -> **", n, name);
		ws_report_add(s->c->report, &said, "begins with %.*s, and without it the name matches%s", n,
		              name, also);
	}
}

/* "language_model.model.layers.0...", "layers.0...", "transformer.layers.0..." */
static bool has_wrong_prefix(struct search *s)
{
	char rooted[WS_CHECK_NAME];
	size_t part;
	const char *rest = s->item->name;
	for (unsigned k = 0; k <= MAX_STRIPPED && *rest; k++) {
		if (k && is_known(s, rest, &part)) {
			say_prefix(s, rest, false, part);
			return true;
		}
		if (*s->root && snprintf(rooted, sizeof rooted, "%s%s", s->root, rest) <
		    WS_CHECK_NAME && is_known(s, rooted, &part)) {
			say_prefix(s, rest, true, part);
			return true;
		}
		if (is_number(rest))
			break; /* what stands in a layer stands there for a reason */
		rest += segment_length(rest);
		rest += *rest == '.';
	}
	return false;
}

/* "mlp.gate_gate_up_proj": somebody replaced up_proj by gate_up_proj where it was that already. */
static bool is_replaced_twice(struct search *s)
{
	const char *name = s->item->name;
	for (const char *p = name; *p; p += segment_length(p), p += *p == '.') {
		const size_t n = segment_length(p);
		for (size_t i = 0; i < s->n_pairs; i++) {
			const char *fused = s->pairs[i].fused.s, *from = s->pairs[i].part.s;
			const char *at = strstr(fused, from);
			char twice[2 * sizeof s->pairs[i].fused.s], meant[WS_CHECK_NAME];
			struct ws_text shared;
			if (!at)
				continue;
			const int len = snprintf(twice, sizeof twice, "%.*s%s%s", (int)(at - fused), fused,
			                         fused, at + strlen(from));
			if ((size_t)len != n || memcmp(twice, p, n))
				continue;
			snprintf(meant, sizeof meant, "%.*s%s%s", (int)(p - name), name, from, p + n);
			const size_t part = ws_check_part(s->c, meant);
			struct ws_said said = said_of(s, part);
			if (part != WS_NONE && mean_all(s, ws_layout_param(s->c->layout,
			                                                  s->c->parts[part].param)))
				said.verdict = WS_NAME_TWICE;
			shared = ws_textf("names have %.100s: %.100s was replaced by %.100s "
			         "where it was fused already", twice, from, fused);
			said.shared = shared.s;
			said.remedy = "replace whole segments of names, never parts of them";
			ws_report_add(s->c->report, &said, "%.100s: %.100s was replaced by %.100s where it "
			              "was fused already", twice, from, fused);
			return true;
		}
	}
	return false;
}

static bool is_scale_too_many(struct search *s)
{
	char weight[WS_CHECK_NAME];
	if (!ws_scaled_name(s->item->name, weight, sizeof weight))
		return false;
	const size_t part = ws_check_part(s->c, weight);
	if (part == WS_NONE)
		return false;
	const struct ws_part *p = &s->c->parts[part];
	struct ws_said said = { .verdict = WS_NAME_UNEXPECTED, .severity = WS_ERROR,
		                .name = s->item->name,
		                .param = ws_layout_param(s->c->layout, p->param)->name,
		                .rule = ws_check_rule(s->c, p) };
	if (ws_dtype_is_fp8(p->dtype) && p->exact) {
		said.shared = "scales are of another scheme than the server's FP8 blocks";
		said.remedy = "quantize in the blocks that quantization_config says";
		ws_report_add(s->c->report, &said, "a scale of another scheme: the server keeps "
		              "%s with weight_scale_inv of blocks", p->name);
		return true;
	}
	said.shared = "scales are for a server that keeps these weights unquantized: it drops them";
	said.remedy = "send unquantized weights, or start the server from an FP8 checkpoint";
	ws_report_add(s->c->report, &said, "a scale, and the server keeps %s unquantized: it drops it",
	              p->name);
	return true;
}

/* A bias of a layer that has none, a scale of activations: of a weight that is known. */
static bool is_companion(struct search *s)
{
	static const struct {
		const char *suffix, *shared, *why;
	} kinds[] = {
		{ ".bias", "biases are of layers that by config.json have none",
		  "a bias, and by config.json this layer has none" },
		{ ".input_scale", "scales are of activations, which the server works out by itself",
		  "a scale of activations, which the server works out by itself" },
	};
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		char weight[WS_CHECK_NAME];
		if (!ws_ends_with(s->item->name, kinds[i].suffix))
			continue;
		snprintf(weight, sizeof weight, "%.*s.weight",
		         (int)(strlen(s->item->name) - strlen(kinds[i].suffix)), s->item->name);
		const size_t part = ws_check_part(s->c, weight);
		if (part == WS_NONE)
			continue;
		const struct ws_said said = {
			.verdict = WS_NAME_UNEXPECTED, .severity = WS_ERROR, .name = s->item->name,
			.param = ws_layout_param(s->c->layout, s->c->parts[part].param)->name,
			.rule = ws_check_rule(s->c, &s->c->parts[part]), .shared = kinds[i].shared,
			.remedy = "leave them out with --exclude, or compare the config.json of both sides",
		};
		ws_report_add(s->c->report, &said, "%s", kinds[i].why);
		return true;
	}
	return false;
}

static bool is_adapter(struct search *s)
{
	if (!strstr(s->item->name, ".lora_"))
		return false;
	struct ws_said said = said_of(s, WS_NONE);
	said.shared = "names are factors of an adapter, which is no weight of the model";
	said.remedy = "merge the adapter into its base before sending";
	ws_report_add(s->c->report, &said, "a factor of an adapter (LoRA), which is no weight of the model");
	return true;
}

/* "q_proj.base_layer.weight", "model.language_model.layers.0..." */
static bool has_segment_too_many(struct search *s)
{
	const char *name = s->item->name, *rest = name;
	for (unsigned k = 0; k < 3 && *rest; k++) {
		const char *p = rest + segment_length(rest);
		for (unsigned t = 0; *p && t < MAX_SEGMENTS; t++) {
			const size_t n = segment_length(p + 1);
			char without[WS_CHECK_NAME];
			struct ws_text shared;
			size_t part;
			snprintf(without, sizeof without, "%.*s%s", (int)(p - rest), rest, p + 1 + n);
			if (strlen(rest) < sizeof without && !is_number(p + 1) &&
			    is_known(s, without, &part)) {
				struct ws_said said = said_of(s, part);
				const char *before = k ? " and a prefix" : "";
				shared = ws_textf("names have a segment %.*s%s too many%s",
				         (int)(n < 100 ? n : 100), p + 1, before, also_sent(&said));
				said.shared = shared.s;
				said.remedy = "leave it out while saving, or by a rename rule in a --map "
				              "(wsync-map(5))";
				ws_report_add(s->c->report, &said, "has a segment %.*s%s too many%s",
				              (int)(n < 100 ? n : 100), p + 1, before, also_sent(&said));
				return true;
			}
			p += 1 + n;
		}
		rest += segment_length(rest);
		rest += *rest == '.';
	}
	return false;
}

static bool lacks_weight(struct search *s)
{
	char longer[WS_CHECK_NAME];
	const int n = snprintf(longer, sizeof longer, "%s.weight", s->item->name);
	const size_t part = n < WS_CHECK_NAME ? ws_check_part(s->c, longer) : WS_NONE;
	if (part == WS_NONE)
		return false;
	struct ws_said said = said_of(s, part);
	said.shared = "names lack .weight, and with it they match";
	said.remedy = "save state dicts with their full names";
	ws_report_add(s->c->report, &said, "lacks .weight, and with it the name matches%s",
	              also_sent(&said));
	return true;
}

/* Names of other formats altogether, by a segment that only they have. */
static bool is_foreign(struct search *s)
{
	static const char *const formats[][2] = {
		{ "linear_qkv", "Megatron" }, { "linear_fc1", "Megatron" }, { "linear_fc2", "Megatron" },
		{ "linear_proj", "Megatron" }, { "word_embeddings", "Megatron" },
		{ "c_attn", "GPT-2" }, { "c_fc", "GPT-2" }, { "c_proj", "GPT-2" }, { "wte", "GPT-2" },
		{ "wq", "Meta" }, { "wk", "Meta" }, { "wv", "Meta" }, { "wo", "Meta" },
		{ "tok_embeddings", "Meta" }, { "query_key_value", "GPT-NeoX" },
		{ "blk", "GGUF" }, { "token_embd", "GGUF" },
	};
	for (const char *p = s->item->name; *p; p += segment_length(p), p += *p == '.') {
		const size_t n = segment_length(p);
		for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
			struct ws_text shared;
			if (strlen(formats[i][0]) != n || memcmp(formats[i][0], p, n))
				continue;
			struct ws_said said = said_of(s, WS_NONE);
			shared = ws_textf("names are those of the %s format, which servers "
			         "do not load", formats[i][1]);
			said.shared = shared.s;
			said.remedy = "convert the checkpoint to Hugging Face names, or name them in a "
			              "--map (wsync-map(5))";
			ws_report_add(s->c->report, &said, "%s is a name of the %s format, which servers "
			              "do not load", formats[i][0], formats[i][1]);
			return true;
		}
	}
	return false;
}

/* The one segment in which the names differ, when both have a number there; NULL. */
static const char *differing_number(const char *a, const char *b, const char **word)
{
	const char *found = NULL, *before = a;
	while (*a && *b) {
		const size_t n = segment_length(a), m = segment_length(b);
		if (n != m || memcmp(a, b, n)) {
			if (found || !is_number(a) || !is_number(b))
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

static bool is_numbered_otherwise(struct search *s, const char *near)
{
	const char *word = NULL;
	const char *number = near ? differing_number(s->item->name, near, &word) : NULL;
	struct ws_text shared;
	if (!number)
		return false;
	const int n = (int)segment_length(word);
	const int64_t last = highest(s, word, (size_t)n), at = atoll(number);
	struct ws_said said = said_of(s, WS_NONE);
	said.near = near;
	said.shared = shared.s;
	if (last >= 0 && at > last) {
		shared = ws_textf("names are of %.*s that config.json does not give: there are "
		         "0 to %" PRId64, n, word, last);
		said.remedy = "compare the config.json of the server with the checkpoint's";
		ws_report_add(s->c->report, &said, "config.json gives %.*s 0 to %" PRId64 ", and this is of %"
		              PRId64, n, word, last, at);
	} else {
		shared = ws_textf("names are of %.*s that by config.json have no %s", n, word,
		         ws_text_kind(near).s);
		ws_report_add(s->c->report, &said, "by config.json %.*s %" PRId64 " has no such tensor, though "
		              "others have", n, word, at);
	}
	return true;
}

static void say_unknown(struct search *s, const char *near)
{
	const size_t part = near ? ws_check_part(s->c, near) : WS_NONE;
	const bool free = part != WS_NONE && !sent_for(s, part);
	struct ws_said said = said_of(s, free ? part : WS_NONE);
	struct ws_text shared;
	shared = ws_textf("names like %s are unknown to the server: it drops or refuses them",
	         ws_text_kind(s->item->name).s);
	said.near = near;
	said.shared = shared.s;
	said.remedy = near ? "rename them, or leave them out with --exclude"
	                   : "leave them out with --exclude if the server does without";
	ws_report_add(s->c->report, &said, "the server has no parameter of this name: it drops or refuses it");
}

static void explain(struct search *s)
{
	if (is_left_aside(s) || is_fused(s) || has_wrong_prefix(s) || is_replaced_twice(s) ||
	    is_adapter(s) || is_scale_too_many(s) || is_companion(s) || has_segment_too_many(s) || lacks_weight(s) ||
	    is_foreign(s))
		return;
	const char *near = ws_check_near(s->c, s->item->name);
	if (!is_numbered_otherwise(s, near))
		say_unknown(s, near);
}

int ws_check_unknown(struct ws_check *c)
{
	struct search *s = calloc(1, sizeof *s);
	if (!s)
		return ws_err_set(c->err, WS_ESYSTEM, "out of memory");
	s->c = c;
	find_root(s);
	find_pairs(s);
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
