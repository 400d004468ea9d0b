/* SPDX-License-Identifier: Apache-2.0 */
/* suggest.c - groups names into kinds, aligns a wrong name with kinds, and finds the nearest
 * numbers.
 *
 * A kind is a name without its numbers: "model.layers.#.mlp.experts.#.up_proj.weight". Its
 * members are sorted by their numbers. */
#include "suggest.h"

#include "hash.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
	MAX_SEGMENTS = 24,  /* longer names get no suggestion */
	MAX_SLOTS = 4,      /* numbers per name; further numbers belong to the kind */
	MAX_KINDS = 16384,
	MAX_ALIGNED = 2048, /* kinds tried for one name */
	ANY = -1            /* a number that the wrong name lacks */
};

/* Costs of differences. */
enum { AT_FRONT = 3, INSIDE = 5, NUMBER_EXTRA = 8, NUMBER_OTHER = 3, NUMBER_FAR = 1, NEVER = 1000 };

struct segment {
	const char *at;
	unsigned n;
	int64_t number;   /* ANY: a word */
	uint32_t word;    /* index of words, for segments of kinds */
};

struct member {
	uint64_t kind;    /* hash of the kind */
	uint32_t name;
	uint32_t numbers[MAX_SLOTS];
};

struct kind {
	size_t first, n;                    /* members */
	unsigned n_segments;
	struct segment *segments;           /* of the first member */
};

struct word {
	const char *at;
	unsigned n;
};

struct ws_suggest {
	const char *const *names;
	struct member *members;
	size_t n_members;
	struct kind *kinds;                 /* by their last word, then by hash */
	size_t n_kinds;
	struct segment *segments;
	size_t n_segments;
	struct word *words;                 /* sorted */
	size_t n_words;
	/* costs of words for the current name: [segment][word] */
	uint8_t *memo;
};

enum { UNKNOWN = 255, UNLIKE = 254 }; /* in memo */

unsigned ws_edit_distance(const char *a, size_t n, const char *b, size_t m)
{
	unsigned row[64];
	n = n > 63 ? 63 : n;
	m = m > 63 ? 63 : m;
	for (unsigned j = 0; j <= m; j++)
		row[j] = j;
	for (unsigned i = 1; i <= n; i++) {
		unsigned diagonal = row[0];
		row[0] = i;
		for (unsigned j = 1; j <= m; j++) {
			const unsigned above = row[j];
			unsigned best = diagonal + (a[i - 1] != b[j - 1]);
			best = above + 1 < best ? above + 1 : best;
			row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
			diagonal = above;
		}
	}
	return row[m];
}

/* ANY: no number, or more than nine digits. */
static int64_t number_of(const char *at, unsigned n)
{
	int64_t value = 0;
	if (n == 0 || n > 9)
		return ANY;
	for (unsigned i = 0; i < n; i++) {
		if (at[i] < '0' || at[i] > '9')
			return ANY;
		value = value * 10 + (at[i] - '0');
	}
	return value;
}

/* Returns the number of segments; 0: too many. */
static unsigned split(const char *name, struct segment out[MAX_SEGMENTS])
{
	unsigned n = 0, slots = 0;
	for (const char *p = name;; p++) {
		const unsigned len = (unsigned)strcspn(p, ".");
		if (n == MAX_SEGMENTS)
			return 0;
		struct segment *s = &out[n++];
		*s = (struct segment){ p, len, number_of(p, len), 0 };
		if (s->number != ANY && slots++ >= MAX_SLOTS)
			s->number = ANY;
		p += len;
		if (!*p)
			return n;
	}
}

static void read_member(uint32_t index, const struct segment *s, unsigned n, struct member *m)
{
	uint64_t hashes[MAX_SEGMENTS] = { 0 };
	unsigned slots = 0;
	*m = (struct member){ .name = index };
	for (unsigned i = 0; i < n; i++) {
		if (s[i].number == ANY)
			hashes[i] = ws_hash64(s[i].at, s[i].n);
		else
			m->numbers[slots++] = (uint32_t)s[i].number;
	}
	m->kind = ws_hash64(hashes, n * sizeof hashes[0]);
}

