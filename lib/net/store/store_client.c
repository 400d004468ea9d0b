/* SPDX-License-Identifier: Apache-2.0 */
/* store_client.c - a client like torch's of one of the three epochs (store_wire.h).
 *
 * One request is in flight at a time. After an abandoned reply the position of the next one is
 * unknown, so the client is unusable from then on and says so. Only WAIT can be abandoned
 * safely, with CANCEL_WAIT, and not in epoch A. */
#include "sock.h"
#include "store.h"
#include "store_wire.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Immediate replies may come a little after the deadline, so that the connection stays in step:
 * the reply to CANCEL_WAIT, and the value after a late WAIT. After a cancel only the shorter time
 * is left, because the user waits. */
static const int64_t grace_ns = 5 * WS_NS_PER_S, cancelled_grace_ns = WS_NS_PER_S;
static const int64_t first_pause_ns = 20 * WS_NS_PER_MS, longest_pause_ns = WS_NS_PER_S;
enum { REPLY_PIECE = 64 << 10 };

struct ws_store_client {
	int fd, twin; /* twin: the silent second connection of epoch A */
	enum ws_store_epoch epoch;
	bool broken;
	/* ends every call; meanwhile: the flag of ws_store_connect or of one call */
	const struct ws_cancel *stop;
	struct ws_buf out; /* request under construction */
	char name[WS_HOST_MAX + 32]; /* "store at host:port" */
};

/* ---- one request ---- */

/* Begins a request; the fields follow with ws_store_put_*. */
static int begin(struct ws_store_client *c, enum ws_store_op op, struct ws_err *err)
{
	const int code = ws_store_opcode(c->epoch, op);
	if (ws_cancelled(c->stop))
		return ws_err_set(err, WS_ECANCELLED, "%s: cancelled", c->name);
	if (c->broken)
		return ws_err_set(err, WS_EDATA,
		                  "%s: an earlier request was left without its reply", c->name);
	if (code < 0)
		return ws_err_set(err, WS_EUSAGE, "%s: stores of this torch do not know %s",
		                  c->name, ws_store_op_name(op));
	ws_buf_reset(&c->out);
	ws_store_put_u8(&c->out, (unsigned)code);
	return 0;
}

static void put_text(struct ws_store_client *c, const char *key)
{
	ws_store_put_bytes(&c->out, key, strlen(key));
}

/* Sends the request in one piece: torch's libuv server requires that for VALIDATE. */
static int send_request(struct ws_store_client *c, ws_deadline until, struct ws_err *err)
{
	if (ws_buf_check(&c->out, c->name, err))
		return -1;
	if (ws_sock_write(c->fd, c->out.data, c->out.len, until, c->stop, c->name, err) == 0)
		return 0;
	c->broken = true;
	return -1;
}

static int receive(struct ws_store_client *c, void *dst, size_t n, ws_deadline until,
                   struct ws_err *err)
{
	if (ws_sock_read(c->fd, dst, n, until, c->stop, c->name, err) == 0)
		return 0;
	c->broken = true;
	return -1;
}

static int receive_i64(struct ws_store_client *c, ws_deadline until, int64_t *value,
                       struct ws_err *err)
{
	uint64_t wire;
	if (receive(c, &wire, sizeof wire, until, err))
		return -1;
	*value = (int64_t)ws_store_load_u64(&wire);
	return 0;
}

/* Memory grows with received bytes, not with announced ones. */
static int receive_bytes(struct ws_store_client *c, ws_deadline until, struct ws_buf *value,
                         struct ws_err *err)
{
	int64_t n;
	char piece[REPLY_PIECE];
	if (receive_i64(c, until, &n, err))
		return -1;
	if (n < 0) {
		c->broken = true;
		return ws_err_set(err, WS_EDATA, "%s: a value of %" PRIu64 " bytes was announced",
		                  c->name, (uint64_t)n);
	}
	while (n > 0) {
		const size_t now = n < REPLY_PIECE ? (size_t)n : REPLY_PIECE;
		if (receive(c, piece, now, until, err))
			return -1;
		if (ws_buf_add(value, piece, now)) {
			c->broken = true;
			return ws_buf_check(value, c->name, err);
		}
		n -= (int64_t)now;
	}
	return 0;
}

/* ---- connecting ---- */

static int shake_hands(struct ws_store_client *c, ws_deadline until, struct ws_err *err)
{
	const uint32_t nonce = (uint32_t)getpid();
	uint32_t echo;
	if (c->epoch != WS_EPOCH_C)
		return 0;
	if (begin(c, WS_OP_VALIDATE, err))
		return -1;
	ws_store_put_u32(&c->out, WS_STORE_MAGIC);
	if (send_request(c, until, err) || begin(c, WS_OP_PING, err))
		return -1;
	ws_store_put_u32(&c->out, nonce);
	if (send_request(c, until, err) || receive(c, &echo, sizeof echo, until, err)) {
		if (err && err->code == WS_EDATA)
			ws_err_hint(err, "stores of torch 2.2 to 2.4 do not know PING");
		else if (err && err->code == WS_ETIMEOUT)
			ws_err_hint(
				err,
				"stores of torch 2.1 and older do not answer in this way; or it is "
				"no store");
		return -1;
	}
	if (le32toh(echo) != nonce)
		return ws_err_set(err, WS_EDATA, "%s: answered PING with another number", c->name);
	return 0;
}

