/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_generic.c - what is sent against what the server shows, when no family's rules are known.
 *
 * Names are related by the stacked tensors that most servers have (q, k and v; gate and up; experts'
 * w1, w2 and w3), whole segments at a time, and shapes by the number of elements: a server shows one
 * rank's share, so what is sent must be a multiple of it. That finds less than rules do, and says so. */
#include "namecheck_core.h"
#include "rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STRIPPED = 3 };

/* A tensor of the checkpoint, the one it is stacked into, and which of its shares it is. */
static const struct stacked {
	const char *part, *fused;
	unsigned share, of;   /* a bit, and the bits of all */
} stacks[] = {
	{ "q_proj", "qkv_proj", 1, 7 },   { "k_proj", "qkv_proj", 2, 7 },
	{ "v_proj", "qkv_proj", 4, 7 },   { "gate_proj", "gate_up_proj", 1, 3 },
	{ "up_proj", "gate_up_proj", 2, 3 },
	{ "w1", "gate_up_proj", 1, 3 },   { "w3", "gate_up_proj", 2, 3 },
	{ "w2", "down_proj", 1, 1 },
	{ "q_a_proj", "fused_qkv_a_proj_with_mqa", 1, 3 },
	{ "kv_a_proj_with_mqa", "fused_qkv_a_proj_with_mqa", 2, 3 },
	{ "in_proj_qkv", "in_proj_qkvz", 1, 3 }, { "in_proj_z", "in_proj_qkvz", 2, 3 },
	{ "in_proj_b", "in_proj_ba", 1, 3 }, { "in_proj_a", "in_proj_ba", 2, 3 },
};

static const struct stacked expert_stacks[] = {
	{ "gate_proj", "w13", 1, 3 }, { "w1", "w13", 1, 3 },
	{ "up_proj", "w13", 2, 3 },   { "w3", "w13", 2, 3 },
	{ "down_proj", "w2", 1, 1 },  { "w2", "w2", 1, 1 },
};

enum { N_STACKS = sizeof stacks / sizeof stacks[0],
       N_EXPERT_STACKS = sizeof expert_stacks / sizeof expert_stacks[0] };

/* What is sent for one shown parameter. */
struct cover {
	size_t n, direct;            /* tensors; those of its own name among them */
	unsigned shares, of;         /* of stacks[] */
	int64_t elements;            /* -1: too many to count */
	const struct stacked *stack;
	bool experts;
};

struct generic {
	struct ws_check *c;
	struct cover *covers;        /* by entry of the listing */
};

struct relation {
	size_t shown;                /* WS_NONE: none */
	const struct stacked *stack; /* NULL: under its own name */
	bool experts;
};

static size_t find_shown(const struct ws_check *c, const char *name)
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

/* "mlp.experts.7.up_proj.weight" in "mlp.experts.w13_weight"; p is at "experts". */
static bool relate_expert(const struct ws_check *c, const char *name, const char *p, struct relation *r)
{
	const char *number = p + strlen("experts.");
	const char *leaf = number + strspn(number, "0123456789");
	char fused[WS_CHECK_NAME];
	if (leaf == number || *leaf != '.')
		return false;
	leaf++;
	const size_t n = segment_length(leaf);
	for (size_t i = 0; i < N_EXPERT_STACKS; i++) {
		const struct stacked *s = &expert_stacks[i];
		if (!is_segment(leaf, n, s->part) || leaf[n] != '.' ||
		    snprintf(fused, sizeof fused, "%.*sexperts.%s_%s", (int)(p - name), name, s->fused,
		             leaf + n + 1) >= WS_CHECK_NAME)
			continue;
		*r = (struct relation){ find_shown(c, fused), s, true };
		return r->shown != WS_NONE;
	}
	return false;
}

static bool relate_segment(const struct ws_check *c, const char *name, const char *p, struct relation *r)
{
	const size_t n = segment_length(p);
	char fused[WS_CHECK_NAME];
	for (size_t i = 0; i < N_STACKS; i++) {
		if (!is_segment(p, n, stacks[i].part) ||
		    snprintf(fused, sizeof fused, "%.*s%s%s", (int)(p - name), name, stacks[i].fused, p + n) >=
		    WS_CHECK_NAME)
			continue;
		*r = (struct relation){ find_shown(c, fused), &stacks[i], false };
		if (r->shown != WS_NONE)
			return true;
	}
	return false;
}

static struct relation relate(const struct ws_check *c, const char *name)
{
	struct relation r = { find_shown(c, name), NULL, false };
	for (const char *p = name; r.shown == WS_NONE && *p; p += segment_length(p), p += *p == '.') {
		if (!strncmp(p, "experts.", 8) && relate_expert(c, name, p, &r))
			return r;
		if (relate_segment(c, name, p, &r))
			return r;
	}
	return r;
}

