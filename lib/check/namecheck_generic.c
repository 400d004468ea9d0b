/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_generic.c - compares the sent tensors with the listing when no rules are known for the
 * family.
 *
 * Names are matched through the fused tensors that most servers have (q, k and v; gate and up;
 * experts' w1, w2 and w3), by whole segments. Shapes are matched by element counts: a server lists
 * one rank's share, so the sent elements must be a multiple of it. This finds fewer errors than
 * rules do, and a warning says so. */
#include "namecheck_core.h"

#include "dims.h"
#include "rules.h"
#include "tied.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STRIPPED = 3, MAX_LAYERS = 4096, MAX_EXPERTS = 4096 };

/* The tensors that are sent for one listed parameter. */
struct cover {
	size_t n, direct;            /* tensors, and those under its own name */
	size_t left;                 /* tensors of the source that the globs leave out */
	unsigned left_shares;        /* of the stack, likewise */
	unsigned shares, of;         /* of the stack */
	int64_t elements;            /* -1: too many to count */
	const struct ws_stacked *stack;
	bool experts;
	size_t numbered;             /* tensors of single experts, with those left out */
	int64_t last;                /* the highest of these experts */
	const char *numbered_as;     /* the name of one of them */
};

struct generic {
	struct ws_check *c;
	struct cover *covers;        /* by entry of the listing */
	bool shown[MAX_LAYERS], sent[MAX_LAYERS];
	bool unshown[MAX_LAYERS], unsent[MAX_LAYERS]; /* layers that the other side lacks */
	struct ws_text not_shown, not_sent;           /* as ranges */
	int64_t layers;              /* num_hidden_layers; -1: not known */
	int64_t drafts;              /* next-token layers behind them */
	int64_t n_experts;           /* by the config; -1: not known */
};

/* 7 in "mlp.experts.7.up_proj.weight"; -1: none. */
static int64_t expert_of(const char *name)
{
	for (const char *p = name; (p = strstr(p, "experts.")); p++) {
		const char *number = p + strlen("experts.");
		const size_t n = strspn(number, "0123456789");
		if ((p == name || p[-1] == '.') && n && n <= 9)
			return atoll(number);
	}
	return -1;
}

static void count_expert(struct cover *v, const struct ws_relation *r, const char *name)
{
	const int64_t expert = r->experts ? expert_of(name) : -1;
	if (expert < 0)
		return;
	v->numbered++;
	v->last = expert > v->last ? expert : v->last;
	v->numbered_as = name;
}

static void cover(struct generic *g, const struct ws_relation *r, const struct ws_item *item)
{
	struct cover *v = &g->covers[r->shown];
	const int64_t more = ws_dims_product(item->n_dims, item->dims);
	v->n++;
	v->direct += !r->stack;
	v->experts |= r->experts;
	count_expert(v, r, item->name);
	if (r->stack) {
		v->stack = r->stack;
		v->shares |= r->stack->share;
		v->of |= r->stack->of;
	}
	if (v->elements < 0 || more < 0 || __builtin_add_overflow(v->elements, more, &v->elements))
		v->elements = -1;
}

/* ---- unlisted names ---- */

static bool is_left_aside(struct ws_check *c, const struct ws_item *item)
{
	const struct ws_family *f = c->opts->family;
	for (size_t i = 0; f && i < f->n_rules; i++) {
		const struct ws_rule *r = &f->rules[i];
		if (r->kind != WS_RULE_SKIP || r->when ||
		    !ws_pattern_match(r->name, item->name, NULL, 0))
			continue;
		const struct ws_text shared = ws_textf("names are left aside by servers: %.400s",
		                                       r->of);
		const struct ws_new_finding finding = {
			.verdict = WS_NAME_UNEXPECTED, .severity = WS_NOTE, .name = item->name,
			.rule = r->text, .shared = shared.s,
		};
		ws_report_add(c->report, &finding, "servers leave it aside: %s", r->of);
		return true;
	}
	return false;
}

/* A head that is not listed while the embedding is: the two share memory. 1: reported; 0: not such
 * a head. */
static int is_tied_head(struct ws_check *c, const struct ws_item *item)
{
	char name[WS_CHECK_NAME];
	const char *embedding = ws_embedding_of(item->name, 0, name, sizeof name);
	for (unsigned i = 1; embedding && ws_find_shown(c, embedding) == WS_NONE; i++)
		embedding = ws_embedding_of(item->name, i, name, sizeof name);
	if (!embedding)
		return 0;
	const struct ws_item *body = ws_check_sent(c, embedding);
	if (body)
		return ws_check_tied_pair(c, item, body, embedding) ? -1 : 1;
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_TIED,
		.severity = WS_ERROR,
		.name = item->name,
		.param = embedding,
		.near = embedding,
		.remedy = "send the embedding too: it is the head",
	};
	ws_report_add(c->report, &finding, "the server shows no head of its own: it is tied to the "
	              "embedding, which is not sent, so neither changes");
	return 1;
}

