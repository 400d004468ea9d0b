/* SPDX-License-Identifier: Apache-2.0 */
/* push_channel.h - messages between a sender that is not the first and the first one, through the
 * store of the first. */
#ifndef WS_PUSH_CHANNEL_H
#define WS_PUSH_CHANNEL_H

#include "push_protocol.h"

#include "gloo.h"
#include "senders.h"
#include "store.h"

struct push_channel {
	const struct ws_push *p;
	/* our place among the senders: the first misses us when it closes */
	struct ws_store_client *store;
	struct ws_gloo_kv kv; /* the same */
};

/* Where the store is. */
struct ws_store_client_opts push_channel_place(const struct ws_push *p);
bool push_channel_lost(const struct ws_err *e); /* the connection was */

/* Finds the first, tells it what we have, and waits for what it wants of that. */
int push_channel_share(struct push_channel *t, const struct ws_sender_list *list, ws_deadline until,
                       struct ws_buf *text, struct ws_err *err);
/* For the first, so that it says this and not that we went away. Not connected: nothing, as
 * below. */
void push_channel_failure(struct push_channel *t, const struct ws_err *why);
/* Tells the first that all of our share has left, from a source that has not changed. */
int push_channel_sent(struct push_channel *t, struct ws_err *err);
void push_channel_bye(struct push_channel *t);
void push_channel_disconnect(struct push_channel *t);
/* 0: it ended well; 1: it did not, and *err is why; -1: that is not known, and *err is why not. */
int push_channel_end(struct push_channel *t, ws_deadline until, struct ws_err *err);

#endif
