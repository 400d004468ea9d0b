/* SPDX-License-Identifier: Apache-2.0 */
/* serve_wire.c - faults on the wire: at the store, on joining the mesh, while receiving.
 *
 * The first rank acts like a rank of a broken server. So the group fails, here and for its peers.
 * If the fault makes peers wait, the wait ends when the store closes, as with torch. */
#include "serve_rank.h"

#include "gloo_wire.h"
#include "sock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int failed(enum ws_serve_fault_kind kind, struct ws_err *err)
{
	return ws_err_set(err, WS_EDATA, "fault %s", ws_serve_fault_name(kind));
}

static void make_garbage(uint8_t *dst, size_t n)
{
	uint64_t x = UINT64_C(0x9e3779b97f4a7c15);
	for (size_t i = 0; i < n; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		dst[i] = (uint8_t)x | 0x80; /* no small length, no known opcode */
	}
}

/* ---- the store ---- */

/* Begins like torch, and announces a key that is never sent. */
static size_t make_endless_key(uint8_t *dst)
{
	static const uint8_t frame[] = { 0,    0xce, 0xf7, 0x85, 0x3c, /* VALIDATE */
		                         1,                            /* SET */
		                         0,    0,    0,    0,    0, 0, 0, 0x10 };
	memcpy(dst, frame, sizeof frame);
	return sizeof frame;
}

int ws_serve_spoil_store(struct ws_serve_rank *r, struct ws_err *err)
{
	struct ws_serve_group *g = r->group;
	const enum ws_serve_fault_kind kind = ws_serve_wire_fault(g->serve, WS_WIRE_STORE);
	uint8_t frame[64];
	size_t n = 0;
	if (kind == WS_FAULT_NONE)
		return 0;
	if (kind == WS_FAULT_SLOW) {
		ws_serve_linger(g->serve);
		return 0;
	}
	if (kind == WS_FAULT_DIE)
		ws_serve_die(g->serve);
	if (kind == WS_FAULT_REFUSE || kind == WS_FAULT_DIE)
		return failed(kind, err);
	const int fd = ws_sock_connect(g->address, g->port, r->until, &g->cancel, err);
	if (fd < 0)
		return -1;
	if (kind == WS_FAULT_GARBAGE)
		make_garbage(frame, n = sizeof frame);
	else if (kind == WS_FAULT_WRONG_LENGTH)
		n = make_endless_key(frame);
	if (n)
		ws_sock_write(fd, frame, n, r->until, &g->cancel, "store", NULL);
	if (kind != WS_FAULT_DROP)
		ws_sock_read(fd, frame, 1, r->until, &g->cancel, "store", NULL);
	close(fd);
	return failed(kind, err);
}

/* ---- joining ---- */

static int publish(struct ws_serve_rank *r, const struct ws_buf *value, struct ws_err *err)
{
	char key[sizeof r->prefix + 16];
	snprintf(key, sizeof key, "%s%u", r->prefix, r->group->rank_offset + r->tp_rank);
	return ws_store_client_set(r->client, key, value->data, value->len, r->until, err);
}

/* Writes a card with a valid address that has no listener. */
static int make_card(struct ws_serve_rank *r, struct ws_buf *out, struct ws_err *err)
{
	struct ws_gloo_address address;
	uint16_t port = 0;
	const int fd = ws_sock_listen("127.0.0.1", 0, 0, NULL, &port, err);
	if (fd < 0)
		return -1;
	close(fd);
	if (ws_gloo_address_make("127.0.0.1", port, &address, err))
		return -1;
	ws_gloo_card_pack(out, "127.0.0.1", &address, r->group->world_size, true);
	return 0;
}

int ws_serve_spoil_joining(struct ws_serve_rank *r, enum ws_serve_fault_kind kind,
                           struct ws_err *err)
{
	char never[sizeof r->prefix + 16];
	uint8_t garbage[200];
	struct ws_buf value;
	if (kind == WS_FAULT_SLOW) {
		ws_serve_linger(r->group->serve);
		return 0;
	}
	if (kind == WS_FAULT_DIE)
		ws_serve_die(r->group->serve);
	ws_buf_init(&value, 1 << 20);
	int rc = make_card(r, &value, err);
	if (kind == WS_FAULT_GARBAGE) {
		ws_buf_reset(&value);
		make_garbage(garbage, sizeof garbage);
		ws_buf_add(&value, garbage, sizeof garbage);
	} else if (kind == WS_FAULT_WRONG_LENGTH && rc == 0) {
		value.len -= 20;
	}
	if (rc == 0 && kind != WS_FAULT_HANG && kind != WS_FAULT_DIE)
		rc = publish(r, &value, err);
	snprintf(never, sizeof never, "%snever", r->prefix);
	ws_buf_reset(&value);
	if (rc == 0 && kind != WS_FAULT_DIE)
		ws_store_client_get(r->client, never, r->until, NULL, &value, NULL);
	ws_buf_free(&value);
	return rc ? rc : failed(kind, err);
}

/* ---- while receiving ---- */

/* Waits until the group is unusable, the endpoint stops, or the deadline passes. */
static void keep_waiting(struct ws_serve_rank *r)
{
	struct ws_serve *s = r->group->serve;
	pthread_mutex_lock(&s->lock);
	while (!ws_cancelled(&r->group->cancel) && !s->stopping && !ws_deadline_passed(r->until))
		ws_serve_wait_changed(s, r->until);
	pthread_mutex_unlock(&s->lock);
}

/* Called when half of the bytes are received: a fault then does the most harm. */
int ws_serve_strike(struct ws_serve_rank *r, enum ws_serve_fault_kind kind, struct ws_err *err)
{
	struct ws_serve *s = r->group->serve;
	if (kind == WS_FAULT_SLOW) {
		ws_serve_linger(s);
		return 0;
	}
	if (kind == WS_FAULT_DIE)
		ws_serve_die(s);
	if (kind == WS_FAULT_HANG)
		keep_waiting(r);
	return failed(kind, err);
}
