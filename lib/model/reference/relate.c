/* SPDX-License-Identifier: Apache-2.0 */
/* relate.c - finds the relation: collects the kinds of both sides, proposes for each pair of them
 * the segments in which they differ, and takes first what explains most kinds. */
#include "relate.h"

#include "arena.h"
#include "hash.h"
#include "match_layout.h"
#include "name_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	NAME = 1200,
	MOST_KINDS = 512, /* of one side; real models have less than 200 */
	MOST_SWAPS = 1024,
	MOST_SEGMENTS = 32,
	MOST_TRIES = 1 << 21 /* of a swap at a place of a kind; real models need a hundredth */
};

struct kind {
	const char *name; /* with '*' for each number */
	const char *real; /* of the reference: the kind that this stands for */
	const char *one;  /* the name of one of its tensors */
	size_t first, n;  /* tensors of it, the first one */
	bool done;        /* source: it has a name; reference: something is sent for it */
	size_t swap;      /* source: by this one; SIZE_MAX: none */
};

struct kinds {
	struct kind *v;
	size_t n;
	size_t slots[4 * MOST_KINDS]; /* index + 1; 0: free */
};

struct swap {
	const char *from, *to;
	size_t kinds, tensors; /* that it explains now */
};

struct relating {
	const struct ws_source *source;
	const struct ws_layout *known, *like;
	const char **names; /* by tensor of the source, as the family renames them */
	size_t *kind_of;    /* by tensor of the source; SIZE_MAX: none */
	struct kinds ours, theirs;
	struct swap swaps[MOST_SWAPS];
	size_t n_swaps;
	struct ws_list chosen; /* struct ws_related_rule */
	size_t unwrapped;      /* names that had PEFT's wrapper */
	size_t tries;
	struct ws_related *out;
	struct ws_err *err;
};

/* ---- names and kinds ------------------------------------------------------------------------- */

static size_t segment(const char *p)
{
	return strcspn(p, ".");
}

static bool is_number(const char *p, size_t n)
{
	return n && strspn(p, "0123456789") == n;
}

static bool has_mark(const char *p, size_t n)
{
	return n == 1 && *p == '*';
}

/* "model.layers.*.x" of "model.layers.7.x". False: too long. */
static bool kind_text(const char *name, char *dst)
{
	size_t used = 0;
	for (const char *p = name;;) {
		const size_t n = segment(p);
		const bool number = is_number(p, n);
		if (used + n + 2 > NAME)
			return false;
		memcpy(dst + used, number ? "*" : p, number ? 1 : n);
		used += number ? 1 : n;
		dst[used] = p[n];
		if (!p[n])
			return true;
		used++;
		p += n + 1;
	}
}

/* Writes the numbers of the name, in their order, in place of the marks of the text. */
static bool fill_numbers(const char *text, const char *name, char *dst)
{
	size_t used = 0;
	for (const char *p = text;;) {
		size_t n = segment(p);
		const char *at = p;
		if (has_mark(p, n)) {
			while (*name && !is_number(name, segment(name)))
				name += segment(name) + (name[segment(name)] == '.');
			if (!*name)
				return false;
			at = name;
			n = segment(name);
			name += n + (name[n] == '.');
		}
		if (used + n + 2 > NAME)
			return false;
		memcpy(dst + used, at, n);
		used += n;
		p += segment(p);
		dst[used] = *p;
		if (!*p)
			return true;
		used++;
		p++;
	}
}

static struct kind *find_kind(struct kinds *k, const char *name, size_t **slot)
{
	size_t at = ws_hash64(name, strlen(name)) % (4 * MOST_KINDS);
	for (; k->slots[at]; at = (at + 1) % (4 * MOST_KINDS))
		if (!strcmp(k->v[k->slots[at] - 1].name, name))
			return &k->v[k->slots[at] - 1];
	if (slot)
		*slot = &k->slots[at];
	return NULL;
}

