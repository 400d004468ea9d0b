/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_report.c - collects findings in groups.
 *
 * Copies every string: findings outlive the objects that they describe. */
#include "namecheck_core.h"

#include "arena.h"
#include "hash.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_REASON = 2048, FIRST_SLOTS = 256 };

struct group {
	struct ws_finding_group g;
	const char *shared, *reason; /* reason: of its first finding */
	uint64_t key;
	bool follows, leads;
	size_t order;                /* order of arrival */
};

struct ws_report {
	struct ws_finding *items;
	size_t n, cap;
	struct group *groups;
	size_t n_groups, cap_groups;
	size_t *slots;               /* of groups, by key; 0: free, else index + 1 */
	size_t n_slots;              /* a power of two */
	struct ws_arena text;
	bool failed;
};

struct ws_report *ws_report_new(void)
{
	struct ws_report *r = calloc(1, sizeof *r);
	if (!r)
		return NULL;
	r->n_slots = FIRST_SLOTS;
	r->slots = calloc(r->n_slots, sizeof *r->slots);
	if (r->slots)
		return r;
	free(r);
	return NULL;
}

void ws_report_free(struct ws_report *r)
{
	if (!r)
		return;
	ws_arena_free(&r->text);
	free(r->items);
	free(r->groups);
	free(r->slots);
	free(r);
}

static const char *keep(struct ws_report *r, const char *s)
{
	if (!s || !*s)
		return "";
	const char *copy = ws_arena_text(&r->text, s, strlen(s));
	r->failed |= !copy;
	return copy ? copy : "";
}

static bool grow(struct ws_report *r, void *array, size_t n, size_t *cap, size_t size)
{
	void *old, *more;
	if (n < *cap)
		return true;
	memcpy(&old, array, sizeof old);
	const size_t wider = *cap ? *cap * 2 : 64;
	if (!(more = realloc(old, wider * size))) {
		r->failed = true;
		return false;
	}
	memcpy(array, &more, sizeof more);
	*cap = wider;
	return true;
}

static uint64_t key_of(const struct ws_new_finding *s)
{
	const char *shared = s->shared ? s->shared : "";
	const uint64_t words[] = { (uint64_t)s->verdict, (uint64_t)s->severity,
		                   ws_hash64(shared, strlen(shared)) };
	return ws_hash64(words, sizeof words);
}

/* The slot of the key, or the free slot where it belongs. */
static size_t find_slot(const struct ws_report *r, uint64_t key)
{
	size_t i = (size_t)key & (r->n_slots - 1);
	while (r->slots[i] && r->groups[r->slots[i] - 1].key != key)
		i = (i + 1) & (r->n_slots - 1);
	return i;
}

static bool widen_slots(struct ws_report *r)
{
	if (r->n_groups * 2 < r->n_slots)
		return true;
	size_t *old = r->slots;
	size_t *slots = calloc(r->n_slots * 2, sizeof *slots);
	if (!slots) {
		r->failed = true;
		return false;
	}
	r->slots = slots;
	r->n_slots *= 2;
	for (size_t g = 0; g < r->n_groups; g++)
		r->slots[find_slot(r, r->groups[g].key)] = g + 1;
	free(old);
	return true;
}

static struct group *find_group(struct ws_report *r, const struct ws_new_finding *s)
{
	const uint64_t key = key_of(s);
	const size_t at = find_slot(r, key);
	if (r->slots[at])
		return &r->groups[r->slots[at] - 1];
	if (!grow(r, &r->groups, r->n_groups, &r->cap_groups, sizeof *r->groups))
		return NULL;
	struct group *g = &r->groups[r->n_groups];
	*g = (struct group){
		.g = { .verdict = s->verdict, .severity = s->severity, .remedy = keep(r,
		                s->remedy) }, .shared = keep(r, s->shared), .key = key, .follows =
		        s->follows, .leads = s->leads, .order = r->n_groups, };
	r->slots[at] = ++r->n_groups;
	return widen_slots(r) ? g : NULL;
}

