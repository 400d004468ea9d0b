/* SPDX-License-Identifier: Apache-2.0 */
/* push_target.h - which weights an endpoint has. The result of a push reports one of three states:
 *
 *   untouched   the weights that it had before this run
 *   partial     some old and some new weights, or it is not known which
 *   committed   all weights of this run
 *
 * Protocols, checks and records report events, and push_target.c alone changes the
 * state. There is no I/O here. */
#ifndef WS_PUSH_TARGET_H
#define WS_PUSH_TARGET_H

#include "wsync/event.h"

#include <stdbool.h>

struct push_weights {
	enum ws_endpoint_state state;
	enum ws_endpoint_state before; /* when the run began: untouched or partial */
	bool gap; /* partial, although it has everything of this run: an earlier push left it so,
	           * and this run does not complete that */
	bool scope_open;               /* it waits for the request that ends an update */
	/* it confirmed everything; while scope_open it still has to confirm the end */
	bool fully_sent;
	bool random;                   /* its weights may have been reset to random values */
	/* this run has sent it bytes, or a request that changes weights */
	bool touched;
	/* in this run: released memory was woken, or packed weights were unpacked */
	bool values_lost;
};

enum push_event {
	PUSH_RUN_BEGINS,       /* nothing is known of earlier runs: their records say it */
	PUSH_FOUND_PARTIAL,    /* it was partial before this run */
	/* what it had is gone: its memory was woken, or its packed weights were unpacked */
	PUSH_VALUES_LOST,
	PUSH_SCOPE_OPENED,     /* it confirmed the begin of an update, or may have obeyed it */
	PUSH_SCOPE_CLOSED,     /* it confirmed the end */
	PUSH_SCOPE_DROPPED,    /* it is not in the update any more, without that */
	PUSH_BYTES_LEFT,       /* bytes, or a request that changes weights, may have left */
	PUSH_REFUSED_UNSENT,   /* it is known that nothing changed after all */
	PUSH_ACKED_LAST,       /* it confirmed everything that this run sends */
	/* that does not hold: a mismatch, another server, a source that changed */
	PUSH_WITHDRAWN,
	/* everything was sent, and an earlier push is not completed by that */
	PUSH_OTHERS_MISSING,
	PUSH_RESET_ASKED,      /* a request to make the weights random is about to leave */
	PUSH_RESET_REFUSED,    /* it changed nothing */
	PUSH_RESET_UNDONE,     /* all weights are known to be back */
	PUSH_EVENTS
};

/* The state after an event. Defined for every event in every state. An event that contradicts a
 * commit, such as bytes after the last confirmation, makes it partial. */
struct push_weights push_weights_after(struct push_weights w, enum push_event event);

/* Applies it to the weights of an endpoint. They are const so that no other function writes them;
 * this one casts it away. */
void push_target_event(const struct push_weights *w, enum push_event event);

/* Does it have everything that this run sends? Then it is committed, or partial with a gap. */
bool push_weights_arrived(const struct push_weights *w);

#endif