/* NULL: out of memory, or too many (*full). */
static struct kind *get_kind(struct relating *g, struct kinds *k, const char *name, bool *full)
{
	size_t *slot;
	struct kind *v = find_kind(k, name, &slot);
	if (v)
		return v;
	*full = k->n == MOST_KINDS;
	if (*full)
		return NULL;
	if (!k->v)
		k->v = calloc(MOST_KINDS, sizeof *k->v);
	char *copy = ws_arena_text(g->out->arena, name, strlen(name));
	if (!k->v || !copy)
		return NULL;
	v = &k->v[k->n++];
	*v = (struct kind){ .name = copy, .real = copy, .swap = SIZE_MAX };
	*slot = k->n;
	return v;
}

/* ---- what fits ------------------------------------------------------------------------------- */

static bool knows(const struct ws_layout *l, const char *name)
{
	struct ws_like_join j;
	return l && (ws_layout_find_part(l, name) || ws_layout_find_param(l, name) ||
	             ws_layout_find_alias(l, name, 0) || ws_layout_skips(l, name) ||
	             ws_layout_find_join(l, name, &j));
}

/* May this tensor have that name at the reference, by its shape? */
static bool fits(const struct relating *g, size_t tensor, const char *name)
{
	const struct ws_tensor *t = ws_source_tensor(g->source, tensor);
	const struct ws_part *p = ws_layout_find_part(g->like, name);
	const struct ws_match_at at = { .layout = g->like, .tp = 1 };
	struct ws_layout_match one;
	bool known;
	struct ws_like_join j;
	if (p && p->n_dims == t->n_dims && !memcmp(p->dims, t->dims, t->n_dims * sizeof *t->dims))
		return true;
	if (ws_layout_find_join(g->like, name, &j))
		return ws_join_fits(j.whole, j.n_parts, t);
	return ws_match_layouts(g->source, t, name, &at, &one, 1, &known) > 0;
}

/* ---- collecting ------------------------------------------------------------------------------ */

/* The name without PEFT's wrapper of a layer that has an adapter. False: it has none. */
static bool unwrap(const char *name, char *dst)
{
	static const char wrapper[] = ".base_layer.";
	const char *at = strstr(name, wrapper);
	return at && snprintf(dst, NAME, "%.*s.%s", (int)(at - name), name,
	                      at + sizeof wrapper - 1) < NAME;
}

static const char *renamed(struct relating *g, const struct ws_family *family, const char *name)
{
	char text[4097], inner[NAME];
	if (family && ws_family_rename(family, name, text, sizeof text) && strcmp(text, name))
		name = ws_arena_text(g->out->arena, text, strlen(text));
	if (!name || !unwrap(name, inner))
		return name;
	g->unwrapped++;
	return ws_arena_text(g->out->arena, inner, strlen(inner));
}

/* The kinds of the names that nothing explains yet. 1: too many of them to relate. */
static int collect_ours(struct relating *g, const struct ws_family *family)
{
	char text[NAME];
	bool full = false;
	for (size_t i = 0; i < ws_source_count(g->source); i++) {
		g->names[i] = renamed(g, family, ws_source_tensor(g->source, i)->name);
		g->kind_of[i] = SIZE_MAX;
		if (!g->names[i])
			return ws_oom(g->err);
		if (knows(g->like, g->names[i]) || knows(g->known, g->names[i]) ||
		    !kind_text(g->names[i], text))
			continue;
		struct kind *k = get_kind(g, &g->ours, text, &full);
		if (!k)
			return full ? 1 : ws_oom(g->err);
		if (!k->n++) {
			k->first = i;
			k->one = g->names[i];
		}
		g->kind_of[i] = (size_t)(k - g->ours.v);
	}
	return 0;
}

static int add_theirs(struct relating *g, const char *name, size_t n)
{
	char text[NAME];
	bool full = false;
	if (!kind_text(name, text))
		return 0;
	struct kind *k = get_kind(g, &g->theirs, text, &full);
	if (!k)
		return full ? 1 : ws_oom(g->err);
	if (!k->n)
		k->one = ws_arena_text(g->out->arena, name, strlen(name));
	k->n += n;
	return k->one ? 0 : ws_oom(g->err);
}