/* A layer behind the last one is a next-token layer, which only a draft model has. */
static bool is_next_token(const struct generic *g, int64_t layer)
{
	char name[96];
	snprintf(name, sizeof name, "model.layers.%" PRId64 ".eh_proj.weight", layer);
	return (g->layers >= 0 && layer >= g->layers && layer - g->layers < g->drafts) ||
	       ws_check_sent(g->c, name);
}

static bool is_of_other_layer(const struct generic *g, const struct ws_item *item)
{
	const int64_t layer = ws_layer_of(item->name);
	if (layer < 0 || layer >= MAX_LAYERS || !g->unshown[layer])
		return false;
	const bool next = is_next_token(g, layer);
	const struct ws_text shared =
		next ? ws_textf("names are left aside by servers: a next-token layer: only a draft "
		                "model has it")
		     : ws_textf("names are of layers that the server does not show: %.400s",
		                g->not_shown.s);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_UNEXPECTED, .severity = next ? WS_NOTE : WS_ERROR,
		.name = item->name, .shared = shared.s,
		.remedy = next ? NULL
		        : "another pipeline stage has them, or the checkpoint is another model's",
	};
	if (next)
		ws_report_add(g->c->report, &finding, "servers leave it aside: a next-token layer: "
		              "only a draft model has it");
	else
		ws_report_add(g->c->report, &finding, "of layer %" PRId64 ", which the server does "
		              "not show", layer);
	return true;
}

static bool has_wrong_prefix(struct ws_check *c, const struct ws_item *item)
{
	const char *rest = item->name;
	for (unsigned k = 0; k <= MAX_STRIPPED && *rest; k++) {
		char longer[WS_CHECK_NAME];
		struct ws_relation r = { WS_NONE, NULL, false };
		const int n = (int)(rest - item->name);
		if (k)
			r = ws_relate(c, rest);
		const bool plain = r.shown != WS_NONE;
		if (!plain && snprintf(longer, sizeof longer, "model.%s", rest) < WS_CHECK_NAME)
			r = ws_relate(c, longer);
		if (r.shown != WS_NONE) {
			struct ws_text how = ws_textf("%s", "model., and with it");
			if (plain)
				how = ws_textf("%.*s, and without it", n, item->name);
			else if (k)
				how = ws_textf("%.*s where the server has model., and with that", n,
				               item->name);
			const char *word = k ? "begin with" : "lack";
			const struct ws_text shared = ws_textf("names %s %.400s they match", word,
			                                       how.s);
			const char *shown = c->listing->items[r.shown].name;
			const struct ws_new_finding finding = {
				.verdict = WS_NAME_UNEXPECTED, .severity = WS_ERROR,
				.name = item->name, .param = shown, .near = shown,
				.shared = shared.s,
				.remedy = "rename them by a {map} (wsync-map(5))",
			};
			ws_report_add(c->report, &finding, "%s %.400s the name matches",
			              k ? "begins with" : "lacks", how.s);
			return true;
		}
		if (*rest >= '0' && *rest <= '9')
			break; /* segments inside a layer are no prefix */
		rest += strcspn(rest, ".");
		rest += *rest == '.';
	}
	return false;
}

static int explain(const struct generic *g, const struct ws_item *item)
{
	struct ws_check *c = g->c;
	const int tied = is_left_aside(c, item) ? 1 : is_tied_head(c, item);
	if (tied || is_of_other_layer(g, item) || has_wrong_prefix(c, item))
		return tied < 0 ? -1 : 0;
	const char *near = ws_check_near(c, item->name);
	const struct ws_text shared = ws_textf("names like %.400s are not listed by the server: "
	                                       "it drops or refuses them",
	                                       ws_text_kind(item->name).s);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_UNEXPECTED, .severity = WS_ERROR, .name = item->name,
		.near = near, .shared = shared.s,
		.remedy = "give the server's config.json ({config}), or its rules ({map})",
	};
	ws_report_add(c->report, &finding,
	              "the server shows no parameter that this could be or be a part of");
	return 0;
}

