/* SPDX-License-Identifier: Apache-2.0 */
/* store_feed.h - drives the store's core from memory: bytes in, bytes out, no sockets. */
#ifndef WS_TESTS_STORE_FEED_H
#define WS_TESTS_STORE_FEED_H

#include "store_core.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void core_open(struct ws_store_core *core, unsigned world_size, const char *group)
{
	const struct ws_store_opts opts = { .world_size = world_size, .group = group };
	assert_int_equal(ws_store_core_init(core, &opts, NULL), 0);
	core->now = 1;
}

/* Bytes written as hex, spaces between, text in double quotes. The caller frees b. */
static inline void bytes_of(struct ws_buf *b, const char *text)
{
	ws_buf_init(b, 0);
	while (*text) {
		if (*text == ' ') {
			text++;
		} else if (*text == '"') {
			const char *end = strchr(++text, '"');
			ws_buf_add(b, text, (size_t)(end - text));
			text = end + 1;
		} else {
			unsigned byte = 0;
			assert_int_equal(sscanf(text, "%2x", &byte), 1);
			ws_buf_putc(b, (char)byte);
			text += 2;
		}
	}
}

static inline void feed(struct ws_store_conn *c, const void *data, size_t n)
{
	ws_buf_add(&c->rx, data, n);
	ws_store_conn_run(c, c->core->now);
}

/* Feeds hex and compares all that comes back. */
static inline void talk(struct ws_store_conn *c, const char *request, const char *reply)
{
	struct ws_buf in, out;
	bytes_of(&in, request);
	bytes_of(&out, reply);
	feed(c, in.data, in.len);
	assert_int_equal(c->tx.len, out.len);
	if (out.len)
		assert_memory_equal(c->tx.data, out.data, out.len);
	ws_store_conn_sent(c, c->tx.len);
	ws_buf_free(&in);
	ws_buf_free(&out);
}

/* Requests as a client of epoch C (or A, B) would write them. */
static inline void put_op(struct ws_buf *b, char epoch, enum ws_store_op op)
{
	const int code = ws_store_opcode(epoch == 'A' ? WS_EPOCH_A : epoch == 'B' ? WS_EPOCH_B :
	                                 WS_EPOCH_C, op);
	assert_true(code >= 0);
	ws_store_put_u8(b, (unsigned)code);
}

static inline void put_str(struct ws_buf *b, const char *s)
{
	ws_store_put_bytes(b, s, strlen(s));
}

static inline void send_set(struct ws_store_conn *c, char epoch, const char *key,
                            const void *value, size_t n)
{
	struct ws_buf b;
	ws_buf_init(&b, 0);
	put_op(&b, epoch, WS_OP_SET);
	put_str(&b, key);
	ws_store_put_bytes(&b, value, n);
	feed(c, b.data, b.len);
	ws_buf_free(&b);
}

static inline void send_wait(struct ws_store_conn *c, char epoch, const char *key)
{
	struct ws_buf b;
	ws_buf_init(&b, 0);
	put_op(&b, epoch, WS_OP_WAIT);
	ws_store_put_i64(&b, 1);
	put_str(&b, key);
	feed(c, b.data, b.len);
	ws_buf_free(&b);
}

static inline void send_add(struct ws_store_conn *c, char epoch, const char *key, int64_t delta)
{
	struct ws_buf b;
	ws_buf_init(&b, 0);
	put_op(&b, epoch, WS_OP_ADD);
	put_str(&b, key);
	ws_store_put_i64(&b, delta);
	feed(c, b.data, b.len);
	ws_buf_free(&b);
}

/* A peer that has connected and joined; in epoch A with its twin. */
static inline struct ws_store_conn *peer_of(struct ws_store_core *core, char epoch,
                                            const char *address)
{
	struct ws_store_conn *c = ws_store_conn_open(core, address);
	assert_non_null(c);
	if (epoch == 'C')
		feed(c, "\x00\xce\xf7\x85\x3c", 5);
	send_add(c, epoch, "init/", 1);
	if (epoch == 'A')
		assert_non_null(ws_store_conn_open(core, address));
	ws_store_conn_sent(c, c->tx.len);
	return c;
}

#endif
