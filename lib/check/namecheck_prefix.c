/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_prefix.c - names that would be right without some segments of theirs, or with some
 * more. */
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
	struct ws_new_finding finding = ws_search_said(s, part);
	struct ws_text shared, remedy;
	const char *also = ws_also_sent(&finding);
	finding.shared = shared.s;
	finding.remedy = remedy.s;
	if (n == 0) {
		shared = ws_textf("names lack %s, and with it they match%s", s->root, also);
		remedy = ws_textf("save the whole model's state dict, or put %s before "
		         "the names by rename rules in a --map (wsync-map(5))", s->root);
		ws_report_add(s->c->report, &finding, "lacks %s, and with it the name matches%s",
		              s->root, also);
	} else if (rooted) {
		shared = ws_textf("names begin with %.*s where the server has %s%s", n, name,
		         s->root, also);
		remedy = ws_textf("--map FILE with: rename %.*s** -> %s**", n, name, s->root);
		ws_report_add(s->c->report, &finding, "begins with %.*s where the server has %s%s",
		              n, name, s->root, also);
	} else {
		shared = ws_textf("names begin with %.*s, and without it they match%s", n,
		         name, also);
		remedy = ws_textf("--map FILE with: rename %.*s** -> **", n, name);
		ws_report_add(s->c->report, &finding, "begins with %.*s, and without it the name "
		              "matches%s", n, name, also);
	}
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
			break; /* what stands in a layer stands there for a reason */
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
				struct ws_new_finding finding = ws_search_said(s, part);
				const char *before = k ? " and a prefix" : "";
				shared = ws_textf("names have a segment %.*s%s too many%s",
				                  (int)(n < 100 ? n : 100), p + 1, before,
				                  ws_also_sent(&finding));
				finding.shared = shared.s;
				finding.remedy =
					"leave it out while saving, or by a rename rule in a "
					"--map (wsync-map(5))";
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
	struct ws_new_finding finding = ws_search_said(s, part);
	finding.shared = "names lack .weight, and with it they match";
	finding.remedy = "save state dicts with their full names";
	ws_report_add(s->c->report, &finding, "lacks .weight, and with it the name matches%s",
	              ws_also_sent(&finding));
	return true;
}