/* ---- listed parameters ---- */

static void report_shown(struct ws_check *c, enum ws_verdict verdict, enum ws_severity severity,
                const struct ws_weight *w, const char *shared, const char *why)
{
	const struct ws_text like = ws_textf("parameters like %.400s %s", ws_text_kind(w->name).s,
	                                     shared);
	const struct ws_new_finding finding = {
		.verdict = verdict, .severity = severity,
		.name = w->name, .param = w->name, .shared = like.s,
	};
	ws_report_add(c->report, &finding, "%s", why);
}

static bool is_vocabulary(const char *name)
{
	return strstr(name, "embed_tokens") || strstr(name, "lm_head");
}

static void check_elements(struct ws_check *c, const struct ws_weight *w, const struct cover *v)
{
	const int64_t shown = ws_dims_product(w->n_dims, w->dims);
	if (w->shapeless || shown < 1 || v->elements < 0 || is_vocabulary(w->name))
		return;
	if (v->elements < shown)
		report_shown(c, WS_NAME_SHAPE, WS_ERROR, w, "get fewer elements than they have",
		    ws_textf("%.200s shown = %" PRId64 " elements at one rank, and %" PRId64 " are "
		             "sent for all", ws_text_shape(w->n_dims, w->dims).s, shown,
		             v->elements).s);
	/* Several ranks may have the same key and value heads. */
	else if (v->elements % shown && !strstr(w->name, "qkv_proj"))
		report_shown(c, WS_NAME_SHAPE, WS_WARN, w,
		             "get no multiple of the elements that they have",
		             ws_textf("%.200s shown = %" PRId64
		                      " elements at one rank, and the %" PRId64
		                      " sent are no multiple",
		                      ws_text_shape(w->n_dims, w->dims).s, shown, v->elements)
		                     .s);
}

static void report_left(struct ws_check *c, enum ws_verdict verdict, const struct ws_weight *w)
{
	report_shown(c, verdict, WS_NOTE, w, "are left out, or sent by another sender: the server "
	             "keeps what it has", "left out, or sent by another sender: the server keeps "
	             "what it has");
}

/* How many experts a stacked parameter has at least: by the config, and by its shape, which may be
 * that of one rank. */
static int64_t experts_of(const struct generic *g, const struct ws_weight *w)
{
	int64_t n = g->n_experts > 1 ? g->n_experts : 1;
	if (w->n_dims > 1 && w->dims[0] > n)
		n = w->dims[0];
	return n < MAX_EXPERTS ? n : MAX_EXPERTS;
}

/* Does the choice of the caller explain what is missing? */
static bool may_lack(const struct generic *g, const struct ws_weight *w, const struct cover *v)
{
	const unsigned shares = v->shares | v->left_shares;
	return (v->left && (!v->stack || shares == v->of)) ||
	       ws_relate_may_lack(g->c, w->name, shares, experts_of(g, w));
}

/* Of experts 0 to n - 1: those that the source lacks, and that may be missing. */
static int64_t count_lacking(const struct ws_check *c, const struct cover *v, int64_t n)
{
	const char *at = strstr(v->numbered_as, "experts.") + strlen("experts.");
	const char *end = at + strspn(at, "0123456789");
	char name[WS_CHECK_NAME];
	int64_t lacking = 0;
	for (int64_t i = 0; i < n && i < MAX_EXPERTS; i++)
		lacking += snprintf(name, sizeof name, "%.*s%" PRId64 "%s",
		                    (int)(at - v->numbered_as), v->numbered_as, i,
		                    end) < WS_CHECK_NAME &&
		           !ws_catalog_find(c->items, name) && ws_check_may_lack(c, name);
	return lacking;
}

/* Ranks divide experts, so element counts do not show how many there are. True: some are
 * missing. */
static bool check_experts(const struct generic *g, const struct ws_weight *w, const struct cover *v)
{
	if (!v->numbered)
		return false;
	const int64_t of_each = __builtin_popcount(v->of), has = experts_of(g, w);
	const int64_t least = v->last + 1;
	const int64_t lacking = count_lacking(g->c, v, has > least ? has : least);
	const int64_t all = has > least && lacking ? has : least;
	const int64_t n = all - lacking;
	if ((int64_t)v->numbered != n * of_each)
		report_shown(g->c, WS_NAME_PARTIAL, WS_ERROR, w, "lack experts",
		    ws_textf("experts up to number %" PRId64 " are sent, and of their %" PRId64
		             " tensors only %zu", v->last, n * of_each, v->numbered).s);
	else if (all < has)
		report_shown(g->c, WS_NAME_PARTIAL, WS_ERROR, w, "lack experts",
		    ws_textf("%" PRId64 " experts are sent, and %s %" PRId64, n,
		             has == g->n_experts ? "config.json gives" : "the server has", has).s);
	else if (v->left || lacking)
		report_left(g->c, WS_NAME_PARTIAL, w);
	else
		return false;
	return true;
}