static int64_t elements(unsigned n, const int64_t *dims)
{
	int64_t count = 1;
	for (unsigned d = 0; d < n; d++)
		if (__builtin_mul_overflow(count, dims[d], &count))
			return -1;
	return count;
}

static void cover(struct generic *g, const struct relation *r, const struct ws_item *item)
{
	struct cover *v = &g->covers[r->shown];
	const int64_t more = elements(item->n_dims, item->dims);
	v->n++;
	v->direct += !r->stack;
	v->experts |= r->experts;
	if (r->stack) {
		v->stack = r->stack;
		v->shares |= r->stack->share;
		v->of |= r->stack->of;
	}
	if (v->elements < 0 || more < 0 || __builtin_add_overflow(v->elements, more, &v->elements))
		v->elements = -1;
}

/* ---- names that the server does not show ---- */

static bool is_left_aside(struct ws_check *c, const struct ws_item *item)
{
	const struct ws_family *f = c->opts->family;
	for (size_t i = 0; f && i < f->n_rules; i++) {
		const struct ws_rule *r = &f->rules[i];
		if (r->kind != WS_RULE_SKIP || r->when || !ws_pattern_match(r->name, item->name, NULL, 0))
			continue;
		const struct ws_text shared = ws_textf("names are left aside by servers: %.400s", r->of);
		const struct ws_said said = { WS_NAME_UNEXPECTED, WS_NOTE, item->name, NULL, NULL, r->text,
			                      shared.s, NULL, false };
		ws_report_add(c->report, &said, "servers leave it aside: %s", r->of);
		return true;
	}
	return false;
}

static bool is_tied_head(struct ws_check *c, const struct ws_item *item)
{
	const char *embedding = "model.embed_tokens.weight";
	if (strcmp(item->name, "lm_head.weight") || find_shown(c, embedding) == WS_NONE)
		return false;
	const bool sent = ws_check_sent(c, embedding) != NULL;
	const struct ws_said said = { WS_NAME_TIED, sent ? WS_NOTE : WS_ERROR, item->name, embedding, embedding,
		                      NULL, NULL, sent ? NULL : "send the embedding too: it is the head", false };
	ws_report_add(c->report, &said, "the server shows no head of its own: it is tied to the embedding%s",
	              sent ? ", and this is left aside" : ", which is not sent, so neither changes");
	return true;
}

static bool has_wrong_prefix(struct ws_check *c, const struct ws_item *item)
{
	const char *rest = item->name;
	for (unsigned k = 0; k <= MAX_STRIPPED && *rest; k++) {
		char longer[WS_CHECK_NAME];
		struct relation r = { WS_NONE, NULL, false };
		const int n = (int)(rest - item->name);
		if (k)
			r = relate(c, rest);
		const bool plain = r.shown != WS_NONE;
		if (!plain && snprintf(longer, sizeof longer, "model.%s", rest) < WS_CHECK_NAME)
			r = relate(c, longer);
		if (r.shown != WS_NONE) {
			const struct ws_text how = plain
				? ws_textf("%.*s, and without it", n, item->name)
				: k ? ws_textf("%.*s where the server has model., and with that", n, item->name)
				    : ws_textf("%s", "model., and with it");
			const char *word = k ? "begin with" : "lack";
			const struct ws_text shared = ws_textf("names %s %.400s they match", word, how.s);
			const char *shown = c->listing->items[r.shown].name;
			const struct ws_said said = { WS_NAME_UNEXPECTED, WS_ERROR, item->name, shown, shown, NULL,
				                      shared.s, "rename them by a --map (wsync-map(5))", false };
			ws_report_add(c->report, &said, "%ss%s %.400s the name matches", k ? "begin" : "lack",
			              k ? " with" : "", how.s);
			return true;
		}
		rest += segment_length(rest);
		rest += *rest == '.';
	}
	return false;
}

static void explain(struct ws_check *c, const struct ws_item *item)
{
	if (is_left_aside(c, item) || is_tied_head(c, item) || has_wrong_prefix(c, item))
		return;
	const char *near = ws_check_near(c, item->name);
	const struct ws_text shared = ws_textf("names like %.400s are none that the server shows: it drops or refuses "
	                                       "them", ws_text_kind(item->name).s);
	const struct ws_said said = { WS_NAME_UNEXPECTED, WS_ERROR, item->name, NULL, near, NULL, shared.s,
		                      "give the server's config.json (--config), or its rules (--map)", false };
	ws_report_add(c->report, &said, "the server shows no parameter that this could be or be a part of");
}

/* ---- what the server shows ---- */

