/* SPDX-License-Identifier: Apache-2.0 */
/* lock.h - one at a time: a lock file whose holder can be named, and one
 * such file for each endpoint.
 *
 * The kernel lets go of the lock when its holder dies, however that happens, so nothing is ever
 * stale. Files stay where they are: taking one away while another waits for it would make two
 * holders. They see each other only where they see the same files. */
#ifndef WS_STATE_LOCK_H
#define WS_STATE_LOCK_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

/* Takes the lock at path, which is created; -1, or the descriptor to give to ws_lock_drop.
 * `what` begins the sentence: "endpoint http://a:1". Held by another: WS_EREFUSED naming its
 * process after wait_ns of 0, WS_ETIMEOUT with a native EWOULDBLOCK after any other. Where files
 * cannot be made or locked, or one there is no lock: WS_ESYSTEM. */
int ws_lock_take(const char *path, const char *what, int64_t wait_ns,
                 const struct ws_cancel *cancel, struct ws_err *err);
void ws_lock_drop(int fd); /* -1 is fine */

struct ws_locks; /* of some endpoints */

/* All or none of them, by host and port, in the directory dir, which is created. All
 * loopback addresses with one port have one lock, so two URLs of one endpoint
 * (ws_endpoint_same) have one, too. Locks are always taken in the same order, to avoid
 * deadlocks. wait_ns is the limit for all together. */
int ws_locks_take(const char *dir, const char *const *urls, size_t n, int64_t wait_ns,
                  const struct ws_cancel *cancel, struct ws_locks **out, struct ws_err *err);
void ws_locks_drop(struct ws_locks *l); /* NULL is fine */

/* The name of an endpoint's file, NUL included at most WS_LOCK_NAME bytes. */
enum { WS_LOCK_NAME = 200 };
int ws_lock_name(const char *url, char *name, struct ws_err *err);

#endif
