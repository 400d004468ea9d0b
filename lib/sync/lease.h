/* SPDX-License-Identifier: Apache-2.0 */
/* lease.h - a lock at a lock service (wsync-gateway, serve_gateway_locks.c): it ends by itself when its holder
 * does not renew it, so that a machine that is gone keeps nobody waiting.
 *
 * A thread renews it. Whether it is still held is what ws_lease_check says, by our own clock and never
 * later than the service thinks so. */
#ifndef WS_SYNC_LEASE_H
#define WS_SYNC_LEASE_H

#include "round.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"
#include "wsync/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_lease; /* opaque */

struct ws_lease_opts {
	const char *url;        /* http://HOST:PORT/NAME; borrowed */
	const char *api_key;    /* NULL: none; borrowed */
	const char *ca_file;    /* as ws_http_opts; borrowed */
	const char *what;       /* begins sentences: "turn of sender 1 of 2"; borrowed */
	int64_t lease_ns;       /* whole seconds count; 0: 30 s */
	int64_t wait_ns;        /* for others to let go; 0: not at all */
	ws_deadline until;      /* of taking it, whatever is waited for */
	const struct ws_cancel *cancel;
	const struct ws_log *log;
};

bool ws_lease_is_url(const char *lock); /* and no file */
/* Returns the stored round and parts; *parts is the caller's to free. Held by another: WS_EREFUSED at once, naming it,
 * where wait_ns is 0, else WS_ETIMEOUT with native EWOULDBLOCK. */
int ws_lease_take(const struct ws_lease_opts *opts, struct ws_round *round, struct ws_parts *parts,
                  struct ws_lease **out, struct ws_err *err);
/* -1: it is lost. WS_EREFUSED: to another, or it was said to be over; WS_EREACH: the service did not answer. */
int ws_lease_check(struct ws_lease *l, struct ws_err *err);
/* Releases the lock, and stores round and parts there; round NULL: the stored ones stay. -1: the service did not take
 * the request, and the lease runs out. */
int ws_lease_release(struct ws_lease *l, const struct ws_round *round, const struct ws_parts *parts,
                     struct ws_err *err);

#endif
