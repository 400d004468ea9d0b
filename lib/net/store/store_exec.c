/* SPDX-License-Identifier: Apache-2.0 */
/* store_exec.c - executes requests like torch's servers.
 *
 * Where torch's two servers differ (GET of a missing key, a COMPARE_SET with waiters) this
 * follows the libuv one. Values are bytes and counters are decimal text. Where torch throws an
 * exception, the connection is closed here too. */
#include "store_core.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most keys of one WAIT; a rank waits for one before it sets its own. */
enum { STRANGER_KEYS = 64 };

static struct ws_store_entry *find(const struct ws_store_conn *c, struct ws_bytes key)
{
	return ws_store_keys_find(&c->core->keys, key);
}

static int stored(struct ws_store_conn *c, int rc)
{
	if (rc)
		ws_store_conn_doom(c, "the data that it sent would not fit into the store");
	return rc;
}

static int write_key(struct ws_store_conn *c, struct ws_bytes key, struct ws_bytes value)
{
	if (!ws_store_watch_may_write(c, key, false) ||
	    stored(c, ws_store_keys_set(&c->core->keys, key, value)))
		return -1;
	find(c, key)->owner = c->id;
	ws_store_watch_write(c, key, value);
	return 0;
}

static void exec_validate(struct ws_store_conn *c, struct ws_store_fields f)
{
	if (ws_store_take_u32(&f) != WS_STORE_MAGIC)
		ws_store_conn_doom(c, "its VALIDATE carries another magic number");
}

static void exec_ping(struct ws_store_conn *c, struct ws_store_fields f)
{
	ws_store_put_u32(&c->tx, ws_store_take_u32(&f));
}

static void exec_set(struct ws_store_conn *c, struct ws_store_fields f)
{
	const struct ws_bytes key = ws_store_take_bytes(&f);
	write_key(c, key, ws_store_take_bytes(&f));
}

static bool equal(struct ws_bytes a, struct ws_bytes b)
{
	return a.n == b.n && (a.n == 0 || memcmp(a.data, b.data, a.n) == 0);
}

/* The reply is the key's value afterwards; for a key that stays absent, the expected value. */
static void exec_compare_set(struct ws_store_conn *c, struct ws_store_fields f)
{
	const struct ws_bytes key = ws_store_take_bytes(&f);
	const struct ws_bytes expected = ws_store_take_bytes(&f);
	const struct ws_bytes desired = ws_store_take_bytes(&f);
	const struct ws_store_entry *e = find(c, key);
	const bool there = e && e->has_value;
	struct ws_bytes reply = there ? ws_store_entry_value(e) : expected;

	if (there ? equal(reply, expected) : expected.n == 0) {
		if (write_key(c, key, desired))
			return;
		reply = desired;
	}
	ws_store_put_bytes(&c->tx, reply.data, reply.n);
}

static void put_value(struct ws_store_conn *c, struct ws_bytes key)
{
	ws_store_watch_read(c, key);
	const struct ws_bytes value = ws_store_entry_value(find(c, key));
	ws_store_put_bytes(&c->tx, value.data, value.n);
}

static void exec_get(struct ws_store_conn *c, struct ws_store_fields f)
{
	put_value(c, ws_store_take_bytes(&f));
}

static void exec_multi_get(struct ws_store_conn *c, struct ws_store_fields f)
{
	/* A list that repeats one big key ends when the output buffer is full. */
	for (int64_t n = ws_store_take_i64(&f); n > 0 && !c->tx.failed; n--)
		put_value(c, ws_store_take_bytes(&f));
}

/* torch parses with std::stoll: leading spaces and trailing garbage pass. */
static int read_counter(const struct ws_store_entry *e, int64_t *value)
{
	char text[32], *end;
	*value = 0;
	if (!e || !e->has_value)
		return 0;
	if (e->n_value >= sizeof text)
		return -1;
	if (e->n_value)
		memcpy(text, e->value, e->n_value);
	text[e->n_value] = 0;
	errno = 0;
	*value = strtoll(text, &end, 10);
	return end == text || errno ? -1 : 0;
}

static int add_to(struct ws_store_conn *c, struct ws_bytes key, int64_t delta, int64_t *sum)
{
	if (!ws_store_watch_may_write(c, key, true))
		return -1;
	if (read_counter(find(c, key), sum)) {
		ws_store_conn_doom(c, "it sent ADD for a key whose value is not a number");
		return -1;
	}
	*sum = (int64_t)((uint64_t)*sum + (uint64_t)delta); /* wraps, as in torch */
	char text[32];
	const int n = snprintf(text, sizeof text, "%" PRId64, *sum);
	return stored(c,
	              ws_store_keys_set(&c->core->keys, key, (struct ws_bytes){ text, (size_t)n }));
}

/* Rank 0 joins a store-based barrier by being counted with the first peer that arrives. */
static int64_t our_share(const struct ws_store_conn *c, struct ws_bytes key, int64_t delta)
{
	const bool first = delta > 0 && !ws_store_entry_there(find(c, key));
	return first && ws_store_classify(key.data, key.n, c->core->group) == WS_KEY_BARRIER ? 1 :
	                                                                                       0;
}

static void exec_add(struct ws_store_conn *c, struct ws_store_fields f)
{
	const struct ws_bytes key = ws_store_take_bytes(&f);
	const int64_t delta = ws_store_take_i64(&f);
	int64_t sum;

	const enum ws_store_key kind = ws_store_classify(key.data, key.n, NULL);
	if (kind == WS_KEY_INIT && delta > 0 && !c->joined && ws_store_watch_join(c))
		return;
	if (add_to(c, key, delta + our_share(c, key, delta), &sum))
		return;
	ws_store_watch_count(c, key, sum);
	ws_store_put_i64(&c->tx, sum);
}

