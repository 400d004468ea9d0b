/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_guess.c - derives the sizes that the server was started with from the listed shapes.
 *
 * A server at another tp than assumed has other shapes in every layer. That is reported as one
 * finding: the sizes follow from parameters that are divided evenly, a layout is made for them,
 * and the other checks use that layout. */
#include "namecheck_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3, MAX_TP = 4096, MAX_STRIPPED = 3 };

/* A parameter whose shape proves a size, and the sentence about it. */
struct evidence {
	unsigned size;        /* 0: none found */
	const char *name;
	struct ws_text why;   /* "[4096, 1024] shown = 4096 / 4 columns" */
};

struct sizes {
	struct evidence dense, attention, ep, inner; /* inner: experts' tp / ep */
	const char *scales, *fused;                 /* a name that proves the option wrong; NULL */
	bool fuse_shared, unquantized;
};

const char *ws_shown_name(const struct ws_shown *s, const char *name)
{
	const size_t n = strlen(s->prefix);
	return strncmp(name, s->prefix, n) ? name : name + n;
}

int ws_shown_relate(struct ws_shown *s)
{
	const struct ws_weight_list *list = s->c->listing;
	const size_t n = ws_layout_param_count(s->layout);
	const struct ws_param *params = n ? ws_layout_param(s->layout, 0) : NULL;
	free(s->param_shown);
	free(s->shown_param);
	s->param_shown = malloc((n + 1) * sizeof *s->param_shown);
	s->shown_param = malloc((list->n + 1) * sizeof *s->shown_param);
	if (!s->param_shown || !s->shown_param)
		return ws_oom(s->c->err);
	for (size_t i = 0; i < n; i++)
		s->param_shown[i] = WS_NONE;
	for (size_t i = 0; i < list->n; i++) {
		const struct ws_param *p =
			ws_layout_find_shown(s->layout, ws_shown_name(s, list->items[i].name));
		s->shown_param[i] = p ? (size_t)(p - params) : WS_NONE;
		if (p)
			s->param_shown[p - params] = i;
	}
	return 0;
}

/* ---- names ---- */

/* Finds a prefix that all listed names have and the rules do not ("language_model."). */
static void find_prefix(struct ws_shown *s)
{
	const struct ws_weight_list *list = s->c->listing;
	for (size_t i = 0; i < list->n && i < 64; i++) {
		const char *name = list->items[i].name, *rest = name;
		if (ws_layout_find_shown(s->layout, name))
			return;
		for (unsigned k = 0; k < MAX_STRIPPED && *rest; k++) {
			rest += strcspn(rest, ".");
			rest += *rest == '.';
			const size_t n = (size_t)(rest - name);
			if (n >= sizeof s->prefix || !ws_layout_find_shown(s->layout, rest))
				continue;
			snprintf(s->prefix, sizeof s->prefix, "%.*s", (int)n, name);
			const struct ws_new_finding finding = {
				.verdict = WS_NAME_SERVER, .severity = WS_NOTE, .name = name,
				.near = rest,
			};
			ws_report_add(s->c->report, &finding,
			              "the server's own names begin with %s, "
			              "which is left out in the comparison",
			              s->prefix);
			return;
		}
	}
}

/* ---- sizes ---- */

static void read_evidence(struct evidence *w, const struct ws_weight *shown, int64_t full,
                          int64_t local, const char *word)
{
	if (w->size || local < 1 || full % local || full / local > MAX_TP)
		return;
	w->size = (unsigned)(full / local);
	w->name = shown->name;
	w->why = ws_textf("%.200s shown = %" PRId64 " / %u %s", ws_text_shape(shown->n_dims,
	                shown->dims).s, full, w->size, word);
}

static void read_param(struct sizes *z, const struct ws_layout *l, const struct ws_param *p,
                       const struct ws_weight *w)
{
	const struct ws_part *part = ws_layout_part(l, p->first);
	const char *word = part->axis == 0 ? "rows" : "columns";
	if (part->split == WS_SPLIT_EXPERT) {
		/* w2 has one part for each expert: [experts, outputs, inputs]. */
		const bool one = p->n_parts < 2 || ws_layout_part(l,
		                p->first + 1)->expert != part->expert;
		if (!one || w->n_dims != 3 || part->axis != 1 || part->n_dims != 2)
			return;
		read_evidence(&z->ep, w, (int64_t)p->n_parts, w->dims[0], "experts");
		read_evidence(&z->inner, w, part->dims[1], w->dims[2], word);
	} else if (p->n_parts == 1 && part->n_dims == w->n_dims && part->axis >= 0 &&
	           part->n_dims == 2) {
		const int64_t full = part->dims[part->axis], local = w->dims[part->axis];
		if (part->split == WS_SPLIT_EVEN)
			read_evidence(&z->dense, w, full, local, word);
		if (part->split == WS_SPLIT_HEADS && part->axis == 1)
			read_evidence(&z->attention, w, full, local, word);
	}
}

