/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog_state.h - shared by watchdog.c, watchdog_collect.c and watchdog_probe.c. */
#ifndef WS_DIAGNOSE_WATCHDOG_STATE_H
#define WS_DIAGNOSE_WATCHDOG_STATE_H

#include "watchdog.h"

enum { WATCHDOG_LIMITS = 4 };

/* The last request to one endpoint. */
struct watchdog_seen {
	enum ws_hang_request request;
	char route[80], address[48];
	int64_t ns;
	long status;
};

struct watchdog_probes;

struct ws_watchdog {
	struct ws_watchdog_opts opts;
	struct watchdog_seen *seen;      /* per endpoint */
	enum ws_phase phase;
	struct ws_watchdog_limit limits[WATCHDOG_LIMITS];
	size_t n_limits;
	int64_t phase_since;
	size_t bucket, buckets, n_arrived;
	uint64_t bytes;
	bool flush;
	const struct ws_together *wait;  /* the current wait of the group, or NULL */
	int64_t wait_since, moved_at;
	/* time of the next event, and the pause after it */
	int64_t tell_at, pace_ns;
	bool has_snapshot;
	struct ws_hang hang;             /* the snapshot */
	struct watchdog_probes *probes;  /* NULL: no probes in flight */
};

/* watchdog_collect.c: collects the current facts; ws_hang_fini frees them. -1: out of memory. */
int watchdog_collect(struct ws_watchdog *x, enum ws_hang_end end, struct ws_hang *h);

/* watchdog_probe.c: sends probes to the awaited endpoints. `user` of these requests is x. */
void watchdog_probe_begin(struct ws_watchdog *x, const struct ws_hang *h);
void watchdog_probe_end(struct ws_watchdog *x, struct ws_hang *h); /* results into h, or NULL */

#endif
