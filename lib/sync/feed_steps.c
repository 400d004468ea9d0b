/* SPDX-License-Identifier: Apache-2.0 */
#include "feed_steps.h"

#include "feed.h"

#include <stdlib.h>

static int add(struct ws_feed_steps *s, const struct ws_feed_step *step, struct ws_err *err)
{
	if (s->n == s->cap) {
		const size_t cap = s->cap ? s->cap * 2 : 64;
		struct ws_feed_step *list = reallocarray(s->list, cap, sizeof *list);
		if (!list)
			return ws_err_set(err, WS_ESYSTEM, "out of memory");
		s->list = list;
		s->cap = cap;
	}
	s->list[s->n++] = *step;
	return 0;
}

static int add_payload(struct ws_feed_steps *s, const struct ws_payload *p, ws_devptr at, struct ws_err *err)
{
	for (size_t i = 0; i < p->n_spans; i++) {
		const struct ws_span *span = &p->spans[i];
		const struct ws_feed_step step = { .kind = span->place ? WS_FEED_PLACED : WS_FEED_READ,
			                           .span = span, .n = span->length, .to = at };
		if (add(s, &step, err))
			return -1;
		at += span->length;
	}
	return add(s, &(struct ws_feed_step){ .kind = WS_FEED_END }, err);
}

int ws_feed_steps_make(const struct ws_payload *payloads, size_t n, ws_devptr at, struct ws_feed_steps **out,
                       struct ws_err *err)
{
	struct ws_feed_steps *s = calloc(1, sizeof *s);
	if (!s)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		if (add_payload(s, &payloads[i], at, err)) {
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
