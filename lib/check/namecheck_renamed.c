/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_renamed.c - names that would match with other segments: another prefix, a segment too
 * many, and fused tensors under the server's name or a trainer's. */
#include "namecheck_unknown.h"

#include <stdio.h>
#include <string.h>

enum { MAX_STRIPPED = 4, MAX_SEGMENTS = 24 };

void ws_search_root(struct ws_search *s)
{
	for (size_t i = 0; i < s->c->n_parts; i++) {
		const char *name = s->c->parts[i].name, *before = name, *p = name;
		while (*p && !ws_is_number(p)) {
			before = p;
			p += ws_segment(p);
			p += *p == '.';
		}
		if (!*p)
			continue;
		snprintf(s->root, sizeof s->root, "%.*s", (int)(before - name), name);
		return;
	}
}

static void report_prefix(struct ws_search *s, const char *rest, bool rooted, size_t part)
{
	const char *name = s->item->name;
	const int n = (int)(rest - name);
	struct ws_new_finding finding = ws_search_finding(s, part);
	const char *also = ws_also_sent(&finding);
	const bool replaced = n && rooted; /* by the server's prefix */
	const struct ws_text how =
		replaced ? ws_textf("%.*s where the server has %.128s", n, name, s->root) :
		n        ? ws_textf("%.*s, and without it", n, name) :
			   ws_textf("%.128s, and with it", s->root);
	const struct ws_text shared = ws_textf("names %s %.400s%s%s", n ? "begin with" : "lack",
	                                       how.s, replaced ? "" : " they match", also);
	const struct ws_text remedy =
		n ? ws_textf("{map} FILE with: rename %.*s** -> %.128s**", n, name,
		             rooted ? s->root : "") :
		    ws_textf("save the whole model's state dict, or put %.128s before the names by "
		             "rename rules in a {map} (wsync-map(5))", s->root);
	finding.shared = shared.s;
	finding.remedy = remedy.s;
	ws_report_add(s->c->report, &finding, "%s %.400s%s%s", n ? "begins with" : "lacks", how.s,
	              replaced ? "" : " the name matches", also);
}

/* "language_model.model.layers.0...", "layers.0...", "transformer.layers.0..." */
bool ws_has_wrong_prefix(struct ws_search *s)
{
	char rooted[WS_CHECK_NAME];
	size_t part;
	const char *rest = s->item->name;
	for (unsigned k = 0; k <= MAX_STRIPPED && *rest; k++) {
		if (k && ws_search_knows(s, rest, &part)) {
			report_prefix(s, rest, false, part);
			return true;
		}
		if (*s->root && snprintf(rooted, sizeof rooted, "%s%s", s->root, rest) <
		    WS_CHECK_NAME && ws_search_knows(s, rooted, &part)) {
			report_prefix(s, rest, true, part);
			return true;
		}
		if (ws_is_number(rest))
			break; /* segments inside a layer are no prefix */
		rest += ws_segment(rest);
		rest += *rest == '.';
	}
	return false;
}

/* "q_proj.base_layer.weight", "model.language_model.layers.0..." */
bool ws_has_segment_too_many(struct ws_search *s)
{
	const char *name = s->item->name, *rest = name;
	for (unsigned k = 0; k < 3 && *rest; k++) {
		const char *p = rest + ws_segment(rest);
		for (unsigned t = 0; *p && t < MAX_SEGMENTS; t++) {
			const size_t n = ws_segment(p + 1);
			char without[WS_CHECK_NAME];
			struct ws_text shared;
			size_t part;
			snprintf(without, sizeof without, "%.*s%s", (int)(p - rest), rest,
			         p + 1 + n);
			if (strlen(rest) < sizeof without && !ws_is_number(p + 1) &&
			    ws_search_knows(s, without, &part)) {
				struct ws_new_finding finding = ws_search_finding(s, part);
				const char *before = k ? " and a prefix" : "";
				shared = ws_textf("names have a segment %.*s%s too many%s",
				                  (int)(n < 100 ? n : 100), p + 1, before,
				                  ws_also_sent(&finding));
				finding.shared = shared.s;
				finding.remedy =
					"leave it out while saving, or by a rename rule in a "
					"{map} (wsync-map(5))";
				ws_report_add(s->c->report, &finding, "has a segment %.*s%s too "
				              "many%s", (int)(n < 100 ? n : 100), p + 1, before,
				              ws_also_sent(&finding));
				return true;
			}
			p += 1 + n;
		}
		rest += ws_segment(rest);
		rest += *rest == '.';
	}
	return false;
}

