/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_memory.c - what a thread may read and write, and whether another may do it at that time too.
 *
 * A mark says when and by whom. Within a block barriers order: what was done before the last
 * one is done. Blocks are ordered by nothing but the end of their launch, and threads of a
 * warp no more than others. */
#include "ptx.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A mark's last bits, below its time. */
enum { MANY = 0x7fff, STRONG = 1 << 15, TIME = 16 };

/* Of device memory, 4 KiB by 4 KiB, found by their number. */
enum { PAGE = 4096, BUCKETS = 1 << 12, MOST_PAGES = 2048 };
struct page {
	struct page *next;
	uint64_t number;
	struct ptx_mark marks[PAGE];
};
static struct page *pages[BUCKETS];
static size_t n_pages;

static struct page *page_at(uint64_t at)
{
	const uint64_t number = at / PAGE;
	struct page **bucket = &pages[number % BUCKETS], *p = *bucket;
	while (p && p->number != number)
		p = p->next;
	if (p)
		return p;
	p = calloc(1, sizeof *p);
	if (!p)
		abort();
	*p = (struct page){ .next = *bucket, .number = number };
	n_pages++;
	return *bucket = p;
}

static void drop_pages(void)
{
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct page *p = pages[i], *next; p; p = next) {
			next = p->next;
			free(p);
		}
	memset(pages, 0, sizeof pages);
	n_pages = 0;
}

__attribute__((destructor)) static void drop_all(void)
{
	drop_pages();
}

void ptx_memory_trim(void)
{
	if (n_pages > MOST_PAGES)
		drop_pages();
}

/* ---- who and when ---- */

static bool is_ordered(const struct ptx_memory *m, uint64_t mark, const struct ptx_access *a)
{
	const uint64_t time = mark >> TIME;
	if (time < (a->space == PTX_SHARED ? m->block : m->launch))
		return true; /* another time's */
	if (a->is_strong && mark & STRONG)
		return true;
	return time >= m->block && (time < m->now || (mark & MANY) == a->thread);
}

static uint64_t mark_of(const struct ptx_memory *m, const struct ptx_access *a)
{
	return m->now << TIME | (a->is_strong ? STRONG : 0) | a->thread;
}

/* Readers at a time become many; a reader of an earlier block is never ordered any more and
 * stays. */
static uint64_t add_reader(const struct ptx_memory *m, uint64_t mark, const struct ptx_access *a)
{
	const uint64_t time = mark >> TIME;
	if (a->space == PTX_GLOBAL && time >= m->launch && time < m->block &&
	    (a->is_strong || !(mark & STRONG)))
		return mark;
	if (time != m->now || (mark & MANY) == a->thread)
		return mark_of(m, a) & ~(uint64_t)(time == m->now && !(mark & STRONG) ? STRONG : 0);
	return (mark | MANY) & ~(uint64_t)(a->is_strong ? 0 : STRONG);
}

static void complain_of_race(const struct ptx_access *a, uint64_t at, uint64_t mark, bool wrote,
                             struct ptx_trouble *why)
{
	const unsigned who = (unsigned)(mark & MANY);
	if (who == MANY)
		ptx_complain(why, "a race: byte %#" PRIx64 " is read by several threads too", at);
	else
		ptx_complain(why,
		             "a race: byte %#" PRIx64
		             " is %s by thread %u%s too, with no barrier between",
		             at, wrote ? "written" : "read", who,
		             a->space == PTX_GLOBAL ? " of some block" : "");
}

static bool may(const struct ptx_memory *m, struct ptx_mark *marks, const struct ptx_access *a,
                struct ptx_trouble *why)
{
	for (uint32_t i = 0; i < a->bytes; i++) {
		struct ptx_mark *b = &marks[i];
		if (a->space == PTX_SHARED && !a->writes && b->write >> TIME < m->block) {
			ptx_complain(why,
			             "byte %#" PRIx64
			             " of shared memory is read and was not written",
			             a->at + i);
			return false;
		}
		const bool after_write = is_ordered(m, b->write, a);
		if (!after_write || (a->writes && !is_ordered(m, b->read, a))) {
			complain_of_race(a, a->at + i, after_write ? b->read : b->write,
			                 !after_write, why);
			return false;
		}
		if (a->writes)
			b->write = mark_of(m, a);
		else
			b->read = add_reader(m, b->read, a);
	}
	return true;
}

/* ---- where ---- */

static bool is_within(uint64_t at, uint64_t bytes, const struct ptx_access *a)
{
	return a->at >= at && a->at - at <= bytes && a->bytes <= bytes - (a->at - at);
}

static char *reach_shared(struct ptx_memory *m, const struct ptx_access *a, struct ptx_trouble *why)
{
	for (uint32_t i = 0; i < m->of->n_arrays; i++) {
		const struct ptx_array *s = &m->of->arrays[i];
		if (is_within(s->at, s->bytes, a))
			return may(m, m->marks + a->at, a, why) ? m->shared + a->at : NULL;
	}
	ptx_complain(why, "%u bytes at %#" PRIx64 " are in no array of shared memory", a->bytes,
	             a->at);
	return NULL;
}

/* Mostly where the last one was. */
static bool is_on_device(struct ptx_memory *m, const struct ptx_access *a)
{
	for (size_t i = 0; i < m->n_spans; i++) {
		const struct ptx_span *s = &m->spans[m->last_span];
		if (is_within(s->at, s->bytes, a))
			return true;
		m->last_span = (m->last_span + 1) % m->n_spans;
	}
	return false;
}

static char *reach_global(struct ptx_memory *m, const struct ptx_access *a, struct ptx_trouble *why)
{
	if (!is_on_device(m, a)) {
		ptx_complain(why, "%u bytes at %#" PRIx64 " are in no allocation", a->bytes, a->at);
		return NULL;
	}
	/* Aligned, so never across two pages. */
	if (!may(m, page_at(a->at)->marks + a->at % PAGE, a, why))
		return NULL;
	return (char *)(uintptr_t)a->at;
}

char *ptx_reach(struct ptx_memory *m, const struct ptx_access *a, struct ptx_trouble *why)
{
	if (a->at % a->bytes != 0) {
		ptx_complain(why, "%u bytes at %#" PRIx64 " are not aligned", a->bytes, a->at);
		return NULL;
	}
	if (a->space == PTX_SHARED)
		return reach_shared(m, a, why);
	if (a->space == PTX_GLOBAL)
		return reach_global(m, a, why);
	if (is_within(0, m->param_bytes, a))
		return (char *)(uintptr_t)m->params + a->at;
	ptx_complain(why, "%u bytes at %#" PRIx64 " are not in the parameter", a->bytes, a->at);
	return NULL;
}