static bool is_of_unsent_layer(const struct generic *g, const struct ws_weight *w)
{
	const int64_t layer = ws_layer_of(w->name);
	if (layer < 0 || layer >= MAX_LAYERS || !g->unsent[layer])
		return false;
	const struct ws_text shared = ws_textf("parameters are of layers that nothing is sent for: "
	                                       "%.400s", g->not_sent.s);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_MISSING, .severity = WS_ERROR,
		.name = w->name, .param = w->name, .shared = shared.s,
		.remedy = "name the files of every pipeline stage as sources",
	};
	ws_report_add(g->c->report, &finding, "nothing is sent for layer %" PRId64, layer);
	return true;
}

/* Nothing, or a part only, is sent for a parameter of a module that gets something. */
static bool is_torn(struct ws_check *c, const struct ws_weight *w, const struct cover *v)
{
	const bool whole = v->n && (v->direct || v->shares == v->of) && !v->left;
	if (whole || !ws_modules_torn(c, (size_t)(w - c->listing->items), w->name))
		return false;
	report_shown(c, WS_NAME_PARTIAL, WS_ERROR, w, "get nothing or a part only, and their "
	             "modules get something: vLLM loads a module anew when any part of it comes, "
	             "and gives the rest random values", ws_textf("not all of %.200s is sent: vLLM "
	             "loads a module anew when any part of it comes, and gives the rest random "
	             "values", ws_text_of_module(w->name).s).s);
	return true;
}

static void check_shown(const struct generic *g, const struct ws_weight *w, const struct cover *v)
{
	struct ws_check *c = g->c;
	const char *why = v->n ? NULL : ws_server_only(w->name);
	if (!why && !v->n)
		why = ws_vllm_only(c, w);
	if (why) {
		report_shown(c, WS_NAME_SERVER, WS_NOTE, w, "are not in checkpoints", why);
		return;
	}
	if (is_torn(c, w, v))
		return;
	if (v->n == 0) {
		if (may_lack(g, w, v))
			report_left(c, WS_NAME_MISSING, w);
		else if (!is_of_unsent_layer(g, w))
			report_shown(c, WS_NAME_MISSING, WS_ERROR, w,
			             "get nothing: the server keeps what it has",
			             "the server shows it, and nothing is sent for it");
		return;
	}
	if (v->direct && v->direct < v->n)
		report_shown(c, WS_NAME_TWICE, WS_ERROR, w, "are sent whole and in parts",
		    "sent whole and in parts: the server takes one after the other");
	if (!v->direct && v->shares != v->of && may_lack(g, w, v))
		report_left(c, WS_NAME_PARTIAL, w);
	else if (!v->direct && v->shares != v->of)
		report_shown(c, WS_NAME_PARTIAL, WS_ERROR, w, "get a part only",
		             ws_textf("a part only is sent, without %.200s",
		                      ws_text_lacking(v->stack, v->experts, v->shares).s)
		                     .s);
	else if (!check_experts(g, w, v) && !v->left)
		check_elements(c, w, v);
}

static void warn(struct ws_check *c)
{
	const struct ws_config *config = c->opts->config;
	const char *arch = config ? ws_config_architecture(config) : "";
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_CONFIG, .severity = WS_WARN,
		.name = *arch ? arch : "config.json",
		.remedy = *arch ? "describe the family in a {map} FILE (wsync-map(5))"
		        : "give the server's config.json ({config})",
	};
	ws_report_add(c->report, &finding,
	              "%s%s: names are related by the stacked tensors that most "
	              "servers have, and shapes by their number of elements only",
	              *arch ? "no rules are known for " : "the server's config.json is not known",
	              arch);
}

static void mark_layer(bool *layers, const char *name)
{
	const int64_t layer = ws_layer_of(name);
	if (layer >= 0 && layer < MAX_LAYERS)
		layers[layer] = true;
}

