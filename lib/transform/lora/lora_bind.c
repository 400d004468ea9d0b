/* SPDX-License-Identifier: Apache-2.0 */
/* lora_bind.c - checks each module of an adapter and binds it to tensors of the base.
 *
 *   MODULE                A [r, in], B [out, r]
 *   P.experts.E.PROJ      the same for one expert; a missing half is taken from
 *                         P.experts.shared.PROJ
 *   P.experts.PROJ        A [E or 1, r, in], B [E or 1, out, r]; PROJ also w1 (gate), w2 (down),
 *                         w3 (up)
 *   P.experts             PEFT's target_parameters: A [E*r, in] by experts, B [out, r*E], experts
 *                         fastest */
#include "lora_bind.h"

#include "name_index.h"
#include "suggest.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = WS_LORA_MAX_NAME + 64, MAX_EXPERTS = 1 << 20 };

static const char *plain_leaf(const char *leaf)
{
	return strcmp(leaf, "w1") == 0 ? "gate_proj" : strcmp(leaf, "w2") == 0 ? "down_proj" :
	       strcmp(leaf, "w3") == 0 ? "up_proj" : NULL;
}

/* Finds N, a number or "shared", in "a.experts.N.leaf"; *n: its length. NULL: no such name. */
static const char *expert_of(const char *name, size_t *n)
{
	static const char word[] = ".experts.";
	const char *p = strstr(name, word);
	if (!p)
		return NULL;
	p += sizeof word - 1;
	*n = strcspn(p, ".");
	bool number = *n > 0;
	for (size_t i = 0; i < *n; i++)
		number &= isdigit((unsigned char)p[i]) != 0;
	return p[*n] == '.' && (number || (*n == 6 && memcmp(p, "shared", 6) == 0)) ? p : NULL;
}

static bool is_shared(const char *name)
{
	size_t n;
	const char *at = expert_of(name, &n);
	return at && *at == 's';
}

/* ---- factors ---- */

static int check_factor(const struct ws_item *item, struct ws_err *err)
{
	const enum ws_dtype t = item->dtype;
	if (t != WS_DTYPE_BF16 && t != WS_DTYPE_F16 && t != WS_DTYPE_F32 && t != WS_DTYPE_F64)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter tensor '%s' is %s, which is no type of a factor",
		                  ws_quote(item->name).text, ws_dtype_safetensors(t));
	if ((item->n_dims != 2 && item->n_dims != 3) || item->bytes == 0)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter tensor '%s' has %u axes%s: a factor has two, or three "
		                  "over experts",
		                  ws_quote(item->name).text, item->n_dims,
		                  item->bytes ? "" : " and no element");
	return 0;
}

static int wrong_rank(const struct ws_lora_module *m, int64_t of_a, int64_t of_b, int64_t rank,
                      struct ws_err *err)
{
	if (of_a != of_b)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter module '%s': lora_A has rank %lld and lora_B has %lld",
		                  ws_quote(m->name).text, (long long)of_a, (long long)of_b);
	return ws_err_set(err, WS_EINPUT,
	                  "adapter module '%s' has rank %lld, but adapter_config.json says %lld",
	                  ws_quote(m->name).text, (long long)of_a, (long long)rank);
}

/* Does target_parameters name the module's own weight, so that its full name is looked up? */
static bool is_param(const struct ws_binder *b, const struct ws_lora_module *m, char name[MAX_NAME])
{
	snprintf(name, MAX_NAME, "%s.weight", m->name);
	return ws_lora_config_has_param(&b->adapter->config, name);
}

