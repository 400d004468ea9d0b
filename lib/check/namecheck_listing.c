/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_listing.c - compares the server's listing with the layout of its config: shapes,
 * dtypes, and parameters that only one side has. */
#include "namecheck_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* rows of a rank; more padding is another vocabulary */
enum { MAX_LAYERS = 4096, MOST_PADDING = 1024 };

/* ---- shapes ---- */

static bool is_other_padding(struct ws_shown *s, const struct ws_param *p,
                             const struct ws_weight *w)
{
	const struct ws_part *part = ws_layout_part(s->layout, p->first);
	const struct ws_layout_opts *o = ws_layout_options(s->layout);
	const int64_t tp = o->tp ? o->tp : 1;
	if (part->split != WS_SPLIT_VOCAB || w->n_dims != p->n_dims || w->n_dims < 1 ||
	    (w->n_dims > 1 && w->dims[1] != p->dims[1]) || w->dims[0] > INT64_MAX / tp)
		return false;
	const int64_t rows = w->dims[0] * tp;
	const bool less = rows < part->dims[0];
	if (rows - part->dims[0] >= MOST_PADDING * tp)
		return false;
	const struct ws_text why = ws_textf("%.100s shown * tp %" PRId64 " = %" PRId64 " rows, and "
	                                    "vocab_size %" PRId64 " padded to a multiple of 64 is %"
	                                    PRId64, ws_text_shape(w->n_dims, w->dims).s, tp, rows,
	                                    part->dims[0], p->dims[0] * tp);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SERVER, .severity = less ? WS_ERROR : WS_WARN, .name = w->name,
		.param = p->name, .rule = ws_layout_rule(s->layout, p->rule),
		.shared = less ? "parameters have fewer rows than vocab_size"
		        : "parameters have the vocabulary padded otherwise than to a multiple of "
		        "64",
		.remedy = less ? "compare vocab_size of the server's config.json with this one"
		        : NULL,
	};
	ws_report_add(s->c->report, &finding, "%s%s", why.s,
	              less ? "" : ": the server pads otherwise");
	return true;
}

static void compare_shape(struct ws_shown *s, const struct ws_param *p, const struct ws_weight *w)
{
	const struct ws_layout_opts *o = ws_layout_options(s->layout);
	if (w->shapeless || s->sizes_unknown || p->trouble || !p->n_parts ||
	    ws_dims_equal(w->n_dims, w->dims, p->n_dims, p->dims) || is_other_padding(s, p, w))
		return;
	const struct ws_text kind = ws_text_kind(p->name);
	const struct ws_text shared = ws_textf("parameters like %.300s have another shape at the "
	                                       "server than config.json gives", kind.s);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SERVER, .severity = WS_ERROR, .name = w->name, .param = p->name,
		.rule = ws_layout_rule(s->layout, p->rule), .shared = shared.s,
		.remedy = "compare the config.json of the server with this one",
	};
	ws_report_add(s->c->report, &finding, "%.200s shown; config.json at tp %u gives %.200s",
	              ws_text_shape(w->n_dims, w->dims).s, o->tp ? o->tp : 1,
	              ws_text_shape(p->n_dims, p->dims).s);
}

static void compare_dtype(struct ws_shown *s, const struct ws_param *p, const struct ws_weight *w)
{
	const struct ws_part *part = p->n_parts ? ws_layout_part(s->layout, p->first) : NULL;
	enum ws_dtype shown;
	if (!part || !ws_dtype_from_torch(w->dtype, &shown))
		return;
	const bool fp8 = part->exact && ws_dtype_is_fp8(part->dtype);
	if (fp8 == ws_dtype_is_fp8(shown))
		return;
	const struct ws_text shared = ws_textf("parameters are %s at the server, and config.json "
	                                       "gives %s", w->dtype,
	                                       fp8 ? ws_dtype_torch(part->dtype)
	                                           : "unquantized ones");
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SERVER, .severity = WS_ERROR, .name = w->name, .param = p->name,
		.rule = ws_layout_rule(s->layout, p->rule), .shared = shared.s,
		.remedy = "compare quantization_config of the server's config.json with this one",
	};
	ws_report_add(s->c->report, &finding, "%s shown, and config.json gives %s", w->dtype,
	              fp8 ? ws_dtype_torch(part->dtype) : "an unquantized parameter");
}

/* ---- parameters of one side only ---- */

/* Servers do not list a tied head, so a listed head is a parameter of its own. They do not list
 * optional parameters that they lack, either. */
