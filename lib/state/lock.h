/* SPDX-License-Identifier: Apache-2.0 */
/* lock.h - lock files that name their holder, one for each endpoint.
 *
 * The kernel releases a lock when its holder dies, however that happens, so no lock is ever stale.
 * Lock files are never removed: if another process waits for a removed file, there can be two
 * holders. Processes exclude each other only if they see the same files. */
#ifndef WS_STATE_LOCK_H
#define WS_STATE_LOCK_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes the lock at path and creates the file if needed. Returns a descriptor for ws_lock_drop, or
 * -1. `what` begins the message: "endpoint http://a:1". If another process has the lock, the
 * message names it: WS_EREFUSED for wait_ns 0, else WS_ETIMEOUT with a native EWOULDBLOCK.
 * WS_ESYSTEM: the file cannot be created or locked, or is not a lock file. WS_EINPUT: a link, or a
 * file of another user. */
int ws_lock_take(const char *path, const char *what, int64_t wait_ns,
                 const struct ws_cancel *cancel, struct ws_err *err);
void ws_lock_drop(int fd); /* -1 is fine */

struct ws_locks; /* the locks of some endpoints */

/* Locks all of these endpoints or none, by host and port, in the directory dir, which is created.
 * WS_EINPUT: others can write there.
 * All loopback addresses with one port share one lock, so two URLs of one endpoint
 * (ws_endpoint_same) do, too. The order of locking is fixed, to avoid deadlocks. wait_ns is the
 * limit for all locks together. */
int ws_locks_take(const char *dir, const char *const *urls, size_t n, int64_t wait_ns,
                  const struct ws_cancel *cancel, struct ws_locks **out, struct ws_err *err);
void ws_locks_drop(struct ws_locks *l); /* NULL is fine */

/* Unlocks, for a while. Returns a mark that is not 0: ws_locks_kept says for locks that are taken
 * again whether nobody has locked this endpoint meanwhile. */
unsigned ws_locks_keep(struct ws_locks *l);
bool ws_locks_kept(const struct ws_locks *l, const char *url, unsigned mark);
/* Locks it again without waiting; true: it has the lock, and nobody had it meanwhile. The caller
 * drops *out in both cases. */
bool ws_locks_again(const char *dir, const char *url, unsigned mark, struct ws_locks **out);

/* The name of an endpoint's lock file: at most WS_LOCK_NAME bytes with the NUL. */
enum { WS_LOCK_NAME = 200 };
int ws_lock_name(const char *url, char *name, struct ws_err *err);

#endif