/* Like torch up to 2.0: the second connection is for callbacks and remains silent. */
static int open_twin(struct ws_store_client *c, const struct ws_store_client_opts *opts,
                     ws_deadline until, struct ws_err *err)
{
	if (c->epoch != WS_EPOCH_A)
		return 0;
	c->twin = ws_sock_connect(opts->host, opts->port, until, c->stop, err);
	return c->twin < 0 ? -1 : 0;
}

static bool worth_a_retry(const struct ws_err *e)
{
	switch (e->native) {
	case ECONNREFUSED:
	case ECONNRESET:
	case ECONNABORTED:
	case ETIMEDOUT:
	case EHOSTUNREACH:
	case ENETUNREACH:
		return e->code == WS_EREACH;
	default:
		return false;
	}
}

/* Sleeps; -1 with *e at the deadline or on a cancel. */
static int pause_for(int64_t ns, ws_deadline until, const struct ws_cancel *cancel,
                     const char *what, struct ws_err *e)
{
	struct pollfd p = { .fd = ws_cancel_fd(cancel), .events = POLLIN };
	const ws_deadline end = ws_deadline_min(until, ws_deadline_in(ns));
	while (!ws_deadline_passed(end) && !ws_cancelled(cancel))
		poll(&p, 1, ws_deadline_poll_ms(end, 100));
	if (ws_cancelled(cancel))
		return ws_err_set(e, WS_ECANCELLED, "%s: cancelled", what);
	return ws_deadline_passed(until) ? -1 : 0;
}

static int connect_patiently(const struct ws_store_client_opts *opts, ws_deadline until,
                             const struct ws_cancel *cancel, const char *what, struct ws_err *err)
{
	struct ws_err last = WS_ERR_INIT;
	/* it stops growing: a rank may wait for its master for hours */
	for (int64_t pause = first_pause_ns;; pause += pause < longest_pause_ns ? pause / 2 : 0) {
		const int fd = ws_sock_connect(opts->host, opts->port, until, cancel, &last);
		if (fd >= 0)
			return fd;
		if (!worth_a_retry(&last) ||
		    pause_for(pause < longest_pause_ns ? pause : longest_pause_ns, until, cancel,
		              what, &last))
			break;
	}
	if (err)
		*err = last;
	return last.code == WS_ECANCELLED ? -1 : ws_err_wrap(err, "%s", what);
}

static enum ws_store_epoch epoch_of(char letter)
{
	return letter == 'A' ? WS_EPOCH_A : letter == 'B' ? WS_EPOCH_B : WS_EPOCH_C;
}

int ws_store_connect(const struct ws_store_client_opts *opts, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_store_client **out,
                     struct ws_err *err)
{
	struct ws_store_client *c = calloc(1, sizeof *c);
	int64_t joined;
	if (!c)
		return ws_oom(err);
	c->fd = c->twin = -1;
	c->epoch = epoch_of(opts->epoch);
	c->stop = cancel;
	snprintf(c->name, sizeof c->name, "store at %s:%u", opts->host, opts->port);
	c->fd = connect_patiently(opts, until, cancel, c->name, err);
	if (c->fd < 0)
		goto fail;
	ws_sock_keep_alive(c->fd);
	if (shake_hands(c, until, err))
		goto fail;
	if (!opts->no_join && ws_store_client_add(c, "init/", 1, until, &joined, err))
		goto fail;
	if (open_twin(c, opts, until, err))
		goto fail;
	c->stop = opts->stop;
	*out = c;
	return 0;
fail:
	ws_store_disconnect(c);
	return -1;
}

void ws_store_disconnect(struct ws_store_client *c)
{
	if (!c)
		return;
	if (c->fd >= 0)
		close(c->fd);
	if (c->twin >= 0)
		close(c->twin);
	ws_buf_free(&c->out);
	free(c);
}

/* ---- operations ---- */

int ws_store_client_set(struct ws_store_client *c, const char *key, const void *value, size_t n,
                        ws_deadline until, struct ws_err *err)
{
	if (begin(c, WS_OP_SET, err))
		return -1;
	put_text(c, key);
	ws_store_put_bytes(&c->out, value, n);
	return send_request(c, until, err);
}

int ws_store_client_add(struct ws_store_client *c, const char *key, int64_t delta,
                        ws_deadline until, int64_t *value, struct ws_err *err)
{
	if (begin(c, WS_OP_ADD, err))
		return -1;
	put_text(c, key);
	ws_store_put_i64(&c->out, delta);
	return send_request(c, until, err) ? -1 : receive_i64(c, until, value, err);
}