bool ws_lacks_weight(struct ws_search *s)
{
	char longer[WS_CHECK_NAME];
	const int n = snprintf(longer, sizeof longer, "%s.weight", s->item->name);
	const size_t part = n < WS_CHECK_NAME ? ws_check_part(s->c, longer) : WS_NONE;
	if (part == WS_NONE)
		return false;
	struct ws_new_finding finding = ws_search_finding(s, part);
	finding.shared = "names lack .weight, and with it they match";
	finding.remedy = "save state dicts with their full names";
	ws_report_add(s->c->report, &finding, "lacks .weight, and with it the name matches%s",
	              ws_also_sent(&finding));
	return true;
}

/* Writes the name with the segments at p and behind it in the other order. */
static bool exchange(const char *name, const char *p, char *dst)
{
	const size_t n = ws_segment(p), m = ws_segment(p + n + 1);
	return snprintf(dst, WS_CHECK_NAME, "%.*s%.*s.%.*s%s", (int)(p - name), name, (int)m,
	                p + n + 1, (int)n, p, p + n + 1 + m) < WS_CHECK_NAME;
}

/* A number in front of its word, or behind the next one, as ModelOpt writes experts. */
bool ws_is_permuted(struct ws_search *s)
{
	const char *name = s->item->name;
	for (const char *p = name; p[ws_segment(p)]; p += ws_segment(p) + 1) {
		const char *next = p + ws_segment(p) + 1;
		char other[WS_CHECK_NAME];
		size_t part;
		if (ws_is_number(p) == ws_is_number(next) || !exchange(name, p, other) ||
		    !ws_search_knows(s, other, &part))
			continue;
		struct ws_new_finding finding = ws_search_finding(s, part);
		const char *rest = next + ws_segment(next), *before = p;
		while (before > name && *--before != '.')
			; /* the dot in front of p, then the segment in front of that */
		while (before > name && before[-1] != '.')
			before--;
		const struct ws_text remedy = ws_textf(
			"{map} FILE with: rename **.%.*s{a}.{b}%.200s -> **.%.*s{b}.{a}%.200s",
			(int)(p - before), before, rest, (int)(p - before), before, rest);
		const char *also = ws_also_sent(&finding);
		const struct ws_text shared = ws_textf(
			"names have a number and a word in the other order, like %.300s%s",
			ws_text_kind(name).s, also);
		finding.near = other;
		finding.shared = shared.s;
		finding.remedy = remedy.s;
		ws_report_add(s->c->report, &finding,
		              "has a number and a word in the other order%s", also);
		return true;
	}
	return false;
}

static void add_pair(struct ws_search *s, const struct ws_text *fused, const struct ws_text *part)
{
	for (size_t i = 0; i < s->n_pairs; i++)
		if (!strcmp(s->pairs[i].fused.s, fused->s) && !strcmp(s->pairs[i].part.s, part->s))
			return;
	if (s->n_pairs < WS_MAX_PAIRS)
		s->pairs[s->n_pairs++] = (struct ws_pair){ *fused, *part };
}

void ws_search_pairs(struct ws_search *s)
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

static const char fused_remedy[] = "send the parts: wsync-push splits fused tensors where the "
        "config.json of a known family or --map says how";

