/* SPDX-License-Identifier: Apache-2.0 */
/* layout_like.c - the layout of a model of which a checkpoint is known, and no rules: its tensors,
 * by their names and shapes.
 *
 * Every tensor is a part. Parts that trainers keep in one tensor are of one param, in the names of
 * transformers: q, k and v; gate and up; the experts of a layer, whose tensor may have its last two
 * axes swapped. Tensors that servers may do without are optional: layers behind the last one, which
 * only a draft model has, and a head that is tied to the embedding. */
#include "layout_build.h"

#include "tied.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTNERS = 3, MOST_EXPERTS = 65536 };

struct like {
	struct ws_build b;
	const struct ws_tensor *tensors;
	size_t n;
	struct ws_names names; /* of the tensors */
	size_t *taken;         /* by tensor: its param, counted from 1; 0: it has none */
	const struct ws_family *generic;
	int64_t layers; /* num_hidden_layers; -1: not known */
	int64_t drafts; /* next-token layers behind them */
};

/* Tensors that follow each other in one. */
struct fusion {
	const char *name;
	const char *parts[MOST_PARTNERS];
};

static const struct fusion fusions[] = {
	{ "qkv_proj", { "q_proj", "k_proj", "v_proj" } },
	{ "gate_up_proj", { "gate_proj", "up_proj" } },
};

/* Of each expert: gate above up, and down. Without a gate only up. */
static const struct fusion expert_fusions[] = {
	{ "gate_up_proj", { "gate_proj", "up_proj" } },
	{ "gate_up_proj", { "w1", "w3" } },
	{ "down_proj", { "down_proj" } },
	{ "down_proj", { "w2" } },
	{ "up_proj", { "up_proj" } },
};

static size_t segment(const char *p)
{
	return strcspn(p, ".");
}

static bool is_segment(const char *p, const char *word)
{
	const size_t n = strlen(word);
	return !strncmp(p, word, n) && (p[n] == '.' || !p[n]);
}

/* The first layer number of a name; -1: none. */
static int64_t layer_of(const char *name)
{
	for (const char *p = name; *p; p += segment(p), p += *p == '.') {
		const size_t n = strspn(p, "0123456789");
		if (n && n < 10 && n == segment(p))
			return atoll(p);
	}
	return -1;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static const char *skipped(const struct like *k, const char *name)
{
	for (size_t i = 0; k->generic && i < k->generic->n_rules; i++) {
		const struct ws_rule *r = &k->generic->rules[i];
		if (r->kind == WS_RULE_SKIP && !r->when && ws_pattern_match(r->name, name, NULL, 0))
			return r->of;
	}
	return NULL;
}

bool ws_layer_is_behind(const char *name, int64_t layers)
{
	static const char *const prefixes[] = { "model.layers.", "model.language_model.layers.",
		                                "language_model.model.layers." };
	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
		const size_t n = strlen(prefixes[i]);
		if (!strncmp(name, prefixes[i], n) && layer_of(name + n) >= layers)
			return true;
	}
	return false;
}

/* Layers of a draft model: numbered behind the others, as the config says, or under a name of their
 * own. */
static bool is_draft(const struct like *k, const char *name)
{
	if (!strncmp(name, "mtp.", 4) || strstr(name, ".mtp.") || strstr(name, ".mtp_"))
		return true;
	return k->layers >= 0 && k->drafts > 0 && ws_layer_is_behind(name, k->layers);
}

/* What modules hold beside their weights, and loaders leave aside or have values of their own
 * for. */
bool ws_tensor_is_leftover(const struct ws_tensor *t)
{
	static const char *const words[] = { "masked_bias", "position_ids", "num_batches_tracked",
		                             "k_scale", "v_scale", "q_scale", "prob_scale",
		                             "cos_cached", "sin_cached", "inv_freq" };
	const char *last = strrchr(t->name, '.');
	last = last ? last + 1 : t->name;
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcmp(last, words[i]))
			return true;
	return t->n_dims == 4 && t->dims[0] == 1 && t->dims[1] == 1 && !strcmp(last, "bias") &&
	       ws_dtype_bits(t->dtype) == 8; /* a mask of GPT-2's */
}