/* What transformers calls otherwise than the checkpoints do, and what other programs do. Both are
 * the same tensor: the experts of Mixtral and Granite, routers, and sinks of the attention. */
static const char *const words[][2] = {
	{ ".w1.", ".gate_proj." },
	{ ".w2.", ".down_proj." },
	{ ".w3.", ".up_proj." },
	{ ".input_linear.weight", ".experts.gate_up_proj" },
	{ ".output_linear.weight", ".experts.down_proj" },
	{ ".router.layer.weight", ".router.weight" },
	{ ".block_sparse_moe.gate.weight", ".block_sparse_moe.router.weight" },
	{ ".attention_sink_bias", ".sinks" },
	{ ".mlp.moe_statics.", ".mlp.gate.moe_statics." },
};
enum { N_WORDS = sizeof words / sizeof *words };

static int add_synonym(struct relating *g, const struct kind *k)
{
	char text[NAME];
	bool full = false;
	for (size_t i = 0; i < 2 * N_WORDS; i++) {
		const char *from = words[i / 2][i % 2], *to = words[i / 2][1 - i % 2];
		const char *at = from[1] != 'w' && to[1] != 'w' ? strstr(k->name, from) :
		                 strstr(k->name, "experts.")    ? strstr(k->name, from) :
		                                                  NULL;
		if (!at ||
		    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - k->name), k->name, to,
		             at + strlen(from)) >= NAME ||
		    find_kind(&g->theirs, text, NULL))
			continue;
		struct kind *other = get_kind(g, &g->theirs, text, &full);
		if (!other)
			return full ? 1 : ws_oom(g->err);
		other->real = k->name;
		other->one = k->one;
		other->n = k->n;
	}
	return 0;
}

/* The parts that a source may have instead of this tensor. All experts are of one kind. */
static int add_parts(struct relating *g, const struct ws_part *whole)
{
	char part[NAME];
	struct ws_like_join j;
	int rc = 0;
	for (size_t k = 0; !rc && ws_layout_join_part(whole, k, part, sizeof part); k++) {
		if (!ws_layout_find_join(g->like, part, &j))
			return 0;
		const size_t experts = whole->n_dims == 3 ? (size_t)whole->dims[0] : 1;
		if (k == j.n_parts / experts)
			return 0;
		rc = add_theirs(g, part, experts);
	}
	return rc;
}

static int collect_theirs(struct relating *g)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < ws_layout_param_count(g->like); i++) {
		const struct ws_param *q = ws_layout_param(g->like, i);
		if (q->n_parts > 1)
			rc = add_theirs(g, q->name, 1);
	}
	for (size_t i = 0; !rc && i < ws_layout_part_count(g->like); i++) {
		rc = add_theirs(g, ws_layout_part(g->like, i)->name, 1);
		rc = rc ? rc : add_parts(g, ws_layout_part(g->like, i));
	}
	const size_t n = g->theirs.n;
	for (size_t i = 0; !rc && i < n; i++)
		rc = add_synonym(g, &g->theirs.v[i]);
	return rc;
}

/* Kinds of the reference that the source has under their own names are not free. */
static void mark_sent(struct relating *g)
{
	char text[NAME];
	for (size_t i = 0; i < ws_source_count(g->source); i++) {
		struct kind *k = g->kind_of[i] == SIZE_MAX && kind_text(g->names[i], text) ?
		                         find_kind(&g->theirs, text, NULL) :
		                         NULL;
		if (k)
			k->done = true;
	}
}

static bool is_free(struct relating *g, const struct kind *k)
{
	if (k->real == k->name)
		return !k->done;
	const struct kind *real = find_kind(&g->theirs, k->real, NULL);
	return real && !real->done;
}

