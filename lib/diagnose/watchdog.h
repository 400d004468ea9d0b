/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog.h - observes the waits of an operation. Sends an event after a long silence, and reports
 * the cause when a deadline passes (wsync/tool/hang.h).
 *
 * An operation opens a watchdog, calls it at the start of each phase, and passes it to its group.
 * The watchdog observes requests by itself, through the HTTP client. Only one thread may use it.
 * All functions accept a NULL watchdog. */
#ifndef WS_DIAGNOSE_WATCHDOG_H
#define WS_DIAGNOSE_WATCHDOG_H

#include "endpoint_call.h"
#include "group.h"
#include "wsync/tool/hang.h"

struct ws_watchdog; /* opaque */

struct ws_watchdog_opts {
	struct ws_http *http;    /* borrowed; must have no other ws_http_watch */
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

/* A time limit of waits, and the option field that sets it. */
struct ws_watchdog_limit {
	const char *field; /* static */
	int64_t ns;
	ws_deadline until;  /* one deadline for all waits; 0: ns limits each wait */
};
/* Starts a phase. limits: the limits that may end its waits, the likeliest first. */
void ws_watchdog_phase(struct ws_watchdog *x, enum ws_phase phase,
                       const struct ws_watchdog_limit *limits, size_t n);
/* Reports that bucket b of n is sent from now on; that all endpoints have answered for it. */
void ws_watchdog_bucket(struct ws_watchdog *x, size_t b, size_t n, uint64_t bytes, bool flush);
void ws_watchdog_arrived(struct ws_watchdog *x);
/* Call it when an event was sent or bytes moved: postpones the next event. */
void ws_watchdog_touch(struct ws_watchdog *x);

/* Follows the waits of a group. ctx: a struct ws_watchdog, or NULL. */
extern const struct ws_group_watch ws_watchdog_group;
void ws_watchdog_alive(struct ws_watchdog *x, ws_deadline due); /* calls opts.alive */

/* Call it when a wait fails. Takes a snapshot of the facts, and after a deadline starts to probe
 * the awaited endpoints. Further calls before ws_watchdog_finish do nothing. */
void ws_watchdog_snapshot(struct ws_watchdog *x, enum ws_hang_end end);
/* Takes a snapshot likewise if err is a timeout or a cancellation. Any other error has another
 * cause, so it drops the snapshot. */
void ws_watchdog_failed(struct ws_watchdog *x, const struct ws_err *err);
/* Finds the cause in the snapshot and reports it to the sink. After a deadline, the remedy becomes
 * err's hint if err has no hint. Ends within a second of the snapshot. No snapshot: no effect. */
void ws_watchdog_finish(struct ws_watchdog *x, struct ws_err *err);

#endif
