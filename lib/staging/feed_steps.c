/* SPDX-License-Identifier: Apache-2.0 */
#include "feed_steps.h"

#include "feed.h"
#include "feed_desk.h"

#include <stdlib.h>

int ws_feed_steps_add(struct ws_feed_steps *s, const struct ws_feed_step *step, struct ws_err *err)
{
	if (s->n == s->cap) {
		const size_t cap = s->cap ? s->cap * 2 : 64;
		struct ws_feed_step *list = reallocarray(s->list, cap, sizeof *list);
		if (!list)
			return ws_oom(err);
		s->list = list;
		s->cap = cap;
	}
	s->list[s->n++] = *step;
	return 0;
}

int ws_feed_steps_read(struct ws_feed_steps *s, const struct ws_span *span, uint64_t from,
                       uint64_t n, ws_devptr to, struct ws_err *err)
{
	const bool placed = span->place || span->n_boxes;
	const struct ws_feed_step step = { .kind = placed ? WS_FEED_PLACED : WS_FEED_READ,
		                           .span = span,
		                           .from = from,
		                           .n = n,
		                           .to = to };
	return ws_feed_steps_add(s, &step, err);
}

/* ---- formulas ---- */

static struct ws_feed_making *new_making(struct ws_feed_steps *s, struct ws_err *err)
{
	if (s->n_makings == s->cap_makings) {
		const size_t cap = s->cap_makings ? s->cap_makings * 2 : 16;
		struct ws_feed_making *makings = reallocarray(s->makings, cap, sizeof *makings);
		if (!makings) {
			ws_oom(err);
			return NULL;
		}
		s->makings = makings;
		s->cap_makings = cap;
	}
	return &s->makings[s->n_makings];
}

struct bucket {
	const struct ws_payload *payloads;
	size_t n;
	ws_devptr at;
	const struct ws_feed_desk *desk;
};

/* Where in the bucket the two results of a formula are wanted. */
static void find_results(const struct bucket *b, struct ws_feed_making *m)
{
	ws_devptr payload = b->at;
	for (size_t i = 0; i < b->n; i++) {
		ws_devptr at = payload;
		for (size_t k = 0; k < b->payloads[i].n_spans; k++) {
			const struct ws_span *s = &b->payloads[i].spans[k];
			if (s->formula && s->formula->formula == m->formula) {
				m->spans[s->formula->scales] = s;
				m->to[s->formula->scales] = at;
			}
			at += s->length;
		}
		payload = ws_feed_after(payload, &b->payloads[i]);
	}
}

/* Kernels write numbers where numbers may lie. */
static bool is_aligned(const struct ws_feed_making *m)
{
	const uint64_t size = m->formula->quantized ? 1 : m->formula->dtype == WS_DTYPE_F32 ? 4 : 2;
	return m->to[0] % size == 0 && m->to[1] % sizeof(float) == 0;
}

static bool is_made(const struct ws_feed_steps *s, const struct ws_span *span)
{
	for (size_t i = s->n_makings; i-- > 0;)
		if (s->makings[i].spans[span->formula->scales] == span)
			return true;
	return false;
}

/* Both results are made when the first of them is wanted. *read: it is a span like others. */
static int add_formula(struct ws_feed_steps *s, const struct bucket *b, const struct ws_span *span,
                       bool *read, struct ws_err *err)
{
	*read = false;
	if (is_made(s, span))
		return 0;
	struct ws_feed_making *m = new_making(s, err);
	if (!m)
		return -1;
	*m = (struct ws_feed_making){ .formula = span->formula->formula,
		                      .record = b->desk->records +
		                                s->n_makings % WS_FEED_RECORDS * WS_FEED_RECORD };
	find_results(b, m);
	*read = !is_aligned(m);
	if (*read)
		return 0;
	s->n_makings++;
	return ws_feed_formula_add(s, m, b->desk->scratch, b->desk->bytes, err);
}

/* ---- payloads ---- */

static int add_payload(struct ws_feed_steps *s, const struct bucket *b, const struct ws_payload *p,
                       ws_devptr at, struct ws_err *err)
{
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct ws_span *span = &p->spans[i];
		bool read = true;
		if (span->formula && b->desk && add_formula(s, b, span, &read, err))
			return -1;
		if (read && ws_feed_steps_read(s, span, 0, span->length, at, err))
			return -1;
		at += span->length;
	}
	return ws_feed_steps_add(s, &(struct ws_feed_step){ .kind = WS_FEED_END }, err);
}

int ws_feed_steps_make(const struct ws_payload *payloads, size_t n, ws_devptr at,
                       const struct ws_feed_desk *desk, struct ws_feed_steps **out,
                       struct ws_err *err)
{
	const struct bucket b = { payloads, n, at, desk };
	struct ws_feed_steps *s = calloc(1, sizeof *s);
	if (!s)
		return ws_oom(err);
	s->turn = desk ? desk->turn : 0;
	for (size_t i = 0; i < n; i++) {
		if (add_payload(s, &b, &payloads[i], at, err)) {
			ws_feed_steps_free(s);
			return -1;
		}
		at = ws_feed_after(at, &payloads[i]);
	}
	*out = s;
	return 0;
}

void ws_feed_steps_free(struct ws_feed_steps *s)
{
	if (!s)
		return;
	free(s->makings);
	free(s->list);
	free(s);
}

size_t ws_feed_steps_find(const struct ws_feed_steps *s, size_t payload)
{
	size_t step = 0;
	for (; payload > 0; step++)
		payload -= s->list[step].kind == WS_FEED_END;
	return step;
}
