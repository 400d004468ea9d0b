/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog.h - observes the waits of an operation: an event after a long silence, and a report of
 * the cause when a deadline passes (wsync/tool/hang.h).
 *
 * An operation opens one, calls it when a phase begins, and gives it to its group. It observes
 * requests by itself, through the HTTP client. It belongs to one thread. NULL is fine
 * everywhere. */
#ifndef WS_DIAGNOSE_WATCHDOG_H
#define WS_DIAGNOSE_WATCHDOG_H

#include "endpoint_call.h"
#include "group.h"
#include "wsync/tool/hang.h"

struct ws_watchdog; /* opaque */

struct ws_watchdog_opts {
	struct ws_http *http;    /* borrowed; nobody else may watch it */
	const char *const *urls; /* borrowed */
	size_t n;
	struct ws_sink sink;
	int64_t report_ns;       /* silence before the first event; 0: 10 s */
	/* Called before each request, and at least once a second while waiting. due: the
	 * deadline of the current step; 0: unchanged. May be NULL. */
	void (*alive)(void *ctx, ws_deadline due);
	void *ctx;
};

int ws_watchdog_open(const struct ws_watchdog_opts *opts, struct ws_watchdog **out,
                     struct ws_err *err);
void ws_watchdog_close(struct ws_watchdog *x);

/* What bounds a wait: a limit, and the field of the options that sets it. */
struct ws_watchdog_limit {
	const char *field; /* static */
	int64_t ns;
	ws_deadline until;  /* of all waits together; 0: of each by itself */
};
/* A phase begins, with the limits that may end a wait in it, the likeliest first. */
void ws_watchdog_phase(struct ws_watchdog *x, enum ws_phase phase,
                       const struct ws_watchdog_limit *limits, size_t n);
/* The bucket that is sent from now on, and that all of it has arrived. */
void ws_watchdog_bucket(struct ws_watchdog *x, size_t b, size_t n, uint64_t bytes, bool flush);
void ws_watchdog_arrived(struct ws_watchdog *x);
/* An event was sent, or bytes moved: the silence ends. */
void ws_watchdog_touch(struct ws_watchdog *x);

/* Follows the waits of a group. ctx: a struct ws_watchdog, or NULL. */
extern const struct ws_group_watch ws_watchdog_group;
void ws_watchdog_alive(struct ws_watchdog *x, ws_deadline due); /* calls that function */

/* A wait failed: keeps a snapshot of this moment (of the first call since ws_watchdog_finish), and
 * begins to probe the endpoints that are waited for. */
void ws_watchdog_snapshot(struct ws_watchdog *x, enum ws_hang_end end);
/* Likewise if the error is a timeout or a cancellation. After another error the snapshot is not of
 * its cause, and is dropped. */
void ws_watchdog_failed(struct ws_watchdog *x, const struct ws_err *err);
/* Finds the cause in the snapshot and reports it to the sink; the remedy becomes the hint of an
 * error without one. Takes at most a second after the snapshot; without one it does nothing. */
void ws_watchdog_finish(struct ws_watchdog *x, struct ws_err *err);

#endif
