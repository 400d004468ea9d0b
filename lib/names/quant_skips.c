/* SPDX-License-Identifier: Apache-2.0 */
/* quant_skips.c - finds the modules that a quantization_config leaves unquantized.
 *
 * Servers match the entries in different ways, which change with the release: one function below
 * for each way. Servers match the name of the module that they build, which fuses several of the
 * checkpoint (qkv_proj). tests/peers/skip_rules.py calls the functions of the servers themselves,
 * and tests/unit/skip_rules.h has their answers.
 *
 * Lists of users, and of servers of unknown family, match whole segments: "mlp.gate" does not match
 * "mlp.gate_proj". */
#include "skip_index.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the index of a list --------------------------------------------------------------------- */

/* Lists have thousands of names, and models have 100,000 modules: names are found by bisection.
 * Only entries with stars are tried one after the other, so their number is limited. */
struct piece {
	const char *at;
	size_t n;
};

struct pieces { /* sorted */
	struct piece *items;
	size_t n;
};

/* One "experts" within an entry. */
struct place {
	const char *front; /* "" or "model.", before the entry */
	const char *entry;
	size_t at;
};

struct places { /* sorted by the text before it, from its end */
	struct place *items;
	size_t n;
};

struct ws_skip_index {
	struct pieces listed; /* all entries */
	struct pieces normal; /* without "model." in front */
	struct pieces paths;  /* and without dots at the end; empty ones are in `all` only */
	bool all;             /* an entry that is in every path */
	struct places experts, normal_experts;
	struct pieces plain;  /* those without stars, and without ".weight" at the end */
	struct pieces globs;  /* those with stars, not sorted */
	atomic_uint_fast64_t spent; /* comparisons */
	uint64_t most;        /* with more of them, answers are wrong */
};

enum {
	COMPARED_MOST = 1 << 30,
	MOST_OF_A_NAME = 1024, /* longer ones are in no list */
	MOST_EXPERTS = 4       /* this word in an entry; a module's name has it once or twice */
};

