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
	bool gap; /* partial although it has all weights of this run: an earlier push left it
	           * partial, and this run does not complete that push */
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
	PUSH_RUN_BEGINS,       /* resets the state; records of earlier runs are read later */
	PUSH_FOUND_PARTIAL,    /* it was partial before this run */
	/* its old values are lost: its memory was woken, or its packed weights were unpacked */
	PUSH_VALUES_LOST,
	PUSH_SCOPE_OPENED,     /* it confirmed the begin of an update, or may have begun one */
	PUSH_SCOPE_CLOSED,     /* it confirmed the end */
	PUSH_SCOPE_DROPPED,    /* it is in no update now, although it did not confirm the end */
	PUSH_BYTES_LEFT,       /* bytes, or a request that changes weights, may have left */
	PUSH_REFUSED_UNSENT,   /* nothing was sent, so its weights are unchanged */
	PUSH_ACKED_LAST,       /* it confirmed everything that this run sends */
	/* its confirmation is void: a mismatch, another server, a changed source */
	PUSH_WITHDRAWN,
	/* everything was sent, but an earlier partial push is still not complete */
	PUSH_OTHERS_MISSING,
	PUSH_RESET_ASKED,      /* a request to make the weights random is about to leave */
	PUSH_RESET_REFUSED,    /* the server refused it and changed nothing */
	PUSH_RESET_UNDONE,     /* all weights are known to be back */
	PUSH_EVENTS
};

/* The state after an event. Defined for every event in every state. An event that contradicts a
 * commit, such as bytes after the last confirmation, makes it partial. */
struct push_weights push_weights_after(struct push_weights w, enum push_event event);

/* Applies the event to the weights of an endpoint. `w` is const so that no other function writes
 * it; this function casts const away. */
void push_target_event(const struct push_weights *w, enum push_event event);

/* True if the endpoint has everything that this run sends: it is committed, or has a gap. */
bool push_weights_arrived(const struct push_weights *w);

#endif
