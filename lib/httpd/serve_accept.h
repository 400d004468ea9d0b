/* SPDX-License-Identifier: Apache-2.0 */
/* serve_accept.h - accepts connections, and limits their number and how long a
 * request may take to arrive.
 *
 * A connection is reading (idle, or its request is not complete), working, or sending its reply.
 * When all slots are taken, the connection that has been waiting for its client longest is
 * closed, and new ones wait in the kernel until it is gone: clients that are silent cannot keep
 * others out. This holds for clients of one address too, as on loopback and behind a proxy,
 * where a limit for each address would not help. */
#ifndef WS_HTTPD_SERVE_ACCEPT_H
#define WS_HTTPD_SERVE_ACCEPT_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct ws_serve_accept; /* opaque, like the slot that each connection has */
struct ws_serve_slot;

struct ws_serve_accept_opts {
	size_t most;     /* connections at once */
	int64_t read_ns; /* for a request to arrive, and 1 s more for each MiB of its body */
	/* Takes fd. False: it was closed, and no thread knows its slot. */
	bool (*add)(void *ctx, int fd, const struct sockaddr *address, socklen_t len);
	void *ctx;
};

/* Takes listen_fd. Connections come from a thread of its own. */
int ws_serve_accept_open(const struct ws_serve_accept_opts *opts, int listen_fd,
                         struct ws_serve_accept **out, struct ws_err *err);
void ws_serve_accept_stop(struct ws_serve_accept *a);  /* no connection is added after this */
/* when all connections are gone; NULL is fine */
void ws_serve_accept_close(struct ws_serve_accept *a);

/* For the thread of a connection. The slot of the connection that was added
 * as fd, reading; NULL: none. */
struct ws_serve_slot *ws_serve_slot_find(struct ws_serve_accept *a, int fd);
void ws_serve_slot_reading(struct ws_serve_slot *slot);            /* waits for the next request */
void ws_serve_slot_received(struct ws_serve_slot *slot, size_t n); /* bytes of a body */
/* is not closed, however long it takes */
void ws_serve_slot_working(struct ws_serve_slot *slot);
void ws_serve_slot_sending(struct ws_serve_slot *slot);
/* before the descriptor is closed */
void ws_serve_slot_free(struct ws_serve_slot *slot);

#endif