/* Makes a stack of two factors of two or three axes, as stored. */
static int make_stack(const struct ws_binder *b, const struct ws_lora_module *m,
                      const struct ws_item *A, const struct ws_item *B, struct ws_stack *s,
                      struct ws_err *err)
{
	const int64_t *a = A->dims + (A->n_dims - 2), *bb = B->dims + (B->n_dims - 2);
	const int64_t n_a = A->n_dims == 3 ? A->dims[0] : 1, n_b = B->n_dims == 3 ? B->dims[0] : 1;
	char name[MAX_NAME];
	int64_t rank;
	float scale;
	const bool param = is_param(b, m, name);
	if (ws_lora_config_find(&b->adapter->config, param ? name : m->name, &rank, &scale, err))
		return -1;
	if (a[0] != bb[1] || a[0] != rank)
		return wrong_rank(m, a[0], bb[1], rank, err);
	if (n_a != n_b && n_a != 1 && n_b != 1)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter module '%s': lora_A is of %lld experts and lora_B of "
		                  "%lld",
		                  ws_quote(m->name).text, (long long)n_a, (long long)n_b);
	*s = (struct ws_stack){
		.first = { .a = A, .b = B, .a_row = a[1], .a_col = 1, .b_row = rank, .b_col = 1,
		           .rows = bb[0], .cols = a[1], .rank = rank, .scale = scale },
		.a_step = n_a > 1 ? rank * a[1] : 0, .b_step = n_b > 1 ? bb[0] * rank : 0,
		.n = n_a > n_b ? n_a : n_b, .param = param, .embedding = m->embedding,
	};
	return 0;
}

/* ---- experts ---- */

/* head: length of "a.experts." in the name of m; the expert and the leaf follow it. */
static int place_experts(struct ws_binder *b, const struct ws_lora_module *m, int head,
                         const char *leaf, const struct ws_stack *s, struct ws_err *err)
{
	char name[MAX_NAME];
	const struct ws_lora_name where = { name, m->headless };
	int64_t e = 0;
	for (; e < MAX_EXPERTS; e++) {
		struct ws_stack one = *s;
		one.first.a_at += (uint64_t)(s->n > 1 && e < s->n ? e * s->a_step : 0);
		one.first.b_at += (uint64_t)(s->n > 1 && e < s->n ? e * s->b_step : 0);
		snprintf(name, sizeof name, "%.*s%lld.%s", head, m->name, (long long)e, leaf);
		const int rc = ws_lora_place_matrix(b, &where, &one, err);
		if (rc < 0)
			return rc;
		if (rc == 0)
			break;
	}
	if (e > 0 && s->n > 1 && e != s->n)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter module '%s' is of %lld experts, but the base has %lld",
		                  ws_quote(m->name).text, (long long)s->n, (long long)e);
	if (e > 0)
		return 1;
	snprintf(name, sizeof name, "%.*s%s", head, m->name, leaf);
	return ws_lora_place_stack(b, &where, s, err);
}

static int place_all_experts(struct ws_binder *b, const struct ws_lora_module *m, int head,
                             const char *leaf, const struct ws_stack *s, struct ws_err *err)
{
	const int rc = place_experts(b, m, head, leaf, s, err);
	if (rc || !plain_leaf(leaf))
		return rc;
	return place_experts(b, m, head, plain_leaf(leaf), s, err);
}

/* Places one matrix; for w1, w2 and w3 also tries the plain name. */
static int place_one(struct ws_binder *b, const struct ws_lora_module *m, const struct ws_stack *s,
                     struct ws_err *err)
{
	const int rc =
		ws_lora_place_matrix(b, &(struct ws_lora_name){ m->name, m->headless }, s, err);
	const char *dot = strrchr(m->name, '.');
	if (rc || !dot || !plain_leaf(dot + 1))
		return rc;
	char name[MAX_NAME];
	snprintf(name, sizeof name, "%.*s%s", (int)(dot + 1 - m->name), m->name,
	         plain_leaf(dot + 1));
	return ws_lora_place_matrix(b, &(struct ws_lora_name){ name, m->headless }, s, err);
}

/* ---- PEFT's target_parameters ---- */

/* Each parameter of a module has a pair of its own, and the pairs are nested: the first parameter's
 * is inside of all base_layer. The parameters' order is that of the model's class, which no file
 * has. So shapes and ranks must tell which pair is of which, in one way only. */
enum { MAX_PARAMS = 8 };

struct params {
	char names[MAX_PARAMS][MAX_NAME];
	int64_t dims[MAX_PARAMS][3];
	size_t n;
	const struct ws_lora_module *pairs; /* of one module, by depth */
	size_t n_pairs;
	bool fits[MAX_PARAMS][MAX_PARAMS];        /* a pair, and a parameter */
	size_t of[MAX_PARAMS], found[MAX_PARAMS]; /* of each pair: its parameter */
	unsigned ways;
};