static struct ws_text lacking(const struct cover *v)
{
	const struct stacked *table = v->experts ? expert_stacks : stacks;
	const size_t n = v->experts ? N_EXPERT_STACKS : N_STACKS;
	struct ws_text t = { "" };
	size_t used = 0;
	for (size_t i = 0; i < n && used < sizeof t.s; i++)
		if (!strcmp(table[i].fused, v->stack->fused) && !(v->shares & table[i].share) &&
		    table[i].part[0] != 'w')
			used += (size_t)snprintf(t.s + used, sizeof t.s - used, "%s%s", used ? " and " : "",
			                         table[i].part);
	return t;
}

static void say(struct ws_check *c, enum ws_verdict verdict, enum ws_severity severity,
                const struct ws_weight *w, const char *shared, const char *why)
{
	const bool missing = verdict == WS_NAME_MISSING || verdict == WS_NAME_PARTIAL;
	const struct ws_text like = ws_textf("parameters like %.400s %s", ws_text_kind(w->name).s, shared);
	const struct ws_said said = { verdict, missing && c->opts->subset ? WS_NOTE : severity, w->name, w->name,
		                      NULL, NULL, like.s, NULL, false };
	ws_report_add(c->report, &said, "%s", why);
}

static bool is_vocabulary(const char *name)
{
	return strstr(name, "embed_tokens") || strstr(name, "lm_head");
}

static void check_elements(struct ws_check *c, const struct ws_weight *w, const struct cover *v)
{
	const int64_t shown = elements(w->n_dims, w->dims);
	if (w->shapeless || shown < 1 || v->elements < 0 || is_vocabulary(w->name))
		return;
	if (v->elements < shown)
		say(c, WS_NAME_SHAPE, WS_ERROR, w, "get fewer elements than they have",
		    ws_textf("%.200s shown = %" PRId64 " elements at one rank, and %" PRId64 " are sent for all",
		             ws_text_shape(w->n_dims, w->dims).s, shown, v->elements).s);
	/* Keys and values may be on several ranks. */
	else if (v->elements % shown && !strstr(w->name, "qkv_proj"))
		say(c, WS_NAME_SHAPE, WS_WARN, w, "get no multiple of the elements that they have",
		    ws_textf("%.200s shown = %" PRId64 " elements at one rank, and the %" PRId64
		             " sent are no multiple", ws_text_shape(w->n_dims, w->dims).s, shown,
		             v->elements).s);
}

static void check_shown(struct ws_check *c, const struct ws_weight *w, const struct cover *v)
{
	const char *why = v->n ? NULL : ws_own_affair(w->name);
	if (why) {
		say(c, WS_NAME_SERVER, WS_NOTE, w, "are none that is sent", why);
		return;
	}
	if (v->n == 0) {
		say(c, WS_NAME_MISSING, WS_ERROR, w, "get nothing: the server keeps what it has",
		    "the server shows it, and nothing is sent for it");
		return;
	}
	if (v->direct && v->direct < v->n)
		say(c, WS_NAME_TWICE, WS_ERROR, w, "are sent whole and in parts",
		    "sent whole and in parts: the server takes one after the other");
	if (!v->direct && v->shares != v->of)
		say(c, WS_NAME_PARTIAL, WS_ERROR, w, "get a part only",
		    ws_textf("a part only is sent, without %.200s", lacking(v).s).s);
	else
		check_elements(c, w, v);
}

static void warn(struct ws_check *c)
{
	const struct ws_config *config = c->opts->config;
	const char *arch = config ? ws_config_architecture(config) : "";
	const struct ws_said said = { WS_NAME_CONFIG, WS_WARN, *arch ? arch : "config.json", NULL, NULL, NULL,
		                      NULL, "describe the family in a --map FILE (wsync-map(5)) to check shapes too", false };
	ws_report_add(c->report, &said, "%s%s: names are related by the stacked tensors that most servers have, "
	              "and shapes by their number of elements only",
	              *arch ? "no rules are known for " : "the server's config.json is not known", arch);
}

int ws_check_generic(struct ws_check *c)
{
	struct generic g = { .c = c };
	warn(c);
	if (!c->listing || !c->listing->n)
		return 0;
	g.covers = calloc(c->listing->n, sizeof *g.covers);
	if (!g.covers)
		return ws_err_set(c->err, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; i < c->n_sent; i++) {
		const struct relation r = relate(c, c->sent[i]->name);
		if (r.shown != WS_NONE)
			cover(&g, &r, c->sent[i]);
		else
			explain(c, c->sent[i]);
	}
	for (size_t i = 0; i < c->listing->n; i++)
		check_shown(c, &c->listing->items[i], &g.covers[i]);
	free(g.covers);
	return 0;
}
