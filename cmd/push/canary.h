/* SPDX-License-Identifier: Apache-2.0 */
/* canary.h - --canary-check: a command of the user decides about the weights of the canaries. */
#ifndef WSYNC_CMD_CANARY_H
#define WSYNC_CMD_CANARY_H

#include "wsync/clock.h"
#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

struct canary {
	uint64_t n;               /* 0: not given */
	const char *command;      /* for sh -c; NULL: not given */
	int64_t timeout_ns;       /* 0: 10 min */
};

/* A ws_canary_check; ctx is a struct canary. Runs the command with the URLs, separated by blanks,
 * in WSYNC_ENDPOINTS, and the version in WSYNC_VERSION. Its standard output becomes our standard
 * error. WS_EMISMATCH: it failed, or did not end in time. */
int canary_check(void *ctx, const char *const *urls, size_t n, const char *version,
                 ws_deadline until, struct ws_err *err);

#endif