static void check_shown_alone(struct ws_shown *s, const struct ws_param *p,
                              const struct ws_weight *w)
{
	struct ws_check *c = s->c;
	for (size_t i = 0; i < p->n_parts; i++) {
		const size_t part = p->first + i;
		if (!c->parts[part].optional || c->part_item[part] != WS_NONE ||
		    c->part_meant[part] != WS_NONE)
			continue;
		const char *why =
			p->tied_to ? "the server shows a head of its own, which by config.json is "
				     "tied to the embedding, and nothing is sent for it: it keeps "
		                     "what it has" :
				     "the server shows a parameter that some do without, and "
				     "nothing is sent for this: it keeps what it has";
		const struct ws_new_finding finding = {
			.verdict = WS_NAME_MISSING,
			.severity = ws_check_may_lack(c, c->parts[part].name) ? WS_NOTE : WS_ERROR,
			.name = c->parts[part].name,
			.param = w->name,
			.rule = ws_layout_rule(s->layout, p->rule),
			.remedy = p->tied_to ? "compare tie_word_embeddings of the server's "
			                       "config.json with this one" :
			                       NULL,
		};
		ws_report_add(c->report, &finding, "%s", why);
	}
}

static void check_extra(struct ws_shown *s, const struct ws_weight *w)
{
	struct ws_check *c = s->c;
	const char *name = ws_shown_name(s, w->name);
	const char *why = ws_server_only(name);
	if (!why)
		why = ws_vllm_only(c, w);
	if (!why)
		why = ws_layout_skips(s->layout, name);
	if (ws_check_sent(c, w->name) || ws_check_sent(c, name))
		return;
	if (why) {
		const struct ws_text shared = ws_textf("parameters of the server are not in "
		                                       "checkpoints: %.300s", why);
		const struct ws_new_finding finding = {
			.verdict = WS_NAME_SERVER, .severity = WS_NOTE, .name = w->name,
			.param = w->name, .shared = shared.s,
		};
		ws_report_add(c->report, &finding, "on the server but not in the checkpoint: %s",
		              why);
		return;
	}
	const bool lacks = ws_check_may_lack(c, w->name) || ws_check_may_lack(c, name);
	const struct ws_text shared = ws_textf("parameters of the server like %.300s are not in "
	                                       "the rules of %s, and nothing is sent for them",
	                                       ws_text_kind(w->name).s,
	                                       ws_layout_family(s->layout));
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_MISSING, .severity = lacks ? WS_NOTE : WS_ERROR,
		.name = w->name, .param = w->name, .shared = shared.s,
		.remedy = "is the config.json that of this server? Else add them to the family by "
		        "{map} (wsync-map(5))",
	};
	ws_report_add(c->report, &finding,
	              "the server shows it%s%.100s, the rules of %s do not have "
	              "it, and nothing is sent for it",
	              w->shapeless ? "" : " as ",
	              w->shapeless ? "" : ws_text_shape(w->n_dims, w->dims).s,
	              ws_layout_family(s->layout));
}

struct absent {
	bool known[MAX_LAYERS], shown[MAX_LAYERS], gone[MAX_LAYERS];
};

/* Layers with no listed parameter, while others have some: another pipeline stage has them. */
static struct ws_text absent_layers(const struct ws_shown *s, struct absent *a)
{
	bool any = false;
	for (size_t i = 0; i < ws_layout_param_count(s->layout); i++) {
		const int64_t layer = ws_layer_of(ws_layout_param(s->layout, i)->name);
		if (layer < 0 || layer >= MAX_LAYERS)
			continue;
		a->known[layer] = true;
		a->shown[layer] |= s->param_shown[i] != WS_NONE;
		any |= a->shown[layer];
	}
	for (size_t i = 0; any && i < MAX_LAYERS; i++)
		a->gone[i] = a->known[i] && !a->shown[i];
	return ws_text_ranges(a->gone, MAX_LAYERS);
}

static bool may_be_hidden(const struct ws_shown *s, const struct ws_param *p)
{
	const bool names_only = s->c->listing->items[0].shapeless;
	bool optional = true;
	for (size_t i = 0; i < p->n_parts; i++)
		optional &= ws_layout_part(s->layout, p->first + i)->optional;
	/* Kernels of vLLM may keep packed experts and scales apart from the parameters. */
	const bool packed = s->c->opts->whole_modules &&
	                    (strstr(p->name, ".experts.w") || ws_ends_with(p->name, "_scale"));
	return p->tied_to || optional ||
	       (names_only && (packed || ws_ends_with(p->name, "_scale_inv")));
}

