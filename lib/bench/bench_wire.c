/* SPDX-License-Identifier: Apache-2.0 */
/* bench_wire.c - one TCP connection on the loopback interface: what a broadcast to
 * one receiver cannot beat.
 *
 * A round is its length (8 bytes), its bytes by sendfile, and one byte back when all have come. */
#include "bench_transport.h"

#include "sock.h"
#include "job.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

void bench_wire_init(struct bench_wire *w)
{
	*w = (struct bench_wire){ .listener = -1, .from = -1, .to = -1 };
}

static bool take_round(struct bench_wire *w)
{
	uint64_t left;
	const char ack = 1;
	if (ws_sock_read(w->to, &left, sizeof left, WS_FOREVER, NULL, "wire", NULL))
		return false;
	while (left) {
		const size_t most = left < CHUNK ? (size_t)left : CHUNK;
		/* Not even copied: no reader is faster. */
		const ssize_t n = recv(w->to, w->buffer, most, MSG_TRUNC);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		if (n > 0)
			left -= (uint64_t)n;
		else if (ws_sock_wait(w->to, POLLIN, WS_FOREVER, NULL, "wire", NULL))
			return false;
	}
	return ws_sock_write(w->to, &ack, 1, WS_FOREVER, NULL, "wire", NULL) == 0;
}

static void *take_all(void *arg)
{
	while (take_round(arg))
		continue;
	return NULL;
}

static int start_reader(struct bench_wire *w, struct ws_err *err)
{
	w->buffer = malloc(CHUNK);
	if (!w->buffer)
		return ws_oom(err);
	w->running = ws_thread_start(&w->thread, take_all, w, err) == 0;
	return w->running ? 0 : -1;
}

int bench_wire_open(struct bench_wire *w, ws_deadline until, struct ws_err *err)
{
	uint16_t port;
	w->listener = ws_sock_listen("127.0.0.1", 0, &port, err);
	if (w->listener < 0)
		return -1;
	w->from = ws_sock_connect("127.0.0.1", port, until, NULL, err);
	if (w->from < 0 || ws_sock_wait(w->listener, POLLIN, until, NULL, "wire", err))
		return -1;
	w->to = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (w->to < 0)
		return ws_err_errno(err, "accept");
	return start_reader(w, err);
}

/* The pattern again and again. */
static int send_pattern(struct bench_wire *w, const struct bench_root *r, ws_deadline until,
                        struct ws_err *err)
{
	for (uint64_t left = r->size; left;) {
		off_t at = (off_t)((r->size - left) % r->pattern);
		const uint64_t piece = r->pattern - (uint64_t)at;
		const ssize_t n =
			sendfile(w->from, r->file, &at, (size_t)(piece < left ? piece : left));
		if (n > 0)
			left -= (uint64_t)n;
		else if (n == 0 || (errno != EAGAIN && errno != EINTR))
			return ws_err_errno(err, "sendfile");
		else if (ws_sock_wait(w->from, POLLOUT, until, r->opts->cancel,
		                      "a plain connection", err))
			return -1;
	}
	return 0;
}

int bench_wire_send(struct bench_wire *w, const struct bench_root *r, ws_deadline until,
                    int64_t *ns, struct ws_err *err)
{
	static const char name[] = "a plain connection";
	const struct ws_cancel *cancel = r->opts->cancel;
	char ack;
	const int64_t since = ws_now_ns();
	if (ws_sock_write(w->from, &r->size, sizeof r->size, until, cancel, name, err) ||
	    send_pattern(w, r, until, err) ||
	    ws_sock_read(w->from, &ack, 1, until, cancel, name, err))
		return -1;
	*ns += ws_now_ns() - since;
	return 0;
}

void bench_wire_close(struct bench_wire *w)
{
	if (w->from >= 0)
		close(w->from); /* and the reader ends */
	if (w->running)
		pthread_join(w->thread, NULL);
	if (w->to >= 0)
		close(w->to);
	if (w->listener >= 0)
		close(w->listener);
	free(w->buffer);
	bench_wire_init(w);
}