static int compare_pieces(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	const int c = memcmp(x->at, y->at, x->n < y->n ? x->n : y->n);
	return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* What of an entry is matched by segments; n 0: nothing. */
static struct piece find_piece(const char *entry)
{
	static const char leaf[] = ".weight";
	size_t n = strlen(entry);
	if (strncmp(entry, "re:", 3) == 0)
		return (struct piece){ entry, 0 };
	if (n > strlen(leaf) && strcmp(entry + n - strlen(leaf), leaf) == 0)
		n -= strlen(leaf);
	return (struct piece){ entry, n };
}

void ws_skip_index_free(struct ws_skip_index *x)
{
	if (!x)
		return;
	free(x->listed.items);
	free(x->normal.items);
	free(x->paths.items);
	free(x->experts.items);
	free(x->normal_experts.items);
	free(x->plain.items);
	free(x->globs.items);
	free(x);
}

static const char word_experts[] = "experts";

static const char *without_model(const char *name)
{
	return strncmp(name, "model.", 6) ? name : name + 6;
}

/* The i-th character before the place, from its end; -1: none. */
static int before(const struct place *p, size_t i)
{
	if (i < p->at)
		return (unsigned char)p->entry[p->at - 1 - i];
	const size_t n = strlen(p->front);
	i -= p->at;
	return i < n ? (unsigned char)p->front[n - 1 - i] : -1;
}

static int compare_places(const void *a, const void *b)
{
	for (size_t i = 0; i < MOST_OF_A_NAME; i++) {
		const int x = before(a, i), y = before(b, i);
		if (x != y || x < 0)
			return (x > y) - (x < y);
	}
	return 0;
}

static size_t count_experts(const char *entry)
{
	size_t n = 0;
	while ((entry = strstr(entry, word_experts))) {
		entry++;
		n++;
	}
	return n;
}

static void add_experts(struct places *l, const char *front, const char *entry)
{
	for (const char *p = entry; (p = strstr(p, word_experts)); p++)
		l->items[l->n++] = (struct place){ front, entry, (size_t)(p - entry) };
}

static void add_entry(struct ws_skip_index *x, const char *entry)
{
	const struct piece p = find_piece(entry);
	const char *base = without_model(entry);
	size_t n = strlen(base);
	x->listed.items[x->listed.n++] = (struct piece){ entry, strlen(entry) };
	x->normal.items[x->normal.n++] = (struct piece){ base, n };
	while (n && base[n - 1] == '.')
		n--;
	if (n)
		x->paths.items[x->paths.n++] = (struct piece){ base, n };
	x->all |= !n;
	add_experts(&x->experts, "", entry);
	add_experts(&x->normal_experts, "model.", base);
	if (p.n && memchr(p.at, '*', p.n))
		x->globs.items[x->globs.n++] = p;
	else if (p.n)
		x->plain.items[x->plain.n++] = p;
}

static bool make_lists(struct ws_skip_index *x, size_t n, size_t n_experts)
{
	struct pieces *const lists[] = { &x->listed, &x->normal, &x->paths, &x->plain, &x->globs };
	bool whole = true;
	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
		whole &= (lists[i]->items = calloc(n + 1, sizeof *lists[i]->items)) != NULL;
	x->experts.items = calloc(n_experts + 1, sizeof *x->experts.items);
	x->normal_experts.items = calloc(n_experts + 1, sizeof *x->experts.items);
	return whole && x->experts.items && x->normal_experts.items;
}

static void sort(struct pieces *l)
{
	qsort(l->items, l->n, sizeof *l->items, compare_pieces);
}

struct ws_skip_index *ws_skip_index_make(const char *const *skip, size_t n)
{
	struct ws_skip_index *x = calloc(1, sizeof *x);
	size_t n_experts = 0;
	bool strange = false;
	for (size_t i = 0; i < n; i++) {
		const size_t has = count_experts(skip[i]);
		n_experts += has;
		strange |= has > MOST_EXPERTS;
	}
	if (!x || !make_lists(x, n, n_experts)) {
		ws_skip_index_free(x);
		return NULL;
	}
	x->most = COMPARED_MOST;
	if (strange) { /* a list that was made to cost much */
		x->most = 0;
		x->spent = 1;
		return x;
	}
	for (size_t i = 0; i < n; i++)
		add_entry(x, skip[i]);
	sort(&x->listed);
	sort(&x->normal);
	sort(&x->paths);
	sort(&x->plain);
	qsort(x->experts.items, x->experts.n, sizeof *x->experts.items, compare_places);
	qsort(x->normal_experts.items, x->normal_experts.n, sizeof *x->experts.items,
	      compare_places);
	return x;
}

size_t ws_skip_index_globs(const struct ws_skip_index *x)
{
	return x->globs.n;
}

uint64_t ws_skip_index_work(const struct ws_skip_index *x)
{
	return atomic_load_explicit(&x->spent, memory_order_relaxed);
}

void ws_skip_index_limit(struct ws_skip_index *x, uint64_t most)
{
	x->most = most;
}

bool ws_quant_gave_up(const struct ws_quant *q)
{
	return q->index && ws_skip_index_work(q->index) > q->index->most;
}

void ws_quant_restart(const struct ws_quant *q)
{
	if (q && q->index && q->index->most) /* 0: it was never to be compared */
		atomic_store_explicit(&q->index->spent, 0, memory_order_relaxed);
}

/* Counts n comparisons. */
static void spend(struct ws_skip_index *x, uint64_t n)
{
	(void)atomic_fetch_add_explicit(&x->spent, n, memory_order_relaxed);
}

/* How many entries are not greater than the key. */
static size_t count_to(struct ws_skip_index *x, const struct pieces *l, const struct piece *key)
{
	size_t low = 0, high = l->n, n = 0;
	for (; low < high; n++) {
		const size_t mid = low + (high - low) / 2;
		if (compare_pieces(&l->items[mid], key) <= 0)
			low = mid + 1;
		else
			high = mid;
	}
	spend(x, n);
	return low;
}

static bool has(struct ws_skip_index *x, const struct pieces *l, const char *at, size_t n)
{
	const struct piece key = { at, n };
	const size_t i = count_to(x, l, &key);
	return i && compare_pieces(&l->items[i - 1], &key) == 0;
}

/* ---- whole segments -------------------------------------------------------------------------- */

static bool is_end(char c)
{
	return c == 0 || c == '.';
}

/* True if a glob matches the module or a module that contains it. The texts between stars are
 * looked for from the left, each once: an earlier place leaves more to the next ones. The last text
 * must end with a segment. */
static bool glob_covers(const struct piece *glob, const char *module)
{
	const size_t len = strlen(module);
	const char *p = glob->at, *const end = p + glob->n, *star = memchr(p, '*', glob->n);
	size_t n = (size_t)(star - p), from = n;
	if (n > len || memcmp(p, module, n))
		return false;
	for (p = star + 1; (star = memchr(p, '*', (size_t)(end - p))); p = star + 1) {
		n = (size_t)(star - p);
		const char *found = memmem(module + from, len - from, p, n);
		if (!found)
			return false;
		from = (size_t)(found - module) + n;
	}
	n = (size_t)(end - p);
	for (size_t at = from + n; at <= len; at++)
		if (is_end(module[at]) && memcmp(module + at - n, p, n) == 0)
			return true;
	return false;
}

static bool covers(const struct piece *entry, const char *module, size_t len)
{
	return entry->n <= len && memcmp(entry->at, module, entry->n) == 0 &&
	       is_end(module[entry->n]);
}

static bool ends_with(const struct piece *entry, const char *module, size_t len)
{
	return entry->n < len && module[len - entry->n - 1] == '.' &&
	       memcmp(module + len - entry->n, entry->at, entry->n) == 0;
}

/* Has the list the module, one that contains it, or its last segments? */
static bool is_in_index(struct ws_skip_index *x, const char *module)
{
	const size_t len = strlen(module);
	for (size_t i = 0; i <= len; i++)
		if (is_end(module[i]) &&
		    (has(x, &x->plain, module, i) ||
		     (i < len && has(x, &x->plain, module + i + 1, len - i - 1))))
			return true;
	spend(x, x->globs.n);
	for (size_t i = 0; i < x->globs.n; i++)
		if (glob_covers(&x->globs.items[i], module))
			return true;
	return false;
}

static bool skips_by_segments(const struct ws_quant *q, const char *module)
{
	const size_t len = strlen(module);
	if (q->index)
		return is_in_index(q->index, module);
	for (size_t i = 0; i < q->n_skip; i++) {
		const struct piece p = find_piece(q->skip[i]);
		if (p.n && memchr(p.at, '*', p.n) ? glob_covers(&p, module) :
		                                    p.n && (covers(&p, module, len) ||
		                                            ends_with(&p, module, len)))
			return true;
	}
	return false;
}

/* ---- the modules of servers ------------------------------------------------------------------ */


struct server_module {
	char name[MOST_OF_A_NAME];     /* "model.layers.0.self_attn.qkv_proj" */
	char shards[3][MOST_OF_A_NAME]; /* "model.layers.0.self_attn.q_proj", ... */
	unsigned n_shards;             /* 0: it fuses nothing */
	bool experts;                  /* the experts of a layer, which are one module */
};

static const struct {
	const char *fused, *shards[3];
} fusions[] = {
	{ "qkv_proj", { "q_proj", "k_proj", "v_proj" } },
	{ "gate_up_proj", { "gate_proj", "up_proj", NULL } },
};

static void fuse(struct server_module *m, size_t front, const char *leaf)
{
	for (size_t f = 0; f < sizeof fusions / sizeof fusions[0]; f++) {
		bool found = strcmp(leaf, fusions[f].fused) == 0;
		for (size_t i = 0; i < 3 && fusions[f].shards[i]; i++)
			found |= strcmp(leaf, fusions[f].shards[i]) == 0;
		if (!found)
			continue;
		char own[MOST_OF_A_NAME];
		memcpy(own, m->name, sizeof own);
		for (; m->n_shards < 3 && fusions[f].shards[m->n_shards]; m->n_shards++)
			snprintf(m->shards[m->n_shards], MOST_OF_A_NAME, "%.*s%.100s", (int)front,
			         own, fusions[f].shards[m->n_shards]);
		snprintf(m->name, sizeof m->name, "%.*s%.100s", (int)front, own, fusions[f].fused);
		return;
	}
}

/* The module of the server that has this module of the checkpoint. False: the name is too long. */
static bool find_module(const char *module, struct server_module *m)
{
	*m = (struct server_module){ .n_shards = 0 };
	if (strlen(module) >= MOST_OF_A_NAME - 16)
		return false;
	snprintf(m->name, sizeof m->name, "%s", module);
	char *experts = strstr(m->name, ".experts");
	if (experts && (!experts[8] || experts[8] == '.')) {
		experts[8] = 0;
		m->experts = true;
		return true;
	}
	const char *dot = strrchr(m->name, '.');
	if (dot)
		fuse(m, (size_t)(dot - m->name) + 1, module + (dot - m->name) + 1);
	return true;
}

/* ---- the rules of servers -------------------------------------------------------------------- */

/* Is one of the entries this name? */
static bool is_listed(const struct ws_quant *q, const char *name)
{
	return has(q->index, &q->index->listed, name, strlen(name));
}

/* Does one of the entries begin the text? whole: and end with one of its segments. All entries that
 * begin it also begin the greatest entry that is not greater than it. */
static bool begins(struct ws_skip_index *x, const struct pieces *l, const char *text, bool whole)
{
	struct piece key = { text, strlen(text) };
	for (;;) {
		const size_t i = count_to(x, l, &key);
		if (!i)
			return false;
		const struct piece *e = &l->items[i - 1];
		size_t same = 0;
		while (same < e->n && same < key.n && e->at[same] == text[same])
			same++;
		if (same == e->n && (!whole || is_end(text[same])))
			return true;
		if (same == e->n && !same)
			return false;
		key.n = same == e->n ? same - 1 : same;
	}
}

/* How many places have a text before them that is less than these n bytes, from their end. */
static size_t count_before(struct ws_skip_index *x, const struct places *l, const char *head,
                           size_t n)
{
	const struct place key = { "", head, n };
	size_t low = 0, high = l->n, tried = 0;
	for (; low < high; tried++) {
		const size_t mid = low + (high - low) / 2;
		if (compare_places(&l->items[mid], &key) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	spend(x, tried);
	return low;
}

static bool ends_before(const struct place *p, const char *head, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (before(p, i) != (unsigned char)head[n - 1 - i])
			return false;
	return true;
}

/* Does an entry about experts contain this name? So an entry for one expert skips all of them.
 * `normal`: entries count with and without "model." in front. */
static bool is_in_experts(const struct ws_quant *q, const char *name, bool normal)
{
	struct ws_skip_index *x = q->index;
	const struct places *l = normal ? &x->normal_experts : &x->experts;
	const char *experts = strstr(name, word_experts);
	if (!experts)
		return false;
	const size_t head = (size_t)(experts - name), tail = strlen(experts);
	for (size_t i = count_before(x, l, name, head);
	     i < l->n && ends_before(&l->items[i], name, head); i++) {
		spend(x, 1);
		if (strncmp(l->items[i].entry + l->items[i].at, experts, tail) == 0)
			return true;
	}
	return false;
}

static bool skips_by_vllm(const struct ws_quant *q, const struct server_module *m)
{
	if (!m->n_shards)
		return strstr(m->name, "experts") ? is_in_experts(q, m->name, false) :
		                                    is_listed(q, m->name);
	return is_listed(q, m->name) || is_listed(q, m->shards[0]);
}

/* SGLang to 0.5.6: fused names alone; it does not read modules_to_not_convert. */
static bool skips_by_name(const struct ws_quant *q, const struct server_module *m)
{
	if (m->experts || !q->ignored_layers)
		return false;
	return is_listed(q, m->name) || is_in_experts(q, m->name, false) ||
	       (m->n_shards == 2 && is_listed(q, m->shards[0]) && is_listed(q, m->shards[1]));
}

static bool has_part(const struct ws_quant *q, const char *name, bool normal)
{
	for (; *name; name++)
		if (begins(q->index, normal ? &q->index->normal : &q->index->listed, name, false))
			return true;
	return false;
}

/* SGLang 0.5.9: an entry is a part of the fused name. */
static bool skips_by_part(const struct ws_quant *q, const struct server_module *m)
{
	if (m->experts)
		return false;
	if (!m->n_shards && strstr(m->name, "experts"))
		return is_in_experts(q, m->name, false);
	return has_part(q, m->name, false) ||
	       (m->n_shards == 2 && is_listed(q, m->shards[0]) && is_listed(q, m->shards[1]));
}

/* SGLang 0.5.10: an entry is a part of a name, for models that say what they fuse. */
static bool skips_by_shard(const struct ws_quant *q, const struct server_module *m)
{
	return has_part(q, m->n_shards ? m->shards[0] : m->name, true) ||
	       (!m->n_shards && is_in_experts(q, m->name, true));
}

/* SGLang from 0.5.11 on: an entry is a run of whole segments. */
static bool skips_by_path(const struct ws_quant *q, const struct server_module *m)
{
	const char *name = m->n_shards ? m->shards[0] : m->name;
	if (q->index->all)
		return true;
	for (const char *p = name; p; p = strchr(p, '.'), p += p != NULL)
		if (begins(q->index, &q->index->paths, p, true))
			return true;
	return !m->n_shards && is_in_experts(q, m->name, true);
}

static bool skips_by_rule(const struct ws_quant *q, enum ws_skip_rule rule, const char *module)
{
	struct server_module m;
	if (!q->index || ws_quant_gave_up(q) || !find_module(module, &m))
		return false;
	switch (rule) {
	case WS_SKIP_VLLM:         return skips_by_vllm(q, &m);
	case WS_SKIP_SGLANG_NAME:  return skips_by_name(q, &m);
	case WS_SKIP_SGLANG_PART:  return skips_by_part(q, &m);
	case WS_SKIP_SGLANG_SHARD: return skips_by_shard(q, &m);
	default:                   return skips_by_path(q, &m);
	}
}

unsigned ws_quant_rules(bool vllm, const char *version)
{
	unsigned minor = 0, patch = 0;
	if (vllm)
		return WS_SKIP_VLLM;
	const int n = sscanf(version, "0.%3u.%3u", &minor, &patch);
	if (n < 2 || minor > 5)
		return WS_SKIP_SGLANG_PART | WS_SKIP_SGLANG_SHARD | WS_SKIP_SGLANG_PATH;
	if (minor < 5 || patch < 7)
		return WS_SKIP_SGLANG_NAME;
	if (patch < 9)
		return WS_SKIP_SGLANG_NAME | WS_SKIP_SGLANG_PART;
	return patch == 9  ? WS_SKIP_SGLANG_PART :
	       patch == 10 ? WS_SKIP_SGLANG_PART | WS_SKIP_SGLANG_SHARD :
	                     WS_SKIP_SGLANG_PATH;
}

bool ws_quant_skips(const struct ws_quant *q, const char *module)
{
	for (unsigned rule = 1; q->rules && rule <= WS_SKIP_SGLANG_PATH; rule <<= 1)
		if (q->rules & rule)
			return skips_by_rule(q, rule, module);
	return skips_by_segments(q, module);
}

bool ws_quant_agrees(const struct ws_quant *q, const char *module)
{
	const bool first = ws_quant_skips(q, module);
	for (unsigned rule = 1; rule <= WS_SKIP_SGLANG_PATH; rule <<= 1)
		if ((q->rules & rule) && skips_by_rule(q, rule, module) != first)
			return false;
	return true;
}