static void take(struct relating *g, struct kind *k)
{
	struct kind *real = find_kind(&g->theirs, k->real, NULL);
	k->done = true;
	if (real)
		real->done = true;
}

/* ---- segments -------------------------------------------------------------------------------- */

struct segments {
	const char *at[MOST_SEGMENTS];
	size_t n[MOST_SEGMENTS], count;
};

static struct segments cut(const char *text)
{
	struct segments s = { .count = 0 };
	for (const char *p = text; *p && s.count < MOST_SEGMENTS; p += p[segment(p)] == '.') {
		s.at[s.count] = p;
		s.n[s.count++] = segment(p);
		p += segment(p);
	}
	return s;
}

static bool same(const struct segments *a, size_t i, const struct segments *b, size_t k)
{
	return a->n[i] == b->n[k] && !memcmp(a->at[i], b->at[k], a->n[i]);
}

static size_t count_marks(const struct segments *s, size_t first, size_t end)
{
	size_t n = 0;
	for (size_t i = first; i < end; i++)
		n += has_mark(s->at[i], s->n[i]);
	return n;
}

/* Segments that say nothing of which module they belong to. */
static bool is_suffix(const struct segments *s, size_t i)
{
	static const char *const plain[] = { "weight", "bias", "scale", "weight_scale",
		                             "weight_scale_inv" };
	for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
		if (s->n[i] == strlen(plain[k]) && !memcmp(s->at[i], plain[k], s->n[i]))
			return true;
	return false;
}

/* Of numbers that stand behind other words than before, more than one may have changed places. */
static bool keeps_numbers(const char *a, const char *b)
{
	const struct segments x = cut(a), y = cut(b);
	size_t i = 0, k = 0, other = 0;
	for (;;) {
		while (i < x.count && !has_mark(x.at[i], x.n[i]))
			i++;
		while (k < y.count && !has_mark(y.at[k], y.n[k]))
			k++;
		if (i == x.count || k == y.count)
			return i == x.count && k == y.count && other < 2;
		other += !i || !k || !same(&x, i - 1, &y, k - 1);
		i++;
		k++;
	}
}

/* The same segments in another order. */
static bool permuted(const struct segments *a, size_t a_end, const struct segments *b, size_t b_end,
                     size_t first)
{
	bool used[MOST_SEGMENTS] = { false };
	if (a_end != b_end || a_end == first)
		return false;
	for (size_t i = first; i < a_end; i++) {
		size_t k = first;
		while (k < b_end && (used[k] || !same(a, i, b, k)))
			k++;
		if (k == b_end)
			return false;
		used[k] = true;
	}
	return true;
}

static const char *text_of(struct relating *g, const struct segments *s, size_t first, size_t end)
{
	if (first == end)
		return "";
	const char *at = s->at[first], *last = s->at[end - 1] + s->n[end - 1];
	return ws_arena_text(g->out->arena, at, (size_t)(last - at));
}

static int add_swap(struct relating *g, const char *from, const char *to)
{
	if (!from || !to)
		return ws_oom(g->err);
	for (size_t i = 0; i < g->n_swaps; i++)
		if (!strcmp(g->swaps[i].from, from) && !strcmp(g->swaps[i].to, to))
			return 0;
	if (g->n_swaps < MOST_SWAPS)
		g->swaps[g->n_swaps++] = (struct swap){ from, to, 0, 0 };
	return 0;
}

/* The segments in which two kinds differ, if the rest of them says that they may be one. */
static int propose(struct relating *g, const struct kind *a, const struct kind *b)
{
	const struct segments x = cut(a->name), y = cut(b->name);
	size_t first = 0, i = x.count, k = y.count;
	while (first < i && first < k && same(&x, first, &y, first))
		first++;
	while (i > first && k > first && same(&x, i - 1, &y, k - 1))
		i--, k--;
	size_t kept = first == x.count ? first : x.count - i;
	if (kept && is_suffix(&x, x.count - 1))
		kept--;
	if (count_marks(&x, first, i) != count_marks(&y, first, k) ||
	    !keeps_numbers(a->name, b->name) || (!kept && !permuted(&x, i, &y, k, first)))
		return 0;
	return add_swap(g, text_of(g, &x, first, i), text_of(g, &y, first, k));
}