static bool is_listed(const struct params *p, const char *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (strcmp(p->names[i], name) == 0)
			return true;
	return false;
}

/* Finds the parameters of the module that target_parameters names and that the base has. */
static void find_params(struct ws_binder *b, const struct ws_lora_module *m, struct params *p)
{
	const struct ws_lora_names *list = &b->adapter->config.params;
	p->n = 0;
	for (size_t i = 0; i < list->n && p->n < MAX_PARAMS; i++) {
		char *name = p->names[p->n];
		const char *dot = strrchr(list->list[i], '.');
		const struct ws_lora_name where = { name, m->headless };
		const int n = snprintf(name, MAX_NAME, "%s.%s", m->name,
		                       dot ? dot + 1 : list->list[i]);
		if (n >= MAX_NAME || is_listed(p, name) ||
		    !ws_lora_config_has_param(&b->adapter->config, name))
			continue;
		p->n += ws_lora_stack_dims(b, &where, p->dims[p->n]);
	}
}

/* Makes the stack of A and B for a parameter of these dims. 1: done; 0: they do not fit it; -1. */
static int make_param(struct ws_binder *b, const struct ws_lora_module *m, const char *name,
                      const int64_t dims[3], struct ws_stack *s, struct ws_err *err)
{
	const int64_t *A = m->a->dims, *B = m->b->dims, n = dims[0];
	int64_t rank;
	float scale;
	if (ws_lora_config_find(&b->adapter->config, name, &rank, &scale, err))
		return -1;
	if (m->a->n_dims != 2 || m->b->n_dims != 2 || n < 1 || A[0] % n || A[0] / n != rank ||
	    B[1] != A[0])
		return 0;
	*s = (struct ws_stack){
		.first = { .a = m->a,
		           .b = m->b,
		           .a_row = A[1],
		           .a_col = 1,
		           .b_row = B[1],
		           .b_col = n,
		           .rows = B[0],
		           .cols = A[1],
		           .rank = rank,
		           .scale = scale },
		.a_step = rank * A[1],
		.b_step = 1,
		.n = n,
		.axes_in_order = b->adapter->config.axes_in_order,
		.param = true,
	};
	return ws_lora_stack_fits(b, &(struct ws_lora_name){ name, m->headless }, s);
}

/* Counts the ways, two at most, to give the pairs from the i-th on a parameter each. */
static void match_params(struct params *p, size_t i, unsigned taken)
{
	if (i == p->n_pairs) {
		if (p->ways++ == 0)
			memcpy(p->found, p->of, sizeof p->found);
		return;
	}
	for (size_t k = 0; k < p->n && p->ways < 2; k++) {
		p->of[i] = k;
		if (p->fits[i][k] && !(taken >> k & 1))
			match_params(p, i + 1, taken | 1u << k);
	}
}

static int refuse_params(const struct params *p, struct ws_err *err)
{
	const struct ws_lora_module *m = &p->pairs[0];
	if (p->n != p->n_pairs)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter module '%s' has %zu pairs of factors, for %zu "
		                  "parameters of the base that target_parameters names",
		                  ws_quote(m->name).text, p->n_pairs, p->n);
	if (p->ways > 1) {
		ws_err_set(err, WS_EINPUT,
		           "adapter module '%s': which of the parameters '%s' and so on each of "
		           "its %zu pairs of factors changes is not known: by their shapes "
		           "several orders are possible",
		           ws_quote(m->name).text, ws_quote(p->names[0]).text, p->n_pairs);
		return ws_err_hint(
			err, "merge it with PEFT (merge_and_unload) and push what it saves");
	}
	return ws_err_set(err, WS_EINPUT,
	                  "adapter: '%s' [%lld, %lld] and '%s' [%lld, %lld] fit no parameter "
	                  "of '%s' at the rank that adapter_config.json says",
	                  ws_quote(m->a->name).text, (long long)m->a->dims[0],
	                  (long long)m->a->dims[1], ws_quote(m->b->name).text,
	                  (long long)m->b->dims[0], (long long)m->b->dims[1],
	                  ws_quote(m->name).text);
}