static const char *first_with(const struct ws_weight_list *list, const char *text)
{
	for (size_t i = 0; i < list->n; i++)
		if (strstr(list->items[i].name, text))
			return list->items[i].name;
	return NULL;
}

static const char *first_param_with(const struct ws_layout *l, const char *text)
{
	for (size_t i = 0; i < ws_layout_param_count(l); i++)
		if (strstr(ws_layout_param(l, i)->name, text))
			return ws_layout_param(l, i)->name;
	return NULL;
}

static void read_sizes(const struct ws_shown *s, struct sizes *z)
{
	static const char shared[] = ".shared_expert", scale[] = ".weight_scale_inv";
	const struct ws_weight_list *list = s->c->listing;
	const struct ws_layout_opts *o = ws_layout_options(s->layout);
	*z = (struct sizes){ .fuse_shared = o->fuse_shared, .unquantized = o->unquantized };
	for (size_t i = 0; i < list->n; i++) {
		const size_t p = s->shown_param[i];
		if (p == WS_NONE || list->items[i].shapeless ||
		    ws_ends_with(list->items[i].name, "_scale_inv"))
			continue;
		const struct ws_param *param = ws_layout_param(s->layout, p);
		if (param->n_parts && !param->trouble)
			read_param(z, s->layout, param, &list->items[i]);
	}
	const char *apart = first_with(list, shared), *layers = first_param_with(s->layout, shared);
	if (layers && !apart && !o->fuse_shared) {
		z->fuse_shared = true;
		z->fused = layers;
	} else if (apart && !layers && o->fuse_shared) {
		z->fuse_shared = false;
		z->fused = apart;
	}
	/* Some servers compute checksums of dequantized weights, so names alone prove nothing. */
	const char *scales = first_with(list, scale);
	if (!list->items[0].shapeless && !o->unquantized && !scales) {
		z->scales = first_param_with(s->layout, scale);
		z->unquantized = z->scales != NULL;
	} else if (scales && o->unquantized) {
		z->scales = scales;
		z->unquantized = false;
	}
}

/* Puts the sizes that were found into the options of the layout. False: nothing changes. */
static bool apply(const struct sizes *z, bool tp_known, struct ws_layout_opts *o)
{
	const struct ws_layout_opts old = *o;
	const unsigned old_attention = old.attention_tp ? old.attention_tp : old.tp;
	unsigned tp = z->dense.size;
	if (!tp && z->ep.size && z->inner.size)
		tp = z->ep.size * z->inner.size;
	if (!tp)
		tp = z->attention.size ? z->attention.size : old.tp;
	o->tp = tp <= MAX_TP && !tp_known ? tp : old.tp;
	if (z->ep.size && z->inner.size && !z->fused && o->tp % z->ep.size == 0)
		o->ep = z->ep.size;
	if (o->tp % (o->ep ? o->ep : 1))
		o->ep = 1;
	const unsigned attention = z->attention.size ? z->attention.size : old_attention;
	o->attention_tp = attention == o->tp ? 0 : attention;
	o->fuse_shared = z->fuse_shared;
	o->unquantized = z->unquantized;
	if (o->rank >= o->tp)
		o->rank = 0;
	return o->tp != old.tp || o->ep != old.ep || attention != old_attention ||
	       o->fuse_shared != old.fuse_shared || o->unquantized != old.unquantized;
}

static bool is_explained(const struct ws_shown *s, size_t i)
{
	const struct ws_weight *w = &s->c->listing->items[i];
	const size_t at = s->shown_param[i];
	const struct ws_param *p = at == WS_NONE ? NULL : ws_layout_param(s->layout, at);
	return p && (w->shapeless || ws_dims_equal(w->n_dims, w->dims, p->n_dims, p->dims));
}

size_t ws_shown_unexplained(const struct ws_shown *s, const struct ws_weight **first)
{
	const struct ws_weight_list *list = s->c->listing;
	size_t n = 0;
	*first = NULL;
	for (size_t i = 0; i < list->n; i++) {
		if (is_explained(s, i))
			continue;
		if (n++ == 0)
			*first = &list->items[i];
	}
	return n;
}

