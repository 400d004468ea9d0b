/* SPDX-License-Identifier: Apache-2.0 */
/* explain_state.h - what explain.c, explain_collect.c and explain_probe.c share. */
#ifndef WS_DIAGNOSE_EXPLAIN_STATE_H
#define WS_DIAGNOSE_EXPLAIN_STATE_H

#include "explain.h"

enum { EXPLAIN_LIMITS = 4 };

/* The last request to one endpoint. */
struct explain_seen {
	enum ws_hang_request request;
	char route[80], address[48];
	int64_t ns;
	long status;
};

struct explain_probes;

struct ws_explain {
	struct ws_explain_opts opts;
	struct explain_seen *seen;       /* per endpoint */
	enum ws_phase phase;
	struct ws_explain_limit limits[EXPLAIN_LIMITS];
	size_t n_limits;
	int64_t phase_since;
	size_t bucket, buckets, n_arrived;
	uint64_t bytes;
	bool flush;
	const struct ws_together *wait;  /* NULL: none of a group's */
	int64_t wait_since, moved_at;
	/* when the next line is due, and how long it is to the one after */
	int64_t tell_at, pace_ns;
	bool caught;
	struct ws_hang hang;             /* what was */
	struct explain_probes *probes;   /* NULL: none are on their way */
};

/* explain_collect.c: all that is to be seen now. The caller frees it. -1: out of memory. */
int explain_collect(struct ws_explain *x, enum ws_hang_end end, struct ws_hang *h);

/* explain_probe.c: the endpoints that are waited for are asked whether they live; their requests
 * are marked by x as their user. */
void explain_probe_begin(struct ws_explain *x, const struct ws_hang *h);
void explain_probe_end(struct ws_explain *x, struct ws_hang *h); /* into it */

#endif