static int place_params(struct ws_binder *b, struct params *p, struct ws_err *err)
{
	struct ws_stack s;
	if (p->n != p->n_pairs)
		return refuse_params(p, err);
	for (size_t i = 0; i < p->n_pairs; i++)
		for (size_t k = 0; k < p->n; k++) {
			const int rc =
				make_param(b, &p->pairs[i], p->names[k], p->dims[k], &s, err);
			if (rc < 0)
				return -1;
			p->fits[i][k] = rc;
		}
	match_params(p, 0, 0);
	if (p->ways != 1)
		return refuse_params(p, err);
	for (size_t i = 0; i < p->n_pairs; i++) {
		const struct ws_lora_module *m = &p->pairs[i];
		const char *name = p->names[p->found[i]];
		if (make_param(b, m, name, p->dims[p->found[i]], &s, err) < 0 ||
		    ws_lora_place_stack(b, &(struct ws_lora_name){ name, m->headless }, &s,
		                        err) < 0)
			return -1;
	}
	return 0;
}

/* ---- modules ---- */

static int leave_over(struct ws_binder *b, const struct ws_item *item, struct ws_err *err)
{
	const struct ws_item **slot =
		item ? ws_list_add(b->arena, &b->left_over, sizeof *slot) : NULL;
	if (item && !slot)
		return ws_oom(err);
	if (item)
		*slot = item;
	return 0;
}

static int missing_half(const struct ws_lora_module *m, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "adapter module '%s' has '%s' and no lora_%c",
	                  ws_quote(m->name).text, ws_quote((m->a ? m->a : m->b)->name).text,
	                  m->a ? 'B' : 'A');
}

/* The module that all experts share, for an expert that lacks a half; NULL: none. */
static struct ws_lora_module *shared_with(const struct ws_binder *b, const struct ws_lora_module *m)
{
	char name[MAX_NAME];
	size_t n;
	const char *at = expert_of(m->name, &n);
	if (!at || is_shared(m->name))
		return NULL;
	snprintf(name, sizeof name, "%.*sshared%s", (int)(at - m->name), m->name, at + n);
	const struct ws_lora_module *found = ws_adapter_module(b->adapter, name);
	return found ? &b->adapter->modules[found - b->adapter->modules] : NULL;
}

/* PEFT leaves out what the config does not name. Stacks and shared factors are not PEFT's. */
static int check_named(const struct ws_binder *b, const struct ws_lora_module *m,
                       struct ws_err *err)
{
	char name[MAX_NAME];
	const char *field = is_param(b, m, name) ? NULL :
	                    ws_lora_config_omits(&b->adapter->config, m->name, b->adapter->tied);
	if (!field)
		return 0;
	ws_err_set(err, WS_EINPUT,
	           "adapter module '%s' has factors, which PEFT leaves out because of %s in "
	           "adapter_config.json",
	           ws_quote(m->name).text, field);
	return ws_err_hint(err, "make %s say what was trained", field);
}

static int place(struct ws_binder *b, const struct ws_lora_module *m, const struct ws_item *A,
                 const struct ws_item *B, struct ws_err *err)
{
	const bool flat = A->n_dims == 2 && B->n_dims == 2;
	struct ws_stack s;
	size_t n;
	if (m->depth)
		return 0;
	if (flat && !is_shared(m->name) && check_named(b, m, err))
		return -1;
	if (make_stack(b, m, A, B, &s, err))
		return -1;
	const char *expert = expert_of(m->name, &n), *leaf = strrchr(m->name, '.');
	if (is_shared(m->name))
		return place_all_experts(b, m, (int)(expert - m->name), expert + n + 1, &s, err);
	if (flat)
		return place_one(b, m, &s, err);
	if (expert || !leaf)
		return ws_err_set(err, WS_EINPUT,
		                  "adapter module '%s' has factors of three axes, but is not over "
		                  "experts",
		                  ws_quote(m->name).text);
	return place_all_experts(b, m, (int)(leaf + 1 - m->name), leaf + 1, &s, err);
}

static int bind_module(struct ws_binder *b, struct ws_lora_module *m, struct ws_err *err)
{
	const struct ws_item *A = m->a, *B = m->b;
	struct ws_lora_module *shared = A && B ? NULL : shared_with(b, m);
	if (shared && !A && (A = shared->a))
		shared->a_used = true;
	if (shared && !B && (B = shared->b))
		shared->b_used = true;
	if (!A || !B)
		return is_shared(m->name) ?
		               0 :
		               missing_half(m, err); /* bind_modules checks shared ones last */
	if (check_factor(A, err) || check_factor(B, err))
		return -1;
	const int rc = place(b, m, A, B, err);
	if (rc)
		return rc < 0 ? -1 : 0;
	return leave_over(b, m->a, err) ? -1 : leave_over(b, m->b, err);
}