/* Counts listing entries that the layout does not explain, and parameters that are not listed. */
static size_t misfits(const struct ws_shown *s)
{
	const struct ws_weight *first;
	size_t n = ws_shown_unexplained(s, &first);
	for (size_t i = 0; i < ws_layout_param_count(s->layout); i++)
		n += s->param_shown[i] == WS_NONE;
	return n;
}

static void report_size(struct ws_check *c, const struct evidence *w, const char *what,
                        unsigned real, unsigned assumed)
{
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SERVER, .severity = WS_WARN, .name = w->name ? w->name : what,
		.param = w->name, .shared = what,
		.remedy = "tell the check what the server was started with ({tp}, {ep})",
	};
	if (real != assumed)
		ws_report_add(c->report, &finding, "the server's shapes are for %s %u, not %u: %s",
		              what, real, assumed, w->why.s);
}

static void report_sizes(struct ws_shown *s, const struct sizes *z,
                         const struct ws_layout_opts *old, const struct ws_layout_opts *new)
{
	const struct evidence *w =
		z->dense.size ? &z->dense : z->inner.size ? &z->inner : &z->attention;
	struct ws_check *c = s->c;
	report_size(c, w, "tp", new->tp, old->tp);
	report_size(c, &z->ep, "ep", new->ep ? new->ep : 1, old->ep ? old->ep : 1);
	/* Without other options, attention is divided like everything else. */
	const bool apart = old->attention_tp && old->attention_tp != old->tp;
	report_size(c, &z->attention, "attention tp",
	            new->attention_tp ? new->attention_tp : new->tp,
	            apart ? old->attention_tp : new->tp);
	if (z->fused) {
		const struct ws_new_finding finding = {
			.verdict = WS_NAME_SERVER, .severity = WS_NOTE, .name = z->fused,
			.param = z->fused,
		};
		ws_report_add(c->report, &finding, "%s", new->fuse_shared
		              ? "the server shows the shared experts as further experts behind the "
		              "routed ones"
		              : "the server shows the shared experts as layers of their own");
	}
	if (z->scales) {
		const struct ws_new_finding finding = {
			.verdict = WS_NAME_SERVER, .severity = WS_WARN, .name = z->scales,
			.param = z->scales,
		};
		ws_report_add(c->report, &finding, new->unquantized
		              ? "the server shows no FP8 scale, though config.json says that "
		              "weights are in FP8: it was started unquantized"
		              : "the server shows FP8 scales, though it was taken to be "
		              "unquantized");
	}
}

/* One round: reads the sizes, and keeps the layout for them if it explains more. 1: nothing to
 * do. */
static int guess_once(struct ws_shown *s)
{
	const struct ws_namecheck_opts *o = s->c->opts;
	struct ws_layout_opts old = *ws_layout_options(s->layout), new;
	struct sizes z;
	struct ws_layout *made = NULL, *before = s->made;
	const struct ws_layout *kept = s->layout;
	const size_t n = misfits(s);
	read_sizes(s, &z);
	old.tp = old.tp ? old.tp : 1;
	new = old;
	if (n == 0 || !apply(&z, o->tp_known, &new))
		return 1;
	if (!o->family || !o->config) {
		report_sizes(s, &z, &old, &new);
		s->sizes_unknown = true;
		return 1;
	}
	/* No server can have these sizes: the shapes are simply different. */
	if (ws_layout_make(o->family, o->config, &new, &made, NULL))
		return 1;
	s->layout = made;
	if (ws_shown_relate(s)) {
		s->layout = kept;
		ws_layout_free(made);
		return -1;
	}
	if (misfits(s) >= n) {
		s->layout = kept;
		ws_layout_free(made);
		return ws_shown_relate(s) ? -1 : 1;
	}
	report_sizes(s, &z, &old, &new);
	s->made = made;
	ws_layout_free(before);
	return 0;
}

void ws_shown_fini(struct ws_shown *s)
{
	free(s->param_shown);
	free(s->shown_param);
	ws_layout_free(s->made);
}

int ws_shown_guess(struct ws_shown *s)
{
	int rc = 0;
	find_prefix(s);
	if (ws_shown_relate(s))
		return -1;
	for (unsigned i = 0; rc == 0 && i < ROUNDS; i++)
		rc = guess_once(s);
	return rc < 0 ? -1 : 0;
}