static void exec_check(struct ws_store_conn *c, struct ws_store_fields f)
{
	int64_t n = ws_store_take_i64(&f);
	while (n > 0 && ws_store_entry_there(find(c, ws_store_take_bytes(&f))))
		n--;
	ws_store_put_u8(&c->tx, n > 0 ? WS_STORE_NOT_READY : WS_STORE_READY);
}

/* A new WAIT replaces the old one: torch 1.13 abandons a WAIT silently. */
static void exec_wait(struct ws_store_conn *c, struct ws_store_fields f)
{
	const int64_t n = ws_store_take_i64(&f);
	struct ws_store_fields keys = f;
	for (int64_t i = 0; i < n; i++)
		ws_store_watch_read(c, ws_store_take_bytes(&keys));
	if (n > STRANGER_KEYS && !c->member)
		ws_store_conn_doom(c, "it waits for more keys than any rank");
	if (c->doomed)
		return;
	ws_store_keys_forget(&c->core->keys, &c->waiter);
	if (stored(c, ws_store_keys_wait(&c->core->keys, &c->waiter, f, (size_t)n)))
		return;
	if (c->waiter.n_missing == 0)
		ws_store_put_u8(&c->tx, WS_STORE_WOKEN);
}

static void exec_cancel_wait(struct ws_store_conn *c, struct ws_store_fields f)
{
	(void)f;
	ws_store_keys_forget(&c->core->keys, &c->waiter);
	ws_store_put_u8(&c->tx, WS_STORE_WAIT_CANCELLED);
}

static void exec_count(struct ws_store_conn *c, struct ws_store_fields f)
{
	(void)f;
	ws_store_put_i64(&c->tx, (int64_t)c->core->keys.n_values);
}

/* Registered, but never called back: process groups do not use it. */
static void exec_watch(struct ws_store_conn *c, struct ws_store_fields f)
{
	(void)f;
	ws_store_put_u8(&c->tx, WS_STORE_CALLBACK_REGISTERED);
}

static void exec_delete(struct ws_store_conn *c, struct ws_store_fields f)
{
	const struct ws_bytes key = ws_store_take_bytes(&f);
	if (ws_store_watch_may_write(c, key, false))
		ws_store_put_i64(&c->tx, ws_store_keys_delete(&c->core->keys, key));
}

static void exec_append(struct ws_store_conn *c, struct ws_store_fields f)
{
	const struct ws_bytes key = ws_store_take_bytes(&f);
	if (ws_store_watch_may_write(c, key, false) &&
	    !stored(c, ws_store_keys_append(&c->core->keys, key, ws_store_take_bytes(&f))))
		find(c, key)->owner = c->id;
}

static void exec_multi_set(struct ws_store_conn *c, struct ws_store_fields f)
{
	for (int64_t n = ws_store_take_i64(&f); n > 0; n--) {
		const struct ws_bytes key = ws_store_take_bytes(&f);
		if (write_key(c, key, ws_store_take_bytes(&f)))
			return;
	}
}

static void put_key(void *ctx, const struct ws_store_entry *e)
{
	ws_store_put_bytes(ctx, e->key, e->n_key);
}

/* The list shows the group's name. */
static void exec_list(struct ws_store_conn *c, struct ws_store_fields f)
{
	(void)f;
	if (!c->member) {
		ws_store_conn_doom(c, "it asked for all keys");
		return;
	}
	ws_store_put_i64(&c->tx, (int64_t)c->core->keys.n_values);
	ws_store_keys_each(&c->core->keys, put_key, &c->tx);
}

/* The counter stays, as in torch: a barrier's name can be used once. */
static void exec_barrier(struct ws_store_conn *c, struct ws_store_fields f)
{
	const struct ws_bytes key = ws_store_take_bytes(&f);
	const int64_t world_size = ws_store_take_i64(&f);
	int64_t arrived;

	ws_store_keys_forget(&c->core->keys, &c->waiter);
	if (add_to(c, key, 1, &arrived) ||
	    stored(c, ws_store_keys_arrive(&c->core->keys, &c->waiter, key)))
		return;
	if (arrived >= world_size)
		ws_store_keys_release(&c->core->keys, key);
}

void ws_store_exec(struct ws_store_conn *c, enum ws_store_op op, struct ws_store_fields f)
{
	static void (*const exec[WS_OP_COUNT])(struct ws_store_conn *, struct ws_store_fields) = {
		[WS_OP_VALIDATE] = exec_validate,     [WS_OP_SET] = exec_set,
		[WS_OP_COMPARE_SET] = exec_compare_set, [WS_OP_GET] = exec_get,
		[WS_OP_ADD] = exec_add,               [WS_OP_CHECK] = exec_check,
		[WS_OP_WAIT] = exec_wait,             [WS_OP_GETNUMKEYS] = exec_count,
		[WS_OP_WATCH_KEY] = exec_watch,       [WS_OP_DELETE_KEY] = exec_delete,
		[WS_OP_APPEND] = exec_append,         [WS_OP_MULTI_GET] = exec_multi_get,
		[WS_OP_MULTI_SET] = exec_multi_set,   [WS_OP_CANCEL_WAIT] = exec_cancel_wait,
		[WS_OP_PING] = exec_ping,             [WS_OP_LIST_KEYS] = exec_list,
		[WS_OP_BARRIER] = exec_barrier,
	};
	exec[op](c, f);
}