/* A fused tensor under the server's or a trainer's name. */
static void report_fused(struct ws_search *s, const struct ws_param *p, bool stacked)
{
	struct ws_check *c = s->c;
	struct ws_new_finding finding = ws_search_finding(s, p->first);
	const struct ws_text parts = ws_text_parts(c->layout, p);
	const char *last = c->parts[p->first + p->n_parts - 1].name;
	struct ws_text shared;
	if (ws_search_mark_parts(s, p))
		finding.verdict = WS_NAME_TWICE;
	const char *both = finding.verdict == WS_NAME_TWICE ? "; its parts are sent as well" : "";
	finding.shared = shared.s;
	finding.remedy = fused_remedy;
	if (strstr(s->item->name, "kv_a_proj_with_mqa")) {
		shared = ws_textf("names are the server's own fused_qkv_a_proj_with_mqa: loaders "
		                  "take them for kv_a_proj_with_mqa, wait for a partner and drop "
		                  "them%s", both);
		ws_report_add(c->report, &finding,
		              "the server's own name of %s fused: loaders take "
		              "it for kv_a_proj_with_mqa, wait for a partner that never comes, and "
		              "drop it%s",
		              parts.s, both);
	} else if (stacked || p->n_parts > 4) {
		shared = ws_textf("names are experts stacked in one tensor: loaders want "
		         "those of each expert, and skip or refuse the stack%s", both);
		ws_report_add(c->report, &finding,
		              "%s holds all experts: loaders want %zu tensors up "
		              "to %s, and skip or refuse the stack%s",
		              ws_text_shape(s->item->n_dims, s->item->dims).s, p->n_parts, last,
		              both);
	} else {
		shared = ws_textf("names are those of fused tensors (%s): loaders map %s, and drop "
		                  "or mis-split the whole%s", ws_text_module(s->item->name).s,
		                  parts.s, both);
		ws_report_add(c->report, &finding, "%s fused in one: loaders map the names of the "
		              "parts, and drop or mis-split the whole%s", parts.s, both);
	}
}

bool ws_is_fused(struct ws_search *s)
{
	const struct ws_layout *l = s->c->layout;
	const struct ws_param *p = ws_layout_find_param(l, s->item->name);
	const struct ws_alias *a = p ? NULL : ws_layout_find_alias(l, s->item->name, 0);
	if (a)
		p = ws_layout_param(l, a->param);
	if (!p || !p->n_parts)
		return false;
	report_fused(s, p, s->item->n_dims == 3);
	return true;
}

/* "mlp.gate_gate_up_proj": a replacement of up_proj by gate_up_proj hit a name that was fused
 * already. */
bool ws_is_replaced_twice(struct ws_search *s)
{
	const char *name = s->item->name;
	for (const char *p = name; *p; p += ws_segment(p), p += *p == '.') {
		const size_t n = ws_segment(p);
		for (size_t i = 0; i < s->n_pairs; i++) {
			const char *fused = s->pairs[i].fused.s, *from = s->pairs[i].part.s;
			const char *at = strstr(fused, from);
			char twice[2 * sizeof s->pairs[i].fused.s], meant[WS_CHECK_NAME];
			struct ws_text shared;
			if (!at)
				continue;
			const int len = snprintf(twice, sizeof twice, "%.*s%s%s", (int)(at - fused),
			                         fused, fused, at + strlen(from));
			if ((size_t)len != n || memcmp(twice, p, n))
				continue;
			snprintf(meant, sizeof meant, "%.*s%s%s", (int)(p - name), name, from,
			         p + n);
			const size_t part = ws_check_part(s->c, meant);
			struct ws_new_finding finding = ws_search_finding(s, part);
			if (part != WS_NONE && ws_search_mark_parts(s, ws_layout_param(s->c->layout,
			                                                  s->c->parts[part].param)))
				finding.verdict = WS_NAME_TWICE;
			shared = ws_textf("names have %.100s: %.100s was replaced by %.100s "
			         "where it was fused already", twice, from, fused);
			finding.shared = shared.s;
			finding.remedy = "replace whole segments of names, never parts of them";
			ws_report_add(s->c->report, &finding,
			              "%.100s: %.100s was replaced by %.100s "
			              "where it was fused already",
			              twice, from, fused);
			return true;
		}
	}
	return false;
}
