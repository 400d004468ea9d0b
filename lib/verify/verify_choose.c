/* SPDX-License-Identifier: Apache-2.0 */
/* verify_choose.c - chooses the parameters to sample.
 *
 * Takes one of each kind, then one more of each, and so on. Those of one kind lie far apart. */
#include "verify_kind.h"
#include "verify_state.h"

#include "hash.h"
#include "number.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_OF_A_ROW = 1 << 18 }; /* the smallest request is one row */

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint64_t verify_row(const struct ws_plan_tensor *t)
{
	uint64_t n = 1;
	for (unsigned d = 1; d < t->n_dims; d++)
		n *= (uint64_t)t->dims[d]; /* no overflow: the tensor has bytes */
	return n;
}

static bool can_be_shown(const struct ws_plan_tensor *t)
{
	return t->n_dims > 0 && t->bytes > 0 && ws_number_readable(t->dtype) &&
	       verify_row(t) <= MOST_OF_A_ROW;
}

const char *verify_kind(const char *name, char kind[WS_KIND_MAX])
{
	size_t n = 0;
	for (const char *p = name; *p && n + 1 < WS_KIND_MAX; p++) {
		const size_t digits = p == name || p[-1] == '.' ? strspn(p, "0123456789") : 0;
		const bool number = digits && (!p[digits] || p[digits] == '.');
		kind[n++] = number ? '*' : *p;
		p += number ? digits - 1 : 0;
	}
	kind[n] = '\0';
	return kind;
}

static uint64_t kind_of(const char *name)
{
	char kind[WS_KIND_MAX];
	verify_kind(name, kind);
	return ws_hash64(kind, strlen(kind));
}

struct candidate {
	uint64_t kind;
	size_t tensor;
	bool taken;
};

struct kind {
	size_t first, n;
	uint64_t order;   /* random */
	uint64_t phase;   /* position of the next member, as a fraction of 2^64 */
};

static int by_kind(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static int by_order(const void *a, const void *b)
{
	const struct kind *x = a, *y = b;
	return (x->order > y->order) - (x->order < y->order);
}

static size_t find_kinds(const struct candidate *c, size_t n, uint64_t seed, struct kind *kinds)
{
	size_t n_kinds = 0;
	uint64_t state = seed;
	for (size_t i = 0; i < n; i++) {
		if (i == 0 || c[i].kind != c[i - 1].kind)
			kinds[n_kinds++] = (struct kind){ .first = i, .order = next_random(&state),
				                          .phase = next_random(&state) };
		kinds[n_kinds - 1].n++;
	}
	qsort(kinds, n_kinds, sizeof *kinds, by_order);
	return n_kinds;
}

/* Steps by the golden ratio, so that any number of members lie apart. False: all are taken. */
static bool take_one(struct candidate *c, struct kind *k, size_t *tensor)
{
	const size_t start = (size_t)(((unsigned __int128)k->phase * k->n) >> 64);
	k->phase += UINT64_C(0x9e3779b97f4a7c15);
	for (size_t i = 0; i < k->n; i++) {
		struct candidate *m = &c[k->first + (start + i) % k->n];
		if (m->taken)
			continue;
		m->taken = true;
		*tensor = m->tensor;
		return true;
	}
	return false;
}

size_t verify_choose(const struct ws_plan *plan, size_t most, uint64_t seed, size_t *chosen)
{
	struct candidate *c = calloc(plan->n_tensors + 1, sizeof *c);
	struct kind *kinds = calloc(plan->n_tensors + 1, sizeof *kinds);
	size_t n = 0, n_chosen = 0;
	for (size_t i = 0; c && kinds && i < plan->n_tensors; i++)
		if (can_be_shown(&plan->tensors[i]))
			c[n++] = (struct candidate){ kind_of(plan->tensors[i].name), i, false };
	if (n) {
		qsort(c, n, sizeof *c, by_kind);
		const size_t n_kinds = find_kinds(c, n, seed, kinds);
		const size_t want = most < n ? most : n;
		for (size_t k = 0; n_chosen < want; k = (k + 1) % n_kinds)
			n_chosen += take_one(c, &kinds[k], &chosen[n_chosen]);
	}
	const bool failed = !c || !kinds;
	free(c);
	free(kinds);
	return failed ? SIZE_MAX : n_chosen;
}