/* Binds the n modules of one name: the pairs of its parameters, or one pair. */
static int bind_name(struct ws_binder *b, struct ws_lora_module *m, size_t n, struct ws_err *err)
{
	struct params *p = calloc(1, sizeof *p);
	if (!p)
		return ws_oom(err);
	find_params(b, m, p);
	int rc = 0;
	for (size_t i = 0; i < n && rc == 0; i++)
		if (!p->n)
			rc = bind_module(b, &m[i], err);
		else if (!m[i].a || !m[i].b)
			rc = missing_half(&m[i], err);
		else
			rc = check_factor(m[i].a, err) || check_factor(m[i].b, err) ? -1 : 0;
	if (rc == 0 && p->n) {
		p->pairs = m;
		p->n_pairs = n;
		rc = place_params(b, p, err);
	}
	free(p);
	/* Also after an error, which may come from comparisons that were not made. */
	return ws_lora_config_check_work(&b->adapter->config, err) ? -1 : rc;
}

static int bind_modules(struct ws_binder *b, struct ws_err *err)
{
	struct ws_adapter *a = b->adapter;
	for (size_t i = 0; i < a->n_modules; i++)
		a->modules[i].a_used = a->modules[i].b_used = false;
	for (size_t i = 0, n; i < a->n_modules; i += n) {
		for (n = 1; i + n < a->n_modules; n++)
			if (strcmp(a->modules[i].name, a->modules[i + n].name) != 0)
				break;
		if (bind_name(b, &a->modules[i], n, err))
			return -1;
	}
	for (size_t i = 0; i < a->n_modules; i++) {
		const struct ws_lora_module *m = &a->modules[i];
		if (is_shared(m->name) && !(m->a && m->b) && !(m->a ? m->a_used : m->b_used))
			return missing_half(m, err);
	}
	return 0;
}

static int check_adapter(const char **name, const struct ws_lora_tensor *t, struct ws_err *err)
{
	if (!**name)
		*name = t->adapter;
	if (strcmp(*name, t->adapter) == 0)
		return 0;
	return ws_err_set(err, WS_EINPUT,
	                  "adapter tensor '%s' is of another adapter than '%s', of which "
	                  "others are",
	                  ws_quote(t->item->name).text, ws_quote(*name).text);
}

static int bind_tensors(struct ws_binder *b, struct ws_err *err)
{
	const char *adapter = b->adapter->name;
	for (size_t i = 0; i < b->adapter->n_tensors; i++) {
		const struct ws_lora_tensor *t = &b->adapter->tensors[i];
		int rc = ws_lora_place_tensor(b, &(struct ws_lora_name){ t->name, t->headless },
		                              t->item, err);
		bool other = rc == 0 && t->other;
		if (other)
			rc = ws_lora_place_tensor(b,
			                          &(struct ws_lora_name){ t->other, t->headless },
			                          t->item, err);
		if (rc < 0 || (rc == 0 && leave_over(b, t->item, err)) ||
		    (rc > 0 && other && check_adapter(&adapter, t, err)))
			return -1;
	}
	return 0;
}

/* ---- the result ---- */

static int by_target(const void *x, const void *y)
{
	const struct ws_bound *a = x, *b = y;
	const int order = strcmp(a->target->name, b->target->name);
	return order ? order : (a->order > b->order) - (a->order < b->order);
}

