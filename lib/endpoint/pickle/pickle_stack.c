/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_stack.c - the data of a running pickle: values, and a stack, marks and a memo. These refer
 * to values by index, because values move in memory when their array grows. */
#include "pickle_stack.h"

#include <stdlib.h>

enum { MOST = 1 << 21 }; /* limit of each array */

int pickle_fail(const struct pickle *p, const char *why, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "pickle: %s, at byte %zu", why, p->at);
}

/* ---- memory ---- */

static void *push(struct pickle *p, struct pickle_vector *v, size_t size, struct ws_err *err)
{
	if (v->n == v->cap) {
		const size_t cap = v->cap ? v->cap * 2 : 64;
		void *more = v->n < MOST ? realloc(v->items, cap * size) : NULL;
		if (!more) {
			pickle_fail(p, "too many values", err);
			return NULL;
		}
		v->items = more;
		v->cap = cap;
	}
	return (char *)v->items + v->n++ * size;
}

static int push_index(struct pickle *p, struct pickle_vector *v, uint32_t value, struct ws_err *err)
{
	uint32_t *top = push(p, v, sizeof *top, err);
	if (!top)
		return -1;
	*top = value;
	return 0;
}

static struct pickle_value *value_at(const struct pickle *p, uint32_t i)
{
	return &((struct pickle_value *)p->values.items)[i];
}

struct pickle_value *pickle_push(struct pickle *p, enum pickle_kind kind, struct ws_err *err)
{
	const size_t i = p->values.n;
	struct pickle_value *v = push(p, &p->values, sizeof *v, err);
	if (!v || push_index(p, &p->stack, (uint32_t)i, err))
		return NULL;
	*v = (struct pickle_value){ .kind = kind, .first = PICKLE_NOTHING, .last = PICKLE_NOTHING };
	return v;
}

static int add_child(struct pickle *p, uint32_t parent, uint32_t child, struct ws_err *err)
{
	const uint32_t i = (uint32_t)p->cells.n;
	struct pickle_cell *cell = push(p, &p->cells, sizeof *cell, err);
	if (!cell)
		return -1;
	*cell = (struct pickle_cell){ child, PICKLE_NOTHING };
	struct pickle_value *v = value_at(p, parent);
	if (v->n++ == 0)
		v->first = i;
	else
		((struct pickle_cell *)p->cells.items)[v->last].next = i;
	v->last = i;
	return 0;
}

/* ---- the stack ---- */

static size_t floor_of(const struct pickle *p)
{
	return p->marks.n ? ((const uint32_t *)p->marks.items)[p->marks.n - 1] : 0;
}

const uint32_t *pickle_top(struct pickle *p, size_t n, struct ws_err *err)
{
	if (p->stack.n - floor_of(p) < n) {
		pickle_fail(p, "takes from an empty stack", err);
		return NULL;
	}
	return (const uint32_t *)p->stack.items + p->stack.n - n;
}

int pickle_mark(struct pickle *p, struct ws_err *err)
{
	return push_index(p, &p->marks, (uint32_t)p->stack.n, err);
}

/* Removes the latest mark. *n: the number of values above it. */
static int unmark(struct pickle *p, size_t *n, struct ws_err *err)
{
	if (!p->marks.n)
		return pickle_fail(p, "no mark", err);
	*n = p->stack.n - floor_of(p);
	p->marks.n--;
	return 0;
}

int pickle_wrap(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err)
{
	if (n && !pickle_top(p, n, err))
		return -1;
	const size_t base = p->stack.n - n;
	if (!pickle_push(p, kind, err))
		return -1;
	const uint32_t made = ((uint32_t *)p->stack.items)[p->stack.n - 1];
	for (size_t i = 0; i < n; i++)
		if (add_child(p, made, ((uint32_t *)p->stack.items)[base + i], err))
			return -1;
	((uint32_t *)p->stack.items)[base] = made;
	p->stack.n = base + 1;
	return 0;
}

int pickle_put_in(struct pickle *p, enum pickle_kind kind, size_t n, struct ws_err *err)
{
	const uint32_t *from = pickle_top(p, n + 1, err);
	if (!from)
		return -1;
	const uint32_t parent = from[0];
	if (value_at(p, parent)->kind != kind || (kind == PICKLE_DICT && n % 2))
		return pickle_fail(p, "adds to a value of the wrong type", err);
	for (size_t i = 1; i <= n; i++)
		if (add_child(p, parent, ((uint32_t *)p->stack.items)[p->stack.n - n + i - 1], err))
			return -1;
	p->stack.n -= n;
	return 0;
}

int pickle_put_in_marked(struct pickle *p, enum pickle_kind kind, struct ws_err *err)
{
	size_t n = 0;
	return unmark(p, &n, err) ? -1 : pickle_put_in(p, kind, n, err);
}

int pickle_wrap_marked(struct pickle *p, struct ws_err *err)
{
	size_t n = 0;
	return unmark(p, &n, err) ? -1 : pickle_wrap(p, PICKLE_TUPLE, n, err);
}

int pickle_drop(struct pickle *p, struct ws_err *err)
{
	if (!pickle_top(p, 1, err))
		return -1;
	p->stack.n--;
	return 0;
}

/* ---- the memo ---- */

int pickle_remember(struct pickle *p, uint64_t place, struct ws_err *err)
{
	const uint32_t *v = pickle_top(p, 1, err);
	if (!v)
		return -1;
	/* Python numbers memo entries from 0 on. Only small gaps are allowed. */
	if (place > p->memo.n + 1000)
		return pickle_fail(p, "a memo number is too large", err);
	while (p->memo.n <= place)
		if (push_index(p, &p->memo, PICKLE_NOTHING, err))
			return -1;
	((uint32_t *)p->memo.items)[place] = *v;
	return 0;
}

int pickle_recall(struct pickle *p, uint64_t place, struct ws_err *err)
{
	if (place >= p->memo.n || ((uint32_t *)p->memo.items)[place] == PICKLE_NOTHING)
		return pickle_fail(p, "reads an unset memo entry", err);
	return push_index(p, &p->stack, ((uint32_t *)p->memo.items)[place], err);
}

void pickle_close(struct pickle *p)
{
	free(p->values.items);
	free(p->cells.items);
	free(p->stack.items);
	free(p->marks.items);
	free(p->memo.items);
	*p = (struct pickle){ 0 };
}