static int propose_all(struct relating *g)
{
	for (size_t i = 0; i < g->ours.n; i++)
		for (size_t k = 0; k < g->theirs.n; k++)
			if (is_free(g, &g->theirs.v[k]) &&
			    propose(g, &g->ours.v[i], &g->theirs.v[k]))
				return -1;
	return 0;
}

/* ---- trying ---------------------------------------------------------------------------------- */

static bool starts_segment(const char *text, const char *at)
{
	return at == text || at[-1] == '.';
}

/* Replaces the segments at `at`. */
static bool replace(const char *text, const char *at, const struct swap *s, char *dst)
{
	const size_t skip = strlen(s->from);
	const char *rest = at + skip;
	rest += *rest == '.' && (skip == 0 || *s->to == 0) && skip;
	const char *dot = *s->to && !skip ? "." : "";
	const int n = snprintf(dst, NAME, "%.*s%s%s%s", (int)(at - text), text, s->to, dot, rest);
	return n > 0 && n < NAME;
}

/* Where `from` stands next at segments of its own. "": every place between segments. */
static const char *next_place(const char *text, const char *at, const char *from)
{
	const size_t n = strlen(from);
	for (; *at; at++)
		if (starts_segment(text, at) &&
		    (!n || (!strncmp(at, from, n) && (at[n] == '.' || !at[n]))))
			return at;
	return NULL;
}

/* The only free kind of the reference that the swap makes of this one; NULL: none, or several. */
static struct kind *swapped(struct relating *g, const struct kind *k, const struct swap *s)
{
	struct kind *found = NULL;
	char text[NAME], name[NAME];
	for (const char *at = k->name;
	     g->tries < MOST_TRIES && (at = next_place(k->name, at, s->from)); at++) {
		g->tries++;
		struct kind *to =
			replace(k->name, at, s, text) ? find_kind(&g->theirs, text, NULL) : NULL;
		if (!to || to == found || !is_free(g, to) || !keeps_numbers(k->name, to->name) ||
		    !fill_numbers(to->real, k->one, name) || !fits(g, k->first, name))
			continue;
		if (found)
			return NULL;
		found = to;
	}
	return found;
}

static void measure(struct relating *g, struct swap *s)
{
	s->kinds = s->tensors = 0;
	for (size_t i = 0; i < g->ours.n; i++) {
		const struct kind *k = &g->ours.v[i];
		const struct kind *to = k->swap == SIZE_MAX ? swapped(g, k, s) : NULL;
		if (!to || to->n < k->n) /* one of several senders has a part */
			continue;
		s->kinds++;
		s->tensors += k->n;
	}
}

/* A name that is misspelled once is no spelling. Only segments in front of a name may be those of
 * a single tensor, beside other rules. */
static bool is_spelling(const struct relating *g, const struct swap *s)
{
	if (s->kinds > 1 || s->tensors > 1 || (s->kinds && !*s->from && !*s->to)) /* of words */
		return true;
	return s->kinds && g->chosen.n && (!*s->from || !*s->to);
}