static void check_hidden(struct ws_shown *s, size_t i, const struct absent *a,
                         const struct ws_text *layers)
{
	const struct ws_param *p = ws_layout_param(s->layout, i);
	const int64_t layer = ws_layer_of(p->name);
	if (may_be_hidden(s, p))
		return;
	const bool gone = layer >= 0 && layer < MAX_LAYERS && a->gone[layer];
	const struct ws_text shared =
		gone ? ws_textf("parameters are of layers that the server does not show: %.300s",
		                layers->s)
		     : ws_textf("parameters like %.300s are not shown by the server, though "
		                "config.json gives them", ws_text_kind(p->name).s);
	struct ws_new_finding finding = {
		.verdict = WS_NAME_SERVER, .severity = WS_ERROR, .name = p->name, .param = p->name,
		.rule = ws_layout_rule(s->layout, p->rule), .shared = shared.s,
		.remedy = gone ? "another pipeline stage has them, or the config.json is another "
		        "model's" : "compare the config.json of the server with this one",
	};
	ws_report_add(s->c->report, &finding, "%s",
	              gone ? "of a layer that the server does not show" :
	                     "config.json gives it, and the server does not show it");
}

/* FP8 with one scale for each tensor, listed as [inputs, outputs]. */
static bool is_transposed(const struct ws_shown *s, const struct ws_param *p,
                          const struct ws_weight *w)
{
	char scale[WS_CHECK_NAME];
	snprintf(scale, sizeof scale, "%s_scale", p->name);
	return p->n_dims == 2 && w->n_dims == 2 && p->dims[0] != p->dims[1] &&
	       w->dims[0] == p->dims[1] && w->dims[1] == p->dims[0] &&
	       ws_layout_find_param(s->layout, scale);
}

/* Unpatched servers replace these parameters by others after loading. */
static bool is_replaced_after_loading(struct ws_shown *s)
{
	const struct ws_weight *w = NULL;
	const struct ws_param *p = NULL;
	for (size_t i = 0; i < s->c->listing->n && !w; i++) {
		p = s->shown_param[i] == WS_NONE ? NULL :
		                                   ws_layout_param(s->layout, s->shown_param[i]);
		w = p && is_transposed(s, p, &s->c->listing->items[i]) ? &s->c->listing->items[i] :
		                                                     NULL;
	}
	if (!w)
		return false;
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SERVER,
		.severity = WS_ERROR,
		.name = w->name,
		.param = p->name,
		.remedy = "start it from a checkpoint of block FP8 and push with {quantize} fp8, "
		          "or start it in 16 bits",
	};
	ws_report_add(s->c->report, &finding,
	              "the server shows %.100s where config.json gives %.100s: it laid FP8 with "
	              "one scale for each tensor out anew when it had loaded it, transposed and "
	              "without loaders, and an update fails in the middle",
	              ws_text_shape(w->n_dims, w->dims).s, ws_text_shape(p->n_dims, p->dims).s);
	return true;
}

/* If more entries differ than match, one finding with an example replaces them all. */
static bool is_other_model(struct ws_shown *s)
{
	const struct ws_weight_list *list = s->c->listing;
	const struct ws_weight *w;
	const size_t n = ws_shown_unexplained(s, &w);
	if (s->sizes_unknown || n * 2 <= list->n)
		return false;
	const struct ws_param *p = ws_layout_find_shown(s->layout, ws_shown_name(s, w->name));
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SERVER, .severity = WS_ERROR, .name = w->name,
		.param = p ? p->name : NULL,
		.remedy = "compare the config.json of the server with this one",
	};
	const struct ws_text wanted = p ? ws_textf(", and config.json gives %.200s",
	                                           ws_text_shape(p->n_dims, p->dims).s) :
	                                  ws_textf(", which the rules of %.100s do not have",
	                                           ws_layout_family(s->layout));
	ws_report_add(s->c->report, &finding,
	              "the server shows another model than config.json gives: %zu "
	              "of its %zu parameters have another name or shape, the first %.200s%s",
	              n, list->n, ws_text_shape(w->n_dims, w->dims).s, wanted.s);
	return true;
}

int ws_check_listing(struct ws_check *c)
{
	struct ws_shown *s = c->server;
	if (!s || is_replaced_after_loading(s) || is_other_model(s))
		return 0;
	struct absent *a = calloc(1, sizeof *a);
	if (!a)
		return ws_oom(c->err);
	const struct ws_text layers = absent_layers(s, a);
	for (size_t i = 0; i < c->listing->n; i++) {
		const struct ws_weight *w = &c->listing->items[i];
		if (s->shown_param[i] == WS_NONE) {
			check_extra(s, w);
			continue;
		}
		const struct ws_param *p = ws_layout_param(s->layout, s->shown_param[i]);
		compare_shape(s, p, w);
		compare_dtype(s, p, w);
		check_shown_alone(s, p, w);
	}
	for (size_t i = 0; i < ws_layout_param_count(s->layout); i++)
		if (s->param_shown[i] == WS_NONE)
			check_hidden(s, i, a, &layers);
	free(a);
	return 0;
}