/* Finds layers that only one side has, if the sides have a layer in common. */
static void compare_layers(struct generic *g)
{
	const struct ws_check *c = g->c;
	bool both = false;
	for (size_t i = 0; i < c->n_sent; i++)
		mark_layer(g->sent, c->sent[i]->name);
	for (size_t i = 0; i < c->listing->n; i++)
		mark_layer(g->shown, c->listing->items[i].name);
	for (size_t i = 0; i < MAX_LAYERS; i++)
		both |= g->sent[i] && g->shown[i];
	for (size_t i = 0; both && i < MAX_LAYERS; i++) {
		g->unshown[i] = g->sent[i] && !g->shown[i];
		g->unsent[i] = g->shown[i] && !g->sent[i];
	}
	g->not_shown = ws_text_ranges(g->unshown, MAX_LAYERS);
	g->not_sent = ws_text_ranges(g->unsent, MAX_LAYERS);
}

static int64_t config_number(const struct ws_check *c, const char *key, int64_t fallback)
{
	int64_t n;
	return c->opts->config && ws_config_int(c->opts->config, key, &n) ? n : fallback;
}

static void read_config(struct generic *g)
{
	static const char *const experts[] = { "num_experts", "n_routed_experts",
		                               "num_local_experts" };
	g->layers = config_number(g->c, "num_hidden_layers", -1);
	g->drafts = config_number(g->c, "num_nextn_predict_layers", 0);
	g->n_experts = -1;
	for (size_t i = 0; g->n_experts < 0 && i < sizeof experts / sizeof experts[0]; i++)
		g->n_experts = config_number(g->c, experts[i], -1);
}

static const char *shown_name(const struct ws_check *c, size_t i)
{
	return c->listing->items[i].name;
}

/* The names of a server and of its checkpoints may have different roots, which matters only for
 * what is left out: an item with an unknown name is reported anyway. */
static struct ws_relation relate_left(const struct ws_check *c, const char *name)
{
	struct ws_relation r = ws_relate(c, name);
	char longer[WS_CHECK_NAME];
	for (unsigned k = 0; k < MAX_STRIPPED && r.shown == WS_NONE && *name; k++) {
		name += strcspn(name, ".");
		name += *name == '.';
		r = ws_relate(c, name);
		if (r.shown == WS_NONE &&
		    snprintf(longer, sizeof longer, "model.%s", name) < WS_CHECK_NAME)
			r = ws_relate(c, longer);
	}
	return r;
}

static void leave(struct generic *g, const char *name)
{
	const struct ws_relation r = relate_left(g->c, name);
	if (r.shown == WS_NONE || !ws_check_may_lack(g->c, name))
		return;
	struct cover *v = &g->covers[r.shown];
	ws_check_need(g->c, name);
	v->left++;
	count_expert(v, &r, name);
	if (r.stack) {
		v->stack = r.stack;
		v->left_shares |= r.stack->share;
		v->of |= r.stack->of;
	}
}

static void find_left(struct generic *g)
{
	const struct ws_check *c = g->c;
	for (size_t i = 0; i < c->n_items; i++) {
		const struct ws_item *item = ws_catalog_item(c->items, i);
		if (!ws_check_chosen(c, item->name))
			leave(g, item->name);
	}
}

static int compare(struct generic *g)
{
	struct ws_check *c = g->c;
	read_config(g);
	compare_layers(g);
	find_left(g);
	if (c->opts->whole_modules && ws_modules_make(c, shown_name, c->listing->n))
		return -1;
	for (size_t i = 0; i < c->n_sent; i++) {
		const struct ws_relation r = ws_relate(c, c->sent[i]->name);
		if (r.shown != WS_NONE) {
			cover(g, &r, c->sent[i]);
			ws_check_need(c, c->sent[i]->name);
			ws_modules_send(c, r.shown, shown_name(c, r.shown));
		} else if (explain(g, c->sent[i])) {
			return -1;
		}
	}
	for (size_t i = 0; i < c->listing->n; i++)
		check_shown(g, &c->listing->items[i], &g->covers[i]);
	return 0;
}

int ws_check_generic(struct ws_check *c)
{
	warn(c);
	if (!c->listing || !c->listing->n)
		return 0;
	struct generic *g = calloc(1, sizeof *g);
	struct cover *covers = calloc(c->listing->n, sizeof *covers);
	int rc = 0;
	if (g && covers) {
		g->c = c;
		g->covers = covers;
		rc = compare(g);
	} else {
		rc = ws_oom(c->err);
	}
	free(covers);
	free(g);
	return rc;
}