static struct swap *find_best(struct relating *g)
{
	struct swap *best = NULL;
	for (size_t i = 0; i < g->n_swaps; i++) {
		struct swap *s = &g->swaps[i];
		measure(g, s);
		if (!is_spelling(g, s))
			continue;
		if (!best || s->kinds > best->kinds ||
		    (s->kinds == best->kinds && s->tensors > best->tensors))
			best = s;
	}
	return best;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static void say_rule(const struct relating *g, const struct kind *k, const struct kind *to,
                     char *dst, size_t n)
{
	(void)g;
	size_t used = (size_t)snprintf(dst, n, "rename ");
	const char *sides[2] = { k->name, to->real };
	for (int side = 0; side < 2; side++) {
		char var = 'a';
		for (const char *p = sides[side]; *p && used + 8 < n; p++)
			if (*p == '*')
				used += (size_t)snprintf(dst + used, n - used, "{%c}", var++);
			else
				dst[used++] = *p;
		used += (size_t)snprintf(dst + used, n - used, "%s", side ? "" : " -> ");
	}
}

static int refuse_several(struct relating *g, const struct kind *k, const struct kind *a,
                          const struct kind *b)
{
	char one[NAME], other[NAME];
	say_rule(g, k, a, one, sizeof one);
	say_rule(g, k, b, other, sizeof other);
	ws_err_set(g->err, WS_EINPUT,
	           "names like %.200s fit the reference in several ways, as by "
	           "\"%.200s\" or \"%.200s\"",
	           k->name, one, other);
	return ws_err_hint(g->err, "give the right rules in a {map} FILE (wsync-map(5))");
}

/* Would another swap explain the same kinds by other names? */
static int check_only(struct relating *g, const struct swap *best)
{
	for (size_t i = 0; i < g->n_swaps; i++) {
		const struct swap *s = &g->swaps[i];
		const struct kind *k = NULL, *to = NULL, *other = NULL;
		size_t n = 0, alike = 0;
		for (size_t j = 0; s != best && j < g->ours.n; j++) {
			if (g->ours.v[j].swap != SIZE_MAX)
				continue;
			const struct kind *a = swapped(g, &g->ours.v[j], best);
			if (!a || a->n < g->ours.v[j].n)
				continue;
			const struct kind *b = swapped(g, &g->ours.v[j], s);
			n++;
			if (!b || b->n < g->ours.v[j].n || b->real == a->real)
				continue;
			alike++;
			k = &g->ours.v[j];
			to = a;
			other = b;
		}
		if (n && alike == n)
			return refuse_several(g, k, to, other);
	}
	return 0;
}

/* Gives every kind that the swap explains, whole or not, its name. */
static int apply(struct relating *g, struct swap *s)
{
	struct ws_related_rule *rule =
		ws_list_add(g->out->arena, &g->chosen, sizeof(struct ws_related_rule));
	struct kind *to[MOST_KINDS];
	if (!rule)
		return ws_oom(g->err);
	*rule = (struct ws_related_rule){ s->from, s->to, 0 };
	for (size_t i = 0; i < g->ours.n; i++)
		to[i] = g->ours.v[i].swap == SIZE_MAX ? swapped(g, &g->ours.v[i], s) : NULL;
	for (size_t i = 0; i < g->ours.n; i++) {
		struct kind *k = &g->ours.v[i];
		if (!to[i] || !is_free(g, to[i]))
			continue;
		k->swap = g->chosen.n - 1;
		k->real = to[i]->real;
		rule->names += k->n;
		take(g, to[i]);
	}
	return 0;
}

static int refuse_rivals(struct relating *g, const struct kind *k, const struct kind *rival,
                         const struct kind *to)
{
	char one[NAME], other[NAME];
	say_rule(g, k, to, one, sizeof one);
	say_rule(g, rival, to, other, sizeof other);
	ws_err_set(g->err, WS_EINPUT,
	           "several tensors fit %.200s of the reference, as by \"%.200s\" "
	           "or \"%.200s\"",
	           to->real, one, other);
	return ws_err_hint(g->err, "give the right rules in a {map} FILE (wsync-map(5)), or leave "
	                           "the others out of the source");
}

/* Another kind of the source that some swap makes this one of the reference. */
static const struct kind *find_rival(struct relating *g, const struct kind *of,
                                     const struct kind *to)
{
	for (size_t i = 0; i < g->n_swaps; i++)
		for (size_t j = 0; j < g->ours.n; j++) {
			const struct kind *k = &g->ours.v[j];
			const struct kind *also = k == of || k->swap != SIZE_MAX || k->n != of->n ?
			                                  NULL :
			                                  swapped(g, k, &g->swaps[i]);
			if (also && also->real == to->real)
				return k;
		}
	return NULL;
}

/* Would other kinds of the source be the same ones of the reference, by another swap? */
static int check_rivals(struct relating *g, const struct swap *best)
{
	const struct kind *k = NULL, *to = NULL, *rival = NULL;
	for (size_t j = 0; j < g->ours.n; j++) {
		const struct kind *a =
			g->ours.v[j].swap == SIZE_MAX ? swapped(g, &g->ours.v[j], best) : NULL;
		if (!a)
			continue;
		rival = find_rival(g, &g->ours.v[j], a);
		if (!rival)
			return 0;
		k = &g->ours.v[j];
		to = a;
	}
	return rival ? refuse_rivals(g, k, rival, to) : 0;
}

static int choose(struct relating *g)
{
	for (;;) {
		struct swap *best = find_best(g);
		if (!best)
			return 0;
		if (check_only(g, best) || check_rivals(g, best) || apply(g, best))
			return -1;
	}
}

/* ---- the result ------------------------------------------------------------------------------ */

static int write_names(struct relating *g)
{
	char name[NAME];
	for (size_t i = 0; i < ws_source_count(g->source); i++) {
		const struct kind *k = g->kind_of[i] == SIZE_MAX ? NULL : &g->ours.v[g->kind_of[i]];
		if (!k || k->swap == SIZE_MAX || !fill_numbers(k->real, g->names[i], name))
			continue;
		g->names[i] = ws_arena_text(g->out->arena, name, strlen(name));
		if (!g->names[i])
			return ws_oom(g->err);
	}
	return 0;
}

static int find_rules(struct relating *g)
{
	const int rc = collect_theirs(g);
	if (rc)
		return rc < 0 ? -1 : 0;
	mark_sent(g);
	return propose_all(g) || choose(g) || write_names(g) ? -1 : 0;
}

static int relate(struct relating *g, const struct ws_family *family)
{
	const int rc = collect_ours(g, family);
	if (rc)
		return rc < 0 ? -1 : 0;
	if (g->unwrapped) {
		struct ws_related_rule *r =
			ws_list_add(g->out->arena, &g->chosen, sizeof(struct ws_related_rule));
		if (!r)
			return ws_oom(g->err);
		*r = (struct ws_related_rule){ "base_layer", "", g->unwrapped };
	}
	if (g->ours.n && find_rules(g))
		return -1;
	g->out->rules = g->chosen.items;
	g->out->n_rules = g->chosen.n;
	return 0;
}

int ws_relate_source(const struct ws_source *s, const struct ws_family *family,
                     const struct ws_layout *known, const struct ws_layout *like,
                     struct ws_related *out, struct ws_err *err)
{
	const size_t n = ws_source_count(s);
	*out = (struct ws_related){ .arena = calloc(1, sizeof *out->arena) };
	struct relating *g = calloc(1, sizeof *g);
	const char **names = calloc(n + 1, sizeof *names);
	size_t *kind_of = calloc(n + 1, sizeof *kind_of);
	int rc = -1;
	if (g && names && kind_of && out->arena) {
		*g = (struct relating){ .source = s,
			                .known = known,
			                .like = like,
			                .names = names,
			                .kind_of = kind_of,
			                .out = out,
			                .err = err };
		rc = relate(g, family);
	} else {
		ws_oom(err);
	}
	if (g) {
		free(g->ours.v);
		free(g->theirs.v);
	}
	free(kind_of);
	free(g);
	if (rc == 0 && out->n_rules) {
		out->names = names;
		return 0;
	}
	free(names);
	ws_related_free(out);
	return rc;
}

void ws_related_free(struct ws_related *r)
{
	free(r->names);
	if (r->arena)
		ws_arena_free(r->arena);
	free(r->arena);
	*r = (struct ws_related){ .n_rules = 0 };
}
