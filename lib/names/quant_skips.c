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

struct ws_skip_index {
	const char **listed; /* all entries, sorted */
	size_t n_listed;
	struct piece *plain; /* sorted: those without stars, and without ".weight" at the end */
	size_t n_plain;
	struct piece *globs; /* those with stars */
	size_t n_globs;
};

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

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
	free(x->listed);
	free(x->plain);
	free(x->globs);
	free(x);
}

struct ws_skip_index *ws_skip_index_make(const char *const *skip, size_t n)
{
	struct ws_skip_index *x = calloc(1, sizeof *x);
	if (!x || !(x->listed = calloc(n + 1, sizeof *x->listed)) ||
	    !(x->plain = calloc(n + 1, sizeof *x->plain)) ||
	    !(x->globs = calloc(n + 1, sizeof *x->globs))) {
		ws_skip_index_free(x);
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		const struct piece p = find_piece(skip[i]);
		x->listed[x->n_listed++] = skip[i];
		if (p.n && memchr(p.at, '*', p.n))
			x->globs[x->n_globs++] = p;
		else if (p.n)
			x->plain[x->n_plain++] = p;
	}
	qsort(x->listed, x->n_listed, sizeof *x->listed, compare_names);
	qsort(x->plain, x->n_plain, sizeof *x->plain, compare_pieces);
	return x;
}

size_t ws_skip_index_globs(const struct ws_skip_index *x)
{
	return x->n_globs;
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

static bool has_plain(const struct ws_skip_index *x, const char *at, size_t n)
{
	const struct piece key = { at, n };
	return bsearch(&key, x->plain, x->n_plain, sizeof key, compare_pieces);
}

/* Has the list the module, one that contains it, or its last segments? */
static bool is_in_index(const struct ws_skip_index *x, const char *module)
{
	const size_t len = strlen(module);
	for (size_t i = 0; i <= len; i++)
		if (is_end(module[i]) &&
		    (has_plain(x, module, i) ||
		     (i < len && has_plain(x, module + i + 1, len - i - 1))))
			return true;
	for (size_t i = 0; i < x->n_globs; i++)
		if (glob_covers(&x->globs[i], module))
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

enum { MOST_OF_A_NAME = 1024 };

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

static const char *without_model(const char *name)
{
	return strncmp(name, "model.", 6) ? name : name + 6;
}

/* Is one of the entries this name? */
static bool is_listed(const struct ws_quant *q, const char *name)
{
	if (q->index)
		return bsearch(&name, q->index->listed, q->index->n_listed, sizeof name,
		               compare_names);
	for (size_t i = 0; i < q->n_skip; i++)
		if (strcmp(q->skip[i], name) == 0)
			return true;
	return false;
}

/* strstr(front + text, name) */
static bool contains(const char *front, const char *text, const char *name)
{
	for (; *front; front++) {
		const size_t n = strlen(front);
		if (strncmp(front, name, n) == 0 && strncmp(text, name + n, strlen(name + n)) == 0)
			return true;
	}
	return strstr(text, name);
}

/* Does an entry about experts contain this name? So an entry for one expert skips all of them.
 * `normal`: entries count with and without "model." in front. */
static bool is_in_experts(const struct ws_quant *q, const char *name, bool normal)
{
	for (size_t i = 0; strstr(name, "experts") && i < q->n_skip; i++) {
		const char *entry = normal ? without_model(q->skip[i]) : q->skip[i];
		if (contains(normal ? "model." : "", entry, name))
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
	for (size_t i = 0; i < q->n_skip; i++)
		if (strstr(name, normal ? without_model(q->skip[i]) : q->skip[i]))
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
	char path[MOST_OF_A_NAME + 2], entry[MOST_OF_A_NAME + 2];
	snprintf(path, sizeof path, ".%s.", name);
	for (size_t i = 0; i < q->n_skip; i++) {
		const char *base = without_model(q->skip[i]);
		size_t n = strlen(base);
		while (n && base[n - 1] == '.')
			n--;
		if (n >= MOST_OF_A_NAME)
			continue;
		snprintf(entry, sizeof entry, ".%.*s.", (int)n, base);
		if (strstr(path, n ? entry : "."))
			return true;
	}
	return !m->n_shards && is_in_experts(q, m->name, true);
}

static bool skips_by_rule(const struct ws_quant *q, enum ws_skip_rule rule, const char *module)
{
	struct server_module m;
	if (!find_module(module, &m))
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
