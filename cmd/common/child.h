/* SPDX-License-Identifier: Apache-2.0 */
/* child.h - runs another program and waits for it. */
#ifndef WSYNC_CMD_CHILD_H
#define WSYNC_CMD_CHILD_H

#include "wsync/clock.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>

struct child {
	const char *program;      /* a path, without a search */
	char *const *words;       /* its arguments, the first is its name; NULL-terminated */
	char *const *environment; /* NULL: ours */
	const char *directory;    /* NULL: ours */
	bool mute;                /* its standard output goes to /dev/null, */
	bool to_stderr;           /* or to our standard error */
	bool group;               /* signals go to it and to all that it starts */
	ws_deadline until;
	int64_t grace_ns;         /* after SIGTERM or the deadline, until it is killed */
};

struct child_end {
	int status;               /* as of waitpid(2) */
	bool late;                /* it got SIGTERM at the deadline */
};

/* Runs the child with an empty standard input, and waits for it. 0: *how says how it ended.
 * If this program is cancelled, the child gets SIGTERM once. Without `group` there is then no time
 * limit, because the child ends by itself. With `group` it also gets SIGTERM at the deadline, and
 * grace_ns after a SIGTERM the whole group is killed. */
int child_run(const struct child *c, struct child_end *how, struct ws_err *err);

/* Runs a user's command with sh -c, as a group. It gets the URLs, separated by blanks, in
 * WSYNC_ENDPOINTS, and the version ("" for NULL) in WSYNC_VERSION. Its standard output becomes our
 * standard error. -1: it did not run, or this program is cancelled. */
int child_run_shell(const char *command, const char *const *urls, size_t n, const char *version,
                    ws_deadline until, struct child_end *how, struct ws_err *err);

#endif