static int collect(struct ws_binder *b, struct ws_bindings *out, struct ws_err *err)
{
	struct ws_bound *all = b->bound.items;
	const size_t n = b->bound.n;
	qsort(all, n, sizeof *all, by_target);
	struct ws_binding *items = ws_arena_alloc(b->arena, (n + 1) * sizeof *items);
	struct ws_delta *deltas = ws_arena_alloc(b->arena, (b->n_deltas + 1) * sizeof *deltas);
	if (!items || !deltas)
		return ws_oom(err);
	out->items = items;
	out->left_over = b->left_over.items;
	out->n_left_over = b->left_over.n;
	for (size_t i = 0; i < n; i++) {
		struct ws_binding *last = out->n ? &items[out->n - 1] : NULL;
		if (!last || strcmp(last->target, all[i].target->name) != 0) {
			last = &items[out->n++];
			*last = (struct ws_binding){ .target = all[i].target->name,
				                     .deltas = deltas };
		}
		if (all[i].replaced && last->replaced)
			return ws_err_set(
				err, WS_EINPUT,
				"adapter tensors '%s' and '%s' both take the place of '%s'",
				ws_quote(last->replaced->name).text,
				ws_quote(all[i].replaced->name).text, ws_quote(last->target).text);
		if (all[i].replaced) {
			last->replaced = all[i].replaced;
			continue;
		}
		*deltas++ = all[i].delta;
		last->n_deltas++;
	}
	return 0;
}

static const char *nearest(const struct ws_binder *b, const char *name)
{
	const size_t n = ws_catalog_count(b->base);
	const char **names = calloc(n + 1, sizeof *names);
	struct ws_suggest *s = NULL;
	const char *found = NULL;
	for (size_t i = 0; names && i < n; i++)
		names[i] = ws_catalog_item(b->base, i)->name;
	if (names && ws_suggest_make(names, n, &s, NULL) == 0)
		found = ws_suggest_nearest(s, name);
	ws_suggest_free(s);
	free(names);
	return found;
}

static int nothing_bound(const struct ws_binder *b, struct ws_err *err)
{
	const struct ws_adapter *a = b->adapter;
	char name[MAX_NAME];
	if (a->n_modules + a->n_tensors == 0)
		return ws_err_set(err, WS_EINPUT, "the adapter is empty");
	ws_err_set(err, WS_EINPUT,
	           "the adapter was made for another model: the base has none of its %zu "
	           "modules and %zu tensors",
	           a->n_modules, a->n_tensors);
	if (a->n_modules)
		snprintf(name, sizeof name, "%s.weight", a->modules[0].name);
	else
		snprintf(name, sizeof name, "%s", a->tensors[0].name);
	const char *near = nearest(b, name);
	const char *first = ws_catalog_count(b->base) ? ws_catalog_item(b->base, 0)->name : "";
	return ws_err_hint(err, "its first one is '%s', and %s of the base is '%s'",
	                   ws_quote(name).text, near ? "the nearest name" : "the first name",
	                   ws_quote(near ? near : first).text);
}

int ws_adapter_bind(struct ws_adapter *a, const struct ws_catalog *base,
                    const struct ws_layout *layout, ws_shape_fn *shape, void *ctx,
                    struct ws_bindings *out, struct ws_err *err)
{
	struct ws_arena *arena = calloc(1, sizeof *arena);
	struct ws_binder b = { .adapter = a,
		               .base = base,
		               .layout = layout,
		               .shape = shape,
		               .ctx = ctx,
		               .arena = arena };
	*out = (struct ws_bindings){ .priv = arena };
	int rc = arena ? 0 : ws_oom(err);
	if (rc == 0 && (bind_modules(&b, err) || bind_tensors(&b, err)))
		rc = -1;
	if (rc == 0)
		rc = b.bound.n ? collect(&b, out, err) : nothing_bound(&b, err);
	if (rc == 0)
		rc = ws_lora_check_saved(&b, err);
	if (rc == 0) {
		ws_lora_count_lacking(&b, out);
		rc = ws_lora_config_check_work(&a->config, err);
	}
	if (rc && a->dir)
		ws_err_wrap(err, "%s", a->dir);
	if (rc)
		ws_bindings_free(out);
	return rc;
}

void ws_bindings_free(struct ws_bindings *b)
{
	if (b->priv)
		ws_arena_free(b->priv);
	free(b->priv);
	*b = (struct ws_bindings){ .n = 0 };
}

const struct ws_binding *ws_bindings_find(const struct ws_bindings *b, const char *target)
{
	size_t low = 0, high = b->n;
	while (low < high) {
		const size_t middle = low + (high - low) / 2;
		const int order = strcmp(target, b->items[middle].target);
		if (order == 0)
			return &b->items[middle];
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}
