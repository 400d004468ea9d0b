/* SPDX-License-Identifier: Apache-2.0 */
/* push_channel.c - messages to and from the first sender, as keys and values of its store. */
#include "push_channel.h"

#include <poll.h>
#include <string.h>

enum { AGAIN_MS = 20 };

static const int64_t ASK_NS = 10 * WS_NS_PER_S; /* the store answers at once */

struct ws_store_client_opts push_channel_place(const struct ws_push *p)
{
	return (struct ws_store_client_opts){ .host = p->opts.master_address,
		                              .port = p->opts.master_port };
}

void push_channel_disconnect(struct push_channel *t)
{
	ws_store_disconnect(t->store);
	t->store = NULL;
}

bool push_channel_lost(const struct ws_err *e)
{
	return e->code == WS_EREACH || e->code == WS_EDATA;
}

static int connect_store(struct push_channel *t, ws_deadline until, struct ws_err *err)
{
	const struct ws_store_client_opts opts = push_channel_place(t->p);
	struct ws_err why = WS_ERR_INIT;
	/* A store that closes during the handshake is that of an earlier push. */
	while (ws_store_connect(&opts, until, t->p->opts.cancel, &t->store, &why)) {
		if (push_channel_lost(&why) && !ws_deadline_passed(until)) {
			poll(NULL, 0, AGAIN_MS);
			continue;
		}
		if (err)
			*err = why;
		if (why.code == WS_ECANCELLED)
			return -1;
		ws_err_wrap(err, "sender 1 was not found");
		return ws_err_hint(
			err,
			"its options are the same but for {sender} 1/%u and the endpoints, and "
			"its machine must let others reach {master_port} %u",
			t->p->opts.senders, t->p->opts.master_port);
	}
	t->kv = ws_gloo_kv_client(t->store);
	return 0;
}

static int put_value(struct push_channel *t, const char *what, const struct ws_buf *value,
                     struct ws_err *err)
{
	char key[WS_SENDERS_KEY];
	ws_senders_key(key, t->p->opts.sender, what);
	return ws_senders_put(&t->kv, key, value, ws_deadline_in(ASK_NS), err);
}

static int tell_list(struct push_channel *t, const struct ws_sender_list *list, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, 0);
	ws_senders_write_list(list, &text);
	const int rc = put_value(t, "list", &text, err);
	ws_buf_free(&text);
	return rc;
}

/* The end is already there, so this is the store of the last push. Another one follows soon. */
static bool is_over(const struct push_channel *t)
{
	const char *const key = WS_SENDERS_END;
	bool over = false;
	return ws_store_client_check(t->store, &key, 1, ws_deadline_in(ASK_NS), &over, NULL) == 0 &&
	       over;
}

int push_channel_share(struct push_channel *t, const struct ws_sender_list *list, ws_deadline until,
                       struct ws_buf *text, struct ws_err *err)
{
	char key[WS_SENDERS_KEY];
	ws_senders_share_key(key, t->p->opts.sender);
	for (;;) {
		struct ws_err why = WS_ERR_INIT;
		if (connect_store(t, until, err))
			return -1;
		if (is_over(t))
			ws_err_set(&why, WS_EREACH, "sender 1 is still ending an earlier push");
		else if (tell_list(t, list, &why) == 0 &&
		         ws_senders_get(&t->kv, key, until, t->p->opts.cancel, text, &why) == 0)
			return 0;
		if (!push_channel_lost(&why) || ws_deadline_passed(until)) {
			if (err)
				*err = why;
			return why.code == WS_ETIMEOUT ?
			               ws_err_wrap(err, "sender 1 assigned no share") :
			               -1;
		}
		push_channel_disconnect(t);
		poll(NULL, 0, AGAIN_MS);
	}
}

int push_channel_end(struct push_channel *t, ws_deadline until, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, 1 << 20);
	int rc = ws_senders_get(&t->kv, WS_SENDERS_END, until, t->p->opts.cancel, &text, err);
	if (rc == 0 && ws_senders_read_end(text.data, text.len, err)) {
		ws_err_wrap(err, "sender 1");
		rc = 1;
	}
	ws_buf_free(&text);
	return rc;
}

void push_channel_failure(struct push_channel *t, const struct ws_err *why)
{
	struct ws_buf text;
	if (!t->store)
		return;
	ws_buf_init(&text, 0);
	ws_senders_write_end(&text, why);
	put_value(t, "failed", &text, NULL);
	ws_buf_free(&text);
}

int push_channel_sent(struct push_channel *t, struct ws_err *err)
{
	const struct ws_buf nothing = { 0 };
	return put_value(t, "sent", &nothing, err);
}

void push_channel_bye(struct push_channel *t)
{
	const struct ws_buf nothing = { 0 };
	if (t->store)
		(void)put_value(t, "bye", &nothing, NULL);
}
