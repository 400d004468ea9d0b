/* SPDX-License-Identifier: Apache-2.0 */
#include "push_target.h"

bool push_weights_arrived(const struct push_weights *w)
{
	return w->state == WS_COMMITTED || w->gap;
}

static struct push_weights with_state(struct push_weights w, enum ws_endpoint_state state)
{
	w.state = state;
	w.gap = w.gap && state == WS_PARTIAL;
	return w;
}

static struct push_weights found(struct push_weights w, enum ws_endpoint_state state)
{
	w.before = state;
	return with_state(w, state);
}

static struct push_weights with_scope(struct push_weights w, bool open)
{
	w.scope_open = open;
	return w;
}

static struct push_weights close_scope(struct push_weights w)
{
	w.scope_open = false;
	return w.fully_sent ? with_state(w, WS_COMMITTED) : w;
}

static struct push_weights acked_last(struct push_weights w)
{
	w.fully_sent = true;
	return w.scope_open ? w : with_state(w, WS_COMMITTED);
}

static struct push_weights withdrawn(struct push_weights w)
{
	w.gap = false;
	w.fully_sent = false;
	return w.state == WS_UNTOUCHED ? w : with_state(w, WS_PARTIAL);
}

static struct push_weights with_gap(struct push_weights w)
{
	if (!push_weights_arrived(&w))
		return w;
	w.gap = true;
	return with_state(w, WS_PARTIAL);
}

static struct push_weights reset(struct push_weights w, bool random, enum ws_endpoint_state state)
{
	w.random = w.touched = random;
	return found(w, state);
}

static struct push_weights undo_reset(struct push_weights w)
{
	w.random = false;
	return with_state(w, WS_COMMITTED);
}

struct push_weights push_weights_after(struct push_weights w, enum push_event event)
{
	switch (event) {
	case PUSH_RUN_BEGINS:
		return (struct push_weights){ .state = WS_UNTOUCHED, .before = WS_UNTOUCHED };
	case PUSH_FOUND_PARTIAL:
		return found(w, WS_PARTIAL);
	case PUSH_VALUES_LOST:
		w.values_lost = true;
		return found(w, WS_PARTIAL);
	case PUSH_SCOPE_OPENED:
		return with_scope(w, true);
	case PUSH_SCOPE_CLOSED:
		return close_scope(w);
	case PUSH_SCOPE_DROPPED:
		return with_scope(w, false);
	case PUSH_BYTES_LEFT:
		w.touched = true;
		return with_state(w, WS_PARTIAL);
	case PUSH_REFUSED_UNSENT:
		w.touched = w.state == WS_COMMITTED;
		return with_state(w, w.touched ? WS_PARTIAL : w.before);
	case PUSH_ACKED_LAST:
		return acked_last(w);
	case PUSH_WITHDRAWN:
		return withdrawn(w);
	case PUSH_OTHERS_MISSING:
		return with_gap(w);
	case PUSH_RESET_ASKED:
		return reset(w, true, WS_PARTIAL);
	case PUSH_RESET_REFUSED:
		return reset(w, false, WS_UNTOUCHED);
	case PUSH_RESET_UNDONE:
		return undo_reset(w);
	case PUSH_EVENTS:
		break;
	}
	return w;
}

void push_target_event(const struct push_weights *w, enum push_event event)
{
	*(struct push_weights *)w = push_weights_after(*w, event);
}