/* A 16-bit float may come as any floating type; whether that loses anything is checked elsewhere.
 */
static bool is_exact(enum ws_dtype d)
{
	return d != WS_DTYPE_BF16 && d != WS_DTYPE_F16 && d != WS_DTYPE_F32;
}

static int add_part(struct like *k, size_t i, int64_t expert)
{
	const struct ws_tensor *t = &k->tensors[i];
	struct ws_part p = { .dtype = t->dtype,
		             .exact = is_exact(t->dtype),
		             .n_dims = t->n_dims,
		             .split = expert < 0 ? WS_SPLIT_EVEN : WS_SPLIT_EXPERT,
		             .expert = expert,
		             .draft = is_draft(k, t->name) };
	p.optional = p.draft || ws_tensor_is_leftover(t);
	memcpy(p.dims, t->dims, sizeof p.dims);
	k->taken[i] = k->b.l->n_params;
	return ws_build_part(&k->b, t->name, "", p);
}

static size_t find(const struct like *k, const char *name)
{
	const struct ws_tensor *t = ws_names_find(&k->names, name);
	return t && !k->taken[t - k->tensors] ? (size_t)(t - k->tensors) : SIZE_MAX;
}

static bool is_sized(int64_t rows)
{
	return rows > 0 && rows < (int64_t)1 << 40;
}

static bool go_together(const struct ws_tensor *a, const struct ws_tensor *b)
{
	return a->dtype == b->dtype && a->n_dims == b->n_dims && a->n_dims > 0 && a->n_dims < 3 &&
	       is_sized(a->dims[0]) && is_sized(b->dims[0]) &&
	       (a->n_dims == 1 || a->dims[1] == b->dims[1]);
}

static int begin(struct like *k, const char *name, const struct ws_division *d)
{
	return ws_build_param(&k->b, name, "", d, NULL);
}

static int add_alone(struct like *k, size_t i)
{
	const struct ws_division d = { .form = WS_FORM_ROWS, .tp = 1, .ep = 1 };
	if (begin(k, k->tensors[i].name, &d) || add_part(k, i, -1))
		return -1;
	return ws_build_end(&k->b);
}

/* ---- q, k and v; gate and up ----------------------------------------------------------------- */

/* The tensor of this name with another word in place of the segment at p. */
static size_t find_partner(const struct like *k, const char *name, const char *p, const char *word)
{
	char other[WS_NAME_MAX];
	const int n = snprintf(other, sizeof other, "%.*s%s%s", (int)(p - name), name, word,
	                       p + segment(p));
	return n < (int)sizeof other ? find(k, other) : SIZE_MAX;
}

static bool find_partners(const struct like *k, size_t i, const char *p, const struct fusion *f,
                          size_t found[MOST_PARTNERS], size_t *n)
{
	const char *name = k->tensors[i].name;
	*n = 0;
	for (; *n < MOST_PARTNERS && f->parts[*n]; (*n)++) {
		found[*n] = find_partner(k, name, p, f->parts[*n]);
		if (found[*n] == SIZE_MAX || !go_together(&k->tensors[i], &k->tensors[found[*n]]))
			return false;
	}
	return true;
}