static int send_keys(struct ws_store_client *c, enum ws_store_op op, const char *const *keys,
                     size_t n, ws_deadline until, struct ws_err *err)
{
	if (begin(c, op, err))
		return -1;
	ws_store_put_i64(&c->out, (int64_t)n);
	for (size_t i = 0; i < n; i++)
		put_text(c, keys[i]);
	return send_request(c, until, err);
}

static int unexpected(struct ws_store_client *c, unsigned char got, struct ws_err *err)
{
	c->broken = true;
	return ws_err_set(err, WS_EDATA, "%s: a wait was answered with %u", c->name, got);
}

/* The reply to WAIT may have crossed CANCEL_WAIT: then it comes first, the keys exist, and this
 * returns 0. */
static int cancel_wait(struct ws_store_client *c, ws_deadline grace, const struct ws_err *reason,
                       struct ws_err *err)
{
	unsigned char reply;
	if (begin(c, WS_OP_CANCEL_WAIT, err)) {
		c->broken = true; /* its WAIT goes on */
		return -1;
	}
	if (send_request(c, grace, err) || receive(c, &reply, 1, grace, err))
		return -1;
	const bool woken = reply == WS_STORE_WOKEN;
	if (woken && receive(c, &reply, 1, grace, err))
		return -1;
	if (reply != WS_STORE_WAIT_CANCELLED)
		return unexpected(c, reply, err);
	*err = woken ? (struct ws_err)WS_ERR_INIT : *reason;
	return woken ? 0 : -1;
}

/* After a cancel the grace is short, and the error stays: the store may not answer. */
static int give_up_waiting(struct ws_store_client *c, const struct ws_cancel *cancel,
                           struct ws_err *err)
{
	const struct ws_err reason = *err;
	const bool cancelled = reason.code == WS_ECANCELLED;
	const struct ws_cancel *const stop = c->stop;
	if (c->epoch == WS_EPOCH_A) {
		c->broken = true;
		return -1;
	}
	if (!cancelled)
		c->stop = cancel;
	const int rc = cancel_wait(c, ws_deadline_in(cancelled ? cancelled_grace_ns : grace_ns),
	                           &reason, err);
	c->stop = stop;
	if (rc && cancelled)
		*err = reason;
	return rc;
}

int ws_store_client_wait(struct ws_store_client *c, const char *const *keys, size_t n,
                         ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_err local;
	char what[WS_HOST_MAX + 200];
	unsigned char reply;
	if (!err)
		err = &local;
	cancel = cancel ? cancel : c->stop;
	if (send_keys(c, WS_OP_WAIT, keys, n, until, err))
		return -1;
	snprintf(what, sizeof what, "%s: wait for the key %.120s%s", c->name, n ? keys[0] : "",
	         n > 1 ? " and others" : "");
	if (ws_sock_wait(c->fd, POLLIN, until, cancel, what, err)) {
		if (err->code == WS_ETIMEOUT || err->code == WS_ECANCELLED)
			return give_up_waiting(c, cancel, err);
		c->broken = true;
		return -1;
	}
	if (receive(c, &reply, 1, ws_deadline_in(grace_ns), err))
		return -1;
	return reply == WS_STORE_WOKEN ? 0 : unexpected(c, reply, err);
}

int ws_store_client_get(struct ws_store_client *c, const char *key, ws_deadline until,
                        const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err)
{
	const struct ws_cancel *const stop = c->stop;
	if (ws_store_client_wait(c, &key, 1, until, cancel, err))
		return -1;
	const ws_deadline end = until == WS_FOREVER || ws_deadline_left(until) > grace_ns ?
	                        until : ws_deadline_in(grace_ns);
	c->stop = cancel ? cancel : stop;
	int rc = begin(c, WS_OP_GET, err);
	if (!rc) {
		put_text(c, key);
		rc = send_request(c, end, err) ? -1 : receive_bytes(c, end, value, err);
	}
	c->stop = stop;
	return rc;
}

int ws_store_client_check(struct ws_store_client *c, const char *const *keys, size_t n,
                          ws_deadline until, bool *all, struct ws_err *err)
{
	unsigned char reply;
	if (send_keys(c, WS_OP_CHECK, keys, n, until, err) || receive(c, &reply, 1, until, err))
		return -1;
	*all = reply == WS_STORE_READY;
	return 0;
}

int ws_store_client_delete(struct ws_store_client *c, const char *key, ws_deadline until,
                           bool *deleted, struct ws_err *err)
{
	int64_t n;
	if (begin(c, WS_OP_DELETE_KEY, err))
		return -1;
	put_text(c, key);
	if (send_request(c, until, err) || receive_i64(c, until, &n, err))
		return -1;
	*deleted = n > 0;
	return 0;
}
