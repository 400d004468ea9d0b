/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gloo.c - times broadcasts over gloo. Reference: one TCP connection on the loopback
 * interface to a thread that discards the bytes. A broadcast to one receiver cannot be faster.
 *
 * A round on that connection is its length (8 bytes), its bytes by sendfile, and one byte back when
 * all bytes have arrived. */
#include "bench_transport.h"

#include "sock.h"
#include "job.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

struct wire {
	int listener, from, to; /* -1: none */
	bool running;
	pthread_t thread;
};

struct gloo_root {
	struct ws_gloo *gloo;
	struct wire wire;
};

/* ---- one connection -------------------------------------------------------------------------- */

static bool wire_take(struct wire *w)
{
	static char buffer[CHUNK]; /* never written */
	uint64_t left;
	const char ack = 1;
	if (ws_sock_read(w->to, &left, sizeof left, WS_FOREVER, NULL, "wire", NULL))
		return false;
	while (left) {
		const size_t most = left < CHUNK ? (size_t)left : CHUNK;
		/* With MSG_TRUNC the kernel discards the bytes: no reader is faster. */
		const ssize_t n = recv(w->to, buffer, most, MSG_TRUNC);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		if (n > 0)
			left -= (uint64_t)n;
		else if (ws_sock_wait(w->to, POLLIN, WS_FOREVER, NULL, "wire", NULL))
			return false;
	}
	return ws_sock_write(w->to, &ack, 1, WS_FOREVER, NULL, "wire", NULL) == 0;
}

static void *wire_read(void *arg)
{
	while (wire_take(arg))
		continue;
	return NULL;
}

static int wire_open(struct wire *w, ws_deadline until, struct ws_err *err)
{
	uint16_t port;
	w->listener = ws_sock_listen("127.0.0.1", 0, until, NULL, &port, err);
	if (w->listener < 0)
		return -1;
	w->from = ws_sock_connect("127.0.0.1", port, until, NULL, err);
	if (w->from < 0 || ws_sock_wait(w->listener, POLLIN, until, NULL, "wire", err))
		return -1;
	w->to = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (w->to < 0)
		return ws_err_errno(err, "accept");
	w->running = ws_thread_start(&w->thread, wire_read, w, err) == 0;
	return w->running ? 0 : -1;
}

/* Sends r->size bytes: the pattern, repeated. */
static int wire_pattern(struct wire *w, const struct bench_root *r, ws_deadline until,
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

static int wire_send(struct wire *w, const struct bench_root *r, ws_deadline until,
                    int64_t *ns, struct ws_err *err)
{
	static const char name[] = "a plain connection";
	const struct ws_cancel *cancel = r->opts->cancel;
	char ack;
	const int64_t since = ws_now_ns();
	if (ws_sock_write(w->from, &r->size, sizeof r->size, until, cancel, name, err) ||
	    wire_pattern(w, r, until, err) ||
	    ws_sock_read(w->from, &ack, 1, until, cancel, name, err))
		return -1;
	*ns += ws_now_ns() - since;
	return 0;
}

static void wire_close(struct wire *w)
{
	if (w->from >= 0)
		close(w->from); /* ends the reader */
	if (w->running)
		pthread_join(w->thread, NULL);
	if (w->to >= 0)
		close(w->to);
	if (w->listener >= 0)
		close(w->listener);
}

/* ---- the broadcasts -------------------------------------------------------------------------- */

static int open_gloo(struct bench_root *r, ws_deadline until, struct ws_err *err)
{
	struct gloo_root *g = calloc(1, sizeof *g);
	if (!g)
		return ws_oom(err);
	r->of_plane = g;
	g->wire = (struct wire){ .listener = -1, .from = -1, .to = -1 };
	const struct ws_gloo_kv kv = ws_gloo_kv_store(r->store);
	const struct ws_gloo_opts gloo = { .rank = 0, .size = r->world, .layout = WS_GLOO_G2B,
		                           .prefix = BENCH_GLOO, .kv = &kv, .host = r->what->host,
		                           .log = r->opts->log };
	if (ws_gloo_open(&gloo, until, r->opts->cancel, &g->gloo, err))
		return -1;
	return r->what->remote ? 0 : wire_open(&g->wire, until, err);
}

static int send_gloo(struct bench_root *r, const struct ws_payload *p, unsigned count,
                     ws_deadline until, struct ws_err *err)
{
	const struct gloo_root *g = r->of_plane;
	struct ws_payload *all = calloc(count, sizeof *all);
	if (!all)
		return ws_oom(err);
	for (unsigned i = 0; i < count; i++)
		all[i] = *p;
	const int rc = ws_gloo_send(g->gloo, all, count, until, r->opts->cancel, err);
	free(all);
	return rc;
}

static int send_plain(struct bench_root *r, unsigned count, int64_t *ns, ws_deadline until,
                      struct ws_err *err)
{
	struct gloo_root *g = r->of_plane;
	*ns = 0;
	for (unsigned i = 0; i < count; i++)
		if (wire_send(&g->wire, r, until, ns, err))
			return -1;
	return 0;
}

static void close_gloo(struct bench_root *r)
{
	struct gloo_root *g = r->of_plane;
	wire_close(&g->wire);
	ws_gloo_close(g->gloo);
	free(g);
}

const struct bench_plane bench_plane_gloo = {
	.name = "gloo",
	.against = "one connection",
	.open = open_gloo,
	.send = send_gloo,
	.plain = send_plain,
	.close = close_gloo,
};