void ws_report_add(struct ws_report *r, const struct ws_new_finding *s, const char *fmt, ...)
{
	char reason[LONGEST_REASON];
	va_list ap;
	if (r->failed || !grow(r, &r->items, r->n, &r->cap, sizeof *r->items))
		return;
	struct group *g = find_group(r, s);
	if (!g)
		return;
	va_start(ap, fmt);
	vsnprintf(reason, sizeof reason, fmt, ap);
	va_end(ap);
	struct ws_finding *f = &r->items[r->n++];
	*f = (struct ws_finding){
		.verdict = s->verdict, .severity = s->severity, .name = keep(r, s->name),
		.param = keep(r, s->param), .near = keep(r, s->near), .rule = keep(r, s->rule),
		.group = (size_t)(g - r->groups),
	};
	/* Most findings of a group have the same reason. */
	f->reason = g->reason && !strcmp(g->reason, reason) ? g->reason : keep(r, reason);
	if (!g->reason)
		g->reason = f->reason;
	g->g.n++;
}

/* ---- order ---- */

static int by_weight(const void *a, const void *b)
{
	const struct group *x = a, *y = b;
	if (x->g.severity != y->g.severity)
		return x->g.severity > y->g.severity ? -1 : 1;
	if (x->leads != y->leads)
		return x->leads ? -1 : 1;
	if (x->follows != y->follows)
		return x->follows ? 1 : -1;
	if (x->g.n != y->g.n)
		return x->g.n > y->g.n ? -1 : 1;
	return (x->order > y->order) - (x->order < y->order);
}

/* 40000 as "40,000". */
static void put_count(char dst[32], size_t n)
{
	char digits[24];
	const int len = snprintf(digits, sizeof digits, "%zu", n);
	char *p = dst;
	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*p++ = ',';
		*p++ = digits[i];
	}
	*p = 0;
}

static const char *group_reason(struct ws_report *r, const struct group *g)
{
	char count[32], text[LONGEST_REASON];
	if (g->g.n == 1 || !*g->shared)
		return g->reason;
	put_count(count, g->g.n);
	snprintf(text, sizeof text, "%s %s", count, g->shared);
	return keep(r, text);
}

static void count_up(struct ws_findings *out)
{
	for (size_t i = 0; i < out->n; i++) {
		const struct ws_finding *f = &out->items[i];
		out->count[f->verdict]++;
		out->errors += f->severity == WS_ERROR;
		out->warnings += f->severity == WS_WARN;
		out->notes += f->severity == WS_NOTE;
	}
}

/* place[old group]: index for its next finding. */
static void arrange(struct ws_report *r, struct ws_findings *out, size_t *place)
{
	size_t first = 0;
	for (size_t g = 0; g < r->n_groups; g++) {
		struct group *from = &r->groups[g];
		from->g.reason = group_reason(r, from);
		from->g.first = first;
		out->groups[g] = from->g;
		place[from->order] = first;
		first += from->g.n;
	}
	for (size_t i = 0; i < r->n; i++)
		out->items[place[r->items[i].group]++] = r->items[i];
	for (size_t g = 0; g < r->n_groups; g++)
		for (size_t i = 0; i < out->groups[g].n; i++)
			out->items[out->groups[g].first + i].group = g;
}

int ws_report_finish(struct ws_report *r, struct ws_findings *out, struct ws_err *err)
{
	size_t *place = calloc(r->n_groups + 1, sizeof *place);
	out->items = calloc(r->n + 1, sizeof *out->items);
	out->groups = calloc(r->n_groups + 1, sizeof *out->groups);
	out->n = r->n;
	out->n_groups = r->n_groups;
	if (!r->failed && place && out->items && out->groups) {
		if (r->n_groups) /* else the array is NULL */
			qsort(r->groups, r->n_groups, sizeof *r->groups, by_weight);
		arrange(r, out, place);
		count_up(out);
	}
	const bool failed = r->failed || !place || !out->items || !out->groups;
	free(place);
	out->priv = r->text.newest;
	r->text.newest = NULL;
	if (!failed)
		return 0;
	ws_findings_free(out);
	return ws_oom(err);
}

void ws_findings_free(struct ws_findings *f)
{
	if (!f)
		return;
	free(f->items);
	free(f->groups);
	ws_arena_free(&(struct ws_arena){ f->priv });
	*f = (struct ws_findings){ 0 };
}