static int by_kind(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	for (unsigned i = 0; i < MAX_SLOTS; i++)
		if (x->numbers[i] != y->numbers[i])
			return x->numbers[i] < y->numbers[i] ? -1 : 1;
	return (x->name > y->name) - (x->name < y->name);
}

static int compare_words(const char *a, unsigned n, const char *b, unsigned m)
{
	const int order = memcmp(a, b, n < m ? n : m);
	return order ? order : (n > m) - (n < m);
}

static int by_text(const void *a, const void *b)
{
	const struct word *x = a, *y = b;
	return compare_words(x->at, x->n, y->at, y->n);
}

static int by_last_word(const void *a, const void *b)
{
	const struct kind *x = a, *y = b;
	const uint32_t u = x->segments[x->n_segments - 1].word;
	const uint32_t v = y->segments[y->n_segments - 1].word;
	return u != v ? (u < v ? -1 : 1) : (x->first > y->first) - (x->first < y->first);
}

/* Returns the index of the word, or the index at which the word would be inserted. */
static size_t find_word(const struct ws_suggest *s, const char *at, unsigned n, bool *found)
{
	size_t lo = 0, hi = s->n_words;
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		if (compare_words(s->words[mid].at, s->words[mid].n, at, n) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	*found = lo < s->n_words && !compare_words(s->words[lo].at, s->words[lo].n, at, n);
	return lo;
}

static int collect_members(struct ws_suggest *s, size_t n)
{
	struct segment segments[MAX_SEGMENTS];
	s->members = calloc(n ? n : 1, sizeof *s->members);
	if (!s->members)
		return -1;
	for (size_t i = 0; i < n && i < UINT32_MAX; i++) {
		const unsigned k = split(s->names[i], segments);
		if (k)
			read_member((uint32_t)i, segments, k, &s->members[s->n_members++]);
	}
	qsort(s->members, s->n_members, sizeof *s->members, by_kind);
	return 0;
}

/* Kinds whose hashes collide are merged: a suggestion is then odd, but still a name of the list. */
static int collect_kinds(struct ws_suggest *s)
{
	size_t n = 0, segments = 0;
	struct segment buffer[MAX_SEGMENTS];
	for (size_t i = 0; i < s->n_members; i++)
		n += i == 0 || s->members[i].kind != s->members[i - 1].kind;
	n = n < MAX_KINDS ? n : MAX_KINDS;
	s->kinds = calloc(n ? n : 1, sizeof *s->kinds);
	if (!s->kinds)
		return -1;
	for (size_t i = 0; i < s->n_members; i++) {
		if (i && s->members[i].kind == s->members[i - 1].kind) {
			s->kinds[s->n_kinds - 1].n++;
			continue;
		}
		if (s->n_kinds == n)
			break;
		const unsigned k = split(s->names[s->members[i].name], buffer);
		s->kinds[s->n_kinds++] = (struct kind){ .first = i, .n = 1, .n_segments = k };
		segments += k;
	}
	s->segments = calloc(segments ? segments : 1, sizeof *s->segments);
	if (!s->segments)
		return -1;
	for (size_t i = 0; i < s->n_kinds; i++) {
		struct kind *k = &s->kinds[i];
		k->segments = s->segments + s->n_segments;
		split(s->names[s->members[k->first].name], buffer);
		memcpy(k->segments, buffer, k->n_segments * sizeof *buffer);
		s->n_segments += k->n_segments;
	}
	return 0;
}

static int collect_words(struct ws_suggest *s)
{
	bool found;
	s->words = calloc(s->n_segments ? s->n_segments : 1, sizeof *s->words);
	if (!s->words)
		return -1;
	for (size_t i = 0; i < s->n_segments; i++)
		s->words[i] = (struct word){ s->segments[i].at, s->segments[i].n };
	qsort(s->words, s->n_segments, sizeof *s->words, by_text);
	for (size_t i = 0; i < s->n_segments; i++)
		if (!s->n_words || by_text(&s->words[s->n_words - 1], &s->words[i]))
			s->words[s->n_words++] = s->words[i];
	for (size_t i = 0; i < s->n_segments; i++)
		s->segments[i].word = (uint32_t)find_word(s, s->segments[i].at, s->segments[i].n,
		                                          &found);
	if (s->n_kinds)
		qsort(s->kinds, s->n_kinds, sizeof *s->kinds, by_last_word);
	s->memo = malloc(s->n_words * MAX_SEGMENTS + 1);
	return s->memo ? 0 : -1;
}

int ws_suggest_make(const char *const *names, size_t n, struct ws_suggest **out,
                    struct ws_err *err)
{
	struct ws_suggest *s = calloc(1, sizeof *s);
	if (s)
		s->names = names;
	if (!s || collect_members(s, n) || collect_kinds(s) || collect_words(s)) {
		ws_suggest_free(s);
		return ws_oom(err);
	}
	*out = s;
	return 0;
}

void ws_suggest_free(struct ws_suggest *s)
{
	if (!s)
		return;
	free(s->members);
	free(s->kinds);
	free(s->segments);
	free(s->words);
	free(s->memo);
	free(s);
}

/* ---- aligning a name with a kind ---- */

struct query {
	struct ws_suggest *s;
	struct segment segments[MAX_SEGMENTS];
	unsigned n;
	unsigned cost[MAX_SEGMENTS + 1][MAX_SEGMENTS + 1];
};

/* Words that differ in at most half of their letters are misspellings. */
static unsigned word_cost(const struct segment *a, const struct segment *b)
{
	const unsigned longest = a->n > b->n ? a->n : b->n;
	const unsigned shortest = a->n < b->n ? a->n : b->n;
	if (longest > 63 || longest - shortest > longest / 2)
		return UNLIKE;
	const unsigned edits = ws_edit_distance(a->at, a->n, b->at, b->n);
	return edits == 0 ? 0 : edits * 2 > longest ? UNLIKE : 2 + 6 * edits / longest;
}

static unsigned replace_cost(struct query *q, unsigned i, const struct segment *b)
{
	const struct segment *a = &q->segments[i];
	if (a->number != ANY && b->number != ANY)
		return 0; /* nearest_member adds the cost of numbers */
	if (a->number != ANY || b->number != ANY)
		return NEVER;
	uint8_t *memo = &q->s->memo[i * q->s->n_words + b->word];
	if (*memo == UNKNOWN)
		*memo = (uint8_t)word_cost(a, b);
	return *memo == UNLIKE ? NEVER : *memo;
}

static unsigned extra_cost(const struct segment *s, bool front)
{
	return s->number != ANY ? NUMBER_EXTRA : front ? AT_FRONT : INSIDE;
}

static unsigned least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Cost of the cheapest alignment of the name with the kind; q->cost keeps the table for
 * `read_numbers`. */
static unsigned align(struct query *q, const struct kind *k)
{
	q->cost[0][0] = 0;
	for (unsigned j = 0; j < k->n_segments; j++)
		q->cost[0][j + 1] = q->cost[0][j] + extra_cost(&k->segments[j], true);
	for (unsigned i = 0; i < q->n; i++) {
		q->cost[i + 1][0] = q->cost[i][0] + extra_cost(&q->segments[i], true);
		for (unsigned j = 0; j < k->n_segments; j++) {
			const unsigned drop = q->cost[i][j + 1] + extra_cost(&q->segments[i],
			                false);
			const unsigned add = q->cost[i + 1][j] + extra_cost(&k->segments[j],
			                i == 0);
			const unsigned same = q->cost[i][j] + replace_cost(q, i, &k->segments[j]);
			q->cost[i + 1][j + 1] = least(least(drop, add), same);
		}
	}
	return q->cost[q->n][k->n_segments];
}

/* Walks the table back to find the number of the name for each slot of the kind. */
static void read_numbers(struct query *q, const struct kind *k, int64_t want[MAX_SLOTS])
{
	unsigned i = q->n, j = k->n_segments, slot = 0;
	for (unsigned t = 0; t < k->n_segments; t++)
		slot += k->segments[t].number != ANY;
	for (unsigned t = 0; t < MAX_SLOTS; t++)
		want[t] = ANY;
	while (j > 0) {
		const struct segment *s = &k->segments[j - 1];
		const unsigned here = q->cost[i][j];
		const bool same = i > 0 && here == q->cost[i - 1][j - 1] + replace_cost(q, i - 1,
		                s);
		if (!same && i > 0 &&
		    here == q->cost[i - 1][j] + extra_cost(&q->segments[i - 1], false)) {
			i--;
			continue;
		}
		if (s->number != ANY) {
			slot--;
			want[slot] = same ? q->segments[i - 1].number : ANY;
		}
		i -= same;
		j--;
	}
}

/* First member of [lo, hi) whose number in that slot is at least v. */
static size_t lower(const struct ws_suggest *s, size_t lo, size_t hi, unsigned slot, uint64_t v)
{
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		if (s->members[mid].numbers[slot] < v)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Finds the member with the nearest numbers, earlier slots first. Adds their cost to *cost. */
static const struct member *nearest_member(const struct ws_suggest *s, const struct kind *k,
                                           const int64_t want[MAX_SLOTS], unsigned *cost)
{
	size_t lo = k->first, hi = k->first + k->n;
	for (unsigned slot = 0; slot < MAX_SLOTS; slot++) {
		uint32_t v = s->members[lo].numbers[slot];
		if (want[slot] != ANY) {
			const size_t at = lower(s, lo, hi, slot, (uint64_t)want[slot]);
			const uint32_t above = s->members[at < hi ? at : hi - 1].numbers[slot];
			const uint32_t below = s->members[at > lo ? at - 1 : lo].numbers[slot];
			const int64_t up = llabs((int64_t)above - want[slot]);
			const int64_t down = llabs((int64_t)below - want[slot]);
			v = up <= down ? above : below;
			const int64_t off = up <= down ? up : down;
			*cost += off == 0 ? 0 : off == 1 ? NUMBER_OTHER : NUMBER_OTHER + NUMBER_FAR;
		}
		lo = lower(s, lo, hi, slot, v);
		hi = lower(s, lo, hi, slot, (uint64_t)v + 1);
	}
	return &s->members[lo];
}

/* A short name needs a smaller distance for a suggestion. */
static unsigned limit_for(unsigned n_segments)
{
	return n_segments <= 3 ? 6 : n_segments <= 5 ? 9 : 12;
}

static size_t first_of_word(const struct ws_suggest *s, size_t word)
{
	size_t lo = 0, hi = s->n_kinds;
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		const struct kind *k = &s->kinds[mid];
		if (k->segments[k->n_segments - 1].word < word)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const char *ws_suggest_nearest(struct ws_suggest *s, const char *name)
{
	struct query q = { .s = s };
	const struct member *best = NULL;
	bool found;
	q.n = split(name, q.segments);
	if (q.n == 0 || s->n_kinds == 0)
		return NULL;
	memset(s->memo, UNKNOWN, s->n_words * q.n);
	unsigned best_cost = limit_for(q.n) + 1;
	/* Kinds that end like the name come first, so that the limit drops the others. */
	const struct segment *last = &q.segments[q.n - 1];
	const size_t start = first_of_word(s, find_word(s, last->at, last->n, &found));
	const size_t tries = s->n_kinds < MAX_ALIGNED ? s->n_kinds : MAX_ALIGNED;
	for (size_t t = 0; t < tries && best_cost > 0; t++) {
		const struct kind *k = &s->kinds[(start + t) % s->n_kinds];
		int64_t want[MAX_SLOTS];
		unsigned cost = align(&q, k);
		if (cost >= best_cost)
			continue;
		read_numbers(&q, k, want);
		const struct member *m = nearest_member(s, k, want, &cost);
		if (cost < best_cost) {
			best_cost = cost;
			best = m;
		}
	}
	return best ? s->names[best->name] : NULL;
}