/* 1: added. Its name as a whole must be free. */
static int add_fused(struct like *k, size_t i, const char *p, const struct fusion *f)
{
	const struct ws_division d = { .form = WS_FORM_ROWS, .tp = 1, .ep = 1 };
	const char *name = k->tensors[i].name;
	char whole[WS_NAME_MAX];
	size_t found[MOST_PARTNERS], n;
	if (!is_segment(p, f->parts[0]) || !find_partners(k, i, p, f, found, &n) ||
	    snprintf(whole, sizeof whole, "%.*s%s%s", (int)(p - name), name, f->name,
	             p + segment(p)) >= (int)sizeof whole ||
	    ws_names_find(&k->names, whole))
		return 0;
	if (begin(k, whole, &d))
		return -1;
	for (size_t j = 0; j < n; j++)
		if (add_part(k, found[j], -1))
			return -1;
	return ws_build_end(&k->b) ? -1 : 1;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* "model.layers.0.mlp.experts.7.w1.weight" */
static size_t find_expert(const struct like *k, const char *name, const char *number, int64_t e,
                          const char *word)
{
	char other[WS_NAME_MAX];
	const char *leaf = number + segment(number) + 1;
	const int n = snprintf(other, sizeof other, "%.*s%" PRId64 ".%s%s", (int)(number - name),
	                       name, e, word, leaf + segment(leaf));
	return n < (int)sizeof other ? find(k, other) : SIZE_MAX;
}

/* Are the partners of expert e there, in the shapes of those of expert 0? */
static bool has_expert(const struct like *k, size_t first, const char *number, int64_t e,
                       const struct fusion *f, size_t n)
{
	const struct ws_tensor *a = &k->tensors[first];
	for (size_t j = 0; j < n; j++) {
		const size_t at = find_expert(k, a->name, number, e, f->parts[j]);
		if (at == SIZE_MAX || !go_together(a, &k->tensors[at]) ||
		    a->dims[0] != k->tensors[at].dims[0])
			return false;
	}
	return true;
}

static int add_stack_of(struct like *k, size_t first, const char *number, const struct fusion *f,
                        size_t n, int64_t experts)
{
	const struct ws_division d = { .form = WS_FORM_EXPERTS,
		                       .tp = 1,
		                       .ep = 1,
		                       .routed = experts,
		                       .per_expert = (unsigned)n };
	const char *name = k->tensors[first].name;
	char whole[WS_NAME_MAX];
	if (snprintf(whole, sizeof whole, "%.*s%s", (int)(number - name), name, f->name) >=
	            (int)sizeof whole ||
	    ws_names_find(&k->names, whole))
		return 0;
	if (begin(k, whole, &d))
		return -1;
	for (int64_t e = 0; e < experts; e++)
		for (size_t j = 0; j < n; j++)
			if (add_part(k, find_expert(k, name, number, e, f->parts[j]), e))
				return -1;
	return ws_build_end(&k->b) ? -1 : 1;
}

/* number: of expert 0. 1: added. */
static int add_experts(struct like *k, size_t first, const char *number)
{
	const struct ws_tensor *t = &k->tensors[first];
	const char *leaf = number + 2;
	if (strncmp(number, "0.", 2) || t->n_dims != 2 || strcmp(leaf + segment(leaf), ".weight"))
		return 0;
	for (size_t i = 0; i < sizeof expert_fusions / sizeof *expert_fusions; i++) {
		const struct fusion *f = &expert_fusions[i];
		size_t n = 0;
		int64_t experts = 0;
		while (n < MOST_PARTNERS && f->parts[n])
			n++;
		if (!is_segment(leaf, f->parts[0]))
			continue;
		while (has_expert(k, first, number, experts, f, n))
			experts++;
		if (experts > 0)
			return add_stack_of(k, first, number, f, n, experts);
	}
	return 0;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* 1: it was added with others. */
static int add_with_others(struct like *k, size_t i)
{
	const char *name = k->tensors[i].name;
	for (const char *p = name; *p; p += segment(p), p += *p == '.') {
		int rc = 0;
		if (is_segment(p, "experts") && p[7] && (rc = add_experts(k, i, p + 8)))
			return rc;
		for (size_t j = 0; j < sizeof fusions / sizeof *fusions && !rc; j++)
			rc = add_fused(k, i, p, &fusions[j]);
		if (rc)
			return rc;
	}
	return 0;
}

static int add_all(struct like *k)
{
	for (size_t i = 0; i < k->n; i++) {
		int rc = 0;
		if (strlen(k->tensors[i].name) < WS_NAME_MAX && !skipped(k, k->tensors[i].name))
			rc = add_with_others(k, i);
		if (rc < 0)
			return -1;
	}
	for (size_t i = 0; i < k->n; i++)
		if (!k->taken[i] && !skipped(k, k->tensors[i].name) && add_alone(k, i))
			return -1;
	return 0;
}

/* ---- heads ----------------------------------------------------------------------------------- */

static void tie(struct like *k, const char *embedding, const struct ws_tensor *head)
{
	struct ws_layout *l = k->b.l;
	const size_t param = k->taken[head - k->tensors];
	if (!param)
		return;
	l->params[param - 1].tied_to = embedding;
	l->parts[l->params[param - 1].first].optional = true;
	l->tied = true;
}

/* A checkpoint without a head has one that is the embedding, and trainers may save it. */
static int add_tied_head(struct like *k, const struct ws_tensor *body, const char *head)
{
	const struct ws_division d = { .form = WS_FORM_ROWS, .tp = 1, .ep = 1 };
	struct ws_layout *l = k->b.l;
	struct ws_part p = { .dtype = body->dtype,
		             .exact = is_exact(body->dtype),
		             .n_dims = body->n_dims,
		             .split = WS_SPLIT_EVEN,
		             .optional = true };
	memcpy(p.dims, body->dims, sizeof p.dims);
	if (begin(k, head, &d) || ws_build_part(&k->b, head, "", p) || ws_build_end(&k->b))
		return -1;
	l->params[l->n_params - 1].tied_to = body->name;
	l->tied = true;
	return 0;
}

static int tie_heads(struct like *k)
{
	const bool tied = k->b.config && ws_config_tied(k->b.config);
	int64_t said = 1;
	const bool untied =
		k->b.config && ws_config_int(k->b.config, "tie_word_embeddings", &said) && !said;
	char head[WS_NAME_MAX];
	for (size_t i = 0; i < k->n; i++) {
		const struct ws_tensor *t = &k->tensors[i];
		if (!ws_head_of(t->name, head, sizeof head))
			continue;
		const struct ws_tensor *own = ws_names_find(&k->names, head);
		if (own) {
			if (tied)
				tie(k, t->name, own);
		} else if (!untied && add_tied_head(k, t, head)) {
			return -1;
		}
	}
	return 0;
}

/* ---- aliases --------------------------------------------------------------------------------- */

/* Experts in one tensor may be [expert, inputs, outputs] at the trainer, or at the reference. */
static int add_swapped(struct like *k)
{
	struct ws_layout *l = k->b.l;
	for (size_t i = 0; i < l->n_params; i++) {
		const struct ws_param *q = &l->params[i];
		if (q->n_dims != 3 || !strstr(q->name, "experts."))
			continue;
		if (ws_build_grow(&k->b, &l->aliases, l->n_aliases, &l->cap_aliases,
		                  sizeof *l->aliases))
			return -1;
		l->aliases[l->n_aliases++] = (struct ws_alias){
			.name = q->name, .param = i, .order = { 0, 2, 1 }, .n_dims = 3, .rule = 1
		};
	}
	return 0;
}

static int index_all(struct like *k)
{
	struct ws_layout *l = k->b.l;
	size_t two[2];
	return ws_names_init(&l->part_names, l->parts, sizeof *l->parts, l->n_parts, two,
	                     k->b.err) < 0 ||
	                       ws_names_init(&l->param_names, l->params, sizeof *l->params,
	                                     l->n_params, two, k->b.err) < 0 ||
	                       ws_names_init(&l->alias_names, l->aliases, sizeof *l->aliases,
	                                     l->n_aliases, two, k->b.err) < 0 ?
	               -1 :
	               0;
}

static int say_rules(struct like *k)
{
	struct ws_layout *l = k->b.l;
	l->rules = calloc(2, sizeof *l->rules);
	if (!l->rules)
		return ws_oom(k->b.err);
	l->rules[l->n_rules++] = "in one tensor, as transformers keeps them";
	l->rules[l->n_rules++] = "the same with the last two axes swapped";
	return 0;
}

/* Servers compute what the generic rules skip, whether the reference has it or not. */
static int copy_skips(struct like *k)
{
	struct ws_layout *l = k->b.l;
	for (size_t i = 0; k->generic && i < k->generic->n_rules; i++) {
		const struct ws_rule *r = &k->generic->rules[i];
		if (r->kind != WS_RULE_SKIP || r->when)
			continue;
		if (ws_build_grow(&k->b, &l->skips, l->n_skips, &l->cap_skips, sizeof *l->skips))
			return -1;
		l->skips[l->n_skips++] = (struct ws_skipped){ r->name, r->of };
	}
	return 0;
}

static int fill(struct like *k)
{
	size_t twice[2];
	k->taken = calloc(k->n + 1, sizeof *k->taken);
	if (!k->taken)
		return ws_oom(k->b.err);
	if (ws_names_init(&k->names, k->tensors, sizeof *k->tensors, k->n, twice, k->b.err) < 0)
		return -1;
	return say_rules(k) || copy_skips(k) || add_all(k) || tie_heads(k) || add_swapped(k) ||
	                       index_all(k) ?
	               -1 :
	               0;
}

int ws_layout_like(const struct ws_layout_like *like, struct ws_layout **out, struct ws_err *err)
{
	static const struct ws_rule rule = { .name = "the reference" };
	const struct ws_family family = { .name = "reference", .file = like->name };
	struct ws_layout *l = calloc(1, sizeof *l);
	if (!l)
		return ws_oom(err);
	struct like k = {
		.b = { .l = l,
		       .family = &family,
		       .config = like->config,
		       .err = err,
		       .rule = &rule,
		       .prefix = "" },
		.tensors = like->tensors,
		.n = like->n,
		.generic = like->generic,
		.layers = -1,
	};
	l->opts = (struct ws_layout_opts){ .tp = 1, .ep = 1, .attention_tp = 1 };
	l->family = "reference";
	l->dtype = WS_DTYPE_BF16;
	l->like = true;
	if (like->config)
		ws_config_int(like->config, "num_hidden_layers", &k.layers);
	if (like->config)
		ws_config_int(like->config, "num_nextn_predict_layers", &k.drafts);
	const int rc = fill(&k);
	ws_names_fini(&k.names);
	free(k.taken);
	if (rc)
		ws_layout_free(l);
	else
		*out = l;
	return rc;
}

/* ---- the reverse: parts of a tensor ---------------------------------------------------------- */

static size_t count_parts(const struct fusion *f)
{
	size_t n = 0;
	while (n < MOST_PARTNERS && f->parts[n])
		n++;
	return n;
}

/* Where the last module of a name begins: "qkv_proj.weight", "gate_up_proj". */
static const char *module_of(const char *name)
{
	const char *last = strrchr(name, '.');
	if (last && (!strcmp(last, ".weight") || !strcmp(last, ".bias")))
		while (last > name && *--last != '.')
			;
	return last && *last == '.' ? last + 1 : name;
}

static const struct fusion stacks[] = {
	{ "gate_up_proj", { "gate_proj", "up_proj" } },
	{ "down_proj", { "down_proj" } },
	{ "up_proj", { "up_proj" } }, /* without a gate */
};
enum { N_STACKS = sizeof stacks / sizeof *stacks, N_FUSIONS = sizeof fusions / sizeof *fusions };

static bool is_stack(const struct ws_part *whole, const char *module)
{
	return whole->n_dims == 3 && whole->dims[0] > 0 && whole->dims[0] <= MOST_EXPERTS &&
	       is_sized(whole->dims[1]) && is_sized(whole->dims[2]) && module - whole->name >= 8 &&
	       !strncmp(module - 8, "experts.", 8);
}

const char *ws_layout_join_part(const struct ws_part *whole, size_t i, char *dst, size_t n)
{
	const char *module = module_of(whole->name), *rest = module + segment(module);
	const int before = (int)(module - whole->name);
	const bool stack = is_stack(whole, module);
	for (size_t k = 0; stack && k < N_STACKS; k++) {
		const size_t of = count_parts(&stacks[k]);
		if (is_segment(module, stacks[k].name) && i < of * (size_t)whole->dims[0])
			return snprintf(dst, n, "%.*s%zu.%s.weight", before, whole->name, i / of,
			                stacks[k].parts[i % of]) < (int)n ?
			               dst :
			               NULL;
	}
	for (size_t k = 0; !stack && k < N_FUSIONS && whole->n_dims < 3; k++)
		if (is_segment(module, fusions[k].name) && i < count_parts(&fusions[k]))
			return snprintf(dst, n, "%.*s%s%s", before, whole->name,
			                fusions[k].parts[i], rest) < (int)n ?
			               dst :
			               NULL;
	return NULL;
}

/* The index of the segment at p among the parts; -1: it is not a part. */
static int place_of(const struct fusion *f, const char *p)
{
	for (size_t k = 0; k < count_parts(f); k++)
		if (is_segment(p, f->parts[k]))
			return (int)k;
	return -1;
}

/* "P.experts.3.up_proj.weight": the stack is P.experts.gate_up_proj, with or without ".weight".
 * number: of the expert. */
static bool find_stack(const struct ws_layout *l, const char *name, const char *number,
                       struct ws_like_join *out)
{
	const char *leaf = number + segment(number) + 1;
	const long long expert = strspn(number, "0123456789") < 10 ? atoll(number) : MOST_EXPERTS;
	char whole[WS_NAME_MAX];
	for (size_t i = 0; i < 2 * N_STACKS; i++) {
		const struct fusion *f = &stacks[i / 2];
		const int k = place_of(f, leaf);
		if (k < 0 || strcmp(leaf + segment(leaf), ".weight") ||
		    snprintf(whole, sizeof whole, "%.*s%s%s", (int)(number - name), name, f->name,
		             i % 2 ? ".weight" : "") >= (int)sizeof whole)
			continue;
		const struct ws_part *p = ws_layout_find_part(l, whole);
		if (!p || !is_stack(p, module_of(p->name)) || expert >= p->dims[0])
			continue;
		*out = (struct ws_like_join){ p, (size_t)expert * count_parts(f) + (size_t)k,
			                      count_parts(f) * (size_t)p->dims[0] };
		return true;
	}
	return false;
}

bool ws_layout_find_join(const struct ws_layout *l, const char *name, struct ws_like_join *out)
{
	const char *module = module_of(name), *experts = strstr(name, "experts.");
	char whole[WS_NAME_MAX];
	if (!l->like || strlen(name) >= sizeof whole)
		return false;
	if (experts && strspn(experts + 8, "0123456789") &&
	    strspn(experts + 8, "0123456789") == segment(experts + 8) &&
	    experts[8 + segment(experts + 8)])
		return find_stack(l, name, experts + 8, out);
	for (size_t i = 0; i < N_FUSIONS; i++) {
		const int k = place_of(&fusions[i], module);
		if (k < 0 ||
		    snprintf(whole, sizeof whole, "%.*s%s%s", (int)(module - name), name,
		             fusions[i].name, module + segment(module)) >= (int)sizeof whole)
			continue;
		const struct ws_part *p = ws_layout_find_part(l, whole);
		if (!p || p->n_dims > 2)
			continue;
		*out = (struct ws_like_join){ p, (size_t)k, count_parts(&fusions[i]) };
		return true;
	}
	return false;
}
