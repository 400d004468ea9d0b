/* SPDX-License-Identifier: Apache-2.0 */
/* push_channel.h - messages between another sender and the first one, through the store of the
 * first. */
#ifndef WS_PUSH_CHANNEL_H
#define WS_PUSH_CHANNEL_H

#include "push_protocol.h"

#include "gloo.h"
#include "senders.h"
#include "store.h"

struct push_channel {
	const struct ws_push *p;
	/* our membership: the first sender reports us lost when this connection closes */
	struct ws_store_client *store;
	struct ws_gloo_kv kv; /* the same store */
};

/* The address of the store. */
struct ws_store_client_opts push_channel_place(const struct ws_push *p);
bool push_channel_lost(const struct ws_err *e); /* true if the connection broke */

/* Connects to the first sender, sends it our list of tensors, and waits for our share. */
int push_channel_share(struct push_channel *t, const struct ws_sender_list *list, ws_deadline until,
                       struct ws_buf *text, struct ws_err *err);
/* Reports our failure to the first sender, so that it does not report us lost. Not connected: does
 * nothing, like the next functions. */
void push_channel_failure(struct push_channel *t, const struct ws_err *why);
/* Reports that our whole share was sent, from a source that has not changed. */
int push_channel_sent(struct push_channel *t, struct ws_err *err);
void push_channel_bye(struct push_channel *t);
void push_channel_disconnect(struct push_channel *t);
/* 0: the push succeeded; 1: it failed, and *err is why; -1: the result could not be read. */
int push_channel_end(struct push_channel *t, ws_deadline until, struct ws_err *err);

#endif
