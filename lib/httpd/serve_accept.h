/* SPDX-License-Identifier: Apache-2.0 */
/* serve_accept.h - accepts connections, and limits their number and how long a
 * request may take to arrive.
 *
 * A connection is reading (idle, or its request is not complete), working, or sending its reply.
 * When all slots are taken, the connection that has waited longest for its client is closed. New
 * connections wait in the kernel until it is gone. So silent clients cannot keep others out, not
 * even clients of the same address (on loopback, or behind a proxy), where a limit per address
 * would not help. */
#ifndef WS_HTTPD_SERVE_ACCEPT_H
#define WS_HTTPD_SERVE_ACCEPT_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct ws_serve_accept; /* opaque */
struct ws_serve_slot;   /* opaque; each connection has a slot */

struct ws_serve_accept_opts {
	size_t most;     /* connections at once */
	int64_t read_ns; /* time for a request to arrive, plus 1 s for each MiB of its body */
	/* Takes ownership of fd. Returns false if it closed fd; then no thread uses the slot. */
	bool (*add)(void *ctx, int fd, const struct sockaddr *address, socklen_t len);
	void *ctx;
};

/* Takes ownership of listen_fd. A new thread accepts connections and calls opts->add. */
int ws_serve_accept_open(const struct ws_serve_accept_opts *opts, int listen_fd,
                         struct ws_serve_accept **out, struct ws_err *err);
void ws_serve_accept_stop(struct ws_serve_accept *a);  /* no connection is added after this */
/* Call it after all connections are closed. NULL is allowed. */
void ws_serve_accept_close(struct ws_serve_accept *a);

/* These functions are for the thread of a connection. This one returns the slot of the connection
 * that was added as fd, in state reading, or NULL. */
struct ws_serve_slot *ws_serve_slot_find(struct ws_serve_accept *a, int fd);
void ws_serve_slot_reading(struct ws_serve_slot *slot);            /* waits for the next request */
void ws_serve_slot_received(struct ws_serve_slot *slot, size_t n); /* bytes of a body */
/* The connection is not closed while working, however long that takes. */
void ws_serve_slot_working(struct ws_serve_slot *slot);
void ws_serve_slot_sending(struct ws_serve_slot *slot);
/* Call it before the descriptor is closed. */
void ws_serve_slot_free(struct ws_serve_slot *slot);

#endif
